"""Fragments and ``tensor.mma``: layouts, exact products, the bound of others, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import (
    BarrierError,
    BoundsError,
    CompileError,
    DisjointSlice,
    DisjointSlice2,
    KernelAssertionError,
    LaunchConfig,
    SharedArray,
    Slice,
    Slice2,
    bf16,
    d2h,
    device,
    devices,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    h2d,
    i8,
    i32,
    i64,
    kernel,
    tensor,
    thread,
    u8,
    unroll,
    warp,
    zeros,
)
from tests.compiler.assembler import assembled, needs_ptxas
from tests.language.tensor.products import NUMPY, host_type, multiplied, places, product

RANDOM = np.random.default_rng(11)
KINDS: list[tuple[Any, Any, Any, tuple[int, int, int]]] = [
    (f16, f16, f32, (16, 8, 16)),
    (f16, f16, f16, (16, 8, 16)),
    (bf16, bf16, f32, (16, 8, 16)),
    (f32, f32, f32, (16, 8, 8)),
    (f64, f64, f64, (8, 8, 4)),
    (i8, i8, i32, (16, 8, 32)),
    (u8, u8, i32, (16, 8, 32)),
    (i8, u8, i32, (16, 8, 32)),
    (u8, i8, i32, (16, 8, 32)),
    (f8e4m3, f8e4m3, f32, (16, 8, 32)),
    (f8e5m2, f8e5m2, f32, (16, 8, 32)),
    (f8e4m3, f8e5m2, f32, (16, 8, 32)),
]
LAYOUTS = [*KINDS[:7], *KINDS[9:11]]
IDS = ["-".join(map(str, kind[:3])) for kind in KINDS]


def numpy_type(dtype: Any) -> Any:
    return NUMPY[str(host_type(dtype))]


# Layouts, in the words of the PTX ISA, 9.7.14.5 "Matrix multiply-accumulate operation using mma instruction"


def isa_place(kind: str, dtype: str, lane: int, i: int) -> tuple[int, int]:
    """The row and the column of a lane's element of one tile, as the ISA's formulas give them."""
    group, within = lane >> 2, lane % 4
    match kind, dtype:
        case "FragmentA", "f16" | "bf16":  # .m16n8k16
            row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
            return row, within * 2 + (i & 1) if i < 4 else within * 2 + (i & 1) + 8
        case "FragmentB", "f16" | "bf16":
            return (within * 2 + (i & 1) if i < 2 else within * 2 + (i & 1) + 8), group
        case "FragmentA", "f32":  # .m16n8k8, .tf32
            return (group if i in (0, 2) else group + 8), (within if i in (0, 1) else within + 4)
        case "FragmentB", "f32":
            return (within if i == 0 else within + 4), group
        case "FragmentA", "f64":  # .m8n8k4
            return group, within
        case "FragmentB", "f64":
            return within, group
        case "FragmentA", "i8" | "u8" | "f8e4m3" | "f8e5m2":  # .m16n8k32
            row = group if 0 <= i < 4 or 8 <= i < 12 else group + 8
            return row, within * 4 + (i & 3) if i < 8 else within * 4 + (i & 3) + 16
        case "FragmentB", "i8" | "u8" | "f8e4m3" | "f8e5m2":
            return (within * 4 + (i & 3) if i < 4 else within * 4 + (i & 3) + 16), group
        case "Accumulator", "f64":
            return group, within * 2 + (i & 1)
    return (group if i < 2 else group + 8), within * 2 + (i & 1)


TILES = [
    *[("FragmentA", kind[0], (kind[3][0], kind[3][2])) for kind in LAYOUTS],
    *[("FragmentB", kind[1], (kind[3][2], 8)) for kind in LAYOUTS],
    *[("Accumulator", kind[2], kind[3][:2]) for kind in LAYOUTS],
    ("Accumulator", bf16, (16, 8)),
]


@pytest.mark.parametrize(("kind", "dtype", "tile"), TILES, ids=str)
def test_the_layout_of_a_tile_is_the_isas(kind: str, dtype: Any, tile: tuple[int, int]) -> None:
    count = tile[0] * tile[1] // 32
    empty = zeros((32, count), i32)
    rows, columns = (
        d2h(box).sync() for box in places(kind, tile, dtype)[LaunchConfig(grid=1, block=32)](empty, empty).sync()
    )
    expected = [[isa_place(kind, str(dtype), lane, i) for i in range(count)] for lane in range(32)]
    assert [[*zip(*pair, strict=True)] for pair in zip(rows, columns, strict=True)] == expected


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "dtype", "tile"), TILES, ids=str)
def test_a_larger_fragment_is_tiles_row_after_row(kind: str, dtype: Any, tile: tuple[int, int]) -> None:
    height, width = tile
    count = height * width // 32
    empty = zeros((32, count * 6), i32)
    made = places(kind, (2 * height, 3 * width), dtype)
    rows, columns = (d2h(box).sync() for box in made[LaunchConfig(grid=1, block=32)](empty, empty).sync())
    for lane in range(32):
        for i in range(count * 6):
            row, column = isa_place(kind, str(dtype), lane, i % count)
            tile_row, tile_column = divmod(i // count, 3)
            assert (rows[lane, i], columns[lane, i]) == (tile_row * height + row, tile_column * width + column)


@pytest.mark.slow
@pytest.mark.parametrize(("a_type", "b_type", "c_type", "shape"), KINDS, ids=IDS)
def test_each_element_of_each_operand_is_multiplied_at_its_place(
    a_type: Any, b_type: Any, c_type: Any, shape: tuple[int, int, int]
) -> None:
    """Products with matrices of one 1: the other operand's row or column comes out at one place, and nothing else."""
    m, n, k = shape
    made = product(shape, a_type, b_type, c_type)
    # Of 8-bit floats all numbers up to 8 are exact.
    most = 9 if "f8" in str(a_type) else 100
    a_all = np.arange(1, m * k + 1).reshape(m, k).astype(numpy_type(a_type)) % most
    b_all = np.arange(1, k * n + 1).reshape(k, n).astype(numpy_type(b_type)) % most
    nothing = np.zeros((m, n), numpy_type(c_type))
    for inner in range(k):
        a, b = np.zeros_like(a_all), np.zeros_like(b_all)
        a[5 * inner % m, inner] = 1
        b[inner, 3 * inner % n] = 1
        assert np.array_equal(multiplied(made, a, b_all, nothing), a.astype(np.float64) @ b_all)
        assert np.array_equal(multiplied(made, a_all, b, nothing), a_all.astype(np.float64) @ b)


