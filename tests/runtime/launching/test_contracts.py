"""Launch contracts: parsed when a kernel is decorated, checked on the host, and facts to the compiler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oxide import (
    CompileError,
    DisjointSlice,
    LaunchConfig,
    LaunchError,
    Slice,
    d2h,
    f32,
    h2d,
    i64,
    kernel,
    thread,
    u32,
    value,
    zeros,
)
from oxide.compiler.signature.contracts import compiled
from oxide_kernels import matvec_naive, sgemm_naive

SGEMM = kernel(requires=("k >= 1", "len(a) >= m * k", "len(b) >= k * n"))(sgemm_naive.function)
ONE = LaunchConfig(grid=(1, 1), block=(8, 8))


def matrices(m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(5)
    return tuple(random.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (k, n), (m, n)))  # type: ignore


def test_a_kept_contract_leaves_the_result_alone() -> None:
    a, b, c = matrices(6, 7, 5)
    result = SGEMM[ONE](6, 7, 5, 1.0, h2d(a), h2d(b), 1.0, h2d(c)).last().and_then(d2h).sync()
    np.testing.assert_allclose(result, a.astype(np.float64) @ b + c, rtol=1e-5, atol=1e-5)


def test_a_broken_contract_is_refused_with_both_values() -> None:
    a, b, c = (h2d(x).sync() for x in matrices(6, 7, 5))
    with pytest.raises(
        LaunchError, match=r"requires len\(a\) >= m \* k, but len\(a\) is 30, m \* k is 36 \(k = 6, m = 6\)"
    ):
        SGEMM[ONE](6, 7, 6, 1.0, a, b, 0.0, c)
    with pytest.raises(LaunchError, match=r"kernel sgemm_naive requires k >= 1, but k is 0"):
        SGEMM[ONE](6, 7, 0, 1.0, a, b, 0.0, c)


def test_products_do_not_wrap_on_the_host() -> None:
    a, b, c = (h2d(x).sync() for x in matrices(6, 7, 5))
    with pytest.raises(LaunchError, match=f"m \\* k is {(2**32 - 1) ** 2}"):
        SGEMM[ONE](2**32 - 1, 7, 2**32 - 1, 1.0, a, b, 0.0, c)


def test_what_an_operation_yields_is_checked_when_it_is_there() -> None:
    a, b, c = matrices(6, 7, 5)
    operation = SGEMM[ONE](6, 7, value(6), 1.0, h2d(a), h2d(b), 0.0, h2d(c))
    with pytest.raises(LaunchError, match=r"len\(a\) is 30, m \* k is 36"):
        operation.sync()
    with pytest.raises(LaunchError, match=r"len\(a\) is 30, m \* k is 36"):
        SGEMM[ONE](6, 7, 6, 1.0, h2d(a), h2d(b), 0.0, h2d(c))  # the upload's size is known before


@pytest.mark.parametrize(
    ("contract", "problem"),
    [
        ("len(d) >= m", "names d, but the parameters are m, scale, a, c"),
        ("mm >= 1", "names mm, but"),
        ("len(m) >= 1", "takes the length of m, which is no slice"),
        ("a >= 1", r"compares the slice a itself; its length is len\(a\)"),
        ("scale > 1", "uses scale, a f32; contracts are about integers"),
        ("m", "is no comparison"),
        ("m >= ", "is no expression"),
        ("m != 3", "compares with something other than"),
        ("m ** 2 >= 3", r"has m \*\* 2; there may be"),
        ("m >= 1.5", "has 1.5; there may be"),
    ],
)
def test_a_contract_that_means_nothing_is_refused_at_decoration(contract: str, problem: str) -> None:
    def scaled(m: u32, scale: f32, a: Slice[f32], c: DisjointSlice[f32]) -> None:
        pass

    with pytest.raises(CompileError, match=problem):
        kernel(requires=(contract,))(scaled)


def test_a_single_text_is_no_tuple_of_contracts() -> None:
    with pytest.raises(CompileError, match="give a tuple of texts"):
        kernel(requires="m >= 1")(sgemm_naive.function)


def test_chains_remainders_and_negative_numbers_are_contracts() -> None:
    @kernel(requires=("1 <= n <= len(x)", "n % 4 == 0", "shift > -3"))
    def fill(n: u32, shift: i64, x: DisjointSlice[f32]) -> None:
        element = x.get_mut(thread.index_1d())
        if element is not None:
            element.value = f32(n) + f32(shift)

    launch = fill[LaunchConfig.for_num_elems(8)]
    assert np.all(launch(8, -2, zeros(8)).last().and_then(d2h).sync() == 6)
    for n, shift, problem in [
        (0, 0, "requires 1 <= n"),
        (12, 0, "requires n <= len"),
        (6, 0, "n % 4 is 2"),
        (4, -3, "shift"),
    ]:
        with pytest.raises(LaunchError, match=problem):
            launch(n, shift, zeros(8).sync())


def test_a_division_by_zero_in_a_contract_is_a_refusal() -> None:
    @kernel(requires=("len(x) % n == 0",))
    def divided(n: u32, x: DisjointSlice[f32]) -> None:
        pass

    with pytest.raises(LaunchError, match=r"divides by zero \(n = 0\)"):
        divided[1, 1](0, zeros(4).sync())


def test_accesses_that_follow_from_contracts_are_not_checked() -> None:
    assert {check.place for check in SGEMM.checks()} == {"proved"}
    assert "atom." not in SGEMM.ptx()
    matvec = kernel(requires=("len(mat) >= m * n", "len(vec_in) == n"))(matvec_naive.function)
    assert "atom." not in matvec.ptx()


@pytest.mark.slow
@pytest.mark.parametrize(
    "contracts",
    [
        ("len(a) >= m * k", "len(b) >= k * n - 1"),
        ("len(a) >= m * k - 1", "len(b) >= k * n"),
        ("len(a) >= m", "len(b) >= k"),
        ("len(a) >= m * k",),
        ("m * k >= len(a)", "k * n >= len(b)"),
    ],
)
def test_contracts_that_do_not_suffice_leave_a_check(contracts: tuple[str, ...]) -> None:
    weak = kernel(requires=contracts)(sgemm_naive.function)
    assert "hoisted" in {check.place for check in weak.checks()}
    assert "atom." in weak.ptx(), "a failing check claims the record"


def test_the_length_of_a_slice_bounds_a_loop_over_it() -> None:
    @kernel
    def total(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            acc = f32(0.0)
            for i in range(len(x)):
                acc += x[i]
            element.value = acc

    @kernel
    def one_too_far(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            acc = f32(0.0)
            for i in range(len(x) + 1):
                acc += x[i]
            element.value = acc

    assert [check.place for check in total.checks()] == ["proved", "proved"]
    assert [check.place for check in one_too_far.checks()] == ["proved", "hoisted"]


def _expressions() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(["m", "n", "len(a)", "len(c)", "0", "3"])
    return st.recursive(
        leaves, lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner)
    )


@given(st.lists(st.tuples(_expressions(), st.sampled_from(["<", "<=", "==", ">=", ">"]), _expressions()), min_size=1))
@example([("n", "==", "(m % 0)")])
def test_what_a_launch_asks_and_what_explains_a_refusal_agree(texts: list[tuple[str, str, str]]) -> None:
    def body(m: u32, n: i64, a: Slice[f32], c: DisjointSlice[f32]) -> None: ...

    contracts = kernel(requires=tuple(" ".join(text) for text in texts))(body).description.contracts
    names = ["n", "len(c)", "m", "len(a)"]
    holds = compiled(contracts, names)
    for values in ((-7, 33, 5, 0), (0, 0, 0, 0), (2**40, 31, 2**32 - 1, 1000003)):
        try:
            for contract in contracts:
                contract.check("body", dict(zip(names, values, strict=True)))
            refused = False
        except LaunchError:
            refused = True
        try:
            held = holds(*values)
        except ZeroDivisionError:
            held = False
        assert held is not refused
