"""Dominators and loops against their definitions, on random graphs; copies of loops; edits of functions."""

from __future__ import annotations

import llvmlite.binding as llvm
from hypothesis import given
from hypothesis import strategies as st

from oxide.compiler.ir.control_flow import ControlFlow, copy_loop
from oxide.compiler.ir.module import Function
from oxide.compiler.ir.parser import parse
from oxide.compiler.ir.values import Block, Branch, Phi, Return, number


@st.composite
def graphs(draw: st.DrawFn) -> Function:
    function = Function("f", "void", (), "", variadic=False)
    blocks = [function.add(Block(f"%b{place}")) for place in range(draw(st.integers(1, 9)))]
    condition = number(1, "i1")
    for block in blocks:
        ways = draw(st.lists(st.sampled_from(blocks[1:] or blocks), max_size=2)) if len(blocks) > 1 else []
        block.append(Return() if not ways else Branch(ways[0], *((ways[1], condition) if ways[1:] else ())))
    return function


def _reached(function: Function, without: Block | None = None) -> set[Block]:
    found: set[Block] = set()
    pending = [function.entry]
    while pending:
        block = pending.pop()
        if block is not without and block not in found:
            found.add(block)
            pending += block.successors
    return found


@given(graphs())
def test_a_block_dominates_those_that_are_reached_only_through_it(function: Function) -> None:
    flow = ControlFlow(function)
    everywhere = _reached(function)
    for first in function.blocks.values():
        rest = _reached(function, first)
        for second in function.blocks.values():
            expected = first in everywhere and second in everywhere and second not in rest
            assert flow.dominates(first, second) == expected
    for block in everywhere:
        for child in flow.dominated(block):
            assert flow.dominates(block, child)
            assert child is not block


@given(graphs())
def test_loops_are_those_of_back_edges_and_are_nested(function: Function) -> None:
    flow = ControlFlow(function)
    for loop in flow.loops:
        assert loop.header in loop.latch.successors
        assert flow.dominates(loop.header, loop.latch)
        assert loop.preheader.successors == [loop.header]
        assert loop.preheader not in loop.blocks
        assert all(flow.dominates(loop.header, block) for block in loop.blocks if flow.is_reachable(block))
        assert all(block in loop.within()[-1].blocks or block in loop.blocks for block in loop.blocks)
        if loop.parent is not None:
            assert loop.blocks < loop.parent.blocks
            assert loop in loop.parent.children
            assert loop.chain(loop.parent) == [loop, loop.parent]
    headers = {loop.header for loop in flow.loops}
    assert set(flow.innermost) == {block for loop in flow.loops for block in loop.blocks}
    assert {loop.header for loop in flow.innermost.values()} <= headers


NEST = """
declare i1 @more(i64)
define i64 @f(i64 %n) {
entry:
  br label %outer
outer:
  %i = phi i64 [ 0, %entry ], [ %i.next, %rest ]
  br label %inner
inner:
  %j = phi i64 [ 0, %outer ], [ %j.next, %inner ]
  %j.next = add i64 %j, 1
  %again = call i1 @more(i64 %j.next)
  br i1 %again, label %inner, label %rest, !llvm.loop !0
rest:
  %i.next = add i64 %i, %j.next
  %more = call i1 @more(i64 %i.next)
  br i1 %more, label %outer, label %done
done:
  %result = phi i64 [ %i.next, %rest ]
  ret i64 %result
}
!0 = distinct !{!0}
"""


def test_a_copied_loop_leaves_to_the_same_blocks() -> None:
    module = parse(NEST)
    function = module.functions["f"]
    outer, inner = ControlFlow(function).loops
    assert outer.children == [inner]
    assert outer.header.name == "%outer"
    assert inner.preheader is outer.header
    copied = copy_loop(function, outer, ".copy").header
    entered = Block("%choose", [Branch(outer.header, copied, number(0, "i1"))])
    function.add(entered)
    function.entry.jump_to(entered)
    for block in (outer.header, copied):
        for phi in block.phis:
            phi.replace_operands({function.entry: entered})
    assert [str(phi) for phi in function.blocks["%done"].phis] == [
        "  %result = phi i64 [ %i.next, %rest ], [ %i.next.copy, %rest.copy ]"
    ]
    assert "!llvm.loop" not in function.blocks["%inner.copy"].terminator.metadata
    assert "!llvm.loop" in function.blocks["%inner"].terminator.metadata
    llvm.parse_assembly(str(module)).verify()
    loops = ControlFlow(function).loops  # the outer loops have no preheader now
    assert [loop.header.name for loop in loops] == ["%inner", "%inner.copy"]


def test_a_split_block_is_entered_at_its_first_part() -> None:
    module = parse(NEST)
    function = module.functions["f"]
    rest = function.blocks["%rest"]
    (later,) = function.split({rest.instructions[1]: "%later"})
    rest.append(Branch(later))
    assert list(function.blocks) == ["%entry", "%outer", "%inner", "%rest", "%later", "%done"]
    (phi,) = function.blocks["%outer"].phis
    assert isinstance(phi, Phi)
    assert phi.incoming[1][1] is later
    llvm.parse_assembly(str(module)).verify()


def test_only_what_is_reached_stays_and_is_renamed() -> None:
    module = parse(
        "declare void @g()\ndeclare void @h()\ndefine void @f() {\ne:\n  call void @g()\n  ret void\n}\n"
        "define void @unused() {\ne:\n  call void @h()\n  ret void\n}\n"
    )
    module.adopt(parse("define void @g() {\ne:\n  ret void, !x !0\n}\n!0 = !{}\n"))
    module.keep_reachable("f")
    module.rename("g", "other name")
    assert list(module.functions) == ["f", "other name"]
    assert 'call void @"other name"()' in str(module)
    assert str(module).endswith("!0 = !{}\n")
    llvm.parse_assembly(str(module)).verify()
