"""CUDA devices: their attributes, the PTX that they accept, their contexts, streams and events, and their access to one
another's memory."""

from __future__ import annotations

from collections import deque
from typing import Any, final

import cuda.core as core
from cuda.bindings import driver

from oxide.driver.base import StreamPriority, Target
from oxide.driver.cuda.errors import check, failure, raise_core_failure
from oxide.driver.cuda.kernels import CODE, FILL, REPORT
from oxide.driver.cuda.memory_blocks import SpareBlocks
from oxide.driver.cuda.modules import CudaFunction, load_functions
from oxide.host.core import Handle


def device_attribute(ordinal: int, name: str) -> int:
    """Returns an attribute, given its name without the prefix ``CU_DEVICE_ATTRIBUTE_``. Raises ``AttributeError`` for
    an unknown name."""
    attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
    if attribute is None:
        raise AttributeError(f"the CUDA driver has no device attribute {name}")
    error, found = driver.cuDeviceGetAttribute(attribute, ordinal)
    check(error, f"cuDeviceGetAttribute({name})")
    return int(found)


def driver_version() -> int:
    """Returns the newest version of CUDA that the driver supports: 12040 is CUDA 12.4."""
    error, version = driver.cuDriverGetVersion()
    check(error, "cuDriverGetVersion")
    return int(version)


def shown_version(version: int) -> str:
    """Returns a version of ``driver_version`` as users write it."""
    return f"{version // 1000}.{version % 1000 // 10}"


def memory_info(ordinal: int) -> tuple[int, int]:
    """Returns the free and the total memory of a device in bytes. Makes the device's context current."""
    core.Device(ordinal).set_current()
    error, free, total = driver.cuMemGetInfo()
    check(error, "cuMemGetInfo")
    return int(free), int(total)


def identifier(ordinal: int) -> str:
    """Returns the device's UUID, as ``nvidia-smi -L`` shows it."""
    return f"GPU-{core.Device(ordinal).uuid}"


# A driver accepts the PTX version that it was released with and all earlier versions. Code of a later version fails
# with CUDA_ERROR_UNSUPPORTED_PTX_VERSION. The tables are from
# https://docs.nvidia.com/cuda/parallel-thread-execution/#release-notes.

# oxide's code needs no later version, and code of an earlier version loads on more drivers.
_PTX_ENOUGH = 86

_PTX_OF_DRIVER = (
    (13000, 90),
    (12090, 88),
    (12080, 87),
    (12070, 86),
    (12050, 85),
    (12040, 84),
    (12030, 83),
    (12020, 82),
    (12010, 81),
    (12000, 80),
    (11080, 78),
)

_PTX_FOR_ARCH = {(10, 0): 86, (10, 1): 86, (12, 0): 87, (10, 3): 88, (12, 1): 88, (8, 8): 90, (11, 0): 90}


def ptx_target(major: int, minor: int, driver_version: int) -> Target:
    """Returns the target for a device's compute capability and a driver version (from ``driver_version``)."""
    of_driver = next((ptx for version, ptx in _PTX_OF_DRIVER if driver_version >= version), _PTX_OF_DRIVER[-1][1])
    ptx = max(min(of_driver, _PTX_ENOUGH), _PTX_FOR_ARCH.get((major, minor), 0))
    return Target("ptx", f"sm_{major}{minor}", f"+ptx{ptx}")


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


_GRANTED = (driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)

# Pairs of devices beyond the hardware's limit of peers, and pairs that a virtual machine isolates, are left to staging.
_STAGED = (driver.CUresult.CUDA_ERROR_TOO_MANY_PEERS, driver.CUresult.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)


def open_peer_access(reader: int, owner: int, owners: CudaContext) -> bool:
    """Lets the device ``reader`` access the memory of ``owner``, if the hardware can. Returns False if it cannot. The
    context of ``reader`` must be current. ``owners`` is the context of ``owner``.

    A direct copy needs two grants: one for the context, which covers ordinary allocations, and one for the device's
    memory pool, because its stream-ordered allocations ignore the first grant. Without these grants, a copy between
    devices is still correct: the driver stages it through the host.
    """
    error, can = driver.cuDeviceCanAccessPeer(reader, owner)
    check(error, "cuDeviceCanAccessPeer")
    if not can:
        return False
    (error,) = driver.cuCtxEnablePeerAccess(owners.handle, 0)
    if error in _STAGED:
        return False
    if error not in _GRANTED:
        raise failure(error, f"cuCtxEnablePeerAccess(cuda:{reader} to cuda:{owner})")
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = reader
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    check(driver.cuMemPoolSetAccess(owners.pool, [access], 1)[0], "cuMemPoolSetAccess")
    return True
