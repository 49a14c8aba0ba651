"""What uses a product's accumulator, operands or tiles before ``wait_wgmma`` is found by the CPU device's sanitizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import (
    DisjointSlice2,
    LaunchConfig,
    SanitizerError,
    Slice2,
    bf16,
    d2h,
    f32,
    h2d,
    kernel,
    tensor,
    thread,
    unroll,
    zeros,
)
from oxide.driver.cpu import CpuDriver
from oxide.testing import seeded_driver, use_driver
from tests.source_lines import line_of

RANDOM = np.random.default_rng(17)


@pytest.fixture(autouse=True)
def _on_the_cpu_device() -> Any:
    with use_driver(CpuDriver()):
        yield


def product(
    kinds: Any = "race",
    *,
    waits: bool = True,
    waits_at_once: bool = False,
    waits_for_other: bool = False,
    pending: int = 0,
    given_back_early: bool = False,
    resets: bool = False,
    operand: str = "",
) -> Any:
    """A product of 64 rows and 8 columns in two buffers, and a second of the same tiles, with waits as chosen."""
    in_registers = operand != ""
    overwrites, waits_first = operand == "overwritten", operand == "overwritten after the wait"

    @kernel(block=160, sanitize=kinds)
    def multiplied(a: Slice2[bf16], b: Slice2[bf16], c: DisjointSlice2[f32]) -> None:
        left, right = tensor.SharedTiles(2, (64, 64), bf16), tensor.SharedTiles(2, (8, 64), bf16)
        full, empty = tensor.Barrier(2, 1), tensor.Barrier(2, 1)
        t = thread.thread_idx.x
        steps = a.shape[1] // 64
        if t >= 128:
            if t == 128:
                for step in range(steps):
                    empty.wait(step % 2, step // 2 - 1)
                    full.expect(step % 2, (64 + 8) * 128)
                    tensor.load_tile(left, step % 2, a, (0, step * 64), full, step % 2)
                    tensor.load_tile(right, step % 2, b, (0, step * 64), full, step % 2)
        else:
            total, second = tensor.Accumulator((16, 8), f32), tensor.Accumulator((16, 8), f32)
            held = tensor.FragmentA((16, 64), bf16)
            if in_registers:
                held.fill(bf16(1.0))
            for step in range(steps):
                full.wait(step % 2, step // 2)
                tensor.wgmma(total, left, (step % 2, 0), right, step % 2)  # the product
                if in_registers:
                    tensor.wgmma(second, held, None, right, step % 2)
                    if waits_first:
                        tensor.wait_wgmma(second)
                    if overwrites or waits_first:
                        held[3] = bf16(1.0)  # the operand
                else:
                    tensor.wgmma(second, left, (step % 2, 0), right, step % 2)
                if waits_at_once:
                    tensor.wait_wgmma(total, 1)
                    if resets:
                        total[0] += 0.0
                if given_back_early and t == 0:
                    empty.arrive(step % 2)
                if waits_for_other:
                    tensor.wait_wgmma(second, pending)
                elif waits:
                    tensor.wait_wgmma(total, pending)
                    tensor.wait_wgmma(second, pending)
                if not given_back_early and t == 0:
                    empty.arrive(step % 2)
            if pending != 0 and waits:
                tensor.wait_wgmma(second)
            for i in unroll(range(4)):
                c.scatter[t // 32 * 16 + total.row(i), total.column(i)] = total[i]  # the read
            if waits_at_once:
                for i in unroll(range(4)):
                    c.scatter[t // 32 * 16 + total.row(i), total.column(i)] = second[i]

    return multiplied


def run(made: Any, steps: int = 3) -> tuple[Any, Any]:
    a, b = (RANDOM.integers(-3, 4, (rows, 64 * steps)) for rows in (64, 8))
    boxes = [h2d(each.astype(bf16.dtype)) for each in (a, b)]
    return made[LaunchConfig(1, 160)](*boxes, zeros((64, 8))).last().and_then(d2h).sync(), a @ b.T


@pytest.mark.slow
@pytest.mark.parametrize(
    "right", [{}, {"waits_at_once": True}, {"waits_at_once": True, "resets": True}, {"operand": "kept"}]
)
@pytest.mark.parametrize("kinds", ["race", ("memory", "race")])
def test_right_kernels_have_no_report(right: dict[str, Any], kinds: Any) -> None:
    result, expected = run(product(kinds, **right))
    assert np.array_equal(result, expected)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 3))
def test_right_kernels_have_no_report_in_any_order_of_threads(seed: int) -> None:
    with use_driver(seeded_driver(seed)):
        result, expected = run(product(waits_at_once=True, resets=True))
        assert np.array_equal(result, expected)
        result, expected = run(product(operand="overwritten after the wait"))
        assert np.array_equal(result, expected)


@pytest.mark.slow
@pytest.mark.parametrize("missing", [{"waits": False}, {"waits_for_other": True}, {"pending": 2}])
def test_a_read_of_an_accumulator_before_its_wait_is_found(missing: dict[str, Any]) -> None:
    made = product(**missing)
    with pytest.raises(SanitizerError) as caught:
        run(made, steps=1)
    error = caught.value
    assert error.kind == "race"
    assert (error.what, error.access) == ("an Accumulator", "read")
    assert error.line == line_of(made, "the read")
    assert error.other is not None
    assert error.other.access == "product"
    assert error.other.line == line_of(made, "the product")
    assert "is in a race: no tensor.wait_wgmma of it orders it, and a tensor.wgmma of an Accumulator by block" in str(
        error
    )


def test_a_write_to_an_operand_in_registers_before_the_wait_is_found() -> None:
    made = product(operand="overwritten")
    with pytest.raises(SanitizerError) as caught:
        run(made)
    error = caught.value
    assert (error.kind, error.what, error.access) == ("race", "a FragmentA", "write")
    assert error.line == line_of(made, "the operand")
    assert run(product(operand="overwritten after the wait"))[0].shape == (64, 8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 1])
def test_a_buffer_that_is_given_back_between_the_product_and_its_wait_is_found(seed: int | None) -> None:
    with use_driver(CpuDriver() if seed is None else seeded_driver(seed)), pytest.raises(SanitizerError) as caught:
        run(product(given_back_early=True))
    assert caught.value.kind == "race"
    assert caught.value.what == "a SharedArray"


def test_without_the_race_detector_nothing_is_said_of_waits() -> None:
    result, expected = run(product("memory", waits=False))
    assert np.array_equal(result, expected)
