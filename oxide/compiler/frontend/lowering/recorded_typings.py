"""Records the types that inference found, for the interpreter (``compiler/source/typings.py``).

Before inference, each function is rewritten so that each of its expressions has a line number of its own
(``check/rewritten.py``). So the line of an instruction identifies the instruction's expression.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numba.cuda import types
from numba.cuda.core import ir as numba_ir

from oxide.compiler.check.rewritten import Numbered, numbered
from oxide.compiler.source.typings import ArrayElements, Signature, TypedCall, TypedFunction
from oxide.language.vectors import VECTORS

from .assignments import AssignmentType
from .captured import ConstantArrayType
from .complex_numbers import COMPLEX_LITERAL, complex_of
from .function import DeviceDispatcher, FunctionValueType
from .registry import compiler_pass, session
from .shared import BlockArrayType
from .structure_operations import is_structures
from .tensor.fragments import FragmentType
from .types import NAMES, OPEN, ComponentsType, StructuredType, is_narrowed
from .vector_operations import AS_FUNCTIONS, VectorClass, method_of

_NAMES = NAMES | {COMPLEX_LITERAL: "c128"}


class Typings:
    """The typed functions of one kernel."""

    def __init__(self) -> None:
        self._numbered: dict[int, tuple[Callable[..., Any], Numbered]] = {}
        self._by_made: dict[int, Numbered] = {}
        self._functions: dict[tuple[int, tuple[Any, ...]], TypedFunction] = {}

    def numbered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the form of a function with numbered expressions. The front end compiles this form in place of the
        function."""
        found = self._numbered.get(id(function))
        if found is None:
            found = self._numbered[id(function)] = function, numbered(function)
            self._by_made[id(found[1].made)] = found[1]
        return found[1].made

    def of(self, function: Callable[..., Any], args: tuple[Any, ...]) -> TypedFunction:
        """Returns the ``TypedFunction`` of a function for some argument types. ``function`` is the function as written
        in its file."""
        self.numbered(function)
        return self._typed(self._numbered[id(function)][1], args)

    def of_numbered(self, made: Callable[..., Any], args: tuple[Any, ...]) -> TypedFunction | None:
        """Does what ``of`` does for a function's form with numbered expressions. Returns None for a function of numba's
        own."""
        whole = self._by_made.get(id(made))
        return None if whole is None else self._typed(whole, args)

    def _typed(self, whole: Numbered, args: tuple[Any, ...]) -> TypedFunction:
        key = id(whole), tuple(map(types.unliteral, args))
        if key not in self._functions:
            self._functions[key] = TypedFunction(whole.original, whole.definition)
        return self._functions[key]


def name_of(kind: Any) -> str:
    """Returns oxide's name of a type of numbers or vectors. Returns "" for any other type."""
    return str(kind.name) if isinstance(kind, ComponentsType) else _NAMES.get(types.unliteral(kind), "")


def _signature(found: Any) -> Signature:
    return Signature(tuple(map(name_of, found.args)), name_of(found.return_type))


@compiler_pass
def keep_types(state: Any) -> bool:
    """Records the types of a function's expressions if the session keeps types."""
    kept = session().typings
    if kept is None:
        return False
    typed = kept.of_numbered(state.func_id.func, state.args)
    if typed is not None:
        _Keeper(state, kept, typed).keep()
    return False


