"""Hoisted checks change nothing: random loop nests against an interpreter of the same loops, value by value.

Nests draw loops over ranges and over views of the slices: rows, columns and tiles that may or may not be inside, and
pairs of them that may or may not be equally long.

``OXIDE_LOOP_NESTS`` is how many nests each of ``PARTS`` tests draws, 20 by default; a nest is run with ``SIZES`` sets
of sizes.
"""

from __future__ import annotations

import ast
import itertools
import linecache
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, event, given, settings
from hypothesis import strategies as st

from oxide import CompileError, DisjointSlice, Slice, Slice2, i32, i64, kernel, thread, u32, u64, zip_exact
from oxide.compiler.kernel.kernel import Kernel
from oxide.errors import KernelAssertionError
from tests.choosing import examples
from tests.compiler.bounds.loop_interpreter import Interpreter, TooLong
from tests.compiler.native_runner import fault_of, run_blocks

NESTS = int(os.environ.get("OXIDE_LOOP_NESTS", "20"))
PARTS = 4
SIZES = 20

HEAD = """def nest(
    p: i64, q: i64, n: i32, m: u32, x: Slice[i64], w: Slice[i64], a: Slice2[i64], b: Slice2[i64],
    out: DisjointSlice[i64],
):
    element = out.get_mut(thread.index_1d())
    if element is not None:
        acc = i64(0)
        k = i64(0)
"""
KINDS = {"n": "i32", "m": "u32"}
"""The types of the parameters that are no i64."""
EDGES = [e + d for e in (2**31, 2**32, 2**63, -(2**31), -(2**32), -(2**63)) for d in (-2, -1, 0, 1)]
EDGES = [edge for edge in EDGES if -(2**63) <= edge < 2**63]
small = st.integers(-2, 6)
names = st.sampled_from(["p", "q", "n", "m"])
numbers = st.one_of(small, small, small, st.sampled_from(EDGES)).map(lambda number: f"({number})")
atoms = st.one_of(numbers, names)


def terms(variables: list[str]) -> st.SearchStrategy[str]:
    variable = st.sampled_from([*variables, "k"]) if variables else st.just("k")
    affine = st.one_of(
        variable,
        atoms,
        st.builds("{} * {}".format, variable, atoms),
        st.builds("({} + {}) * {}".format, variable, atoms, atoms),
        st.builds("(-{})".format, variable),
    )
    other = st.one_of(
        st.builds("{} * {}".format, variable, variable),
        st.builds("{} % 3".format, variable),
        st.builds("{} // 2".format, variable),
        st.builds("({} << 2)".format, variable),
        st.builds("min({}, {})".format, variable, names.map(lambda name: f"i64({name})")),
        st.builds("i32({} + {})".format, variable, atoms),
        st.builds("u32({} + {})".format, variable, atoms),
        st.builds("w[{}]".format, variable),
    )
    narrow = st.sampled_from(
        ["m * m", "(m + m)", "(m - 3)", "(m << 3)", "n * n", "(n + n)", "-n", "m * n", "min(m * m, m)", "u32(m * m)"]
    )
    return st.one_of(affine, affine, affine, other, narrow)


def indices(variables: list[str]) -> st.SearchStrategy[str]:
    # Python folds a sum of constants, and a constant negative index is a compile error.
    return st.lists(terms(variables), min_size=1, max_size=3).map(
        lambda parts: f"i64({' + '.join(parts)})" if parts[0].startswith("(-") else " + ".join(parts)
    )


@st.composite
def bodies(draw: Any, variables: list[str], depth: int) -> list[str]:
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(
            st.sampled_from(["for", "for", "for", "read", "read", "if", "while", "break", "bump", "view", "view"])
        )
        if kind in ("for", "while") and depth < 3:
            lines += draw(loops(variables, depth, kind))
        elif kind == "view" and depth < 3:
            lines += draw(views(variables, depth))
        elif kind == "if" and variables:
            condition = f"{draw(st.sampled_from(variables))} < {draw(atoms)}"
            lines += [f"if {condition}:", *indented([read(draw, variables)])]
        elif kind == "break" and depth:
            lines += [f"if {draw(st.sampled_from(variables))} > {draw(small)}:", "    break", read(draw, variables)]
        elif kind == "bump":
            lines += [f"k += {draw(atoms)}", read(draw, variables)]
        else:
            lines.append(read(draw, variables))
    return lines


