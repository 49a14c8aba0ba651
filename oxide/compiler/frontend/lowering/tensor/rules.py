"""Types calls of what ``oxide.tensor`` declares by rules, and emits the calls of the back ends' primitives.

A rule takes the types of the arguments, in the order of the declaration's parameters. For a parameter that is left out
it gets the type of the default. It returns numba's signature of the call, or the reason why the call is wrong, which is
empty if it is noted already.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from llvmlite import ir
from numba.cuda import types
from numba.cuda.typing.templates import AbstractTemplate

from oxide.language.primitives import name_of

from ..primitives import call_primitive, site
from ..registry import bound, note, typing_registry
from ..types import display

Rule: TypeAlias = Callable[..., Any]

BYTE_POINTER = ir.IntType(8).as_pointer()
VOID = ir.VoidType()
_OPTIONAL = ("", ", the last optional", ", the last two optional", ", the last three optional")


def typed(declaration: Any, usage: str = "") -> Callable[[Rule], Rule]:
    """Makes the decorated rule the typing of a function's or a class's calls. ``usage`` is the message for a call that
    does not fit the parameters."""

    def register(rule: Rule) -> Rule:
        typing_registry.register_global(declaration)(_template(name_of(declaration), declaration, rule, usage))
        return rule

    return register


def method(name: str, declaration: Any, rule: Rule) -> Any:
    """Returns the template that types the calls of a method by a rule, which takes the object's type first. ``name`` is
    the method's name in messages, and the key of its lowering."""
    return _template(name, declaration, rule, key=name)


def _template(name: str, declaration: Any, rule: Rule, usage: str = "", key: str = "") -> Any:
    every = list(inspect.signature(declaration).parameters.values())[bool(key) :]
    parameters = [each.replace(annotation=each.empty) for each in every]
    names = [each.name for each in parameters]
    defaults = {each.name: _literal(each.default) for each in parameters if each.default is not each.empty}
    usage = usage or f"{name} takes ({', '.join(names)}){_OPTIONAL[len(defaults)]}"

    class Template(AbstractTemplate):  # type: ignore[misc]
        prefer_literal = True
        noted = False

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            given = bound(names, args, kws, optional=len(defaults))
            found = usage if given is None else rule(*self.receiver(), *(_given(given, each) for each in names))
            if isinstance(found, str):
                if found and not self.noted:  # numba asks a second time, without the values of constants
                    note(found)
                self.noted = True
                return None
            return found.replace(pysig=inspect.Signature(parameters), recvr=getattr(self, "this", None))

        def receiver(self) -> tuple[Any, ...]:
            return (self.this,) if key else ()

    def _given(given: dict[str, Any], each: str) -> Any:
        kind = given.get(each, defaults.get(each))
        return _literal(kind.value) if isinstance(kind, types.Omitted) else kind

    if key:
        Template.key = key
    return Template


def _literal(value: Any) -> Any:
    """Returns the type of a default."""
    return types.none if value is None else types.literal(value)


def shown(kind: Any) -> str:
    """Returns a type for messages, and a constant's value."""
    return str(kind.literal_value) if isinstance(kind, types.Literal) else display(kind)


def is_integer(kind: Any) -> bool:
    return isinstance(types.unliteral(kind), types.Integer)


def emitted(context: Any, builder: Any, symbol: str, what: str, *arguments: Any, fault: str | None = None) -> Any:
    """Emits the call of a primitive that has no result, and that faults as ``what``. Returns the value of a call of a
    function without a result."""
    call_primitive(builder, VOID, symbol, arguments, site(builder, what, fault))
    return context.get_dummy_value()
