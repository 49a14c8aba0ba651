"""``ContextState``: a run's context, as the copies that it submits know it. ``ExecutionContext`` is the
implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import numpy as np

    from oxide.runtime.devices.runtime import Device, Runtime
    from oxide.runtime.memory.allocation import Allocation
    from oxide.runtime.memory.memory import DeviceBox
    from oxide.runtime.memory.reclaim import Visible
    from oxide.runtime.ordering.timeline import Timeline


class ContextState(Protocol):
    """What each of these is, ``ExecutionContext`` says."""

    device: Device
    driver: Any
    runtime: Runtime
    timeline: Timeline
    visible: Visible | None
    waitless: str

    @property
    def is_over(self) -> bool: ...

    @property
    def recording(self) -> Any: ...

    @property
    def submission_lock(self) -> Any: ...

    def allocated(self, nbytes: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Allocation: ...

    def at_launch(self, box: DeviceBox, function: Callable[[Any, DeviceBox], None]) -> None: ...

    def begin(self, reads: list[Any], writes: list[Any]) -> None: ...

    def end(self, reads: list[Any], writes: list[Any], *, submitted: bool) -> None: ...

    def keep(self, thing: object) -> None: ...

    def note_host_copy(self, array: Any = None) -> None: ...

    def ordered(self, reads: list[Allocation], writes: list[Allocation]) -> AbstractContextManager[object]: ...
