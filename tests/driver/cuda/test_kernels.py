"""The CUDA driver's own kernels without a GPU: NVIDIA's assembler takes them, and one module holds both."""

from __future__ import annotations

import gc
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver")
from oxide import DisjointSlice, Kernel, Slice, f32, kernel, thread
from oxide.driver.cuda import modules as cuda_modules
from oxide.driver.cuda.kernels import CODE, FILL, REPORT, fill_params, report_params
from oxide.driver.cuda.modules import load_functions, parameter_layout, uses_last_parameter, whole_shared
from oxide.errors import DriverError
from tests.compiler.assembler import assembled, needs_ptxas

codes = cuda_modules.driver.CUresult


@needs_ptxas
@pytest.mark.parametrize("cc", [(7, 5), (8, 0), (9, 0), (12, 0)])
def test_the_assembler_takes_both_and_spills_nothing(cc: tuple[int, int]) -> None:
    told = assembled(CODE.image.decode(), cc)
    assert told.count("0 bytes spill stores") == 2
    assert FILL in told
    assert REPORT in told


def test_the_parameters_are_what_the_kernels_declare() -> None:
    ptx = CODE.image.decode()
    assert parameter_layout(ptx, FILL) == ((0, 8, 16, 24), len(fill_params(0, bytes(16), 0)))
    assert parameter_layout(ptx, REPORT) == ((0, 8, 16), len(report_params(0, 0, 0)))


@kernel
def bump(x: DisjointSlice[f32]) -> None:
    elem = x.get_mut(thread.index_1d())
    if elem is not None:
        elem.value = elem.value + f32(1)


@kernel
def add(a: Slice[f32], c: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    elem = c.get_mut(index)
    if elem is not None:
        elem.value = a[index.get()]


@kernel(requires=["len(a) == len(c)"])
def add_proved(a: Slice[f32], c: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    elem = c.get_mut(index)
    if elem is not None:
        elem.value = a[index.get()]


@kernel(unchecked=True)
def add_unchecked(a: Slice[f32], c: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    elem = c.get_mut(index)
    if elem is not None:
        elem.value = a[index.get()]


@pytest.mark.parametrize(
    ("compiled", "reports"),
    [(bump, False), (add, True), (add_proved, False), (add_unchecked, False)],
)
def test_a_kernels_text_says_whether_it_can_report_a_fault(compiled: Kernel, reports: bool) -> None:
    ptx = compiled.ptx()
    assert uses_last_parameter(ptx, compiled.name) == reports
    assert uses_last_parameter(CODE.image.decode(), REPORT)
    assert uses_last_parameter(ptx, "another")  # of which nothing is known


class Modules:
    """Stands for the driver's functions: one module is loaded, whose functions are numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, missing: str = "") -> None:
        self.calls: list[str] = []
        self.missing = missing.encode()
        for name in ("cuModuleLoadDataEx", "cuModuleGetFunction", "cuFuncLoad", "cuFuncGetAttribute"):
            monkeypatch.setattr(cuda_modules.driver, name, getattr(self, name))

    def cuModuleLoadDataEx(self, *_: Any) -> Any:
        self.calls.append("load")
        return codes.CUDA_SUCCESS, "module"

    def cuModuleGetFunction(self, module: str, entry: bytes) -> Any:
        self.calls.append(entry.decode())
        if entry == self.missing:
            return codes.CUDA_ERROR_NOT_FOUND, None
        return codes.CUDA_SUCCESS, len(self.calls)

    def cuFuncLoad(self, handle: int) -> Any:
        return (codes.CUDA_SUCCESS,)

    def cuFuncGetAttribute(self, attribute: Any, handle: int) -> Any:
        return codes.CUDA_SUCCESS, 48 << 10


def test_two_functions_of_one_module_are_loaded_once_and_retired_with_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = Modules(monkeypatch)
    retired: deque[Any] = deque()
    functions = load_functions(0, CODE, (FILL, REPORT), retired)
    assert modules.calls == ["load", FILL, REPORT]
    assert [(each.entry, each.parameter_bytes) for each in functions] == [(FILL, 32), (REPORT, 24)]
    functions.pop(0)
    gc.collect()
    assert not retired
    functions.pop()
    gc.collect()
    assert list(retired) == ["module"]


class Function:
    """Stands for a kernel that is allowed 48 KiB, on a device that gives a block 99 KiB."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, array_bytes: int) -> None:
        modules = Modules(monkeypatch)
        self.asked: list[int] = []
        monkeypatch.setattr(cuda_modules.driver, "cuFuncSetAttribute", self.cuFuncSetAttribute)
        monkeypatch.setattr(cuda_modules.core, "Device", lambda number: SimpleNamespace(properties=self))
        self.max_shared_memory_per_block_optin = 99 << 10
        code = replace(CODE, array_bytes=array_bytes)
        (self.function,) = load_functions(0, code, (FILL,), deque())
        assert modules.calls == ["load", FILL]

    def cuFuncSetAttribute(self, handle: int, attribute: Any, value: int) -> Any:
        self.asked.append(value)
        return (codes.CUDA_SUCCESS if value <= 99 << 10 else codes.CUDA_ERROR_INVALID_VALUE,)

    def launched(self, shared_bytes: int) -> int:
        """Returns the dynamic shared memory of a launch, found as ``CudaDriver.launch`` does."""
        function = self.function
        return whole_shared(function, shared_bytes) if shared_bytes > function.shared_limit else shared_bytes


def test_each_launch_takes_the_memory_of_large_arrays_and_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = Function(monkeypatch, 64 << 10)
    assert [arrays.launched(size) for size in (0, 256, 0, 128)] == [65536, 65792, 65536, 65664]
    assert arrays.asked == [65536, 65792]


def test_a_launch_opts_in_once_to_more_dynamic_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Function(monkeypatch, 0)
    sizes = [0, 48 << 10, 64 << 10, 64 << 10, 50 << 10, 0]
    assert [plain.launched(size) for size in sizes] == sizes
    assert plain.asked == [64 << 10]


@pytest.mark.parametrize(
    ("array_bytes", "given", "told"),
    [
        (65536, 65536, "131072 bytes of dynamic shared memory, 65536 of them for its SharedArrays; the device gives"),
        (0, 131072, "131072 bytes of dynamic shared memory; the device gives a block 101376 at most"),
    ],
)
def test_a_device_that_gives_less_refuses_the_launch(
    monkeypatch: pytest.MonkeyPatch, array_bytes: int, given: int, told: str
) -> None:
    monkeypatch.setattr("oxide.driver.cuda.errors._text", lambda code: "no")
    function = Function(monkeypatch, array_bytes)
    with pytest.raises(DriverError, match=told):
        function.launched(given)


def test_a_module_without_one_of_its_entries_is_retired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oxide.driver.cuda.errors._text", lambda code: "no")
    Modules(monkeypatch, missing=REPORT)
    retired: deque[Any] = deque()
    with pytest.raises(DriverError, match=rf"cuModuleGetFunction\({REPORT}\)"):
        load_functions(0, CODE, (FILL, REPORT), retired)
    assert list(retired) == ["module"]
