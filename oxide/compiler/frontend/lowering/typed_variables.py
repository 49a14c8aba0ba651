"""A pass that refuses variables with two types. Where assignments of different typed numbers meet, after a branch or
around a loop, no type would be right for all that follows, and a silent choice would change where results wrap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numba.cuda import types
from numba.cuda.core import ir as numba_ir

from oxide.language import promotion

from .complex_numbers import PythonComplex
from .registry import compiler_pass, is_numbas, refused_at, session
from .types import ComponentsType, HalfType, OpenFloat, OpenInteger, Place, display, operand_of


@compiler_pass
def check_variables(state: Any) -> bool:
    """Refuses variables to which numbers of different types are assigned, and sums that begin as an integer literal and
    take a type of 8 or 16 bits."""
    if session().numba_style or is_numbas(state.func_id.filename):
        return False
    scope = next(iter(state.func_ir.blocks.values())).scope
    names = {version: name for name, versions in scope.var_redefinitions.items() for version in versions}
    assigned = [
        statement
        for block in state.func_ir.blocks.values()
        for statement in block.body
        if isinstance(statement, numba_ir.Assign)
    ]
    places = {statement.target.name: statement.loc for statement in assigned}
    for statement in assigned:
        name = names.get(statement.target.name, statement.target.name)
        if isinstance(statement.value, numba_ir.Expr) and statement.value.op == "phi":
            if name.startswith("$"):
                _check_conditional(state, statement)
            else:
                _check(state, name, statement, places)
    _check_returned(state)
    return False


def _check(state: Any, name: str, statement: Any, places: dict[str, Any]) -> None:
    incoming = [each for each in statement.value.incoming_values if each is not numba_ir.UNDEFINED]
    kinds = {each.name: state.typemap[each.name] for each in incoming}
    typed: dict[Any, Any] = {}
    """The first place at which a number of each type is assigned."""
    for variable, kind in kinds.items():
        found = _as_assigned(kind)
        if _is_typed(found):
            typed.setdefault(found, places.get(variable, statement.loc))
    if len(typed) > 1:
        (one, first), (two, second) = sorted(typed.items(), key=lambda each: int(each[1].line))[:2]
        if isinstance(one, ComponentsType):
            shown = display(two)
            raise refused_at(
                second,
                f"{name} is {display(one)} in line {first.line} and {shown} in line {second.line}, and both reach what "
                f"follows: a variable has one type; convert one, or annotate it, as in {name}: {shown} = …",
            )
        one, two = operand_of(one).scalar, operand_of(two).scalar
        raise refused_at(second, promotion.two_types(name, one, first.line, two, second.line))
    counts = any(isinstance(_number(kind), types.IntegerLiteral | OpenInteger) for kind in kinds.values())
    for kind, place in typed.items():
        problem = promotion.narrow_sum(name, operand_of(_number(kind)).scalar)
        if problem and counts and any(depends(state, each, statement.target.name) for each in kinds):
            if isinstance(kind, ComponentsType):
                problem = (
                    f"{name} begins as a vector of integer literals and takes the type {display(kind)}, in which a sum "
                    f"soon wraps: write {name}: {display(kind.of(types.int32))} = …, or {name}: {display(kind)} = … "
                    "where that is meant"
                )
            raise refused_at(place, problem)


def _number(kind: Any) -> Any:
    """Returns the type of a number, or that of a vector's components."""
    return kind.dtype if isinstance(kind, ComponentsType) else kind


def _as_assigned(kind: Any) -> Any:
    """Returns the type that a variable has where a value of the type ``kind`` is assigned."""
    if isinstance(kind, ComponentsType):
        return kind.of(_as_assigned(kind.dtype))
    if isinstance(kind, Place):
        return types.int64
    return types.boolean if isinstance(kind, types.BooleanLiteral) else kind


def _check_conditional(state: Any, statement: Any) -> None:
    """Refuses a conditional expression whose sides have no common type."""
    sides = [each for each in statement.value.incoming_values if each is not numba_ir.UNDEFINED]
    _require_common(state, "a conditional expression gives", [(each.name, statement.loc) for each in sides])


def _check_returned(state: Any) -> None:
    """Refuses a function without a declared result whose returned values have no common type. From Python 3.12 on, a
    conditional expression that is returned is such a function: its bytecode returns each side."""
    if state.return_type is not None:
        return
    ends = [block.terminator for block in state.func_ir.blocks.values()]
    returns = [(state.func_ir.get_definition(each.value), each) for each in ends if isinstance(each, numba_ir.Return)]
    returned = [(cast.value.name, each.loc) for cast, each in returns if isinstance(cast, numba_ir.Expr)]
    _require_common(state, f"{state.func_id.func_name} returns", returned)


def _require_common(state: Any, what: str, values: list[tuple[str, Any]]) -> None:
    """Refuses values, each a variable with its place, of which some are of u64 and some of a signed type."""
    kinds = {_as_assigned(state.typemap[name]): place for name, place in values}
    integers = [kind for kind in kinds if isinstance(kind, types.Integer) and _is_typed(kind)]
    signed = next((kind for kind in integers if kind.signed), None)
    if signed is not None and types.uint64 in integers:
        raise refused_at(
            kinds[signed],
            f"{what} a u64 or an {display(signed)}: no integer type holds both; convert one, as in i64(x) or u64(x)",
        )


def _is_typed(kind: Any) -> bool:
    kind = _number(kind)
    weak = isinstance(kind, types.IntegerLiteral | OpenFloat | OpenInteger | PythonComplex)
    return isinstance(kind, types.Number | HalfType | types.Boolean) and not weak


def depends(state: Any, variable: str, name: str) -> bool:
    """Returns whether a value is computed from the variable ``name``, by operators and assignments alone."""
    pending, seen = [variable], set[str]()
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
