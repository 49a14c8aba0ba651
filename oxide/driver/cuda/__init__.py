"""The CUDA devices behind the Driver protocol. ``CudaDriver`` is imported on demand, as it imports
``cuda.bindings``."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .driver import CudaDriver as CudaDriver


def __getattr__(name: str) -> Any:
    if name != "CudaDriver":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .driver import CudaDriver

    return CudaDriver
