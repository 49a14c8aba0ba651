"""``print(…)``, ``oxide.debug`` and ``assert``: calls of primitives that both back ends define
(``compiler.ir.primitives``)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from string import Formatter
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.core.callconv import CUDACallConv
from numba.cuda.types.ext_types import Dim3

from oxide.compiler.check.conveniences import FORMAT
from oxide.compiler.primitives.table import NONE, Primitive, returning
from oxide.language import debug

from .captured import constant_of
from .primitives import call_primitive, register, site
from .registry import note
from .types import HalfType, display

_BIT = ir.IntType(1)
_INT = ir.IntType(32)
MOST_ITEMS = 32


def lower_print(context: Any, builder: Any, kinds: list[Any], values: list[Any]) -> None:
    """Emits code that prints the items on one line. Without a format, the items are separated by spaces. Floats are
    then printed as ``%f``, as in numba-cuda, complex numbers as two floats, and bools as True or False."""
    letters: list[str] = []
    items: list[Any] = []
    if template := _template_of(kinds):
        text, remaining = "", iter(zip(kinds[1:], values[1:], strict=True))
        for literal, spec in template:
            text += literal.replace("%", "%%")
            if spec is not None:
                text += _format(context, builder, *next(remaining), letters, items, spec)
        text += "\n"
    else:
        formats = [
            _format(context, builder, kind, value, letters, items) for kind, value in zip(kinds, values, strict=True)
        ]
        text = " ".join(formats) + "\n"
    if len(kinds) > MOST_ITEMS:  # only under numba-cuda's semantics; this is numba-cuda's warning
        warnings.warn(
            f"CUDA print() cannot print more than {MOST_ITEMS} items. "
            "The raw format string will be emitted by the kernel instead.",
            RuntimeWarning,
            stacklevel=2,
        )
        letters, items, text = [], [], text.replace("%", "%%")
    line = _text(builder, text)
    call_primitive(builder, _INT, f"oxide.print.{''.join(letters) or 'none'}", (line, *items))


def _template_of(kinds: Sequence[Any]) -> list[tuple[str, str | None]]:
    """Returns the parts of the format if ``print``'s first argument is a format, else an empty list. A part is a text
    and the specification of the value that follows the text. The specification is None if no value follows."""
    first = kinds[0].literal_value if kinds and isinstance(kinds[0], types.StringLiteral) else ""
    if not first.startswith(FORMAT):
        return []
    return [(text, spec) for text, _, spec, _ in Formatter().parse(first.removeprefix(FORMAT))]


# The specifications that have the same meaning in Python and in C.
_SPECIFICATION = re.compile(
    r"(?P<align>[<>]?)(?P<sign>[+ ]?)(?P<other>#?)(?P<zero>0?)(?P<width>\d*)(?P<precision>(?:\.\d+)?)"
    r"(?P<kind>[doxXeEfFgG]?)"
)


def _conversion(kind: Any, spec: str) -> tuple[Any, str]:
    """Returns the type to which a value is converted for printing, and C's conversion specification for this type. If
    kernels cannot print the value with ``spec``, raises ``ValueError`` with the reason."""
    found = _SPECIFICATION.fullmatch(spec)
    if found is None:
        raise ValueError("a specification is a width, a precision and one of d o x e f g, as in {x:8.3f}")
    if isinstance(kind, types.Complex):
        raise ValueError(f"{display(kind)} has two parts: print z.real and z.imag")
    letter = found["kind"]
    if letter in ("e", "E", "f", "F", "g", "G"):
        printed, size = types.float64, ""
    elif isinstance(kind, types.Integer | types.Boolean):
        if found["precision"]:
            raise ValueError(f"an integer, {display(kind)}, has no precision")
        signed = isinstance(kind, types.Boolean) or kind.signed
        printed, size, letter = (types.int64 if signed else types.uint64), "ll", letter or "d"
        letter = "u" if letter == "d" and not signed else letter
    elif letter:
        raise ValueError(f"{letter} takes an integer, not {display(kind)}")
    elif found["precision"]:
        raise ValueError("a precision needs e, f or g behind it, as in {x:.3g}")
    else:
        printed, size, letter = types.float64, "", "f"  # the same as without a specification
    flags = ("-" if found["align"] == "<" else "0" if found["zero"] and not found["align"] else "") + found["sign"]
    return printed, f"%{flags}{found['other']}{found['width']}{found['precision']}{size}{letter}"


def _format(
    context: Any, builder: Any, kind: Any, value: Any, letters: list[str], items: list[Any], spec: str = ""
) -> str:
    """Returns C's format for one item of ``print``. Appends the values to print to ``items``, and a letter for the kind
    of each value to ``letters``."""
    if spec:
        printed, text = _conversion(kind, spec)
        letters.append("d" if isinstance(printed, types.Float) else "i")
        items.append(context.cast(builder, value, kind, printed))
        return text
    if isinstance(kind, types.StringLiteral):
        return str(kind.literal_value).replace("%", "%%")
    if isinstance(kind, types.BaseTuple | Dim3):
        parts = kind.types if isinstance(kind, types.BaseTuple) else (types.int32,) * 3
        shown = [
            _format(context, builder, part, builder.extract_value(value, number), letters, items)
            for number, part in enumerate(parts)
        ]
        return f"({', '.join(shown)}{',' * (len(shown) == 1)})"
    if isinstance(kind, types.Complex):
        for number in range(2):
            letters.append("d")
            part = builder.extract_value(value, number)
            items.append(context.cast(builder, part, kind.underlying_float, types.float64))
        return "(%f%+fj)"
    if isinstance(kind, types.Boolean):
        letter, text, item = "s", "%s", builder.select(value, _text(builder, "True"), _text(builder, "False"))
    elif isinstance(kind, types.Integer):
        wide = types.int64 if kind.signed else types.uint64
        letter, text, item = "i", "%lld" if kind.signed else "%llu", context.cast(builder, value, kind, wide)
    elif isinstance(kind, types.Float | HalfType):
        letter, text, item = "d", "%f", context.cast(builder, value, kind, types.float64)
    else:
        note(f"print in a kernel takes numbers, bools, plain strings and tuples of these, not {display(kind)}")
        raise NotImplementedError(f"print of {kind}")
    letters.append(letter)
    items.append(item)
    return text


def _text(builder: Any, text: str) -> Any:
    """Returns the address of a constant string in the generic address space, which the GPU's vprintf needs."""
    constant = constant_of(builder, "oxide.text", cgutils.make_bytearray(f"{text}\0".encode()))
    return builder.bitcast(constant, ir.IntType(8).as_pointer())


