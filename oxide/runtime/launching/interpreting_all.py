"""``OXIDE_INTERPRET=1``: every launch of a typed kernel on the CPU device is interpreted.

The variable is read when a kernel is defined. If it is unset then, launches have no extra cost.
"""

from __future__ import annotations

from typing import Any, final

from oxide.compiler.kernel import Kernel
from oxide.compiler.specialization import NotTyped
from oxide.environment import word
from oxide.runtime.device.runtime import current_runtime
from oxide.runtime.launching.deferred import DeferredLaunch
from oxide.runtime.launching.launch import ConfiguredKernel, KernelLaunch

VARIABLE = "OXIDE_INTERPRET"


def redirect(kernel: Kernel) -> None:
    """Makes all launches of a kernel interpreted if ``OXIDE_INTERPRET`` is 1. Does nothing if the variable is unset or
    empty. Raises ``DeviceError`` for any other value."""
    if word(VARIABLE, ("1",)) is not None:
        kernel.redirected = InterpretingKernel


@final
class InterpretingKernel:
    """A kernel with its launch configuration, ``kernel[grid, block]``. Calling it makes an interpreted launch. On a
    GPU, and for a kernel with numba-cuda's semantics, it makes a compiled launch."""

    __slots__ = ("_config", "_kernel")

    def __init__(self, kernel: Kernel, config: object | None) -> None:
        self._kernel = kernel
        self._config = config
        ConfiguredKernel(kernel, config)  # refuses a wrong configuration

    def __call__(self, *args: Any, **kwargs: Any) -> KernelLaunch | DeferredLaunch:
        if current_runtime().driver.name == "cpu":
            try:
                return self.interpret(*args, **kwargs)
            except NotTyped:
                pass
        return ConfiguredKernel(self._kernel, self._config)(*args, **kwargs)

    def interpret(self, *args: Any, **kwargs: Any) -> KernelLaunch | DeferredLaunch:
        return ConfiguredKernel(self._kernel.interpreted, self._config)(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return InterpretingKernel, (self._kernel, self._config)

    def __copy__(self) -> InterpretingKernel:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> InterpretingKernel:
        return self
