"""Folds arithmetic on integers that are known at compile time. The result is a Python integer, which is typed like a
literal (NEP 50).

Python itself computes ``2 * 3``. This pass also computes expressions with names: constants of a module or of an
enclosing function, and variables whose value is known. So if ``x[i]`` is an f32, ``(COUNT + 1) * x[i]`` is an f32, like
``4 * x[i]``.

An operation is folded only if the kernel's own arithmetic would give an equal result. All other operations are left to
the kernel, where sums past 64 bits wrap and a division by zero gives 0. The pass looks at values in numba's IR after
SSA construction, and not at types, because the type of a loop's variable is a literal until inference has seen the end
of the loop.
"""

from __future__ import annotations

import operator
from collections import Counter
from types import ModuleType
from typing import Any, Final, TypeAlias

from numba.cuda import compiler as numba_compiler
from numba.cuda.core import ir as numba_ir
from numba.cuda.core.compiler_machinery import FunctionPass

from .authors import is_numbas
from .registry import session

_LEAST: Final = -(2**63)
_GREATEST: Final = 2**63 - 1
_EXACT: Final = 2**53
"""The magnitude up to which an f64 represents every integer exactly."""

_Number: TypeAlias = int | float

_OF_INTEGERS: Final = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.pow),
        *(operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift),
        *(operator.neg, operator.pos, operator.invert),
    }
)


class FoldIntegers(FunctionPass):  # type: ignore[misc]
    """Replaces arithmetic on known integers by its result, in functions that a kernel's author wrote."""

    _name = "oxide_fold_integers"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        if session().numba_style or is_numbas(state.func_id.filename):
            return False
        function = state.func_ir
        statements = [
            statement
            for _, block in sorted(function.blocks.items())
            for statement in block.body
            if isinstance(statement, numba_ir.Assign)
        ]
        times = Counter(statement.target.name for statement in statements)
        once = [statement for statement in statements if times[statement.target.name] == 1]
        return _fold(function, once)


def _fold(function: Any, statements: list[Any]) -> bool:
    known: dict[str, Any] = {}
    """The known values of variables: integers, floats that were computed from integers, and modules."""
    changed, before = False, -1
    while len(known) > before:  # again, because a block may come before a block that dominates it
        before = len(known)
        for statement in statements:
            name, value = statement.target.name, statement.value
            if name in known:
                continue
            found = _value(value, known)
            if found is None:
                continue
            known[name] = found
            if isinstance(value, numba_ir.Expr) and value.op != "getattr":
                statement.value = numba_ir.Const(found, value.loc)
                function._definitions[name] = [statement.value]
                changed = True
    return changed


def _value(value: Any, known: dict[str, Any]) -> Any:
    """Returns the value of an expression that is a known integer, a float computed from known integers, or a module.
    Returns None for any other expression."""
    match value:
        case numba_ir.Const() | numba_ir.Global() | numba_ir.FreeVar():
            return value.value if type(value.value) is int or isinstance(value.value, ModuleType) else None
        case numba_ir.Var():
            return known.get(value.name)
        case numba_ir.Expr(op="getattr"):
            module = known.get(value.value.name)
            found = getattr(module, value.attr, None) if isinstance(module, ModuleType) else None
            return found if type(found) is int or isinstance(found, ModuleType) else None
        case numba_ir.Expr(op="binop"):
            return _computed(value.fn, known.get(value.lhs.name), known.get(value.rhs.name))
        case numba_ir.Expr(op="inplace_binop"):
            return _computed(value.immutable_fn, known.get(value.lhs.name), known.get(value.rhs.name))
        case numba_ir.Expr(op="unary"):
            return _computed(value.fn, known.get(value.value.name))
    return None


def _computed(function: Any, *numbers: Any) -> _Number | None:
    """Returns the result of an operator if all operands are known integers and the kernel's arithmetic gives an equal
    result. Returns None otherwise."""
    if not all(type(number) is int and _LEAST <= number <= _GREATEST for number in numbers):
        return None
    *_, last = numbers
    if function is operator.truediv:
        exact = last != 0 and all(abs(number) <= _EXACT for number in numbers)
        return numbers[0] / last if exact else None
    if function not in _OF_INTEGERS or (function in (operator.floordiv, operator.mod) and last == 0):
        return None
    if function in (operator.pow, operator.lshift, operator.rshift) and not 0 <= last < 64:
        return None
    found: int = function(*numbers)
    return found if _LEAST <= found <= _GREATEST else None


numba_compiler.register_pass(mutates_CFG=False, analysis_only=False)(FoldIntegers)
