"""``OXIDE_INTERPRET=1``: every launch of a typed kernel on the CPU device is interpreted.

The variable is read when a kernel is defined. If it is unset then, launches have no extra cost.
"""

from __future__ import annotations

from typing import Any, final

from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.kernel.specialization import NotTyped
from oxide.host.environment import word
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.launching.deferred import DeferredLaunch
from oxide.runtime.launching.launch import ConfiguredKernel, KernelLaunch, KernelLaunches


def launches() -> KernelLaunches:
    """Returns the object that launches a kernel where ``OXIDE_INTERPRET`` is set. Raises ``DeviceError`` for any value
    but 1."""
    return KernelLaunches() if word("OXIDE_INTERPRET", ("1",)) is None else InterpretedLaunches()


@final
class InterpretingKernel:
    """A kernel with its launch configuration, ``kernel[grid, block]``. Calling it makes an interpreted launch. On a
    GPU, and for a kernel with numba-cuda's semantics, it makes a compiled launch."""

    __slots__ = ("_config", "_kernel")

    def __init__(self, kernel: Kernel, config: object | None) -> None:
        self._kernel = kernel
        self._config = ConfiguredKernel(kernel, config)._config  # refuses a wrong configuration

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


@final
class InterpretedLaunches(KernelLaunches):
    """The plans of a kernel whose launches are interpreted."""

    __slots__ = ()

    configured = InterpretingKernel
