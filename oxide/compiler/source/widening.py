"""Describes float arithmetic whose result type is wider than an operand's type. The front end finds it, and
``Kernel.checks()`` lists it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True, order=True)
class Widening:
    """One operation whose result is a float wider than an operand.

    ``operation`` is the operation written with the types of its operands, such as ``f32 * i64``. ``result`` is the type
    of its result, and ``narrow`` is the type of the narrower operand.
    """

    file: str
    line: int
    operation: str
    result: str
    narrow: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.operation} is computed in {self.result}; convert to stay in {self.narrow}"
