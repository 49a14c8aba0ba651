"""The notes of the recorder: tuples, which cost least to make. The first element says which one it is.

``("track", number, name, arguments)``: a task or thread was seen for the first time.
``("stream", stream, device label, name, arguments)``: a stream was made.
``("held", device label, {address: bytes})``: the memory in use when a runtime was attached.
``("run", begun, ended, part, captured)``: an operation was submitted, or captured.
``("work", submitted, stream, clock, token, part, kind, name, nbytes, details)``: work was submitted to a stream.
``("wait", submitted, stream, other stream, part, thread)``: a stream was made to wait for an event.
``("cause", thread, cause)``: why the thread's last wait was submitted.
``("await", begun, ended, track, name, outcome)``: a task awaited an operation.
``("sync", begun, ended, track, stream)``: a thread was blocked.
``("memory", time, stream, address, nbytes)``: memory was allocated; freed, if ``nbytes`` is 0.
"""

from __future__ import annotations

from types import CodeType
from typing import Any, TypeAlias

Note: TypeAlias = tuple[Any, ...]

Built: TypeAlias = tuple[int, CodeType, int]
"""When an operation was built, by which code, in which line."""

Part: TypeAlias = tuple[int, str, Built | None, int]
"""What a thread submits: the number of the run, the name of the operation, when and where it was built, and the task's
track."""
