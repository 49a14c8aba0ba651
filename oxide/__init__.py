"""oxide: GPU kernels written in Python, run as an async graph of operations.

``from oxide import kernel, h2d, …``: everything public is here. See docs/ for the book.
"""

from typing import TYPE_CHECKING, Any

from oxide.compiler.function import device
from oxide.compiler.kernel import Kernel, kernel
from oxide.device import atomic, thread, warp
from oxide.device.arrays import Array
from oxide.device.atomic import AtomicSlice
from oxide.device.shared import DynamicSharedArray, LocalArray, SharedArray
from oxide.device.slices import DisjointSlice, Ref, Slice
from oxide.device.thread import ThreadIndex
from oxide.device.types import bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from oxide.device.unroll import unroll
from oxide.errors import (
    ArgumentError,
    BarrierError,
    BoundsError,
    CompileError,
    DeviceError,
    DeviceLostError,
    DriverError,
    GraphError,
    KernelAssertionError,
    KernelFault,
    LaunchError,
    NoEventLoopError,
    OperationCancelledError,
    OrderingError,
    OutOfMemoryError,
    OxideError,
    SanitizerError,
)
from oxide.runtime import reclaim
from oxide.runtime.arc import Arc
from oxide.runtime.combinators import shared, unzip, zip
from oxide.runtime.context import Device, devices, init_device_contexts
from oxide.runtime.future import DeviceFuture
from oxide.runtime.launch import KernelLaunch
from oxide.runtime.launch_config import LaunchConfig
from oxide.runtime.memory import DeviceBox
from oxide.runtime.operation import DeviceOperation, value, with_context
from oxide.runtime.pinned import pinned_empty
from oxide.runtime.placement import policy_of
from oxide.runtime.policy import SchedulingPolicy
from oxide.runtime.scheduling import SingleStream, StreamPoolRoundRobin
from oxide.runtime.statistics import Statistics, StreamStatistics, statistics
from oxide.runtime.stream import Event, Stream
from oxide.runtime.submission import ExecutionContext
from oxide.runtime.tasks import JoinHandle, as_completed, gather, spawn
from oxide.runtime.transfers import d2h, dup, empty, full, h2d, memcpy, ones, zeros

if TYPE_CHECKING:
    from oxide import numba_cuda
    from oxide.device import debug, fast, intrinsics
    from oxide.device.tiles import MatrixTileRef, RowMajorTiles, TileRef, Tiles
    from oxide.device.views import MatrixView, TileView, VectorView, zip_exact
    from oxide.runtime.graph import CudaGraph, GraphScope
    from oxide.runtime.interop import from_cuda_array_interface, from_dlpack
    from oxide.runtime.numbers import arange, randn
    from oxide.runtime.peer import to_device
    from oxide.runtime.preparing import prepare
    from oxide.runtime.resources import KernelResources

__version__ = "0.1.0"

_LATER = {
    "CudaGraph": "runtime.graph",
    "GraphScope": "runtime.graph",
    "KernelResources": "runtime.resources",
    "debug": "device.debug",
    "MatrixTileRef": "device.tiles",
    "MatrixView": "device.views",
    "RowMajorTiles": "device.tiles",
    "TileRef": "device.tiles",
    "TileView": "device.views",
    "Tiles": "device.tiles",
    "VectorView": "device.views",
    "arange": "runtime.numbers",
    "fast": "device.fast",
    "from_cuda_array_interface": "runtime.interop",
    "from_dlpack": "runtime.interop",
    "intrinsics": "device.intrinsics",
    "numba_cuda": "numba_cuda",
    "prepare": "runtime.preparing",
    "randn": "runtime.numbers",
    "to_device": "runtime.peer",
    "zip_exact": "device.views",
}
"""Names that few programs use, and the modules they are loaded from at first use: a tenth of the import's own time."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'oxide' has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f"oxide.{_LATER[name]}")
    found = globals()[name] = module if _LATER[name] in (name, f"device.{name}") else getattr(module, name)
    return found


__all__ = [
    "Arc",
    "ArgumentError",
    "Array",
    "AtomicSlice",
    "BarrierError",
    "BoundsError",
    "CompileError",
    "CudaGraph",
    "Device",
    "DeviceBox",
    "DeviceError",
    "DeviceFuture",
    "DeviceLostError",
    "DeviceOperation",
    "DisjointSlice",
    "DriverError",
    "DynamicSharedArray",
    "Event",
    "ExecutionContext",
    "GraphError",
    "GraphScope",
    "JoinHandle",
    "Kernel",
    "KernelAssertionError",
    "KernelFault",
    "KernelLaunch",
    "KernelResources",
    "LaunchConfig",
    "LaunchError",
    "LocalArray",
    "MatrixTileRef",
    "MatrixView",
    "NoEventLoopError",
    "OperationCancelledError",
    "OrderingError",
    "OutOfMemoryError",
    "OxideError",
    "Ref",
    "RowMajorTiles",
    "SanitizerError",
    "SchedulingPolicy",
    "SharedArray",
    "SingleStream",
    "Slice",
    "Statistics",
    "Stream",
    "StreamPoolRoundRobin",
    "StreamStatistics",
    "ThreadIndex",
    "TileRef",
    "TileView",
    "Tiles",
    "VectorView",
    "arange",
    "as_completed",
    "atomic",
    "bf16",
    "bool_",
    "d2h",
    "debug",
    "device",
    "devices",
    "dup",
    "empty",
    "f16",
    "f32",
    "f64",
    "fast",
    "from_cuda_array_interface",
    "from_dlpack",
    "full",
    "gather",
    "h2d",
    "i8",
    "i16",
    "i32",
    "i64",
    "init_device_contexts",
    "intrinsics",
    "kernel",
    "memcpy",
    "numba_cuda",
    "ones",
    "pinned_empty",
    "policy_of",
    "prepare",
    "randn",
    "reclaim",
    "shared",
    "spawn",
    "statistics",
    "thread",
    "to_device",
    "u8",
    "u16",
    "u32",
    "u64",
    "unroll",
    "unzip",
    "value",
    "warp",
    "with_context",
    "zeros",
    "zip",
    "zip_exact",
]
