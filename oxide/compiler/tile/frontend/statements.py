"""Evaluates a kernel's statements. A loop or branch whose condition the device computes becomes a node with regions.
Each variable that it assigns becomes a ``Cell``.

A variable may have no value at the end of a branch, or before the loop that sets it. If it is read later, and every
path to its reads sets it, it gets a cell, and zeros where it has no value: no path reads them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, final

import numpy as np

from oxide.compiler.check.assignment import stored_names, unassigned_names
from oxide.compiler.source.annotated_locals import annotated_locals
from oxide.compiler.tile.ir import BOOL, I64, U64, Cell, Node, Region
from oxide.errors import CompileError
from oxide.language import promotion
from oxide.language import tile as language
from oxide.language.promotion import Operand
from oxide.language.types import ScalarType

from .expressions import Expressions, Returned
from .jumps import is_read, without_jumps
from .node_maker import SYMBOLS, Nodes

_MOST_TURNS = 10_000
"""The most iterations of an unrolled loop."""
_MOST_TRIALS = 5
"""The most evaluations of a loop's body to find the types of its variables."""

_UNSET: Any = object()
"""The value of a variable that a branch leaves without one."""

_Kind = tuple[ScalarType, tuple[int, ...], type | None]
"""A variable's type, its shape, and the class of the Python number that it behaves like."""


