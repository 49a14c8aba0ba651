"""``print(…)`` and ``oxide.debug``: calls of primitives that both back ends define (``compiler.ir.debugging``)."""

from __future__ import annotations

import warnings
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.core.callconv import CUDACallConv
from numba.cuda.types.ext_types import Dim3
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.language import debug

from .constant import constant_of
from .primitives import call_primitive, site
from .registry import lowering_registry, note, typing_registry
from .types import HalfType, display

_BIT = ir.IntType(1)
_INT = ir.IntType(32)
MOST_ITEMS = 32


def lower_print(context: Any, builder: Any, kinds: list[Any], values: list[Any]) -> None:
    """Emits the print of one line with the items, separated by spaces: floats as ``%f``, as in numba-cuda, and bools as
    True or False."""
    letters: list[str] = []
    items: list[Any] = []
    formats = [
        _format(context, builder, kind, value, letters, items) for kind, value in zip(kinds, values, strict=True)
    ]
    text = " ".join(formats) + "\n"
    if len(kinds) > MOST_ITEMS:  # only under numba-cuda's semantics, which warn like this
        warnings.warn(
            f"CUDA print() cannot print more than {MOST_ITEMS} items. "
            "The raw format string will be emitted by the kernel instead.",
            RuntimeWarning,
            stacklevel=2,
        )
        letters, items, text = [], [], text.replace("%", "%%")
    line = _text(builder, text)
    call_primitive(builder, _INT, f"oxide.print.{''.join(letters) or 'none'}", (line, *items))


def _format(context: Any, builder: Any, kind: Any, value: Any, letters: list[str], items: list[Any]) -> str:
    """Returns the format of an item. Appends its values to ``items`` and their kinds to ``letters``."""
    if isinstance(kind, types.StringLiteral):
        return str(kind.literal_value).replace("%", "%%")
    if isinstance(kind, types.BaseTuple | Dim3):
        parts = kind.types if isinstance(kind, types.BaseTuple) else (types.int32,) * 3
        shown = [
            _format(context, builder, part, builder.extract_value(value, number), letters, items)
            for number, part in enumerate(parts)
        ]
        return f"({', '.join(shown)}{',' * (len(shown) == 1)})"
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
    """Returns whether all arguments can be printed. Notes why if not."""
    for argument in args:
        plain = argument if isinstance(argument, types.StringLiteral) else types.unliteral(argument)
        if not isinstance(plain, types.Number | types.Boolean | types.StringLiteral | types.UnicodeType):
            note(f"print in a kernel takes numbers, bools and plain strings, not {display(argument)}")
            return False
    if len(args) > MOST_ITEMS:
        note(f"print in a kernel takes at most {MOST_ITEMS} items, not {len(args)}")
        return False
    return True


def _register(function: Any, result: Any) -> None:
    @typing_registry.register_global(function)
    class Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            if args or kws:
                note(f"debug.{function.__name__}() takes no arguments")
                return None
            return signature(result)


_register(debug.clock64, types.int64)
_register(debug.trap, types.none)
_register(debug.breakpoint, types.none)


@lowering_registry.lower(debug.clock64)
def _lower_clock(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return call_primitive(builder, ir.IntType(64), "oxide.clock64", ())


def _stop(function: Any) -> None:
    name = function.__name__

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = site(builder, "", f"debug.{name}() was reached")
        ends = call_primitive(builder, _BIT, f"oxide.stop.{name}", (), place)
        with builder.if_then(ends):
            CUDACallConv(context).return_user_exc(builder, AssertionError, ())
        return context.get_dummy_value()

    lowering_registry.lower(function)(lowered)


_stop(debug.trap)
_stop(debug.breakpoint)
