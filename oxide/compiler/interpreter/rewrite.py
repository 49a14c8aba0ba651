"""Rewrites a typed function as Python code that computes with the numbers of kernels (``numbers.py``).

Each operator and each call of the kernel language becomes a call of a helper, which is a global of the new function.
Names, statements and source positions stay the same. So a debugger shows the function as its author wrote it, with its
own variables.
"""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any, Final, TypeAlias, final

import numpy as np

from oxide.compiler.check.assignment import stored_names
from oxide.compiler.check.conveniences import BlockTransformer
from oxide.compiler.check.rewritten import compiled
from oxide.compiler.primitives.numbers import (
    COMPONENTS,
    CONVERT,
    FLOATS,
    INTEGERS,
    PARTS,
    Convert,
    binary,
    conversion,
    converter_of,
    each,
    fused,
    part_of,
    unary,
    widened,
)
from oxide.compiler.source.source import outer_names
from oxide.compiler.source.typings import Signature, TypedCall, TypedFunction
from oxide.language import debug, thread
from oxide.language.structures import StructureType, is_structure, structure_of

from .arrays import constant_array, constructed, replaced
from .functions import Coordinates, Refused, fail, helper_for, is_none, print_line
from .threads import MARK, current

_UNKNOWN: Final = object()

Native: TypeAlias = Callable[[str, dict[str, Any], tuple[str, ...], str], Callable[..., Any]]
"""Compiles a function of scalars and returns it, where only a library's own code gives exactly the result of the
compiled kernel. The arguments are the text of an expression of ``x0``, ``x1``, …, the outside objects that the
expression names, the types of ``x0``, ``x1``, …, and the type of the result."""

_OPEN = "float"
"""Stands for the type of a tuple's element that is a Python float. Such a float takes the type of the other operand of
an operation."""


@final
class Interpreter:
    """Rewrites the functions of one kernel, and keeps the results."""

    def __init__(self, kernel: str, *, fma: bool, native: Native) -> None:
        self.kernel, self.fma, self.native = kernel, fma, native
        self._functions: dict[int, tuple[TypedFunction, Callable[..., Any]]] = {}
        self._pending: list[TypedFunction] = []

    def function(self, typed: TypedFunction) -> Callable[..., Any]:
        """Returns the rewritten form of a function. Also rewrites all functions that this function calls. Raises
        ``Refused``."""
        self.callee(typed)
        while self._pending:
            each = self._pending.pop()
            self._functions[id(each)] = each, _Rewriter(self, each).function()
        return self._functions[id(typed)][1]

    def callee(self, typed: TypedFunction) -> Callable[..., Any]:
        """Returns a function that calls the rewritten form of a device function. The rewritten form need not exist yet.
        The returned function converts the arguments, which may have any number types, and the result."""
        if id(typed) not in self._functions:
            self._functions[id(typed)] = typed, _unready
            self._pending.append(typed)
        names = [argument.arg for argument in typed.definition.args.args]
        converts = [CONVERT.get(kind) for kind in typed.parameters]
        result = CONVERT.get(typed.result)
        entry = self._functions

        def call(*args: Any, **kwargs: Any) -> Any:
            given = [*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)]
            values = [value if to is None else to(value) for value, to in zip(given, converts, strict=True)]
            returned = entry[id(typed)][1](*values)
            return returned if result is None else result(returned)

        return call


def _unready(*args: Any) -> Any:
    raise RuntimeError("a function is called before all are rewritten")


