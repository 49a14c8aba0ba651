"""Whatever fails in the front end is a ``CompileError`` at a line, and none of it touches a CUDA driver."""

# ruff: noqa: E711, F841 (the kernels here are wrong on purpose)

from __future__ import annotations

from typing import Any

import pytest
from numba.cuda.cudadrv import devices

from oxide import DisjointSlice, f32, i32, kernel, thread
from oxide.compiler.frontend import frontend
from oxide.errors import CompileError
from tests.compiler.check.test_compile_errors import refuse


def test_comparing_with_none_by_equality_is_refused() -> None:
    def unequal(c: DisjointSlice[f32]) -> None:
        e = c.get_mut(thread.index_1d())
        if e != None:  # here
            e.value = 1.0

    def equal(c: DisjointSlice[f32]) -> None:
        e = c.get_mut(thread.index_1d())
        if e == None:  # here
            return

    def of_the_value(c: DisjointSlice[f32]) -> None:
        e = c.get_mut(thread.index_1d())
        if None == e.value:  # type: ignore[union-attr]  # noqa: SIM300  # here
            return

    refuse(unequal, "!= None is not supported: use is not None")
    refuse(equal, "== None is not supported: use is None")
    refuse(of_the_value, "== None is not supported: use is None")


def test_a_failed_lookup_makes_no_cuda_context(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*args: Any) -> None:
        pytest.fail("the front end asked for a CUDA context")

    monkeypatch.setattr(devices._runtime, "get_or_create_context", touched)

    def alone(c: DisjointSlice[f32]) -> None:
        e = c.get_mut(thread.index_1d())
        if e is not None:
            e.value = min(4.0)  # type: ignore[call-overload]  # here

    def compared(c: DisjointSlice[f32]) -> None:
        e = c.get_mut(thread.index_1d())
        same = e == 3  # here

    refuse(alone, r"min\(\.\.\.\) is not defined for f64")
    refuse(compared, r"== is not defined for Ref\[f32\] and 3; the element is \.value")


def test_an_unforeseen_failure_of_the_front_end_is_a_compile_error(monkeypatch: pytest.MonkeyPatch) -> None:
    @kernel
    def fine(n: i32) -> None:
        pass

    def broken(*args: Any) -> None:
        raise RuntimeError("the front end broke")

    monkeypatch.setattr(frontend, "compile_function", broken)
    with pytest.raises(CompileError, match="kernel fine: the front end broke") as raised:
        fine.specialize()
    assert isinstance(raised.value.__cause__, RuntimeError)
