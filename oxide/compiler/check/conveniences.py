"""Rewrites Python's conveniences as plainer Python before a kernel is checked and typed.

- a loop over an array, or over ``enumerate``, ``zip`` or ``reversed`` of ranges and arrays, becomes a loop over a
  range;
- ``match`` on constants becomes ``if`` and ``elif``;
- ``:=`` becomes an assignment before the statement;
- a device function's default values become arguments of the call;
- f-strings and ``%`` formatting in arguments of ``print`` become a format and its values;
- an f-string as the message of an ``assert`` becomes a constant, in which the numbers of outside constants are known
  and other expressions stand as written.

Each new expression has the line and the column of the expression that it replaces, so errors, faults and carets point
into the original file. Anything else stays unchanged, and later checks refuse what kernels do not support. Kernels with
numba-cuda's semantics are not rewritten.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable
from typing import Any, TypeVar, final

import numpy as np

from oxide.compiler.signature.annotations import default_values
from oxide.compiler.signature.device_function import DeviceFunction
from oxide.compiler.source.source import EMPTY
from oxide.language.shared import DynamicSharedArray, LocalArray, SharedArray
from oxide.language.slices import Slice, Slice2, Slice3, Slice4, Slice5

from .numpy_functions import in_kernels

N = TypeVar("N", bound=ast.AST)


@final
class _Sequence:
    """The items that a loop iterates over. ``length`` is their number, and ``item`` returns the item for a value of the
    loop's counter. An item that is a tuple is returned as a list of its items."""

    def __init__(self, length: ast.expr, item: Callable[[ast.expr], ast.expr | list[Any]]) -> None:
        self.length = length
        self.item = item


