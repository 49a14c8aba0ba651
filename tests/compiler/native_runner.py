"""Runs kernels with nothing above them: on the CPU the object file's entry is called, as the CPU driver does; with
``--device cuda`` the same arrays go to the GPU and back, so that one set of tests holds both back ends to NumPy."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from oxide.compiler.ir.llvm import host_target
from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.kernel.specialization import Specialization
from oxide.compiler.source.faults import RECORD, read_fault
from oxide.driver.cpu.sanitizer import SanitizedLaunch
from oxide.driver.records import LAUNCH

Dim3 = tuple[int, int, int]

_engines: list[Any] = []
_entries: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def run_blocks(
    kernel: Kernel, grid: Dim3, block: Dim3, *args: Any, first: int = 0, end: int | None = None
) -> np.ndarray[Any, Any]:
    """Launches; arrays are changed in place. Gives the fault record. A range of blocks is the CPU's alone."""
    if os.environ.get("OXIDE_DEVICE") == "cuda":
        if end is not None:
            pytest.skip("a GPU launches whole grids")
        return _run_on_cuda(kernel, grid, block, *args)
    special = kernel.specialize()
    record = np.zeros(1, RECORD)
    values = [
        (arg.ctypes.data, *_lengths(parameter, arg)) if parameter.kind != "scalar" else parameter.convert(arg)
        for parameter, arg in zip(kernel.parameters, args, strict=True)
    ]
    packed = special.pack(values, record.ctypes.data)

    def call(params: bytes) -> Any:
        there = ctypes.create_string_buffer(params)
        launch = LAUNCH.structure(grid, block, 0, 0, ctypes.addressof(there))
        return lambda first, end: _entry(special)(ctypes.addressof(launch), first, end) and there

    sanitized = special.code(host_target()).sanitized
    if sanitized is not None:
        SanitizedLaunch(
            sanitized, call, lambda blocks: [(0, blocks)], lambda address, nbytes: None, grid, block, 0, packed
        )()
    else:
        call(packed)(first, grid[0] * grid[1] * grid[2] if end is None else end)
    return record


def _lengths(parameter: Any, array: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """The length of each axis of a slice: a flat one takes an array of any shape."""
    return array.shape if parameter.ndim > 1 else (array.size,)


def _run_on_cuda(kernel: Kernel, grid: Dim3, block: Dim3, *args: Any) -> np.ndarray[Any, Any]:
    from oxide.runtime.devices.runtime import current_runtime

    special = kernel.specialize()
    driver = current_runtime().driver
    stream = driver.create_stream(0)
    record_address = driver.allocate_host(4096)
    record = np.frombuffer((ctypes.c_char * RECORD.itemsize).from_address(record_address), RECORD)
    record.view(np.uint64)[:] = 0
    boxes: dict[int, tuple[int, int, Any]] = {}  # one for each array, by its own address: two parameters may share one
    values: list[Any] = []
    for parameter, arg in zip(kernel.parameters, args, strict=True):
        if parameter.kind == "scalar":
            values.append(parameter.convert(arg))
            continue
        key = arg.ctypes.data
        if arg.size and key not in boxes:
            host = driver.allocate_host(arg.nbytes)
            ctypes.memmove(host, key, arg.nbytes)
            boxes[key] = (driver.allocate(arg.nbytes, stream), host, arg)
            driver.copy_to_device(boxes[key][0], host, arg.nbytes, stream)
        values.append((boxes[key][0] if arg.size else 0, *_lengths(parameter, arg)))
    function = driver.load(0, special.code(driver.device_info(0).target))
    driver.launch(function, grid, block, 0, special.pack(values, record_address), stream)
    for device, host, arg in boxes.values():
        driver.copy_to_host(host, device, arg.nbytes, stream)
    driver.synchronize_stream(stream)
    for device, host, arg in boxes.values():
        ctypes.memmove(arg.ctypes.data, host, arg.nbytes)
        driver.free(device, stream)
        driver.free_host(host)
    result = record.copy()
    driver.free_host(record_address)
    driver.destroy_stream(stream)
    return result


def _entry(special: Specialization) -> Any:
    if special not in _entries:
        target = host_target()
        code = special.code(target)
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=target.arch, features=target.features, jit=True
        )
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code.image))
        engine.finalize_object()
        _engines.append(engine)
        entry_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        _entries[special] = entry_type(engine.get_function_address(code.entry))
    return _entries[special]


def run(kernel: Kernel, threads: int, *args: Any, block: int = 32) -> None:
    """Launches at least ``threads`` threads in x and raises the fault, if there is one."""
    grid = max(1, -(-threads // block))
    fault = fault_of(kernel, run_blocks(kernel, (grid, 1, 1), (block, 1, 1), *args))
    if fault is not None:
        raise fault


def fault_of(kernel: Kernel, record: np.ndarray[Any, Any]) -> Any:
    return read_fault(record, kernel.name, kernel.specialize().sites)