# Products


@pytest.mark.slow
@pytest.mark.parametrize(("a_type", "b_type", "c_type", "tile"), KINDS, ids=IDS)
@pytest.mark.parametrize("tiles", [(1, 1, 1), (2, 1, 3), (1, 3, 2)])
def test_products_whose_sums_are_exact_are_exact(
    a_type: Any, b_type: Any, c_type: Any, tile: tuple[int, int, int], tiles: tuple[int, int, int]
) -> None:
    m, n, k = shape = tuple(size * count for size, count in zip(tile, tiles, strict=True))
    least = {"u8": 0}
    a = RANDOM.integers(least.get(str(a_type), -3), 4, (m, k)).astype(numpy_type(a_type))
    b = RANDOM.integers(least.get(str(b_type), -3), 4, (k, n)).astype(numpy_type(b_type))
    c = RANDOM.integers(-100, 101, (m, n)).astype(numpy_type(c_type))
    result = multiplied(product(shape, a_type, b_type, c_type), a, b, c)
    assert np.array_equal(result, c + a.astype(np.float64) @ b)


@pytest.mark.slow
@pytest.mark.parametrize(("a_type", "b_type"), [kind[:2] for kind in KINDS[5:9]], ids=IDS[5:9])
def test_integers_of_all_sizes_wrap_modulo_2_to_the_32(a_type: Any, b_type: Any) -> None:
    limits = {"i8": (-128, 128), "u8": (0, 256)}
    a = RANDOM.integers(*limits[str(a_type)], (16, 64)).astype(np.int32)
    b = RANDOM.integers(*limits[str(b_type)], (64, 8)).astype(np.int32)
    c = RANDOM.choice(np.array([2**31 - 1, -(2**31), 0], np.int32), (16, 8))
    result = multiplied(product((16, 8, 64), a_type, b_type, i32), a, b, c)
    assert np.array_equal(result, (c.astype(np.int64) + a.astype(np.int64) @ b).astype(np.int32))