@st.composite
def loops(draw: Any, variables: list[str], depth: int, kind: str) -> list[str]:
    variable = "ijl"[depth]
    inside = [*variables, variable]
    if kind == "while":
        start, step = draw(atoms), draw(st.sampled_from([1, 1, -1, 2]))
        comparison = draw(st.sampled_from(["<", "<=", "!="] if step > 0 else [">"]))
        body = draw(bodies(inside, depth + 1))
        test = f"while {variable} {comparison} {draw(atoms)}:"
        # The counter moves before a break can leave it behind, so the loop ends.
        return [f"{variable} = i64({start})", test, *indented([f"{variable} = {variable} + {step}", *body])]
    start = draw(st.one_of(atoms, st.just("0"), st.sampled_from(variables) if variables else atoms))
    count = draw(st.one_of(names, st.integers(-1, 5).map(str)))
    step = draw(st.sampled_from(["1", "1", "2", "-1", "-2", "3"]))
    bounds = draw(
        st.sampled_from(
            [f"range({count})", f"range(i64({start}), {start} + {count}, {step})"]
            + ([f"range(i64({start}), {variables[-1]})"] if variables else [])
        )
    )
    return [f"for {variable} in {bounds}:", *indented(draw(bodies(inside, depth + 1)))]


@st.composite
def views(draw: Any, variables: list[str], depth: int) -> list[str]:
    """A loop over a view of a slice, and what it finds; ``acc`` says that it was None otherwise."""
    name = f"v{depth}"
    few = st.integers(0, 3).map(str)
    odd = st.one_of(small.map(str), names, st.sampled_from([*variables, "k"]), st.sampled_from(EDGES).map(str))
    place = st.one_of(few, few, few, odd).map("i64({})".format)
    # A count of rows without columns may be any number, and a loop over as many would not end.
    count = st.one_of(few, few, few, st.sampled_from(["(-1)", "5", "min(i64(p), i64(6))", "min(i64(n), i64(6))"]))
    matrices = st.sampled_from(["a", "b"])

    def vector() -> str:
        return f"{draw(matrices)}.{draw(st.sampled_from(['row', 'col']))}({draw(place)})"

    body = ["acc = acc * 3 + e", *draw(st.sampled_from([[], ["k += 1"], ["if e > 3:", "    break"]]))]
    kind = draw(st.sampled_from(["vector", "index", "zip", "tile", "item"]))
    if kind == "zip":
        first, second = vector(), vector()
        if draw(st.booleans()):
            second = first  # so that they are often equally long
        setup = [f"{name} = {first}", f"u{depth} = {second}", f"if {name} is not None and u{depth} is not None:"]
        loop = [f"for e, g in zip_exact({name}, u{depth}):", "    acc = acc * 5 + g", *indented(body)]
    elif kind == "tile":
        setup = [f"{name} = {draw(matrices)}.tile({draw(place)}, {draw(place)}, {draw(count)}, {draw(count)})"]
        setup += [f"if {name} is not None:"]
        loop = [f"for one in {name}:", "    for e in one:", *indented(indented(body))]
    else:
        setup = [f"{name} = {vector()}", f"if {name} is not None:"]
        counter = "ghm"[depth - 1] if depth else "f"
        item = f"{name}[{counter}]" if kind == "index" else f"{name}[{draw(indices(variables))}]"
        loop = [f"for e in {name}:", *indented(body)]
        if kind != "vector":
            loop = [f"for {counter} in range(len({name})):", *indented([f"acc = acc * 3 + {item}"])]
    return [*setup, *indented(loop), "else:", "    acc = acc * 7 + 1"]