class _Keeper:
    def __init__(self, state: Any, kept: Any, typed: TypedFunction) -> None:
        self.state, self.kept, self.typed = state, kept, typed
        self.typemap, self.calltypes = state.typemap, state.calltypes
        self.places: dict[str, int] = {}
        """The number of the expression that computes each value, by the value's name in numba's IR."""
        self.globals: dict[str, Any] = {}
        """The constant or outside object that each of numba's temporaries holds, by name."""
        self.into: dict[str, str] = {}
        """The target of the phi that reads each variable, by the variable's name."""
        self.order: dict[str, int] = {}
        """The positions of the phis in the function, by the names of their targets."""
        self.of_loops: set[str] = set()
        """The targets of the phis at the beginnings of loops."""

    def keep(self) -> None:
        typed = self.typed
        typed.parameters = tuple(map(name_of, self.state.args))
        typed.result = name_of(self.state.return_type)
        blocks = sorted(self.state.func_ir.blocks.items())
        statements = [s for _, block in blocks for s in block.body]
        self.of_loops = {
            s.target.name
            for label, block in blocks
            for s in block.body
            if isinstance(s, numba_ir.Assign) and _is_phi(s.value) and max(s.value.incoming_blocks, default=-1) >= label
        }
        for statement in statements:
            self._reads(statement)
            if isinstance(statement, numba_ir.Assign):
                self._assignment(statement)
        for position, statement in enumerate(statements):
            if isinstance(statement, numba_ir.Assign) and _is_phi(statement.value):
                self.order[statement.target.name] = position
                for each in statement.value.incoming_values:
                    if each is not numba_ir.UNDEFINED:
                        self.into[each.name] = statement.target.name
        joins = [s for s in statements if isinstance(s, numba_ir.Assign) and s.target.name.startswith("$phi")]
        last = [(self._last_phi(statement.target.name), statement) for statement in joins]
        # In `a and b or c`, a phi passes the value of b to a test before another phi joins it with c. Only the last phi
        # has the type of the whole expression.
        for name, statement in sorted(last, key=lambda each: self.order.get(each[0], -1)):
            self._join(name, statement.value)

    def _reads(self, statement: Any) -> None:
        read = statement.value if isinstance(statement, numba_ir.Assign) else statement
        if _is_phi(read) or not isinstance(read, numba_ir.Expr | numba_ir.Var | numba_ir.Stmt):
            return
        number = read.loc.line if isinstance(read, numba_ir.Expr) else statement.loc.line
        for variable in [read] if isinstance(read, numba_ir.Var) else read.list_vars():
            if not variable.name.startswith("$"):
                kinds = self.typed.reads.setdefault(variable.unversioned_name, {})
                kinds[number] = name_of(self.typemap[variable.name])
                if variable.name in self.of_loops:
                    self.typed.loops.setdefault(variable.unversioned_name, set()).add(number)

    def _assignment(self, statement: Any) -> None:
        number, value, name = statement.loc.line, statement.value, statement.target.name
        kind, typed = name_of(self.typemap[name]), self.typed
        if not name.startswith("$"):
            known = typed.variables.setdefault(statement.target.unversioned_name, set())
            known.add(kind)
            given = self._annotated(value) or value
            if isinstance(given, numba_ir.Var):
                known.add(name_of(self.typemap[given.name]))
            if given is not value and is_narrowed(self.typemap[given.name], self.typemap[name]):
                typed.narrowed[number] = kind
            if isinstance(value, numba_ir.Expr | numba_ir.Const | numba_ir.Global | numba_ir.FreeVar):
                number = value.loc.line
        elif isinstance(value, numba_ir.Var) and value.name.startswith("$") and value.name in self.globals:
            self.globals[name] = self.globals[value.name]
        self.places.setdefault(name, number)
        match value:
            case numba_ir.Arg():
                return
            case numba_ir.Const() | numba_ir.Global() | numba_ir.FreeVar():
                self._constant(number, name, value.value)
            case numba_ir.Expr(op="getattr"):
                found = self.globals.get(value.value.name)
                if isinstance(found, ModuleType | type) and hasattr(found, value.attr):
                    self._constant(number, name, getattr(found, value.attr))
            case numba_ir.Expr(op="call"):
                if self._annotated(value) is None:
                    self._call(number, value)
            case numba_ir.Expr() if value in self.calltypes and self.calltypes[value] is not None:
                typed.operations.setdefault(number, []).append(_signature(self.calltypes[value]))
            case _:
                pass
        if kind and not name.startswith("$phi") and not _is_phi(value):  # a phi has the place of the next expression
            typed.types.setdefault(number, kind)

    def _annotated(self, value: Any) -> Any:
        """Returns the variable that an assignment to an annotated local converts. Returns None for any other value."""
        is_call = isinstance(value, numba_ir.Expr) and value.op == "call"
        return value.args[0] if is_call and isinstance(self.typemap[value.func.name], AssignmentType) else None

    def _constant(self, number: int, name: str, value: Any) -> None:
        """Notes that the temporary ``name`` holds a constant or an outside object."""
        self.globals[name] = value
        kind = self.typemap[name]
        if isinstance(value, bool | int | float | complex | np.generic) and name_of(kind):
            self.typed.constants.setdefault(number, value)
        elif isinstance(value, np.ndarray) and isinstance(kind, ConstantArrayType):
            self.typed.constants[number] = value
            self.typed.arrays[number] = ArrayElements(kind.shape, name_of(kind.dtype), kind.shown)

    def _call(self, number: int, expression: Any) -> None:
        kind, found = self.typemap[expression.func.name], self.calltypes[expression]
        call = TypedCall(_signature(found))
        for place, argument in enumerate(found.args):
            if isinstance(argument, types.BaseTuple) and all(map(name_of, argument)):
                call.tuples[place] = tuple("float" if part == OPEN else name_of(part) for part in argument)
        if isinstance(kind, types.NumberClass):
            call.callee = name_of(kind.dtype)
        elif isinstance(kind, FunctionValueType):
            dispatcher = kind.dispatcher
            wanted = kind._wanted(found.args)
            call.callee, call.captures = self.kept.of(dispatcher.py_func, wanted), True
        elif isinstance(kind, types.Dispatcher) and isinstance(kind.dispatcher, DeviceDispatcher):
            call.callee = self.kept.of(kind.dispatcher.py_func, found.args)
        elif isinstance(kind, types.RecursiveCall):
            call.callee = self.kept.of(kind.dispatcher_type.dispatcher.py_func, found.args)
        elif isinstance(kind, VectorClass):
            call.callee = name_of(kind.dtype)
        elif is_structures(kind):
            call.is_method = isinstance(kind, types.BoundFunction)
            call.callee = found.return_type.structure
        elif isinstance(kind, types.Function):
            makes = kind.typing_key is complex_of or kind.typing_key in VECTORS.values()
            call.callee = name_of(found.return_type) if makes else kind.typing_key
        elif isinstance(kind, types.BoundFunction) and isinstance(kind.this, ComponentsType):
            self._method(call, kind, found)
        elif isinstance(kind, types.BoundFunction):
            call.callee = None
        else:
            call.callee = self.globals.get(expression.func.name)
        made = found.return_type
        if isinstance(made, BlockArrayType):
            element = made.dtype.structure if isinstance(made.dtype, StructuredType) else name_of(made.dtype)
            call.made = ArrayElements(made.shape, element, made.shown)
        elif isinstance(made, FragmentType):
            layout = made.layout
            call.made = ArrayElements((layout.rows, layout.columns), layout.dtype, made.shown)
        self.typed.calls.setdefault(number, call)

    def _method(self, call: TypedCall, kind: Any, found: Any) -> None:
        """Records a call of a vector's method as that of a function, whose first argument is the vector."""
        call.is_method = True
        name = kind.typing_key.rpartition(".")[2]
        if name in AS_FUNCTIONS:
            call.callee = AS_FUNCTIONS[name][0]
            call.signature = Signature(tuple(map(name_of, (found.recvr, *found.args))), name_of(found.return_type))
            return
        function = self.state.typingctx.resolve_value_type(method_of(kind.this, name))
        call.callee = self.kept.of(function.dispatcher.py_func, (kind.this, *found.args))

    def _last_phi(self, name: str) -> str:
        """Returns the target of the last phi that a value reaches, through any number of phis."""
        seen = set[str]()
        while name in self.into and name not in seen:
            seen.add(name)
            name = self.into[name]
        return name

    def _join(self, name: str, value: Any) -> None:
        if isinstance(value, numba_ir.Var) and value.name in self.places and (kind := name_of(self.typemap[name])):
            self.typed.joined[self.places[value.name]] = kind


def _is_phi(value: Any) -> bool:
    return isinstance(value, numba_ir.Expr) and value.op == "phi"
