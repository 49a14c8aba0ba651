"""``Kernel.resources()``: a kernel's use of the resources of the default device."""

from __future__ import annotations

import math

from oxide.compiler.specialization import Specialization
from oxide.driver.base import KernelResources
from oxide.errors import DeviceError
from oxide.runtime.awaiting.loading import loaded_function
from oxide.runtime.device.runtime import current_runtime
from oxide.runtime.launching.launch_config import LaunchConfig

__all__ = ["KernelResources", "resources_of"]

_USUAL_BLOCK = 256


def resources_of(
    special: Specialization, block: int | tuple[int, ...] | None, shared_mem_bytes: int
) -> KernelResources:
    """Returns the result of ``special.resources(block, shared_mem_bytes=…)``."""
    config = LaunchConfig(1, block or special.description.default_block or _USUAL_BLOCK, shared_mem_bytes)
    device = current_runtime().default_device
    function = loaded_function(special, device)
    code = special.code(device.info.target)
    try:
        return device.driver.resources(function, code, math.prod(config.block), config.shared_mem_bytes)
    except DeviceError as error:
        if type(error) is not DeviceError:
            raise  # CUDA's own message names the call
        raise DeviceError(f"kernel {special.description.name}: {error}") from None