class BlockTransformer(ast.NodeTransformer):
    """Transforms blocks of statements as a whole (``block``)."""

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Returns the statements transformed. A statement may become several."""
        result: list[ast.stmt] = []
        for statement in body:
            new = self.visit(statement)
            result += new if isinstance(new, list) else [new]
        return result

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, field, self.block(value))
            elif isinstance(value, list):
                value[:] = [self.visit(each) if isinstance(each, ast.AST) else each for each in value]
            elif isinstance(value, ast.AST):
                setattr(node, field, self.visit(value))
        return node


@final
class Conveniences(BlockTransformer):
    """Rewrites the body of one function. ``outer`` is what its names from outside stand for."""

    def __init__(self, outer: dict[str, Any], definition: ast.FunctionDef) -> None:
        self.changed = False
        self._outer = outer
        arguments = definition.args
        self._parameters = {each.arg: each for each in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
        self._stored: dict[str, list[ast.expr | None]] = {}
        for node in ast.walk(definition):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    for part, value in _pairs(target, node.value):
                        self._stored.setdefault(part.id, []).append(value)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._stored.setdefault(node.id, [])
        self._numbers = 0
        self._before: list[ast.stmt] = []  # the statements to insert before the current statement

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in (part for each in body for part in self._split(each)):
            outer, self._before = self._before, []
            new = self.visit(self._without_walrus(statement))
            result += [*self._before, *(new if isinstance(new, list) else [new])]
            self._before = outer
        return result

    # Assignments in expressions

    def _without_walrus(self, node: ast.stmt) -> ast.stmt:
        """Replaces each ``:=`` in the statement's own expressions by an assignment before the statement, or at the
        start of the body of a ``while``. Returns the statement."""
        before = len(self._before)
        try:
            match node:
                case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Return() | ast.Expr() if (
                    node.value and _has_walrus(node.value)
                ):
                    node.value = self._lifted(node.value)
                case ast.If() | ast.Assert() if _has_walrus(node.test):
                    node.test = self._lifted(node.test)
                case ast.For() if _has_walrus(node.iter):
                    node.iter = self._lifted(node.iter)
                case ast.While() if _has_walrus(node.test):
                    test = self._lifted(node.test)
                    unless = placed(ast.UnaryOp(ast.Not(), test), node.test)
                    node.body[:0] = [*self._before[before:], placed(ast.If(unless, [ast.Break()], []), node.test)]
                    node.test = placed(ast.Constant(True), node.test)
                    del self._before[before:]
                case _:
                    return node
            self.changed = True
        except _NotLifted:
            del self._before[before:]
        return node

    def _split(self, node: ast.stmt) -> list[ast.stmt]:
        """Splits an ``if`` whose test is an ``and`` into nested ``if`` statements, if an operand after the first
        contains ``:=``. So the body sees the assigned value. Replaces the ``else`` of a ``while`` that assigns in its
        test (``_without_else``). Returns any other statement unchanged."""
        match node:
            case ast.If(test=ast.BoolOp(op=ast.And(), values=[first, *others])) if any(map(_has_walrus, others)):
                pass
            case ast.While(orelse=[_, *_]) if _has_walrus(node.test):
                return self._without_else(node)
            case _:
                return [node]
        inside, before, after = node.body, list[ast.stmt](), list[ast.stmt]()
        if node.orelse:
            otherwise = self._name(node.test)
            before = [placed(ast.Assign([_store(otherwise)], ast.Constant(True)), node.test)]
            inside = [placed(ast.Assign([_store(otherwise)], ast.Constant(False)), node.test), *inside]
            after = [placed(ast.If(otherwise, node.orelse, []), node)]
        for test in reversed(others):
            inside = [placed(ast.If(test, inside, []), test)]
        return [*before, placed(ast.If(first, inside, []), node), *after]

    def _without_else(self, node: ast.While) -> list[ast.stmt]:
        """Returns the statements for a ``while`` whose test assigns: the loop without its ``else``, and after the loop
        an ``if`` that runs the body of the ``else`` unless a ``break`` was reached."""
        ended = self._name(node.test)
        before = placed(ast.Assign([_store(ended)], ast.Constant(True)), node.test)
        after = placed(ast.If(ended, node.orelse, []), node)
        node.orelse = []
        marked = _Breaks(lambda place: placed(ast.Assign([_store(ended)], ast.Constant(False)), place))
        node.body = marked.block(node.body)
        return [before, node, after]

    def _lifted(self, node: ast.expr) -> ast.expr:
        """Moves each ``:=`` of an expression into an assignment before the statement, together with everything that the
        expression evaluates before the ``:=``. Returns the remaining expression. Raises ``_NotLifted``."""
        match node:
            case ast.NamedExpr(target=target, value=value):
                assigned = self._lifted(value) if _has_walrus(value) else value
                self._before.append(placed(ast.Assign([target], assigned), node))
                return _load(target)
            case ast.BoolOp(op=operator, values=[first, *others]):
                result = self._kept(self._lifted(first) if _has_walrus(first) else first)
                for other in others:
                    go_on: ast.expr = result if isinstance(operator, ast.And) else ast.UnaryOp(ast.Not(), result)
                    self._before.append(placed(ast.If(go_on, self._branch(other, result), []), other))
                return result
            case ast.IfExp(test=test, body=body, orelse=orelse):
                condition = self._lifted(test) if _has_walrus(test) else test
                result = self._name(node)
                parts = self._branch(body, result), self._branch(orelse, result)
                self._before.append(placed(ast.If(condition, *parts), node))
                return result
            case ast.Compare(ops=[_, _, *_]) | ast.Lambda() | ast.ListComp() | ast.GeneratorExp():
                raise _NotLifted
        children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr | ast.keyword)]
        last = max(place for place, child in enumerate(children) if _has_walrus(child))
        targets = {each.target.id for each in ast.walk(node) if isinstance(each, ast.NamedExpr)}
        for place, child in enumerate(children[: last + 1]):
            inner = child.value if isinstance(child, ast.keyword) else child
            if _has_walrus(inner):
                new = self._lifted(inner)
                if place < last:
                    new = self._kept(new)
            elif self._is_same_later(node, inner, targets):
                continue
            else:
                new = self._kept(inner)
            _exchange(node, inner, new)
        return node

    def _is_same_later(self, node: ast.expr, part: ast.expr, targets: set[str]) -> bool:
        """Returns whether assignments to ``targets`` leave the value of a part of an expression unchanged."""
        if isinstance(part, ast.Name):
            return part.id not in targets
        return isinstance(part, ast.Constant) or (isinstance(node, ast.Call) and part is node.func)

    def _kept(self, node: ast.expr) -> ast.Name:
        """Assigns the expression to a new variable before the statement. Returns the variable."""
        name = self._name(node)
        self._before.append(placed(ast.Assign([_store(name)], node), node))
        return name

    def _branch(self, node: ast.expr, result: ast.Name) -> list[ast.stmt]:
        """Returns statements that assign the expression's value to ``result``."""
        outer, self._before = self._before, []
        value = self._lifted(node) if _has_walrus(node) else node
        self._before.append(placed(ast.Assign([_store(result)], value), node))
        statements, self._before = self._before, outer
        return statements

    # Loops

    def visit_For(self, node: ast.For) -> ast.AST:
        loop = self.generic_visit(node)
        assert isinstance(loop, ast.For)
        is_call = isinstance(loop.iter, ast.Call) and self._builtin(loop.iter) in ("enumerate", "zip", "reversed")
        is_counted = is_call or self._is_array(loop.iter) or self._is_slice(loop.iter)
        if not is_counted or not all(map(self._is_builtin, ("range", "len", "min"))):
            return loop
        before = len(self._before)
        sequence = self._sequence(loop.iter, loop.iter)
        if sequence is None:
            del self._before[before:]
            return loop
        self.changed = True
        counter: ast.expr = self._name(loop.iter)
        items = sequence.item(counter)
        bound = list(self._bound(loop.target, items))
        for target, item in bound:
            if item is counter and isinstance(target, ast.Name):  # the loop's own variable serves as the counter
                counter = target
                bound = [(other, value) for other, value in self._bound(loop.target, sequence.item(_load(target)))]
                bound = [(other, value) for other, value in bound if other is not target]
                break
        assigned = [placed(ast.Assign([target], item), target) for target, item in bound]
        goes_over = self._call("range", [sequence.length], loop.iter)
        counted = counter if counter in ast.walk(loop.target) else _store(counter)
        return placed(ast.For(counted, goes_over, [*assigned, *loop.body], loop.orelse), loop)

    def _sequence(self, node: ast.expr, place: ast.expr) -> _Sequence | None:
        """Returns the sequence that a loop over an expression iterates over; None if the sequence is not known."""
        if not isinstance(node, ast.Call) or (name := self._builtin(node)) is None:
            if not isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
                return None
            array = self._once(node, place)
            return _Sequence(
                self._call("len", [array], place), lambda at: placed(ast.Subscript(array, at, ast.Load()), place)
            )
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            return None
        if name == "range" and not node.keywords:
            return self._range(node.args, place)
        if name == "reversed" and len(node.args) == 1 and not node.keywords:
            inner = self._sequence(node.args[0], place)
            if inner is None:
                return None
            length = self._once(inner.length, place)
            last = self._binary(length, ast.Sub(), _constant(1, place), place)
            return _Sequence(length, lambda at: inner.item(self._binary(last, ast.Sub(), at, place)))
        if name == "enumerate":
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            if len(node.args) == 2:
                given["start"] = node.args[1]
            if not 1 <= len(node.args) <= 2 or given.keys() - {"start"}:
                return None
            over = self._sequence(node.args[0], place)
            if over is None:
                return None
            start = given.get("start")
            if start is None or (isinstance(start, ast.Constant) and start.value == 0):
                return _Sequence(over.length, lambda at: [at, over.item(at)])
            begin = self._once(start, place)
            return _Sequence(over.length, lambda at: [self._binary(begin, ast.Add(), at, place), over.item(at)])
        if name == "zip" and node.args and not node.keywords:
            found = [self._sequence(argument, place) for argument in node.args]
            parts = [part for part in found if part is not None]
            if len(parts) < len(found):
                return None
            lengths = [part.length for part in parts]
            shortest = lengths[0] if len(lengths) == 1 else self._call("min", lengths, place)
            return _Sequence(shortest, lambda at: [part.item(at) for part in parts])
        return None

    def _range(self, bounds: list[ast.expr], place: ast.expr) -> _Sequence | None:
        if len(bounds) == 1:
            return _Sequence(bounds[0], lambda at: at)
        if len(bounds) not in (2, 3):
            return None
        step = 1 if len(bounds) == 2 else _integer(bounds[2])
        if not step:
            return None  # the step is 0 or not a constant
        start, stop = self._once(bounds[0], place), bounds[1]
        length = self._binary(stop, ast.Sub(), start, place)
        if step != 1:
            rounded = self._binary(length, ast.Add(), _constant(step + (-1 if step > 0 else 1), place), place)
            length = self._binary(rounded, ast.FloorDiv(), _constant(step, place), place)

        def item(at: ast.expr) -> ast.expr:
            way = at if step == 1 else self._binary(at, ast.Mult(), _constant(step, place), place)
            return self._binary(start, ast.Add(), way, place)

        return _Sequence(length, item)

    def _bound(self, target: ast.expr, item: ast.expr | list[Any]) -> list[tuple[ast.expr, ast.expr]]:
        """Returns the targets of a loop, each with its value. The names of a tuple take the items one by one."""
        if isinstance(target, ast.Tuple) and isinstance(item, list) and len(target.elts) == len(item):
            return [pair for part, value in zip(target.elts, item, strict=True) for pair in self._bound(part, value)]
        return [(target, self._whole(item, target))]

    def _whole(self, item: ast.expr | list[Any], place: ast.expr) -> ast.expr:
        if isinstance(item, list):
            return placed(ast.Tuple([self._whole(part, place) for part in item], ast.Load()), place)
        return item

    def _is_array(self, node: ast.expr) -> bool:
        """Returns whether an expression names an array over which a loop must count: a ``Slice``, a shared, a local or
        a constant array. A kernel can loop over a view directly."""
        if not isinstance(node, ast.Name | ast.Attribute):
            return False
        if isinstance(node, ast.Name) and self._is_parameter(node, (Slice,)):
            return True
        if isinstance(node, ast.Name) and node.id in self._stored:
            made = (SharedArray, DynamicSharedArray, LocalArray)
            values = self._stored[node.id]
            return bool(values) and all(isinstance(v, ast.Call) and self._resolve(v.func) in made for v in values)
        outside = self._resolve(node)
        return isinstance(outside, np.ndarray) and outside.ndim == 1

    def _is_slice(self, node: ast.expr) -> bool:
        """Returns whether an expression is a ``Slice``: the ``flat`` of a parameter, or a local variable that is
        only assigned a ``flat`` or a ``Slice`` parameter."""
        if isinstance(node, ast.Attribute) and node.attr == "flat" and isinstance(node.value, ast.Name):
            return self._is_parameter(node.value, (Slice2, Slice3, Slice4, Slice5))
        if isinstance(node, ast.Name) and self._stored.get(node.id) and node.id not in self._parameters:
            return all(self._is_named_slice(value) for value in self._stored[node.id])
        return False

    def _is_named_slice(self, node: ast.expr | None) -> bool:
        if isinstance(node, ast.Name):
            return self._is_parameter(node, (Slice,))
        return node is not None and self._is_slice(node)

    def _is_parameter(self, node: ast.Name, kinds: tuple[Any, ...]) -> bool:
        """Returns whether a name is a parameter annotated as one of the slice types and never assigned to."""
        if node.id not in self._parameters or node.id in self._stored:
            return False
        annotation = self._parameters[node.id].annotation
        return isinstance(annotation, ast.Subscript) and self._resolve(annotation.value) in kinds

    # match

    def visit_Match(self, node: ast.Match) -> ast.AST | list[ast.stmt]:
        rewritten = self.generic_visit(node)
        assert isinstance(rewritten, ast.Match)
        names = {each for case in rewritten.cases for each in _captures(case.pattern)}
        if isinstance(rewritten.subject, ast.Name) and rewritten.subject.id not in names:
            subject: ast.expr = rewritten.subject
            before: list[ast.stmt] = []
        else:
            subject = self._name(rewritten.subject)
            before = [placed(ast.Assign([_store(subject)], rewritten.subject), rewritten.subject)]
        otherwise: list[ast.stmt] = []
        for case in reversed(rewritten.cases):
            tested = _test(case.pattern, subject)
            is_name = isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
            if tested is None or (case.guard is not None and _captures(case.pattern) and not is_name):
                return rewritten
            (test,) = tested
            bound = [placed(ast.Assign([self._named(name, case.pattern)], subject), case.pattern)
                     for name in _captures(case.pattern)]  # fmt: skip
            if case.guard is not None and bound:  # Python binds the name before it evaluates the guard
                otherwise = [*bound, placed(ast.If(case.guard, case.body, otherwise), case.pattern)]
                continue
            if case.guard is not None:
                test = case.guard if test is None else placed(ast.BoolOp(ast.And(), [test, case.guard]), case.guard)
            body = [*bound, *case.body]
            otherwise = body if test is None else [placed(ast.If(test, body, otherwise), case.pattern)]
        self.changed = True
        return [*before, *otherwise]

    # assert

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        if isinstance(node.msg, ast.JoinedStr):
            self.changed = True
            node.msg = placed(ast.Constant("".join(map(self._shown, node.msg.values))), node.msg)
        node.test = self.visit(node.test)
        return node

    def _shown(self, part: ast.expr) -> str:
        """Returns a part of an f-string as text. A fault has no values but those that are known before the launch."""
        if not isinstance(part, ast.FormattedValue):
            return str(part.value) if isinstance(part, ast.Constant) else ""
        value = part.value.value if isinstance(part.value, ast.Constant) else self._resolve(part.value)
        spec = part.format_spec.values if isinstance(part.format_spec, ast.JoinedStr) else []
        if not isinstance(value, bool | int | float | str | np.generic) or not all(
            isinstance(each, ast.Constant) for each in spec
        ):
            return f"{{{ast.unparse(part.value)}}}"
        if part.conversion != -1:
            spelled: dict[str, Callable[[Any], str]] = {"r": repr, "s": str, "a": ascii}
            value = spelled[chr(part.conversion)](value)
        return format(value, "".join(str(each.value) for each in spec if isinstance(each, ast.Constant)))

    # print

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if self._builtin(node) == "print" and not node.keywords and any(map(_is_text, node.args)):
            pieces: list[str] = []
            values: list[ast.expr] = []
            for argument in node.args:
                made = _formatted(argument)
                if made is None:
                    return node
                pieces.append(made[0])
                values += made[1]
            self.changed = True
            text = placed(ast.Constant(FORMAT + " ".join(pieces)), node.args[0])
            return placed(ast.Call(node.func, [text, *map(self.visit, values)], []), node)
        called = in_kernels(self._resolve(node.func))
        if isinstance(called, DeviceFunction):
            self._give_defaults(node, called)
        return self.generic_visit(node)

    def _give_defaults(self, node: ast.Call, called: DeviceFunction[..., Any]) -> None:
        """Adds the defaults of left-out parameters to a call. The rules for arguments then apply to them too."""
        code = called.function.__code__
        names = code.co_varnames[: code.co_argcount]
        given = {*names[: len(node.args)], *(keyword.arg for keyword in node.keywords)}
        for name, default in default_values(called.function).items():
            if isinstance(default, np.generic) and name in called.annotations:
                default = default.item()
            if name not in given and isinstance(default, bool | int | float | complex):
                self.changed = True
                node.keywords.append(placed(ast.keyword(name, _constant(default, node)), node))

    # New expressions

    def _once(self, node: ast.expr, place: ast.expr) -> ast.expr:
        """Returns an expression, for use anywhere in the loop, with the value that the node has before the loop."""
        if isinstance(node, ast.Constant):
            return node
        if isinstance(node, ast.Name) and (node.id not in self._stored or self._is_array(node)):
            return node
        name = self._name(place)
        self._before.append(placed(ast.Assign([_store(name)], node), node))
        return name

    def _name(self, place: ast.AST) -> ast.Name:
        """Returns a new local variable."""
        self._numbers += 1
        name = f"_{self._numbers}"
        while name in self._stored or name in self._parameters or name in self._outer:
            name += "_"
        self._stored[name] = []
        return placed(ast.Name(name, ast.Load()), place)

    def _named(self, name: str, place: ast.AST) -> ast.Name:
        return placed(ast.Name(name, ast.Store()), place)

    def _call(self, name: str, arguments: list[ast.expr], place: ast.AST) -> ast.Call:
        return placed(ast.Call(ast.Name(name, ast.Load()), arguments, []), place)

    def _binary(self, left: ast.expr, operator: ast.operator, right: ast.expr, place: ast.AST) -> ast.expr:
        return placed(ast.BinOp(left, operator, right), place)

    # Names

    def _builtin(self, call: ast.Call) -> str | None:
        """Returns the name of the builtin that is called, or None."""
        name = call.func.id if isinstance(call.func, ast.Name) else None
        return name if name is not None and self._is_builtin(name) else None

    def _is_builtin(self, name: str) -> bool:
        own = name in self._parameters or name in self._stored
        return not own and name in vars(builtins) and self._outer.get(name) is vars(builtins)[name]

    def _resolve(self, node: ast.expr) -> Any:
        """Returns the outside object that an expression names, or ``EMPTY``."""
        if isinstance(node, ast.Name):
            own = node.id in self._stored or node.id in self._parameters
            return EMPTY if own else self._outer.get(node.id, EMPTY)
        if isinstance(node, ast.Attribute):
            base = self._resolve(node.value)
            return getattr(base, node.attr, EMPTY) if isinstance(base, type(ast)) else EMPTY
        return EMPTY


