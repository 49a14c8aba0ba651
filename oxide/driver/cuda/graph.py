"""Turns stream captures into executable CUDA graphs.

A graph is instantiated and uploaded when its capture ends, so that its first launch costs no more than later ones.
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
    """Instantiates a captured graph and uploads it in ``stream``. Destroys the captured graph."""
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
    """Destroys the graph of a failed capture, if there is one."""
    if graph is not None and int(graph):
        with contextlib.suppress(DeviceError):
            check(driver.cuGraphDestroy(graph)[0], "cuGraphDestroy")
