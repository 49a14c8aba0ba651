"""The floor of launching: a compiled loop of ``cuLaunchKernel``, as a C program would have it.

It calls the driver's own function with a kernel, a stream and parameters that were made before; no Python runs
between two launches. Compiled from LLVM IR by the compiler that oxide has with it anyway.
"""

from __future__ import annotations

import ctypes
from typing import Any, final

_IR = """
define i32 @launch_loop(ptr %launch, ptr %function, i32 %grid, i32 %block, ptr %stream, ptr %extra, i64 %count) {
entry:
  br label %next
next:
  %done = phi i64 [ 0, %entry ], [ %done.next, %good ]
  %status = call i32 %launch(ptr %function, i32 %grid, i32 1, i32 1, i32 %block, i32 1, i32 1, i32 0,
                             ptr %stream, ptr null, ptr %extra)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %end, label %good
good:
  %done.next = add i64 %done, 1
  %more = icmp slt i64 %done.next, %count
  br i1 %more, label %next, label %end
end:
  ret i32 %status
}
"""


@final
class PackedParameters:
    """The packed parameters of a kernel. ``address`` is what ``cuLaunchKernel`` takes as ``extra``."""

    def __init__(self, params: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(params, len(params))
        self._size = ctypes.c_size_t(len(params))
        self._extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(self._buffer), 2, ctypes.addressof(self._size), 0)
        self.address = ctypes.addressof(self._extra)


@final
class NativeLoop:
    """Launches one kernel ``count`` times. ``launch`` is the address of ``cuLaunchKernel``, ``extra`` of its packed
    parameters; grid and block are along x."""

    def __init__(self, launch: int, function: int, grid: int, block: int, stream: int, extra: int) -> None:
        import llvmlite.binding as llvm

        from oxide.compiler.ir.llvm import header, host_machine
        from oxide.driver.base import Target

        machine = host_machine(Target("native", "", ""))
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(header(machine) + _IR), machine)
        self._engine.finalize_object()
        address = self._engine.get_function_address("launch_loop")
        pointer, number = ctypes.c_void_p, ctypes.c_uint32
        loop = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, number, number, pointer, pointer, ctypes.c_int64)
        self._loop = loop(address)
        self._arguments = (launch, function, grid, block, stream, extra)

    def run(self, count: int) -> None:
        """Raises ``RuntimeError`` with the driver's code if a launch fails."""
        status = self._loop(*self._arguments, count)
        if status:
            raise RuntimeError(f"cuLaunchKernel returned {status}")


def launch_kernel_address() -> int:
    """The address of the driver's ``cuLaunchKernel``."""
    library: Any = ctypes.CDLL("libcuda.so.1")
    address = ctypes.cast(library.cuLaunchKernel, ctypes.c_void_p).value
    assert address is not None
    return address
