"""The verifier refuses each kind of IR that the compiler must not make, and says which instruction is at fault."""

from __future__ import annotations

from typing import Any

import pytest
from llvmlite import ir

from oxide import CompileError, DisjointSlice, Slice, Slice2, bool_, f32, i64, kernel, thread
from oxide.compiler.frontend.lowering import common, slices, vectors
from oxide.compiler.ir.module import Module
from oxide.compiler.ir.parser import parse
from oxide.compiler.ir.values import Argument, Binary, Block, Branch, Call, Compare, Constant, Return, number
from oxide.compiler.ir.verifier import (
    InvalidIR,
    verify,
    verify_accesses,
    verify_effects,
    verify_structure,
    verify_total,
)


def body(*lines: str, arguments: str = "i64 %a, i64 %b, ptr %p, double %x", result: str = "void") -> str:
    """A module with one function of these lines."""
    return "\n".join([f"define {result} @f({arguments}) {{", "entry:", *lines, "}", ""])


# Arithmetic


@pytest.mark.parametrize(
    "line",
    [
        *(f"%r = {operation} i64 %a, {right}" for operation in ("udiv", "urem") for right in ("%b", "0")),
        *(f"%r = {operation} i64 %a, {right}" for operation in ("sdiv", "srem") for right in ("%b", "0", "-1")),
        *(f"%r = {shift} i64 %a, {right}" for shift in ("shl", "lshr", "ashr") for right in ("%b", "64", "-1")),
        *(f"%r = {operation} double %x to i64" for operation in ("fptosi", "fptoui")),
        "%r = add nsw i64 %a, %b",
        "%r = mul nuw i64 %a, %b",
        "%r = lshr exact i64 %a, 1",
        "%r = zext nneg i64 %a to i128",
        "%r = trunc nuw i64 %a to i32",
        "%r = icmp samesign ult i64 %a, %b",
    ],
)
def test_partial_arithmetic_is_refused(line: str) -> None:
    with pytest.raises(InvalidIR, match=r"@f: .*(undefined|poison)"):
        verify(parse(body(line, "ret void")))


@pytest.mark.parametrize("name", ["abs", "ctlz", "cttz"])
def test_an_intrinsic_that_makes_poison_is_refused(name: str) -> None:
    declared = f"declare i64 @llvm.{name}.i64(i64, i1)\n"
    total, partial = (body(f"%r = call i64 @llvm.{name}.i64(i64 %a, i1 {flag})", "ret void") for flag in (0, 1))
    verify(parse(total + declared))
    with pytest.raises(InvalidIR, match="poison"):
        verify(parse(partial + declared))


@pytest.mark.parametrize(
    "line",
    [
        "%r = udiv i64 %a, -1",
        "%r = sdiv i64 %a, -2",
        "%r = shl i64 %a, 63",
        "%r = or disjoint i64 %a, %b",
        "%r = add i64 %a, %b",
        "%r = fdiv double %x, %x",
    ],
)
def test_total_arithmetic_is_accepted(line: str) -> None:
    verify(parse(body(line, "ret void")))


def test_the_helpers_that_make_arithmetic_total_are_exempt() -> None:
    text = body("%r = sdiv i64 %a, %b", "ret i64 %r", arguments="i64 %a, i64 %b", result="i64")
    verify(parse(text.replace("@f(", "@oxide.sdiv.i64(")))
    with pytest.raises(InvalidIR, match="division"):
        verify(parse(text.replace("@f(", "@oxide.division.i64(")))


def test_after_llvms_passes_flags_are_no_fault() -> None:
    module = parse(body("%r = add nsw i64 %a, %b", "%s = udiv i64 %r, %b", "ret void"))
    verify_structure(module)
    with pytest.raises(InvalidIR):
        verify_total(module)


# Structure

LOOP = """
define i64 @f(i64 %n) {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %head ]
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %head, label %done
done:
  ret i64 %next
}
"""


