"""What an entry of the table of primitives says about a function of the kernel language.

The front end types and lowers calls from the entries (``frontend/lowering/primitives.py``). The back ends take the
definitions of the functions that the front end's code calls, and the interpreter takes an implementation in Python.
The entries name types as users do: ``"i64"``, ``"f32"``, ``"bool_"``. They know neither numba nor LLVM.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from oxide.compiler.source.typings import Signature
from oxide.language.primitives import name_of
from oxide.language.types import SCALARS

from .numbers import BITS, INTEGERS

NONE = "None"
"""The result of a function that returns nothing."""

OPEN = "float"
"""Stands for the type of a Python float that takes the type of the first typed float that it meets. As an argument it
is an ``f64``."""

PLACE = "place"
"""Stands for the type of a place: an ``i64`` that floats take for a Python integer. It is only a result."""

WORDS = "four u32"
"""Stands for the type of a tuple of four ``u32``. It is only a result."""

SCALAR = "oxide.scalar."
"""The prefix of the symbols that entries of functions of numbers define."""

Rule: TypeAlias = Callable[[str, tuple[str, ...]], Signature | str]
"""Returns the types of a call, from the function's name and the types of the arguments, without a mask. If they do not
fit, returns a text for the user that says why. A type that is not a scalar is given by its name for users."""

Implementation: TypeAlias = Callable[[Signature], Callable[..., Any] | None]
"""Returns a function's implementation in the interpreter for some types, or None if the interpreter compiles it."""

Lanes: TypeAlias = dict[int, Any]
"""The values that the lanes of a warp bring, or their results, by the lanes' numbers."""


@final
@dataclass(frozen=True, slots=True)
class Primitive:
    """An entry of the table."""

    function: Callable[..., Any]
    """The declaration. If its last parameter is ``mask``, this is the mask of a warp operation."""
    typed: Rule
    symbol: str | Callable[[Signature], str] = ""
    """The name in the IR of the function that a call becomes, if it is not derived from the declaration's name. It may
    be a function of libdevice or LLVM. ``{kind}`` stands for the integer with the width of the first argument."""
    as_bits: bool = False
    """True if values are passed and returned as integers of their width."""
    definition: str = ""
    """The declarations and the body of a function of numbers, in IR that both back ends compile. The parameters have
    the names of the declaration's. ``{types[0]}`` stands for the LLVM type of the first parameter, ``{suffix}`` for
    this type in the names of LLVM's intrinsics, and ``{result}`` for the type of the result. The width is ``ctlz`` of
    0, and i128 is between two types that may be the same. A declaration may be repeated."""
    ptx: str | Mapping[int, str] = ""
    """The declarations and the body for a GPU, or those by the least compute capability that has them. The parameters
    are ``%context`` if threads meet in the function, ``%mask``, those of the declaration, and ``%site``. With
    ``as_bits`` there is a definition for values of i32 and one for i64, for which ``{kind}`` stands. A text with
    ``define`` has whole definitions."""
    cpu: str = ""
    """The same for the CPU device, where threads that meet are coroutines. With ``as_bits``, ``{widened}`` is the
    conversion of ``%value`` to 64 bits, and ``{narrowed}`` the conversion of ``%other`` back."""
    meeting: str = ""
    """What waits in a call: ``"warp"``, ``"block"`` or ``"grid"``, whose threads meet, or ``"stream"``. Such a call
    passes its fault site. Of a warp, the sanitizer reports lanes of the mask that do not take part."""
    has_site: bool = False
    """True if a call passes its fault site although no threads meet in it."""
    interpreted: Implementation | None = None
    combined: Callable[[str, Lanes], Any] | None = None
    """Computes the results of threads that meet in the interpreter, from the type and the values of their first
    arguments. Those of a warp are ``Lanes``; all threads of a block get one result."""

    @property
    def name(self) -> str:
        return name_of(self.function)

    @property
    def place(self) -> str:
        """Returns the function's name in faults."""
        return f"{self.name.removeprefix('thread.')}()"

    @property
    def least(self) -> int:
        """Returns the number of arguments that each call must give, by position."""
        return sum(each.default is each.empty for each in parameters_of(self.function))

    @property
    def masked(self) -> bool:
        return any(each.name == "mask" for each in parameters_of(self.function))

    @property
    def meets(self) -> bool:
        """Returns whether threads meet in a call. Their functions take the hidden context."""
        return self.meeting not in ("", "stream")

    def symbol_of(self, signature: Signature) -> str:
        """Returns the name in the IR of the function that a call becomes."""
        if callable(self.symbol):
            return self.symbol(signature)
        if self.symbol:
            return self.symbol.replace("{kind}", f"i{bits(signature)}") if signature.arguments else self.symbol
        if self.meeting or self.has_site:
            return f"oxide.{self.name}"
        return ".".join((f"{SCALAR}{self.name}", *signature.arguments))

    def ptx_text(self, capability: int) -> str:
        """Returns the definitions for a GPU of some compute capability, such as 90."""
        attributes = "alwaysinline convergent" if self.meets else "alwaysinline"
        if isinstance(self.ptx, str):
            return self._of_widths(self.ptx, attributes)
        return self._of_widths(self.ptx[max(least for least in self.ptx if least <= capability)], attributes)

    @property
    def cpu_text(self) -> str:
        return self._of_widths(self.cpu, "alwaysinline")

    def _of_widths(self, text: str, attributes: str) -> str:
        if "define " in text or not text:
            return text
        if not self.as_bits:
            return self._defined(text, "i32", attributes)
        narrow = text.replace("{widened}", "zext i32 %value to i64").replace("{narrowed}", "trunc i64 %other to i32")
        wide = text.replace("{widened}", "bitcast i64 %value to i64").replace("{narrowed}", "bitcast i64 %other to i64")
        return self._defined(narrow, "i32", attributes) + self._defined(wide, "i64", attributes)

    def _defined(self, text: str, kind: str, attributes: str) -> str:
        parameters = [each for each in parameters_of(self.function) if each.name != "mask"]
        signature = self.typed(self.name, tuple("bool_" if each.annotation == "bool" else kind for each in parameters))
        assert isinstance(signature, Signature)
        values = [
            f"{llvm_type(each)} %{value.name}" for each, value in zip(signature.arguments, parameters, strict=True)
        ]
        listed = ["ptr %context"] * self.meets + ["i32 %mask"] * self.masked + values
        listed += ["i32 %site"] * bool(self.meeting)
        return defined(text.replace("{kind}", kind), signature.result, self.symbol_of(signature), listed, attributes)


