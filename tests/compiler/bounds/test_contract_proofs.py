"""What contracts prove is true: random contracts and indices, run with sizes that keep the contracts.

A check that was left out wrongly shows as a fault that the interpreter of the same loops has and the kernel has not.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from oxide import BoundsError, LaunchError, kernel
from oxide.compiler.kernel.kernel import Kernel
from tests.compiler.bounds.test_loop_checks import HEAD, build, compare, matrix_of
from tests.compiler.native_runner import fault_of, run_blocks

CONTRACTS = [
    "len(x) >= n * m",
    "len(x) == n * m",
    "len(x) >= n",
    "len(x) >= n * m + p",
    "len(x) > p * m",
    "len(x) >= m",
    "n >= 1",
    "p >= 0",
    "p >= 1",
    "p <= n",
    "q == p + 1",
    "len(w) == len(x)",
    "len(w) >= p + m",
    "m <= 4",
]
INDICES = [
    "i", "j", "i * m + j", "j * n + i", "i * n + j", "i + p", "j + p", "i * m + j + p", "i * p + j", "n - 1 - i",
    "m - 1 - j", "i * m + j - 1", "i * m + j + 1", "p", "q", "p - 1", "n - 1", "n * m - 1", "i - j", "q - p", "i << 1",
]  # fmt: skip
WRAPPERS = ["{}", "i64({})", "i32({})", "u32({})"]
CONDITIONS = ["i < p", "p > i", "j < n", "i64(j) < p", "p > 0", "i > 0", "q <= i", "i != 1"]
LENGTHS = ["0", "1", "n * m", "n * m + p", "n", "m", "n * m - 1", "n * m + 1", "p + m", "64"]

sizes = st.tuples(
    st.integers(-1, 6), st.integers(-1, 6), st.integers(-1, 5), st.integers(0, 5),
    st.sampled_from(LENGTHS), st.sampled_from(LENGTHS),
)  # fmt: skip


def read(index: str, wrapper: str, name: str) -> str:
    return f"acc = acc * 3 + {name}[{wrapper.format(index)}]"


reads = st.builds(
    read, st.sampled_from(INDICES), st.sampled_from([*WRAPPERS[:1] * 3, *WRAPPERS]), st.sampled_from("xw")
)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@given(
    st.lists(st.sampled_from(CONTRACTS), min_size=1, max_size=4, unique=True),
    st.lists(reads, min_size=1, max_size=3),
    reads,
    st.sampled_from(CONDITIONS),
    st.lists(sizes, min_size=40, max_size=40),
)
def test_what_contracts_prove_holds_wherever_they_hold(
    part: int,
    contracts: list[str],
    inner: list[str],
    guarded: str,
    condition: str,
    drawn: list[tuple[int, int, int, int, str, str]],
) -> None:
    body = [
        "for i in range(n):",
        "    for j in range(m):",
        *(f"        {line}" for line in inner),
        f"        if {condition}:",
        f"            {guarded}",
        "element.value = acc",
    ]
    source = HEAD + "".join(f"        {line}\n" for line in body)
    nest: Kernel = kernel(requires=contracts)(build(source).function)
    for p, q, n, m, first, second in drawn:
        scope = {"p": p, "n": n, "m": m}
        x_length, w_length = (max(0, int(eval(text, {}, scope))) for text in (first, second))
        known = {"p": p, "q": q, "n": n, "m": m, "len(x)": x_length, "len(w)": w_length}
        try:
            for contract in nest.description.contracts:
                contract.check("nest", known)
        except LaunchError:
            continue
        event(compare(nest, source, (p, q, n, m, x_length, w_length)))
    for placement in nest.specialize().placements:
        event(placement.place)


def test_a_loop_over_32_bit_numbers_is_proved_like_any_other() -> None:
    source = HEAD + "        for i in range(n):\n            acc = acc * 3 + x[i]\n        element.value = acc\n"
    proved = kernel(requires=("len(x) >= n",))(build(source).function)
    assert {placement.place for placement in proved.specialize().placements} == {"proved"}
    too_weak = kernel(requires=("len(x) >= n - 1",))(build(source).function)
    assert {placement.place for placement in too_weak.specialize().placements} == {"proved", "hoisted"}


def fault(contracts: tuple[str, ...], head: str, lines: list[str], *numbers: int, length: int) -> tuple[str, int, int]:
    """Runs a thread that reads ``x``, whose length keeps the contracts. Gives its fault: the parameter, the index and
    the length."""
    source = head + "".join(f"        {line}\n" for line in [*lines, "element.value = acc"])
    each: Kernel = kernel(requires=contracts)(build(source).function)
    x, w, out = np.zeros(length, np.int64), np.arange(8, dtype=np.int64), np.zeros(1, np.int64)
    a, b = (matrix_of(elements, 1) for elements in (x, w))
    found = fault_of(each, run_blocks(each, (1, 1, 1), (1, 1, 1), *numbers, x, w, a, b, out))
    assert isinstance(found, BoundsError)
    return found.parameter, found.index, found.length


@pytest.mark.parametrize("name", ["p", "n"])
def test_a_signed_number_may_be_as_great_as_its_type_holds(name: str) -> None:
    contracts = (f"{name} >= 0", "len(x) >= 64")
    assert fault(contracts, HEAD, [f"acc = x[{name}]"], 70, 0, 70, 0, length=64) == ("x", 70, 64)


def test_a_difference_is_not_less_than_it_is() -> None:
    contracts = ("p >= 2 * q", "len(x) > p - 2 * q", "q >= 0")
    assert fault(contracts, HEAD, ["acc = x[p - q]"], 10, 2, 0, 0, length=7) == ("x", 8, 7)


def test_a_number_greater_than_another_may_be_less_than_its_double() -> None:
    lines = ["if p > q:", "    acc = x[p - 2 * q]"]
    assert fault(("len(x) > p - 2 * q",), HEAD, lines, 3, 2, 0, 0, length=7) == ("x", -1, 7)


def test_a_loop_that_ends_by_what_it_reads_may_have_any_number_of_iterations() -> None:
    lines = ["k = p", "while w[k & 7] != 6:", "    if w[k & 3] < 4:", "        acc += x[k]", "    k -= 1"]
    assert fault(("p >= 0", "len(x) >= p + 2"), HEAD, lines, 3, 0, 0, 0, length=5) == ("x", -1, 5)


def test_an_unsigned_start_of_a_range_may_be_negative_as_a_signed_number() -> None:
    lines = ["for i in range(i64(p), q):", "    acc += x[i]"]
    contracts = ("q >= 0", "len(x) >= q")
    head = HEAD.replace("p: i64", "p: u64")
    assert fault(contracts, head, lines, 2**64 - 3, 4, 0, 0, length=4) == ("x", -3, 4)
