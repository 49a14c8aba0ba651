"""numba.cuda's devices, contexts and driver, which stand for oxide's devices. Each thread has a current device."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import oxide
from oxide.interop.numba_cuda import streams
from oxide.interop.numba_cuda.streams import current, state

MemoryInfo = namedtuple("MemoryInfo", "free,total")


# The driver's attributes as the CPU device reports them: the limits of the code that oxide generates for it.
_ATTRIBUTES = {
    "WARP_SIZE": 32,
    "MAX_SHARED_MEMORY_PER_BLOCK": 48 * 1024,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 * 1024,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 228 * 1024,
    "TOTAL_CONSTANT_MEMORY": 64 * 1024,
    "MAX_REGISTERS_PER_BLOCK": 65536,
    "MAX_THREADS_PER_MULTI_PROCESSOR": 2048,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "CAN_MAP_HOST_MEMORY": 1,
    "UNIFIED_ADDRESSING": 1,
    "MANAGED_MEMORY": 1,
    "CONCURRENT_KERNELS": 1,
    "CONCURRENT_MANAGED_ACCESS": 1,
    "COOPERATIVE_LAUNCH": 1,
    "KERNEL_EXEC_TIMEOUT": 0,
    "TCC_DRIVER": 0,
    "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": 2,
    "PCI_DEVICE_ID": 0,
    "PCI_BUS_ID": 0,
    "ASYNC_ENGINE_COUNT": 1,
    "CLOCK_RATE": 1,
    "INTEGRATED": 0,
}


class Device:
    """A device with the attributes that numba.cuda gives it. Upper-case names are the driver's attributes:
    ``WARP_SIZE``, ``MULTIPROCESSOR_COUNT``, ``MAX_GRID_DIM_X`` and so on."""

    def __init__(self, device: oxide.Device) -> None:
        self.oxide_device = device
        self.id = device.id

    @property
    def name(self) -> str:
        """Returns the device's name."""
        return self.oxide_device.name

    @property
    def uuid(self) -> str:
        """Returns the device's UUID; for a CPU device, a made-up one that is unique in this process."""
        if self.oxide_device.kind == "cuda":
            from oxide.driver.cuda.contexts import identifier

            return identifier(self.id)
        return f"GPU-00000000-0000-0000-0000-{self.id:012x}"

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Returns the compute capability. For the CPU device this is (9, 0), for which ``k.ptx()`` compiles by
        default."""
        target = self.oxide_device.info.target
        if target.kind != "ptx":
            return (9, 0)
        digits = target.arch.removeprefix("sm_").rstrip("af")
        return int(digits[:-1]), int(digits[-1])

    supports_float16 = supports_bfloat16 = True

    @property
    def supports_fp8(self) -> bool:
        """Returns whether the device has instructions for 8-bit floats."""
        return self.compute_capability >= (8, 9)

    def __getattr__(self, name: str) -> Any:
        if not name.isupper():
            raise AttributeError(f"a device has no attribute {name}")
        info = self.oxide_device.info
        known = {
            "MULTIPROCESSOR_COUNT": info.multiprocessors,
            "MAX_THREADS_PER_BLOCK": info.max_threads_per_block,
            **{f"MAX_BLOCK_DIM_{axis}": size for axis, size in zip("XYZ", info.max_block, strict=True)},
            **{f"MAX_GRID_DIM_{axis}": size for axis, size in zip("XYZ", info.max_grid, strict=True)},
        }
        if name in known:
            return known[name]
        if self.oxide_device.kind == "cuda":
            from oxide.driver.cuda.contexts import device_attribute

            return device_attribute(self.id, name)
        if name in _ATTRIBUTES:
            return _ATTRIBUTES[name]
        raise AttributeError(f"the CPU device has no attribute {name}")

    def get_primary_context(self) -> Context:
        """Returns the device's context."""
        return Context(self)

    def reset(self) -> None:
        """Waits for the device's work. Its memory is freed as arrays are dropped."""
        self.get_primary_context().synchronize()

    release_primary_context = reset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.oxide_device is self.oxide_device

    def __hash__(self) -> int:
        return hash(self.oxide_device)

    def __repr__(self) -> str:
        return f"<CUDA device {self.id} '{self.name}'>"


@contextlib.contextmanager
def defer_cleanup() -> Iterator[None]:
    """Does nothing: oxide frees memory without waiting."""
    yield


class Deallocations:
    """numba.cuda's list of memory to be freed later. It is always empty, as oxide frees memory without waiting."""

    def clear(self) -> None:
        """Does nothing."""

    def __len__(self) -> int:
        return 0

    disable = staticmethod(defer_cleanup)


