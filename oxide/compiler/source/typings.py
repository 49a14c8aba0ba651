"""The types of a kernel's expressions, as plain data: the results of the front end's inference that the interpreter
uses.

A scalar type is given as oxide's name for it, such as ``"i64"`` or ``"f32"``. Any other type is given as ``""``,
because the interpreter's values of such types carry their types themselves.
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
    """An array or a fragment that the kernel declares, or a constant array: its shape and the type of its elements.
    ``shape`` is None for dynamic shared memory."""

    shape: tuple[int, ...] | None
    dtype: Any
    """The name of a type of numbers, or a ``StructureType``."""
    shown: str
    """The name of the array in faults."""


@final
@dataclass(slots=True)
class TypedCall:
    """A call. ``callee`` is a ``TypedFunction``, the name of a type of numbers, a ``StructureType``, or a Python
    object."""

    signature: Signature
    callee: Any = None
    is_method: bool = False
    """True for a method of a vector or a structure, whose first argument is the vector or the structure."""
    captures: bool = False
    """True if the callee is a value in the kernel that holds the numbers which the called function captures."""
    made: ArrayElements | None = None
    tuples: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """The types of the elements of each argument that is a tuple of numbers, by the argument's position. ``"float"``
    stands for a Python float, which takes the type of the other operand of an operation."""


@final
@dataclass(slots=True)
class TypedFunction:
    """A function for certain types of its arguments. The tables are keyed by the numbers of nodes, except
    ``variables``, ``loops`` and the outer table of ``reads``, which are keyed by the names of variables."""

    original: FunctionType
    definition: ast.FunctionDef
    types: dict[int, str] = field(default_factory=dict)
    """The type of each expression."""
    joined: dict[int, str] = field(default_factory=dict)
    """The type to which the value of an operand of ``if … else``, ``and`` or ``or`` is converted."""
    operations: dict[int, list[Signature]] = field(default_factory=dict)
    """The signatures of each expression's operators, in order."""
    calls: dict[int, TypedCall] = field(default_factory=dict)
    constants: dict[int, Any] = field(default_factory=dict)
    """The numbers and arrays that are the values of constant expressions."""
    arrays: dict[int, ArrayElements] = field(default_factory=dict)
    """The shapes and element types of the constant arrays."""
    variables: dict[str, set[str]] = field(default_factory=dict)
    """The types of each variable, and of all values that are assigned to it."""
    reads: dict[str, dict[int, str]] = field(default_factory=dict)
    """The type that each variable has in each expression or statement that reads the variable."""
    loops: dict[str, set[int]] = field(default_factory=dict)
    """The expressions and statements that read a variable as a loop leaves it, by the variable's name."""
    narrowed: dict[int, str] = field(default_factory=dict)
    """The type of an annotated variable to which an integer is assigned that it may not hold, by the number of the
    variable's name in the assignment."""
    parameters: tuple[str, ...] = ()
    """The types of the parameters."""
    result: str = ""
    """The type of the result."""
