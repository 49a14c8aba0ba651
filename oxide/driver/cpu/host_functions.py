"""Host functions: Python and C functions that a stream of the CPU device calls."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from oxide.driver.cpu.errors import driver_error
from oxide.driver.cpu.streams import Task
from oxide.host.locks import driver_threads


def python_call(function: Callable[[], None]) -> Task:
    """Returns a task that calls a Python function. Its exceptions go to ``sys.unraisablehook``, and the stream
    continues."""

    def call() -> None:
        this = threading.get_ident()
        ours = this in driver_threads
        driver_threads.discard(this)
        try:
            function()
        except BaseException as error:
            _report_unraisable(function, error)
        finally:
            if ours:
                driver_threads.add(this)

    return Task(f"host function {function!r}", call)


def native_call(function: int, argument: int) -> Task:
    """Returns a task that calls a C function by its address, without the GIL. Raises ``DriverError`` for address 0."""
    if not function:
        raise driver_error("CUDA_ERROR_INVALID_VALUE", "a native host function at address 0; pass its address")
    call = _HostFunction(function)
    return Task(f"native host function {function:#x}", lambda: call(argument))


def _report_unraisable(function: Callable[[], Any], error: BaseException) -> None:
    """Gives an exception, with its traceback, to ``sys.unraisablehook`` by letting it leave a C callback."""

    def raise_again() -> None:
        try:
            raise error
        except BaseException as again:
            again.add_note(f"raised by the host function {function!r}")
            raise

    ctypes.CFUNCTYPE(None)(raise_again)()


_HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