class Context:
    """A device's context; as a context manager, it makes the device current."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.deallocations = Deallocations()
        self._outer: list[int] = []

    @property
    def id(self) -> int:
        """Returns the device's number."""
        return self.device.id

    @property
    def _device(self) -> Device:  # some packages read the device's name from this attribute
        return self.device

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Returns the device's compute capability."""
        return self.device.compute_capability

    def get_memory_info(self) -> MemoryInfo:
        """Returns the free and the total memory in bytes. On a GPU these are the driver's figures. On the CPU device,
        the free memory is the total minus the memory of the existing boxes."""
        device = self.device.oxide_device
        if device.kind == "cuda":
            from oxide.driver.cuda.contexts import memory_info

            return MemoryInfo(*memory_info(device.id))
        total = device.info.memory
        used = sum(nbytes for nbytes, *_ in list(device.live.values()))
        return MemoryInfo(max(total - used, 0), total)

    def synchronize(self) -> None:
        """Blocks the thread until the device's work has run."""
        with self:
            streams.synchronize()

    def get_default_stream(self) -> Any:
        """Returns the device's default stream."""
        with self:
            return streams.default_stream()

    def create_stream(self) -> Any:
        """Returns a new stream of the device."""
        with self:
            return streams.stream()

    reset = synchronize
    defer_cleanup = staticmethod(defer_cleanup)

    def push(self) -> None:
        """Makes the device current until ``pop``."""
        self._outer.append(getattr(state, "number", 0))
        state.number = self.device.id

    def pop(self) -> None:
        """Makes current again the device that was current before ``push``."""
        state.number = self._outer.pop()

    def __enter__(self) -> Context:
        self.push()
        return self

    def __exit__(self, *_: object) -> None:
        self.pop()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotImplementedError(
            f"context.{name}: oxide has no such method of numba.cuda's contexts; device memory, modules and peer "
            "access are made by its own runtime"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and other.device == self.device

    def __hash__(self) -> int:
        return hash(self.device)


class DeviceList:
    """The list of devices. ``gpus[0]`` is the first device's context; as a context manager it makes the device
    current."""

    def __getitem__(self, number: int) -> Context:
        there = oxide.devices()
        try:
            return Context(Device(there[number]))
        except IndexError:
            raise IndexError(f"there is no device {number}; there are {len(there)}, numbered from 0") from None

    @property
    def lst(self) -> list[Context]:
        """Returns the contexts of all devices."""
        return [self[number] for number in range(len(self))]

    @property
    def current(self) -> Context:
        """Returns the current device's context."""
        return current_context()

    def __iter__(self) -> Iterator[Context]:
        return iter(self.lst)

    def __len__(self) -> int:
        return len(oxide.devices())

    def __repr__(self) -> str:
        return ", ".join(repr(each.device) for each in self)


gpus = DeviceList()


def list_devices() -> DeviceList:
    """Returns the devices."""
    return gpus


def select_device(device_id: int) -> Context:
    """Makes a device current in the calling thread, and returns its context. Raises ``IndexError`` for a number that no
    device has."""
    context = gpus[device_id]
    state.number = context.id
    return context


def get_current_device() -> Device:
    """Returns the current device."""
    return Device(current())


def current_context(devnum: int | None = None) -> Context:
    """Returns the context of a device, by default of the current one."""
    return Context(Device(current())) if devnum is None else gpus[devnum]


get_context = current_context


def require_context(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that sets up the devices and then calls ``fn``."""

    @functools.wraps(fn)
    def with_devices(*args: Any, **kws: Any) -> Any:
        current()
        return fn(*args, **kws)

    return with_devices


class Driver:
    """numba.cuda's object for the CUDA driver. Functions of the driver's API are numba-cuda's own; without a GPU there
    are none."""

    is_available = is_initialized = True
    initialization_error = None

    def get_version(self) -> tuple[int, int]:
        """Returns the newest version of CUDA that the driver supports, as major and minor. For the CPU device this is
        (12, 7), whose PTX ``k.ptx()`` has."""
        if current().kind == "cuda":
            from oxide.driver.cuda.contexts import driver_version

            major, rest = divmod(driver_version(), 1000)
            return major, rest // 10
        return (12, 7)

    def get_device_count(self) -> int:
        """Returns the number of devices."""
        return len(gpus)

    def get_device(self, devnum: int = 0) -> Device:
        """Returns the device with a number. Raises ``IndexError`` for a number that no device has."""
        return gpus[devnum].device

    def list_devices(self) -> list[Device]:
        """Returns all devices."""
        return [context.device for context in gpus]

    def reset(self) -> None:
        """Waits for the work of all devices."""
        close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if current().kind != "cuda":
            raise NotImplementedError(f"driver.{name}: the CPU device has no CUDA driver")
        return getattr(importlib.import_module("numba.cuda.cudadrv.devices").driver, name)  # which install() leaves


driver = Driver()


class Runtime:
    """numba.cuda's object for the CUDA runtime. oxide needs none: the driver compiles its PTX."""

    def get_version(self) -> tuple[int, int]:
        """Returns the driver's version."""
        return driver.get_version()

    def is_supported_version(self) -> bool:
        """Returns True."""
        return True


runtime = Runtime()


def close() -> None:
    """Waits for the work of all devices and makes the first device current."""
    for context in gpus:
        context.synchronize()
    state.number = 0


def is_available() -> bool:
    """Returns whether there is a device. This is always so: without a GPU there is the CPU device."""
    return len(oxide.devices()) > 0


def is_supported_version() -> bool:
    """Returns True."""
    return True


def is_fp8_supported() -> bool:
    """Returns whether the current device has instructions for 8-bit floats."""
    return get_current_device().supports_fp8


def cuda_error() -> None:
    """Returns None. An error in setting up the devices is raised at once, not kept for this function."""
    return


def detect() -> bool:
    """Prints the devices. Returns whether there is at least one."""
    print(f"Found {len(gpus)} CUDA devices")
    for context in gpus:
        device = context.device
        print(f"id {device.id}    {device.name!r:>20}                              [SUPPORTED]")
        major, minor = device.compute_capability
        print(f"{'Compute Capability':>40}: {major}.{minor}")
        print(f"{'oxide device':>40}: {device.oxide_device.label}")
    print("Summary:")
    print(f"\t{len(gpus)}/{len(gpus)} devices are supported")
    return len(gpus) > 0