def changed(old: str, new: str) -> Module:
    assert old in LOOP
    return parse(LOOP.replace(old, new))


def test_a_loop_is_accepted() -> None:
    verify(parse(LOOP))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("[ 0, %entry ], ", "", "one entry for each predecessor"),
        ("[ 0, %entry ]", "[ 0, %entry ], [ 1, %entry ]", "one entry for each predecessor"),
        ("[ 0, %entry ]", "[ %next, %entry ]", "does not dominate all uses!\n  %next"),
        (
            "%next = add i64 %i, 1",
            "%next = add i64 %later, 1\n  %later = add i64 %i, 1",
            "dominate all uses!\n  %later",
        ),
        ("br label %head", "br i1 true, label %head, label %done", "does not dominate all uses!\n  %next"),
        (
            "%next = add i64 %i, 1",
            "%next = add i64 %i, 1\n  %p = phi i64 [ 0, %entry ], [ 0, %head ]",
            "not grouped",
        ),
        ("  ret i64 %next", "  %x = add i64 %next, 1", "expected instruction opcode"),
        ("ret i64 %next", "ret i64 0\n  ret i64 %next", "middle of a block"),
        ("ret i64 %next", "ret void", "doesn't match function result type"),
        ("label %done\n", "label %entry\n", "must not have predecessors"),
        ("icmp slt i64 %next, %n", "add i64 %next, %n", "must have 'i1' type"),
        ("ret i64 %next", "%next = add i64 %n, 1\n  ret i64 %n", "multiple definition of local value named 'next'"),
        ("ret i64 %next", "%r = call i64 @g(i64 %next)\n  ret i64 %r", "undefined value '@g'"),
        ("ret i64 %next", "%r = load i64, ptr @g\n  ret i64 %r", "undefined value '@g'"),
        ("ret i64 %next", "ret i64 %next, !oxide.place !7", "undefined metadata '!7'"),
        ("add i64 %i, 1", "phi i64 [ %i, %head ], [ %i, %entry ]", "does not dominate all uses!\n  %i"),
    ],
)
def test_broken_structure_is_refused(old: str, new: str, problem: str) -> None:
    with pytest.raises(InvalidIR, match=problem):
        verify(changed(old, new))


@pytest.mark.parametrize("call", ["i64 @g(i64 %a)", "i32 @g(i32 0)", "i64 @g()", "i64 @g(i32 0, i32 0)"])
def test_a_call_agrees_with_the_function(call: str) -> None:
    declared = "declare i64 @g(i32)\n"
    verify(parse(body("%r = call i64 @g(i32 0)", "ret void") + declared))
    with pytest.raises(InvalidIR, match=r"@g (takes \(i32\)|returns another type)"):
        verify(parse(body(f"%r = call {call}", "ret void") + declared))


@pytest.mark.parametrize(
    "line",
    [
        "%r = insertvalue { i32, i64 } undef, i64 %a, 0",
        "%r = load i64, i64 %a",
        "store i64 %a, i64 %b",
        "%r = getelementptr i64, i64 %a, i64 %b",
        "%r = select i64 %a, i64 %a, i64 %b",
        "%r = select i1 true, i64 %a, double %x",
        "switch i64 %a, label %end [ i32 1, label %end ]",
    ],
)
def test_operands_of_other_types_are_refused(line: str) -> None:
    end = [] if line.startswith("switch") else ["br label %end"]
    with pytest.raises(InvalidIR, match="@f"):
        verify(parse(body(line, *end, "end:", "ret void")))


def broken_by(change: Any) -> Module:
    """The loop's module, changed as an object: text cannot say everything that is wrong."""
    module = parse(LOOP)
    change(module.functions["f"])
    return module


def _foreign_block(function: Any) -> None:
    function.blocks["%done"].instructions[-1].block = function.entry


def _foreign_target(function: Any) -> None:
    function.entry.jump_to(Block("%elsewhere", [Return(number(0))]))


