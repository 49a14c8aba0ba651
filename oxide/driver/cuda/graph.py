"""Turns stream captures into executable CUDA graphs.

A graph is instantiated and uploaded when its capture ends, so that its first launch costs no more than later ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, final

from cuda.bindings import driver

from oxide.driver.cuda.errors import check
from oxide.driver.cuda.handles import CudaStream
from oxide.errors import DeviceError
from oxide.host.core import Handle


@final
class CudaGraphExec(Handle):
    """An executable graph of one device. ``address`` is its ``CUgraphExec``, 0 once it is destroyed."""

    __slots__ = ("device", "handle")

    def __init__(self, device: int, handle: Any) -> None:
        self.device = device
        self.handle = handle
        self.address = int(handle)


@final
class CaptureParts:
    """The parts of a capture with branches. For each part that has ended, keeps the part's last nodes."""

    __slots__ = ("_ends", "_stream", "_unfinished")

    def __init__(self, stream: CudaStream) -> None:
        self._stream = stream
        self._ends: list[list[Any]] = []
        self._unfinished = False

    def begin(self, parts: Sequence[int]) -> None:
        """Ends the part in progress. Makes work that is captured from now on depend only on the given parts."""
        if self._unfinished:
            self._ends.append(capture_state(self._stream)[1])
        self._unfinished = True
        continue_after(self._stream, [node for number in parts for node in self._ends[number]])


def capture_state(stream: CudaStream) -> tuple[Any, list[Any]]:
    """Returns the graph of the capture on a stream, and the nodes that the next captured node would depend on."""
    error, _, _, graph, nodes, _, count = driver.cuStreamGetCaptureInfo(stream.handle)
    check(error, "cuStreamGetCaptureInfo")
    return graph, list(nodes[:count])


def continue_after(stream: CudaStream, nodes: list[Any]) -> None:
    """Makes work that is captured from now on depend only on the given nodes."""
    flags = driver.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
    (error,) = driver.cuStreamUpdateCaptureDependencies(stream.handle, nodes, None, len(nodes), flags)
    check(error, "cuStreamUpdateCaptureDependencies")


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