def rounded(x: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    """Numbers with the bits that an operand keeps: f32 is cut off to tf32."""
    match str(dtype):
        case "f16":
            return x.astype(np.float16).astype(np.float64)
        case "bf16":
            bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
            bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
            return bits.astype(np.uint32).view(np.float32).astype(np.float64)
        case "f8e4m3" | "f8e5m2":
            return x.astype(dtype.dtype).astype(np.float64)
        case "f32":
            return (x.astype(np.float32).view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)
    return x.astype(np.float64)


@pytest.mark.slow
@pytest.mark.parametrize(("a_type", "b_type", "c_type", "tile"), [*KINDS[:5], *KINDS[9:]], ids=[*IDS[:5], *IDS[9:]])
def test_random_products_are_within_the_stated_bound(
    a_type: Any, b_type: Any, c_type: Any, tile: tuple[int, int, int]
) -> None:
    m, n, depth = tile
    k = 4 * depth
    a, b = (RANDOM.standard_normal(shape).astype(numpy_type(a_type)) for shape in ((m, k), (k, n)))
    c = RANDOM.standard_normal((m, n)).astype(numpy_type(c_type))
    c = rounded(c, c_type).astype(c.dtype) if c_type is f16 else c
    exact_a, exact_b = rounded(a, a_type), rounded(b, b_type)
    result = multiplied(product((m, n, k), a_type, b_type, c_type), a, b, c).astype(np.float64)
    sizes = np.abs(exact_a) @ np.abs(exact_b) + np.abs(c)
    unit = 2.0**-53 if c_type is f64 else 2.0**-24
    bound = 2 * k * unit * sizes
    if "f8" in str(a_type):
        bound = k * 2.0**-13 * sizes
    if c_type is f16:
        bound += (k // depth) * 2.0**-11 * sizes
    assert (np.abs(result - (exact_a @ exact_b + c)) <= bound).all()


def test_the_low_bits_of_f32_operands_are_ignored() -> None:
    made = product((16, 8, 8), f32, f32, f32)
    a, b = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((16, 8), (8, 8)))
    c = np.zeros((16, 8), np.float32)
    cut = [rounded(each, f32).astype(np.float32) for each in (a, b)]
    assert np.array_equal(multiplied(made, a, b, c), multiplied(made, *cut, c))


def test_tf32_rounds_to_nearest_and_ties_away_from_zero() -> None:
    @kernel
    def round_all(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = tensor.tf32(x[index.get()])

    pairs = [
        *[(0x3F800000, 0x3F800000), (0x3F800FFF, 0x3F800000), (0x3F801000, 0x3F802000), (0x3F801001, 0x3F802000)],
        *[(0xBF801000, 0xBF802000), (0x3F803000, 0x3F804000), (0x7F7FFFFF, 0x7F800000), (0xFF7FF000, 0xFF800000)],
        *[(0x7F7FEFFF, 0x7F7FE000), (0x7F800000, 0x7F800000), (0xFF800000, 0xFF800000), (0x80000000, 0x80000000)],
        *[(0x00000000, 0x00000000), (0x00001000, 0x00002000), (0x00000FFF, 0x00000000)],
    ]
    bits, expected = np.array(pairs, np.uint32).T
    nans = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32)
    given = np.concatenate([bits, nans]).view(np.float32)
    result = round_all[LaunchConfig(1, 32)](h2d(given), zeros(len(given))).last().and_then(d2h).sync()
    assert np.array_equal(result.view(np.uint32)[: len(bits)], expected)
    assert np.isnan(result[len(bits) :]).all()
    random = RANDOM.standard_normal(1000).astype(np.float32)
    result = round_all[LaunchConfig(4, 256)](h2d(random), zeros(1000)).last().and_then(d2h).sync()
    assert (np.abs(result.astype(np.float64) - random) <= 2.0**-11 * np.abs(random)).all()
    assert not (result.view(np.uint32) & 0x1FFF).any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["FragmentA", "Accumulator"])
