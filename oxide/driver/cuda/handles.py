"""The CUDA driver's handles, and the contexts that they belong to."""

from __future__ import annotations

from collections import deque
from typing import Any, final

import cuda.core as core
from cuda.bindings import driver

from oxide.driver.base import StreamPriority
from oxide.driver.cuda.blocks import SpareBlocks
from oxide.driver.cuda.errors import check, raise_core_failure
from oxide.driver.cuda.kernels import CODE, FILL, REPORT
from oxide.driver.cuda.ptx_modules import CudaFunction, load_functions
from oxide.host.core import Handle


@final
class CudaContext:
    """An open device: its primary context, its default memory pool, this driver's own kernels, the retired modules
    (which wait to be unloaded), and this driver's streams."""

    __slots__ = ("fill", "handle", "pool", "report", "retired", "set_conditional", "streams")

    def __init__(self, device: int, handle: Any, pool: Any) -> None:
        self.handle = handle
        self.pool = pool
        self.retired: deque[Any] = deque()
        self.streams: dict[int, CudaStream] = {}  # by address
        self.fill, self.report = load_functions(device, CODE, (FILL, REPORT), self.retired)
        self.set_conditional: CudaFunction | None = None  # loaded when it is first needed


@final
class CudaStream(Handle):
    """A non-blocking stream. ``address`` is its ``CUstream``. ``spare`` keeps small blocks that were freed on the
    stream; it is None for another library's stream."""

    __slots__ = ("context", "core", "device", "handle", "spare")

    def __init__(self, device: int, context: CudaContext, stream: core.Stream) -> None:
        self.device = device
        self.context = context
        self.core = stream
        self.handle = stream.handle
        self.address = int(self.handle)
        self.spare: SpareBlocks | None = None


@final
class CudaEvent(Handle):
    """An event of one device. ``address`` is its ``CUevent``."""

    __slots__ = ("core", "device")

    def __init__(self, device: int, event: core.Event) -> None:
        self.device = device
        self.core = event
        self.address = int(event.handle)


def stream_options(priority: StreamPriority) -> core.StreamOptions | None:
    """Returns cuda.core's options for a stream, None for the defaults. The stream's context must be current.

    ``"high"`` is the greatest priority of the device. That is the default priority, 0, on a device without priorities.
    """
    if priority == "normal":
        return None
    error, _, greatest = driver.cuCtxGetStreamPriorityRange()
    check(error, "cuCtxGetStreamPriorityRange")
    return core.StreamOptions(priority=greatest)


def open_context(device: int) -> CudaContext:
    """Retains a device's primary context and leaves it current on the calling thread."""
    try:
        core.Device(device).set_current()
    except Exception as refusal:
        raise_core_failure(refusal, f"cuDevicePrimaryCtxRetain({device})")
    error, handle = driver.cuCtxGetCurrent()
    check(error, "cuCtxGetCurrent")
    error, pool = driver.cuDeviceGetDefaultMemPool(device)
    check(error, "cuDeviceGetDefaultMemPool")
    # By default the pool returns unused memory to the system at every synchronisation, and the next allocation has to
    # map it again.
    attribute = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    (error,) = driver.cuMemPoolSetAttribute(pool, attribute, driver.cuuint64_t(2**64 - 1))
    check(error, "cuMemPoolSetAttribute")
    return CudaContext(device, handle, pool)