@final
class _Rewriter(BlockTransformer):
    """Rewrites one function."""

    def __init__(self, interpreter: Interpreter, typed: TypedFunction) -> None:
        self.interpreter, self.typed = interpreter, typed
        function = typed.original
        self.file = function.__code__.co_filename
        self.helpers: dict[str, Any] = {MARK: True}
        self._names: dict[Any, str] = {}
        self._kept: list[Any] = []
        self._numbers = 0
        self._path: list[int] = []
        """The numbers of the nodes that are being visited, the outermost first."""
        self.outer = outer_names(function)
        definition = typed.definition
        self.locals = {argument.arg for argument in definition.args.args} | stored_names([definition])

    def function(self) -> Callable[..., Any]:
        original = self.typed.original
        definition = self.visit(copy.deepcopy(self.typed.definition))
        ast.fix_missing_locations(definition)
        made = compiled(original, definition)
        names = {**original.__globals__, **self.helpers}
        return FunctionType(made.__code__, names, made.__name__, None, made.__closure__)

    def visit(self, node: ast.AST) -> Any:
        self._path.append(_number(node))
        try:
            return super().visit(node)
        finally:
            self._path.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = self.block(node.body)
        return node

    # Helpers

    def _helper(self, value: Any, name: str, key: Any = None) -> ast.expr:
        """Makes a helper a global of the new function, and returns an expression that names it. Helpers with equal keys
        share a global."""
        known = self._names.get(key) if key is not None else None
        if known is None:
            self._numbers += 1
            known = f"_oxide_{''.join(letter if letter.isalnum() else '_' for letter in name)}_{self._numbers}"
            self.helpers[known] = value
            if key is not None:
                self._names[key] = known
        return ast.Name(known, ast.Load())

    def _call(self, value: Any, name: str, arguments: Iterable[ast.expr], place: ast.AST, key: Any = None) -> ast.expr:
        called = ast.copy_location(self._helper(value, name, key), place)
        return ast.copy_location(ast.Call(called, list(arguments), []), place)

    def kind(self, node: ast.AST) -> str:
        """Returns the type of an expression. Returns "" if the type is not a scalar or is not known."""
        return self.typed.types.get(_number(node), "")

    def _converted(self, new: ast.expr, convert: Convert | None, kind: str) -> ast.expr:
        return new if convert is None else self._call(convert, f"as_{kind}", [new], new, ("convert", kind))

    def _from(self, new: ast.expr, own: str, kind: str) -> ast.expr:
        """Converts an operand from the type ``own`` to the type ``kind``. If ``own`` is "", the helper converts a
        number of any type."""
        return self._widened(new, kind) if not own and kind else self._converted(new, conversion(own, kind), kind)

    def _widened(self, new: ast.expr, kind: str) -> ast.expr:
        return self._call(widened(kind), f"as_{kind}", [new], new, ("widen", kind))

    def _joined(self, node: ast.expr) -> ast.expr:
        """Returns an operand of ``if … else``, ``and`` or ``or``, converted to the type of the whole expression."""
        kind = self.typed.joined.get(_number(node), "")
        return self._converted(self.visit(node), conversion(self.kind(node), kind) if kind else None, kind)

    def refuse(self, node: ast.AST, what: str) -> Refused:
        return Refused(what, self.file, getattr(node, "lineno", 0))

    def resolve(self, node: ast.expr) -> Any:
        """Returns the outside object that an expression names, or ``_UNKNOWN`` if it names none."""
        if isinstance(node, ast.Name):
            return _UNKNOWN if node.id in self.locals else self.outer.get(node.id, _UNKNOWN)
        if isinstance(node, ast.Attribute):
            base = self.resolve(node.value)
            if base is _UNKNOWN or isinstance(base, thread.Coordinates):
                return _UNKNOWN
            return getattr(base, node.attr, _UNKNOWN)
        return _UNKNOWN

    # Names and numbers

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        kind = self.kind(node)
        if kind and isinstance(node.value, bool | int | float | complex):
            return ast.copy_location(ast.Constant(CONVERT[kind](node.value)), node)
        return node

    def _outside(self, node: ast.expr) -> ast.expr | None:
        """Returns the expression that replaces an outside number, array or coordinate. Returns None for any other
        expression."""
        number = _number(node)
        if number in self.typed.arrays:
            array = constant_array(self.typed.constants[number], self.typed.arrays[number])
            return ast.copy_location(self._helper(array, "array", ("array", id(self.typed.constants[number]))), node)
        if (known := self._known(node)) is not None:
            return known
        found = self.resolve(node)
        if is_structure(type(found)):
            value = converter_of(structure_of(type(found)))(found)
            return ast.copy_location(self._helper(value, type(found).__name__, ("constant", id(found))), node)
        if isinstance(found, thread.Coordinates):
            return ast.copy_location(self._helper(Coordinates(found.name), found.name, found.name), node)
        return None

    def _known(self, node: ast.expr) -> ast.Constant | None:
        """Returns the number that replaces an expression whose value the front end knows."""
        value, kind = self.typed.constants.get(_number(node)), self.kind(node)
        if value is None or not kind:
            return None
        plain = value.item() if isinstance(value, np.generic) else value
        return ast.copy_location(ast.Constant(CONVERT[kind](plain)), node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if not isinstance(node.ctx, ast.Load):
            return node
        if node.id not in self.locals:
            return self._outside(node) or node
        kind, loops = self._read(node.id)
        kind = self.kind(node) or kind
        if loops and kind in INTEGERS:  # here, the chain of an index begins anew
            return self._converted(node, CONVERT[kind], kind)
        if kind and self.typed.variables.get(node.id, {kind}) != {kind}:
            return self._widened(node, kind)
        return node

    def _read(self, name: str) -> tuple[str, bool]:
        """Returns the type that a variable has at the expression being visited, and whether a loop changes it. The type
        is "" if it is not a scalar or is not known."""
        reads = self.typed.reads.get(name, {})
        for number in reversed(self._path):
            if number in reads:
                return reads[number], number in self.typed.loops.get(name, ())
        kinds = {*reads.values()}
        return (kinds.pop() if len(kinds) == 1 else ""), False

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.ctx, ast.Load):
            found = self._outside(node)
            if found is not None:
                return found
            of_structure = is_structure(type(self.resolve(node.value)))
            if self.resolve(node) is not _UNKNOWN and not of_structure:
                return node  # attributes of modules stay as written
        node.value = self.visit(node.value)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        kind = self.kind(node.value)
        if not kind and isinstance(node.value, ast.Name) and node.value.id in self.locals:
            kind, _ = self._read(node.value.id)
        if kind not in COMPONENTS:
            return self.generic_visit(node)
        new = [self.visit(node.value), self.visit(node.slice)]
        return self._call(_component(kind), "component", new, node, ("component", kind))

    # Operators

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if (known := self._known(node)) is not None:
            return known
        signatures = self.typed.operations.get(_number(node))
        if not signatures:
            return self.generic_visit(node)  # the front end has removed this expression as unreachable
        return self._binary(node.op, node.left, node.right, signatures[0], node)

    def _binary(
        self, op: ast.operator, left: ast.expr, right: ast.expr, signature: Signature, node: ast.AST
    ) -> ast.expr:
        """Returns the call that computes a binary operator."""
        name, result = type(op).__name__, signature.result
        if name in ("Add", "Sub") and (found := self._fused(name, left, right, signature, node)) is not None:
            return found
        first, second = signature.arguments
        left_kind, right_kind = self.kind(left), self.kind(right)
        base = binary(name, first, second, result)
        new_left, new_right = self.visit(left), self.visit(right)
        if base is None:
            return self._native_operator(op, (new_left, left_kind), (new_right, right_kind), signature, node)
        key = "binary", name, first, second, result
        arguments = self._from(new_left, left_kind, first), self._from(new_right, right_kind, second)
        return self._call(base, name.lower(), arguments, node, key)

    def _native_operator(
        self,
        op: ast.operator,
        left: tuple[ast.expr, str],
        right: tuple[ast.expr, str],
        signature: Signature,
        node: ast.AST,
    ) -> ast.expr:
        if not (signature.result and all(signature.arguments)):
            raise self.refuse(node, f"the operator of {ast.unparse(node)}")
        arguments, texts = _NativeArguments(), list[str]()
        for (new, own), kind in zip((left, right), signature.arguments, strict=True):
            if isinstance(new, ast.Constant) and kind not in PARTS:
                texts.append(arguments.constant(new.value))
            else:
                texts.append(arguments.scalar(self._from(new, own, kind), part_of(kind)))
        text = f"({texts[0]}) {_SYMBOLS[type(op).__name__]} ({texts[1]})"
        called = arguments.function(self.interpreter.native, text, part_of(signature.result))
        called = _of_parts(signature.result, called)
        return self._call(called, type(op).__name__.lower(), arguments.given, node)

    def _fused(
        self, name: str, left: ast.expr, right: ast.expr, signature: Signature, node: ast.AST
    ) -> ast.expr | None:
        """Returns the fused multiply-add for a sum that contains a product, by the rules of ``contraction``. Returns
        None for any other sum."""
        kind = signature.result
        part = part_of(kind)
        if not self.interpreter.fma or part not in ("f32", "f64") or not {*signature.arguments} <= {kind, part}:
            return None
        if not _has_conditions(right) and (product := self._product(left, kind)) is not None:
            a, b = product
            c = self._operand(right, signature.arguments[1])
            made = _of_parts(kind, _fused_left(part, -1.0 if name == "Sub" else 1.0))
            return self._call(made, "fma", [a, b, c], node, ("fma", kind, name))
        if (product := self._product(right, kind)) is not None:
            a, b = product
            c = self._operand(left, signature.arguments[0])
            made = _of_parts(kind, _fused_right(part, -1.0 if name == "Sub" else 1.0))
            return self._call(made, "fma", [c, a, b], node, ("fma of right", kind, name))
        return None

    def _product(self, node: ast.expr, kind: str) -> tuple[ast.expr, ast.expr] | None:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and self.kind(node) == kind):
            return None
        signatures = self.typed.operations.get(_number(node))
        if not signatures or signatures[0].result != kind:
            return None
        first, second = signatures[0].arguments
        return self._operand(node.left, first), self._operand(node.right, second)

    def _operand(self, node: ast.expr, kind: str) -> ast.expr:
        return self._from(self.visit(node), self.kind(node), kind)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if isinstance(node.op, ast.Not):
            node.operand = self.visit(node.operand)
            return node
        if (known := self._known(node)) is not None:
            return known
        signatures = self.typed.operations.get(_number(node))
        if not signatures:
            return self.generic_visit(node)
        (first,), result, name = signatures[0].arguments, signatures[0].result, type(node.op).__name__
        of_number = unary(name, result)
        if of_number is None:
            raise self.refuse(node, f"the operator of {ast.unparse(node)}")
        return self._call(of_number, name.lower(), [self._operand(node.operand, first)], node, (name, result))

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        match node:
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]):
                found = self._call(is_none, "is_none", [self.visit(left)], node, "is none")
                if isinstance(op, ast.IsNot):
                    return ast.copy_location(ast.UnaryOp(ast.Not(), found), node)
                return found
        signatures = self.typed.operations.get(_number(node), [])
        operands = [node.left, *node.comparators]
        wanted: list[set[str]] = [set() for _ in operands]
        for place, signature in enumerate(signatures[: len(node.ops)]):
            # Integers are compared by value, whatever their types.
            if any(part_of(kind) in FLOATS or kind in PARTS for kind in signature.arguments):
                for side, kind in enumerate(signature.arguments):
                    if conversion(self.kind(operands[place + side]), kind) is not None:
                        wanted[place + side].add(kind)
        if any(len(kinds) > 1 for kinds in wanted):
            raise self.refuse(node, f"the comparison {ast.unparse(node)} of several types; compare them two at a time")
        new = [
            self._converted(self.visit(operand), CONVERT[next(iter(kinds))] if kinds else None, "".join(kinds))
            for operand, kinds in zip(operands, wanted, strict=True)
        ]
        node.left, node.comparators = new[0], new[1:]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        node.values = [self._joined(each) for each in node.values]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        node.test = self.visit(node.test)
        node.body, node.orelse = self._joined(node.body), self._joined(node.orelse)
        return node

    # Statements

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in body:
            narrowed = self._narrowed(statement)
            if isinstance(statement, ast.For):
                result += super().block([statement])
                statement.body[:0] = narrowed
            else:
                result += [*super().block([statement]), *narrowed]
        return result

    def _narrowed(self, statement: ast.stmt) -> list[ast.stmt]:
        """Returns statements that convert the annotated variables which a statement assigns, where they may not hold
        what is assigned."""
        targets: list[ast.expr] = []
        match statement:
            case ast.Assign():
                targets = statement.targets
            case ast.AnnAssign() | ast.AugAssign() | ast.For():
                targets = [statement.target]
        names = [node for target in targets for node in ast.walk(target) if _number(node) in self.typed.narrowed]
        made = list[ast.stmt]()
        for name in names:
            assert isinstance(name, ast.Name)
            kind = self.typed.narrowed[_number(name)]
            value = self._converted(ast.copy_location(ast.Name(name.id, ast.Load()), name), CONVERT[kind], kind)
            made.append(ast.copy_location(ast.Assign([ast.Name(name.id, ast.Store())], value), statement))
        return [ast.fix_missing_locations(each) for each in made]

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | list[ast.stmt]:
        signatures = self.typed.operations.get(_number(node))
        if not signatures:
            return node  # unreachable, or on integers known at compile time, for which Python's own arithmetic is right
        before: list[ast.stmt] = []
        target = node.target
        if isinstance(target, ast.Attribute):
            target.value = self._once(target.value, before)
        elif isinstance(target, ast.Subscript):
            target.value = self._once(target.value, before)
            target.slice = self._once(target.slice, before)
        old = copy.deepcopy(target)
        old.ctx = ast.Load()
        # Of the statement's signatures, only the operator's has two scalar arguments.
        of_two = [each for each in signatures if len(each.arguments) == 2 and all(each.arguments)]
        value = self._binary(node.op, old, node.value, of_two[0] if of_two else signatures[0], node)
        if isinstance(target, ast.Attribute | ast.Subscript):
            target.ctx = ast.Store()
        made: ast.stmt = ast.copy_location(ast.Assign([target], value), node)
        return [*before, made] if before else made

    def _once(self, node: ast.expr, before: list[ast.stmt]) -> ast.expr:
        """Returns an expression for the value that the node has before the statement. If this needs a new variable,
        appends the assignment of the variable to ``before``."""
        new: ast.expr = self.visit(node)
        if isinstance(new, ast.Name | ast.Constant):
            return new
        self._numbers += 1
        name = f"_oxide_{self._numbers}"
        before.append(ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], new), node))
        ast.fix_missing_locations(before[-1])
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        message = node.msg or ast.Constant("")
        failed = ast.Expr(self._call(fail, "fail", [message], node, "fail"))
        unless = ast.copy_location(ast.UnaryOp(ast.Not(), self.visit(node.test)), node.test)
        made = ast.copy_location(ast.If(unless, [ast.copy_location(failed, node)], []), node)
        return ast.fix_missing_locations(made)

    # Calls

    def visit_Call(self, node: ast.Call) -> ast.AST:
        found = self.resolve(node.func)
        if found is print:
            return self._call(print_line, "print", [self.visit(each) for each in node.args], node, "print")
        if found is debug.breakpoint:
            return ast.copy_location(ast.Call(self._helper(breakpoint, "breakpoint", "breakpoint"), [], []), node)
        call = self.typed.calls.get(_number(node))
        if call is None or found is breakpoint:
            return self.generic_visit(node)
        arguments = [self.visit(each) for each in node.args]
        keywords = [ast.copy_location(ast.keyword(each.arg, self.visit(each.value)), each) for each in node.keywords]
        callee = call.callee
        if call.is_method and isinstance(node.func, ast.Attribute):
            arguments.insert(0, self.visit(node.func.value))
        if isinstance(callee, TypedFunction):
            called = self.interpreter.callee(callee)
            if call.captures:
                arguments.insert(0, self.visit(node.func))
                called = _with_captures(called)
            new: ast.expr = self._call(called, callee.original.__name__, arguments, node)
        elif isinstance(callee, StructureType):
            maker = replaced(callee) if call.is_method else constructed(callee)
            new = self._call(maker, callee.name, arguments, node, ("structure", callee, call.is_method))
        elif isinstance(callee, str) and callee:
            new = self._call(CONVERT[callee], f"as_{callee}", arguments, node, ("convert", callee))
        elif callee is None:
            node.func, node.args, node.keywords = self.visit(node.func), arguments, keywords
            return node
        else:
            key = id(self.typed), _number(node)
            made = _of_vectors(callee, call, key) or helper_for(callee, call, key)
            if made is None and isinstance(callee, type) and issubclass(callee, tuple):
                node.args, node.keywords = arguments, keywords
                return node
            if made is None:
                return self._native_call(node, callee, call, arguments, keywords)
            new = self._call(made, getattr(callee, "__name__", "call"), arguments, node)
        assert isinstance(new, ast.Call)
        new.keywords = keywords
        return new

    def _native_call(
        self, node: ast.Call, callee: Any, call: TypedCall, new: list[ast.expr], keywords: list[ast.keyword]
    ) -> ast.expr:
        """Returns the call of a compiled function of scalars. It is used for a callee whose exact result only the
        library's own code gives."""
        kinds, result = call.signature.arguments[: len(new)], call.signature.result
        # The signature has named arguments in the callee's order. An argument that is left out has no scalar type.
        of_names = [kind for kind in call.signature.arguments[len(new) :] if kind]
        fits = len(kinds) == len(new) and len(of_names) == len(keywords) and len({*of_names}) <= 1 and bool(result)
        shown = ast.unparse(node.func)
        if not fits or isinstance(callee, ModuleType) or not callable(callee):
            raise self.refuse(node, f"{shown}(…)")
        arguments, texts = _NativeArguments(), list[str]()
        arguments.names["called"] = callee
        for place, (argument, own, kind) in enumerate(zip(new, map(self.kind, node.args), kinds, strict=True)):
            if isinstance(argument, ast.Constant) and kind in INTEGERS:
                texts.append(arguments.constant(argument.value))
            elif kind:
                texts.append(arguments.scalar(self._from(argument, own, kind), kind))
            else:
                text = arguments.of_tuple(argument, call.tuples[place]) if place in call.tuples else None
                if text is None:
                    raise self.refuse(node, f"{shown}(…)")
                texts.append(text)
        for keyword, given, kind in zip(keywords, node.keywords, of_names, strict=True):
            value = self._from(keyword.value, self.kind(given.value), kind)
            texts.append(f"{keyword.arg}={arguments.scalar(value, kind)}")
        # In the compiled expression, the callee is named ``called``, whatever its own name is.
        called = arguments.function(self.interpreter.native, f"called({', '.join(texts)})", result)
        return self._call(called, getattr(callee, "__name__", "call"), arguments.given, node)


