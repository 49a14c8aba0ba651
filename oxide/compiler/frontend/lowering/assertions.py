"""``assert`` in kernels. A failure is recorded as a fault, and the thread leaves the kernel as if the assert had
raised."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from .primitives import call_primitive, site


def lower_failure(builder: Any, arguments: tuple[Any, ...] | None) -> None:
    """Emits the call that records the failure of the assert being lowered. ``arguments`` holds the assert's message; it
    is None or empty if the assert has no message."""
    message = str(arguments[0]) if arguments else ""
    call_primitive(builder, ir.VoidType(), "oxide.assertion_failed", (), site(builder, "", message))
