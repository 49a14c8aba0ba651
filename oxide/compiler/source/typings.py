"""The types of a kernel's expressions, as plain data: the part of the front end's inference that the interpreter uses.

A scalar type is written as oxide names it, ``"i64"`` or ``"f32"``. Any other type is ``""``: the interpreter's values
of these types know their own types.
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
class ArrayElements:
    """The shape and the type of the elements of an array or a fragment that the kernel declares. ``shape`` is None for
    dynamic shared memory."""

    shape: tuple[int, ...] | None
    dtype: str
    shown: str
    """The name of the array in faults."""


@final
@dataclass(slots=True)
class TypedCall:
    """A call. ``callee`` is a ``TypedFunction``, the name of a scalar type, or a Python object."""

    signature: Signature
    callee: Any = None
    captures: bool = False
    """True if the callee is a value in the kernel that holds the numbers that the function captures."""
    made: ArrayElements | None = None
    tuples: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """The types of the elements of each argument that is a tuple of numbers; ``"float"`` stands for a Python float,
    which takes the type of its other operand."""


@final
@dataclass(slots=True)
class TypedFunction:
    """A function for certain types of its arguments. The keys of all tables but ``variables`` are the numbers of
    nodes."""

    original: FunctionType
    definition: ast.FunctionDef
    types: dict[int, str] = field(default_factory=dict)
    """The type of each expression."""
    joined: dict[int, str] = field(default_factory=dict)
    """The type that the value of an operand of ``if … else``, ``and`` or ``or`` is converted to."""
    operations: dict[int, list[Signature]] = field(default_factory=dict)
    """The signatures of each expression's operators, in order."""
    calls: dict[int, TypedCall] = field(default_factory=dict)
    constants: dict[int, Any] = field(default_factory=dict)
    """The numbers and arrays of expressions that are constants."""
    arrays: dict[int, ArrayElements] = field(default_factory=dict)
    """The shapes and element types of the constant arrays."""
    variables: dict[str, set[str]] = field(default_factory=dict)
    """The types of each variable and of all that is assigned to it."""
    reads: dict[str, dict[int, str]] = field(default_factory=dict)
    """The type of each variable in each expression or statement that reads it."""
    parameters: tuple[str, ...] = ()
    """The types of the parameters."""
    result: str = ""
    """The type of the result."""
