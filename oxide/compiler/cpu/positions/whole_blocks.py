"""IR that computes, once a call, the range of whole blocks that need no checks: ``positions``' requirements hold there.

A requirement is a line, ``factor * position + start``, that is not negative. A rising line gives a first position, a
falling line an end. The blocks lie between the greatest first position and the least end. The numbers are too small for
anything here to wrap: positions are under 2**42, starts under 2**62, factors under 2**19.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from oxide.compiler.bounds.affine import Coefficient, Range

CHECKED_BLOCKS = "oxide.checked_blocks"
"""The function that runs a range of blocks with every check. Its parameters are the entry's."""

Line: TypeAlias = tuple[int, Coefficient]
"""A number that is linear in the position: the factor and the start."""

_STEP = 64
"""At least the number of elements of a processor's vector."""

_MOST_POSITIONS = 2**42
"""A grid has fewer positions: CUDA's limits are 2**31 blocks along x and 2**10 threads."""


def whole_blocks(ranges: Range, held: Iterable[str], required: Iterable[Line]) -> str:
    """Returns the instructions that find the blocks and run those before them. They define ``%oxide.any``: whether
    there are any; ``%oxide.from``: the first position; ``%oxide.count``: the number of positions; and
    ``%oxide.to.block``: the end of the blocks."""
    code = list(ranges.code)
    least, most, holds = "%oxide.first.position", "%oxide.end.position", "%oxide.counts"
    code.append(f"  {holds} = icmp ult i64 {most}, {_MOST_POSITIONS}")
    for number, condition in enumerate(ranges.conditions):
        code.append(f"  %oxide.hold.{number} = and i1 {holds}, {condition}")
        holds = f"%oxide.hold.{number}"
    for number, comparison in enumerate(held):
        code.append(f"  %oxide.held.{number} = {comparison}")
        code.append(f"  %oxide.held.all.{number} = and i1 {holds}, %oxide.held.{number}")
        holds = f"%oxide.held.all.{number}"
    for number, (factor, start) in enumerate(required):
        at = f"%oxide.line.{number}"
        if factor == 0:
            code += [f"  {at}.holds = icmp sge i64 {start}, 0", f"  {at} = and i1 {holds}, {at}.holds"]
            holds = at
        elif factor > 0 and not (isinstance(start, int) and start >= 0):
            # The line is not negative from ceil(-start / factor) on.
            code += [f"  {at}.up = sub i64 {factor - 1}, {start}", *_divided(f"{at}.from", f"{at}.up", factor)]
            code.append(f"  {at} = call i64 @llvm.smax.i64(i64 {least}, i64 {at}.from)")
            least = at
        elif factor < 0:
            # The line is not negative before floor(start / -factor) + 1.
            code += [f"  {at}.up = add i64 {start}, {-factor}", *_divided(f"{at}.to", f"{at}.up", -factor)]
            code.append(f"  {at} = call i64 @llvm.smin.i64(i64 {most}, i64 {at}.to)")
            most = at
    round_up = ["  %oxide.least.block = add i64 %oxide.first, 0"]
    if least != "%oxide.first.position":
        round_up = [
            f"  %oxide.least.up = add i64 {least}, %oxide.ntid",
            "  %oxide.least.round = sub i64 %oxide.least.up, 1",
            "  %oxide.least.block = udiv i64 %oxide.least.round, %oxide.ntid",
        ]
    return "\n".join(
        [
            *code,
            *round_up,
            f"  %oxide.most = call i64 @llvm.smax.i64(i64 {most}, i64 0)",
            "  %oxide.most.block = udiv i64 %oxide.most, %oxide.ntid",
            # The number of blocks is rounded down so that the loop runs a multiple of _STEP times. LLVM sees that
            # and emits no remainder loop.
            f"  %oxide.ntid.step = or i64 %oxide.ntid, {_STEP}",
            "  %oxide.ntid.negative = sub i64 0, %oxide.ntid.step",
            "  %oxide.ntid.power = and i64 %oxide.ntid.step, %oxide.ntid.negative",
            f"  %oxide.multiple = udiv i64 {_STEP}, %oxide.ntid.power",
            "  %oxide.way = sub i64 %oxide.most.block, %oxide.least.block",
            "  %oxide.some = call i64 @llvm.smax.i64(i64 %oxide.way, i64 0)",
            "  %oxide.odd = urem i64 %oxide.some, %oxide.multiple",
            "  %oxide.even = sub i64 %oxide.some, %oxide.odd",
            f"  %oxide.blocks = select i1 {holds}, i64 %oxide.even, i64 0",
            "  %oxide.any = icmp ne i64 %oxide.blocks, 0",
            "  %oxide.from.block = select i1 %oxide.any, i64 %oxide.least.block, i64 %oxide.first",
            "  %oxide.to.block = add i64 %oxide.from.block, %oxide.blocks",
            "  %oxide.from = mul i64 %oxide.from.block, %oxide.ntid",
            "  %oxide.threads = mul i64 %oxide.blocks, %oxide.ntid",
            f"  %oxide.steps = udiv i64 %oxide.threads, {_STEP}",
            "  %oxide.steps.some = call i64 @llvm.umax.i64(i64 %oxide.steps, i64 1)",
            f"  %oxide.count = mul nuw nsw i64 %oxide.steps.some, {_STEP}",
            f"  call void @{CHECKED_BLOCKS}(ptr %oxide.launch, i64 %oxide.first, i64 %oxide.from.block)",
        ]
    )


def _divided(name: str, value: str, factor: int) -> list[str]:
    """Returns the division's instruction. For a negative number any quotient that is not positive will do."""
    return [f"  {name} = {f'sdiv i64 {value}, {factor}' if factor > 1 else f'add i64 {value}, 0'}"]
