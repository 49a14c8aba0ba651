"""NVTX ranges: names for what a program submits, on the time line of NVIDIA's profilers.

A driver is wrapped only if ranges are wanted (``tools.ranges_are_wanted``) and the package ``nvtx`` is installed.
Otherwise the program has the plain driver, so ranges cost it nothing.

A range lasts, on the submitting thread, from the call of the driver to its return. nsys also shows the range on the
GPU's rows, over the work that was submitted in it. A range is named by operation and place: ``scale at program.py:31``
for a launch of the kernel ``scale`` that line 31 of ``program.py`` runs or awaits.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from oxide.driver.base import Wrapper
from oxide.driver.tools import ranges_are_asked_for, ranges_are_wanted

if TYPE_CHECKING:
    from oxide.driver.base import Driver, Droppable

__all__ = ["with_ranges"]

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
        if ranges_are_asked_for():
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
