"""Reads a GPU's attributes, its free memory, its identifier and the driver's version from the driver."""

from __future__ import annotations

import cuda.core as core
from cuda.bindings import driver

from oxide.driver.cuda.errors import check


def device_attribute(ordinal: int, name: str) -> int:
    """Returns an attribute, given its name without the prefix ``CU_DEVICE_ATTRIBUTE_``. Raises ``AttributeError`` for
    an unknown name."""
    attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
    if attribute is None:
        raise AttributeError(f"the CUDA driver has no device attribute {name}")
    error, found = driver.cuDeviceGetAttribute(attribute, ordinal)
    check(error, f"cuDeviceGetAttribute({name})")
    return int(found)


def driver_version() -> tuple[int, int]:
    """Returns the newest version of CUDA that the driver supports, as major and minor."""
    error, version = driver.cuDriverGetVersion()
    check(error, "cuDriverGetVersion")
    return version // 1000, version % 1000 // 10


def memory_info(ordinal: int) -> tuple[int, int]:
    """Returns the free and the total memory of a device in bytes. Makes the device's context current."""
    core.Device(ordinal).set_current()
    error, free, total = driver.cuMemGetInfo()
    check(error, "cuMemGetInfo")
    return int(free), int(total)


def identifier(ordinal: int) -> str:
    """Returns the device's UUID, as ``nvidia-smi -L`` shows it."""
    return f"GPU-{core.Device(ordinal).uuid}"
