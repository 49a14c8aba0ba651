"""Definite assignment: a local is read only where every path has assigned it.

If a path left a variable unassigned, Python raises ``UnboundLocalError`` at a read, and numba reads 0. A kernel cannot
raise, so oxide refuses the read before the launch, by the rule of Java and Rust. The rule is a flow analysis that knows
the values of constants alone: it treats two tests of the same condition as two independent branches.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, final

Assigned: TypeAlias = frozenset[str] | None
"""The locals that are certainly assigned at a point of the program. None if the point is unreachable."""


def unassigned_read(
    function: ast.FunctionDef, constant: Callable[[ast.expr], int | None]
) -> tuple[ast.Name, bool] | None:
    """Returns the first read of a local that may be unassigned, and whether any path assigns the local before the read.
    None if there is no such read.

    ``constant`` returns the number that an expression always has, or None. It tells which loops over a ``range`` run
    their bodies at least once.
    """
    flow = _Flow(stored_names(function.body), constant)
    flow.block(function.body, frozenset(argument.arg for argument in function.args.args))
    return next(iter(flow.unassigned), None)


def unassigned_names(
    statements: Sequence[ast.stmt], assigned: Iterable[str], constant: Callable[[ast.expr], int | None]
) -> set[str]:
    """Returns the locals that statements may read where they are unassigned. ``assigned`` are assigned before.
    ``constant`` is as for ``unassigned_read``."""
    flow = _Flow(stored_names(statements), constant)
    flow.block(statements, frozenset(assigned))
    return {name.id for name, _ in flow.unassigned}


def stored_names(statements: Sequence[ast.stmt]) -> set[str]:
    """Returns the names that statements assign."""
    nodes = (node for statement in statements for node in ast.walk(statement))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


@final
class _Flow:
    def __init__(self, stored: set[str], constant: Callable[[ast.expr], int | None]) -> None:
        self.stored = stored
        self.constant = constant
        self.seen: set[str] = set()
        self.unassigned: list[tuple[ast.Name, bool]] = []
        """The reads of locals that may be unassigned, each with whether a path assigns the local before it."""
        # For each enclosing loop: the locals assigned at each of its breaks, and at each of its continues.
        self.breaks: list[list[Assigned]] = []
        self.continues: list[list[Assigned]] = []

    def block(self, body: Sequence[ast.stmt], assigned: Assigned) -> Assigned:
        for statement in body:
            assigned = self._statement(statement, assigned)
        return assigned

    def _statement(self, statement: ast.stmt, assigned: Assigned) -> Assigned:
        match statement:
            case ast.Assign(targets=targets, value=value):
                self._read(value, assigned)
                for target in targets:
                    assigned = self._store(target, assigned)
                return assigned
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._read(value, assigned)
                return self._store(target, assigned)
            case ast.AugAssign(target=target, value=value):
                if isinstance(target, ast.Name):
                    self._read(ast.copy_location(ast.Name(target.id, ast.Load()), target), assigned)
                self._read(value, assigned)
                return self._store(target, assigned)
            case ast.If(test=test, body=body, orelse=orelse):
                self._read(test, assigned)
                return _meet((self.block(body, assigned), self.block(orelse, assigned)))
            case ast.While(test=test, body=body, orelse=orelse):
                self._read(test, assigned)
                once = bool(test.value if isinstance(test, ast.Constant) else self.constant(test))
                return self._loop(body, orelse, assigned, assigned, leaves=not once, once=once)
            case ast.For(target=target, iter=iterated, body=body, orelse=orelse):
                self._read(iterated, assigned)
                inside = self._store(target, assigned)
                return self._loop(body, orelse, assigned, inside, leaves=True, once=self._has_element(iterated))
            case ast.Return():
                self._read(statement, assigned)
                return None
            case ast.Break():
                self.breaks[-1].append(assigned)
                return None
            case ast.Continue():
                self.continues[-1].append(assigned)
                return None
            case _:
                self._read(statement, assigned)
                return assigned

    def _loop(
        self,
        body: list[ast.stmt],
        orelse: list[ast.stmt],
        before: Assigned,
        inside: Assigned,
        *,
        leaves: bool,
        once: bool,
    ) -> Assigned:
        """Returns the locals that are certainly assigned after a loop. ``leaves`` says whether the loop may end without
        a ``break``, and ``once`` whether its body runs at least once."""
        self.breaks.append([])
        self.continues.append([])
        end = self.block(body, inside)
        end = _meet((end, *self.continues.pop()))
        ended = None if not leaves else end if once else before
        return _meet((self.block(orelse, ended), *self.breaks.pop()))

    def _store(self, target: ast.expr, assigned: Assigned) -> Assigned:
        self._read(target, assigned)
        names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        self.seen |= names
        return None if assigned is None else assigned | names

    def _read(self, node: ast.AST, assigned: Assigned) -> None:
        if assigned is None:
            return
        for name in ast.walk(node):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load) and name.id in self.stored - assigned:
                self.unassigned.append((name, name.id in self.seen))

    def _has_element(self, iterated: ast.expr) -> bool:
        if isinstance(iterated, ast.Tuple | ast.List):
            return any(not isinstance(each, ast.Starred) for each in iterated.elts)
        if not isinstance(iterated, ast.Call) or iterated.keywords:
            return False
        called = ast.unparse(iterated.func).rpartition(".")[2]
        if called == "unroll" and len(iterated.args) == 1:
            return self._has_element(iterated.args[0])
        if called not in ("range", "static_range"):
            return False
        bounds = [self.constant(argument) for argument in iterated.args]
        numbers = [bound for bound in bounds if bound is not None]
        valid = len(numbers) == len(bounds) in (1, 2, 3) and not (len(numbers) == 3 and numbers[2] == 0)
        return valid and len(range(*numbers)) > 0


def _meet(paths: Iterable[Assigned]) -> Assigned:
    """Returns the locals that are certainly assigned where several paths join. Unreachable paths do not count."""
    result: Assigned = None
    for path in paths:
        if path is not None:
            result = path if result is None else result & path
    return result