def _foreign_instruction(function: Any) -> None:
    function.blocks["%done"].insert(0, [Binary("%x", "add", Binary("%y", "add", number(0), number(0)), number(1))])


def _foreign_argument(function: Any) -> None:
    function.blocks["%done"].insert(0, [Binary("%x", "add", Argument("%n", "i64"), number(1))])


def _other_type(function: Any) -> None:
    function.blocks["%done"].insert(0, [Compare("%x", "eq", number(0), number(0, "i32"))])


def _phi_of_another_type(function: Any) -> None:
    (phi,) = function.blocks["%head"].phis
    phi.incoming = [(number(0, "i32"), function.entry), phi.incoming[1]]


def _no_condition(function: Any) -> None:
    head = function.blocks["%head"]
    head.instructions.pop()
    head.append(Branch(head, function.blocks["%done"], number(1)))


def _renamed_block(function: Any) -> None:
    function.blocks["%done"].name = "%end"


def _nothing(function: Any) -> None:
    function.blocks["%done"].instructions.clear()


def _missing_function(function: Any) -> None:
    function.blocks["%done"].insert(0, [Call("", "void", Constant("@missing", "ptr"))])


@pytest.mark.parametrize(
    "change",
    [
        _foreign_block,
        _foreign_target,
        _foreign_instruction,
        _foreign_argument,
        _other_type,
        _phi_of_another_type,
        _no_condition,
        _renamed_block,
        _nothing,
        _missing_function,
    ],
    ids=lambda change: change.__name__[1:],
)
def test_objects_that_do_not_fit_together_are_refused(change: Any) -> None:
    with pytest.raises(InvalidIR, match="@f"):
        verify_structure(broken_by(change))


def test_a_metadata_node_refers_to_nodes_that_exist() -> None:
    with pytest.raises(InvalidIR, match="undefined metadata '!1'"):
        verify(parse('!0 = !{!"llvm.loop", !1}\n'))


# Accesses

CHECKED = """
declare i1 @oxide.in_bounds(ptr, i64, i64, i32)
declare i1 @oxide.aligned(ptr, i64, i32)

define void @k(ptr %context, ptr %x, i64 %n, i64 %i, i64 %j, i1 %choice) {
entry:
  %whole.0 = insertvalue { ptr, i64 } undef, ptr %x, 0
  %whole = insertvalue { ptr, i64 } %whole.0, i64 %n, 1
  %data = extractvalue { ptr, i64 } %whole, 0
  %inside = call i1 @oxide.in_bounds(ptr %context, i64 %i, i64 %n, i32 0)
  br i1 %inside, label %then, label %done
then:
  ADDRESS
  ACCESS
  br label %done
done:
  ret void
}

!0 = !{i1 true}
"""
NAKED = "no bounds check guards the access"


def verify_kernel(text: str) -> None:
    module = parse(text)
    verify_structure(module)
    verify_accesses(module, "k", [module.functions["k"].arguments[1]])


def accessing(access: str, address: str = "%at = getelementptr float, ptr %data, i64 %i") -> str:
    return CHECKED.replace("ADDRESS", address).replace("ACCESS", access)


ACCESSES = [
    "%r = load float, ptr %at, align 4",
    "store float 0.0, ptr %at, align 4",
    "%r = atomicrmw add ptr %at, i32 1 monotonic",
    "%r = cmpxchg ptr %at, i32 1, i32 2 monotonic monotonic",
    "%r = call i1 @oxide.in_bounds(ptr %at, i64 0, i64 0, i32 0)",
]


@pytest.mark.parametrize("access", ACCESSES, ids=["load", "store", "atomic", "exchange", "call"])
def test_an_access_needs_a_check_of_its_index(access: str) -> None:
    checked = accessing(access)
    verify_kernel(checked)
    for naked in (
        checked.replace("i64 %i, i64 %n, i32 0)", "i64 %j, i64 %n, i32 0)"),  # another index
        checked.replace("label %then, label %done", "label %done, label %then"),  # where the check has failed
        checked.replace("br i1 %inside, ", "br i1 %choice, "),
        checked.replace("call i1 @oxide.in_bounds(ptr %context, i64 %i, i64 %n, i32 0)", "icmp eq i32 0, 0"),
        checked.replace("%data, i64 %i", "%data, i64 %j"),
    ):
        with pytest.raises(InvalidIR, match=NAKED):
            verify_kernel(naked)
        verify_kernel(naked.replace(access, f"{access}, !oxide.unchecked !0"))


