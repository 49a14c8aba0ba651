"""Picks the PTX version that a device's driver accepts.

A driver accepts the PTX version that it was released with and all earlier versions. Code of a later version fails with
CUDA_ERROR_UNSUPPORTED_PTX_VERSION. The compiler needs the version as an LLVM feature (``+ptx86``). The tables below
are from https://docs.nvidia.com/cuda/parallel-thread-execution/#release-notes.
"""

from __future__ import annotations

from oxide.driver.base import Target

# oxide's code needs no later version, and code of an earlier version loads on more drivers.
_PTX_ENOUGH = 86

_PTX_OF_DRIVER = (
    (13000, 90),
    (12090, 88),
    (12080, 87),
    (12070, 86),
    (12050, 85),
    (12040, 84),
    (12030, 83),
    (12020, 82),
    (12010, 81),
    (12000, 80),
    (11080, 78),
)

_PTX_FOR_ARCH = {(10, 0): 86, (10, 1): 86, (12, 0): 87, (10, 3): 88, (12, 1): 88, (8, 8): 90, (11, 0): 90}


def ptx_target(major: int, minor: int, driver_version: int) -> Target:
    """Returns the target for a device's compute capability and a driver version (from ``cuDriverGetVersion``: 13000 is
    CUDA 13.0)."""
    of_driver = next((ptx for version, ptx in _PTX_OF_DRIVER if driver_version >= version), _PTX_OF_DRIVER[-1][1])
    ptx = max(min(of_driver, _PTX_ENOUGH), _PTX_FOR_ARCH.get((major, minor), 0))
    return Target("ptx", f"sm_{major}{minor}", f"+ptx{ptx}")
