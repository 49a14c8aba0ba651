"""oxide: GPU kernels written in Python, run as an async graph of operations.

``from oxide import kernel, h2d, …``: everything public is here. See docs/ for the book.
"""

from oxide.compiler.function import device
from oxide.compiler.kernel import Kernel, kernel
from oxide.device import thread
from oxide.device.slices import DisjointSlice, Ref, Slice
from oxide.device.thread import ThreadIndex
from oxide.device.types import bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from oxide.errors import (
    ArgumentError,
    BoundsError,
    CompileError,
    DeviceError,
    DeviceLostError,
    DriverError,
    KernelAssertionError,
    KernelFault,
    LaunchError,
    NoEventLoopError,
    OperationCancelledError,
    OutOfMemoryError,
    OxideError,
)
from oxide.runtime import reclaim
from oxide.runtime.arc import Arc
from oxide.runtime.combinators import shared, unzip, zip
from oxide.runtime.context import Device, devices, init_device_contexts
from oxide.runtime.future import DeviceFuture
from oxide.runtime.launch import KernelLaunch, LaunchConfig
from oxide.runtime.memory import DeviceBox
from oxide.runtime.operation import DeviceOperation, value, with_context
from oxide.runtime.scheduling import SchedulingPolicy, SingleStream, StreamPoolRoundRobin
from oxide.runtime.statistics import Statistics, StreamStatistics, statistics
from oxide.runtime.stream import Event, Stream
from oxide.runtime.submission import ExecutionContext
from oxide.runtime.tasks import JoinHandle, as_completed, gather, spawn
from oxide.runtime.transfers import arange, d2h, dup, full, h2d, memcpy, ones, randn, zeros

__version__ = "0.1.0"

__all__ = [
    "Arc",
    "ArgumentError",
    "BoundsError",
    "CompileError",
    "Device",
    "DeviceBox",
    "DeviceError",
    "DeviceFuture",
    "DeviceLostError",
    "DeviceOperation",
    "DisjointSlice",
    "DriverError",
    "Event",
    "ExecutionContext",
    "JoinHandle",
    "Kernel",
    "KernelAssertionError",
    "KernelFault",
    "KernelLaunch",
    "LaunchConfig",
    "LaunchError",
    "NoEventLoopError",
    "OperationCancelledError",
    "OutOfMemoryError",
    "OxideError",
    "Ref",
    "SchedulingPolicy",
    "SingleStream",
    "Slice",
    "Statistics",
    "Stream",
    "StreamPoolRoundRobin",
    "StreamStatistics",
    "ThreadIndex",
    "arange",
    "as_completed",
    "bf16",
    "bool_",
    "d2h",
    "device",
    "devices",
    "dup",
    "f16",
    "f32",
    "f64",
    "full",
    "gather",
    "h2d",
    "i8",
    "i16",
    "i32",
    "i64",
    "init_device_contexts",
    "kernel",
    "memcpy",
    "ones",
    "randn",
    "reclaim",
    "shared",
    "spawn",
    "statistics",
    "thread",
    "u8",
    "u16",
    "u32",
    "u64",
    "unzip",
    "value",
    "with_context",
    "zeros",
    "zip",
]
