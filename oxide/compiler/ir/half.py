"""Conversions of narrow floats, and the rounding to tf32, as IR. The back ends define no other operations on narrow
floats.

Narrow floats are passed as their bits. A number is widened to f32 for arithmetic and rounded to nearest, ties to even,
after each operation. f32 has more than twice the precision of these types, so rounding twice gives the same result as
rounding once. LLVM narrows an operation to the GPU's own instruction if the wide numbers have no other use. A double is
first rounded to f32 by rounding to odd, so that the second rounding gives the correct result.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator

from oxide.driver.base import Target
from oxide.errors import CompileError
from oxide.language.narrow import bits_of
from oxide.language.types import NARROW, ScalarType

from .module import Module
from .values import Call, Cast, Value, suffixed

_F16 = ("oxide.f16.", "__nv_half2float", "__nv_float2half_rn")
"""The prefixes of symbols that need the conversions of f16. On the CPU, the two functions of libdevice call these
conversions."""

TF32 = "oxide.tf32.round"
"""Rounds an f32 to tf32, to nearest with ties away from zero. A NaN becomes 0x7fffffff."""

_TF32 = f"""define float @{TF32}(float %x) alwaysinline {{
  %bits = call i32 @llvm.nvvm.f2tf32.rna(float %x)
  %nan = fcmp uno float %x, %x
  %whole = select i1 %nan, i32 2147483647, i32 %bits
  %result = bitcast i32 %whole to float
  ret float %result
}}
declare i32 @llvm.nvvm.f2tf32.rna(float)"""
"""NaNs are tested for, because an H100's instruction turns the NaN 0x7f800001 into an infinity."""

_TF32_BY_BITS = f"""define float @{TF32}(float %x) alwaysinline {{
  %bits = bitcast float %x to i32
  %more = add i32 %bits, 4096
  %upper = and i32 %more, -8192
  %size = and i32 %bits, 2147483647
  %special = icmp uge i32 %size, 2139095040
  %nan = icmp ugt i32 %size, 2139095040
  %rounded = select i1 %special, i32 %bits, i32 %upper
  %whole = select i1 %nan, i32 2147483647, i32 %rounded
  %result = bitcast i32 %whole to float
  ret float %result
}}"""
"""Rounds to nearest by adding half a unit of the last of the upper 19 bits. The carry makes a number beyond the
greatest infinite."""


def hide_integers(module: Module) -> None:
    """Hides from LLVM, in a kernel with f16s, that a float was converted from an integer. LLVM 22 assumes that an
    integer whose lowest bits are zeros is exact as an f16, even an integer so large that the f16 is infinite."""
    if "oxide.f16.narrow" not in module.functions:
        return
    for function in module.defined:
        for cast in function.instructions:
            match cast:
                case Cast(opcode="sitofp" | "uitofp", value=Value(type="i32" | "i64"), type="float" | "double" as kind):
                    counted = module.declare(kind, f"oxide.f16.counted.{kind}", (kind,))
                    function.substitute(cast, cast, Call(cast.name, kind, counted, (cast,)))
                    cast.name = suffixed(cast.name, ".counted")


def check_f16(kernel: str, symbols: Collection[str], target: Target) -> None:
    """Raises ``CompileError`` for f16 on an x86 CPU that lacks the instructions for f16 (F16C)."""
    import platform

    is_x86 = target.kind == "native" and platform.machine() in ("x86_64", "AMD64")
    if is_x86 and "+f16c" not in target.features and any(symbol.startswith(_F16) for symbol in symbols):
        raise CompileError(f"kernel {kernel}: f16 needs a processor with F16C, and {target.arch} has none; use f32")


def definitions(symbols: Collection[str], capability: int) -> str:
    """Returns the conversions for a GPU of a compute capability, or for the CPU, whose capability is 0. They are
    instructions where the compute capability has them: for tf32 from 8.0 on, for narrow floats as their entry says.
    Otherwise they are integer operations. Every device has the instructions for f16."""
    texts = [_instructions("f16", "half"), _COUNTED] if any(symbol.startswith(_F16) for symbol in symbols) else []
    for name, scalar in NARROW.items():
        if name == "f16" or not _uses(name, symbols):
            continue
        if capability < scalar.converts:
            texts.append(_by_bits(scalar))
        else:
            texts.append(_f8_instructions(scalar) if scalar.bits == 8 else _instructions(name, "bfloat"))
    if TF32 in symbols:
        texts.append(_TF32 if capability >= 80 else _TF32_BY_BITS)
    texts += _pairs(symbols, capability)
    return "\n".join(texts)


