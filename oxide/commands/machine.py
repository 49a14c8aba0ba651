"""The machine as ``oxide doctor`` sees it: the NVIDIA driver and its GPUs through libcuda alone, and NVIDIA's tools."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from oxide.driver.cuda import probe

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_WHEELS = (Path("nvidia", "cu13", "bin"), Path("triton", "backends", "nvidia", "bin"))
_TOOLKITS = (Path("/usr/local/cuda/bin"), Path("/opt/cuda/bin"))


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU. ``number`` is libcuda's number of the device. ``memory`` is in bytes."""

    number: int
    name: str
    capability: tuple[int, int]
    memory: int


@dataclass(frozen=True, slots=True)
class CudaDriver:
    """The NVIDIA driver. ``cuda`` is the newest CUDA version that it supports, None without a driver. ``release`` is
    the driver's own version, "" if the system does not tell it. ``problem`` is the reason why no GPU can be used, None
    if one can."""

    cuda: tuple[int, int] | None
    release: str
    gpus: tuple[Gpu, ...]
    problem: str | None


def cuda_driver() -> CudaDriver:
    """Returns the driver and its GPUs, as libcuda reports them. Initialises the driver in this process, but creates no
    context. Never raises."""
    try:
        library = probe.libcuda()
    except OSError as error:
        return CudaDriver(None, _release(), (), f"{probe.LIBRARY} cannot be loaded ({error})")
    number = ctypes.c_int()
    cuda = None
    if library.cuDriverGetVersion(ctypes.byref(number)) == 0:
        cuda = number.value // 1000, number.value % 1000 // 10
    problem = probe.unavailable_reason()
    return CudaDriver(cuda, _release(), () if library.cuInit(0) else tuple(_gpus(library)), problem)


def visible_gpus(count: int) -> list[str]:
    """Returns the first ``count`` GPUs that this process may see, as ``CUDA_VISIBLE_DEVICES`` names them."""
    named = [each.strip() for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


def nvidia_cards(devices: Path = Path("/sys/bus/pci/devices")) -> int:
    """Returns how many display devices of NVIDIA the PCI bus has, whether there is a driver for them or not."""
    found = 0
    for folder in devices.glob("*"):
        try:
            vendor, kind = ((folder / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        found += vendor == "0x10de" and kind.startswith("0x03")
    return found


def find_tool(name: str) -> str | None:
    """Returns the path of one of NVIDIA's tools. Searches PATH, CUDA_HOME and CUDA_PATH, the installed packages, and
    the usual places of a toolkit. Returns None if the tool is in none of them."""
    if found := shutil.which(name):
        return found
    folders = [Path(os.environ[each], "bin") for each in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(each)]
    folders += [Path(entry) / wheel for entry in sys.path if entry for wheel in _WHEELS]
    return next((at for folder in [*folders, *_TOOLKITS] if (at := shutil.which(name, path=str(folder)))), None)


def _gpus(library: ctypes.CDLL) -> list[Gpu]:
    count = ctypes.c_int()
    if library.cuDeviceGetCount(ctypes.byref(count)):
        return []
    found = []
    for number in range(count.value):
        device, memory, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(100)
        capability = ctypes.c_int(), ctypes.c_int()
        library.cuDeviceGet(ctypes.byref(device), number)
        library.cuDeviceGetName(name, len(name), device)
        library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        for value, attribute in zip(capability, (_MAJOR, _MINOR), strict=True):
            library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        found.append(Gpu(number, name.value.decode(), (capability[0].value, capability[1].value), memory.value))
    return found


def _release(file: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Returns the version of NVIDIA's module in the Linux kernel, such as 580.159.04; "" if it is unknown."""
    try:
        found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", file.read_text())
    except OSError:
        return ""
    return found[0] if found else ""
