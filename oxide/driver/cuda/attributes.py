"""A GPU's attributes and free memory by the driver's names, for programs that ask as numba.cuda lets them."""

from __future__ import annotations

from cuda.bindings import driver

from oxide.driver.cuda.errors import check


def device_attribute(ordinal: int, name: str) -> int:
    """Returns an attribute by its name without ``CU_DEVICE_ATTRIBUTE_``. Raises ``AttributeError`` for an unknown
    one."""
    attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
    if attribute is None:
        raise AttributeError(f"the CUDA driver has no device attribute {name}")
    error, device = driver.cuDeviceGet(ordinal)
    check(error, "cuDeviceGet")
    error, found = driver.cuDeviceGetAttribute(attribute, device)
    check(error, "cuDeviceGetAttribute")
    return int(found)


def memory_info(ordinal: int) -> tuple[int, int]:
    """Returns the free and the total memory of a device in bytes."""
    error, device = driver.cuDeviceGet(ordinal)
    check(error, "cuDeviceGet")
    error, context = driver.cuDevicePrimaryCtxRetain(device)
    check(error, "cuDevicePrimaryCtxRetain")
    try:
        (error,) = driver.cuCtxPushCurrent(context)
        check(error, "cuCtxPushCurrent")
        try:
            error, free, total = driver.cuMemGetInfo()
            check(error, "cuMemGetInfo")
            return int(free), int(total)
        finally:
            driver.cuCtxPopCurrent()
    finally:
        driver.cuDevicePrimaryCtxRelease(device)
