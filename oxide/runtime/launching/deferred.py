"""Launches of kernels that are not compiled yet, built where compiling would block an event loop.

The arguments are checked against the kernel's declaration when the launch is built. The run types the kernel for them:
its walk stops, a thread compiles and loads the kernel, and the other checks of a launch are made there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, final

from oxide.host.core import current_turn
from oxide.runtime.awaiting.loading import loaded_function
from oxide.runtime.operations.operation import Depiction, DeviceOperation, Spec
from oxide.runtime.submission.stops import Beside

if TYPE_CHECKING:
    from collections.abc import Callable

    from oxide.compiler.kernel.specialization import Specialization
    from oxide.runtime.devices.runtime import Device
    from oxide.runtime.submission.walk import Frame


@final
class DeferredLaunch(DeviceOperation[tuple[Any, ...]]):
    """A launch of the kernel ``name``, which is compiled in its run. ``build`` builds the launch, and compiles the
    kernel. ``known`` are the specs of the arguments, as the launch's ``spec`` returns them."""

    _composed = True

    def __init__(
        self,
        name: str,
        build: Callable[[], DeviceOperation[tuple[Any, ...]]],
        parts: list[DeviceOperation[Any]],
        known: tuple[Spec, ...],
    ) -> None:
        self._name = name
        self._build = build
        self._known = known
        self._launch: Any = None  # None until the kernel is compiled
        super().__init__(*parts)

    @property
    def specialization(self) -> Specialization:
        """Returns the specialization that is launched. Compiles the kernel if need be."""
        found: Specialization = self._built_launch().specialization
        return found

    def traced_name(self) -> str:
        return self._name

    def step(self, frame: Frame, result: Any) -> DeviceOperation[Any] | None:
        if frame.at:
            frame.result = result
            return None
        device = frame.context.device
        if self._launch is None and current_turn().gives_up:
            raise Beside(partial(self._prepare, device))
        frame.at = 1
        launch: DeviceOperation[Any] = self._built_launch()
        return launch

    def _prepare(self, device: Device) -> None:
        """Compiles and loads the kernel."""
        special = self._built_launch().specialization
        if not special.description.interpreted:
            loaded_function(special, device)

    def _built_launch(self) -> Any:
        launch = self._launch
        if launch is None:
            turn = current_turn()
            before, turn.compiles_now = turn.compiles_now, True
            try:
                launch = self._build()
            finally:
                turn.compiles_now = before
            launch.consume()
            self._launch = launch
        return launch

    def spec(self) -> tuple[Spec, ...]:
        return self._known

    def title(self) -> object:
        return self

    def depict(self) -> Depiction:
        return "launch", self._name, ("compiled when it runs",), ()

    def __repr__(self) -> str:
        return f"<oxide launch of {self._name}>"
