"""The arguments of ``print`` as one format and its values: f-strings, ``%`` formatting and plain values.

A format is a string constant that begins with ``FORMAT``. The rest of it has the syntax of ``str.format``.
"""

from __future__ import annotations

import ast
import re

FORMAT = "\0"
"""The prefix that marks the first argument of ``print`` as the format of the other arguments."""


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mod)
        and isinstance(node.left, ast.Constant)
        and isinstance(node.left.value, str)
    )


def formatted(node: ast.expr) -> tuple[str, list[ast.expr]] | None:
    """Returns an argument of ``print`` as a format and its values; None if kernels do not support its formatting."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _escaped(node.value), []
    if isinstance(node, ast.JoinedStr):
        return _of_f_string(node)
    if is_text(node):
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
