"""``print`` in kernels, the clock, and stops."""

from __future__ import annotations

import numpy as np
import pytest

from oxide import DisjointSlice, Slice, bf16, d2h, debug, f16, f32, h2d, i64, kernel, thread, u8, zeros
from oxide.errors import CompileError, KernelAssertionError


@kernel(block=64)
def show(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        print("100% of", i.get(), "is", x[i.get()], x[i.get()] > 1, u8(7), f16(0.5), bf16(2.0))
        element.value = 1.0


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 1025])
def test_each_print_is_a_whole_line_on_standard_output(capfd: pytest.CaptureFixture[str], size: int) -> None:
    x = np.arange(size, dtype=np.float32) / 2
    show(h2d(x), zeros(size)).last().and_then(d2h).sync()
    lines = sorted(capfd.readouterr().out.splitlines())
    expected = [f"100% of {n} is {n / 2:f} {n / 2 > 1} 7 0.500000 2.000000" for n in range(size)]
    assert lines == sorted(expected)


def test_what_cannot_be_printed_is_refused() -> None:
    @kernel
    def of_a_slice(x: Slice[f32]) -> None:
        print(x)

    with pytest.raises(CompileError, match="print in a kernel takes numbers, bools and plain strings, not"):
        of_a_slice.specialize()


@kernel(block=32)
def timed(y: DisjointSlice[i64]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        before = debug.clock64()
        element.value = before
        element.value = debug.clock64() - before


def test_the_clock_goes_forward() -> None:
    elapsed = timed(zeros(33, i64)).last().and_then(d2h).sync()
    assert np.all(elapsed >= 0)


@kernel(block=32)
def stopping(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        if x[i.get()] < 0:
            debug.trap()
        element.value = x[i.get()]


@kernel(block=32)
def breaking(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    if i.get() == 3:
        debug.breakpoint()
    element = y.get_mut(i)
    if element is not None:
        element.value = x[i.get()]


@pytest.fixture
def only_on_the_cpu(device: str) -> None:
    if device == "cuda":
        pytest.skip("a trap on a GPU takes the process's context with it")


@pytest.mark.usefixtures("only_on_the_cpu")
def test_a_trap_fails_the_launch_on_the_cpu_device_and_ends_its_thread_alone() -> None:
    x = np.array([1, 2, 3, -4, 5], np.float32)
    y = zeros(5).sync()
    with pytest.raises(KernelAssertionError, match=r"debug\.trap\(\) was reached") as raised:
        stopping(h2d(x), y).sync()
    assert raised.value.thread == (3, 0, 0)
    assert d2h(y).sync().tolist() == [1, 2, 3, 0, 5]
    stopping(h2d(abs(x)), y).sync()  # the device goes on


@pytest.mark.usefixtures("only_on_the_cpu")
def test_a_breakpoint_is_a_trap_on_the_cpu_device() -> None:
    with pytest.raises(KernelAssertionError, match=r"debug\.breakpoint\(\) was reached"):
        breaking(h2d(np.ones(5, np.float32)), zeros(5)).sync()


def test_the_gpu_has_instructions_for_them() -> None:
    assert "trap;" in stopping.ptx()
    assert "brkpt;" in breaking.ptx()
    assert "%clock64" in timed.ptx()
    assert "vprintf" in show.ptx()
