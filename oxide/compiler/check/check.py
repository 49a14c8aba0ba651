"""Checks a kernel's syntax tree before typing: unsupported Python, and the width of ``index_2d``.

The width rule makes ``DisjointSlice`` sound. With two widths in one kernel, 5 and 100, two threads would reach element
5: the thread at row 1, column 0 with the first width, and the thread at row 0, column 5 with the second. So a width
must be a constant, or a kernel parameter that is never assigned to. Device functions may pass the width on. All calls
that a kernel reaches must use the same width. To keep this decidable, device functions and ``index_2d`` are only called
by name, never stored or passed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeAlias, final

import numpy as np

from oxide.compiler.signature.annotations import default_values, dtype_name, of_element
from oxide.compiler.signature.device_function import DeviceFunction
from oxide.compiler.signature.signature import Closed, Lifted, NumbaParameter, Parameter
from oxide.compiler.signature.tuples import Fields
from oxide.compiler.signature.untyped_arguments import NumberType
from oxide.compiler.source.annotated_locals import annotated_type
from oxide.compiler.source.source import EMPTY, column_of, located, outer_names, parse_definition
from oxide.errors import CompileError
from oxide.host.messages import written
from oxide.language import thread
from oxide.language.shared import DynamicSharedArray, LocalArray, SharedArray
from oxide.language.structures import StructureType, is_named_tuple
from oxide.language.types import ScalarType
from oxide.language.unroll import unroll
from oxide.language.vectors import Vector, VectorType
from oxide.language.views import zip_exact

from . import advice
from .assignment import stored_names, unassigned_read
from .constructs import PRINT_KEYWORDS, UNSUPPORTED, refused
from .numpy_functions import called_in_kernels, in_kernels
from .rewritten import plain
from .vocabulary import is_dtype, is_numbas, is_of_the_language, is_usable, refusal

Uniform: TypeAlias = tuple[str, object] | None
"""The source of a value that is the same in all threads: ("parameter", name), also for ``c.shape[1]``; ("constant",
number); ("slice", a ``Parameter``) for a slice; ("tuple", its ``Fields``) for a tuple parameter; or
("function", a ``DeviceFunction`` or a ``Lifted``). None: the value may differ between threads."""


@dataclass(slots=True)
class Uses:
    """The features that a kernel and its device functions use: thread indices, numba-cuda's functions, outside
    arrays."""

    index_1d: bool = False
    index_2d: bool = False
    index_3d: bool = False
    width: Uniform = None
    arrays: bool = False
    """True if a parameter is an array of numba-cuda, which a loop goes over, and whose slices are views."""
    numba_cuda: bool = False
    """True if the kernel names an object of numba-cuda, or takes an array of numba-cuda."""
    sync_grid: bool = False
    unchecked: bool = False
    """True if the kernel uses ``unchecked`` or ``unchecked_mut``."""
    other_elements: bool = False
    """True if a thread may write elements other than its own."""
    scattered: set[str] = field(default_factory=set)
    """The names of the outputs that ``scatter`` writes."""
    constants: dict[int, str] = field(default_factory=dict)
    """The kernel's name for each outside array, by the array's ``id``."""
    leaves: CompileError | None = None
    """The error to raise if the kernel syncs the grid. It names the first place at which a thread may end early."""
    unwritten: CompileError | None = None
    """The error to raise unless a launch may leave elements unwritten: the width is the number of the only output's
    rows."""
    renamed: CompileError | None = None
    """The error for the first type that is named as NumPy names it. It is raised if there is no other."""
    definitions: dict[Callable[..., Any], _Definition] = field(default_factory=dict)
    """The source of each function that was reached."""
    checked: set[Hashable] = field(default_factory=set)
    """The device functions that passed, each with the sources of the values that it was given. A call with the same
    ones needs no other check: a function that reaches one of its callers was refused at its first call."""


@final
class _Definition:
    """A function's source: the result of ``parse_definition``, the names that it assigns, and the ``id`` of each node
    that a ``for`` iterates over."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.tree, self.indent = parse_definition(function)
        self.assigned = stored_names([self.tree])
        self.iterated = {id(node.iter) for node in ast.walk(self.tree) if isinstance(node, ast.For)}


