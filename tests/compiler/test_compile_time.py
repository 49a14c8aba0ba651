"""Compiling takes steps in proportion to a kernel's size, and no kernel takes the process with it.

Steps are counted, not seconds: ``Prover.steps`` are values read as polynomials and polynomials bounded, and the steps
of the front end are calls of Python functions.
"""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import linecache
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from numba.cuda import types
from numba.cuda.core import base, ssa
from numba.cuda.core.analysis import compute_cfg_from_blocks
from numba.cuda.core.controlflow import CFGraph
from numba.cuda.core.errors import NumbaNotImplementedError
from numba.cuda.core.ir import Assign, Block, Branch, Const, Expr, Global, Inst, Jump, Loc, Return, Scope, Var
from numba.cuda.core.postproc import PostProcessor
from numba.cuda.core.transforms import canonicalize_cfg
from numba.cuda.core.typeinfer import IntrinsicCallConstraint

from oxide import AtomicSlice, CompileError, DisjointSlice, Slice, f32, i64, kernel, thread, u32
from oxide.compiler.bounds import hoist
from oxide.compiler.bounds.prove import BUDGET, Prover
from oxide.compiler.check.numba_errors import placed_errors
from oxide.compiler.frontend.economy import without_waste
from oxide.compiler.frontend.frontend import lower
from oxide.compiler.ir.control_flow import ControlFlow
from oxide.compiler.ir.parser import parse_function
from oxide.compiler.ir.portable import LoweredKernel
from oxide.compiler.kernel import front_end, specialization
from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.signature.signature import Closed
from tests.compiler.native_runner import run_blocks

pytestmark = pytest.mark.usefixtures("uncached")

_serial = itertools.count()


def made(lines: list[str], **options: Any) -> Kernel:
    """A kernel with these lines in its body."""
    head = [
        "def measured(n: u32, x: Slice[f32], where: Slice[i64], counts: AtomicSlice[u32], out: DisjointSlice[f32]):",
        "    j = thread.index_1d().get()",
        "    total = f32(0)",
    ]
    source = "\n".join([*head, *(f"    {line}" for line in lines), "    out.unchecked_mut[j] = total"]) + "\n"
    file = f"<sized {next(_serial)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = (AtomicSlice, DisjointSlice, Slice, f32, i64, thread, u32)
    scope: dict[str, Any] = dict(
        zip(("AtomicSlice", "DisjointSlice", "Slice", "f32", "i64", "thread", "u32"), names, strict=True)
    ) | {"__name__": "sized"}
    exec(compile(source, file, "exec"), scope)
    return kernel(**options)(scope["measured"])


def nested(depth: int) -> list[str]:
    names = [f"i{level}" for level in range(depth)]
    loops = [f"{'    ' * level}for {name} in range(n):" for level, name in enumerate(names)]
    return [*loops, f"{'    ' * depth}total += x[{' + '.join(names)}]"]