@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize("interpreted", [False, True])
def test_convert_rounds_every_element_as_an_assignment(dtype: Any, kind: str, interpreted: bool) -> None:
    if interpreted and devices()[0].kind != "cpu":
        pytest.skip("the interpreter runs on the CPU device")
    declaration = getattr(tensor, kind)

    @kernel
    def round_all(x: Slice2[f32], y: DisjointSlice2[dtype]) -> None:  # type: ignore[valid-type]
        wide = tensor.Accumulator((32, 32), f32)
        rounded_ones = declaration((32, 32), dtype)
        for i in unroll(range(32)):
            wide[i] = x[wide.row(i), wide.column(i)]
        tensor.convert(rounded_ones, wide)
        for i in unroll(range(32)):
            y.scatter[rounded_ones.row(i), rounded_ones.column(i)] = rounded_ones[i]

    x = (RANDOM.standard_normal((32, 32)) * 10.0 ** RANDOM.integers(-9, 9, (32, 32))).astype(np.float32)
    x[0, :7] = [np.inf, -np.inf, 0, -0.0, 65519, 65520, 2.0**-25]
    launch = round_all[LaunchConfig(1, 32)]
    made = (launch.interpret if interpreted else launch)(h2d(x), zeros((32, 32), dtype))
    with np.errstate(over="ignore"):
        expected = x.astype(dtype.dtype)
    assert np.array_equal(made.last().and_then(d2h).sync().view(np.uint16), expected.view(np.uint16))


def test_convert_is_one_instruction_for_two_elements_and_keeps_nans() -> None:
    @kernel
    def round_one(x: Slice[f32], y: DisjointSlice2[bf16]) -> None:
        wide, narrow = tensor.Accumulator((16, 16), f32), tensor.FragmentA((16, 16), bf16)
        for i in unroll(range(8)):
            wide[i] = x[i]
        tensor.convert(narrow, wide)
        tensor.store(y.scatter, (0, 0), narrow)

    assert round_one.ptx(cc=(9, 0)).count("cvt.rn.bf16x2.f32") == 4
    assert "cvt.rn.bf16x2.f32" not in round_one.ptx(cc=(8, 0))
    result = round_one[LaunchConfig(1, 32)](h2d(np.full(8, np.nan, np.float32)), zeros((16, 16), bf16))
    assert np.isnan(result.last().and_then(d2h).sync().astype(np.float32)).all()


# Fragments as values of a kernel


@device
def doubled(c: Any) -> None:
    for i in unroll(range(len(c))):
        c[i] *= 2.0


def test_a_fragment_is_filled_changed_in_place_and_passed_to_functions() -> None:
    @kernel
    def change(n: i32, d: DisjointSlice2[f32]) -> None:
        c = tensor.Accumulator((16, 8), f32)
        c.fill(1.5)
        same = c
        for _ in range(n):
            doubled(same)
        c[0] += 100.0
        for i in unroll(range(len(c))):
            d.scatter[c.row(i), c.column(i)] = c[i]

    result = change[LaunchConfig(1, 32)](3, zeros((16, 8))).last().and_then(d2h).sync()
    expected = np.full((16, 8), 12.0, np.float32)
    expected[:8, ::2] += 100
    assert np.array_equal(result, expected)


def test_a_declaration_in_a_loop_begins_with_zeros_each_time() -> None:
    @kernel
    def count(n: i32, d: DisjointSlice[f32]) -> None:
        total = f32(0.0)
        for _ in range(n):
            c = tensor.Accumulator((16, 8), f32)
            c[1] += 1.0
            total += c[1]
        d.scatter[thread.index_1d().get()] = total

    result = count[LaunchConfig(1, 32)](5, zeros(32)).last().and_then(d2h).sync()
    assert (result == 5).all()


def test_an_index_that_only_the_launch_knows_is_right_too() -> None:
    @kernel
    def pick(i: i64, d: DisjointSlice[f32]) -> None:
        c = tensor.Accumulator((16, 8), f32)
        for j in range(len(c)):
            c[j] = f32(j)
        d.scatter[warp.lane_id()] = c[i]

    for i in range(4):
        assert (pick[LaunchConfig(1, 32)](i, zeros(32)).last().and_then(d2h).sync() == i).all()
    with pytest.raises(BoundsError, match=r"Accumulator\(\(16, 8\), f32\)\[4\] is outside .* 4 elements"):
        pick[LaunchConfig(1, 32)](4, zeros(32)).sync()


