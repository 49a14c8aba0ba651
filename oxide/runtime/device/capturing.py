"""The graph capture under way in a task or a thread, and what it refuses. ``submission/capture.py`` records it."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

from oxide.errors import GraphError

if TYPE_CHECKING:
    from oxide.runtime.device.stream import Stream


class Capture(Protocol):
    """A capture under way."""

    is_open: bool

    @property
    def stream(self) -> Stream:
        """The stream whose work is captured."""


# A context variable, so that it belongs to the task or the thread: others run operations meanwhile.
current_capture: Final[ContextVar[Capture | None]] = ContextVar("oxide_capture", default=None)


def refuse_in_capture(what: str, stream: Stream | None = None) -> None:
    """Raises ``GraphError`` in a capture of this task or thread; with ``stream``, only if it captures ``stream``."""
    capture = current_capture.get()
    if capture is not None and capture.is_open and (stream is None or capture.stream is stream):
        raise GraphError(
            f"{what} is not possible while a graph is captured"
            + (f" on thread {threading.current_thread().name}" if stream is None else " on the stream")
            + ": nothing runs before the graph is launched. Do it before the capture or after it; "
            "inside CudaGraph.scope, hand operations to record"
        )