@pytest.mark.parametrize(
    ("address", "is_checked"),
    [
        ("%at = getelementptr float, ptr %x, i64 %i", True),
        ("%at = getelementptr float, ptr %x, i64 0", False),
        ("%at = bitcast ptr %x to ptr", False),
        ("%k = mul i64 %i, %n\n  %at = getelementptr float, ptr %x, i64 %k", True),
        ("%k = add i64 %i, 1\n  %at = getelementptr float, ptr %x, i64 %k", False),
        ("%k = add i64 %i, %j\n  %at = getelementptr float, ptr %x, i64 %k", False),
        ("%k = add i64 %i, %i\n  %at = getelementptr float, ptr %x, i64 %k", True),
        ("%y = getelementptr float, ptr %x, i64 %j\n  %at = getelementptr float, ptr %y, i64 %i", True),
        ("%y = getelementptr float, ptr %x, i64 %i\n  %at = getelementptr float, ptr %y, i64 %j", False),
        ("%y = select i1 %choice, ptr %x, ptr null\n  %at = getelementptr float, ptr %y, i64 %j", False),
        ("%b = ptrtoint ptr %x to i64\n  %w = and i64 %b, -4\n  %at = inttoptr i64 %w to ptr", False),
        *(
            (
                f"%y = getelementptr {{float, float}}, ptr %x, i64 {index}\n"
                f"  %at = getelementptr {{float, float}}, ptr %y, {steps}",
                is_member and index == "%i",
            )
            for index in ("%i", "%j")
            for steps, is_member in (("i32 0, i32 1", True), ("i32 1, i32 1", False), ("i64 %j, i32 1", False))
        ),
        ("%at = alloca float", True),
        ("%y = alloca [4 x float]\n  %at = getelementptr float, ptr %y, i64 %j", True),
    ],
)
def test_addresses(address: str, is_checked: bool) -> None:
    text = accessing(ACCESSES[0], address)
    if is_checked:
        verify_kernel(text)
    else:
        with pytest.raises(InvalidIR, match=NAKED):
            verify_kernel(text)


BRANCHING = """
declare i1 @oxide.in_bounds(ptr, i64, i64, i32)

define void @k(ptr %context, ptr %x, i64 %n, i64 %i, i64 %j, i1 %choice) {
entry:
  %first = call i1 @oxide.in_bounds(ptr %context, i64 %i, i64 %n, i32 0)
  br i1 %choice, label %one, label %two
one:
  br label %both
two:
  %second = call i1 @oxide.in_bounds(ptr %context, i64 %j, i64 %n, i32 0)
  br label %both
both:
  %c = CONDITION
  br i1 %c, label %then, label %done
then:
  %at = getelementptr float, ptr %x, i64 %i
  %r = load float, ptr %at
  br label %done
done:
  ret void
}
"""


@pytest.mark.parametrize(
    ("condition", "is_checked"),
    [
        ("and i1 %choice, %first", True),
        ("or i1 %choice, %first", False),
        ("xor i1 %first, true", False),
        ("select i1 %first, i1 %choice, i1 false", True),
        ("phi i1 [ %first, %one ], [ false, %two ]", True),
        ("phi i1 [ %first, %one ], [ %second, %two ]", False),
        ("phi i1 [ %first, %one ], [ true, %two ]", False),
        ("phi i1 [ false, %one ], [ false, %two ]", False),
    ],
)
def test_conditions(condition: str, is_checked: bool) -> None:
    text = BRANCHING.replace("CONDITION", condition)
    if is_checked:
        verify_kernel(text)
    else:
        with pytest.raises(InvalidIR, match=NAKED):
            verify_kernel(text)


