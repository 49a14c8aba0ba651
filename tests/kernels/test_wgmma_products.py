"""The products of whole warpgroups, by themselves: on a GPU ``matmul`` takes them on Hopper alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import bf16, d2h, f8e4m3, f8e5m2, f16, f32, h2d, i8, i32, u8, zeros
from oxide.driver.cpu import CpuDriver
from oxide.testing import use_driver
from oxide_kernels import matmul, matrix_products, wgmma_plans, wgmma_split_products
from oxide_kernels.data_movement import split, widened
from oxide_kernels.mma_products import Form
from oxide_kernels.wgmma_plans import WIDTHS, Plan, plan_of, widths_of
from oxide_kernels.wgmma_products import THREADS, kernel_of
from tests.compiler.assembler import assembled, needs_ptxas
from tests.pairs import every_pair

pytestmark = pytest.mark.usefixtures("hopper")

RANDOM = np.random.default_rng(11)
LAYOUTS = [(False, True), (False, False), (True, True), (True, False)]
BOTH = (False, True)
TILES = [*((width, False) for width in WIDTHS), (256, True), (64, True)]


def form_of(dtype: Any, output: Any, layout: tuple[bool, bool], **more: Any) -> Form:
    values = {"bias": None, "activation": None} | more
    return Form(dtype, dtype, output, values["bias"], *layout, values["activation"], False, True, True)


def matrices(m: int, n: int, k: int, dtype: Any, layout: tuple[bool, bool]) -> tuple[Any, Any, Any]:
    """Returns boxes of two random matrices as they are stored, and their product in float64."""
    a, b = (RANDOM.standard_normal(sides).astype(dtype.dtype) for sides in ((m, k), (k, n)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    stored = [np.ascontiguousarray(each.T if turned else each) for each, turned in zip((a, b), layout, strict=True)]
    return h2d(stored[0]), h2d(stored[1]), exact


def longer(matrix: Any, multiple: int) -> Any:
    """Returns the copy of a matrix with longer rows."""
    return widened(matrix.sync(), multiple)


def error(found: Any, exact: Any) -> float:
    return float(np.linalg.norm(found.astype(np.float64) - exact) / np.linalg.norm(exact))


@pytest.mark.slow
@pytest.mark.parametrize(("tile", "a_turned", "b_turned"), every_pair(TILES, BOTH, BOTH))
def test_a_tile_of_every_width_in_every_layout(tile: tuple[int, bool], a_turned: bool, b_turned: bool) -> None:
    (width, together), layout = tile, (a_turned, b_turned)
    m, n, k = 136, width + 8, 72
    a, b, exact = matrices(m, n, k, f16, layout)
    made = kernel_of(form_of(f16, f32, layout), Plan(width, together=together))
    c = (
        made[2, THREADS](1.0, a, b, a, a, a, 0.0, m, h2d(np.full((m, n), np.nan, np.float32)))
        .last()
        .and_then(d2h)
        .sync()
    )
    assert error(c, exact) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("dtype", [f16, bf16])
def test_whole_tiles_of_16_bits_go_through_shared_memory(dtype: Any, together: bool) -> None:
    layout = (False, True)
    a, b, exact = matrices(256, 64, 64, dtype, layout)
    made = kernel_of(form_of(dtype, dtype, layout), Plan(64, together), even_rows=True)
    empty = h2d(np.full((256, 64), np.nan, np.float32).astype(dtype.dtype))
    c = made[1, THREADS](1.0, a, b, a, a, a, 0.0, 256, empty).last().and_then(d2h).sync()
    assert error(c, exact) < (6e-4 if dtype is f16 else 4e-3)


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("shape", [(128, 64, 64), (40, 24, 8)])
def test_the_end_of_the_computation(shape: tuple[int, int, int], beta: float) -> None:
    m, n, k = shape
    layout = (False, True)
    a, b, exact = matrices(m, n, k, f16, layout)
    before, bias = RANDOM.standard_normal((m, n)).astype(np.float16), RANDOM.standard_normal(n).astype(np.float32)
    form = form_of(f16, f16, layout, bias=f32, activation="relu")._replace(adds=beta != 0)
    made = kernel_of(form, Plan(64), even_rows=True)
    c = made[1, THREADS](0.25, a, b, a, a, h2d(bias), beta, m, h2d(before)).last().and_then(d2h).sync()
    assert error(c, np.maximum(0.25 * exact + beta * before.astype(np.float64) + bias, 0)) < 6e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "output", "skipped"),
    [(f16, f16, 0), (f16, f16, 1), (f32, f16, 0), (f32, f32, 1), (bf16, bf16, 0), (bf16, f32, 0), (bf16, bf16, 3)],
    ids=str,
)
def test_a_bias_of_every_type_and_address_in_whole_tiles_and_at_the_edges(kind: Any, output: Any, skipped: int) -> None:
    m, n, k = 136, 200, 64
    layout, dtype = (False, True), bf16 if kind is bf16 else f16
    a, b, exact = matrices(m, n, k, dtype, layout)
    bias = (3 * RANDOM.standard_normal(n + skipped)).astype(kind.dtype)
    made = kernel_of(form_of(dtype, output, layout, bias=kind, activation="gelu"), Plan(64), even_rows=True)
    empty = h2d(np.full((m, n), np.nan, np.float32).astype(output.dtype))
    c = made[2, THREADS](0.5, a, b, a, a, h2d(bias).sync()[skipped:], 0.0, m, empty).last().and_then(d2h).sync()
    x = 0.5 * exact + bias[skipped:].astype(np.float64)
    expected = x / 2 * np.vectorize(math.erfc)(-x / math.sqrt(2))
    assert error(c, expected) < {f32: 1e-6, f16: 6e-4, bf16: 4e-3}[output]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_that_were_made_longer_change_nothing(layout: tuple[bool, bool]) -> None:
    """The rest of a row is zeros, where the other matrix has zeros too or ends."""
    m, n, k = 70, 37, 45
    a, b, exact = matrices(m, n, k, f16, layout)
    made = kernel_of(form_of(f16, f32, layout), Plan(64))
    c = oxide.zip(longer(a, 64), longer(b, 8)).and_then(
        lambda boxes: made[1, THREADS](1.0, *boxes, *[boxes[0]] * 3, 0.0, m, h2d(np.full((m, n), np.nan, np.float32)))
    )
    assert error(c.last().and_then(d2h).sync(), exact) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shared", [None, 0, 1])
def test_stacks_of_matrices(layout: tuple[bool, bool], shared: int | None) -> None:
    m, n, k = 136, 72, 40
    count = [1 if operand == shared else 3 for operand in (0, 1)]
    a, b = (RANDOM.integers(-3, 4, (planes, *sides)) for planes, sides in zip(count, ((m, k), (k, n)), strict=True))
    stored = [each.swapaxes(1, 2) if turned else each for each, turned in zip((a, b), layout, strict=True)]
    left, right = (h2d(np.ascontiguousarray(each).astype(np.float16)).sync() for each in stored)
    made = kernel_of(form_of(f16, f32, layout), Plan(64), stacked=True)
    c = made[4, THREADS](1.0, left, right, left, left, left, 0.0, m, zeros((3 * m, n))).last().and_then(d2h).sync()
    assert np.array_equal(c.reshape(3, m, n), a @ b)


def test_exact_sums_are_exact() -> None:
    a, b = RANDOM.integers(-3, 4, (130, 200)), RANDOM.integers(-3, 4, (72, 200))
    made = kernel_of(form_of(f16, f32, (False, True)), Plan(32))
    left, right = (h2d(each.astype(np.float16)) for each in (a, b))
    c = (
        made[3, THREADS](1.0, left, right, left, left, left, 0.0, 130, h2d(np.zeros((130, 72), np.float32)))
        .last()
        .and_then(d2h)
        .sync()
    )
    assert np.array_equal(c, a @ b.T)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("dtype", "width"),
    [  # how wide a tile is matters to the number of bytes of an element, and to how sums are made
        *((f8e4m3, width) for width in WIDTHS),
        *((f8e5m2, width) for width in (256, 64)),
        *((f32, width) for width in (256, 128, 32)),
        *((i8, width) for width in (256, 192, 32)),
        *((u8, width) for width in (128, 64)),
    ],
    ids=str,
)
def test_a_tile_of_every_width_of_other_types(dtype: Any, width: int) -> None:
    """Sums of small numbers are exact in every type. The second buffer of a row ends outside of the matrices."""
    m, n, k = 136, width + 8, 160 // dtype.dtype.itemsize
    output = i32 if dtype in (i8, u8) else f32
    a, b = (RANDOM.integers(0 if dtype is u8 else -3, 4, sides) for sides in ((m, k), (n, k)))
    for exact in (False, True) if dtype in (f8e4m3, f8e5m2) and width < 256 else (False,):
        form = form_of(dtype, output, (False, True))._replace(exact=exact)
        left, right = (h2d(each.astype(dtype.dtype)).sync() for each in (a, b))
        c = kernel_of(form, Plan(width, together=exact))[2, THREADS](
            1, left, right, left, left, left, 0, m, zeros((m, n), output)
        ).last()
        assert np.array_equal(c.and_then(d2h).sync(), a @ b.T)


@pytest.mark.slow
@pytest.mark.parametrize("width", [128, 64, 32])
def test_three_products_have_the_precision_of_f32(width: int) -> None:
    m, n, k = 130, width + 4, 300
    a, b = (RANDOM.standard_normal(sides, dtype=np.float32) for sides in ((m, k), (n, k)))
    form = form_of(f32, f32, (False, True))._replace(exact=True)
    left, right = (split(h2d(each).sync()).sync() for each in (a, b))
    c = kernel_of(form, Plan(width, together=True))[2, THREADS](
        1.0, left, right, left, left, left, 0.0, m, zeros((m, n))
    ).last()
    assert error(c.and_then(d2h).sync(), a.astype(np.float64) @ b.T.astype(np.float64)) < 3e-7


@pytest.mark.slow
@pytest.mark.parametrize("scales", ["one", "each"])
@pytest.mark.parametrize("output", [bf16, f32])
def test_scales_at_the_end(output: Any, scales: str) -> None:
    m, n, k = 256, 192, 256
    a, b = (RANDOM.standard_normal(sides).astype(f8e4m3.dtype) for sides in ((m, k), (n, k)))
    by_row, by_column = (RANDOM.random(1 if scales == "one" else each, np.float32) + 0.5 for each in (m, n))
    form = form_of(f8e4m3, output, (False, True))._replace(scales=scales, exact=True)
    boxes = [h2d(each).sync() for each in (a, b, by_row, by_column)]
    c = (
        kernel_of(form, Plan(64, together=True))[3, THREADS](2.0, *boxes, boxes[0], 0.0, m, zeros((m, n), output))
        .last()
        .and_then(d2h)
        .sync()
    )
    exact = 2 * (a.astype(float) @ b.astype(float).T) * by_row[:, None] * by_column
    assert error(c, exact) < (5e-4 if output is f32 else 4e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "swapped", "a_turned", "b_turned"), every_pair((1, 2, 8), BOTH, BOTH, BOTH))
def test_sums_in_parts_of_k(parts: int, swapped: bool, a_turned: bool, b_turned: bool, monkeypatch: Any) -> None:
    """Also with more parts than steps, and with the epilogue after the parts' sum."""
    layout = a_turned, b_turned
    monkeypatch.setattr(matrix_products, "_has_wgmma", lambda *_: True)
    monkeypatch.setattr(wgmma_plans, "plan_of", lambda *_: Plan(64, parts=parts, swapped=swapped))
    m, n, k = 40, 200, 320
    a, b = RANDOM.integers(-3, 4, (m, k)), RANDOM.integers(-3, 4, (k, n))
    bias, before = RANDOM.integers(-9, 9, n), RANDOM.integers(-9, 9, (m, n))
    left, right = (
        h2d(np.ascontiguousarray(each.T).astype(np.float16)).sync().T if turned else h2d(each.astype(np.float16)).sync()
        for each, turned in zip((a, b), layout, strict=True)
    )
    c = h2d(before.astype(np.float32)).sync()
    matmul(left, right, c, alpha=0.5, beta=2.0, bias=h2d(bias.astype(np.float32)), activation="relu").sync()
    assert np.array_equal(d2h(c).sync(), np.maximum(0.5 * (a @ b) + 2 * before + bias, 0))


