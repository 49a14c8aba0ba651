"""Types and lowers calls of the primitives in ``compiler/primitives``, and emits the numbers of fault sites that calls
pass."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.primitives import table, threads, warps
from oxide.compiler.source.typings import Signature
from oxide.language.warp import FULL_MASK

from .registry import first_parameters, lowering_registry, note, site_number, typing_registry
from .types import NUMBA_TYPES, OPEN, PLACE, WeakInteger, display

_BIT = ir.IntType(1)
_INT = ir.IntType(32)
_NUMBA_TYPES = {**NUMBA_TYPES, table.OPEN: OPEN, table.PLACE: PLACE, table.NONE: types.none}
_NUMBA_TYPES[table.WORDS] = types.UniTuple(types.uint32, 4)
_KINDS = {kind: name for name, kind in _NUMBA_TYPES.items()}


def call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Emits a call of a function of libdevice, of LLVM or of oxide's back ends. The types of the arguments determine
    the function's declaration."""
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), arguments)


def call_primitive(builder: Any, result: Any, name: str, arguments: tuple[Any, ...], *more: Any) -> Any:
    """Emits a call of a primitive, which each back end defines."""
    return call(builder, name, result, *arguments, *more)


def site(builder: Any, what: str, assertion: str | None = None, axis: int | None = None, axes: int = 1) -> Any:
    """Returns the number of a fault site at the place in the source being lowered. ``what`` names the array or the
    function that can fault there. The returned value is a call. ``compiler.ir`` replaces the call by the site's number
    when it knows all sites of the kernel."""
    return call(builder, f"oxide.site.{site_number(what, assertion, axis, axes)}", _INT)


def kind_of(kind: Any) -> str:
    """Returns a type's name in the entries of primitives. A type that is not a scalar has its name for users."""
    plain = types.unliteral(kind)
    return display(plain) if isinstance(plain, WeakInteger) else _KINDS.get(plain) or display(plain)


def as_bit(builder: Any, value: Any) -> Any:
    return value if value.type == _BIT else builder.icmp_unsigned("!=", value, value.type(0))


def register(entry: table.Primitive, name: str = "", lowered: Any = None) -> None:
    """Registers the typing and the lowering of an entry's function. ``name`` is the function's name in messages, if it
    is not that of the declaration. ``lowered`` emits a call, if it is not a call of the entry's symbol."""
    name, count, masked = name or entry.name, entry.least, entry.masked
    takes = f"{count} argument{'s' * (count != 1)}" if count or masked else "no argument"
    takes += " and a mask" if masked else ", by position" if count else ""

    @typing_registry.register_global(entry.function)
    class Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            given = dict(kws or {})
            every = (*args, given.pop("mask")) if masked and "mask" in given else args
            if given or not count <= len(every) <= count + masked:
                note(f"{name} takes {takes}")
                return None
            if any(isinstance(argument, types.Optional) for argument in every):
                return None  # numba tries again with the type without None
            for mask in every[count:]:
                if not isinstance(types.unliteral(mask), types.Integer):
                    note(f"the mask of {name} is an integer, a bit for each lane; it is {display(mask)}")
                    return None
            found = entry.typed(name, tuple(map(kind_of, every[:count])))
            if isinstance(found, str):
                note(found)
                return None
            arguments = [_NUMBA_TYPES[kind] for kind in found.arguments] + [types.uint32] * (len(every) - count)
            typed = signature(_NUMBA_TYPES[found.result], *arguments)
            return typed.replace(pysig=first_parameters(entry.function, len(every))) if masked else typed

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kinds = Signature(tuple(map(kind_of, sig.args[:count])), kind_of(sig.return_type))
        values = [_passed(entry, builder, value) for value in args[:count]]
        if masked:
            values.insert(0, args[count] if len(args) > count else _INT(FULL_MASK))
        if entry.meeting or entry.has_site:
            values.append(site(builder, entry.place))
        if sig.return_type == types.none:
            call(builder, entry.symbol_of(kinds), ir.VoidType(), *values)
            return context.get_dummy_value()
        result = context.get_value_type(sig.return_type)
        if not (entry.as_bits and isinstance(sig.return_type, types.Float)):
            return call(builder, entry.symbol_of(kinds), result, *values)
        word = ir.IntType(sig.return_type.bitwidth)
        return builder.bitcast(call(builder, entry.symbol_of(kinds), word, *values), result)

    for given in range(count, count + masked + 1):
        lowering_registry.lower(entry.function, *[types.Any] * given)(lowered or lower)


def _passed(entry: table.Primitive, builder: Any, value: Any) -> Any:
    if entry.as_bits and isinstance(value.type, ir.FloatType | ir.DoubleType):
        return builder.bitcast(value, ir.IntType(32 if isinstance(value.type, ir.FloatType) else 64))
    return value


for _entry in (*warps.ENTRIES, *threads.ENTRIES):
    register(_entry)
