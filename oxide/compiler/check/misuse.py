"""Errors for wrong uses of ``@kernel``, and for attributes that only numba-cuda's kernels have."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from oxide.compiler.signature.device_function import DeviceFunction
from oxide.compiler.source.source import located_in
from oxide.errors import CompileError

INSTEAD = {
    "forall": "kernel[LaunchConfig.for_num_elems(n)](...) launches a thread for each of n elements",
    "inspect_asm": "kernel.ptx() is the PTX; of a generic kernel kernel.specialize(...).ptx()",
    "inspect_llvm": "kernel.llvm_ir() is the LLVM IR; of a generic kernel kernel.specialize(...).llvm_ir()",
    "inspect_sass": "kernel.ptx() is the PTX, which cuobjdump disassembles once ptxas has assembled it",
    "inspect_types": "kernel.llvm_ir() is the LLVM IR, where every value has its type",
    "get_regs_per_thread": "kernel.resources().registers",
    "get_shared_mem_per_block": "kernel.resources().shared_bytes",
    "get_local_mem_per_thread": "kernel.resources().local_bytes",
    "get_const_mem_size": "kernel.resources().constant_bytes",
    "get_max_threads_per_block": "kernel.resources().max_threads_per_block",
    "max_cooperative_grid_blocks": "a launch that syncs its grid says how many blocks fit",
    "compile": "kernel.specialize(...) compiles; a launch does so by itself",
    "overloads": "kernel.specialize(...) is the kernel for certain types",
    "py_func": "kernel.function is the Python function",
}
"""oxide's replacements for the attributes of numba-cuda's kernels. ``kernel`` stands for the kernel's name."""


def no_attribute(name: str, attribute: str) -> AttributeError:
    """Returns the error for an attribute that a kernel does not have."""
    instead = INSTEAD.get(attribute)
    return AttributeError(f"kernel {name} has no {attribute}" + (f": {instead}" if instead else ""), name=attribute)


def no_function(given: Any) -> CompileError:
    """Returns the error for an argument of ``@kernel`` that is no plain function, at the caller's line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("oxide."):
        frame = frame.f_back
    if frame is None:
        return CompileError(_problem(given))
    return located_in(frame.f_code.co_filename, frame.f_lineno, _problem(given))


def _problem(given: Any) -> str:
    if isinstance(given, str):
        return (
            f"@kernel({given!r}): @kernel takes no signature, as arguments say their types: write @kernel, and "
            "annotate the parameters where you want them fixed, as in x: Slice[f32]"
        )
    if type(given).__name__ == "Kernel":
        return f"{given.name} is a kernel already: leave out the second @kernel"
    if isinstance(given, DeviceFunction):
        return (
            f"{given.function.__name__} is a @device function, which kernels call, and no kernel: leave out one of them"
        )
    what = f"the class {given.__name__}" if isinstance(given, type) else f"an object of type {type(given).__name__}"
    return f"@kernel makes a kernel of a Python function, not of {what}: write @kernel above a def"