def test_warps_of_a_block_multiply_their_own_matrices() -> None:
    @kernel
    def squares(a: Slice2[f32], d: DisjointSlice2[f32]) -> None:
        first = warp.warp_id() * 16
        left = tensor.FragmentA((16, 16), f16)
        right = tensor.FragmentB((16, 16), f16)
        total = tensor.Accumulator((16, 16), f32)
        for i in unroll(range(8)):
            left[i] = f16(a[first + left.row(i), left.column(i)])
            right[i] = f16(a[first + right.row(i), right.column(i)])
        for _ in range(2):
            tensor.mma(total, left, right)
        for i in unroll(range(8)):
            d.scatter[first + total.row(i), total.column(i)] = total[i]

    a = RANDOM.integers(-5, 6, (64, 16)).astype(np.float32)
    result = squares[LaunchConfig(1, 128)](h2d(a), zeros((64, 16))).last().and_then(d2h).sync()
    expected = np.concatenate([2 * part @ part for part in np.split(a, 4)])
    assert np.array_equal(result, expected)


def test_a_warp_without_all_its_lanes_is_a_fault_of_the_cpu_device(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--device") == "cuda":
        pytest.skip("undefined on a GPU")

    @kernel
    def half(least: i32, d: DisjointSlice2[f32]) -> None:
        c = tensor.Accumulator((16, 8), f32)
        if warp.lane_id() >= least:
            tensor.mma(c, tensor.FragmentA((16, 16), f16), tensor.FragmentB((16, 8), f16))
        d.scatter[0, 0] = c[0]

    problem = (
        r"tensor.mma\(…\) needs all 32 lanes of the warp at this call, and some have returned, do not exist, or make "
        "another call"
    )
    for least, threads in ((0, 48), (1, 32)):
        with pytest.raises(KernelAssertionError, match=problem):
            half[LaunchConfig(1, threads)](least, zeros((1, 1))).sync()


def test_lanes_at_different_calls_are_a_fault_of_the_cpu_device(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--device") == "cuda":
        pytest.skip("undefined on a GPU")

    @kernel
    def mixed(other: i32, d: DisjointSlice2[f32]) -> None:
        tile = SharedArray((16, 16), f16)
        a = tensor.FragmentA((16, 16), f16)
        b = tensor.FragmentB((16, 8), f16)
        c = tensor.Accumulator((16, 8), f32)
        if warp.lane_id() < 16:
            tensor.mma(c, a, b)
        elif other == 0:
            tensor.ldmatrix(a, tile, (0, 0))
        elif other == 1:
            c[0] = f32(warp.shuffle(1, 0))
        else:
            tensor.mma(c, a, b)
        d.scatter[0, 0] = c[0]

    for other in range(3):
        with pytest.raises((KernelAssertionError, BarrierError), match=r"tensor.(mma|ldmatrix)"):
            mixed[LaunchConfig(1, 32)](other, zeros((1, 1))).sync()


# PTX


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize(("a_type", "b_type", "c_type", "tile"), KINDS, ids=IDS)
def test_fragments_are_in_registers(a_type: Any, b_type: Any, c_type: Any, tile: tuple[int, int, int]) -> None:
    made = product((2 * tile[0], 2 * tile[1], 2 * tile[2]), a_type, b_type, c_type)
    for cc in ((8, 9) if "f8" in str(a_type) else (8, 0), (9, 0), (12, 0)):
        ptx = made.ptx(cc=cc)
        names = {"f32": "tf32", "i8": "s8", "i32": "s32", "f8e4m3": "e4m3", "f8e5m2": "e5m2"}
        operands = ".".join(names.get(str(each), str(each)) for each in (a_type, b_type))
        total = "s32" if c_type is i32 else str(c_type)
        shape = "m{}n{}k{}".format(*tile)
        assert ptx.count(f"mma.sync.aligned.{shape}.row.col.{total}.{operands}.{total} ") == 8
        assert ".local" not in ptx
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in assembled(ptx, cc)


def test_an_older_gpu_has_no_such_product() -> None:
    made = product((16, 8, 16), bf16, bf16, f32)
    with pytest.raises(
        CompileError,
        match=r"kernel multiply: tensor.mma needs compute capability 8.0, and this code is for 7.5; "
        r"multiply elements in a loop, on ordinary cores\n    tensor.mma\(total, left, right\)",
    ):
        made.ptx(cc=(7, 5))
    made = product((16, 8, 32), f8e4m3, f8e4m3, f32)
    with pytest.raises(
        CompileError, match=r"tensor.mma of 8-bit floats needs compute capability 8.9, .* 8.6; convert the operands to"
    ):
        made.ptx(cc=(8, 6))


# What is refused

A16 = "FragmentA((16, 16), f16)"
REFUSED = [
    ("tensor.FragmentA((16, 8), f16)", "the shape of FragmentA((16, 8), f16) is no multiple of its instruction's: with "
     "f16 it is a multiple of 16 rows and a multiple of 16 columns"),
    ("tensor.FragmentB((16, 8), i8)", "the shape of FragmentB((16, 8), i8) is no multiple of its instruction's: with "
     "i8 it is a multiple of 32 rows and a multiple of 8 columns"),
    ("tensor.Accumulator((0, 8), f32)", "the shape of Accumulator((0, 8), f32) is no multiple of its instruction's: "
     "with f32 it is a multiple of 16 rows and a multiple of 8 columns"),
    ("tensor.Accumulator((16, n), f32)", "the shape of Accumulator is a pair of constants, the rows and the columns of "
     "the warp's matrix"),
    ("tensor.Accumulator(16, f32)", "the shape of Accumulator is a pair of constants, the rows and the columns of the "
     "warp's matrix"),
    ("tensor.FragmentA((16, 16), i64)", "the dtype of FragmentA is one of f16, bf16, f32, f64, i8, u8, f8e4m3, f8e5m2; "
     "it is i64"),
    ("tensor.Accumulator((16, 8), i8)", "the dtype of Accumulator is one of f32, f16, bf16, f64, i32; it is i8"),
    ("tensor.Accumulator((16, 8))", "Accumulator takes a shape and a dtype, as in Accumulator((16, 16), bf16)"),
    ("c[0, 0]", "an index of Accumulator((16, 8), f32) is an integer, the number of this lane's element, not "
     "tuple[i64, i64]; .row(i) and .column(i) say where element i is in the matrix"),
    ("c.row()", ".row of Accumulator((16, 8), f32) takes the number of an element"),
    ("c.column(1.5)", "an index of Accumulator((16, 8), f32) is an integer, the number of this lane's element, not "
     "f64; .row(i) and .column(i) say where element i is in the matrix"),
    ("z.fill(1.5)", "the element is i32 and the value is f64; convert it, as in i32(x)"),
    ("tensor.mma(c, a)", "tensor.mma takes an Accumulator, a FragmentA and a FragmentB, as in tensor.mma(c, a, b)"),
    ("tensor.mma(a, a, b)", "c of tensor.mma(c, a, b) is an Accumulator, not FragmentA((16, 16), f16)"),
    ("tensor.mma(c, b, b)", "a of tensor.mma(c, a, b) is a FragmentA, not FragmentB((16, 8), f16)"),
    ("tensor.mma(c, a, 1)", "b of tensor.mma(c, a, b) is a FragmentB, not i64"),
    ("tensor.mma(c, a, e)", "tensor.mma(Accumulator((16, 8), f32), FragmentA((16, 16), f16), FragmentB((16, 8), bf16))"
     ": the operands are of one type, or of two of 8 bits of one kind; they are of f16 and bf16"),
    ("tensor.mma(z, a, b)", "operands of f16 add to an Accumulator of f32 or f16; it is of i32"),
    ("tensor.mma(c, a, w)", "a has 16 columns and b 32 rows; the two are the same"),
    ("tensor.mma(v, a, b)", "the product has shape (16, 8), and c (16, 16)"),
    ("tensor.tf32(1)", "tensor.tf32 takes an f32, not i64; convert it, as in f32(x)"),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "message"), REFUSED, ids=[each[0] for each in REFUSED])
def test_what_does_not_fit_is_refused_by_name(expression: str, message: str, tmp_path: Any) -> None:
    path = tmp_path / "refused.py"
    path.write_text(
        "from oxide import *\n"
        "@kernel\n"
        "def refused(n: i64, y: DisjointSlice[f32]):\n"
        "    a = tensor.FragmentA((16, 16), f16)\n"
        "    b = tensor.FragmentB((16, 8), f16)\n"
        "    e = tensor.FragmentB((16, 8), bf16)\n"
        "    w = tensor.FragmentB((32, 8), f16)\n"
        "    c = tensor.Accumulator((16, 8), f32)\n"
        "    v = tensor.Accumulator((16, 16), f32)\n"
        "    z = tensor.Accumulator((16, 8), i32)\n"
        f"    {expression}\n",
        encoding="utf-8",
    )
    scope: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), scope)
    with pytest.raises(CompileError) as caught:
        scope["refused"].ptx()
    assert message in str(caught.value)
    assert f"{path}:11" in str(caught.value)
