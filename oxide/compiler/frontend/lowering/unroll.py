"""``unroll(range(…))``. It returns the range, and its lowering emits a call that marks the loop for
``compiler/ir/portable.py``."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.language.unroll import unroll

from .registry import lowering_registry, note, typing_registry


@typing_registry.register_global(unroll)
class Unroll(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if len(args) != 1 or kws or not isinstance(args[0], types.RangeType):
            note("unroll takes a range, as in: for i in unroll(range(8))")
            return None
        return signature(args[0], args[0])


@lowering_registry.lower(unroll, types.RangeType)
def _lower_unroll(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    marker = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), ()), "oxide.unroll")
    builder.call(marker, ())
    return args[0]