def _pairs(symbols: Collection[str], capability: int) -> Iterator[str]:
    """Yields the definitions that convert two f32 to one word of two f16 or bf16. Newer GPUs convert the pair in one
    instruction. The instruction is inline assembly, because LLVM would split a pair that a loop carries. Older GPUs and
    the CPU, with capability 0, convert each number by itself."""
    for name, scalar in NARROW.items():
        if f"oxide.{name}.narrow_pair" not in symbols:
            continue
        head = f"define i32 @oxide.{name}.narrow_pair(float %first, float %second) alwaysinline {{\n"
        if capability >= scalar.converts_pairs:
            text = f'"cvt.rn.{name}x2.f32 $0, $2, $1;", "=r,f,f"(float %first, float %second)'
            yield f"{head}  %word = call i32 asm {text}\n  ret i32 %word\n}}"
        else:
            yield f"""{head}  %low = call i16 @oxide.{name}.narrow(float %first)
  %high = call i16 @oxide.{name}.narrow(float %second)
  %low.wide = zext i16 %low to i32
  %high.wide = zext i16 %high to i32
  %high.shifted = shl i32 %high.wide, 16
  %word = or i32 %high.shifted, %low.wide
  ret i32 %word
}}"""


def _uses(name: str, symbols: Collection[str]) -> bool:
    return any(symbol.startswith(f"oxide.{name}.") for symbol in symbols)


def _instructions(name: str, kind: str) -> str:
    return f"""define float @oxide.{name}.widen(i16 %bits) alwaysinline {{
  %number = bitcast i16 %bits to {kind}
  %wide = fpext {kind} %number to float
  ret float %wide
}}
define i16 @oxide.{name}.narrow(float %wide) alwaysinline {{
  %number = fptrunc float %wide to {kind}
  %bits = bitcast {kind} %number to i16
  ret i16 %bits
}}"""


_COUNTED = "\n".join(
    f"""define {kind} @oxide.f16.counted.{kind}({kind} %number) alwaysinline {{
  %result = call {kind} @llvm.arithmetic.fence.{suffix}({kind} %number)
  ret {kind} %result
}}
declare {kind} @llvm.arithmetic.fence.{suffix}({kind})"""
    for kind, suffix in (("float", "f32"), ("double", "f64"))
)
_BF16_BY_BITS = """define float @oxide.bf16.widen(i16 %bits) alwaysinline {
  %low = zext i16 %bits to i32
  %wide = shl i32 %low, 16
  %number = bitcast i32 %wide to float
  ret float %number
}
define i16 @oxide.bf16.narrow(float %wide) alwaysinline {
  %bits = bitcast float %wide to i32
  %high = lshr i32 %bits, 16
  %last = and i32 %high, 1
  %half = add i32 %last, 32767
  %rounded = add i32 %bits, %half
  %kept = lshr i32 %rounded, 16
  %quiet = or i32 %high, 64
  %nan = fcmp uno float %wide, %wide
  %result = select i1 %nan, i32 %quiet, i32 %kept
  %short = trunc i32 %result to i16
  ret i16 %short
}"""
"""The conversions of bf16 by integer operations. A bf16 is the upper half of an f32. The lower half decides the
rounding, and a carry moves correctly into the exponent."""


