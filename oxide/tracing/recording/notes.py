"""The notes of the recorder: tuples, which cost least to make. The first element says which one it is.

``("track", number, name, arguments)``: a task or thread was seen for the first time.
``("stream", stream, device label, name, arguments)``: a stream was made.
``("held", device label, {address: bytes})``: the memory in use when a runtime was attached.
``("run", run, ended)``: an operation was submitted, or captured.
``("work", submitted, stream, clock, token, run, name, built, kind, what, nbytes, …)``: work was submitted to a stream,
by the part of a run with this name and origin, or by no run. A kernel's note goes on with its grid, block and dynamic
shared memory, a graph's with the names of its nodes.
``("wait", submitted, stream, other stream, run, name, built, thread)``: a stream was made to wait for an event.
``("cause", thread, cause)``: why the thread's last wait was submitted.
``("await", begun, ended, track, name, outcome)``: a task awaited an operation.
``("sync", begun, ended, track, stream)``: a thread was blocked.
``("memory", time, stream, address, nbytes)``: memory was allocated; freed, if ``nbytes`` is 0.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Note: TypeAlias = tuple[Any, ...]
