"""Compiles CUDA C++ by NVRTC, through cuda.core. NVRTC is an optional package: only this file needs it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from oxide.errors import CompileError

_INSTALL = "install it with pip install 'oxide-gpu[nvrtc]', or pass PTX or a cubin that nvcc made"


def compiled(source: str, arch: str, options: Mapping[str, Any]) -> tuple[bytes, str]:
    """Returns a cubin for an architecture such as ``sm_90``, and the same code as PTX, which has the types of the
    parameters. The cubin is what is loaded: a driver that is older than NVRTC refuses its PTX.

    Raises ``CompileError`` with NVRTC's log, and without NVRTC. Raises ``TypeError`` for unknown options.
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
        with warnings.catch_warnings():  # of a driver that could not load the PTX, which is only read here
            warnings.simplefilter("ignore")
            return cubin, bytes(program.compile("ptx").code).decode().rstrip("\0")
    except Exception as error:
        raise CompileError(f"CUDA C++ for {arch} was refused by NVRTC: {error}") from error
    finally:
        program.close()
