"""Every public kernel of the library, run under the sanitizer: a program, so that no kernel is compiled without it.

Prints, for each family of kernels, "clean", or what was found. ``test_sanitized_library.py`` runs it and reads that.
With ``--sample`` it runs one launch of each family, of one size.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import oxide_kernels as library
from oxide import DeviceOperation, DisjointSlice, Slice, d2h, empty, h2d, i64, kernel, thread, u32, zeros
from oxide.driver.cpu.sanitizer import SanitizedLaunch
from oxide_kernels import ops
from tests.kernels.references import ACTIVATIONS, IDENTITY, compose, layer_norm, rms_norm, softmax

SIZES = (1, 33, 1030)
Checked = tuple[Any, Any]
"""What a kernel gave, and what it is to be."""

GENERATOR = np.random.default_rng(3)


def random(*shape: int) -> np.ndarray[Any, Any]:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def fetched(operation: DeviceOperation[Any]) -> Any:
    return d2h(operation).sync()


def filled(launch: Callable[..., DeviceOperation[Any]], *operands: Any, shape: Any, dtype: Any = np.float32) -> Any:
    """What a kernel writes into its last argument, of which nothing was written before."""
    return fetched(launch(*operands, empty(shape, dtype)).last())


def activations() -> Iterator[Checked]:
    for name, n in itertools.product(ACTIVATIONS, SIZES):
        x = random(n)
        yield filled(getattr(library, name), h2d(x), shape=n), ACTIVATIONS[name](x.astype(np.float64))
        yield fetched(getattr(ops, name)(h2d(x))), ACTIVATIONS[name](x.astype(np.float64))


def axpy() -> Iterator[Checked]:
    for n in SIZES:
        x, y = random(n), random(n)
        yield fetched(library.axpy(2.5, h2d(x), h2d(y)).last()), 2.5 * x + y
        yield fetched(ops.axpy(2.5, h2d(x), h2d(y))), 2.5 * x + y


def reductions() -> Iterator[Checked]:
    for n in SIZES:
        x, y = random(n), random(n)
        yield filled(library.reduce_sum, h2d(x), shape=1), [x.sum(dtype=np.float64)]
        yield filled(library.reduce_max, h2d(x), shape=1), [x.max()]
        yield filled(library.argmax, h2d(x), shape=1, dtype=np.int64), [x.argmax()]
        yield filled(library.dot, h2d(x), h2d(y), shape=1), [x.astype(np.float64) @ y]
        yield fetched(ops.reduce_sum(h2d(x))), x.sum(dtype=np.float64)
        yield fetched(ops.reduce_max(h2d(x))), x.max()
        yield fetched(ops.argmax(h2d(x))), x.argmax()
        yield fetched(ops.dot(h2d(x), h2d(y))), x.astype(np.float64) @ y


def scans() -> Iterator[Checked]:
    for n in (*SIZES, 5000):
        x = random(n)
        sums = np.cumsum(x, dtype=np.float64)
        yield filled(library.inclusive_scan, h2d(x), shape=n), sums
        yield filled(library.exclusive_scan, h2d(x), shape=n), sums - x
        yield fetched(ops.inclusive_scan(h2d(x))), sums
        yield fetched(ops.exclusive_scan(h2d(x))), sums - x


def rows() -> Iterator[Checked]:
    for n in (33, 1028, 5000):
        x, weight, bias = random(3, n), random(n), random(n)
        wide = x.astype(np.float64)
        layer = layer_norm(wide, weight, bias)
        yield filled(library.softmax, h2d(x), shape=(3, n)), softmax(wide)
        yield fetched(ops.softmax(h2d(x))), softmax(wide)
        yield filled(library.layer_norm, h2d(x), h2d(weight), h2d(bias), shape=(3, n)), layer
        yield fetched(ops.layer_norm(h2d(x), h2d(weight), h2d(bias))), layer
        yield filled(library.rms_norm, h2d(x), h2d(weight), shape=(3, n)), rms_norm(wide, weight)
        yield fetched(ops.rms_norm(h2d(x), h2d(weight))), rms_norm(wide, weight)


def layout() -> Iterator[Checked]:
    for m, n in ((1, 1), (33, 5), (40, 70)):
        x, indices = random(m, n), GENERATOR.integers(0, m, 7).astype(np.int32)
        yield filled(library.transpose, m, n, h2d(x), shape=(n, m)), x.T
        yield fetched(ops.transpose(h2d(x))), x.T
        yield filled(library.gather, n, h2d(x), h2d(indices), shape=(7, n)), x[indices]
        yield fetched(ops.gather(h2d(x), h2d(indices))), x[indices]


def histogram() -> Iterator[Checked]:
    for n, bins in ((1, 1), (1000, 33), (700, 5000)):
        values = GENERATOR.integers(0, bins, n).astype(np.uint32)
        counts = np.bincount(values, minlength=bins)
        yield fetched(library.histogram(h2d(values), zeros(bins, np.uint32)).last()), counts
        yield fetched(ops.histogram(h2d(values), bins)), counts


def products() -> Iterator[Checked]:
    for m, k, n in ((1, 1, 1), (33, 9, 17), (66, 20, 68)):
        a, b, c, vector = random(m, k), random(k, n), random(m, n), random(k)
        product = a.astype(np.float64) @ b
        for gemm in (library.sgemm_naive[(-(-n // 16), -(-m // 16)), (16, 16)], library.sgemm_tiled):
            found = fetched(gemm(m, n, k, 1.5, h2d(a), h2d(b), 0.5, h2d(c)).last())
            yield found, 1.5 * product + 0.5 * c
        config = (-(-n // 16), -(-m // 16)), (16, 16)
        found = fetched(library.sgemm_2d[config](1.5, h2d(a), h2d(b), 0.5, h2d(c)).last())
        yield found, 1.5 * product + 0.5 * c
        yield fetched(ops.sgemm_tiled(h2d(a), h2d(b))), product
        yield fetched(ops.matmul(h2d(a), h2d(b), precision="high")), product
        found = fetched(library.matmul(h2d(a), h2d(b), h2d(c), alpha=1.5, beta=0.5, precision="high").last())
        yield found, 1.5 * product + 0.5 * c
        narrow, turned = a.astype(np.float16), np.ascontiguousarray(b.T.astype(np.float16))
        found = fetched(ops.matmul(h2d(narrow), h2d(turned).map(lambda b: b.T), out_dtype=np.float32))
        yield found, narrow.astype(np.float64) @ turned.T
        packed = library.matmul_packed(h2d(a), h2d(library.pack(b)), zeros((m, n)), bias=h2d(c[0].copy()))
        yield fetched(packed), product + c[0]
        for matvec in (library.matvec_naive, library.matvec):
            yield filled(matvec, m, k, h2d(a), h2d(vector), shape=m), a.astype(np.float64) @ vector
        yield filled(library.matvec_2d, h2d(a), h2d(vector), shape=m), a.astype(np.float64) @ vector
        yield fetched(ops.matvec(h2d(a), h2d(vector))), a.astype(np.float64) @ vector


def attentions() -> Iterator[Checked]:
    for queries, keys, size in ((1, 1, 1), (17, 33, 20), (66, 70, 32)):
        q, k, v = (random(1, 2, n, size).astype(np.float16) for n in (queries, keys, keys))
        scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) / math.sqrt(size)
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        expected = weights @ v.astype(np.float64)
        lengths, starts = h2d(np.array([keys], np.int32)), h2d(np.array([0, keys], np.int32))
        by_token = [h2d(np.ascontiguousarray(each[0].swapaxes(0, 1))) for each in (k, k, v)]
        for found in (
            filled(library.attention, h2d(q), h2d(k), h2d(v), shape=q.shape, dtype=np.float16),
            fetched(ops.attention(h2d(q), h2d(k), h2d(v), lengths=lengths)),
            fetched(ops.attention(h2d(q), h2d(k), h2d(v), mask=h2d(np.ones((queries, keys), bool)))),
        ):
            yield np.abs(found - expected).max() < 2e-3, True
        fetched(ops.attention(*by_token, cu_seqlens=starts, causal=True))


def maps() -> Iterator[Checked]:
    for n in SIZES:
        x, y = random(n), random(n)
        yield filled(library.map_, lambda v: v + v, h2d(x), shape=n), 2 * x
        yield filled(library.zip_map, lambda v, w: v - w, h2d(x), h2d(y), shape=n), x - y


@kernel
def with_an_operator(op: Callable[[u32, u32], u32], identity: u32, x: Slice[u32], y: DisjointSlice[u32]) -> None:
    index = thread.index_1d()
    value = x[index.get()]
    result = library.block_reduce(op, value)
    result = result * u32(3) + library.block_inclusive_scan(op, value)
    result = result * u32(3) + library.block_exclusive_scan(op, value, identity)
    result = result * u32(3) + library.warp_reduce(op, value)
    result = result * u32(3) + library.warp_inclusive_scan(op, value)
    result = result * u32(3) + library.warp_exclusive_scan(op, value, identity)
    element = y.get_mut(index)
    if element is not None:
        element.value = result


@kernel
def of_sums(x: Slice[i64], y: DisjointSlice[i64]) -> None:
    index = thread.index_1d()
    value = x[index.get()]
    result = library.block_sum(value, i64)
    result = result * 3 + library.block_max(value, i64)
    result = result * 3 + library.block_min(value, i64)
    result = result * 3 + library.block_inclusive_sum(value, i64)
    result = result * 3 + library.block_exclusive_sum(value, i64)
    result = result * 3 + library.warp_inclusive_sum(value, i64)
    result = result * 3 + library.block_broadcast(value, thread.block_dim.x - 1, i64)
    element = y.get_mut(index)
    if element is not None:
        element.value = result


def in_a_block() -> Iterator[Checked]:
    """What threads do together, all of it in two kernels."""
    for threads in (1, 31, 33, 100):
        numbers = GENERATOR.integers(0, 100, 2 * threads)
        expected: list[int] = []
        for values in numbers.reshape(2, threads):
            for place in range(threads):
                result = values.sum() * 3 + values.max()
                result = (result * 3 + values.min()) * 3 + values[: place + 1].sum()
                result = (result * 3 + values[:place].sum()) * 3 + values[place // 32 * 32 : place + 1].sum()
                expected.append(int(result * 3 + values[-1]))
        yield filled(of_sums[2, threads], h2d(numbers), shape=2 * threads, dtype=np.int64), expected
        maps = GENERATOR.integers(0, 2**32, 2 * threads).astype(np.uint32)
        found = filled(with_an_operator[2, threads], compose, IDENTITY, h2d(maps), shape=2 * threads, dtype=np.uint32)
        yield found, [_with_an_operator(block, place) for block in maps.reshape(2, threads) for place in range(threads)]


def _with_an_operator(block: Any, place: int) -> int:
    values = [int(value) for value in block]
    first, end = place // 32 * 32, min(place // 32 * 32 + 32, len(values))
    parts = [
        values,
        values[: place + 1],
        values[:place],
        values[first:end],
        values[first : place + 1],
        values[first:place],
    ]
    result = 0
    for part in parts:
        composed = IDENTITY
        for value in part:
            composed = compose(composed, value)
        result = (result * 3 + composed) % 2**32
    return result


CASES: dict[Callable[[], Iterator[Checked]], tuple[str, ...]] = {
    activations: tuple(f"{ops_}{name}" for name in ACTIVATIONS for ops_ in ("", "ops.")),
    axpy: ("axpy", "ops.axpy"),
    reductions: tuple(
        f"{ops_}{name}" for name in ("reduce_sum", "reduce_max", "argmax", "dot") for ops_ in ("", "ops.")
    ),
    scans: ("inclusive_scan", "exclusive_scan", "ops.inclusive_scan", "ops.exclusive_scan"),
    rows: tuple(f"{ops_}{name}" for name in ("softmax", "layer_norm", "rms_norm") for ops_ in ("", "ops.")),
    layout: ("transpose", "gather", "ops.transpose", "ops.gather"),
    histogram: ("histogram", "ops.histogram"),
    products: (
        *(
            "sgemm_naive",
            "sgemm_2d",
            "sgemm_tiled",
            "matmul",
            "matmul_packed",
            "pack",
            "matvec_naive",
            "matvec_2d",
            "matvec",
        ),
        *("ops.sgemm_tiled", "ops.matmul", "ops.matvec"),
    ),
    attentions: ("attention", "ops.attention"),
    maps: ("map_", "zip_map"),
    in_a_block: (
        *(f"block_{name}" for name in ("broadcast", "reduce", "sum", "max", "min")),
        *(f"block_{kind}_{name}" for kind in ("inclusive", "exclusive") for name in ("scan", "sum")),
        *(f"warp_{name}" for name in ("reduce", "inclusive_scan", "exclusive_scan", "inclusive_sum")),
    ),
}


def check(case: Callable[[], Iterator[Checked]], most: int | None) -> str:
    """ "clean", or what is wrong, of so many launches at most."""
    launches = SANITIZED.count
    try:
        for found, expected in itertools.islice(case(), most):
            found, expected = np.asarray(found), np.asarray(expected)
            if found.dtype.kind == "f":
                scale = max(1.0, float(np.abs(expected).max(initial=0)))
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * scale)
            else:
                np.testing.assert_array_equal(found, expected)
    except Exception as error:
        return " ".join([type(error).__name__, str(error), *getattr(error, "__notes__", [])]).replace("\n", " ")
    return "clean" if SANITIZED.count > launches else "nothing was sanitized"


class _Counted:
    """How many launches the sanitizer looked into."""

    count = 0


SANITIZED = _Counted()


def main(*, sample: bool) -> None:
    global SIZES
    if sample:
        SIZES = SIZES[1:2]
    run = SanitizedLaunch.__call__

    def counted(launch: SanitizedLaunch) -> None:
        SANITIZED.count += 1
        run(launch)

    SanitizedLaunch.__call__ = counted  # type: ignore[method-assign]
    for case in CASES:
        print(f"{case.__name__}: {check(case, 1 if sample else None)}", flush=True)


if __name__ == "__main__":
    main(sample="--sample" in sys.argv)
