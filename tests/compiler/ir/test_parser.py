"""The IR's objects: what is read is printed again, each form of instruction, and names that LLVM only numbers."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from oxide.compiler.ir.parser import member_type, parse, parse_function
from oxide.compiler.ir.values import Alloca, Binary, Call, Cast, Compare, Constant, Extract, Load, Phi, Select, Store

FORMS = """
@table = internal constant [2 x i32] [i32 1, i32 2]

declare void @f(ptr, i32 signext) #0

declare i32 @printf(ptr, ...)

define i64 @k(ptr noundef nonnull align 8 captures(none) %a, i64 %n, float %x, i1 %c) convergent "key"="value" {
entry:
  %slot = alloca { i64, ptr }, align 8
  %many = alloca i32, i64 %n, align 4
  %sum = add nuw nsw i64 %n, 1
  %disjoint = or disjoint i64 %n, 1
  %fast = fmul reassoc nsz float %x, 0x3FF8000000000000
  %negated = fneg float %fast
  %frozen = freeze i64 %sum
  %wide = zext nneg i64 %frozen to i128
  %near = icmp samesign ult i64 %sum, %n
  %ordered = fcmp olt float %x, %negated
  %chosen = select i1 %near, i64 %sum, i64 -3
  %at = getelementptr inbounds nuw { i64, ptr }, ptr %slot, i32 0, i32 1
  %loaded = load volatile i64, ptr %a, align 8, !oxide.place !0
  %shared = load atomic i32, ptr %many syncscope("device") acquire, align 4
  store i64 %loaded, ptr %at, align 8
  store atomic i32 %shared, ptr %many release, align 4
  %pair = insertvalue { i64, ptr } undef, i64 %chosen, 0
  %whole = insertvalue { i64, ptr } %pair, ptr getelementptr inbounds (i8, ptr @table, i64 4), 1
  %part = extractvalue { i64, ptr } %whole, 0
  %vector = insertelement <2 x float> <float 1.000000e+00, float poison>, float %x, i64 1
  %mixed = shufflevector <2 x float> %vector, <2 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %element = extractelement <4 x float> %mixed, i64 0
  %less = fcmp ult <4 x float> %mixed, splat (float 1.000000e+00)
  %old = atomicrmw add ptr %many, i32 1 syncscope("device") monotonic, align 4
  %both = cmpxchg weak ptr %many, i32 %old, i32 2 acq_rel monotonic, align 4
  fence syncscope("block") seq_cst
  tail call void @f(ptr nonnull %a, i32 signext 5) #0
  %printed = call i32 (ptr, ...) @printf(ptr @table, i64 %part)
  %read = call i32 asm sideeffect "mov.u32 $0, %tid.x;", "=r"() convergent
  %called = call fast nofpclass(nan) float %a(float %x) [ "align"(ptr %a, i64 16) ]
  br i1 %ordered, label %turn, label %"the end"
turn:
  %i = phi i64 [ 0, %entry ], [ %next, %turn ]
  %next = add i64 %i, 1
  switch i64 %i, label %turn [
    i64 7, label %"the end"
    i64 9, label %never
  ]
never:
  unreachable
"the end":
  ret i64 %part
}

attributes #0 = { nounwind }
!named = !{!0}
!0 = !{!"file", i32 3}
"""


def test_what_is_read_is_printed_again() -> None:
    printed = str(parse(FORMS))
    assert [line for line in printed.split("\n") if line] == [line for line in FORMS.split("\n") if line]
    assert str(parse(printed)) == printed
    llvm.parse_assembly(printed).verify()


def test_operands_are_values_with_types() -> None:
    function = parse_function(FORMS)
    by_name = {instruction.name: instruction for instruction in function.instructions if instruction.name}
    match by_name["%sum"]:
        case Binary(opcode="add", left=left, right=Constant(integer=1), flags="nuw nsw"):
            assert left is function.arguments[1]
        case _:
            pytest.fail("the sum is not matched")
    assert isinstance(by_name["%slot"], Alloca)
    assert by_name["%slot"].align == 8
    assert isinstance(by_name["%wide"], Cast)
    assert by_name["%wide"].type == "i128"
    assert isinstance(by_name["%less"], Compare)
    assert by_name["%less"].type == "<4 x i1>"
    assert isinstance(by_name["%chosen"], Select)
    assert by_name["%chosen"].right.integer == -3
    assert isinstance(by_name["%loaded"], Load)
    assert by_name["%loaded"].pointer is function.arguments[0]
    assert by_name["%loaded"].metadata == {"!oxide.place": "!0"}
    assert isinstance(by_name["%part"], Extract)
    assert by_name["%part"].type == "i64"
    assert by_name["%mixed"].type == "<4 x float>"
    assert by_name["%element"].type == "float"
    assert by_name["%both"].type == "{ i32, i1 }"
    phi = by_name["%i"]
    assert isinstance(phi, Phi)
    assert phi.incoming[1] == (by_name["%next"], function.blocks["%turn"])
    assert function.blocks["%turn"].successors == [function.blocks[f"%{n}"] for n in ("turn", '"the end"', "never")]
    calls = [instruction for instruction in function.instructions if isinstance(instruction, Call)]
    assert [call.called for call in calls] == ["f", "printf", "", ""]
    assert calls[0].attributes == {0: "nonnull", 1: "signext"}
    assert calls[2].is_assembly
    assert not calls[3].is_assembly


def test_the_front_ends_dialect_is_read() -> None:
    function = parse_function(
        """
