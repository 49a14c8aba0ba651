"""Serves profilers and debuggers of other makers: reads from the environment which, and names what a program submits
for NVIDIA's profilers.

- ``OXIDE_LINEINFO``: ``1`` gives kernels line tables, ``0`` gives them none. By default, kernels get line tables if one
  of NVIDIA's tools has started the program, or if ``OXIDE_GDB`` is ``1``.
- ``OXIDE_PERF``: ``map`` names the CPU device's code for Linux's perf.
- ``OXIDE_GDB``: ``1`` registers the CPU device's code with gdb.
- ``OXIDE_NVTX``: ``1`` names the operations on a CUDA device for NVIDIA's profilers, ``0`` does not. By default,
  operations are named if one of NVIDIA's tools has started the program.

The names are NVTX ranges. A driver is wrapped only if ranges are wanted and the package ``nvtx`` is installed.
Otherwise the program has the plain driver, so ranges cost it nothing. A range lasts, on the submitting thread, from the
call of the driver to its return. nsys also shows the range on the GPU's rows, over the work that was submitted in it. A
range is named by operation and place: ``scale at program.py:31`` for a launch of the kernel ``scale`` that line 31 of
``program.py`` runs or awaits.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

from oxide.driver.base import Wrapper
from oxide.errors import DeviceError
from oxide.host.environment import word

if TYPE_CHECKING:
    from oxide.driver.base import Driver, Droppable

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


DOMAIN = "oxide"
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


def with_ranges(driver: Driver) -> Driver:
    """Returns the driver, wrapped if ranges are wanted and ``nvtx`` is installed. Warns if ``OXIDE_NVTX`` is 1 and
    ``nvtx`` is not installed."""
    if not ranges_are_wanted():
        return driver
    try:
        import nvtx
    except ImportError:
        if word("OXIDE_NVTX", ("0", "1")) == "1":
            warnings.warn(
                "oxide: OXIDE_NVTX=1, but the package nvtx is not installed: pip install oxide-gpu[nvtx]",
                RuntimeWarning,
                stacklevel=2,
            )
        return driver
    return NamingDriver(driver, nvtx)


@final
class NamingDriver(Wrapper):
    """A driver that wraps launches, copies, fills and graph launches in NVTX ranges. Other calls go to ``inner``."""

    def __init__(self, inner: Driver, nvtx: Any) -> None:
        super().__init__(inner)
        self._nvtx = nvtx

    def for_run(self, run: Droppable) -> Driver:
        return NamingDriver(self.inner.for_run(run), self._nvtx)

    def launch(self, function: Any, *arguments: Any) -> None:
        self._in_range(function.entry, self.inner.launch, (function, *arguments))

    def copy_to_device(self, *arguments: Any) -> None:
        self._in_range(f"copy to device, {arguments[2]} bytes", self.inner.copy_to_device, arguments)

    def copy_to_host(self, *arguments: Any) -> None:
        self._in_range(f"copy to host, {arguments[2]} bytes", self.inner.copy_to_host, arguments)

    def copy_on_device(self, *arguments: Any) -> None:
        self._in_range(f"copy on device, {arguments[2]} bytes", self.inner.copy_on_device, arguments)

    def copy_peer(self, *arguments: Any) -> None:
        self._in_range(f"copy to another device, {arguments[4]} bytes", self.inner.copy_peer, arguments)

    def fill(self, *arguments: Any) -> None:
        self._in_range("fill", self.inner.fill, arguments)

    def launch_graph(self, *arguments: Any) -> None:
        self._in_range("graph", self.inner.launch_graph, arguments)

    def _in_range(self, what: str, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._nvtx.push_range(f"{what}{_place()}", domain=DOMAIN)
        try:
            call(*arguments)
        finally:
            self._nvtx.pop_range(domain=DOMAIN)


def _place() -> str:
    """Returns the innermost running line outside of this package, such as " at program.py:31"; "" if there is none."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    return "" if frame is None else f" at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