@pytest.mark.slow
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("kinds", [(f8e4m3, f8e5m2), (f32, f32)], ids=str)
def test_sums_in_parts_of_other_types(kinds: Any, swapped: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(matrix_products, "_has_wgmma", lambda *_: True)
    monkeypatch.setattr(wgmma_plans, "plan_of", lambda *_: Plan(32, parts=2, swapped=swapped))
    a, b = RANDOM.integers(-3, 4, (20, 520)), RANDOM.integers(-3, 4, (72, 520))
    by_row, by_column = RANDOM.random(20, np.float32), RANDOM.random(72, np.float32)
    left, right = (h2d(each.astype(kind.dtype)).sync() for each, kind in zip((a, b), kinds, strict=True))
    c = zeros((20, 72)).sync()
    precision = "high" if kinds[0] is f32 else None
    matmul(left, right.T, c, precision=precision, a_scale=h2d(by_row), b_scale=h2d(by_column)).sync()
    assert error(d2h(c).sync(), (a @ b.T) * by_row[:, None].astype(float) * by_column) < 1e-6


@pytest.mark.nightly
@pytest.mark.parametrize(("cluster", "together", "a_turned", "b_turned"), every_pair((2, 4), BOTH, BOTH, BOTH))
def test_blocks_that_share_columns(cluster: int, together: bool, a_turned: bool, b_turned: bool) -> None:
    """The last cluster has blocks without rows of the result."""
    layout = a_turned, b_turned
    m, n, k = 328, 264, 200
    a, b = RANDOM.integers(-3, 4, (m, k)), RANDOM.integers(-3, 4, (k, n))
    stored = [each.T if turned else each for each, turned in zip((a, b), layout, strict=True)]
    left, right = (h2d(np.ascontiguousarray(each).astype(np.float16)) for each in stored)
    made = kernel_of(form_of(f16, f32, layout), Plan(256, together, cluster))
    c = made[4, THREADS](1.0, left, right, left, left, left, 0.0, m, zeros((m, n))).last().and_then(d2h).sync()
    assert np.array_equal(c, a @ b)


@pytest.mark.slow
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_stacks_in_parts_of_k(parts: int, swapped: bool) -> None:
    m, n, k = 72, 40, 136
    a, b = RANDOM.integers(-3, 4, (3, m, k)), RANDOM.integers(-3, 4, (3, n, k))
    left, right = (h2d(each.astype(np.float16)).sync() for each in ((b, a) if swapped else (a, b)))
    plan = Plan(64, parts=parts, swapped=swapped)
    made = wgmma_split_products.kernel_of(form_of(f16, f32, (False, True)), plan, stacked=True)
    blocks = plan.blocks(3, m, n, 132)
    c = made[blocks, THREADS](1.0, left, right, left, left, left, 0.0, m, zeros((3 * m, n))).last().and_then(d2h)
    assert np.array_equal(c.sync().reshape(3, m, n), a @ b.swapaxes(1, 2))


def test_the_plan_follows_from_the_sizes() -> None:
    form, lines = form_of(f16, f16, (False, True)), (True, True)
    assert [plan_of(form, 1, n, n, n, lines, 132) for n in (4096, 8192)] == [Plan(256), Plan(192, True)]
    assert plan_of(form, 1, 32, 4096, 4096, lines, 132) == Plan(32, parts=2, swapped=True)
    assert plan_of(form, 1, 4096, 32, 4096, lines, 132) == Plan(32, parts=2)
    assert plan_of(form, 1, 4096, 4096, 1000, (False, False), 132) == Plan(256, True, 2)
    every = [(products, m, n, k) for products in (1, 7) for m in (1, 999) for n in (1, 999) for k in (1, 64, 9999)]
    for sizes in every:
        plan = plan_of(form, *sizes, lines, 132)
        assert plan.width in WIDTHS
        assert plan.blocks(*sizes[:3], 132) % max(plan.cluster, plan.parts) == 0
    assert plan_of(form._replace(exact=True), 1, 8192, 8192, 8192, lines, 132).together


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize(
    ("kind", "output", "exact"),
    [
        (bf16, bf16, False),
        (f32, f32, False),
        (f32, f32, True),
        (f8e4m3, bf16, False),
        (f8e4m3, bf16, True),
        (i8, i32, False),
    ],
    ids=str,
)
def test_a_gpus_kernels_keep_all_in_registers(kind: Any, output: Any, exact: bool, in_parts: bool) -> None:
    """Nor does ptxas make the products wait for one another."""
    form = form_of(kind, f32 if in_parts and output is bf16 else output, (False, True))._replace(exact=exact)
    # The widest tiles take most registers; ptxas sees the same loops for the narrowest, whatever their type.
    for width in (max(widths_of(form)), 32) if kind in (bf16, f8e4m3) else (max(widths_of(form)),):
        if in_parts:
            made = wgmma_split_products.kernel_of(form, Plan(min(width, 128), parts=2, swapped=True))
        else:
            made = kernel_of(form, Plan(width, exact), even_rows=True)
        told = assembled(made.ptx(cc=(9, 0)))
        assert "0 bytes spill stores, 0 bytes spill loads" in told
        assert "serialized" not in told


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize(
    ("kind", "output", "bias", "exact"),
    [(bf16, bf16, bf16, False), (f16, f32, f16, False), (f8e4m3, bf16, f32, True), (i8, i32, i32, False)],
    ids=str,
)
def test_a_gpus_kernels_keep_the_bias_in_registers(kind: Any, output: Any, bias: Any, exact: bool) -> None:
    activation = "relu" if output is i32 else "gelu"
    form = form_of(kind, output, (False, True), bias=bias, activation=activation)._replace(exact=exact)
    told = assembled(kernel_of(form, Plan(max(widths_of(form)), exact), even_rows=True).ptx(cc=(9, 0)))
    assert "0 bytes spill stores, 0 bytes spill loads" in told
    assert "serialized" not in told


@pytest.mark.nightly
@pytest.mark.parametrize("width", [64, 192])
def test_no_tile_of_a_result_is_written_while_it_is_stored(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block computes two tiles, of an odd number of parts of 64 columns."""
    monkeypatch.setenv("OXIDE_SANITIZE", "race")
    layout = (False, True)
    with use_driver(CpuDriver()):
        a, b, exact = matrices(256, width, 64, f16, layout)
        made = kernel_of.__wrapped__(form_of(f16, f16, layout), Plan(width, together=True), even_rows=True)
        empty = h2d(np.zeros((256, width), np.float16))
        c = made[1, THREADS](1.0, a, b, a, a, a, 0.0, 256, empty).last().and_then(d2h).sync()
    assert error(c, exact) < 6e-4