def branches(count: int) -> list[str]:
    return [line for k in range(count) for line in (f"if x[j + {k}] > f32(0):", f"    total += x[j + {k}]")]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Counts the steps of compiling a kernel."""
    provers: list[Prover] = []

    def recorded(*arguments: Any) -> Prover:
        provers.append(Prover(*arguments))
        return provers[-1]

    monkeypatch.setattr(hoist, "Prover", recorded)

    def count(each: Kernel) -> int:
        provers.clear()
        each.specialize()
        return provers[-1].steps

    return count


@pytest.mark.slow
@pytest.mark.parametrize("depth", [4, 8, 12])
@pytest.mark.parametrize("requires", [(), ("len(x) >= 5 * n",)], ids=["plain", "contract"])
def test_nested_loops_take_no_more_steps_than_their_accesses_have(depth: int, requires: Any, steps: Any) -> None:
    each = made(nested(depth), requires=requires)
    # A search for each of the access, the loops' counts and the tests around it.
    assert steps(each) <= BUDGET + 40 * depth
    assert {placement.place for placement in each.specialize().placements} <= {"proved", "hoisted"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "lines",
    [
        branches,
        lambda count: [f"total += x[where[{k}]]" for k in range(count)],
        lambda count: [f"counts.fetch_add(j + {k}, u32(1))" for k in range(count)],
        lambda count: [line for k in range(count) for line in (f"if j * {k + 2} < n:", f"    total += x[j * {k + 1}]")],
    ],
    ids=["branches", "sums", "atomics", "tests"],
)
def test_twice_the_statements_take_about_twice_the_steps(lines: Any, steps: Any) -> None:
    small, large = steps(made(lines(20))), steps(made(lines(40)))
    assert large <= 2.5 * small + 50


def lowered(each: Kernel) -> LoweredKernel:
    """The kernel as the front end leaves it."""
    return lower(each.name, each.function, cast(tuple[Closed, ...], each.parameters), False)


def calls_of_lowering(each: Kernel) -> int:
    """Counts the calls of Python functions in the front end."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    outer = sys.getprofile()
    gc.collect()
    gc.disable()  # collecting calls the callbacks of weak references
    sys.setprofile(count)
    try:
        lowered(each)
    finally:
        sys.setprofile(outer)
        gc.enable()
    return calls


def test_twice_the_variables_take_the_front_end_about_twice_the_calls() -> None:
    def assignments(count: int) -> list[str]:
        return [line for k in range(count) for line in (f"v{k} = total * f32({k})", f"total = v{k} + total")]

    lowered(made(assignments(160)))  # numba makes a type for each constant, once
    assert calls_of_lowering(made(assignments(160))) <= 2.2 * calls_of_lowering(made(assignments(80)))


@pytest.mark.nightly
def test_twice_the_branches_take_the_front_end_about_twice_the_calls() -> None:
    def branches(count: int) -> list[str]:
        return [f"total = total + x[{k}] if total > {k} else total" for k in range(count)]

    lowered(made(branches(160)))
    assert calls_of_lowering(made(branches(160))) <= 2.5 * calls_of_lowering(made(branches(80)))


def test_an_assignment_is_found_without_a_search_of_its_block() -> None:
    """numba's own search compares each read of a variable with each assignment, statement by statement."""
    place = Loc("", 1)
    block = Block(Scope(None, place), place)
    for _ in range(3):
        block.append(Jump(1, place))
    handler = ssa._FixSSAVars(None)
    for context in (nullcontext(), without_waste()):
        with context:
            first, second, last = block.body
            assert [handler._stmt_index(each, block) for each in block.body] == [0, 1, 3]  # the last is the terminator
            assert [handler._stmt_index(each, block, stop=1) for each in block.body] == [0, 3, 3]
            block.body = [last, first, second]
            assert [handler._stmt_index(each, block, stop=2) for each in block.body] == [0, 1, 3]
            block.body = [first, second, last]


@pytest.mark.nightly
def test_the_code_of_many_branches_is_right() -> None:
    """Above a number of branches, the CPU's code with every check is compiled without optimisation."""
    each = made([f"total = total + (x[j] if total > {k} else x[j + 1])" for k in range(400)])
    out, x = np.zeros(3, np.float32), np.array([1, 2, 3, 4], np.float32)
    run_blocks(each, (1, 1, 1), (3, 1, 1), 4, x, np.zeros(1, np.int64), np.zeros(1, np.uint32), out)
    expected = []
    for j in range(3):
        total = np.float32(0)
        for k in range(400):
            total += x[j] if total > k else x[j + 1]
        expected.append(total)
    assert out.tolist() == expected


