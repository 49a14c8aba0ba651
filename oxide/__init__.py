"""oxide: GPU kernels written in Python, run as an async graph of operations.

``from oxide import kernel, h2d, …``: this module exports every public name. See docs/ for the book.
"""

from os import environ as _environ
from typing import TYPE_CHECKING, Any

from oxide.host import uninterrupted as _uninterrupted  # noqa: F401  first, as it imports numpy

# isort: split
from oxide.compiler.signature.device_function import device
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
    Overloaded,
    OxideError,
    SanitizerError,
    TraceError,
)
from oxide.language import atomic, thread, warp
from oxide.language.arrays import Array
from oxide.language.atomic import AtomicSlice
from oxide.language.shared import DynamicSharedArray, LocalArray, SharedArray
from oxide.language.slices import (
    AtomicSlice2,
    AtomicSlice3,
    DisjointSlice,
    DisjointSlice2,
    DisjointSlice3,
    DisjointSlice4,
    DisjointSlice5,
    Ref,
    Slice,
    Slice2,
    Slice3,
    Slice4,
    Slice5,
)
from oxide.language.structures import dtype_of
from oxide.language.thread import ThreadIndex
from oxide.language.types import (
    bf16,
    bool_,
    c64,
    c128,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from oxide.language.unroll import unroll
from oxide.language.vectors import Vec2, Vec3, Vec4
from oxide.runtime.awaiting.future import DeviceFuture
from oxide.runtime.devices.runtime import Device, SchedulingPolicy, devices, init_device_contexts
from oxide.runtime.devices.scheduling import SingleStream, StreamPoolRoundRobin, policy_of
from oxide.runtime.devices.statistics import Statistics, StreamStatistics, statistics
from oxide.runtime.launching.decorator import LaunchableKernel as Kernel
from oxide.runtime.launching.decorator import kernel
from oxide.runtime.launching.launch import KernelLaunch
from oxide.runtime.launching.launch_config import LaunchConfig
from oxide.runtime.memory import reclaim
from oxide.runtime.memory.memory import Arc, DeviceBox
from oxide.runtime.memory.memory import sharing as _sharing
from oxide.runtime.operations.combinators import shared, unzip
from oxide.runtime.operations.combinators import zip as zip  # not in __all__: a star import must not replace Python's
from oxide.runtime.operations.new_boxes import arange, empty, full, ones, pinned_empty, randn, zeros
from oxide.runtime.operations.operation import DeviceOperation, value, with_context
from oxide.runtime.operations.tasks import JoinHandle, as_completed, gather, prepare, spawn
from oxide.runtime.operations.transfers import d2h, dup, h2d, memcpy, to_device
from oxide.runtime.ordering.stream import Event, Stream
from oxide.runtime.submission.submission import ExecutionContext

if TYPE_CHECKING:
    from oxide import collectives, numba_cuda, tile
    from oxide import ray as ray  # not in __all__: a star import must not replace ray itself
    from oxide.driver.base import KernelResources
    from oxide.interop import torch as torch  # not in __all__: a star import must not replace torch itself
    from oxide.interop.foreign import ForeignModule, In, InOut, Out, module
    from oxide.interop.sharing import from_cuda_array_interface, from_dlpack
    from oxide.language import debug, fast, intrinsics, tensor
    from oxide.language import random as random  # not in __all__: a star import must not replace Python's
    from oxide.language.tiles import MatrixTileRef, RowMajorTiles, RowRef, Rows, TileRef, Tiles
    from oxide.language.views import TileView, VectorView, zip_exact
    from oxide.runtime.launching.prebuilt import load
    from oxide.runtime.memory.addresses import DevicePointer
    from oxide.runtime.operations.captured_graph import input as input  # not in __all__, for the same reason as zip
    from oxide.runtime.operations.conditional import cond, while_loop
    from oxide.runtime.operations.graph import CudaGraph, GraphInstances, GraphScope
    from oxide.runtime.operations.planning import planned
    from oxide.tracing.profiles import Profile, profile
    from oxide.tracing.traces import Trace, trace

__version__ = "0.1.0"

_LATER = {
    "ForeignModule": "interop.foreign",
    "In": "interop.foreign",
    "InOut": "interop.foreign",
    "Out": "interop.foreign",
    "module": "interop.foreign",
    "tile": "tile",
    "CudaGraph": "runtime.operations.graph",
    "DevicePointer": "runtime.memory.addresses",
    "GraphInstances": "runtime.operations.graph",
    "GraphScope": "runtime.operations.graph",
    "KernelResources": "driver.base",
    "cond": "runtime.operations.conditional",
    "debug": "language.debug",
    "MatrixTileRef": "language.tiles",
    "Profile": "tracing.profiles",
    "RowMajorTiles": "language.tiles",
    "RowRef": "language.tiles",
    "Rows": "language.tiles",
    "TileRef": "language.tiles",
    "TileView": "language.views",
    "Tiles": "language.tiles",
    "Trace": "tracing.traces",
    "VectorView": "language.views",
    "collectives": "collectives",
    "fast": "language.fast",
    "from_cuda_array_interface": "interop.sharing",
    "from_dlpack": "interop.sharing",
    "input": "runtime.operations.captured_graph",
    "intrinsics": "language.intrinsics",
    "load": "runtime.launching.prebuilt",
    "numba_cuda": "numba_cuda",
    "planned": "runtime.operations.planning",
    "profile": "tracing.profiles",
    "random": "language.random",
    "ray": "ray",
    "tensor": "language.tensor",
    "torch": "interop.torch",
    "trace": "tracing.traces",
    "while_loop": "runtime.operations.conditional",
    "zip_exact": "language.views",
}
"""Maps rarely used names to the modules that they are loaded from at first use. This saves a tenth of the package's own
import time."""


def _share() -> Any:
    from oxide.interop import sharing as interop

    return interop


_sharing.load = _share


def __getattr__(name: str) -> Any:
    import importlib
    import sys

    if name not in _LATER:
        left = sys.modules.get(f"oxide.{name}")  # an interrupted import leaves it to a new package object
        if left is not None:
            return left
        raise AttributeError(f"module 'oxide' has no attribute {name!r}")

    module = importlib.import_module(f"oxide.{_LATER[name]}")
    modules = (name, f"language.{name}", f"interop.{name}")
    found = globals()[name] = module if _LATER[name] in modules else getattr(module, name)
    return found


__all__ = [
    "Arc",
    "ArgumentError",
    "Array",
    "AtomicSlice",
    "AtomicSlice2",
    "AtomicSlice3",
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
    "DisjointSlice2",
    "DisjointSlice3",
    "DisjointSlice4",
    "DisjointSlice5",
    "DevicePointer",
    "DriverError",
    "DynamicSharedArray",
    "Event",
    "ExecutionContext",
    "ForeignModule",
    "GraphError",
    "GraphInstances",
    "GraphScope",
    "In",
    "InOut",
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
    "NoEventLoopError",
    "OperationCancelledError",
    "OrderingError",
    "Out",
    "OutOfMemoryError",
    "Overloaded",
    "OxideError",
    "Profile",
    "Ref",
    "RowMajorTiles",
    "RowRef",
    "Rows",
    "SanitizerError",
    "SchedulingPolicy",
    "SharedArray",
    "SingleStream",
    "Slice",
    "Slice2",
    "Slice3",
    "Slice4",
    "Slice5",
    "Statistics",
    "Stream",
    "StreamPoolRoundRobin",
    "StreamStatistics",
    "ThreadIndex",
    "TileRef",
    "TileView",
    "Tiles",
    "Trace",
    "TraceError",
    "Vec2",
    "Vec3",
    "Vec4",
    "VectorView",
    "arange",
    "as_completed",
    "atomic",
    "bf16",
    "bool_",
    "c64",
    "c128",
    "collectives",
    "cond",
    "d2h",
    "debug",
    "device",
    "devices",
    "dtype_of",
    "dup",
    "empty",
    "f8e4m3",
    "f8e5m2",
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
    "load",
    "memcpy",
    "module",
    "numba_cuda",
    "ones",
    "pinned_empty",
    "policy_of",
    "planned",
    "prepare",
    "profile",
    "randn",
    "reclaim",
    "shared",
    "spawn",
    "statistics",
    "tensor",
    "thread",
    "tile",
    "to_device",
    "trace",
    "u8",
    "u16",
    "u32",
    "u64",
    "unroll",
    "unzip",
    "value",
    "warp",
    "while_loop",
    "with_context",
    "zeros",
    "zip_exact",
]

if _environ.get("OXIDE_TRACE"):
    from oxide.tracing.traces import trace_program

    trace_program(_environ["OXIDE_TRACE"])