@final
class Statements:
    """Evaluates the statements of a function."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.expressions = Expressions(nodes, lambda statements: self.begin(statements, returns=False))
        self._flags: dict[ast.stmt, str] = {}
        """Maps each loop that a jump can leave to the name of the flag that ends it."""
        self._following: list[Sequence[ast.stmt]] = []
        """The statements of the function that follow the present one, the innermost block last."""
        self._complete: set[str] = set()
        """The variables of the function that every path to their reads sets."""
        self._annotated: dict[str, ScalarType] = {}
        """The types of the function's annotated variables, by name."""
        self._lines: dict[str, int] = {}
        """The line of the present assignment to each variable of the function."""

    @property
    def scope(self) -> dict[str, Any]:
        """Returns the names and values of the innermost scope."""
        return self.expressions.scopes[-1]

    @scope.setter
    def scope(self, scope: dict[str, Any]) -> None:
        self.expressions.scopes[-1] = scope

    def begin(self, statements: Sequence[ast.stmt], *, returns: bool) -> None:
        """Evaluates the statements of a kernel or of a ``@tile.function``. With ``returns``, as for a kernel, a
        ``return`` may be anywhere."""
        found = without_jumps(statements, returns=returns)
        self._flags |= found.flags
        outer = self._following, self._complete, self._annotated, self._lines
        kinds = annotated_locals(self.nodes.function).items()
        self._annotated, self._lines = {name: kind for name, kind in kinds if isinstance(kind, ScalarType)}, {}
        stored = stored_names(statements)
        unassigned = unassigned_names(statements, self.scope, lambda each: self._constant(each, stored))
        self._following, self._complete = [], stored - unassigned
        try:
            self.run(found.statements)
        finally:
            self._following, self._complete, self._annotated, self._lines = outer

    def _constant(self, expression: ast.expr, stored: set[str]) -> int | None:
        """Returns the integer that an expression always has, if that is known before the function is evaluated."""
        if any(isinstance(each, ast.Call | ast.Attribute | ast.Subscript) for each in ast.walk(expression)):
            return None
        names = {each.id for each in ast.walk(expression) if isinstance(each, ast.Name)} - stored
        try:
            known = {name: self.expressions.lookup(name) for name in names}
            found = eval(compile(ast.Expression(expression), "", "eval"), {"__builtins__": {}}, known)
        except (CompileError, NameError, TypeError, ValueError, ArithmeticError):
            return None
        return found if isinstance(found, int) else None

    def _is_kept(self, name: str) -> bool:
        """Returns whether a variable that a path leaves without a value is still read, only where it has one."""
        return name in self._complete and is_read(reversed(self._following), name)

    def run(self, statements: Sequence[ast.stmt]) -> None:
        """Evaluates statements."""
        for number, statement in enumerate(statements, 1):
            self._following.append(statements[number:])
            self.nodes.at = statement
            handler = getattr(self, f"do_{type(statement).__name__}", None)
            if handler is None:
                self.nodes.refuse(
                    f"a tile kernel cannot contain {_NAMES.get(type(statement), type(statement).__name__)}"
                )
            handler(statement)
            self._following.pop()

    def do_Pass(self, _: ast.Pass) -> None:
        pass

    def do_Expr(self, statement: ast.Expr) -> None:
        if not isinstance(statement.value, ast.Constant):
            self.expressions.value(statement.value)

    def do_Return(self, statement: ast.Return) -> None:
        if not self.expressions.in_function:
            self.nodes.refuse("a tile kernel returns nothing; it stores its result")
        if self.nodes.depth:
            self.nodes.refuse(
                "a @tile.function returns at its end, not from a branch or a loop that runs on the device"
            )
        raise Returned(None if statement.value is None else self.expressions.value(statement.value))

    def do_Assign(self, statement: ast.Assign) -> None:
        value = self.expressions.value(statement.value)
        for target in statement.targets:
            self.assign(target, value)

    def do_AnnAssign(self, statement: ast.AnnAssign) -> None:
        if not isinstance(statement.target, ast.Name):
            self.nodes.refuse("only a local variable has an annotation in a kernel")
        if statement.target.id not in self._annotated:
            name, shown = statement.target.id, ast.unparse(statement.annotation)
            self.nodes.refuse(
                f"{name}: {shown} is no scalar type of kernels: write one, as in {name}: f32, or leave the annotation "
                "out"
            )
        if statement.value is not None:
            self.assign(statement.target, self.expressions.value(statement.value))

    def do_AugAssign(self, statement: ast.AugAssign) -> None:
        if not isinstance(statement.target, ast.Name):
            raise self._no_element()
        before = self.expressions.lookup(statement.target.id)
        result = self.expressions.binary(type(statement.op), before, self.expressions.value(statement.value))
        self.assign(statement.target, result)

    def assign(self, target: ast.expr, value: Any) -> None:
        """Assigns a value to a name or to a tuple of names."""
        self.nodes.at = target
        if isinstance(target, ast.Name):
            scalar = self._annotated.get(target.id)
            if scalar is not None:
                what = f"{target.id} is annotated as"
                value = self.nodes.accepted(value, scalar, target.id, what, promotion.annotated)
            self.scope[target.id] = value
            self._lines[target.id] = target.lineno + self.nodes.shift
        elif isinstance(target, ast.Tuple | ast.List):
            if not isinstance(value, tuple | list) or len(value) != len(target.elts):
                self.nodes.refuse(
                    f"{len(target.elts)} names take a tuple of as many values, not {self.nodes.shown(value)}"
                )
            for each, part in zip(target.elts, value, strict=True):
                self.assign(each, part)
        else:
            raise self._no_element()

    def _no_element(self) -> CompileError:
        return self.nodes.error("an element of a tile cannot be assigned; where(…) makes a tile with other elements")

    def do_Assert(self, statement: ast.Assert) -> None:
        condition = self.expressions.value(statement.test)
        message = ""
        if statement.msg is not None:
            found = self.expressions.value(statement.msg)
            if not isinstance(found, str):
                self.nodes.refuse("the message of an assert is a string that is known when the kernel is compiled")
            message = found
        if not isinstance(condition, Node):
            if not condition:
                self.nodes.refuse(f"the assertion does not hold{': ' + message if message else ''}")
            return
        test = self.nodes.truth(condition, "assert")
        self.nodes.node("assert", (test,), BOOL, (), self.nodes.site(message))

    # Branches

    def do_If(self, statement: ast.If) -> None:
        test = self.expressions.value(statement.test)
        self.nodes.at = statement.test
        if not isinstance(test, Node):
            self.run(statement.body if test else statement.orelse)
            return
        condition = self.nodes.truth(test, "if")
        before = dict(self.scope)
        regions: list[Region] = []
        scopes: list[dict[str, Any]] = []
        earlier = self._lines
        lines: list[dict[str, int]] = []
        for body in (statement.body, statement.orelse):
            region = Region(self.nodes.region)
            self.scope, self._lines = dict(before), dict(earlier)
            self.nodes.within(region, lambda body=body: self.run(body))  # type: ignore[misc]
            regions.append(region)
            scopes.append(self.scope)
            lines.append(self._lines)
        self.scope = before
        self.nodes.at = statement
        made: list[tuple[Cell, type | None]] = []
        for name in dict.fromkeys((*scopes[0], *scopes[1])):
            if not (name in scopes[0] and name in scopes[1]) and not self._is_kept(name):
                before.pop(name, None)
                continue
            one, two = (scope.get(name, _UNSET) for scope in scopes)
            if one is _UNSET:
                one = self.nodes.within(regions[0], lambda two=two: _mapped(two, self._zeros))  # type: ignore[misc]
            elif two is _UNSET:
                two = self.nodes.within(regions[1], lambda one=one: _mapped(one, self._zeros))  # type: ignore[misc]
            places = [each.get(name, statement.lineno + self.nodes.shift) for each in lines]
            before[name] = self._joined(name, one, two, regions, made, places)
        branch = self.nodes.node("if", (condition,), BOOL, (), (regions, [cell for cell, _ in made]))
        for cell, _ in made:
            for end in cell.ends:
                end.users.append(branch)
        weak = {id(cell): kind for cell, kind in made}
        for name, value in before.items():
            before[name] = _mapped(
                value, lambda each: self._read(each, weak[id(each)]) if isinstance(each, Cell) else each
            )

    def _joined(
        self,
        name: str,
        one: Any,
        two: Any,
        regions: list[Region],
        made: list[tuple[Cell, type | None]],
        lines: list[int],
    ) -> Any:
        """Returns the value of a variable after both branches: a cell if the branches give different values. ``lines``
        has the lines of its assignments."""
        if one is two or (not isinstance(one, Node) and not isinstance(two, Node) and _equal(one, two)):
            return one
        if isinstance(one, tuple) and isinstance(two, tuple) and len(one) == len(two):
            pairs = zip(one, two, strict=True)
            return tuple(self._joined(f"{name}[{i}]", *pair, regions, made, lines) for i, pair in enumerate(pairs))
        nodes = self.nodes
        differ = f"{name} is {nodes.shown(one)} in one branch and {nodes.shown(two)} in the other"
        if not (_is_number(one) and _is_number(two)):
            nodes.refuse(differ)
        ends = [
            nodes.within(region, lambda v=v: nodes.lifted(v))  # type: ignore[misc]
            for region, v in zip(regions, (one, two), strict=True)
        ]
        found = promotion.assigned([each.operand for each in ends])
        if found is None:
            self._refuse_types(name, ends[0].dtype, lines[0], ends[1].dtype, lines[1])
        if not (nodes.broadcasts(ends[0].shape, ends[1].shape) or nodes.broadcasts(ends[1].shape, ends[0].shape)):
            nodes.refuse(differ)
        shape = nodes.common_shape(ends)
        ends = [
            nodes.within(region, lambda each=each: nodes.broadcast(nodes.cast(each, found.scalar), shape))  # type: ignore[misc]
            for region, each in zip(regions, ends, strict=True)
        ]
        cell = Cell(name, found.scalar, shape, None, ends)
        made.append((cell, found.weak))
        return cell

    def _refuse_types(self, name: str, one: ScalarType, line: int, two: ScalarType, other: int) -> NoReturn:
        (line, one), (other, two) = sorted([(line, one), (other, two)], key=lambda each: each[0])
        self.nodes.refuse(promotion.two_types(name, one, line, two, other))

    def _zeros(self, like: Any) -> Any:
        """Returns zeros in place of a node, which no path reads. Returns any other value unchanged."""
        if not isinstance(like, Node):
            return like
        return self.nodes.broadcast(self.nodes.constant(0, like.dtype, like.weak), like.shape)

    # Loops

    def do_While(self, statement: ast.While) -> None:
        if statement.orelse:
            self.nodes.refuse("a loop of a tile kernel has no else")
        test = self.expressions.value
        self._loop(statement, None, lambda: self.nodes.truth(test(statement.test), "while"))

    def do_For(self, statement: ast.For) -> None:
        nodes = self.nodes
        if statement.orelse:
            nodes.refuse("a loop of a tile kernel has no else")
        call = statement.iter
        called = self.expressions.value(call.func) if isinstance(call, ast.Call) else None
        if isinstance(call, ast.Call) and (called is range or called is language.WORDS["static_range"]):
            arguments = [self.expressions.value(each) for each in call.args]
            nodes.at = call
            if not 1 <= len(arguments) <= 3 or call.keywords:
                nodes.refuse("range takes one to three integers")
            if called is not range:
                if not all(isinstance(each, int) for each in arguments):
                    nodes.refuse("static_range takes numbers that are known when the kernel is compiled; use range")
                self._unroll(statement, range(*arguments))
                return
            bounds = [nodes.lifted(each, "range") for each in arguments]
            for each in bounds:
                if each.shape or each.dtype.kind not in "iu":
                    nodes.refuse(f"range takes integers, not {nodes.shown(each)}")
            whole = [nodes.cast(each, I64) for each in bounds]
            start = whole[0] if len(whole) > 1 else nodes.constant(0, I64)
            stop = whole[1] if len(whole) > 1 else whole[0]
            step = whole[2] if len(whole) > 2 else nodes.constant(1, I64)
            if step.op == "constant" and step.detail == 0:
                nodes.refuse("range's step is 0")
            self._loop(statement, (start, stop, step), None)
            return
        found = self.expressions.value(call)
        if isinstance(found, tuple | list | range):
            self._unroll(statement, found)
            return
        nodes.at = call
        nodes.refuse(f"a loop goes over range(…), tile.static_range(…) or a tuple, not over {nodes.shown(found)}")

    def _unroll(self, statement: ast.For, values: Sequence[Any]) -> None:
        if len(values) > _MOST_TURNS:
            self.nodes.refuse(f"a loop of {len(values)} iterations is too long to unroll; use range")
        flag = self._flags.get(statement, "")
        targets = _assigned([ast.Assign([statement.target], statement.iter)])
        kept = any(map(self._is_kept, targets))
        decided = True
        for each in values:
            left = self.scope.get(flag)
            if left is True:
                break
            value = ast.copy_location(ast.Constant(each), statement.iter)
            body = [ast.copy_location(ast.Assign([statement.target], value), statement), *statement.body]
            if isinstance(left, Node):  # the device decides whether the loop goes on
                test = ast.copy_location(ast.Name(flag, ast.Load()), statement)
                no = ast.copy_location(ast.UnaryOp(ast.Not(), test), statement)
                at = 0 if kept else 1  # the target is known in the body in either case
                body = [*body[:at], ast.copy_location(ast.If(no, body[at:], []), statement)]
                decided = False
            self._following.append([statement])
            self.run(body)
            self._following.pop()
        if not decided and not kept:  # it is not known here which iteration was the last
            for name in targets:
                self.scope.pop(name, None)

    def _loop(
        self,
        statement: ast.For | ast.While,
        bounds: tuple[Node, Node, Node] | None,
        test: Callable[[], Node] | None,
    ) -> None:
        nodes = self.nodes
        before = dict(self.scope)
        lines = dict(self._lines)
        counter = ""
        if isinstance(statement, ast.For):
            if not isinstance(statement.target, ast.Name):
                nodes.refuse("the variable of a range loop is one name")
            counter = statement.target.id
        names = [name for name in _assigned(statement.body) if name in before and name != counter]
        starts: dict[str, Node] = {}
        for name in names:
            before[name] = self._lifted_leaves(name, before[name], starts)
        kinds: dict[str, _Kind] = {name: (node.dtype, node.shape, node.weak) for name, node in starts.items()}
        # Each node in the open regions with its number of users, so that an evaluation of the body can be undone.
        marks = [(node, len(node.users)) for region in nodes.region.enclosing() for node in region.nodes]
        sites = len(nodes.sites)
        for _ in range(_MOST_TRIALS):  # a literal's type follows from the body, which may have to be evaluated again
            for node, count in marks:
                del node.users[count:]
            del nodes.sites[sites:]
            body = Region(nodes.region)
            flag = self._flags.get(statement)
            cells = {
                name: Cell(name, kind, shape, None, ends_loop=name == flag) for name, (kind, shape, _) in kinds.items()
            }
            self.scope = dict(before)
            condition: list[Node] = []

            def iteration(cells: dict[str, Cell] = cells, condition: list[Node] = condition) -> dict[str, Any]:
                reads = {id(starts[name]): self._read(cell, kinds[name][2]) for name, cell in cells.items()}
                for name in names:
                    self.scope[name] = _mapped(before[name], lambda each: reads.get(id(each), each))
                if bounds is not None:
                    self.scope[counter] = nodes.node("counter", (), I64, ())
                    condition.append(self.scope[counter])
                if test is not None:
                    condition.append(test())
                self.run(statement.body)
                return self.scope

            after = nodes.within(body, iteration)
            self.scope = before
            nodes.at = statement
            ends: dict[str, Node] = {}
            for name in names:
                if name not in after:
                    nodes.refuse(f"{name} is set before the loop and not at the end of each iteration")
                self._collect_ends(name, before[name], after[name], starts, body, ends)
            if not self._widened(kinds, ends, lines):
                break
        else:
            nodes.refuse("the types of this loop's variables do not settle; give their types before the loop")
        for name, cell in cells.items():
            cell.starts = nodes.broadcast(nodes.cast(starts[name], cell.dtype), cell.shape)
            end = ends[name]
            cell.ends = [nodes.within(body, lambda e=end, c=cell: nodes.broadcast(nodes.cast(e, c.dtype), c.shape))]  # type: ignore[misc]
        first_set = {
            name: self._carried(name, before.get(name, _UNSET), after[name], body, cells, kinds)
            for name in dict.fromkeys((*_assigned(statement.body), counter))
            if name in after and name not in names and (name in before or self._is_kept(name))
        }
        begun = [cell.starts for cell in cells.values() if cell.starts is not None]
        op = "while" if bounds is None else "for"
        made = nodes.node(op, (*(bounds or ()), *begun), BOOL, (), (body, list(cells.values()), condition[0]))
        for cell in cells.values():
            cell.ends[0].users.append(made)
        if bounds is None:
            condition[0].users.append(made)
        for name in _assigned(statement.body):
            if name not in before:
                self.scope.pop(name, None)
        self.scope.pop(counter, None)
        reads = {id(start): self._read(cells[name], kinds[name][2]) for name, start in starts.items()}
        for name in names:
            self.scope[name] = _mapped(before[name], lambda each: reads.get(id(each), each))
        for name, value in first_set.items():
            if value is not _UNSET:
                self.scope[name] = _mapped(
                    value, lambda each: self._read(each, kinds[each.name][2]) if isinstance(each, Cell) else each
                )

    def _carried(
        self, name: str, before: Any, after: Any, body: Region, cells: dict[str, Cell], kinds: dict[str, _Kind]
    ) -> Any:
        """Returns a variable that the loop's body sets before it reads it: its value after an iteration, with a new
        cell for each node. ``before`` is its value before the loop, or ``_UNSET``. Returns ``_UNSET`` if the two values
        have no common type."""
        nodes = self.nodes
        if isinstance(after, tuple) and before is _UNSET:
            parts = enumerate(after)
            return tuple(self._carried(f"{name}[{i}]", before, each, body, cells, kinds) for i, each in parts)
        if not isinstance(after, Node):
            return after if before is _UNSET else _UNSET
        start = self._zeros(after) if before is _UNSET else nodes.lifted(before) if _is_number(before) else None
        found = None if start is None else promotion.assigned([start.operand, after.operand])
        if start is None or found is None or start.shape != after.shape:
            return _UNSET
        kinds[name] = (found.scalar, after.shape, found.weak)
        cell = cells[name] = Cell(name, found.scalar, after.shape, nodes.cast(start, found.scalar))
        cell.ends = [nodes.within(body, lambda: nodes.cast(after, found.scalar))]
        return cell

    def _lifted_leaves(self, name: str, value: Any, starts: dict[str, Node]) -> Any:
        """Returns a variable's value before a loop. Each number in it becomes a node of its own, which is added to
        ``starts``."""
        if isinstance(value, tuple):
            return tuple(self._lifted_leaves(f"{name}[{i}]", each, starts) for i, each in enumerate(value))
        if not _is_number(value):
            return value
        found = self.nodes.lifted(value)
        if found.dtype is U64:  # a literal from 2**63 on stays a u64 in the loop, where other literals are i64
            found.weak = None
        if any(found is each for each in starts.values()):  # another variable has the same node as its value
            found = self.nodes.node("copy", (found,), found.dtype, found.shape)
            found.weak = starts[next(key for key, each in starts.items() if each is found.inputs[0])].weak
        starts[name] = found
        return found

    def _collect_ends(
        self, name: str, before: Any, after: Any, starts: dict[str, Node], body: Region, ends: dict[str, Node]
    ) -> None:
        """Collects in ``ends`` the values of a variable's parts after an iteration. Raises ``CompileError`` if the
        variable's structure has changed."""
        nodes = self.nodes
        if isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
            for i, (one, two) in enumerate(zip(before, after, strict=True)):
                self._collect_ends(f"{name}[{i}]", one, two, starts, body, ends)
        elif name in starts and _is_number(after):
            ends[name] = nodes.within(body, lambda: nodes.lifted(after))
        elif name in starts or not _equal(before, after):
            nodes.refuse(
                f"{name} is {nodes.shown(before)} before the loop and {nodes.shown(after)} after an iteration of it"
            )

    def _widened(self, kinds: dict[str, _Kind], ends: dict[str, Node], lines: dict[str, int]) -> bool:
        """Gives variables the types and shapes that they have after an iteration. Returns whether any variable has
        changed. ``lines`` has the lines of the assignments before the loop."""
        again = False
        for name, end in ends.items():
            kind, shape, weak = kinds[name]
            found = promotion.assigned([Operand(kind, weak), end.operand])
            if found is None:
                variable = name.partition("[")[0]
                before = lines.get(variable, self.nodes.function.__code__.co_firstlineno)
                self._refuse_types(name, kind, before, end.dtype, self._lines.get(variable, end.line))
            problem = promotion.narrow_sum(name, found.scalar) if weak is int else None
            if problem is not None and _counts(end, name):
                self.nodes.refuse(problem)
            if (found.scalar, found.weak) != (kind, weak):
                kinds[name], again = (found.scalar, shape, found.weak), True
            if end.shape != shape:
                if shape != () or tuple(np.broadcast_shapes(shape, end.shape)) != end.shape:
                    self.nodes.refuse(
                        f"{name} has shape {shape} before the loop and {end.shape} after an iteration of it"
                    )
                kinds[name], again = (kinds[name][0], end.shape, kinds[name][2]), True
        return again

    def _read(self, cell: Cell, weak: type | None) -> Node:
        return self.nodes.node("cell", (), cell.dtype, cell.shape, cell, weak)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Applies ``change`` to a value, or to each part of a tuple."""
    return tuple(_mapped(each, change) for each in value) if isinstance(value, tuple) else change(value)


_ARITHMETIC = (*SYMBOLS, "cast", "copy", "broadcast")


def _counts(value: Node, name: str) -> bool:
    """Returns whether a variable's value after an iteration is computed from its value before by operators alone."""
    pending, seen = [value], set[int]()
    while pending:
        each = pending.pop()
        if each.op == "cell" and each.detail.name == name:
            return True
        if each.op in _ARITHMETIC and id(each) not in seen:
            seen.add(id(each))
            pending += each.inputs
    return False


def _is_number(value: Any) -> bool:
    return isinstance(value, Node | bool | int | float)


def _equal(one: Any, two: Any) -> bool:
    if one is two:
        return True
    if isinstance(one, tuple) and isinstance(two, tuple):
        return len(one) == len(two) and all(map(_equal, one, two))
    return type(one) is type(two) and isinstance(one, bool | int | float | str) and one == two


def _assigned(statements: Sequence[ast.stmt]) -> list[str]:
    """Returns the names that statements assign, in the order of their assignments."""
    found: dict[str, None] = {}
    for statement in statements:
        for each in ast.walk(statement):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                found[each.id] = None
    return list(found)


_NAMES: dict[type, str] = {
    ast.Try: "try", ast.With: "with", ast.FunctionDef: "a function; decorate one outside of it with @tile.function",
    ast.ClassDef: "a class", ast.Raise: "raise; use assert", ast.Import: "import", ast.ImportFrom: "import",
    ast.Global: "global", ast.Nonlocal: "nonlocal", ast.Delete: "del",
    ast.Break: "break outside of a loop", ast.Continue: "continue outside of a loop", ast.Match: "match; use if",
}  # fmt: skip
