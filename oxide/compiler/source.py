"""Where a function's source is, and errors that point into it."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

from ..errors import CompileError


def located(
    function: Callable[..., Any], problem: str, line: int | None = None, column: int | None = None
) -> CompileError:
    """A ``CompileError`` at a line of the function's file, by default its first, with the line and a caret under it."""
    code = function.__code__
    return located_in(code.co_filename, line if line is not None else code.co_firstlineno, problem, column)


def located_in(file: str, line: int, problem: str, column: int | None = None) -> CompileError:
    """A ``CompileError`` at a line of a file. ``column`` counts characters from 0."""
    message = f"{file}:{line}: {problem}"
    text = linecache.getline(file, line).rstrip("\n")
    if text.strip():
        indent = len(text) - len(text.lstrip())
        message += f"\n    {text.strip()}"
        if column is not None and column >= indent:
            message += f"\n    {' ' * (column - indent)}^"
    return CompileError(message)
