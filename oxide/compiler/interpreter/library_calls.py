"""Builds calls of compiled functions of scalars. The interpreter makes such a call where only a library's own code
gives exactly the result of the compiled kernel."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any, TypeAlias, final

Native: TypeAlias = Callable[[str, dict[str, Any], tuple[str, ...], str], Callable[..., Any]]
"""Compiles a function of scalars and returns it. The arguments are the text of an expression of ``x0``, ``x1``, …, the
outside objects that the expression names, the types of ``x0``, ``x1``, …, and the type of the result."""

OPEN = "float"
"""Stands for the type of a tuple's element that is a Python float. Such a float takes the type of the other operand of
an operation."""


@final
class NativeArguments:
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
        """Compiles the expression ``text``. Returns it as a function that takes the value of each expression in
        ``self.given``."""
        called = native(text, self.names, tuple(self.kinds), result)
        tuples = self._tuples
        if not tuples:
            return called

        def spread(*args: Any) -> Any:
            return called(*(each for place, arg in enumerate(args) for each in (arg if place in tuples else (arg,))))

        return spread
