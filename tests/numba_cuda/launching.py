"""Launches a kernel on NumPy arrays and gives them back as the kernel left them, whichever device the tests run on."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide import DeviceBox, Kernel, LaunchConfig, d2h, h2d


def launch(kernel: Kernel, grid: Any, block: Any, *args: Any, shared: int = 0) -> Any:
    """The arrays among the arguments, after the launch; the array itself if there is one alone."""
    passed = [h2d(arg).sync() if isinstance(arg, np.ndarray | np.void) else arg for arg in args]
    kernel[LaunchConfig(grid, block, shared)](*passed).sync()
    arrays = [d2h(arg).sync() for arg in passed if isinstance(arg, DeviceBox)]
    return arrays[0] if len(arrays) == 1 else arrays
