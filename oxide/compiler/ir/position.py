"""Replaces a kernel's computations of its thread's position in the launch: ``blockIdx.x * blockDim.x + threadIdx.x``,
or the same along another axis."""

from __future__ import annotations

from .module import Function
from .recognise import register_of
from .values import Binary, Cast, Value


def replace_positions(kernel: Function, position: Value, axis: str = "x") -> None:
    """Replaces each computation of the thread's position along an axis by ``position``, an ``i64``."""
    replaced: dict[Value, Value] = {}
    for instruction in kernel.instructions:
        match instruction:
            case Binary(opcode="add", left=left, right=right) if _is_position(left, right, axis) or _is_position(
                right, left, axis
            ):
                replaced[instruction] = position
                if instruction.type != "i64":
                    narrow = replaced[instruction] = Cast(instruction.name, "trunc", position, instruction.type)
                    instruction.block.replace(instruction, [narrow])
    kernel.replace(replaced)


def _is_position(product: Value, thread: Value, axis: str) -> bool:
    """Returns whether two summands are ``ctaid.x * ntid.x`` and ``tid.x``, or the same registers of another axis."""
    match product:
        case Binary(opcode="mul", operands=factors) if _widened_register(thread) == f"tid.{axis}":
            return set(map(_widened_register, factors)) == {f"ctaid.{axis}", f"ntid.{axis}"}
    return False


def _widened_register(value: Value) -> str:
    match value:
        case Cast(opcode="zext" | "sext", value=narrow):
            return register_of(narrow)
    return register_of(value)


def leave_out_unused(kernel: Function) -> None:
    """Removes arithmetic, casts and reads of registers that nothing uses, such as those that computed the positions."""
    while True:
        used = {operand for instruction in kernel.instructions for operand in instruction.operands}
        unused = [
            instruction
            for instruction in kernel.instructions
            if instruction not in used and (isinstance(instruction, Binary | Cast) or register_of(instruction))
        ]
        if not unused:
            return
        for instruction in unused:
            instruction.block.replace(instruction, ())
