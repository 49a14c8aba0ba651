"""The types of a kernel's expressions, as plain data: what the interpreter knows of the front end's inference.

A type is written as oxide names it, ``"i64"`` or ``"f32"``. Every type that is no scalar is ``""``: its values carry
what they are.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, final


@final
@dataclass(frozen=True, slots=True)
class Signature:
    """The types that an operation or a call converts its operands to, and the type of its result."""

    arguments: tuple[str, ...]
    result: str


@final
@dataclass(frozen=True, slots=True)
class Elements:
    """The elements of an array or a fragment that the kernel declares: ``shape`` is None for dynamic shared memory."""

    shape: tuple[int, ...] | None
    dtype: str
    shown: str
    """The name of the array in faults."""


@final
@dataclass(slots=True)
class Call:
    """A call. ``callee`` is what it calls: a ``TypedFunction``, the name of a scalar type, or a Python object."""

    signature: Signature
    callee: Any = None
    captures: bool = False
    """True if the function is a value of the kernel, which holds the numbers that the function captures."""
    made: Elements | None = None


@final
@dataclass(slots=True)
class TypedFunction:
    """A function for certain types of its arguments. All tables but ``variables`` are by the nodes' numbers."""

    original: FunctionType
    definition: ast.FunctionDef
    types: dict[int, str] = field(default_factory=dict)
    """The type of each expression."""
    joined: dict[int, str] = field(default_factory=dict)
    """The type that the value of an operand of ``if … else``, ``and`` or ``or`` is converted to."""
    operations: dict[int, list[Signature]] = field(default_factory=dict)
    """The operators of each expression, in order."""
    calls: dict[int, Call] = field(default_factory=dict)
    constants: dict[int, Any] = field(default_factory=dict)
    """The numbers and arrays that expressions stand for."""
    arrays: dict[int, Elements] = field(default_factory=dict)
    """The constant arrays among them."""
    variables: dict[str, set[str]] = field(default_factory=dict)
    """The types of each variable and of all that is assigned to it."""
    parameters: tuple[str, ...] = ()
    """The types of the parameters."""
    result: str = ""
    """The type of the result."""
