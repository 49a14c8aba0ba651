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
from typing import TYPE_CHECKING, Any, cast, final

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
    return cast("Driver", NamingDriver(driver, nvtx))


@final
class NamingDriver:
    """A driver that wraps launches, copies, fills and graph launches in NVTX ranges. Other calls go to ``inner``."""

    def __init__(self, inner: Driver, nvtx: Any) -> None:
        self.inner = inner
        self._nvtx = nvtx
        self.copy_to_device = self._sized("copy to device", inner.copy_to_device, 2)
        self.copy_to_host = self._sized("copy to host", inner.copy_to_host, 2)
        self.copy_on_device = self._sized("copy on device", inner.copy_on_device, 2)
        self.copy_peer = self._sized("copy to another device", inner.copy_peer, 4)
        self.fill = self._ranged("fill", inner.fill)
        self.launch_graph = self._ranged("graph", inner.launch_graph)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not set yet
            raise AttributeError(name)
        return getattr(self.inner, name)

    def for_run(self, run: Droppable) -> Driver:
        inner = self.inner.for_run(run)
        return cast("Driver", self if inner is self.inner else NamingDriver(inner, self._nvtx))

    def launch(self, function: Any, *arguments: Any) -> None:
        self._in_range(function.entry, self.inner.launch, (function, *arguments))

    def _ranged(self, what: str, call: Callable[..., None]) -> Callable[..., None]:
        def ranged(*arguments: Any) -> None:
            self._in_range(what, call, arguments)

        return ranged

    def _sized(self, what: str, call: Callable[..., None], place: int) -> Callable[..., None]:
        """Returns a function that calls ``call`` inside an NVTX range. The range's name has ``what`` and the number of
        bytes, which is the positional argument ``place``, counted from 0."""

        def sized(*arguments: Any) -> None:
            self._in_range(f"{what}, {arguments[place]} bytes", call, arguments)

        return sized

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
