"""Emits calls of primitives, which each back end defines, and the numbers of fault sites that these calls pass."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from .registry import site_number

_SITE = ir.IntType(32)


def call_primitive(builder: Any, result: Any, name: str, arguments: tuple[Any, ...], *more: Any) -> Any:
    """Emits a call of a primitive. The types of the arguments determine the primitive's declaration."""
    values = (*arguments, *more)
    function_type = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), values)


def site(builder: Any, what: str, assertion: str | None = None, axis: int | None = None, axes: int = 1) -> Any:
    """Returns the number of a fault site at the place in the source being lowered. ``what`` names the array or the
    function that can fault there. The returned value is a call. ``compiler.ir`` replaces the call by the site's number
    when it knows all sites of the kernel."""
    return call_primitive(builder, _SITE, f"oxide.site.{site_number(what, assertion, axis, axes)}", ())
