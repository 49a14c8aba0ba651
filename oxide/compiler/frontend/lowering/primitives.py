"""Types and lowers calls of the primitives in ``compiler/primitives``, and emits the numbers of fault sites that calls
pass."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.primitives import table
from oxide.compiler.source.typings import Signature

from .registry import lowering_registry, note, site_number, typing_registry
from .types import NUMBA_TYPES, OPEN, display

_SITE = ir.IntType(32)
_NUMBA_TYPES = {**NUMBA_TYPES, table.OPEN: OPEN}
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
    return call(builder, f"oxide.site.{site_number(what, assertion, axis, axes)}", _SITE)


def kind_of(kind: Any) -> str:
    """Returns a type's name in the entries of primitives. A type that is not a scalar has its name for users."""
    plain = types.unliteral(kind)
    return _KINDS.get(plain) or display(plain)


def register(entry: table.Primitive, name: str = "") -> None:
    """Registers the typing and the lowering of an entry's function. ``name`` is the function's name in messages, if it
    is not that of the declaration."""
    name, count = name or entry.name, entry.least

    @typing_registry.register_global(entry.function)
    class Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            if kws or len(args) != count:
                note(f"{name} takes {count} argument{'s' * (count != 1)}, by position")
                return None
            if any(isinstance(argument, types.Optional) for argument in args):
                return None  # numba tries again with the type without None
            found = entry.typed(name, tuple(map(kind_of, args)))
            if isinstance(found, str):
                note(found)
                return None
            return signature(*(_NUMBA_TYPES[kind] for kind in (found.result, *found.arguments)))

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        symbol = entry.symbol_of(Signature(tuple(map(kind_of, sig.args)), kind_of(sig.return_type)))
        return call(builder, symbol, context.get_value_type(sig.return_type), *args)

    lowering_registry.lower(entry.function, *[types.Any] * count)(lower)