@final
class _Breaks(BlockTransformer):
    """Puts a statement in front of each ``break`` of a loop."""

    def __init__(self, made: Callable[[ast.stmt], ast.stmt]) -> None:
        self._made = made

    def visit_Break(self, node: ast.Break) -> list[ast.stmt]:
        return [self._made(node), node]

    def visit_For(self, node: ast.For | ast.While) -> ast.stmt:
        """Visits only the ``else`` of an inner loop, since a ``break`` in its body leaves the inner loop."""
        node.orelse = self.block(node.orelse)
        return node

    visit_While = visit_For


class _NotLifted(Exception):
    """Raised for a ``:=`` in an expression that may not evaluate all of its parts."""


def _has_walrus(node: ast.AST) -> bool:
    return any(isinstance(each, ast.NamedExpr) for each in ast.walk(node))


def _exchange(node: ast.AST, old: ast.expr, new: ast.expr) -> None:
    """Replaces an expression by another among the children of a node and of its keywords."""
    for parent in (node, *(each for each in ast.iter_child_nodes(node) if isinstance(each, ast.keyword))):
        for field, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, field, new)
            elif isinstance(value, list):
                value[:] = [new if each is old else each for each in value]


def _pairs(target: ast.expr, value: ast.expr | None) -> list[tuple[ast.Name, ast.expr | None]]:
    """Returns the names that an assignment binds, each with the expression of its value. The expression is None if the
    name is bound to an item of a tuple that is not written out."""
    if isinstance(target, ast.Name):
        return [(target, value)]
    if not isinstance(target, ast.Tuple):
        return []
    values: list[ast.expr | None] = [None] * len(target.elts)
    if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
        values = list(value.elts)
    return [pair for part, each in zip(target.elts, values, strict=True) for pair in _pairs(part, each)]