define void @"k"({i8*, {i64*, i64}*}* %"p", [4 x float] addrspace(3)* %".2")
{
entry:
  %".4" = getelementptr inbounds {i8*, {i64, i64}}, {i8*, {i64, i64}}* %"p", i32 0, i32 1
  %".5" = load {i64, i64}, {i64, i64}* %".4", !dbg !1
  store {i64, i64} zeroinitializer, {i64, i64}* %".4"
  %"$x" = phi  i64 [0, %"entry"], [%".5 a", %"B0"]
  br label %"B0"
B0:
  %".5 a" = add nsw i64 1, 18446744073709551615
  ret void
}
"""
    )
    first, load, store, phi, _, total, _ = function.instructions
    assert [argument.type for argument in function.arguments] == ["ptr", "ptr addrspace(3)"]
    assert str(first) == "  %.4 = getelementptr inbounds {ptr, {i64, i64}}, ptr %p, i32 0, i32 1"
    assert isinstance(load, Load)
    assert load.pointer is first
    assert load.metadata == {"!dbg": "!1"}
    assert isinstance(store, Store)
    assert store.value.name == "zeroinitializer"
    assert isinstance(phi, Phi)
    assert phi.incoming[1][0] is total
    assert total.name == '%".5 a"'


def test_values_that_are_only_numbered_get_names() -> None:
    text = "define i32 @f(i32 %0) {\n  %2 = add i32 %0, 1\n  br label %3\n\n3:\n  ret i32 %2\n}\n"
    printed = str(parse(text))
    assert printed == (
        "define i32 @f(i32 %oxide.value.0) {\noxide.value.1:\n"
        "  %oxide.value.2 = add i32 %oxide.value.0, 1\n  br label %oxide.value.3\n"
        "oxide.value.3:\n  ret i32 %oxide.value.2\n}\n"
    )
    llvm.parse_assembly(printed).verify()


@pytest.mark.parametrize("name", ["v", "oxide", "value"])
def test_a_parameter_of_any_name_is_no_numbered_value(name: str) -> None:
    text = f"define i32 @f(i32 %{name}.0, i32 %{name}.1, i32 %0) {{\n  %2 = add i32 %0, %{name}.1\n  ret i32 %2\n}}\n"
    llvm.parse_assembly(str(parse(text))).verify()


@pytest.mark.parametrize(
    "line", ["%x = frobnicate i32 1", "%x = add i32 1", "br i1 %c", "%x = load i32", "%y = add i32 %nowhere, 1"]
)
def test_what_cannot_be_read_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match=r"cannot read|not defined"):
        parse(f"define void @f(i1 %c) {{\nentry:\n  {line}\n  ret void\n}}\n")


def test_types_of_members() -> None:
    assert member_type("{ i64, { ptr, [4 x <2 x float>] } }", (1, 1, 3)) == "<2 x float>"
    assert member_type("<{ i8, i64 }>", (1,)) == "i64"


def test_values_without_names_are_told_from_those_that_were_named_before() -> None:
    text = """define i32 @f(i32 %oxide.value.0, i32 %0) {
  %oxide.value.1 = add i32 %oxide.value.0, %0
  br label %2
2:
  %3 = mul i32 %oxide.value.1, %0
  ret i32 %3
}"""
    module = parse(text)
    printed = str(module)
    llvm.parse_assembly(printed).verify()
    assert len(module.functions["f"].values) == 6
    assert str(parse(printed)) == printed
