"""Runs kernels as the CPU driver does, without the driver: load the object file, call its entry."""

from __future__ import annotations

import ctypes
import struct
import weakref
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from oxide.compiler.faults import RECORD, read_fault
from oxide.compiler.kernel import Kernel, Specialization
from oxide.compiler.native import host_target

Dim3 = tuple[int, int, int]

_engines: list[Any] = []
_entries: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def run_blocks(
    kernel: Kernel, grid: Dim3, block: Dim3, *args: Any, first: int = 0, end: int | None = None
) -> np.ndarray[Any, Any]:
    """Launches on the host; arrays are changed in place. Gives the fault record."""
    special = kernel.specialize()
    record = np.zeros(1, RECORD)
    values = [
        (arg.ctypes.data, arg.size) if parameter.kind != "scalar" else parameter.convert(arg)
        for parameter, arg in zip(kernel.parameters, args, strict=True)
    ]
    params = ctypes.create_string_buffer(special.pack(values, record.ctypes.data))
    launch = ctypes.create_string_buffer(struct.pack("@3I3I2IP", *grid, *block, 0, 0, ctypes.addressof(params)))
    entry = _entry(special)
    entry(ctypes.addressof(launch), first, grid[0] * grid[1] * grid[2] if end is None else end)
    return record


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
