"""Reads from the environment which profilers and debuggers of other makers to serve, and whether one of NVIDIA's tools
has started the program.

- ``OXIDE_LINEINFO``: ``1`` gives kernels line tables, ``0`` gives them none. By default, kernels get line tables if one
  of NVIDIA's tools has started the program, or if ``OXIDE_GDB`` is ``1``.
- ``OXIDE_PERF``: ``map`` names the CPU device's code for Linux's perf.
- ``OXIDE_GDB``: ``1`` registers the CPU device's code with gdb.
- ``OXIDE_NVTX``: ``1`` names the operations on a CUDA device for NVIDIA's profilers, ``0`` does not. By default,
  operations are named if one of NVIDIA's tools has started the program.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from oxide.errors import DeviceError
from oxide.host.environment import word

__all__ = [
    "gdb_is_served",
    "lines_are_wanted",
    "nvidias_tool_runs",
    "perf_map_is_wanted",
    "ranges_are_asked_for",
    "ranges_are_wanted",
]

_NAMES = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
_PREFIXES = ("NV_NSIGHT_INJECTION_", "NV_COMPUTE_PROFILER_", "NV_SANITIZER_", "NV_TPS_LAUNCH_")


def nvidias_tool_runs(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether ncu, nsys or compute-sanitizer has started this program. Each of these tools sets some of the
    variables of ``_NAMES`` and ``_PREFIXES``, for the libraries that it injects. cuda-gdb sets none of them."""
    return any(name in _NAMES or name.startswith(_PREFIXES) for name, value in environment.items() if value)


def lines_are_wanted() -> bool:
    """Returns whether a kernel gets line tables if its ``lineinfo`` option is not given. Raises ``DeviceError``
    if ``OXIDE_LINEINFO``, or ``OXIDE_GDB`` if the answer depends on it, has an unknown value, or if ``OXIDE_GDB`` and
    ``OXIDE_PERF`` exclude each other."""
    asked = word("OXIDE_LINEINFO", ("0", "1"))
    if asked is not None:
        return asked == "1"
    return nvidias_tool_runs() or gdb_is_served()


def perf_map_is_wanted() -> bool:
    """Returns whether the CPU device's code is named for perf. Raises ``DeviceError`` if ``OXIDE_PERF`` has an unknown
    value."""
    return word("OXIDE_PERF", ("map",)) is not None


def gdb_is_served() -> bool:
    """Returns whether gdb is told about the CPU device's code. Raises ``DeviceError`` if ``OXIDE_GDB`` has an unknown
    value, or if ``OXIDE_PERF`` is set too: for gdb, LLVM loads the code, and LLVM does not tell the addresses that perf
    needs."""
    served = word("OXIDE_GDB", ("0", "1")) == "1"
    if served and perf_map_is_wanted():
        raise DeviceError("OXIDE_GDB=1 and OXIDE_PERF exclude each other: unset one of them")
    return served


def ranges_are_wanted() -> bool:
    """Returns whether operations get NVTX ranges, provided that the package ``nvtx`` is installed. Raises
    ``DeviceError`` if ``OXIDE_NVTX`` has an unknown value."""
    asked = word("OXIDE_NVTX", ("0", "1"))
    return nvidias_tool_runs() if asked is None else asked == "1"


def ranges_are_asked_for() -> bool:
    """Returns whether ``OXIDE_NVTX`` is 1. Raises ``DeviceError`` if it has an unknown value."""
    return word("OXIDE_NVTX", ("0", "1")) == "1"
