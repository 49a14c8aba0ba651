"""The encoder's own kernels. Sequences of different lengths are packed: a matrix has a row for each token of all
sequences, one sequence after another, and no padding.

A thread computes a whole row, or one head of a token. LLVM turns the unrolled loops into vectors of 16 elements, which
suits a CPU. A sum over a row is kept as 16 partial sums, which are added at the end in a fixed order. So it is the same
in every run.
"""

from __future__ import annotations

import math

from oxide import DisjointSlice2, LocalArray, Slice, Slice2, device, f32, i32, kernel, thread, unroll

HEAD = 32
"""The number of elements of an attention head, in MiniLM and in many small encoders."""

LANES = 16
"""The number of partial sums of a row."""

LONGEST = 512
"""The most tokens of a sequence: a thread of ``attend`` keeps a score for each token."""


@device
def summed(part: LocalArray[f32]) -> f32:
    """Returns the sum of 16 elements, added pairwise. Overwrites the elements."""
    for i in unroll(range(8)):
        part[i] += part[i + 8]
    for i in unroll(range(4)):
        part[i] += part[i + 4]
    return (part[0] + part[2]) + (part[1] + part[3])


@kernel
def look_up(words: Slice2[f32], places: Slice2[f32], tokens: Slice2[i32], rows: DisjointSlice2[f32]) -> None:
    """Computes ``rows[t] = words[word of t] + places[place of t]``. A thread computes 16 columns, and the width is a
    multiple of 16. ``tokens`` is that of a ``Layout``: word, place, first row and end."""
    pieces = rows.shape[1] // LANES
    at = thread.index_1d().get()
    t, column = at // pieces, at % pieces * LANES
    if t < rows.shape[0]:
        word, place = tokens[0, t], tokens[1, t]
        for j in unroll(range(LANES)):
            rows.scatter[t, column + j] = words[word, column + j] + places[place, column + j]


@kernel(unchecked=True, requires=("a.shape[0] == rows.shape[0]", "a.shape[1] == rows.shape[1]"))
def add_and_normalise(
    a: Slice2[f32], b: Slice2[f32], weight: Slice[f32], bias: Slice[f32], epsilon: f32, rows: DisjointSlice2[f32]
) -> None:
    """Computes the layer norm of ``a + b`` over each row, whose width is a multiple of 16. If ``b`` has no rows, it
    counts as 0."""
    t = thread.index_1d().get()
    if t >= rows.shape[0]:
        return
    width = rows.shape[1]
    part = LocalArray(LANES, f32)
    for j in unroll(range(LANES)):
        part[j] = 0.0
    for c in range(0, width, LANES):
        for j in unroll(range(LANES)):
            part[j] += a[t, c + j]
    if b.shape[0] > 0:
        for c in range(0, width, LANES):
            for j in unroll(range(LANES)):
                part[j] += b[t, c + j]
    mean = summed(part) / f32(width)
    for j in unroll(range(LANES)):
        part[j] = 0.0
    if b.shape[0] > 0:
        for c in range(0, width, LANES):
            for j in unroll(range(LANES)):
                x = a[t, c + j] + b[t, c + j] - mean
                part[j] += x * x
    else:
        for c in range(0, width, LANES):
            for j in unroll(range(LANES)):
                x = a[t, c + j] - mean
                part[j] += x * x
    scale = 1.0 / math.sqrt(summed(part) / f32(width) + epsilon)
    for c in range(0, width, LANES):
        for j in unroll(range(LANES)):
            x = a[t, c + j] - mean
            if b.shape[0] > 0:
                x += b[t, c + j]
            rows.scatter[t, c + j] = x * scale * weight[c + j] + bias[c + j]


@kernel(unchecked=True)
def attend(products: Slice2[f32], tokens: Slice2[i32], scale: f32, rows: DisjointSlice2[f32]) -> None:
    """Computes the attention of each token to the tokens of its sequence. A row of ``products`` has the queries, the
    keys and the values of a token, each with 32 elements for each head. ``tokens[2, t]`` is the first row of the
    sequence of token t, and ``tokens[3, t]`` its end."""
    heads = rows.shape[1] // HEAD
    at = thread.index_1d().get()
    t, head = at // heads, at % heads
    if t >= rows.shape[0]:
        return
    width, column = rows.shape[1], head * HEAD
    first, length = tokens[2, t], min(tokens[3, t] - tokens[2, t], LONGEST)
    query = LocalArray(HEAD, f32)
    scores = LocalArray(LONGEST, f32)
    part = LocalArray(LANES, f32)
    total = LocalArray(HEAD, f32)
    for j in unroll(range(HEAD)):
        query[j] = products[t, column + j] * scale
    highest = f32(-math.inf)
    for i in range(length):
        for j in unroll(range(LANES)):
            part[j] = query[j] * products[first + i, width + column + j]
        for j in unroll(range(LANES)):
            part[j] += query[LANES + j] * products[first + i, width + column + LANES + j]
        score = summed(part)
        scores[i] = score
        highest = max(highest, score)
    for i in range(length):
        scores[i] = math.exp(scores[i] - highest)
    sum_of_all = f32(0)
    for i in range(length):
        sum_of_all += scores[i]
    for j in unroll(range(HEAD)):
        total[j] = 0.0
    for i in range(length):
        weight = scores[i]
        for j in unroll(range(HEAD)):
            total[j] += weight * products[first + i, 2 * width + column + j]
    share = 1.0 / sum_of_all
    for j in unroll(range(HEAD)):
        rows.scatter[t, column + j] = total[j] * share


@kernel
def average(rows: Slice2[f32], sequences: Slice2[i32], means: DisjointSlice2[f32]) -> None:
    """Computes the mean of the rows of each sequence. ``sequences`` is 2×s: the first row of each sequence, and its
    end."""
    width = means.shape[1]
    at = thread.index_1d().get()
    s, column = at // width, at % width
    if s < means.shape[0]:
        first, end = sequences[0, s], sequences[1, s]
        total = f32(0)
        for t in range(first, end):
            total += rows[t, column]
        means.scatter[s, column] = total / f32(end - first)


@kernel
def to_unit_length(vectors: Slice2[f32], units: DisjointSlice2[f32]) -> None:
    """Divides each row by its Euclidean length, or by 1e-12 if the length is smaller, as torch's ``normalize`` does."""
    s = thread.index_1d().get()
    if s < units.shape[0]:
        total = f32(0)
        for c in range(vectors.shape[1]):
            total += vectors[s, c] * vectors[s, c]
        scale = 1.0 / max(math.sqrt(total), 1e-12)
        for c in range(vectors.shape[1]):
            units.scatter[s, c] = vectors[s, c] * scale