def lines_of_dominators(blocks: int) -> int:
    """Counts the lines that run while the dominators are found of a chain of blocks, each with a branch to one end."""
    chain = "".join(f"b{k}:\n  br i1 %c, label %b{k + 1}, label %end\n" for k in range(blocks))
    text = f"define void @f(i1 %c) {{\n{chain}b{blocks}:\n  br label %end\nend:\n  ret void\n}}\n"
    function = parse_function(text)
    lines = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        if frame.f_code is not ControlFlow._dominator_spans.__code__:
            return None
        lines += event == "line"
        return count

    outer = sys.gettrace()
    sys.settrace(count)
    try:
        flow = ControlFlow(function)
    finally:
        sys.settrace(outer)
    first, *others, end = function.blocks.values()
    assert all(flow.dominates(first, each) for each in (*others, end))
    assert not any(flow.dominates(each, end) for each in others)
    return lines


def test_twice_the_early_exits_take_the_dominators_about_twice_the_steps() -> None:
    assert lines_of_dominators(400) <= 2.1 * lines_of_dominators(200)


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.tuples(*[st.integers(0, n - 1)] * 2)))))
def test_dominators_are_numbas(drawn: tuple[int, set[tuple[int, int]]]) -> None:
    size, edges = drawn
    found = []
    for context in (nullcontext(), without_waste()):
        graph = CFGraph()
        for node in range(size):
            graph.add_node(node)
        for first, second in sorted(edges):
            graph.add_edge(first, second)
        graph.set_entry_point(0)
        with context:
            graph.process()
            found.append(
                (
                    graph.dominators(),
                    graph.post_dominators(),
                    graph.immediate_dominators(),
                    graph._find_back_edges(),
                    graph.loops(),
                )
            )
    assert found[0] == found[1]


def without_place(builder: Any, *, location: Any = None) -> None: ...
def with_place(builder: Any, loc: Any = None) -> None: ...
def with_named_place(builder: Any, *, loc: Any = None) -> None: ...
def with_local(builder: Any, **others: Any) -> None:
    loc = builder  # noqa: F841


@functools.wraps(with_place)
def wrapping(*arguments: Any) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        without_place,
        with_place,
        with_named_place,
        with_local,
        wrapping,
        functools.partial(with_place, None),
        functools.partial(without_place, None),
        PostProcessor(None).run,
    ],
)
def test_a_lowering_function_takes_a_place_if_numba_says_so(function: Any) -> None:
    numbas = base._has_loc(function)
    with without_waste():
        assert base._has_loc(function) == numbas


def test_a_literal_integer_finds_the_overload_that_numba_finds() -> None:
    selector = base.OverloadSelector()
    selector.append("integer", (types.Integer, types.int64))
    selector.append("literal", (types.IntegerLiteral, types.int64))
    selector.append("float", (types.Float, types.int64))
    literals = types.literal(5), types.literal(6), types.literal(2**63)
    signatures = [(kind, types.int64) for kind in (*literals, types.int32, types.float32, types.literal(5))]
    with without_waste():
        found = [selector.find(signature) for signature in signatures]
        with pytest.raises(NumbaNotImplementedError):
            selector.find((types.literal(5), types.int32))
    assert found == [selector._find(signature) for signature in signatures]
    assert found == ["literal", "literal", "literal", "integer", "float", "literal"]