@final
class _NativeArguments:
    """Collects the arguments of one compiled expression. ``constant``, ``scalar`` and ``of_tuple`` add an argument and
    return its text. ``function`` compiles the expression."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.names: dict[str, Any] = {}
        self.given: list[ast.expr] = []
        self._tuples: set[int] = set()

    def constant(self, value: Any) -> str:
        """Adds a number as a literal of the expression, so that the rules of literals apply to it. An infinity or a NaN
        becomes a constant with a name."""
        if isinstance(value, int) or math.isfinite(value):
            return repr(value)
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def scalar(self, value: ast.expr, kind: str) -> str:
        self.given.append(value)
        return self._next(kind)

    def of_tuple(self, value: ast.expr, kinds: tuple[str, ...]) -> str | None:
        """Adds a tuple of scalars. Returns None if an element is a Python float whose value is not in the source."""
        elements = list[str]()
        if isinstance(value, ast.Tuple):
            for element, kind in zip(value.elts, kinds, strict=True):
                if kind != _OPEN:
                    elements.append(self.scalar(element, kind))
                elif isinstance(element, ast.Constant):
                    elements.append(self.constant(element.value))
                else:
                    return None
        elif _OPEN in kinds:
            return None
        else:
            self._tuples.add(len(self.given))
            self.given.append(value)
            elements = [self._next(kind) for kind in kinds]
        return f"({', '.join(elements)},)"

    def _next(self, kind: str) -> str:
        self.kinds.append(kind)
        return f"x{len(self.kinds) - 1}"

    def function(self, native: Native, text: str, result: str) -> Callable[..., Any]:
        """Compiles the expression ``text``. Returns it as a function that takes the value of each expression in
        ``self.given``."""
        called = native(text, self.names, tuple(self.kinds), result)
        tuples = self._tuples
        if not tuples:
            return called

        def spread(*args: Any) -> Any:
            return called(*(each for place, arg in enumerate(args) for each in (arg if place in tuples else (arg,))))

        return spread


def _number(node: ast.AST) -> int:
    return getattr(node, "number", 0)


def _of_parts(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of numbers of the type ``kind``, or of vectors, given the function of their components."""
    return each(kind, function) if kind in COMPONENTS else function


