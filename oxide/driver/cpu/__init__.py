"""The CPU device: a real device behind the Driver protocol."""

from .driver import CpuDriver

__all__ = ["CpuDriver"]
