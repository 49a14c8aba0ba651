"""A pass that refuses variables with two types. Where assignments of different typed numbers meet, after a branch or
around a loop, no type would be right for all that follows, and a silent choice would change where results wrap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from numba.cuda import compiler as numba_compiler
from numba.cuda import types
from numba.cuda.core import ir as numba_ir
from numba.cuda.core.compiler_machinery import AnalysisPass

from .authors import is_numbas
from .registry import session
from .types import HalfType, OpenFloat, OpenInteger, Place, display

_NARROW: Final = 16
"""The bits of integers that are too few to count in."""


class CheckVariables(AnalysisPass):  # type: ignore[misc]
    """Refuses variables to which numbers of different types are assigned, and sums that begin as an integer literal and
    take a type of 8 or 16 bits."""

    _name = "oxide_check_variables"

    def __init__(self) -> None:
        AnalysisPass.__init__(self)
        self._places: dict[str, Any] = {}

    def run_pass(self, state: Any) -> bool:
        if session().numba_style or is_numbas(state.func_id.filename):
            return False
        scope = next(iter(state.func_ir.blocks.values())).scope
        self._places = {
            statement.target.name: statement.loc
            for block in state.func_ir.blocks.values()
            for statement in block.body
            if isinstance(statement, numba_ir.Assign)
        }
        names = {version: name for name, versions in scope.var_redefinitions.items() for version in versions}
        for block in state.func_ir.blocks.values():
            for statement in block.body:
                value = getattr(statement, "value", None)
                if isinstance(value, numba_ir.Expr) and value.op == "phi":
                    name = names.get(statement.target.name, statement.target.name)
                    if not name.startswith("$"):
                        self._check(state, name, statement.target, value)
        return False

    def _check(self, state: Any, name: str, target: Any, phi: Any) -> None:
        first: tuple[Any, Any] | None = None
        literal = False
        for variable in phi.incoming_values:
            if variable is numba_ir.UNDEFINED:
                continue
            kind = types.unliteral(state.typemap[variable.name])
            literal |= isinstance(state.typemap[variable.name], types.IntegerLiteral | OpenInteger)
            if isinstance(kind, Place):
                kind = types.int64
            if isinstance(state.typemap[variable.name], types.IntegerLiteral) or not _is_typed(kind):
                continue
            place = self._places.get(variable.name, target.loc)
            if first is None:
                first = kind, place
            elif first[0] != kind:
                one, two = sorted((first, (kind, place)), key=lambda each: each[1].line)
                raise _refused(
                    two[1],
                    f"{name} is {display(one[0])} in line {one[1].line} and {display(two[0])} in line {two[1].line}, and "
                    f"both reach what follows: a variable has one type; convert one, or annotate the variable, as in "
                    f"{name}: {display(two[0])} = …",
                )
        if literal and first is not None and isinstance(first[0], types.Integer) and first[0].bitwidth <= _NARROW:
            if any(_depends(state, variable, target.name) for variable in phi.incoming_values):
                kind = display(first[0])
                raise _refused(
                    first[1],
                    f"{name} begins as an integer literal and takes the type {kind}, in which a sum soon wraps: write "
                    f"{name}: i32 = …, or {name}: {kind} = … where that is meant",
                )


def _is_typed(kind: Any) -> bool:
    return isinstance(kind, types.Number | HalfType | types.Boolean) and not isinstance(kind, OpenFloat | OpenInteger)


def _depends(state: Any, variable: Any, name: str) -> bool:
    """Returns whether a value is computed from the variable ``name``, by operators and assignments alone."""
    pending, seen = [variable.name] if isinstance(variable, numba_ir.Var) else [], set()
    while pending:
        each = pending.pop()
        if each == name:
            return True
        if each not in seen:
            seen.add(each)
            for found in state.func_ir._definitions.get(each, ()):
                pending += _operands(found)
    return False


def _operands(value: Any) -> Iterator[str]:
    if isinstance(value, numba_ir.Var):
        yield value.name
    elif isinstance(value, numba_ir.Expr) and value.op in ("binop", "inplace_binop"):
        yield from (value.lhs.name, value.rhs.name)


def _refused(place: Any, problem: str) -> Exception:
    from .inference import refused_at  # which inserts this pass

    return refused_at(place, problem)


numba_compiler.register_pass(mutates_CFG=False, analysis_only=True)(CheckVariables)
