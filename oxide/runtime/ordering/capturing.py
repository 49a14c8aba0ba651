"""The graph capture in progress in a task or thread, and the check for calls that a capture refuses.
``submission/capture.py`` records the graph."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Any, Final, Protocol

from oxide.errors import GraphError
from oxide.host.locks import refuse_inside


class Capture(Protocol):
    """A capture in progress."""

    is_open: bool

    @property
    def stream(self) -> Any:
        """Returns the stream whose work is captured."""


# A context variable, so that a capture belongs to one task or thread: other tasks may run operations meanwhile.
current_capture: Final[ContextVar[Capture | None]] = ContextVar("oxide_capture", default=None)


def refuse_in_capture(what: str, stream: object = None) -> None:
    """Raises ``GraphError`` inside a capture of this task or thread. With ``stream``, raises only if the capture is on
    ``stream``. ``what`` names the refused call in the error. Also raises the ``OrderingError`` of
    ``refuse_inside``."""
    refuse_inside()
    capture = current_capture.get()
    if capture is not None and capture.is_open and (stream is None or capture.stream is stream):
        raise GraphError(
            f"{what} is not possible while a graph is captured"
            + (f" on thread {threading.current_thread().name}" if stream is None else " on the stream")
            + ": nothing runs before the graph is launched. Do it before the capture or after it; "
            "inside CudaGraph.scope, hand operations to record"
        )
