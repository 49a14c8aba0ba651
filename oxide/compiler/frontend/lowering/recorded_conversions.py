"""Records for ``Kernel.checks()`` what an author may not have meant: float arithmetic that is wider than an operand,
integers that become narrower where no conversion is written, and indices that are computed in narrow integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numba.cuda import types
from numba.cuda import utils as numba_utils
from numba.cuda.core import ir as numba_ir

from oxide.compiler.source.faults import NarrowIndex, Narrowing, Widening

from .assignments import AssignmentType
from .function import DeviceDispatcher
from .registry import compiler_pass, is_numbas, session
from .typed_variables import depends
from .types import COMPARISONS, HalfType, OpenFloat, display, is_narrowed, operation_of
from .whole_numbers import ASSIGN, goes_on


@compiler_pass
def record_conversions(state: Any) -> bool:
    """Adds to the session a ``Widening`` for each operator or function of numbers that has an operand narrower than its
    result, a ``Narrowing`` for each integer that a store, an argument, a result or an annotated variable takes as a
    type that does not hold all its values, and a ``NarrowIndex`` for each index that was computed in a narrow type.

    For a comparison, the type to which its operands are converted counts as the type of its result.
    """
    if session().numba_style:
        return False
    recorded, authors = session().conversions, not is_numbas(state.func_id.filename)
    for block in state.func_ir.blocks.values():
        for statement in block.body:
            file, line = statement.loc.filename, statement.loc.line
            expression = getattr(statement, "value", None)
            signature = state.calltypes.get(expression) if isinstance(expression, numba_ir.Expr) else None
            if signature is not None and (found := _widening(state, expression, signature)):
                recorded.append(Widening(file, line, *found))
            for target, value, wanted in _conversions(state, statement) if authors else ():
                given = state.typemap[value.name]
                if is_narrowed(given, wanted):
                    recorded.append(Narrowing(file, line, target, display(given), display(wanted)))
            for array, index in _indices(state, statement) if authors else ():
                narrow = _Chain(state).narrow(index)
                if narrow is not None:
                    recorded.append(NarrowIndex(file, line, array, display(narrow)))
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


# Integers that become narrower where no conversion is written


def _conversions(state: Any, statement: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields what takes a value that a statement converts: its name, the value's variable, and the type that it has
    afterwards."""
    match statement:
        case numba_ir.SetAttr(target=target, value=value):
            wanted = getattr(state.typemap[target.name], "dtype", None)
            yield f"{target.unversioned_name}.{statement.attr}", value, wanted
        case numba_ir.SetItem(target=target, value=value) | numba_ir.StaticSetItem(target=target, value=value):
            kind = state.typemap[target.name]
            yield f"an element of {_shown(kind) or target.unversioned_name}", value, getattr(kind, "dtype", None)
        case numba_ir.Assign(value=numba_ir.Expr(op="call") as call):
            kind = state.typemap[call.func.name]
            if isinstance(kind, AssignmentType):
                yield kind.variable, call.args[0], kind.target
            elif isinstance(kind, types.Dispatcher) and isinstance(kind.dispatcher, DeviceDispatcher):
                yield from _of_call(state, call, kind.dispatcher)
        case numba_ir.Assign(value=numba_ir.Expr(op="cast") as cast):
            yield f"the result of {state.func_id.func_name}", cast.value, state.return_type


def _of_call(state: Any, call: Any, dispatcher: DeviceDispatcher) -> Iterator[tuple[str, Any, Any]]:
    names = list(dispatcher.annotations)
    parameters = dispatcher.py_func.__code__.co_varnames
    given = {**dict(zip(parameters, call.args, strict=False)), **dict(call.kws)}
    wanted = dict(zip(parameters, state.calltypes[call].args, strict=False))
    for name in names:
        if name in given and name in wanted:
            yield f"parameter {name} of {dispatcher.py_func.__name__}", given[name], wanted[name]


# Indices


def _indices(state: Any, statement: Any) -> Iterator[tuple[str, Any]]:
    """Yields the name of each array that a statement reads or writes, and a variable of its index."""
    read = getattr(statement, "value", None)
    if isinstance(statement, numba_ir.SetItem):
        array, index = statement.target, statement.index
    elif isinstance(read, numba_ir.Expr) and read.op == "getitem":
        array, index = read.value, read.index
    else:
        return
    shown = _shown(state.typemap[array.name])
    if shown:
        made: Any = next(iter(state.func_ir._definitions.get(index.name, ())), None)
        is_tuple = isinstance(made, numba_ir.Expr) and made.op == "build_tuple"
        for part in made.items if is_tuple else [index]:
            yield shown, part


def _shown(kind: Any) -> str:
    """Returns the name that faults give to an array."""
    return getattr(kind, "parameter", None) or getattr(kind, "shown", None) or ""


class _Chain:
    """The operations that lead to an index, as ``whole_numbers.py`` computes them anew."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._seen: set[str] = set()

    def narrow(self, variable: Any) -> Any:
        """Returns the first type of fewer than 64 bits in which an operation computes; None if there is none."""
        definitions = self._state.func_ir._definitions.get(variable.name, ())
        if variable.name in self._seen or len(definitions) != 1:
            return None
        self._seen.add(variable.name)
        match definitions[0]:
            case numba_ir.Var() as copied:
                return self.narrow(copied)
            case numba_ir.Expr(op="phi") as made:
                operands = [each for each in made.incoming_values if each is not numba_ir.UNDEFINED]
                in_loop = any(depends(self._state, each.name, variable.name) for each in operands)
                return None if in_loop else self._first(operands)
            case numba_ir.Expr(op="binop" | "inplace_binop") as made:
                function, operands = made.fn, [made.lhs, made.rhs]
            case numba_ir.Expr(op="unary") as made:
                function, operands = made.fn, [made.value]
            case numba_ir.Expr(op="call") as made:
                function, operands = self._state.typemap[made.func.name], list(made.args)
            case _:
                return None
        if not goes_on(function):
            return None
        kind = self._state.typemap[variable.name]
        operation = operation_of(function)
        if operation is ASSIGN and is_narrowed(self._state.typemap[operands[0].name], kind):
            return None
        is_narrow = isinstance(kind, types.Integer) and kind.bitwidth < 64
        return kind if is_narrow and operation not in (min, max, ASSIGN) else self._first(operands)

    def _first(self, variables: list[Any]) -> Any:
        return next(filter(None, map(self.narrow, variables)), None)
