"""Control flow: rewrites ``break``, ``continue`` and ``return`` as branches, and says which variables are still read.

If a branch of an ``if`` jumps, the statements after the ``if`` move into the other branch: ``if test: continue``
followed by statements becomes ``if not test:`` with the statements as its body. A loop with a ``break`` gets a flag.
The ``break`` becomes an assignment that sets the flag, and the loop ends after an iteration that has set it. A
``return`` in a loop sets a second flag and leaves the loop. The ``return`` is repeated after the loop. The flags are
ordinary variables, whose names are not valid in Python source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import final

__all__ = ["Jumps", "is_read", "without_jumps"]


@final
@dataclass(slots=True)
class Jumps:
    """Statements that are rewritten without jumps. ``flags`` has the name of the flag of each loop that a jump can
    leave."""

    statements: list[ast.stmt]
    flags: dict[ast.stmt, str] = field(default_factory=dict)


def without_jumps(statements: Sequence[ast.stmt], *, returns: bool) -> Jumps:
    """Returns the statements of a function without ``break`` and ``continue``, and, if ``returns`` is true, without
    ``return``."""
    found = Jumps([])
    found.statements = _Rewriter(found.flags, returns).block(statements, None, ())
    return found


@final
class _Rewriter:
    def __init__(self, flags: dict[ast.stmt, str], returns: bool) -> None:
        self._flags = flags
        self._returns = returns
        self._count = 0

    def block(self, statements: Sequence[ast.stmt], loop: str | None, skips: tuple[str, ...]) -> list[ast.stmt]:
        """Returns a block of statements without jumps. ``loop`` is the flag of the loop around the block, or None
        outside of a loop. A jump also sets the flags ``skips``, which guard the statements after the block."""
        found: list[ast.stmt] = []
        for number, statement in enumerate(statements):
            rest = statements[number + 1 :]
            if self._is_jump(statement):
                return found + self._jump(statement, loop, skips)
            if isinstance(statement, ast.If):
                if self._has_jump(statement):
                    return found + self._branch(statement, rest, loop, skips)
                body, orelse = (self.block(each, loop, skips) for each in (statement.body, statement.orelse))
                statement = self._if(statement, body, orelse)
            if isinstance(statement, ast.For | ast.While):
                returning = self._returns and _contains(statement, (ast.Return,))
                found += self._loop(statement, returning)
                if returning:
                    done = ast.copy_location(ast.If(self._read("returned", statement), [], []), statement)
                    done.body = [ast.copy_location(ast.Return() if loop is None else ast.Break(), statement)]
                    return found + self._branch(done, rest, loop, skips)
                continue
            found.append(statement)
        return found

    def _is_jump(self, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.Return):  # a return of a value is left for `do_Return`, which refuses it
            return self._returns and statement.value is None
        return isinstance(statement, ast.Break | ast.Continue)

    def _has_jump(self, statement: ast.stmt) -> bool:
        """Returns whether a statement contains a ``return`` that is rewritten or, outside of inner loops, a ``break``
        or a ``continue``."""
        if isinstance(statement, ast.For | ast.While):
            return self._returns and _contains(statement, (ast.Return,))
        return self._is_jump(statement) or (
            isinstance(statement, ast.If) and any(map(self._has_jump, (*statement.body, *statement.orelse)))
        )

    def _always_jumps(self, statements: Sequence[ast.stmt]) -> bool:
        return any(
            self._is_jump(each)
            or (isinstance(each, ast.If) and self._always_jumps(each.body) and self._always_jumps(each.orelse))
            for each in statements
        )

    def _jump(self, statement: ast.stmt, loop: str | None, skips: tuple[str, ...]) -> list[ast.stmt]:
        names = list(skips)
        if loop is not None and not isinstance(statement, ast.Continue):
            names.append(loop)
            if isinstance(statement, ast.Return):
                names.append("returned")
        return [self._set(name, True, statement) for name in names] or [ast.copy_location(ast.Pass(), statement)]

    def _branch(
        self, statement: ast.If, rest: Sequence[ast.stmt], loop: str | None, skips: tuple[str, ...]
    ) -> list[ast.stmt]:
        body, orelse = list(statement.body), list(statement.orelse)
        if not rest:
            return [self._if(statement, self.block(body, loop, skips), self.block(orelse, loop, skips))]
        if self._always_jumps(body):
            return [self._if(statement, self.block(body, loop, skips), self.block([*orelse, *rest], loop, skips))]
        if self._always_jumps(orelse):
            return [self._if(statement, self.block([*body, *rest], loop, skips), self.block(orelse, loop, skips))]
        self._count += 1
        name = f"skip {self._count}"
        inner = (*skips, name)
        guard = ast.If(ast.UnaryOp(ast.Not(), self._read(name, statement)), self.block(rest, loop, skips), [])
        ast.copy_location(guard.test, statement)
        return [
            self._set(name, False, statement),
            self._if(statement, self.block(body, loop, inner), self.block(orelse, loop, inner)),
            ast.copy_location(guard, statement),
        ]

    def _loop(self, statement: ast.For | ast.While, returning: bool) -> list[ast.stmt]:
        self._count += 1
        flag = f"break {self._count}"
        leaves = returning or any(map(self._breaks, statement.body))
        made: ast.For | ast.While
        body = self.block(statement.body, flag, ())
        if isinstance(statement, ast.For):
            made = ast.For(statement.target, statement.iter, body, statement.orelse)
        else:
            made = ast.While(statement.test, body, statement.orelse)
        ast.copy_location(made, statement)
        before = [self._set("returned", False, statement)] if returning else []
        if leaves:
            self._flags[made] = flag
            before.append(self._set(flag, False, statement))
        return [*before, made]

    def _breaks(self, statement: ast.stmt) -> bool:
        """Returns whether a statement contains a ``break`` of the loop that the statement is in."""
        return isinstance(statement, ast.Break) or (
            isinstance(statement, ast.If) and any(map(self._breaks, (*statement.body, *statement.orelse)))
        )

    @staticmethod
    def _if(like: ast.If, body: list[ast.stmt], orelse: list[ast.stmt]) -> ast.If:
        return ast.copy_location(ast.If(like.test, body, orelse), like)

    @staticmethod
    def _read(name: str, like: ast.stmt) -> ast.expr:
        return ast.copy_location(ast.Name(name, ast.Load()), like)

    @staticmethod
    def _set(name: str, value: bool, like: ast.stmt) -> ast.stmt:
        target = ast.copy_location(ast.Name(name, ast.Store()), like)
        return ast.copy_location(ast.Assign([target], ast.copy_location(ast.Constant(value), like)), like)


def _contains(statement: ast.stmt, kinds: tuple[type[ast.stmt], ...]) -> bool:
    return any(isinstance(each, kinds) for each in ast.walk(statement))


# Liveness


def is_read(blocks: Iterable[Sequence[ast.stmt]], name: str) -> bool:
    """Returns whether a variable may be read before it is set again. ``blocks`` are the statements that follow, block
    by block; none of them jumps."""
    for block in blocks:
        found = _first_use(block, name)
        if found is not None:
            return found
    return False


def _first_use(statements: Sequence[ast.stmt], name: str) -> bool | None:
    """Returns True if statements may read a variable before they set it, False if they set it on every path before, and
    None if neither is so."""
    for statement in statements:
        match statement:
            case ast.If(test=test, body=body, orelse=orelse):
                uses = (_first_use(body, name), _first_use(orelse, name))
                if _names(test, name, ast.Load) or True in uses:
                    return True
                if uses == (False, False):
                    return False
            case ast.For(target=target, iter=iterated, body=body):
                if _names(iterated, name, ast.Load):
                    return True
                if not _names(target, name, ast.Store) and _first_use(body, name):
                    return True
            case ast.While(test=test, body=body):
                if _names(test, name, ast.Load) or _first_use(body, name):
                    return True
            case ast.AugAssign(target=ast.Name(id=target)) if target == name:
                return True
            case _:
                if _names(statement, name, ast.Load):
                    return True
                if _names(statement, name, ast.Store):
                    return False
    return None


def _names(node: ast.AST, name: str, context: type[ast.expr_context]) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, context)
               for each in ast.walk(node))  # fmt: skip
