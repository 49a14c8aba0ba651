"""Launches kernels that call ``thread.wait_dependencies()``. Such a kernel may begin before the previous kernel in its
stream has ended.

CUDA calls this programmatic dependent launch. An attribute of the launch allows the overlap in its stream; a capture
turns the attribute into an edge of the graph. Neither changes the order with work other than kernels. The compiler has
checked that every thread waits before it accesses device memory and before it ends.
"""

from __future__ import annotations

from typing import Any, final

from cuda.bindings import driver

from oxide.driver.base import Dim3


@final
class DependentLaunch:
    """Launches one kernel, and lets each launch begin before the previous kernel in the stream has ended."""

    def __init__(self, handle: Any, places: tuple[int, ...]) -> None:
        """Takes the kernel. ``places`` are the offsets of the parameters in the packed structure."""
        self._handle = handle
        self.places = places
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        self._early: Any = attribute

    def launch(self, grid: Dim3, block: Dim3, shared_bytes: int, stream: Any, pointers: int) -> Any:
        """Launches the kernel with the array of pointers to its parameters at ``pointers``. Returns the driver's
        result."""
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes = shared_bytes
        config.hStream = stream
        config.attrs = [self._early]
        config.numAttrs = 1
        # Pointers to the parameters: during a capture, packed parameters were refused with another attribute
        # (``cooperative_launch.py``).
        return driver.cuLaunchKernelEx(config, self._handle, pointers, 0)[0]
