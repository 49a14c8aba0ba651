"""Variables through any control flow: random programs of loops, branches, ``break`` and ``continue`` against Python."""

from __future__ import annotations

import itertools
import linecache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oxide import DisjointSlice, Kernel, Slice, d2h, device, h2d, i64, kernel, thread, zeros
from tests.choosing import examples

VARIABLES = ["a", "b", "c"]
names = st.sampled_from(VARIABLES)
atoms = st.one_of(names, names, st.integers(-3, 9).map(str), st.sampled_from(["x[0]", "x[1]", "x[2]"]))
values = st.one_of(atoms, st.builds("{} + {}".format, atoms, atoms), st.builds("{} * 3 - {}".format, names, atoms))
tests = st.builds("{} % 4 {} {}".format, names, st.sampled_from(["<", ">", "==", "!="]), st.integers(-1, 3).map(str))


@st.composite
def blocks(draw: Any, depth: int, looped: bool) -> list[str]:
    """Draws the lines of a block. In a loop it may leave or go on."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["assign", "assign", "add", "if", "else", "forever", "while", "for", "leave"]))
        if depth > 2 or kind in ("assign", "leave"):
            lines.append(f"{draw(names)} = {draw(values)}")
            if kind == "leave" and looped:
                lines += [f"if {draw(tests)}:", f"    {draw(names)} = {draw(values)}"]
                lines.append("    " + draw(st.sampled_from(["break", "continue"])))
        elif kind == "add":
            lines.append(f"{draw(names)} += {draw(values)}")
        elif kind in ("if", "else"):
            lines += [f"if {draw(tests)}:", *indented(draw(blocks(depth + 1, looped)))]
            lines += ["else:", *indented(draw(blocks(depth + 1, looped)))] if kind == "else" else []
        else:
            lines += draw(loops(depth, kind))
    return lines


@st.composite
def loops(draw: Any, depth: int, kind: str) -> list[str]:
    counter, most = f"k{depth}", draw(st.integers(0, 4))
    body = draw(blocks(depth + 1, True))
    if kind == "for":
        lines = [f"for {counter} in range({most}):", *indented(body)]
    elif kind == "while":
        lines = [f"{counter} = 0", f"while {counter} < {most}:", f"    {counter} += 1", *indented(body)]
    else:
        last = indented([*draw(blocks(depth + 1, False)), "break"])
        leave = [f"if {counter} > {most}:", *last]
        return [f"{counter} = 0", "while True:", f"    {counter} += 1", *indented([*leave, *body])]
    if draw(st.booleans()):
        lines += ["else:", *indented(draw(blocks(depth + 1, False)))]
    return lines


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


numbers = itertools.count()


def function_of(body: list[str]) -> Any:
    lines = ["a, b, c = 1, 2, 3", *body, "return a + 7 * b + 49 * c"]
    source = "\n".join(["def drawn(x: Slice[i64]) -> i64:", *indented(lines), ""])
    file = f"<control flow {next(numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    scope: dict[str, Any] = {"Slice": Slice, "i64": i64}
    exec(compile(source, file, "exec", dont_inherit=True), scope)
    return scope["drawn"]


def kernel_of(drawn: Any) -> Kernel:
    called = device(drawn)

    @kernel(block=32)
    def apply(x: Slice[i64], y: DisjointSlice[i64]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = called(x)

    return apply


INPUTS = [[0, 0, 0], [1, 2, 3], [-5, 7, 2], [2, 2, 9]]


def compare(body: list[str]) -> None:
    drawn = function_of(body)
    made = kernel_of(drawn)
    for given_numbers in INPUTS:
        result = d2h(made(h2d(np.array(given_numbers)), zeros(1, i64)).last()).sync()
        expected = drawn(given_numbers)
        assert int(result[0]) == (expected + 2**63) % 2**64 - 2**63, "\n".join(body)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(blocks(0, False))
def test_any_control_flow_gives_what_python_gives(body: list[str]) -> None:
    compare(body)


# numba gives the second of these 24, and refuses the first.
FOREVER = ["i = -1", "while True:", "    i += 1", "    if i > 2:", "        a += 17", "        break"]


@pytest.mark.parametrize(
    "body",
    [
        [*FOREVER, "    if x[i] == 2:", "        continue", "    a = a * 3 + x[i]"],
        [*FOREVER, "    if x[i] == 2:", "        continue", "    a = 3"],
        [*FOREVER, "    b = a", "    a = b + 1", "    c = a"],
    ],
)
def test_a_variable_that_the_end_of_an_endless_loop_assigns_is_the_loops(body: list[str]) -> None:
    compare(body)


def test_so_it_is_in_a_kernel_without_annotations() -> None:
    @kernel
    def apply(x, y):  # type: ignore[no-untyped-def]
        total = 7
        i = -1
        while True:
            i += 1
            if i >= len(x):
                total += 17
                break
            if x[i] == 2:
                continue
            total = 3
        y[0] = total

    assert d2h(apply[1, 1](h2d(np.array([1, 2, 3])), zeros(1, i64)).last()).sync().tolist() == [20]
