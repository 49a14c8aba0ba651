"""``DeviceState``: a device as streams and memory know it, from which it is made. ``Device`` is the implementation."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from oxide.errors import DeviceError

if TYPE_CHECKING:
    from oxide.driver.base import Driver, FunctionHandle, StreamPriority


class DeviceState(Protocol):
    """What each of these is, ``Device`` says."""

    id: int
    driver: Driver
    live: dict[int, tuple[int, tuple[int, ...], Any]]
    loaded: dict[Any, FunctionHandle]

    @property
    def label(self) -> str: ...

    @property
    def loose(self) -> set[Any]: ...

    @property
    def runtime(self) -> Any: ...

    @property
    def spare_timelines(self) -> deque[Any]: ...

    def take_timeline(self, priority: StreamPriority = "normal") -> Any: ...


def not_in_force(what: str, hint: str) -> DeviceError:
    """Returns the error for an object of a runtime that is not the current one."""
    return DeviceError(f"{what} belongs to a runtime that is not in force; {hint}")
