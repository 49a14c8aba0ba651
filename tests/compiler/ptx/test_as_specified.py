"""Instructions that ptxas or LLVM gets wrong are expanded, and nothing else in the text changes."""

from __future__ import annotations

import pytest

from oxide import DisjointSlice, Slice, i16, kernel, thread
from oxide.compiler.ptx.assembly import as_specified

UNCHANGED = """// a comment; neg.s16 in it
\t.reg .b16 \t%rs<5>;
$L__BB0_1:
\tabs.f32 \t%r1, %r2;
\tneg.s64 \t%rd1, %rd2;
\tmin.s32 \t%r1, %r2, %r3;
\tmin.f32 \t%r1, %r2, %r3;
\tmax.f32 \t%r1, %r2, 0f40000000;
\tmin.f32 \t%r1, %r2, 0f80000000;
\tand.b16 \t%rs1, %rs2, %rs3;
\t@%p1 bra \t$L__BB0_1;
\tld.global.v2.b32 \t{%r1, %r2}, [%rd1];
\tret;
"""


def test_instructions_that_are_right_stay() -> None:
    assert as_specified(UNCHANGED) == UNCHANGED


@pytest.mark.parametrize(
    ("instruction", "expanded"),
    [
        ("neg.s16 \t%rs1, %rs2;", "not.b16 %rs1, %rs2;\n\tadd.s16 %rs1, %rs1, 1;"),
        (
            "abs.s64 \t%rd1, %rd2;",
            "{ .reg .pred negative; .reg .b64 negated; setp.lt.s64 negative, %rd2, 0; not.b64 negated, %rd2; "
            "add.s64 negated, negated, 1; selp.b64 %rd1, negated, %rd2, negative; }",
        ),
        (
            "mul.hi.u32 \t%r1, %r2, 613566757;",
            "{ .reg .b32 low; .reg .b64 product; mul.wide.u32 product, %r2, 613566757; mov.b64 {low, %r1}, product; }",
        ),
        (
            "max.u16 \t%rs1, %rs2, 7;",
            "{ .reg .b16 short; .reg .b32 first, second; mov.b16 short, 7; cvt.u32.u16 first, %rs2; "
            "cvt.u32.u16 second, short; max.u32 first, first, second; cvt.u16.u32 %rs1, first; }",
        ),
        (
            "min.f64 \t%rd1, %rd2, 0d0000000000000000;",
            "{ .reg .pred beyond; setp.lt.f64 beyond, %rd2, 0d0000000000000000; "
            "selp.f64 %rd1, %rd2, 0d0000000000000000, beyond; }",
        ),
    ],
)
def test_an_instruction_is_expanded(instruction: str, expanded: str) -> None:
    around = "\tadd.s32 \t%r9, %r8, 1;\n\t{}\n\tret;\n"
    assert as_specified(around.format(instruction)) == around.replace("{}", expanded)


def test_a_mask_is_two_instructions_where_a_number_becomes_half() -> None:
    mask, made = "\tand.b16 \t%rs1, %rs2, 32767;\n", "\tcvt.rn.bf16.f32 \t%rs2, %r1;\n"
    assert as_specified(mask) == mask
    assert as_specified(made + mask) == made + "\tor.b16 %rs1, %rs2, -32768;\n\txor.b16 %rs1, %rs1, -32768;\n"


def test_a_limit_between_0_and_1_is_no_saturation() -> None:
    text = "\tmin.f32 \t%r1, %r2, 0f3F800000;\n\tmax.f32 \t%r3, %r1, 0f00000000;\n"
    found = as_specified(text)
    assert found.startswith("\tmin.f32 \t%r1, %r2, 0f3F800000;\n\t{ .reg .f32 number, nothing;")
    assert "add.rn.f32 number, %r1, nothing;" in found
    again = "\tmov.b32 \t%r1, %r4;\n"  # another value of the limited number
    assert "number" not in as_specified(text + again)


def test_a_constant_of_16_bits_is_known_if_its_register_has_no_other_value() -> None:
    zero, least = "\tmov.b16 \t%rs1, 0x0000;\n", "\tmin.f16 \t%rs2, %rs3, %rs1;\n"
    assert "setp.lt.f16 beyond, %rs3, %rs1;" in as_specified(zero + least)
    again = "\tadd.s16 \t%rs1, %rs1, 1;\n"
    assert as_specified(zero + again + least) == zero + again + least


@kernel
def negated(x: Slice[i16], y: DisjointSlice[i16]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = abs(x[0]) - x[1] * i16(-2) + min(-x[2], i16(5))


def test_no_wrong_instruction_is_left_in_a_kernel() -> None:
    text = negated.ptx()
    assert "not.b16" in text
    assert not any(f"\t{wrong}" in text for wrong in ("abs.s16", "neg.s16", "min.s16"))
