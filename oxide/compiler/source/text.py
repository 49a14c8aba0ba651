"""Keeps the text of the files that contain kernels and device functions, as it was when they were decorated.

A kernel is compiled at its first launch. By then its file may have been edited, replaced or removed, and the lines on
disk are no longer those that Python compiled. So a decorator calls ``keep_text``, and everything that reads source asks
this module.

Python keeps the text of a file on disk, of a notebook's cell, and of whatever a program enters into
``linecache.cache``. From 3.13 on it also keeps what was typed at the REPL, and the program of ``python -c``; earlier
versions have the latter in ``sys.orig_argv``. Python keeps no text of ``exec`` and of standard input.
"""

from __future__ import annotations
import __future__

import functools
import inspect
import linecache
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from tokenize import TokenError
from types import CodeType
from typing import Any

from oxide.host.weak_table import WeakTable

_kept: WeakTable[Callable[..., Any], list[str]] = WeakTable()
"""The lines of the files of decorated functions. The functions of one file share one list."""

_latest: dict[str, list[str]] = {}
"""The lines of each file that has decorated functions, as they were when the last of them was decorated."""

_compiling: ContextVar[Callable[..., Any] | None] = ContextVar("_compiling", default=None)
"""The kernel that is being compiled. Errors name a file, and a file that was imported twice has two texts."""

_FOR_MANY = ("<string>", "<stdin>")
"""The file names that Python gives to texts which have nothing to do with one another."""

FUTURE = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
"""The flags of a code object that ``from __future__ import …`` sets."""


def keep_text(function: Callable[..., Any], of: Callable[..., Any] | None = None) -> None:
    """Keeps the text of the function's file as it is now, unless the function has one. ``of`` is the function that this
    function was made of: both have the same text."""
    if _kept.get(function) is not None:
        return
    if of is not None:
        lines = lines_of(of)
    else:
        file = function.__code__.co_filename
        before, lines = _latest.get(file, []), _read(function)
        if before != lines and _contains(before, function) and not _contains(lines, function):
            lines = before  # a function of the imported module makes a kernel, and its file has changed since
        if lines:
            _latest[file] = lines
    if lines:
        _kept.set(function, lines)


def lines_of(function: Callable[..., Any]) -> list[str]:
    """Returns the lines of the function's file, each with its line feed. Returns an empty list if there is no text."""
    file = function.__code__.co_filename
    return _kept.get(function) or (file not in _FOR_MANY and _latest.get(file)) or _read(function)


def lines_in(file: str) -> list[str]:
    """Returns the lines of a file by its name: those of the kernel that is being compiled if this is its file, else the
    latest that are known."""
    function = _compiling.get()
    if function is not None and function.__code__.co_filename == file:
        return lines_of(function)
    return _latest.get(file) or linecache.getlines(file)


def line_in(file: str, line: int) -> str:
    """Returns one line of a file, or "" if there is none."""
    lines = lines_in(file)
    return lines[line - 1].rstrip("\n") if 1 <= line <= len(lines) else ""


def text_of(function: Callable[..., Any]) -> str:
    """Returns the lines of a function, its decorators included; "" if there is no text."""
    lines = lines_of(function)[function.__code__.co_firstlineno - 1 :]
    try:
        return "".join(inspect.getblock(lines)) if lines else ""
    except (SyntaxError, TokenError):  # the text is not that of the function
        return "".join(lines)


@contextmanager
def compiling(function: Callable[..., Any]) -> Iterator[None]:
    """Makes ``lines_in`` return the kernel's own text of its file, within the ``with`` block."""
    token = _compiling.set(function)
    try:
        yield
    finally:
        _compiling.reset(token)


def codes_in(source: str, file: str, flags: int = 0) -> tuple[CodeType, ...]:
    """Returns the code objects of all functions in a text. Returns an empty tuple if the text cannot be compiled.
    ``flags`` are those of a code object: ``from __future__ import …`` may be in force that the text does not have."""
    return _codes(source, file, flags & FUTURE)


@functools.lru_cache(maxsize=8)
def _codes(source: str, file: str, flags: int) -> tuple[CodeType, ...]:
    try:
        module = compile(source, file, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        return ()

    def within(code: CodeType) -> Iterator[CodeType]:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield constant
                yield from within(constant)

    return tuple(within(module))


def _read(function: Callable[..., Any]) -> list[str]:
    """Returns the lines of the function's file as they are now."""
    code: CodeType = function.__code__
    file = code.co_filename
    linecache.checkcache(file)  # notebooks and doctest replace the functions of linecache
    lines = linecache.getlines(file, getattr(function, "__globals__", None))
    if not lines and hasattr(linecache, "_getlines_from_code"):  # the REPL, since Python 3.13
        lines = linecache._getlines_from_code(code)
    if file not in _FOR_MANY:
        return lines
    program = [[f"{line}\n" for line in text.split("\n")] for text in sys.orig_argv[1:]]  # one is that of -c
    return next((each for each in (lines, *program) if _contains(each, function)), [])


def _contains(lines: list[str], function: Callable[..., Any]) -> bool:
    """Returns whether the function was compiled from these lines."""
    code: CodeType = function.__code__
    return code in codes_in("".join(lines), code.co_filename, code.co_flags)


def why_missing(function: Callable[..., Any]) -> str:
    """Returns the reason why a function has no text, and what helps."""
    file = function.__code__.co_filename
    if file in ("<stdin>", "<console>"):
        return (
            "Python keeps none of standard input, nor of a REPL before Python 3.13: write it to a file, or define it "
            "in IPython or a notebook's cell"
        )
    if file.startswith("<") and file.endswith(">"):
        return (
            "Python keeps none of exec and compile: write it to a file, or compile the text under a name of its own "
            "with which linecache finds it, as in exec(compile(text, name, 'exec')) after "
            "linecache.cache[name] = len(text), None, text.splitlines(True), name"
        )
    return f"there is no file {file}: keep the .py file where it was imported from"