def test_a_check_on_one_of_two_paths_guards_nothing() -> None:
    text = BRANCHING.replace("%c = CONDITION\n", "").replace("br i1 %c, label %then, label %done", "br label %then")
    with pytest.raises(InvalidIR, match=NAKED):
        verify_kernel(text)
    with pytest.raises(InvalidIR, match=NAKED):
        verify_kernel(text.replace("br i1 %choice, label %one", "br i1 %first, label %one"))
    verify_kernel(text.replace("br i1 %choice, label %one, label %two", "br i1 %first, label %one, label %done"))


def test_a_check_before_a_loop_does_not_guard_the_next_index() -> None:
    text = """
declare i1 @oxide.in_bounds(ptr, i64, i64, i32)
define void @k(ptr %context, ptr %x, i64 %n) {
entry:
  %first = call i1 @oxide.in_bounds(ptr %context, i64 0, i64 %n, i32 0)
  br i1 %first, label %head, label %done
head:
  %i = phi i64 [ 0, %entry ], [ %next, %head ]
  %at = getelementptr float, ptr %x, i64 %i
  %r = load float, ptr %at
  %next = add i64 %i, 1
  %more = call i1 @oxide.in_bounds(ptr %context, i64 %i, i64 %n, i32 0)
  br i1 %more, label %head, label %done
done:
  ret void
}
"""
    with pytest.raises(InvalidIR, match=NAKED):
        verify_kernel(text)


# Effects


def test_a_function_whose_effects_are_unknown_is_refused() -> None:
    verify_effects(parse("declare void @oxide.warp.sync(ptr, i32, i32)\n"))
    with pytest.raises(InvalidIR, match=r"@oxide\.unheard is declared, and compiler/primitives/effects\.py"):
        verify_effects(parse("declare void @oxide.unheard(ptr)\n"))


# The compiler


@pytest.fixture
def make_kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Kernels that are compiled anew, and verified."""
    monkeypatch.setenv("OXIDE_CACHE", "0")
    monkeypatch.setenv("OXIDE_VERIFY", "1")

    def make() -> list[Any]:
        @kernel
        def read(i: i64, x: Slice[f32], y: DisjointSlice[f32]):
            element = y.get_mut(thread.index_1d())
            if element is not None:
                element.value = x[i]

        @kernel
        def declared(i: i64, x: Slice[f32], y: DisjointSlice[f32]):
            y.unchecked_mut[i] = x.unchecked[i]

        @kernel
        def vector(i: i64, x: Slice[f32], y: DisjointSlice[f32]):
            a, b = x.unchecked.load2(i)
            y.unchecked_mut.store2(i, a, b)

        @kernel
        def row(i: i64, x: Slice2[f32], y: DisjointSlice[f32]):
            element = y.get_mut(thread.index_1d())
            total = f32(0)
            for a in x.row(i):
                total += a
            if element is not None:
                element.value = total

        @kernel
        def truths(i: i64, x: Slice2[bool_], y: DisjointSlice[bool_]):
            for a in x.col(i):
                y.unchecked_mut[i] = a and x.unchecked[i, 0]

        return [read, declared, vector, row, truths]

    return make


def test_the_compilers_own_kernels_are_accepted(make_kernels: Any) -> None:
    for each in make_kernels():
        each.specialize()


@pytest.mark.parametrize("place", range(5), ids=["read", "declared", "vector", "row", "truths"])
def test_a_front_end_without_checks_or_marks_is_refused(
    make_kernels: Any, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "axes_in_bounds", lambda *_: ir.Constant(ir.IntType(1), 1))
    for module in (common, slices, vectors):
        monkeypatch.setattr(module, "mark_unchecked", lambda *_: None)
    with pytest.raises(CompileError, match=NAKED):
        make_kernels()[place].specialize()