def test_an_operator_is_resolved_once_for_the_types_of_its_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba resolves all operators again in each round of inference."""
    resolved: list[tuple[Any, ...]] = []
    resolve = IntrinsicCallConstraint.resolve

    def counted(self: Any, typeinfer: Any, *others: Any, **named: Any) -> None:
        operands = [typeinfer.typevars[each.name].type for each in self.args]
        if None not in operands:
            resolved.append((id(self), *operands))
        resolve(self, typeinfer, *others, **named)

    monkeypatch.setattr(IntrinsicCallConstraint, "resolve", counted)
    lowered(made(["k = 1", "for i in range(n):", "    total = total * x[i] + f32(k)", "    k = k + i * 2"]))
    assert len(resolved) > 6
    assert len(resolved) == len(set(resolved))


def test_the_variables_of_an_instruction_are_numbas() -> None:
    place = Loc("file", 1)
    a, b, c = (Var(None, name, place) for name in "abc")
    values = [
        Expr.call(a, [b, c], {"key": b}, place, vararg=c),
        Expr.build_tuple([a, Const(1, place), b], place),
        Expr.build_map([(a, b), (b, c)], 2, {}, {}, place),
        Expr.phi(place),
        Const(2, place),
        Global("len", len, place),
        a,
    ]
    statements = [*(Assign(value, a, place) for value in values), Branch(a, 1, 2, place), Return(b, place)]
    with without_waste():
        found = [[each.name for each in statement.list_vars()] for statement in statements]
    assert found == [[each.name for each in statement.list_vars()] for statement in statements]


@pytest.fixture
def thresholds() -> Iterator[tuple[int, ...]]:
    outer = gc.get_threshold()
    yield outer
    gc.set_threshold(*outer)


def threshold_during(each: Kernel, monkeypatch: pytest.MonkeyPatch, change: int | None = None) -> int:
    """The collector's first threshold while a kernel is compiled. ``change`` is set meanwhile."""
    found = []

    def watched(*arguments: Any, **options: Any) -> LoweredKernel:
        found.append(gc.get_threshold()[0])
        if change is not None:
            gc.set_threshold(change)
        return lower(*arguments, **options)

    monkeypatch.setattr(front_end, "lower", watched)
    each.specialize()
    (threshold,) = found
    return threshold


def test_a_compilation_collects_garbage_less_often(thresholds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.set_threshold(700, *thresholds[1:])
    assert threshold_during(made(["total += x[j]"]), monkeypatch) > 700
    assert gc.get_threshold() == (700, *thresholds[1:])


def test_a_compilation_that_fails_leaves_the_collector_as_it_was(thresholds: Any) -> None:
    gc.set_threshold(700, *thresholds[1:])
    with pytest.raises(CompileError):
        made(["total += absent"]).specialize()
    assert gc.get_threshold() == (700, *thresholds[1:])


@pytest.mark.parametrize("own", [0, 1_000_000])
def test_a_collector_that_is_off_or_rarer_stays_so(own: int, thresholds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.set_threshold(own)
    assert threshold_during(made(["total += x[j]"]), monkeypatch) == own
    assert gc.get_threshold()[0] == own


def test_objects_that_the_program_has_frozen_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python counts them one by one: 40 ms with a compiler's objects frozen, and a small kernel takes 17."""
    asked: list[int] = []
    monkeypatch.setattr(specialization, "_frozen", False)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: asked.append(1) or 1)
    for number in range(3):
        made([f"a = {number}"]).ptx()
    assert asked == [1]


def test_a_threshold_set_during_a_compilation_stays(thresholds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.set_threshold(700, *thresholds[1:])
    threshold_during(made(["total += x[j]"]), monkeypatch, change=900)
    assert gc.get_threshold()[0] == 900


@given(
    st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.lists(st.integers(0, n - 1), max_size=2))))
)
@example((4, [[1, 3], [2, 1], [1, 0]]))
def test_back_edges_are_joined_as_numba_joins_them(drawn: tuple[int, list[list[int]]]) -> None:
    size, targets = drawn
    place, scope = Loc("", 1), Scope(None, Loc("", 1))
    blocks = {label: Block(scope, place) for label in range(size)}
    for label, block in blocks.items():
        match targets[label] if label < len(targets) else []:
            case []:
                block.append(Return(Var(scope, "x", place), place))
            case [target]:
                block.append(Jump(target, place))
            case first, second:
                block.append(Branch(Var(scope, "x", place), first, second, place))
    graph = compute_cfg_from_blocks(blocks)
    above = graph.dominators()
    # Python's control flow has no loop with two entries. Which edge of one leads back depends on the search's order.
    assume(all(head in above[end] for end, head in graph._find_back_edges()))
    edges = []
    for context in (nullcontext(), without_waste()):
        with context:
            joined = canonicalize_cfg(blocks)
        edges.append({label: block.terminator.get_targets() for label, block in joined.items()})
    assert edges[0] == edges[1]