def _f8_instructions(scalar: ScalarType) -> str:
    """Returns the conversions by the GPU's instructions, which convert two numbers at once. ``cvt.rn.satfinite`` turns
    a number beyond the largest into the largest, and a NaN into 0x7F."""
    name, kind = scalar.name, scalar.ptx_type
    return f"""define float @oxide.{name}.widen(i8 %bits) alwaysinline {{
  %pair = zext i8 %bits to i16
  %numbers = call <2 x half> @llvm.nvvm.{kind}x2.to.f16x2.rn(i16 %pair)
  %number = extractelement <2 x half> %numbers, i32 0
  %wide = fpext half %number to float
  ret float %wide
}}
declare <2 x half> @llvm.nvvm.{kind}x2.to.f16x2.rn(i16)
define i8 @oxide.{name}.narrow(float %wide) alwaysinline {{
  %pair = call i16 @llvm.nvvm.ff.to.{kind}x2.rn(float 0.0, float %wide)
  %bits = trunc i16 %pair to i8
  ret i8 %bits
}}
declare i16 @llvm.nvvm.ff.to.{kind}x2.rn(float, float)"""


def _by_bits(scalar: ScalarType) -> str:
    """Returns the conversions by integer operations, with the results of the GPU's instructions.

    The 8-bit numbers below the least normal one are multiples of the least positive one. Adding 2**23 times the least
    positive number to an f32 of this size rounds the f32 to such a multiple, and leaves the multiple's factor in the
    lower bits. Larger f32s are rounded by integer addition, whose carry moves correctly into the exponent.
    """
    if scalar.bits == 16:
        return _BF16_BY_BITS
    name, kept = scalar.name, scalar.precision - 1
    dropped = 23 - kept
    bias = 2 ** (6 - kept) - 1
    shift = (127 - bias) << kept
    least, normal = 2.0**scalar.least, 2.0 ** (scalar.least + kept)
    largest = bits_of(name, scalar.greatest)
    return f"""define float @oxide.{name}.widen(i8 %bits) alwaysinline {{
  %word = zext i8 %bits to i32
  %size = and i32 %word, 127
  %sign.low = and i32 %word, 128
  %sign = shl i32 %sign.low, 24
  %placed = shl i32 %size, {dropped}
  %normal = add i32 %placed, {(127 - bias) << 23}
  %count = uitofp i32 %size to float
  %small = fmul float %count, {literal(least)}
  %small.bits = bitcast float %small to i32
  %is.small = icmp ult i32 %size, {1 << kept}
  %finite = select i1 %is.small, i32 %small.bits, i32 %normal
  %is.nan = icmp ugt i32 %size, {largest + scalar.has_infinity}
  %special = select i1 %is.nan, i32 2143289344, i32 2139095040
  %is.special = icmp ugt i32 %size, {largest}
  %magnitude = select i1 %is.special, i32 %special, i32 %finite
  %result = or i32 %magnitude, %sign
  %number = bitcast i32 %result to float
  ret float %number
}}
define i8 @oxide.{name}.narrow(float %wide) alwaysinline {{
  %given = bitcast float %wide to i32
  %sign.high = lshr i32 %given, 24
  %sign = and i32 %sign.high, 128
  %unsigned = and i32 %given, 2147483647
  %number = bitcast i32 %unsigned to float
  %is.over = fcmp ogt float %number, {literal(scalar.greatest)}
  %size = select i1 %is.over, float {literal(scalar.greatest)}, float %number
  %bits = bitcast float %size to i32
  %high = lshr i32 %bits, {dropped}
  %last = and i32 %high, 1
  %half = add i32 %last, {2 ** (dropped - 1) - 1}
  %rounded = add i32 %bits, %half
  %kept = lshr i32 %rounded, {dropped}
  %normal = sub i32 %kept, {shift}
  %sum = fadd float %size, {literal(least * 2**23)}
  %sum.bits = bitcast float %sum to i32
  %small = and i32 %sum.bits, 255
  %is.small = fcmp olt float %size, {literal(normal)}
  %magnitude = select i1 %is.small, i32 %small, i32 %normal
  %with.sign = or i32 %magnitude, %sign
  %is.nan = fcmp uno float %wide, %wide
  %result = select i1 %is.nan, i32 127, i32 %with.sign
  %narrow = trunc i32 %result to i8
  ret i8 %narrow
}}"""


def literal(number: float) -> str:
    """Returns a float as a constant of LLVM IR, which is exact."""
    return f"0x{struct.pack('>d', number).hex().upper()}"
