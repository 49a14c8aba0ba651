"""A kernel for the types of one signature, which numba.cuda keeps in ``kernel.overloads``."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

from oxide.compiler.kernel.specialization import Specialization
from oxide.driver.base import KernelResources
from oxide.interop.numba_cuda import current_device


class Overload:
    """The compiled kernel for the types of one signature. Registers and memory are figures of the GPU that operations
    run on: of the CPU device only the shared memory and the most threads are known, and the others are a
    ``DeviceError``."""

    objectmode = False
    entry_point = None

    def __init__(self, py_func: Any, types: tuple[Any, ...], find: Callable[[], Specialization]) -> None:
        """``find`` returns the specialization for numba's ``types``, and may compile it."""
        self.py_func = py_func
        self.argument_types = types
        self._find = find

    @cached_property
    def specialization(self) -> Specialization:
        """Returns oxide's kernel for these types. Raises ``CompileError`` at the first use."""
        return self._find()

    @property
    def signature(self) -> Any:
        """Returns the types as numba's signature."""
        from oxide.compiler.frontend.lowering.numba_programs import kernel_signature

        return kernel_signature(self.argument_types)

    @property
    def cooperative(self) -> bool:
        """Returns whether the kernel waits for the whole grid."""
        return self.specialization.portable.cooperative

    @property
    def regs_per_thread(self) -> int:
        """Returns the number of registers of a thread."""
        return self._resources().registers

    @property
    def const_mem_size(self) -> int:
        """Returns the bytes of constant memory."""
        return self._resources().constant_bytes

    @property
    def local_mem_per_thread(self) -> int:
        """Returns the bytes of local memory of a thread."""
        return self._resources().local_bytes

    @property
    def shared_mem_per_block(self) -> int:
        """Returns the bytes of static shared memory of a block."""
        if current_device.current().kind == "cpu":
            return self.specialization.portable.shared.total
        return self._resources().shared_bytes

    @property
    def max_threads_per_block(self) -> int:
        """Returns the most threads that a block of the kernel can have."""
        device = current_device.current()
        return device.info.max_threads_per_block if device.kind == "cpu" else self._resources().max_threads_per_block

    def max_cooperative_grid_blocks(self, blockdim: Any, dynsmemsize: int = 0) -> int:
        """Returns the most blocks of a grid that can wait for the whole grid, given the block's shape in threads and
        its bytes of dynamic shared memory. Returns 0 if not even one block fits."""
        device = current_device.current()
        threads = math.prod(blockdim) if isinstance(blockdim, tuple | list) else int(blockdim)
        if threads > self.max_threads_per_block:
            return 0
        if device.kind == "cpu":
            from oxide.driver.cpu.streams import blocks_that_fit

            return blocks_that_fit(threads)
        found = self.specialization.resources(threads, shared_mem_bytes=dynsmemsize)
        return found.blocks_per_multiprocessor * device.info.multiprocessors

    def inspect_llvm(self) -> str:
        """Returns oxide's LLVM IR, which both devices' code is made from."""
        return self.specialization.llvm_ir()

    def inspect_asm(self, cc: tuple[int, int]) -> str:
        """Returns oxide's PTX for a compute capability."""
        return self.specialization.ptx(cc)

    def _resources(self) -> KernelResources:
        return self.specialization.resources()

    def __repr__(self) -> str:
        return f"<numba_cuda kernel {self.py_func.__name__}{self.argument_types}>"