def placed(node: N, place: ast.AST) -> N:
    """Gives a new expression or statement, and the new nodes in it, the source location of ``place``."""
    ast.copy_location(node, place)
    for each in ast.walk(node):
        if "lineno" in each._attributes and not hasattr(each, "lineno"):
            ast.copy_location(each, place)
    return node


def _load(node: ast.Name) -> ast.Name:
    return ast.copy_location(ast.Name(node.id, ast.Load()), node)


def _store(node: ast.expr) -> ast.Name:
    assert isinstance(node, ast.Name)
    return ast.copy_location(ast.Name(node.id, ast.Store()), node)


def _constant(number: complex, place: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Constant(number), place)


def _integer(node: ast.expr) -> int | None:
    """Returns the value of a number literal, with or without a sign; None for any other expression."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _integer(node.operand)
        return None if inner is None else -inner
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _test(pattern: ast.pattern, subject: ast.expr) -> tuple[ast.expr | None] | None:
    """Returns a tuple of one element: the test for a pattern, or None if the pattern always matches. Returns None
    instead of a tuple for a pattern that kernels do not support."""
    found: ast.expr
    match pattern:
        case ast.MatchValue(value=value):
            found = ast.Compare(subject, [ast.Eq()], [value])
        case ast.MatchSingleton(value=None):
            found = ast.Compare(subject, [ast.Is()], [ast.copy_location(ast.Constant(None), pattern)])
        case ast.MatchSingleton(value=bool(value)):
            found = ast.Compare(subject, [ast.Eq()], [ast.copy_location(ast.Constant(value), pattern)])
        case ast.MatchOr(patterns=patterns):
            tests = [_test(each, subject) for each in patterns]
            if any(each is None or each == (None,) for each in tests) or any(map(_captures, patterns)):
                return None
            found = ast.BoolOp(ast.Or(), [each for (each,) in tests])  # type: ignore[misc]
        case ast.MatchAs(pattern=None):
            return (None,)
        case ast.MatchAs(pattern=ast.pattern() as inner):
            return _test(inner, subject)
        case _:
            return None
    return (ast.copy_location(found, pattern),)


def _captures(pattern: ast.pattern) -> list[str]:
    """Returns the names that a pattern binds."""
    return [node.name for node in ast.walk(pattern) if isinstance(node, ast.MatchAs) and node.name is not None]


# The arguments of ``print``: f-strings, ``%`` formatting and plain values

FORMAT = "\0"
"""The prefix that marks the first argument of ``print``, a string constant, as the format of the other arguments. The
rest of it has the syntax of ``str.format``."""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mod)
        and isinstance(node.left, ast.Constant)
        and isinstance(node.left.value, str)
    )


def _formatted(node: ast.expr) -> tuple[str, list[ast.expr]] | None:
    """Returns an argument of ``print`` as a format and its values; None if kernels do not support its formatting."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _escaped(node.value), []
    if isinstance(node, ast.JoinedStr):
        return _of_f_string(node)
    if _is_text(node):
        assert isinstance(node, ast.BinOp)
        values = list(node.right.elts) if isinstance(node.right, ast.Tuple) else [node.right]
        assert isinstance(node.left, ast.Constant)
        return _of_percents(str(node.left.value), values)
    return "{}", [node]


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _of_f_string(node: ast.JoinedStr) -> tuple[str, list[ast.expr]] | None:
    text, values = "", list[ast.expr]()
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += _escaped(str(part.value))
            continue
        assert isinstance(part, ast.FormattedValue)
        spec = ""
        if part.format_spec is not None:
            assert isinstance(part.format_spec, ast.JoinedStr)
            if not all(isinstance(each, ast.Constant) for each in part.format_spec.values):
                return None  # a width that is computed
            spec = "".join(str(each.value) for each in part.format_spec.values if isinstance(each, ast.Constant))
        if "{" in spec or "}" in spec or part.conversion not in (-1, ord("r"), ord("s")):
            return None
        text += f"{{:{spec}}}"
        values.append(part.value)
    return text, values


_PERCENT = re.compile(r"%(?P<flags>[-+ #0]*)(?P<width>\d*)(?P<precision>\.\d+)?(?P<kind>[diuoxXeEfFgGs%])|%")


def _of_percents(text: str, values: list[ast.expr]) -> tuple[str, list[ast.expr]] | None:
    result, position, count = "", 0, 0
    for found in _PERCENT.finditer(text):
        result += _escaped(text[position : found.start()])
        position = found.end()
        kind, flags = found["kind"], found["flags"] or ""
        if kind is None:
            return None
        if kind == "%":
            result += "%"
            continue
        count += 1
        align = "<" if "-" in flags else ""
        sign = "+" if "+" in flags else " " if " " in flags else ""
        zero = "0" if "0" in flags and not align else ""
        kind = {"i": "d", "u": "d", "s": ""}.get(kind, kind)
        alternative = "#" if "#" in flags else ""
        result += f"{{:{align}{sign}{alternative}{zero}{found['width']}{found['precision'] or ''}{kind}}}"
    return (result + _escaped(text[position:]), values) if count == len(values) else None
