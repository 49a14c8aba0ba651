"""The elements of matrices on the CPU, as LLVM IR: how they are loaded, multiplied and rounded."""

from __future__ import annotations

from oxide.language.types import NARROW, SCALARS

IR_TYPES = {name: scalar.memory_type for name, scalar in SCALARS.items()}
SUMS = {name: scalar.register_type for name, scalar in SCALARS.items()}


LOW_BITS = "\n".join(f"@oxide.tensor.low_bits.{n} = internal externally_initialized global i32 {n}" for n in (0, 1, 3))
"""The masks of ``low_bits``, for a kernel with ``oxide.tensor``'s primitives."""


def low_bits(name: str, value: str, mask: int) -> list[str]:
    """Returns the IR that computes ``value & mask`` for a loop's index ``value``, with a mask whose value LLVM does not
    know (``cpu/masks.py``)."""
    return [
        f"  {name}.mask = load i32, ptr @oxide.tensor.low_bits.{mask}, !invariant.load !{{}}",
        f"  {name} = and i32 {value}, {name}.mask",
    ]


def element(dtype: str, name: str, array: str, index: str) -> list[str]:
    """Returns the IR that loads an element of an operand and converts it to the type in which it is multiplied."""
    kind = IR_TYPES[dtype]
    load = [f"  {name}.at = getelementptr {kind}, ptr {array}, i32 {index}"]
    if dtype == "f32":  # the hardware reads the upper 19 bits
        return [
            *load,
            f"  {name}.bits = load i32, ptr {name}.at",
            f"  {name}.upper = and i32 {name}.bits, -8192",
            f"  {name} = bitcast i32 {name}.upper to float",
        ]
    return [*load, f"  {name}.raw = load {kind}, ptr {name}.at", *widened(dtype, name, f"{name}.raw")]


def widened(dtype: str, name: str, raw: str) -> list[str]:
    if dtype in ("i8", "u8"):
        return [f"  {name} = {'sext' if dtype == 'i8' else 'zext'} i8 {raw} to i32"]
    if dtype in NARROW:
        return [f"  {name} = call float @oxide.{dtype}.widen({IR_TYPES[dtype]} {raw})"]
    return [f"  {name} = bitcast {IR_TYPES[dtype]} {raw} to {IR_TYPES[dtype]}"]


def narrowed(dtype: str, name: str, value: str) -> list[str]:
    if dtype in NARROW:
        return [f"  {name} = call {IR_TYPES[dtype]} @oxide.{dtype}.narrow(float {value})"]
    return [f"  {name} = bitcast {IR_TYPES[dtype]} {value} to {IR_TYPES[dtype]}"]


def added(kind: str, name: str, total: str, a: str, b: str) -> list[str]:
    match kind:
        case "double":
            return [f"  {name} = call double @llvm.fma.f64(double {a}, double {b}, double {total})"]
        case "float":  # the product is exact
            return [f"  {name}.by = fmul float {a}, {b}", f"  {name} = fadd float {total}, {name}.by"]
    return [f"  {name}.by = mul i32 {a}, {b}", f"  {name} = add i32 {total}, {name}.by"]
