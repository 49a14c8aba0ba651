"""Contracts are arithmetic of whole numbers, and narrow integers of a kernel wrap. No proof takes one for the other.

Each launch here keeps its contract, and its kernel's narrow sum or product wraps. A proof that took the contract's
``n * w`` for the kernel's would leave out a check that fails.
"""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import BoundsError, h2d, zeros


def made(contracts: tuple[str, ...], parameters: str, body: str) -> Any:
    """Returns a kernel that adds elements of ``x`` to ``total``."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    source = f"""@device
def product(n, w):
    return n * w

@kernel(block=64, requires={contracts!r})
def k({parameters}, x: Slice[i32], y: DisjointSlice[i32]):
    out = y.get_mut(thread.index_1d())
    if out is not None:
        total: i32 = 0
{lines}
        out.value = total
"""
    name = f"<wrapped {hash(source)}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    names: dict[str, Any] = {name: getattr(oxide, name) for name in oxide.__all__}
    exec(compile(source, name, "exec"), names)
    return names["k"]


def run(k: Any, *sizes: int, length: int = 5) -> int:
    found = k(*sizes, h2d(np.arange(10, 10 + length, dtype=np.int32)), zeros(1, oxide.i32)).last().to_host().sync()
    return int(found[0])


DIFFERENCE = ("n * w >= c", "n * w - c < len(x)")
SUM = ("n + w >= c", "n + w - c < len(x)")
U32, I32 = "n: u32, w: u32, c: u32", "n: i32, w: i32"


@pytest.mark.parametrize(
    ("contracts", "parameters", "body", "sizes"),
    [
        # n * w is 2**32 + 2, and c is 2**32 - 1: the whole difference is 3, and that of the wrapped product negative.
        (DIFFERENCE, U32, "total = x[u32(n * w) - c]", (2, 2**31 + 1, 2**32 - 1)),
        (DIFFERENCE, U32, "total = x[i64(n * w) - c]", (2, 2**31 + 1, 2**32 - 1)),
        (DIFFERENCE, U32, "total = x[product(n, w) - i64(c)]", (2, 2**31 + 1, 2**32 - 1)),
        (DIFFERENCE, U32, "for i in range(1):\n    total += x[i64(n * w) + i - c]", (2, 2**31 + 1, 2**32 - 1)),
        (SUM, U32, "total = x[u32(n + w) - c]", (2**31, 2**31, 2**32 - 3)),
        (SUM, U32, "total = x[i64(n + w) - c]", (2**31, 2**31, 2**32 - 3)),
        # n * w is 6 - 2**32, which wraps to 6. Only five elements are there.
        (("n * w <= len(x)",), I32, "for i in range(n * w):\n    total += x[i]", (-10, 429496729)),
        (("n * w <= len(x)",), I32, "m = n * w\nif m > 5:\n    total = x[u32(m) - 1]", (-10, 429496729)),
        (("n * w <= len(x)",), I32, "i: i32 = 0\nwhile i < n * w:\n    total += x[i]\n    i += 1", (-10, 429496729)),
        (
            ("n * w <= len(x)",),
            I32,
            "for i in range(n * w):\n    if i < n * w:\n        total += x[i]",
            (-10, 429496729),
        ),
        # 0 - 1 of a u32 is 2**32 - 1.
        (("w >= 1",), "n: u32, w: u32", "total = x[u32(n - w)]", (0, 1)),
        (("n - w < len(x)",), "n: u32, w: u32", "for i in range(n - w):\n    total += x[i]", (0, 2**32 - 9)),
    ],
)
def test_a_contract_says_nothing_of_a_product_that_wrapped(
    contracts: tuple[str, ...], parameters: str, body: str, sizes: tuple[int, ...]
) -> None:
    with pytest.raises(BoundsError):
        run(made(contracts, parameters, body), *sizes)


@pytest.mark.parametrize(
    ("contracts", "parameters", "body", "sizes", "expected"),
    [
        (DIFFERENCE, U32, "total = x[n * w - c]", (2, 2**31 + 1, 2**32 - 1), 13),
        (SUM, U32, "total = x[n + w - c]", (2**31, 2**31, 2**32 - 3), 13),
        (SUM, U32, "m = n + w\nfor i in range(1):\n    total += x[m - c + i]", (2**31, 2**31, 2**32 - 3), 13),
    ],
)
def test_the_whole_of_a_chain_is_proved(
    contracts: tuple[str, ...], parameters: str, body: str, sizes: tuple[int, ...], expected: int
) -> None:
    k = made(contracts, parameters, body)
    assert run(k, *sizes) == expected
    assert {check.place for check in k.checks() if check.parameter == "x"} == {"proved"}


@pytest.mark.parametrize(
    ("parameters", "body"),
    [
        ("row: u32, k: u32", "for i in range(k):\n    total += x[row * k + i]"),
        ("row: u32, k: u32", "start = row * k\nfor i in range(k):\n    total += x[start + i]"),
        ("row: i32, k: i32", "start = row * k\nfor i in range(k):\n    total += x[start + i]"),
        ("row: u8, k: u16", "for i in range(k):\n    for j in range(k):\n        total += x[(row + i) * k + j]"),
    ],
)
def test_a_narrow_chain_leaves_the_loop(parameters: str, body: str) -> None:
    k = made((), parameters, body)
    assert [check.place for check in k.checks() if check.parameter == "x"] == ["hoisted"]
    assert run(k, 0, 2) > 20
    if "32" in parameters:
        with pytest.raises(BoundsError) as caught:
            run(k, 65536, 65536)
        assert caught.value.index == 2**32
