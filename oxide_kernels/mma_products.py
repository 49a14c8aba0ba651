"""The matrix product on tensor cores by ``mma``, for GPUs since compute capability 8.0.

A block computes a tile of the result and walks along k, ``step`` columns of ``a`` and ``step`` rows of ``b`` at a time.
The tiles of the operands are in shared memory, in a ring of stages: asynchronous copies fill the next stages while the
warps multiply the present stage, with one barrier a step. A copy outside of a matrix gives zeros, so edges need no
special code. If rows do not begin at multiples of 16 bytes, ``copy_async`` moves the elements one by one, which is
correct but slower.

A warp keeps its part of the result in registers. It reads its operands with ``ldmatrix`` if this instruction supports
the type and the layout, otherwise element by element. The rows of a tile are padded, so that the rows or elements that
are read together are in different banks.

Blocks with consecutive numbers compute tiles of the same ``GROUP`` rows of tiles, so that the blocks share operands in
the L2 cache.

The kernels are unchecked: the indices of shared memory follow from constants, the host compares the matrices' sizes,
and the kernels compare the indices of stores with the result's shape. The scheme is CUTLASS's for Ampere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from oxide import (
    DisjointSlice2,
    Kernel,
    LaunchConfig,
    SharedArray,
    Slice,
    Slice3,
    bf16,
    device,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
    intrinsics,
    kernel,
    tensor,
    thread,
    u8,
    unroll,
)

from .activations import (
    gelu,
    gelu_for_bf16,
    gelu_for_f16,
    gelu_of,
    relu,
    relu_of,
    silu,
    silu_for_16_bits,
    silu_of,
)

GROUP = 8
"""The number of rows of tiles in a group. Blocks with consecutive numbers compute the tiles of one group, then those of
the next."""


class Form(NamedTuple):
    """The constants of a kernel: all properties of a product except for the matrices' sizes and contents."""

    a: Any
    """The type of the elements of ``a``."""
    b: Any
    """The type of the elements of ``b``."""
    output: Any
    """The type of the elements of the result."""
    bias: Any
    """The type of the elements of the bias, or None without a bias."""
    a_turned: bool
    """True if ``a`` is passed as its transpose, k by m."""
    b_turned: bool
    """True if ``b`` is passed as its transpose, n by k."""
    activation: str | None
    exact: bool
    """For f32 operands, true if the product has f32's precision: it is computed as three products of tf32. For 8-bit
    floats, true if sums are made in f32: on Hopper, ``wgmma`` then makes sums of only 128 terms, which are added in
    f32."""
    pairs: bool
    """True if each pair of the result's columns 2i and 2i + 1 can be stored as a vector: its address is a multiple of
    its size."""
    large: bool
    """True for large tiles, of up to 128 by 128 elements. False for tiles of 64 by 64."""
    scales: str | None = None
    """``"one"`` if each operand has one scale, ``"each"`` if each row of ``a`` and each column of ``b`` has a scale,
    None without scales."""
    adds: bool = False
    """True if ``beta`` is not 0. Kernels of other forms do not read ``c``. They are shorter, so a launch fetches less
    code."""

    @property
    def accumulator(self) -> Any:
        """Returns the type of sums of products."""
        return {f64: f64, i8: i32, u8: i32}.get(self.a, f32)

    @property
    def bias_type(self) -> Any:
        """Returns the type of the kernel's parameter for the bias. Without a bias, the launch passes ``a`` for this
        parameter, and the kernel does not read it."""
        return self.a if self.bias is None else self.bias

    @property
    def scale_type(self) -> Any:
        """Returns the type of the kernel's parameters for the scales. Without scales, the launch passes ``a`` for these
        parameters."""
        return self.a if self.scales is None else f32

    @property
    def wide(self) -> Any:
        """Returns the type of ``alpha`` and ``beta``, in which the epilogue is computed."""
        return f32 if self.output is not i32 and self.accumulator is i32 else self.accumulator


