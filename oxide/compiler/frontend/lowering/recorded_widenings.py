"""A pass that records float arithmetic whose result type is wider than an operand's type. Such arithmetic is slow on a
GPU, and the author seldom intends it."""

from __future__ import annotations

from typing import Any

from numba.cuda import types
from numba.cuda import utils as numba_utils
from numba.cuda.core import ir as numba_ir
from numba.cuda.core.compiler_machinery import AnalysisPass

from oxide.compiler.source.faults import Widening

from .operators import COMPARISONS
from .registry import session
from .types import HalfType, OpenFloat, display


class RecordWidening(AnalysisPass):  # type: ignore[misc]
    """Adds a ``Widening`` to the session for each operator or function of numbers that has an operand narrower than its
    result.

    For a comparison, the type to which its operands are converted counts as the type of its result.
    """

    _name = "oxide_record_widening"

    def __init__(self) -> None:
        AnalysisPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        if session().numba_style:
            return False
        for block in state.func_ir.blocks.values():
            for statement in block.body:
                expression = getattr(statement, "value", None)
                signature = state.calltypes.get(expression) if isinstance(expression, numba_ir.Expr) else None
                if signature is not None and (found := _widening(state, expression, signature)):
                    operation, result, narrow = found
                    place = statement.loc
                    session().widenings.append(Widening(place.filename, place.line, operation, result, narrow))
        return False


def _widening(state: Any, expression: Any, signature: Any) -> tuple[str, str, str] | None:
    """Returns the text of an operation, the type of its result and the type of its narrowest operand. Returns None if
    no operand is narrower than the result."""
    if expression.op in ("binop", "inplace_binop"):
        operands = [expression.lhs, expression.rhs]
        function = expression.fn
        symbol = numba_utils.OPERATORS_TO_BUILTINS.get(function, "?")
    elif expression.op == "call" and not expression.kws and expression.vararg is None:
        called = state.typemap[expression.func.name]
        function = getattr(called, "typing_key", None)
        if getattr(function, "__module__", None) not in ("math", "builtins", "numpy") or function is float:
            return None
        operands, symbol = expression.args, ""
    else:
        return None
    kinds = [types.unliteral(state.typemap[operand.name]) for operand in operands]
    result = signature.args[0] if function in COMPARISONS else signature.return_type
    if not isinstance(result, types.Float) or isinstance(result, OpenFloat):
        return None
    narrow = [kind for kind in kinds if _bits(kind) < result.bitwidth]
    if not narrow:
        return None
    shown = [display(kind) for kind in kinds]
    operation = f" {symbol} ".join(shown) if symbol else f"{function.__name__}({', '.join(shown)})"
    return operation, display(result), display(min(narrow, key=_bits))


def _bits(kind: Any) -> int:
    """Returns a float type's width in bits. For any other type, returns a number larger than every float's width."""
    return int(kind.bitwidth) if isinstance(kind, types.Float | HalfType) else 1 << 10
