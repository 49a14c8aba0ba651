"""NVIDIA's libdevice, the GPU back end's math library, which is linked into a kernel's module before optimisation.

libdevice is LLVM bitcode that comes with the CUDA Toolkit and with NVIDIA's compiler wheels. It may not be
redistributed. Only the functions that a kernel reaches are linked, and only a kernel that calls such a function needs
the file.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

from oxide.errors import CompileError
from oxide.host.locks import new_lock, unheld

_FILE = Path("nvvm", "libdevice", "libdevice.10.bc")
_WHEELS = (Path("nvidia", "cu13"), Path("nvidia", "cuda_nvcc"))
_TOOLKITS = (Path("/usr/local/cuda"), Path("/opt/cuda"))
_lock = new_lock()


def link_libdevice(kernel: str, module: Any) -> None:
    """Links into ``module`` the libdevice functions that it only declares.

    Raises ``CompileError`` if libdevice cannot be found, or lacks a function.
    """
    import llvmlite.binding as llvm  # imported here, because a program that only looks for the file needs no LLVM

    from oxide.compiler.ir.llvm import gpu_machine, run_passes

    wanted = {f.name for f in module.functions if f.is_declaration and f.name.startswith("__nv_")}
    if not wanted:
        return
    path = find_libdevice()
    if path is None:
        names = ", ".join(sorted(name.removeprefix("__nv_") for name in wanted))
        raise CompileError(
            f"kernel {kernel} calls {names}, which need NVIDIA's libdevice on a GPU, and there is none in CUDA_HOME, "
            f"{', '.join(map(str, _TOOLKITS))} or the installed packages; pip install nvidia-nvvm (it comes with "
            "oxide-gpu[math])"
        )
    with unheld(_lock):
        library = llvm.parse_bitcode(_bitcode(path))
    defined = {function.name for function in library.functions if not function.is_declaration}
    if not wanted <= defined:
        raise CompileError(
            f"kernel {kernel} calls {', '.join(sorted(wanted - defined))}, which {path} does not define; is it a "
            "libdevice of CUDA 12 or 13?"
        )
    for function in library.functions:
        if not function.is_declaration and function.name not in wanted:
            function.linkage = "internal"
    run_passes(library, gpu_machine(), ("global_dead_code_eliminate",))
    library.triple, library.data_layout = module.triple, module.data_layout
    module.link_in(library)
    for function in module.functions:
        if function.name in wanted:
            function.linkage = "internal"


def find_libdevice() -> Path | None:
    """Returns the path of the bitcode file, or None if there is none. Looks in CUDA_HOME and CUDA_PATH, in wheels, in
    conda, and in the usual places of a toolkit."""
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    roots += [Path(entry) / wheel for entry in sys.path if entry for wheel in _WHEELS]
    roots += [Path(os.environ["CONDA_PREFIX"])] if os.environ.get("CONDA_PREFIX") else []
    return next((root / _FILE for root in [*roots, *_TOOLKITS] if (root / _FILE).is_file()), None)


def identity() -> str:
    """Returns a text that identifies the libdevice in use. The cache key of code that is compiled with libdevice
    contains this text."""
    path = find_libdevice()
    if path is None:
        return "no libdevice"
    facts = path.stat()
    return f"{path} {facts.st_size} {facts.st_mtime_ns}"


@functools.cache
def _bitcode(path: Path) -> bytes:
    return path.read_bytes()