def check(
    function: Callable[..., Any], name: str, parameters: tuple[Closed, ...], *, numba_style: bool = False
) -> Uses:
    """Checks a kernel and every device function it reaches. Raises ``CompileError``.

    In a kernel with numba-cuda's semantics, only the widths, the numbers of arguments and ``unroll`` are checked: numba
    reports everything else.
    """
    arrays = any(isinstance(each, NumbaParameter) for each in parameters)
    uses = Uses(arrays=arrays, numba_cuda=arrays)
    values: dict[str, Uniform] = {}
    for parameter in parameters:
        values[parameter.name] = _shared_by_threads(parameter)
    if not numba_style:
        _Body(function, name, uses, (), is_kernel=True).check(values)
    elif _has_source(function):
        _Body(function, name, uses, (), is_kernel=True, numba_style=True).check(values)
    elif any(parameter.kind in ("disjoint", "tiles") for parameter in parameters):
        raise located(function, f"the source of {function.__name__} cannot be read; define it in a file")
    if uses.renamed is not None:
        raise uses.renamed
    if uses.sync_grid and uses.leaves is not None:
        raise uses.leaves
    matrices = [each for each in parameters if isinstance(each, Parameter) and each.is_matrix]
    if uses.index_1d or uses.other_elements or len(matrices) > 1:
        uses.unwritten = None
    return uses


def _shared_by_threads(parameter: Closed) -> Uniform:
    """Returns where a parameter's value comes from (``Uniform``) if the value is the same in all threads, else None."""
    if _is_number(parameter):
        return "parameter", parameter.name
    if isinstance(parameter.lifted, Lifted | Fields):
        return "function" if isinstance(parameter.lifted, Lifted) else "tuple", parameter.lifted
    return ("slice", parameter) if isinstance(parameter, Parameter) else None


def _is_number(parameter: Closed) -> bool:
    if isinstance(parameter, NumbaParameter):
        return isinstance(parameter.type, NumberType)
    return parameter.kind == "scalar"


def _has_source(function: Callable[..., Any]) -> bool:
    try:
        parse_definition(function)
    except CompileError:
        return False
    return True


_UNRESOLVED = object()
_ARRAYS = (SharedArray, DynamicSharedArray, LocalArray)