def memory_of(lines: list[str]) -> list[str]:
    """The lines of the front end's IR that take memory of the stack."""
    return [line for line in lowered(made(lines)).modules[0].splitlines() if " = alloca " in line]


def test_variables_and_accesses_take_no_memory() -> None:
    assert not memory_of([line for k in range(8) for line in (f"if x[{k}] > f32(0):", f"    total += x[j + {k}]")])
    assert not memory_of(["total = total + (x[j] if n > 1 else x[0]) * (x[1] if n > 2 else x[2])"])


def test_variables_in_loops_take_no_memory_of_their_own() -> None:
    nothing = memory_of(["for i in range(n):", "    pass"])  # the range's own state
    both = ["for i in range(n):", "    if i > 3:", "        total += x[i]", "    before = total", "    total = before"]
    assert len(memory_of(both)) == len(nothing)


def test_variables_that_exchange_their_values_in_a_loop_are_right() -> None:
    """The value of one is read at the end of the block that assigns the other."""
    lines = ["a = f32(1)", "b = f32(2)", "for i in range(n):", "    a, b = b, a", "total = a * f32(10) + b"]
    for times, expected in ((0, 12), (1, 21), (2, 12), (3, 21)):
        out = np.zeros(1, np.float32)
        none = np.zeros(1, np.int64)
        run_blocks(made(lines), (1, 1, 1), (1, 1, 1), times, np.ones(1, np.float32), none, np.zeros(1, np.uint32), out)
        assert out[0] == expected


def test_numba_is_left_as_it_was() -> None:
    before = PostProcessor.run, Inst._rec_list_vars
    made(["total += x[j]"]).specialize()
    with pytest.raises(CompileError):
        made(["total += nothing"]).specialize()
    assert (PostProcessor.run, Inst._rec_list_vars) == before


def test_a_product_of_products_is_given_up_and_stays_checked(steps: Any) -> None:
    squares = ["k = j + i64(n)", *(["k = k * k"] * 40), "total += x[k]"]
    each = made(squares)
    assert steps(each) <= BUDGET
    assert [placement.place for placement in each.specialize().placements] == ["access"]


@pytest.fixture
def little_room() -> Iterator[int]:
    """Python's limit for calls within each other as after eight hundred of a program's own."""
    before = sys.getrecursionlimit()
    limit = len(inspect.stack(0)) + 200
    sys.setrecursionlimit(limit)
    yield limit
    sys.setrecursionlimit(before)


def test_an_index_of_many_terms_compiles(little_room: int) -> None:
    """A chain of sums is no recursion of the compiler's without end, neither in the prover nor before a loop."""
    lines = ["k = i64(n)", *(f"k = k * where[{k % 7}] + {k}" for k in range(150))]
    each = made([*lines, "for i in range(n):", "    total += x[k + i]"])
    each.specialize()
    x, out = np.ones(8, np.float32), np.zeros(1, np.float32)
    run_blocks(each, (1, 1, 1), (1, 1, 1), 4, x, np.zeros(7, np.int64), np.zeros(1, np.uint32), out)
    assert out[0] == 0, "it reads from 149 on, which is a fault"


def test_a_kernel_of_many_branches_compiles(little_room: int) -> None:
    made([f"if where[{k}] > {k}: total += f32({k})" for k in range(130)]).specialize()
    assert sys.getrecursionlimit() == little_room


def test_too_deep_a_kernel_is_an_error_that_says_so() -> None:
    def deeper(n: int) -> int:
        return deeper(n + 1)

    each = made(["total += x[j]"])
    with (
        pytest.raises(CompileError, match="kernel measured has too many branches"),
        placed_errors("measured", each.function),
    ):
        deeper(0)


def test_no_pass_is_run_that_may_end_the_process() -> None:
    """LLVM's NewGVN asserts that it looks at no value a hundred times, and large kernels make it."""
    assert "new_gvn" not in hoist._PASSES
