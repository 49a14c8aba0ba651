"""Writes the IR that computes, once in each call, the range of whole blocks in which the requirements of ``positions``
hold. The blocks in this range need no checks.

A requirement is that a line, ``factor * position + start``, is not negative. A rising line gives a first position, and
a falling line gives an end. The range lies between the greatest first position and the least end. No computation here
can wrap: positions are under 2**42, starts under 2**62, factors under 2**19.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from oxide.compiler.bounds.affine import Coefficient, Range
from oxide.compiler.ir.module import Function
from oxide.compiler.ir.values import Binary, Call, Compare, Constant, Instruction, Value, number

CHECKED_BLOCKS = "oxide.checked_blocks"
"""The function that runs a range of blocks with every check. It has the parameters of the entry."""

Line: TypeAlias = tuple[int, Coefficient]
"""A number that is linear in the position, as its factor and its start."""


def add_requirements(
    function: Function, ranges: Range, held: Iterable[tuple[Value, Value]], required: Iterable[Line]
) -> None:
    """Adds to the function of ``positions.ll`` the instructions that compute the range of blocks. In these blocks, the
    pairs in ``held`` are equal and the lines in ``required`` are not negative."""
    code = list(ranges.code)

    def add(instruction: Instruction) -> Instruction:
        instruction.name = f"%oxide.whole.{len(code)}"
        code.append(instruction)
        return instruction

    def extreme(name: str, left: Value, right: Value) -> Value:
        return add(Call("", "i64", Constant(f"@llvm.{name}.i64", "ptr"), (left, right)))

    def divided(opcode: str, left: Value, right: Value, by: int) -> Value:
        """Adds the division of a sum or a difference by ``by``. For a negative dividend, any quotient that is not
        positive is correct here."""
        value = add(Binary("", opcode, left, right))
        return add(Binary("", "sdiv", value, number(by))) if by > 1 else value

    results = function.blocks["%oxide.choose"].phis
    least, most, holds, least_block = (phi.operands[0] for phi in results)
    conditions = [*ranges.conditions, *(add(Compare("", "eq", left, right)) for left, right in held)]
    for factor, start in required:
        word = number(start) if isinstance(start, int) else start
        if factor == 0:
            conditions.append(add(Compare("", "sge", word, number(0))))
        elif factor > 0 and not (isinstance(start, int) and start >= 0):
            # The line is not negative from ceil(-start / factor) on.
            least = extreme("smax", least, divided("sub", number(factor - 1), word, factor))
        elif factor < 0:
            # The line is not negative before floor(start / -factor) + 1.
            most = extreme("smin", most, divided("add", word, number(-factor), -factor))
    for condition in conditions:
        holds = add(Binary("", "and", holds, condition))
    if least is not results[0].operands[0]:
        ntid = function.values["%oxide.ntid"]
        up = add(Binary("", "sub", add(Binary("", "add", least, ntid)), number(1)))
        least_block = add(Binary("", "udiv", up, ntid))
    for phi, value in zip(results, (least, most, holds, least_block), strict=True):
        phi.operands[0] = value
    function.blocks["%oxide.prepare"].insert(-1, code)
