"""Splits a thread's vector loads and stores into loads and stores of elements, since LLVM's loop vectoriser accepts no
vectors.

A thread that handles four elements loads them as ``<4 x float>``. So that LLVM can vectorise the loop over threads,
such loads are split. LLVM then combines the loads of contiguous elements.
"""

from __future__ import annotations

from oxide.compiler.ir.module import Function
from oxide.compiler.ir.values import Constant, GetElementPtr, Instruction, Load, Operation, Phi, Store, Value, number

_BYTES = {"float": 4, "double": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2}


def scalarise(function: Function) -> None:
    """Splits a function's vector loads and stores. Leaves the function unchanged if it uses a vector in any other way.
    The order of its blocks must define each value before its use."""
    elements: dict[Value, list[Value]] = {}
    taken: dict[Value, Value] = {}
    split: dict[Instruction, list[Instruction]] = {}
    for place, instruction in enumerate(function.instructions):
        types = (each.type for each in (instruction, *instruction.operands))
        vector = next((type_ for type_ in types if type_.startswith("<")), None)
        if vector is None:
            continue
        count, _, kind = vector[1:-1].partition(" x ")
        parts = split[instruction] = []
        match instruction:
            case Load(pointer=pointer, before="") if kind in _BYTES:
                parts += _accesses(instruction, kind, pointer, [None] * int(count), f"%oxide.part.{place}")
                elements[instruction] = [*parts[1::2]]
            case Store(value=value, pointer=pointer, before="") if kind in _BYTES and value in elements:
                parts += _accesses(instruction, kind, pointer, elements[value], f"%oxide.part.{place}")
            case Operation(opcode="extractelement", operands=[whole, Value(integer=int(index))]) if whole in elements:
                taken[instruction] = elements[whole][index]
            case Operation(opcode="insertelement", operands=[whole, element, Value(integer=int(index))]) if (
                whole in elements or whole.name == "poison"
            ):
                elements[instruction] = list(elements.get(whole, [Constant("poison", kind)] * int(count)))
                elements[instruction][index] = taken.get(element, element)
            case Phi(operands=[whole, _]) if whole in elements:
                elements[instruction] = elements[whole]
            case _:
                return
    for instruction, parts in split.items():
        instruction.block.replace(instruction, parts)
    function.replace(taken)


def _accesses(
    whole: Instruction, kind: str, pointer: Value, stored: list[Value] | list[None], name: str
) -> list[Instruction]:
    """Returns the accesses to a vector's elements, each after its address. ``stored`` has, for each element, the value
    to store, or None for a load."""
    after = f", align {_BYTES[kind]}"
    code: list[Instruction] = []
    for place, value in enumerate(stored):
        at = GetElementPtr(f"{name}.{place}.at", kind, pointer, [number(place)])
        access = Load(f"{name}.{place}", kind, at, after) if value is None else Store(value, at, after)
        access.metadata = dict(whole.metadata)
        code += [at, access]
    return code