def read(draw: Any, variables: list[str]) -> str:
    return f"acc = acc * 3 + {draw(st.sampled_from(['x', 'x', 'w']))}[{draw(indices(variables))}]"


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


arguments = st.tuples(
    st.one_of(small, small, st.sampled_from(EDGES)),
    st.one_of(small, small, st.sampled_from(EDGES)),
    st.one_of(small, small, st.sampled_from([2**31 - 1, -(2**31)])),
    st.one_of(st.integers(0, 6), st.integers(0, 6), st.just(2**32 - 1)),
    st.sampled_from([0, 1, 7, 20, 64, 300]),
    st.sampled_from([0, 1, 7, 20, 64]),
)
_serial = itertools.count()


def build(source: str) -> Kernel:
    """A kernel out of source text, which the compiler finds as it finds a file's."""
    file = f"<nest {next(_serial)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = {
        "i32": i32, "i64": i64, "u32": u32, "u64": u64, "Slice": Slice, "DisjointSlice": DisjointSlice,
        "Slice2": Slice2, "thread": thread, "zip_exact": zip_exact, "__name__": "nests",
    }  # fmt: skip
    exec(compile(source, file, "exec"), scope)
    return kernel(scope["nest"])


def compare(nest: Kernel, source: str, sizes: tuple[int, int, int, int, int, int]) -> str:
    """Runs one thread both ways. Gives what happened: ok, fault or too long."""
    p, q, n, m, x_length, w_length = sizes
    x = np.arange(1, x_length + 1, dtype=np.int64) * 0x9E3779B97F4A7C
    w = np.arange(w_length, dtype=np.int64) % 5
    a, b = (matrix_of(each, 1 + p % 6) for each in (x, w))
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.FunctionDef)
    guarded = definition.body[1]
    assert isinstance(guarded, ast.If)
    expected = Interpreter({"p": p, "q": q, "n": n, "m": m, "x": x.tolist(), "w": w.tolist(), "a": a, "b": b}, KINDS)
    try:
        expected.run(guarded.body)
    except TooLong:
        return "too long"
    out = np.full(1, -1, np.int64)
    record = run_blocks(nest, (1, 1, 1), (1, 1, 1), p, q, n, m, x, w, a, b, out)
    fault = fault_of(nest, record)
    found = None if fault is None else described(fault)
    assert found == expected.first_fault, f"sizes {sizes}\n{source}"
    # A thread whose check fails leaves the kernel.
    assert out[0] == (expected.result if fault is None else -1), f"sizes {sizes}\n{source}"
    return "ok" if fault is None else "fault"


def matrix_of(elements: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    """As many whole rows as there are."""
    return elements[: elements.size // width * width].reshape(-1, width)


def described(fault: Any) -> tuple[str, int, int, int]:
    if isinstance(fault, KernelAssertionError):
        return "zip_exact", 0, 0, fault.line
    return fault.parameter, fault.index, fault.length, fault.line


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
# Not shrunk: the assertion shows the nest and its sizes, and shrinking would compile hundreds more.
@settings(
    max_examples=examples(NESTS),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(loops([], 0, "for"), st.lists(arguments, min_size=SIZES, max_size=SIZES))
def test_any_loop_nest_gives_the_values_or_the_first_fault_of_its_interpreter(
    part: int, lines: list[str], sizes: list[tuple[int, int, int, int, int, int]]
) -> None:
    source = HEAD + "\n".join(f"        {line}" for line in [*lines, "element.value = acc"]) + "\n"
    nest = build(source)
    try:
        nest.specialize()
    except CompileError as error:  # a constant that the other operand's type does not hold, or no integer of a kernel
        assume("does not fit in" not in str(error) and "Int value is too large" not in str(error))
        raise
    outcomes = [compare(nest, source, one) for one in sizes]
    assume(any(outcome != "too long" for outcome in outcomes))
    for outcome in outcomes:
        event(outcome)
    for placement in nest.specialize().placements:
        event(f"{placement.place}: {placement.reason}")
