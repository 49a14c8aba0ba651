"""Arguments of compiled functions. The interpreter calls such a function if only a library's own code gives its
result."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any, TypeAlias, final

Native: TypeAlias = Callable[[str, dict[str, Any], tuple[str, ...], str], Callable[..., Any]]
"""Returns a compiled function of scalars: for an expression of ``x0``, ``x1``, …, the outside objects that it names,
the types of the arguments, and that of the result."""

OPEN = "float"
"""The type of an element of a tuple if the element is a Python float. Such a float takes the type of its other
operand."""


@final
class NativeArguments:
    """The arguments of one compiled expression. Each method adds an argument and returns its text."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.names: dict[str, Any] = {}
        self.given: list[ast.expr] = []
        self._tuples: set[int] = set()

    def constant(self, value: Any) -> str:
        """Adds a number that the expression names, so that it keeps the rules of literals."""
        if isinstance(value, int) or math.isfinite(value):
            return repr(value)
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def scalar(self, value: ast.expr, kind: str) -> str:
        self.given.append(value)
        return self._next(kind)

    def of_tuple(self, value: ast.expr, kinds: tuple[str, ...]) -> str | None:
        """Adds a tuple of scalars. Returns None if an element is a Python float whose value is not known."""
        elements = list[str]()
        if isinstance(value, ast.Tuple):
            for element, kind in zip(value.elts, kinds, strict=True):
                if kind != OPEN:
                    elements.append(self.scalar(element, kind))
                elif isinstance(element, ast.Constant):
                    elements.append(self.constant(element.value))
                else:
                    return None
        elif OPEN in kinds:
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
        """Returns the compiled expression as a function of ``given``."""
        called = native(text, self.names, tuple(self.kinds), result)
        tuples = self._tuples
        if not tuples:
            return called

        def spread(*args: Any) -> Any:
            return called(*(each for place, arg in enumerate(args) for each in (arg if place in tuples else (arg,))))

        return spread