@functools.cache
def parameters_of(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Returns the parameters of a declaration."""
    return tuple(inspect.signature(function).parameters.values())


def defined(text: str, result: str, symbol: str, parameters: Iterable[str], attributes: str) -> str:
    """Returns a function's definition. ``text`` has declarations and, after them, the function's body."""
    lines = text.strip("\n").split("\n")
    body = sum(line.startswith("declare ") for line in lines)
    head = f"define {llvm_type(result)} @{symbol}({', '.join(parameters)}) {attributes} {{"
    return "\n".join(["", *lines[:body], head, *lines[body:], "}", ""])


def shown(kinds: Iterable[str]) -> str:
    """Returns the names of types for an error message."""
    return " and ".join("f64" if kind == OPEN else kind for kind in kinds)


def bits(signature: Signature) -> int:
    """Returns the width of a call's first argument."""
    return BITS[signature.arguments[0]]


def llvm_type(kind: str) -> str:
    """Returns LLVM's type for the values of a scalar type, and for the types of results above."""
    return _LLVM_TYPES.get(kind) or SCALARS[kind].register_type


_LLVM_TYPES = {NONE: "void", PLACE: "i64", WORDS: "[4 x i32]"}


# Rules


def returning(result: str) -> Rule:
    """Returns the rule of a function without arguments."""
    return lambda name, kinds: Signature((), result)


def condition(result: str) -> Rule:
    """Returns the rule of a function that takes a condition: a bool, or an integer, which is true if it is not 0."""

    def rule(name: str, kinds: tuple[str, ...]) -> Signature | str:
        if kinds[0] in (*INTEGERS, "bool_"):
            return Signature(("bool_",), result)
        return f"{name} takes a condition, not {shown(kinds)}; compare it, as in x > 0"

    return rule


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
