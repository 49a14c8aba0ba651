"""Compiles CUDA C++ with NVRTC, through cuda.core. NVRTC is an optional package; only this file needs it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from oxide.errors import CompileError

_INSTALL = "install it with pip install 'oxide-gpu[nvrtc]', or pass PTX or a cubin that nvcc made"


def compiled(source: str, arch: str, options: Mapping[str, Any]) -> tuple[bytes, str]:
    """Returns the code as a cubin for an architecture such as ``sm_90``, and as PTX. The PTX is only read for the types
    of the parameters. The cubin is loaded, because a driver that is older than NVRTC refuses NVRTC's PTX.

    Raises ``CompileError`` with NVRTC's log for code that does not compile, and if NVRTC is not installed. Raises
    ``TypeError`` for unknown options.
    """
    try:
        from cuda.core import Program, ProgramOptions
    except ImportError as error:
        raise CompileError(f"CUDA C++ is compiled by NVRTC through cuda.core, which is missing: {_INSTALL}") from error
    given = {"std": "c++17", **options}
    try:
        made = ProgramOptions(**{"arch": arch, **given})
    except TypeError as error:
        raise TypeError(f"oxide.module: options are fields of cuda.core's ProgramOptions: {error}") from error
    try:
        program = Program(source, "c++", made)
    except Exception as error:
        if type(error).__name__ == "DynamicLibNotFoundError":
            raise CompileError(f"CUDA C++ is compiled by NVRTC, which is not installed: {_INSTALL}") from error
        raise CompileError(f"CUDA C++: {error}") from error
    try:
        cubin = bytes(program.compile("cubin").code)
        with warnings.catch_warnings():  # that the driver could not load this PTX: it is never loaded
            warnings.simplefilter("ignore")
            return cubin, bytes(program.compile("ptx").code).decode().rstrip("\0")
    except Exception as error:
        raise CompileError(f"CUDA C++ for {arch} was refused by NVRTC: {error}") from error
    finally:
        program.close()
