"""A hoisted check leaves nothing in the loop: the PTX is read, no GPU is needed."""

from __future__ import annotations

import re

import pytest

from benchmarks.bounds_kernels import horner, strided_squares, window_sums
from oxide import DisjointSlice, Slice, f32, kernel, thread, u32
from oxide.compiler.kernel.kernel import Kernel
from oxide_kernels import matvec_naive, sgemm_naive

LOOPS = [sgemm_naive, matvec_naive, strided_squares, window_sums, horner]


def loops(ptx: str) -> list[list[str]]:
    """The instructions of each innermost loop: from a label to the branch back to it, none between."""
    lines = [line.strip() for line in ptx[ptx.index(".entry") :].splitlines() if line.strip()]
    labels = {line[:-1]: number for number, line in enumerate(lines) if line.startswith("$L")}
    found = []
    for number, line in enumerate(lines):
        match = re.search(r"bra(?:\.uni)?\s+(\$L\w+);", line)
        if match and labels[match[1]] < number:
            body = lines[labels[match[1]] + 1 : number + 1]
            if not any(inner.startswith("$L") for inner in body):
                found.append([inner for inner in body if not inner.startswith(".pragma")])
    return found


def hot_loop(ptx: str) -> list[str]:
    """The loop that does the most in an iteration, and loads most at a time. LLVM unrolls those without checks, never
    the copy with them."""
    return max(loops(ptx), key=lambda body: (sum("f32" in line for line in body), sum(".v4." in line for line in body)))


def operations(body: list[str]) -> list[str]:
    """The operations of a loop without their registers."""
    return sorted(line.removeprefix("@").split()[0] if line[0] != "@" else "branch" for line in body)


@pytest.mark.slow
@pytest.mark.parametrize("checked", LOOPS, ids=lambda each: each.name)
def test_the_hot_loop_is_that_of_the_unchecked_kernel(checked: Kernel) -> None:
    unchecked = kernel(unchecked=True)(checked.function)
    hot = hot_loop(checked.ptx())
    assert operations(hot) == operations(hot_loop(unchecked.ptx()))
    loads = sum(4 if "ld.global.v4" in line else "ld.global" in line for line in hot)
    assert loads >= 4, "not unrolled"


@pytest.mark.parametrize("checked", LOOPS, ids=lambda each: each.name)
def test_the_hot_loop_has_no_trap_no_call_and_one_comparison(checked: Kernel) -> None:
    text = "\n".join(hot_loop(checked.ptx()))
    assert "call" not in text
    assert "trap" not in text
    assert len(re.findall(r"\bsetp\.", text)) == 1
    assert not re.search(r"\b(selp|min|max)\.", text)


@pytest.mark.parametrize("checked", LOOPS, ids=lambda each: each.name)
def test_the_checked_copy_of_the_loop_is_there_for_the_other_case(checked: Kernel) -> None:
    assert "atom.relaxed.gpu.global.cas" in checked.ptx()
    assert {p.place for p in checked.specialize().placements if p.in_loop} == {"hoisted"}


def test_a_check_that_cannot_be_hoisted_stays_in_the_loop() -> None:
    @kernel
    def gather(n: u32, where: Slice[u32], x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            acc = f32(0.0)
            for i in range(n):
                acc += x[where[i]]
            element.value = acc

    places = {gather.specialize().sites[p.site].parameter: p.place for p in gather.specialize().placements}
    assert places == {"where": "hoisted", "x": "access", "y": "proved"}


@pytest.mark.parametrize(("each", "rows"), [(sgemm_naive, 1), (matvec_naive, 2)], ids=["sgemm", "matvec"])
@pytest.mark.parametrize("unchecked", [False, True])
def test_a_row_is_read_four_elements_at_a_time(each: Kernel, rows: int, unchecked: bool) -> None:
    hot = "\n".join(hot_loop(kernel(unchecked=unchecked)(each.function).ptx()))
    fused = hot.count("fma.rn.f32")
    assert fused == 8
    assert hot.count("ld.global.v4.b32") == rows * fused // 4


@pytest.mark.parametrize("each", [strided_squares, window_sums, horner], ids=lambda each: each.name)
def test_a_loop_that_reads_no_row_forwards_has_no_version_for_it(each: Kernel) -> None:
    assert "vote" not in each.ptx()
    assert "ld.global.v" not in each.ptx()


def test_a_loop_that_stores_has_no_version_for_rows() -> None:
    @kernel
    def sums(n: u32, x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            for i in range(n):
                element.value += x[i]

    assert "vote" not in sums.ptx()


@pytest.mark.parametrize("checked", LOOPS, ids=lambda each: each.name)
def test_a_failed_check_makes_no_call_and_reads_the_threads_coordinates_where_it_is_cold(checked: Kernel) -> None:
    # What lives across a call, or is read early, would take registers of every thread.
    ptx = checked.ptx()
    assert ".func" not in ptx
    assert "call" not in ptx
    before, found, cold = ptx.partition("atom.")
    assert found
    assert "%tid.z" not in before
    assert cold.count("%tid.z") == cold.count("%ctaid.z") > 0


def test_no_loop_of_the_checked_copy_is_unrolled() -> None:
    cold = [body for body in loops(window_sums.ptx()) if len(body) < 20]
    assert cold
    assert all(sum("ld.global" in line for line in body) <= 1 for body in cold)
