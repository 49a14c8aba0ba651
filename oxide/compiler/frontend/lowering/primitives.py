"""Calls of primitives that each back end defines, and the fault site numbers that they pass."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from .registry import site_number

_SITE = ir.IntType(32)


def call_primitive(builder: Any, result: Any, name: str, arguments: tuple[Any, ...], *more: Any) -> Any:
    """Calls a primitive that each back end defines."""
    values = (*arguments, *more)
    function_type = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), values)


def site(builder: Any, what: str, assertion: str | None = None, axis: int | None = None, axes: int = 1) -> Any:
    """Returns the number of a new fault site, at the source place being lowered. ``what`` names the array that is
    accessed there. The value is a call, which ``compiler.ir`` replaces by the number when it knows all sites of the
    kernel."""
    return call_primitive(builder, _SITE, f"oxide.site.{site_number(what, assertion, axis, axes)}", ())
