"""``assert`` in kernels: the failure is recorded as a fault, and the thread leaves the kernel as on a raise."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from .primitives import call_primitive, site


def lower_failure(builder: Any, arguments: tuple[Any, ...] | None) -> None:
    """Records that the assert being lowered has failed. ``arguments`` is its message, if it has one."""
    message = str(arguments[0]) if arguments else ""
    call_primitive(builder, ir.VoidType(), "oxide.assertion_failed", (), site(builder, "", message))