class Tiles(NamedTuple):
    """The sizes of tiles in elements: m and n of a block, m and n of a warp, k of a stage, k of an instruction; and the
    number of stages."""

    m: int
    n: int
    warp_m: int
    warp_n: int
    step: int
    inner: int
    stages: int

    @property
    def threads(self) -> int:
        return 32 * (self.m // self.warp_m) * (self.n // self.warp_n)


def tiles_of(form: Form) -> Tiles:
    """Returns the sizes of a form's tiles. A stage covers 64 bytes along k, 128 bytes for f64."""
    step, inner = {2: (32, 16), 4: (16, 8), 8: (16, 4), 1: (64, 32)}[form.a.dtype.itemsize]
    if not form.large:
        return Tiles(64, 64, 32, 32, step, inner, 3)
    if form.a is f64:
        return Tiles(64, 128, 32, 32, step, inner, 3)
    return Tiles(128, 128, 64, 32, step, inner, 4)


def config_of(form: Form, products: int, m: int, n: int) -> LaunchConfig:
    """Returns the launch configuration for ``products`` results of m×n elements."""
    sizes = tiles_of(form)
    return LaunchConfig(max(1, products * -(-m // sizes.m) * -(-n // sizes.n)), sizes.threads)


@functools.cache
def finisher(form: Form) -> Any:
    """Returns the device function that computes the epilogue for one element. Its arguments are the sum of products,
    alpha, the scales, the column's bias, beta, ``c``, and the element's row and column. The device function
    ``factor_of(form)`` returns the number ``alpha``, and the device function ``bias_reader(form)`` the column's bias.
    The element of ``c`` is read only if ``form.adds`` is true."""
    wide: Any = form.wide
    accumulator: Any = form.accumulator
    activate = _ACTIVATIONS[form.activation]
    if form.wide is f32 and form.output is not f32:
        activate = _FOR_16_BITS.get(form.output, {}).get(form.activation, activate)
    has_bias, has_scales, adds = form.bias is not None, form.scales == "each", form.adds
    # Then a single fused multiply-add is enough. Each instruction of the epilogue counts, because the tensor cores wait
    # for it.
    adds_bias_alone = has_bias and not has_scales and not adds and accumulator is wide and wide in (f32, f64)

    @device
    def finished(
        total: accumulator, alpha: wide, scales: Any, bias: wide, beta: wide, c: Any, row: i64, column: i64
    ) -> wide:
        """Returns an element of the result before it is rounded to the result's type."""
        if adds_bias_alone:
            return activate(intrinsics.fma(alpha, total, bias))
        value = alpha * wide(total)
        if has_scales:
            value = value * (scales[0][row] * scales[1][column])
        if adds:
            value = value + beta * c.unchecked_mut[row, column]
        if has_bias:
            value = value + bias
        return activate(value)

    return finished


@functools.cache
def bias_reader(form: Form) -> Any:
    """Returns a device function, which returns the bias of a column, or 0 if the form has no bias."""
    wide: Any = form.wide
    has_bias = form.bias is not None

    @device
    def read(bias: Any, column: i64) -> wide:
        if has_bias:
            return bias[column]
        return wide(0)

    return read


@functools.cache
def factor_of(form: Form) -> Any:
    """Returns a device function, which multiplies ``alpha`` by the scales if each operand has one scale for all
    elements."""
    wide: Any = form.wide
    has_scales = form.scales == "one"

    @device
    def factor(alpha: wide, scales: Any) -> wide:
        """Returns the number by which every sum is multiplied: ``alpha``, times both scales if each operand has one
        scale."""
        if has_scales:
            return alpha * (scales[0][0] * scales[1][0])
        return alpha

    return factor


def with_epilogues(kernel: Kernel, form: Form, of: Callable[[Form], Kernel]) -> Kernel:
    """Sets ``kernel.followed_by`` and returns the kernel, which is that of ``form``. ``followed_by(other)`` returns the
    kernel that computes the product and then the activation of the kernel ``other``, or, if there is no such kernel, a
    string that says why. ``of(form)`` must return the kernel of another form, for a launch with the same configuration
    and arguments."""

    def followed(other: Kernel) -> Kernel | str:
        name = next((name for name, each in _KERNELS.items() if each is other), None)
        if name is None:
            return f"its epilogues are {', '.join(_KERNELS)}"
        if form.activation is not None:
            return f"it computes {form.activation} already"
        if form.adds:
            return "it reads its result"
        if form.output is not form.wide:
            return f"it would be computed before the result is rounded to {form.output}, which gives other bits"
        return of(form._replace(activation=name))

    kernel.followed_by = followed
    return kernel


_KERNELS = {"relu": relu, "gelu": gelu, "silu": silu}


@functools.cache
def kernel_of(form: Form) -> Kernel:
    """Returns the kernel of a form. It computes ``c = activation(alpha * a @ b + beta * c + bias)``. ``config_of``
    returns its launch configuration.

    Its parameters are alpha, a, b, the scales of a and b, the bias, beta, m and c. A launch computes a stack of
    products. The first axis of ``a`` and ``b`` counts the matrices of the stack. The axis has length 1 in an operand
    that all products share. ``c`` has the rows of all results one after another, m rows for each product. If the form
    has no scales or no bias, the launch passes ``a`` for the missing operands.
    """
    sizes = tiles_of(form)
    tile_m, tile_n, warp_m, warp_n, step, inner, stages = sizes
    threads, warps_n = sizes.threads, tile_n // warp_n
    # mypy takes a name as a type if it is declared as Any.
    a_type: Any = form.a
    b_type: Any = form.b
    c_type: Any = form.output
    bias_type: Any = form.bias_type
    scale_type: Any = form.scale_type
    wide: Any = form.wide
    accumulator: Any = form.accumulator
    a_turned, b_turned, pairs = form.a_turned, form.b_turned, form.pairs
    itemsize = a_type.dtype.itemsize
    per_copy = 16 // itemsize
    a_rows, a_columns = (step, tile_m) if a_turned else (tile_m, step)
    b_rows, b_columns = (tile_n, step) if b_turned else (step, tile_n)
    # ldmatrix transposes elements of 16 bits only.
    a_blocks, b_blocks = itemsize == 2 or (itemsize < 8 and not a_turned), itemsize == 2 or (itemsize < 8 and b_turned)
    a_pitch, b_pitch = a_columns + _padding(itemsize, a_blocks), b_columns + _padding(itemsize, b_blocks)
    a_copies, b_copies = a_rows * a_columns // per_copy, b_rows * b_columns // per_copy
    a_each, b_each = -(-a_copies // threads), -(-b_copies // threads)
    a_row_copies, b_row_copies = a_columns // per_copy, b_columns // per_copy
    held, ahead = warp_m * warp_n // 32, stages - 2
    rounds = a_type is f32
    splits = form.exact and rounds
    finished, factor, bias_at = finisher(form), factor_of(form), bias_reader(form)
    # With 128 registers a multiprocessor holds two blocks of 256 threads.
    registers = None if splits or a_type is f64 or (itemsize == 1 and form.large) else 128

    @device
    def fetch(
        slot: i64, first: i64, product: i64, row: i64, column: i64, a: Any, b: Any, a_tiles: Any, b_tiles: Any
    ) -> None:
        """Begins the copies for stage ``slot``: ``step`` positions along k, from ``first`` on, for the tile at ``row``
        and ``column`` of matrix ``product``."""
        t = thread.thread_idx.x % threads
        of_a, of_b = min(product, a.shape[0] - 1), min(product, b.shape[0] - 1)
        for number in unroll(range(a_each)):
            part = t + number * threads
            if a_copies % threads == 0 or part < a_copies:
                down, across = part // a_row_copies, part % a_row_copies * per_copy
                if a_turned:
                    tensor.copy_async(a_tiles, (slot, down, across), a, (of_a, first + down, row + across), per_copy)
                else:
                    tensor.copy_async(a_tiles, (slot, down, across), a, (of_a, row + down, first + across), per_copy)
        for number in unroll(range(b_each)):
            part = t + number * threads
            if b_copies % threads == 0 or part < b_copies:
                down, across = part // b_row_copies, part % b_row_copies * per_copy
                if b_turned:
                    tensor.copy_async(b_tiles, (slot, down, across), b, (of_b, column + down, first + across), per_copy)
                else:
                    tensor.copy_async(b_tiles, (slot, down, across), b, (of_b, first + down, column + across), per_copy)

    @device
    def read(slot: i64, first: i64, row: i64, column: i64, a_tiles: Any, b_tiles: Any, x: Any, y: Any) -> None:
        """Loads a warp's operands for ``inner`` positions along k, the depth of one instruction."""
        if a_turned:
            if a_blocks:
                tensor.ldmatrix(x, a_tiles, (slot, first, row), transposed=True)
            else:
                tensor.load(x, a_tiles, (slot, first, row), transposed=True)
        elif a_blocks:
            tensor.ldmatrix(x, a_tiles, (slot, row, first))
        else:
            tensor.load(x, a_tiles, (slot, row, first))
        if b_turned:
            if b_blocks:
                tensor.ldmatrix(y, b_tiles, (slot, column, first), transposed=True)
            else:
                tensor.load(y, b_tiles, (slot, column, first), transposed=True)
        elif b_blocks:
            tensor.ldmatrix(y, b_tiles, (slot, first, column))
        else:
            tensor.load(y, b_tiles, (slot, first, column))

    @device
    def multiply(total: Any, x: Any, y: Any) -> None:
        """Adds the product of the operands ``x`` and ``y`` to ``total``. f32 elements are rounded to tf32 or, in an
        exact form, split into a large and a small part of tf32. The product of the two small parts is left out: it is
        below f32's precision."""
        if splits:
            x_rest, y_rest = tensor.FragmentA((warp_m, inner), a_type), tensor.FragmentB((inner, warp_n), b_type)
            for i in unroll(range(warp_m * inner // 32)):
                upper = tensor.tf32(x[i])
                x_rest[i] = tensor.tf32(x[i] - upper)
                x[i] = upper
            for i in unroll(range(inner * warp_n // 32)):
                upper = tensor.tf32(y[i])
                y_rest[i] = tensor.tf32(y[i] - upper)
                y[i] = upper
            tensor.mma(total, x_rest, y)
            tensor.mma(total, x, y_rest)
        elif rounds:
            for i in unroll(range(warp_m * inner // 32)):
                x[i] = tensor.tf32(x[i])
            for i in unroll(range(inner * warp_n // 32)):
                y[i] = tensor.tf32(y[i])
        tensor.mma(total, x, y)

    @device
    def accumulate(product: i64, row: i64, column: i64, a: Any, b: Any, total: Any) -> None:
        """Multiplies the operands of the block's tile, which begins at ``row`` and ``column`` of matrix ``product``.
        Each warp adds its part to ``total``."""
        a_tiles = SharedArray((stages, a_rows, a_pitch), a_type)
        b_tiles = SharedArray((stages, b_rows, b_pitch), b_type)
        warp_number = thread.thread_idx.x % threads // 32
        warp_row, warp_column = warp_number // warps_n * warp_m, warp_number % warps_n * warp_n
        x, y = tensor.FragmentA((warp_m, inner), a_type), tensor.FragmentB((inner, warp_n), b_type)
        depth = a.shape[1] if a_turned else a.shape[2]
        steps = (depth + (step - 1)) // step
        for number in unroll(range(stages - 1)):
            fetch(number, number * step, product, row, column, a, b, a_tiles, b_tiles)
            tensor.commit()
        slot, free = 0, stages - 1
        for number in range(steps):
            tensor.wait(ahead)
            thread.sync_threads()  # all threads see the stage, and have read the stage that is filled next
            fetch(free, (number + (stages - 1)) * step, product, row, column, a, b, a_tiles, b_tiles)
            tensor.commit()
            for part in unroll(range(step // inner)):
                read(slot, part * inner, warp_row, warp_column, a_tiles, b_tiles, x, y)
                multiply(total, x, y)
            free = slot
            slot = slot + 1 if slot + 1 < stages else 0
        tensor.wait(0)

    @device
    def tile(m: i64, n: i64) -> tuple[i64, i64, i64]:
        """Returns the number of the block's product, and the first row and column of the block's tile."""
        down, across = (m + (tile_m - 1)) // tile_m, (n + (tile_n - 1)) // tile_n
        tiles = max(down * across, 1)
        product, block = thread.block_idx.x // tiles, thread.block_idx.x % tiles
        group = max(GROUP * across, 1)
        above = block // group * GROUP
        rows = max(min(down - above, GROUP), 1)
        return product, (above + block % group % rows) * tile_m, block % group // rows * tile_n

    @device
    def finish(
        total: Any,
        alpha: wide,
        scales: Any,
        bias: Any,
        beta: wide,
        c: DisjointSlice2[c_type],
        first: i64,
        end: i64,
        first_row: i64,
        first_column: i64,
    ) -> None:
        """Stores this lane's elements of a tile. ``end`` is the number of rows of the product's result, and ``first``
        is the row of ``c`` at which this result begins.

        A lane's elements come in pairs of neighbours in a row.
        """
        out = c.unchecked_mut
        warp_number = thread.thread_idx.x % threads // 32
        corner_row, corner_column = (
            first + first_row + warp_number // warps_n * warp_m,
            first_column + warp_number % warps_n * warp_n,
        )
        for i in unroll(range(0, held, 2)):
            row, column = corner_row + total.row(i), corner_column + total.column(i)
            if row < first + end and column < c.shape[1]:
                one = c_type(finished(total[i], alpha, scales, bias_at(bias, column), beta, c, row, column))
                if column + 1 < c.shape[1]:
                    added = bias_at(bias, column + 1)
                    second = c_type(finished(total[i + 1], alpha, scales, added, beta, c, row, column + 1))
                    if pairs:
                        out.store2((row, column), one, second)
                    else:
                        out[row, column] = one
                        out[row, column + 1] = second
                else:
                    out[row, column] = one

    @kernel(block=threads, max_registers=registers, unchecked=True)
    def matmul(
        alpha: wide,
        a: Slice3[a_type],
        b: Slice3[b_type],
        a_scale: Slice[scale_type],
        b_scale: Slice[scale_type],
        bias: Slice[bias_type],
        beta: wide,
        m: i64,
        c: DisjointSlice2[c_type],
    ) -> None:
        product, row, column = tile(m, c.shape[1])
        if row < m and column < c.shape[1] and product * m < c.shape[0]:
            total = tensor.Accumulator((warp_m, warp_n), accumulator)
            accumulate(product, row, column, a, b, total)
            scales = a_scale, b_scale
            finish(total, factor(alpha, scales), scales, bias, beta, c, product * m, m, row, column)

    return with_epilogues(matmul, form, kernel_of)


def _padding(itemsize: int, blocks: bool) -> int:
    """Returns the number of padding elements after each row of a tile. If ``blocks`` is true, ``ldmatrix`` reads the
    tile, and a padding of 16 bytes puts the eight rows that it reads at once into different banks. Otherwise the lanes
    read single elements, and a padding of 32 bytes puts these into different banks."""
    return (16 if blocks else 32) // itemsize


@device
def _same(x: Any) -> Any:
    return x


_ACTIVATIONS: dict[str | None, Callable[[Any], Any]] = {
    None: _same,
    "relu": relu_of,
    "gelu": gelu_of,
    "silu": silu_of,
}
_FOR_16_BITS: dict[Any, dict[str | None, Callable[[Any], Any]]] = {
    f16: {"gelu": gelu_for_f16, "silu": silu_for_16_bits},
    bf16: {"gelu": gelu_for_bf16, "silu": silu_for_16_bits},
}
ACTIVATIONS = tuple(name for name in _ACTIVATIONS if name is not None)
