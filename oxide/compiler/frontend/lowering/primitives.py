"""Calls of the functions that each back end defines, and of the number of the place that makes such a call."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from .registry import site_number

_SITE = ir.IntType(32)


def call_primitive(builder: Any, result: Any, name: str, arguments: tuple[Any, ...], *more: Any) -> Any:
    """Calls a function that each back end defines."""
    values = (*arguments, *more)
    function_type = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), values)


def site(builder: Any, what: str, assertion: str | None = None) -> Any:
    """The number of the place being lowered, which accesses ``what`` or makes an assertion: a call that ``compiler.ir``
    resolves once it knows all of a kernel's."""
    return call_primitive(builder, _SITE, f"oxide.site.{site_number(what, assertion)}", ())