@final
class _Body:
    """Checks the body of one function, as called by one chain of callers."""

    def __init__(
        self,
        function: Callable[..., Any],
        kernel: str,
        uses: Uses,
        callers: tuple[Callable[..., Any], ...],
        *,
        is_kernel: bool = False,
        numba_style: bool = False,
    ) -> None:
        self.function = function
        self.numba_style = numba_style
        self.kernel = kernel
        self.uses = uses
        self.callers = (*callers, function)
        self.is_kernel = is_kernel
        source = function if numba_style else plain(function)
        found = uses.definitions.get(source)
        if found is None:
            found = uses.definitions[source] = _Definition(source)
        self.tree, self.indent = found.tree, found.indent
        self.assigned, self.iterated = found.assigned, found.iterated
        arguments = self.tree.args
        if numba_style:
            pass  # numba reports parameters that it does not support
        elif arguments.vararg or arguments.kwarg or arguments.posonlyargs:
            raise self._error(self.tree, f"{function.__name__}: *args, **kwargs and / are not supported in kernels")
        elif not is_kernel:
            for name, default in default_values(function).items():
                if not isinstance(default, bool | int | float | complex | np.generic):
                    (node,) = (argument for argument in arguments.args if argument.arg == name)
                    raise self._error(node, f"{name}={written(default):.80}: a default value in a kernel is a number")
        self.parameters = [argument.arg for argument in arguments.args]
        self.by_position = self.parameters[: function.__code__.co_argcount]
        outer = outer_names(source)
        self.outer = {name: value for name, value in outer.items() if value is not EMPTY}
        self.empty = outer.keys() - self.outer.keys()
        """The closure variables that have no value yet."""
        self.annotated: dict[str, ScalarType | VectorType | StructureType] = {}
        """The types of the annotated local variables that were visited."""

    def check_once(self, values: dict[str, Uniform]) -> None:
        """Does what ``check`` does, unless the function has passed with the same ``values``."""
        key = self.function, tuple(values.items())
        if key not in self.uses.checked:
            self.check(values)
            self.uses.checked.add(key)

    def check(self, values: dict[str, Uniform]) -> None:
        """Checks the body. ``values`` has the ``Uniform`` of each parameter: where its value comes from."""
        self.values = {name: value for name, value in values.items() if name not in self.assigned}
        for name, value in values.items():
            if name in self.assigned and value is not None and value[0] == "function":
                raise self._error(self.tree, f"{name} is a function that was passed: assign to another name")
        for number, statement in enumerate(self.tree.body):
            if number == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue
            self._visit(statement)
        if not self.numba_style:
            self._check_assignment()

    def given(self, call: ast.Call) -> dict[str, ast.expr]:
        """Returns the arguments of a call of this function, by parameter name."""
        by_name = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
        return dict(zip(self.by_position, call.args, strict=False)) | by_name

    def _check_assignment(self) -> None:
        found = unassigned_read(self.tree, self._constant)
        if found is not None:
            name, sometimes = found
            problem = "may be unassigned here: give it a value on every path to this line"
            if not sometimes:
                problem = "is read here before it is assigned"
            raise self._error(name, f"{name.id} {problem}")

    def _visit_numba(self, node: ast.AST) -> None:
        """Checks a statement with numba-cuda's semantics: only widths, argument counts and ``unroll``."""
        for child in ast.walk(node):
            self._note_attribute(child)
            if isinstance(child, ast.Call):
                called = self._resolve(child.func)
                self._note_call(child, called)
                function = called.function if isinstance(called, DeviceFunction) else getattr(called, "py_func", None)
                if function is not None:
                    self._numba_function(child, function)

    def _note_call(self, node: ast.Call, called: Any) -> None:
        self._check_count(node, called)
        self._check_unroll(node, called)
        if called is thread.index_1d:
            self.uses.index_1d = True
        elif called is thread.sync_grid:
            self.uses.sync_grid = True
        elif called is thread.index_2d:
            self._index_2d(node)
        elif called is thread.index_3d:
            self.uses.index_3d = True

    def _note_attribute(self, node: ast.AST) -> None:
        if isinstance(node, ast.Attribute) and node.attr in ("unchecked_mut", "scatter"):
            self.uses.other_elements = True
            value = self._uniform(node.value)
            if node.attr == "scatter" and value is not None and isinstance(value[1], Parameter):
                self.uses.scattered.add(value[1].name)
        if isinstance(node, ast.Attribute) and node.attr in ("unchecked", "unchecked_mut"):
            self.uses.unchecked = True

    def _numba_function(self, node: ast.Call, function: Callable[..., Any]) -> None:
        if function in self.callers or not _has_source(function):
            return
        body = _Body(function, self.kernel, self.uses, self.callers, numba_style=True)
        given = body.given(node)
        body.check_once({name: self._uniform(given[name]) if name in given else None for name in body.parameters})

    def _visit(self, node: ast.AST) -> None:
        if self.numba_style:
            self._visit_numba(node)
            return
        self._note_attribute(node)
        problem = refused(node) or UNSUPPORTED.get(type(node))
        if problem is not None and not (self.uses.arrays and isinstance(node, ast.Slice | ast.Subscript)):
            raise self._error(node, problem)
        match node:
            case ast.JoinedStr() | ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod()):
                raise self._error(node, advice.of_text(node))
            case ast.Call():
                self._call(node)
                return
            case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
                self._reference(node)
                if isinstance(node, ast.Attribute):
                    self._check_element(node)
                if isinstance(node, ast.Attribute) and self._resolve(node) is _UNRESOLVED:
                    self._visit(node.value)
                return
            case ast.Constant(value=str()):
                raise self._error(node, "strings are not supported in kernels, but in print and as an assert's message")
            case ast.Constant(value=value) if not (value is None or isinstance(value, bool | int | float | complex)):
                raise self._error(node, f"{type(value).__name__} values are not supported in kernels")
            case ast.Return(value=value) if self.is_kernel and not _is_none(value):
                raise self._error(node, "a kernel returns nothing: write its result through a DisjointSlice")
            case ast.For(iter=iterated) if not self.uses.arrays:
                self._check_iterated(iterated)
            case ast.AnnAssign(value=value):
                if value is not None:
                    self._visit(value)
                problem = self._problem_with_annotation(node)
                if problem is not None:
                    raise self._error(node, problem)
                return
            case ast.Attribute() | ast.Subscript():
                self._check_element(node)
                self._check_axes(node)
            case ast.Assign(targets=[ast.Tuple() as names], value=value):
                fields = self._fields(value)
                if fields is not None and len(names.elts) != len(fields.elements):
                    shown, count = ast.unparse(value), len(fields.elements)
                    raise self._error(node, f"{shown} has {count} elements, and here it becomes {len(names.elts)}")
            case ast.Assert(test=test, msg=message):
                if not (message is None or (isinstance(message, ast.Constant) and isinstance(message.value, str))):
                    raise self._error(message, "the message of an assert in a kernel is a string or an f-string")
                self._visit(test)
                self._may_leave(node, "has no assert: one that fails")
                return
            case ast.Compare(ops=operators, comparators=others):
                for operator, other in zip(operators, others, strict=True):
                    if isinstance(operator, ast.Is | ast.IsNot) and not _is_none(other):
                        raise self._error(node, "is compares with None only in kernels: use == for numbers")
                    if isinstance(operator, ast.Eq | ast.NotEq) and (_is_none(other) or _is_none(node.left)):
                        found, instead = ("==", "is") if isinstance(operator, ast.Eq) else ("!=", "is not")
                        raise self._error(node, f"{found} None is not supported: use {instead} None")
            case _:
                pass
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.operator | ast.cmpop) and type(child) in UNSUPPORTED:
                raise self._error(node, UNSUPPORTED[type(child)])
            if not isinstance(child, ast.expr_context):
                self._visit(child)

    def _check_iterated(self, node: ast.expr) -> None:
        """Refuses a loop over what cannot be a range or a view. The type of a local is not known yet."""
        if isinstance(node, ast.Call) and self._resolve(node.func) is unroll and node.args:
            node = node.args[0]
            if not isinstance(node, ast.Call) or self._resolve(node.func) is not range:
                raise self._error(node, "unroll takes a range, as in: for i in unroll(range(8))")
        if isinstance(node, ast.Call):
            called = self._resolve(node.func)
            fine = called is range or called is zip_exact or isinstance(called, DeviceFunction) or called is _UNRESOLVED
        else:
            local = self.assigned if self.is_kernel else {*self.assigned, *self.parameters}
            fine = isinstance(node, ast.Name) and node.id in local
        if not fine:
            name = getattr(self._resolve(node.func), "__name__", "") if isinstance(node, ast.Call) else ""
            if name == "zip" and isinstance(node, ast.Call) and any(each.arg == "strict" for each in node.keywords):
                raise self._error(node, advice.ZIP_STRICT)
            if name in advice.BUILTINS:
                raise self._error(node, advice.of_builtin(f"{name}(...)", name))
            raise self._error(node, refused(node) or self._loop_problem(node))

    def _loop_problem(self, node: ast.expr) -> str:
        """Returns the error for a loop over an expression that no loop goes over."""
        self._refuse_attribute_of_class(node)
        shown = ast.unparse(node)
        base = node.value if isinstance(node, ast.Subscript) else node
        outside = self._resolve(base)
        if base is not node and any(isinstance(each, ast.Name) for each in ast.walk(node.slice)):  # type: ignore[attr-defined]
            made = None  # the index is not known outside the kernel
        else:
            made = advice.as_constant(shown, outside)
        if made is not None:
            return f"{shown} is a {type(outside).__name__}: outside the kernel write {made}, and loop over it"
        if isinstance(outside, np.ndarray):
            indexed = advice.indexed(shown, outside.ndim, length="len({})")
            return advice.of_loop(node, indexed if base is node else "")
        if outside is not _UNRESOLVED:
            return refusal(ast.unparse(base), outside)
        fields = self._fields(node)
        if fields is not None:
            one = f"{shown}.{fields.names[0]}" if fields.names else f"{shown}[0]"
            instead = f"write the body of the loop for each element, as {one}, or pass the numbers as a Slice"
            return advice.of_loop(node, instead)
        parameter = self._parameter(node.id) if isinstance(node, ast.Name) else None
        if parameter is None:
            return advice.of_loop(node)
        if parameter.kind in ("disjoint", "tiles"):
            return advice.of_loop(node, f"a thread reaches its own element, {shown}.get_mut(index)")
        if parameter.kind == "atomic":
            length, index = ("len({})", "{}") if parameter.ndim == 1 else ("{}.shape[0]", "({})")
            element = "{}.load(" + index + ")"
            return advice.of_loop(node, advice.indexed(shown, parameter.ndim, length=length, element=element))
        return advice.of_loop(node, advice.indexed(shown, parameter.ndim) if parameter.ndim > 1 else "")

    def _problem_with_annotation(self, node: ast.AnnAssign) -> str | None:
        """Returns the error for an annotated assignment, or None if each assignment converts to the annotated type."""
        name, shown = ast.unparse(node.target), ast.unparse(node.annotation)
        kind = annotated_type(node.annotation, self.outer) or self._resolve(node.annotation)
        if not isinstance(node.target, ast.Name):
            value = "…" if node.value is None else ast.unparse(node.value)
            instead = f"{shown}({value})" if isinstance(kind, ScalarType) else value
            return f"only a local variable has an annotation in a kernel: write {name} = {instead}"
        if name in self.parameters:
            return f"{name} is a parameter, and its type is that of the call: annotate a variable of another name"
        if not isinstance(kind, ScalarType | VectorType | StructureType):
            dtype = dtype_name(kind)
            return f"{name}: {shown} is no scalar type of kernels: write " + (
                f"{name}: {dtype}" if dtype is not None else f"one, as in {name}: f32, or leave the annotation out"
            )
        if self.annotated.setdefault(name, kind) != kind:
            return f"{name} is annotated as {self.annotated[name].name} before: a variable has one type"
        return None

    def _parameter(self, name: str) -> Parameter | None:
        """Returns the slice parameter that a local name stands for, and None for any other name."""
        value = self.values.get(name)
        return value[1] if value is not None and isinstance(value[1], Parameter) else None

    def _fields(self, node: ast.expr) -> Fields | None:
        """Returns the fields of a tuple parameter, and None for anything else."""
        value = self._uniform(node)
        return value[1] if value is not None and isinstance(value[1], Fields) else None

    def _check_element(self, node: ast.Attribute | ast.Subscript) -> None:
        fields = self._fields(node.value)
        problem = None if fields is None else fields.problem(node)
        if problem is not None:
            raise self._error(node, f"{ast.unparse(node)}: {problem}")

    def _check_axes(self, node: ast.Attribute | ast.Subscript) -> None:
        """Refuses ``a[i][j]`` if ``a`` is a slice of several axes. The error says to write ``a[i, j]``."""
        match node:
            case ast.Subscript(value=ast.Subscript(value=ast.Name(id=name), slice=first), slice=second):
                axes = [
                    part for each in (first, second) for part in (each.elts if isinstance(each, ast.Tuple) else [each])
                ]
                parameter = self._parameter(name)
                if parameter is not None and parameter.ndim == len(axes):
                    shown = ", ".join(map(ast.unparse, axes))
                    raise self._error(
                        node, f"{name} is a {parameter.annotation}, whose axes share one index: write {name}[{shown}]"
                    )

    def _call(self, node: ast.Call) -> None:
        for part in (node.func, *node.args):
            if isinstance(part, ast.Name) and (problem := refused(part)):
                raise self._error(part, problem)
        called = called_in_kernels(self._resolve(node.func))
        passed = self._uniform(node.func) if called is _UNRESOLVED else None
        if passed is not None and passed[0] == "function":
            called = passed[1]
        self._check_method(node.func)
        if called is _UNRESOLVED:
            self._visit(node.func)
        elif not isinstance(called, Lifted):
            self._usable(node.func, called)
        takes_functions = isinstance(called, DeviceFunction | Lifted)
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if takes_functions and argument in node.args and self._function_of(argument) is not None:
                continue
            if called is print and isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                continue
            named = self._resolve(argument)
            if called in _ARRAYS and any(named is kind for kind in (int, float, bool, complex)):
                raise self._error(argument, f"the elements of {ast.unparse(node.func)}: {of_element(named)}")
            if not (is_numbas(called) and is_dtype(argument.value if isinstance(argument, ast.Constant) else named)):
                self._visit(argument)
        if called is print and node.keywords:
            raise self._error(node, PRINT_KEYWORDS)
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self._error(keyword.value, UNSUPPORTED[ast.Starred])
        if called is _UNRESOLVED:
            return
        if isinstance(called, Lifted):
            self._device_function(node, called.function, called)
            return
        if hasattr(called, "py_func"):
            self._numba_function(node, called.py_func)
        if called is range and len(node.args) == 3:
            step = node.args[2]
            if isinstance(step, ast.Constant) and step.value == 0:
                raise self._error(step, "the step of range(...) must not be 0")
            if self._constant(step.operand if isinstance(step, ast.UnaryOp) else step) is None:
                self._may_leave(step, "has no range(...) with a step that is not constant: one of 0")
        self._note_call(node, called)
        if isinstance(called, DeviceFunction):
            self._device_function(node, called)

    def _check_method(self, node: ast.expr) -> None:
        """Refuses a method of NumPy's arrays, as of ``x.sum()``, if ``x`` is a slice."""
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=method) if method == "astype" or method in advice.NUMPY:
                shown = f"{name}.{method}"
                problem = f"{shown} is not supported in kernels: convert each element, as in f32({name}[i])"
                if method != "astype":
                    problem = advice.of_numpy(shown, method, self.numba_style)
                if self._parameter(name) is not None:
                    raise self._error(node, problem)

    def _check_count(self, node: ast.Call, called: Any) -> None:
        """Refuses a call with the wrong number of arguments, since numba's message would describe its own internals."""
        shown, given = ast.unparse(node.func), len(node.args) + len(node.keywords)
        if isinstance(called, thread.Coordinates):
            raise self._error(node, f"{shown} is not called: its numbers are {shown}.x, {shown}.y and {shown}.z")
        if called is len and (given != 1 or node.keywords):
            raise self._error(node, f"{shown}(...) takes one argument, by position; the call has {given}")
        if called is complex or (isinstance(called, ScalarType) and called.kind == "c"):
            if given not in (1, 2) or node.keywords:
                takes = "takes a number, or a real and an imaginary part, by position"
                raise self._error(node, f"{shown}(...) {takes}; the call has {given} arguments")
        elif (isinstance(called, ScalarType) or called in (int, float, bool)) and (given != 1 or node.keywords):
            raise self._error(
                node, f"{shown}(...) converts one number, given by position; the call has {given} arguments"
            )
        without = thread.index_1d, thread.index_3d, thread.index_2d_row, thread.index_2d_col, thread.sync_grid
        if called in without and given:
            raise self._error(node, f"{shown}() takes no arguments; the call has {given}")

    def _check_unroll(self, node: ast.Call, called: Any) -> None:
        """Refuses an ``unroll(…)`` that is not the iterable of a ``for``: it would mark the function's next loop."""
        if called is unroll and id(node) not in self.iterated:
            raise self._error(node, "unroll is written in the line of its loop, as in: for i in unroll(range(8))")

    def _index_2d(self, node: ast.Call) -> None:
        if len(node.args) > 1 or node.keywords:
            raise self._error(node, "thread.index_2d takes one argument, the width, by position")
        self.uses.index_2d = True
        if not node.args:
            return  # the front end refuses the index for outputs that need the width
        width = self._uniform(node.args[0])
        if width is not None and width[0] not in ("parameter", "constant"):
            width = None
        if isinstance(node.args[0], ast.Constant) and width is None:
            raise self._error(
                node.args[0], f"the width of thread.index_2d must be an integer; it is {node.args[0].value!r}"
            )
        if width is None:
            raise self._error(
                node.args[0],
                f"the width of thread.index_2d is {ast.unparse(node.args[0])}, which may differ between threads, and "
                "two threads could then reach the same element; use a kernel parameter that is never assigned to, a "
                f"constant, or {self._width_of_matrix()} written in the call",
            )
        if self.uses.width is not None and self.uses.width != width:
            raise self._error(
                node,
                f"thread.index_2d is called with width {width[1]} here and {self.uses.width[1]} elsewhere in kernel "
                f"{self.kernel}; two threads could then reach the same element: use one width in a kernel",
            )
        self.uses.width = width
        for matrix in filter(None, map(self._parameter, self.values)):
            if matrix.is_matrix and width[1] == matrix.lengths[0]:
                rows, columns = matrix.lengths
                self.uses.unwritten = self._error(
                    node.args[0],
                    f"the width of thread.index_2d is {rows}, the number of rows of {matrix.name}: the threads of "
                    f"further columns have no index; use {columns}, or declare @kernel(partial=True) if that is meant",
                )

    def _width_of_matrix(self) -> str:
        """Returns the width of the first ``DisjointSlice2`` parameter as an expression, or else an example."""
        known = ((name, value[1]) for name, value in self.values.items() if value is not None)
        slices = ((name, each.annotation) for name, each in known if isinstance(each, Parameter))
        found = next((name for name, annotation in slices if annotation.startswith("DisjointSlice2")), None)
        return "c.shape[1] of a DisjointSlice2 c" if found is None else f"{found}.shape[1]"

    def _may_leave(self, node: ast.AST, what: str) -> None:
        """Records the first place at which a thread may end early, which is an error if the kernel syncs the grid."""
        self.uses.leaves = self.uses.leaves or self._error(
            node,
            f"kernel {self.kernel} uses thread.sync_grid(), so it {what} ends its thread, and the threads of the grid "
            "would wait for it forever",
        )

    def _constant(self, node: ast.expr) -> int | None:
        """Returns the integer that an expression always has, or None."""
        value = self._uniform(node)
        return value[1] if value is not None and value[0] == "constant" and isinstance(value[1], int) else None

    def _function_of(self, node: ast.expr) -> Uniform:
        """Returns the function that an expression names, as a ``Uniform``. Returns None for any other expression."""
        value = self._uniform(node)
        return value if value is not None and value[0] == "function" else None

    def _extent(self, node: ast.expr) -> str | None:
        """Returns the name of the length that an expression like ``c.shape[1]`` reads from a slice parameter, or None.
        Raises ``CompileError`` for a slice of one axis."""
        match node:
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=ast.Constant(value=axis)
            ):
                parameter = self._parameter(name)
                if parameter is not None and type(axis) is int:
                    if parameter.ndim == 1:
                        instead = parameter.annotation.replace("[", "2[", 1)
                        raise self._error(
                            node,
                            f"{name} is a {parameter.annotation}, which has no shape: annotate it as {instead}, or "
                            "pass the width as a parameter",
                        )
                    return parameter.lengths[axis] if 0 <= axis < parameter.ndim else None
        return None

    def _device_function(self, node: ast.Call, called: DeviceFunction[..., Any], lifted: Lifted | None = None) -> None:
        if called.function in self.callers:
            raise self._error(node, f"{called.function.__name__} calls itself; recursion is not supported in kernels")
        body = _Body(called.function, self.kernel, self.uses, self.callers)
        given = body.given(node)
        own = body.parameters if lifted is None else body.parameters[: lifted.arity]
        defaults = default_values(called.function) if lifted is None else {}
        twice = len(node.args) + len(node.keywords) != len(given)
        if twice or not set(own) - set(defaults) <= set(given) <= set(own):
            own = [name for name in own if name not in called.captures]
            shown = [f"{name}={defaults[name]}" if name in defaults else name for name in own]
            if len(body.by_position) < len(own):
                shown.insert(len(body.by_position), "*")
            takes = ", ".join(shown)
            raise self._error(node, f"{called.function.__name__} takes ({takes}); the call does not match")
        values: dict[str, Uniform] = {name: self._uniform(given[name]) for name in own if name in given}
        values |= {name: ("constant", value) for name, value in defaults.items() if name not in given}
        if lifted is not None:
            captures = zip(body.parameters[lifted.arity :], lifted.parts, strict=True)
            values.update({name: ("parameter", part.name) for name, part in captures})
        body.check_once(values)

    def _uniform(self, node: ast.expr) -> Uniform:
        if isinstance(node, ast.Name) and node.id in self.values:
            return self.values[node.id]
        if isinstance(node, ast.Attribute | ast.Subscript):
            base = self._uniform(node.value)
            if base is not None and isinstance(base[1], Fields):
                element = base[1].element(node)
                return None if element is None else _shared_by_threads(element)
            extent = self._extent(node)
            if extent is not None:
                return "parameter", extent
        value = node.value if isinstance(node, ast.Constant) else self._resolve(node)
        if isinstance(value, DeviceFunction):
            return "function", value
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            return "constant", int(value)
        return None

    def _reference(self, node: ast.Name | ast.Attribute) -> None:
        """Checks the use of a name as a value, not as the function of a call."""
        value = self._resolve(node)
        if value is _UNRESOLVED:
            self._refuse_attribute_of_class(node)
            if self._function_of(node) is not None:
                raise self._error(
                    node, f"{ast.unparse(node)} is a function: it can only be called, or passed to a device function"
                )
            if isinstance(node, ast.Name) and node.id in self.empty:
                problem = (
                    f"{node.id} has no value: the function around {self.function.__name__} has not assigned it yet"
                )
                raise self._error(node, problem)
            if isinstance(node, ast.Name) and node.id not in self.assigned and node.id not in self.parameters:
                raise self._error(node, advice.undefined(node.id, {*self.outer, *self.assigned, *self.parameters}))
            return
        of_language = isinstance(value, type) and (issubclass(value, Vector) or is_named_tuple(value))
        is_type = isinstance(value, ScalarType | VectorType) or of_language
        if callable(value) and not is_type and not is_numbas(value):
            shown = ast.unparse(node)
            if is_of_the_language(value) or isinstance(value, DeviceFunction):
                raise self._error(node, f"{shown} can only be called in a kernel, not stored or passed")
            self._refuse(node, value, advice.of_value(shown, value))
            return
        self._usable(node, value)

    def _refuse_attribute_of_class(self, node: ast.expr) -> None:
        inner = node
        while isinstance(inner, ast.Attribute) and isinstance(node, ast.Attribute):
            holder = self._resolve(inner.value)
            if isinstance(holder, type) and not is_numbas(holder):
                kind = holder if inner is node else None
                raise self._error(node, advice.of_attribute(ast.unparse(node), kind, node.attr))
            inner = inner.value

    def _usable(self, node: ast.expr, value: Any) -> None:
        """Refuses an outside object that kernels cannot use."""
        if is_numbas(value):
            self.uses.numba_cuda = True
            return
        if isinstance(value, np.ndarray):
            self.uses.constants[id(value)] = ast.unparse(node)
        if not is_usable(value):
            self._refuse(node, value, refusal(ast.unparse(node), value))

    def _refuse(self, node: ast.expr, value: Any, problem: str) -> None:
        """Raises the error for an outside object. The error for a type of NumPy, which has the same meaning under
        another name, is raised only if nothing else is wrong: it would hide what cannot be had under any name."""
        error = self._error(node, problem)
        if dtype_name(value) is None:
            raise error
        self.uses.renamed = self.uses.renamed or error

    def _resolve(self, node: ast.expr) -> Any:
        """Returns the outside object that an expression names, in a kernel's form of it, or ``_UNRESOLVED``."""
        found = self._named(node)
        return found if self.numba_style else in_kernels(found)

    def _named(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            if node.id in self.assigned or node.id in self.parameters:
                return _UNRESOLVED
            return self.outer.get(node.id, _UNRESOLVED)
        if isinstance(node, ast.Attribute):
            base = self._named(node.value)
            if isinstance(base, ModuleType) or (isinstance(base, type) and is_numbas(base)):
                if not hasattr(base, node.attr):
                    if self.numba_style:  # numba reports it, unless the branch is dead
                        return _UNRESOLVED
                    near = advice.similar(node.attr, [name for name in vars(base) if name[0] != "_"])
                    raise self._error(node, f"{ast.unparse(node.value)} has no {node.attr}{near}")
                found = getattr(base, node.attr)
                # e.g. threadIdx.x, which has no value here
                return _UNRESOLVED if isinstance(found, property) else found
        return _UNRESOLVED

    def _error(self, node: ast.AST, problem: str) -> CompileError:
        line = getattr(node, "lineno", self.function.__code__.co_firstlineno)
        column = getattr(node, "col_offset", None)
        if column is not None:
            column = column_of(self.function.__code__.co_filename, (line, column + self.indent, line, 0))
        return located(self.function, problem, line, column)


def _is_none(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)
