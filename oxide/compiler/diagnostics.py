"""numba's typing errors in the terms of a kernel's author: one line of file and place, the problem, the fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import CompileError
from .source import located, located_in

_PLACE = re.compile(r"\bat (?P<file>\S.*?) \((?P<line>\d+)\)")
_CALL = re.compile(r">>> (?P<function>\w+)\((?P<arguments>.*)\)")
_ATTRIBUTE = re.compile(r"Unknown attribute '(?P<name>\w+)' of type (?P<type>.+)")
_SET_ATTRIBUTE = re.compile(r"Cannot resolve setattr: \((?P<type>.+)\)\.(?P<name>\w+) = ")
_CAST = re.compile(r"Cannot cast (?P<source>.+?) to (?P<target>.+?)(?::|$)", re.MULTILINE)
_CONVERSION = re.compile(r"Casting (?P<source>.+?) to (?P<target>.+?) directly is unsupported")
_UNIFY = re.compile(r"Cannot unify (?P<first>.+?) and (?P<second>.+?) for '(?P<name>\w+)[.\d]*'")
_RETURNED = re.compile(r"No conversion from (?P<source>.+?) to (?P<target>.+?) for '\$")
_ITERATED = re.compile(r"Invalid use of getiter with parameters \((?P<type>.+)\)")
_NOT_CALLABLE = re.compile(r"No type info available for (?P<type>.+?) as a callable")
_RETURNS = re.compile(r"Can't unify return type from the following types: (?P<types>.+)")

_OPERATORS = {
    "add": "+", "iadd": "+=", "sub": "-", "isub": "-=", "mul": "*", "imul": "*=", "truediv": "/", "itruediv": "/=",
    "floordiv": "//", "ifloordiv": "//=", "mod": "%", "imod": "%=", "pow": "**", "ipow": "**=", "lshift": "<<",
    "ilshift": "<<=", "rshift": ">>", "irshift": ">>=", "and_": "&", "iand": "&=", "or_": "|", "ior": "|=",
    "xor": "^", "ixor": "^=", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "neg": "unary -", "pos": "unary +", "invert": "~", "getitem": "[...]", "setitem": "[...] =",
    "is_": "is", "is_not": "is not", "not_": "not",
}  # fmt: skip

_NAMES = {
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32",
    "uint64": "u64", "float32": "f32", "float64": "f64", "bool": "bool_", "none": "None",
}  # fmt: skip


def compile_error(
    name: str, function: Callable[..., Any], error: Exception, notes: Sequence[str], lowered: tuple[str, int]
) -> CompileError:
    """The ``CompileError`` for a failure of the front end: its text, and what our own typing rules noted about it.

    ``lowered`` are the file and line that were being lowered, for an error that does not say where it arose; line 0
    before the first.
    """
    text = str(error)
    problem = notes[-1] if notes else _problem(text)
    # The innermost place comes first, so a mistake in a device function is shown there.
    place = _PLACE.search(text)
    if place is None:
        loc = getattr(error, "loc", None)
        if loc is not None and loc.line > 0:
            return located_in(loc.filename, loc.line, problem)
        if lowered[1]:
            return located_in(*lowered, problem)
        return located(function, f"kernel {name}: {problem}")
    return located_in(place["file"], int(place["line"]), problem)


def _problem(text: str) -> str:
    if match := _CONVERSION.search(text):
        advice = "; its plain number is index.get()" if match["source"] == "ThreadIndex" else ""
        return f"{_shown(match['source'])} cannot be converted to {_shown(match['target'])}{advice}"
    if match := _CALL.search(text):
        return _call_problem(match["function"], _types(match["arguments"]))
    if match := _ATTRIBUTE.search(text):
        return f"{_shown(match['type'])} has no .{match['name']} in kernels"
    if match := _SET_ATTRIBUTE.search(text):
        return f"{_shown(match['type'])} has no .{match['name']} that can be assigned to"
    if match := _UNIFY.search(text):
        first, second = _shown(match["first"]), _shown(match["second"])
        return f"{match['name']} is {first} in one place and {second} in another; use one name for each"
    if match := _CAST.search(text):
        return f"{_shown(match['source'])} cannot become {_shown(match['target'])} here"
    if match := _ITERATED.search(text):
        return (
            f"a for loop in a kernel goes over range(...), a view or zip_exact(...), not over {_shown(match['type'])}"
        )
    if match := _NOT_CALLABLE.search(text):
        return f"{_shown(match['type'])} cannot be called"
    if match := _RETURNED.search(text):
        source, target = _shown(match["source"]), _shown(match["target"])
        return f"the function is declared to return {target} and a path returns {source}; return a value on every path"
    if match := _RETURNS.search(text):
        return f"the returned values have different types: {_translate(match['types'])}; return one type"
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Failed in")]
    return _translate(lines[0]) if lines else "this cannot be compiled"


def _call_problem(function: str, arguments: list[str]) -> str:
    shown = " and ".join(arguments)
    if function == "bool":
        advice = "; write is not None" if arguments and arguments[0].startswith(("Ref", "ThreadIndex")) else ""
        return f"{shown} is neither true nor false{advice}"
    advice = ""
    if "ThreadIndex" in arguments:
        advice = "; a ThreadIndex has no arithmetic, its plain number is index.get()"
    elif any(argument.startswith("Ref[") for argument in arguments):
        advice = "; the element is .value"
    if function in _OPERATORS:
        return f"{_OPERATORS[function]} is not defined for {shown}{advice}"
    return f"{function}(...) is not defined for {shown}{advice}"


def _types(arguments: str) -> list[str]:
    return [_shown(argument) for argument in re.split(r", (?![^\[]*\])", arguments)]


def _shown(type_text: str) -> str:
    """One type, as the kernel's author would write it; a slice's parameter is named beside it."""
    text = type_text.strip().rstrip(":").removesuffix(" of index_2d")
    if match := re.fullmatch(r"((?:Disjoint)?Slice\[[^\]]+\]) (\S+)", text):
        return f"{match[2]} ({match[1]})"
    if match := re.fullmatch(r"Literal\[\w+\]\((.*)\)", text):
        return match[1]
    if match := re.fullmatch(r"OptionalType\((.*?)\)?", text):
        return f"{_shown(match[1])} or None"
    return _NAMES.get(text, text)


def _translate(text: str) -> str:
    return re.sub(r"\b(?:u?int\d+|float\d+|none)\b", lambda match: _NAMES.get(match[0], match[0]), text)
