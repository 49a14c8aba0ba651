"""Stream captures into executable CUDA graphs.

A graph is instantiated and uploaded when its capture ends, so that the first launch costs what the others do.
"""

from __future__ import annotations

import contextlib
from typing import Any, final

from cuda.bindings import driver

from oxide.driver.cuda.errors import check
from oxide.driver.cuda.handles import CudaStream
from oxide.errors import DeviceError


@final
class CudaGraphExec:
    """An executable graph of one device: a ``CUgraphExec``."""

    __slots__ = ("device", "handle")

    def __init__(self, device: int, handle: Any) -> None:
        self.device = device
        self.handle = handle


def instantiate(graph: Any, stream: CudaStream) -> CudaGraphExec:
    """The executable graph of a captured one, uploaded in ``stream``. The captured one is given back."""
    try:
        error, handle = driver.cuGraphInstantiate(graph, 0)
        check(error, "cuGraphInstantiate")
    finally:
        check(driver.cuGraphDestroy(graph)[0], "cuGraphDestroy")
    try:
        check(driver.cuGraphUpload(handle, stream.handle)[0], "cuGraphUpload")
    except BaseException:
        with contextlib.suppress(DeviceError):
            check(driver.cuGraphExecDestroy(handle)[0], "cuGraphExecDestroy")
        raise
    return CudaGraphExec(stream.device, handle)


def abandon_capture(graph: Any) -> None:
    """Gives back what a failed capture left, if anything."""
    if graph is not None and int(graph):
        with contextlib.suppress(DeviceError):
            check(driver.cuGraphDestroy(graph)[0], "cuGraphDestroy")
