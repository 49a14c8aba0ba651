"""``assert`` in kernels: the failure is recorded as a fault, and the thread leaves the kernel as on a raise."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from .registry import site_number

_SITE = ir.IntType(32)


def lower_failure(builder: Any, arguments: tuple[Any, ...] | None) -> None:
    """Records that the assert being lowered has failed. ``arguments`` is its message, if it has one."""
    message = str(arguments[0]) if arguments else ""
    number = site_number("", message)
    site = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_SITE, ()), f"oxide.site.{number}")
    function_type = ir.FunctionType(ir.VoidType(), (_SITE,))
    failed = cgutils.get_or_insert_function(builder.module, function_type, "oxide.assertion_failed")
    builder.call(failed, (builder.call(site, ()),))
