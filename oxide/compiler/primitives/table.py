"""What an entry of the table of primitives says about a function of the kernel language.

The front end types and lowers calls from the entries (``frontend/lowering/primitives.py``). The back ends take the
definitions of the functions that the front end's code calls, and the interpreter takes an implementation in Python.
The entries name types as users do: ``"i64"``, ``"f32"``, ``"bool_"``. They know neither numba nor LLVM.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from oxide.compiler.source.typings import Signature
from oxide.language.primitives import name_of

from .numbers import BITS, INTEGERS

OPEN = "float"
"""Stands for the type of a Python float that takes the type of the first typed float that it meets. As an argument it
is an ``f64``."""

SCALAR = "oxide.scalar."
"""The prefix of the symbols that entries of functions of numbers define."""

Rule: TypeAlias = Callable[[str, tuple[str, ...]], Signature | str]
"""Returns the types of a call, from the function's name and the types of the arguments that are given. If they do not
fit, returns a text for the user that says why. A type that no entry knows is given as users read it."""

Implementation: TypeAlias = Callable[[Signature], Callable[..., Any] | None]
"""Returns a function's implementation in the interpreter for some types, or None if the interpreter compiles it."""


@final
@dataclass(frozen=True, slots=True)
class Primitive:
    """An entry of the table."""

    function: Callable[..., Any]
    """The declaration."""
    typed: Rule
    symbol: Callable[[Signature], str] | None = None
    """Returns the function of libdevice or LLVM that a call becomes. None if the entry has a definition."""
    definition: str = ""
    """The definition of ``@{symbol}`` in IR that both back ends compile. ``{types[0]}`` stands for the LLVM type of the
    first parameter, ``{suffix}`` for this type in the names of LLVM's intrinsics, and ``{result}`` for the type of the
    result."""
    interpreted: Implementation | None = None

    @property
    def name(self) -> str:
        return name_of(self.function)

    def symbol_of(self, signature: Signature) -> str:
        """Returns the name in the IR of the function that a call becomes."""
        if self.symbol is not None:
            return self.symbol(signature)
        return f"{SCALAR}{self.name}.{'.'.join(signature.arguments)}"

    @property
    def least(self) -> int:
        """Returns the number of arguments that each call must give, by position."""
        return sum(each.default is each.empty for each in inspect.signature(self.function).parameters.values())


def shown(kinds: Iterable[str]) -> str:
    """Returns the names of types for an error message."""
    return " and ".join("f64" if kind == OPEN else kind for kind in kinds)


def bits(signature: Signature) -> int:
    """Returns the width of a call's first argument."""
    return BITS[signature.arguments[0]]


def llvm_type(kind: str) -> str:
    """Returns LLVM's type for the values of a scalar type."""
    return {"f32": "float", "f64": "double", "bool_": "i1"}.get(kind, f"i{BITS[kind]}")


# Rules


def integers(result: str | None = None) -> Rule:
    """Returns the rule of a function of integers of one type, with 32 or 64 bits. The result has the type ``result``,
    or the type of the arguments."""

    def rule(name: str, kinds: tuple[str, ...]) -> Signature | str:
        for kind in kinds:
            if kind not in INTEGERS or BITS[kind] < 32:
                return f"{name} takes 32- and 64-bit integers, not {shown([kind])}; convert it, as in u32(x)"
        if len(set(kinds)) != 1:
            return f"{name} takes integers of one type, not {shown(kinds)}; convert one of them"
        return Signature(kinds, result or kinds[0])

    return rule


def float_of(kinds: Sequence[str]) -> str | None:
    """Returns the type in which a function of floats computes: f32 if all arguments are f32, else f64. Returns None if
    an argument is not a number."""
    # The last is numba-cuda's type.
    if not all(kind in (*INTEGERS, "bool_", "f32", "f64", OPEN, "float16") for kind in kinds):
        return None
    return "f32" if all(kind == "f32" for kind in kinds) else "f64"


def floats(name: str, kinds: tuple[str, ...]) -> Signature | str:
    """The rule of a function of floats that also takes integers and bools."""
    kind = float_of(kinds)
    return f"{name} takes numbers, not {shown(kinds)}" if kind is None else Signature((kind,) * len(kinds), kind)


def singles(name: str, kinds: tuple[str, ...]) -> Signature | str:
    """The rule of a function that approximates for f32."""
    if set(kinds) == {"f32"}:
        return Signature(kinds, "f32")
    return f"{name} approximates for f32, not {shown(kinds)}; use math's function, or convert, as in f32(x)"
