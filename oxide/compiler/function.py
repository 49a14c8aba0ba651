"""``@device``: functions that kernels call.

They are compiled into each kernel that reaches them; on the host they are the Python functions they were.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar, final

P = ParamSpec("P")
R = TypeVar("R")


@final
class DeviceFunction(Generic[P, R]):
    """A function that kernels may call. Calling it on the host calls the Python function."""

    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<device function {self.function.__qualname__}>"


def device(function: Callable[P, R]) -> DeviceFunction[P, R]:
    """Marks a device function. Its parameters need no annotations: it is specialised on the arguments' types."""
    return DeviceFunction(function)