def _of_vectors(callee: Any, call: TypedCall, key: Any) -> Callable[..., Any] | None:
    """Returns the function of vectors that computes each component by a function of numbers. Returns None for a call
    without vectors."""
    kind = call.signature.result
    if kind not in COMPONENTS:
        return None
    inner = TypedCall(Signature(tuple(map(part_of, call.signature.arguments)), part_of(kind)), callee)
    made = helper_for(callee, inner, key)
    return None if made is None else each(kind, made)


def _component(kind: str) -> Callable[[Any, int], Any]:
    """Returns the function that returns a vector's component by its index."""
    count, zero = COMPONENTS[kind].count, CONVERT[part_of(kind)](0)

    def component(vector: Any, index: int) -> Any:
        if 0 <= index < count:
            return vector[index]
        current().outside(kind, index, count)
        return zero

    return component


def _has_conditions(node: ast.expr) -> bool:
    return any(
        isinstance(each, ast.IfExp | ast.BoolOp) or (isinstance(each, ast.Compare) and len(each.ops) > 1)
        for each in ast.walk(node)
    )


def _fused_left(kind: str, sign: float) -> Callable[[float, float, float], float]:
    return (lambda a, b, c: fused(kind, a, b, c)) if sign > 0 else (lambda a, b, c: fused(kind, a, b, -c))


def _fused_right(kind: str, sign: float) -> Callable[[float, float, float], float]:
    return (lambda c, a, b: fused(kind, a, b, c)) if sign > 0 else (lambda c, a, b: fused(kind, -a, b, c))


def _with_captures(called: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that takes the numbers which a function captures, a tuple, in front of the arguments."""
    return lambda captures, *args: called(*args, *captures)


_SYMBOLS = {"Pow": "**", "Div": "/", "FloorDiv": "//", "Mod": "%", "Add": "+", "Sub": "-", "Mult": "*"}