def check_print(args: tuple[Any, ...]) -> bool:
    """Returns whether all arguments can be printed. If not, adds a note with the reason."""
    specs = [spec for _, spec in _template_of(args) if spec is not None]
    for argument in args:
        plain = argument if isinstance(argument, types.StringLiteral) else types.unliteral(argument)
        if not isinstance(plain, types.Number | types.Boolean | types.StringLiteral | types.UnicodeType):
            note(f"print in a kernel takes numbers, bools and plain strings, not {display(argument)}")
            return False
    for argument, spec in zip(args[1:], specs, strict=False):
        if spec:
            try:
                _conversion(types.unliteral(argument), spec)
            except ValueError as error:
                note(f"print in a kernel: {{:{spec}}}: {error}")
                return False
    if len(args) > MOST_ITEMS:
        note(f"print in a kernel takes at most {MOST_ITEMS} items, not {len(args)}")
        return False
    return True


register(Primitive(debug.clock64, returning("i64"), "oxide.clock64"))


def _stop(function: Any) -> None:
    name = function.__name__

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = site(builder, "", f"debug.{name}() was reached")
        ends = call_primitive(builder, _BIT, f"oxide.stop.{name}", (), place)
        with builder.if_then(ends):
            CUDACallConv(context).return_user_exc(builder, AssertionError, ())
        return context.get_dummy_value()

    register(Primitive(function, returning(NONE)), lowered=lowered)


_stop(debug.trap)
_stop(debug.breakpoint)


def lower_failure(builder: Any, arguments: tuple[Any, ...] | None) -> None:
    """Emits the call that records the failure of the assert being lowered. The thread then leaves the kernel as if the
    assert had raised. ``arguments`` holds the assert's message; it is None or empty if the assert has no message."""
    message = str(arguments[0]) if arguments else ""
    call_primitive(builder, ir.VoidType(), "oxide.assertion_failed", (), site(builder, "", message))
