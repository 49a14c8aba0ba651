"""arange and randn: NumPy's numbers, made once, and beside the event loop that awaits them."""

from __future__ import annotations

import gc
import threading
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import arange, gather, randn, value
from oxide.host.messages import written
from oxide.runtime.operations import new_boxes
from oxide.runtime.submission import staging
from tests.runtime.waiting import until

LARGE = staging.SMALL_BYTES // 4 + 1001
LONG = 10**5000


@pytest.mark.parametrize("shape", [0, 5, (3, 7), LARGE])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_randn_is_numpys_generator(shape: Any, dtype: str) -> None:
    operation = randn(1.5, 0.5, shape, dtype, seed=7)
    expected = np.random.default_rng(7).normal(1.5, 0.5, shape).astype(dtype)
    for _ in range(2):
        np.testing.assert_array_equal(operation.to_host().sync(), expected)


def test_without_a_seed_an_operation_keeps_its_numbers_and_two_differ() -> None:
    first, second = randn(0, 1, 1000), randn(0, 1, 1000)
    numbers_of_first = first.to_host().sync()
    np.testing.assert_array_equal(first.to_host().sync(), numbers_of_first)
    assert not np.array_equal(second.to_host().sync(), numbers_of_first)


@pytest.mark.parametrize("dtype", ["i4", "u8", "f4"])
def test_arange_counts_from_0_in_every_dtype(dtype: str) -> None:
    for count in (0, 1, LARGE):
        np.testing.assert_array_equal(arange(count, dtype).to_host().sync(), np.arange(count, dtype=dtype))


@pytest.mark.parametrize(
    ("mean", "std", "found"),
    [
        ("a", 1, "the mean is 'a'; it must be one number"),
        (0, None, "the standard deviation is None; it must be one number"),
        ([1.0, 2.0], 1, "the mean is \\[1.0, 2.0\\]; it must be one number"),
        ([[1], [2, 3]], 1, "the mean is \\[\\[1\\], \\[2, 3\\]\\]; it must be one number"),
        (np.complex64(1j), 1, "the mean is .*1j.*; it must be one number"),
        (LONG, 1, "the mean is an int of 16610 bits; it must be one number"),
        (1j, 1, "the mean is 1j; it must be one number"),
        (True, 1, "the mean is True; it must be one number"),
    ],
    ids=written,
)
def test_randn_is_of_two_numbers(mean: Any, std: Any, found: str) -> None:
    with pytest.raises(ValueError if mean is LONG else TypeError, match=f"randn: {found}"):
        randn(mean, std, 3)


@pytest.mark.parametrize("number", [np.float32(0.5), np.array(0.5), 1, 10**20, Fraction(1, 2), Decimal("0.5")])
def test_randn_takes_all_that_is_one_number(number: Any) -> None:
    expected = np.random.default_rng(3).normal(float(number), float(number), 5).astype("f4")
    np.testing.assert_array_equal(randn(number, number, 5, seed=3).to_host().sync(), expected)


@pytest.mark.parametrize(("seed", "kind"), [(-1, ValueError), (-LONG, ValueError), (1.5, TypeError)], ids=written)
def test_randns_seed_is_a_whole_number(seed: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=rf"randn: the seed is {written(seed)}; give a whole number of 0"):
        randn(0, 1, 3, seed=seed)


@pytest.mark.parametrize("n", [(2, 2), ()])
def test_aranges_number_of_elements_is_one_int(n: Any) -> None:
    with pytest.raises(TypeError, match=r"arange: the number of elements is one int, not \("):
        arange(n)


def test_many_numbers_are_made_beside_the_loop_that_awaits_them(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    go_on = threading.Event()
    normal = new_boxes.HostNumbers.array

    def noting(self: new_boxes.HostNumbers) -> Any:
        if not self.made:
            threads.append(threading.current_thread())
            go_on.wait(30)
        return normal(self)

    async def main() -> None:
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                left, right = await gather(randn(0, 1, LARGE, seed=1).to_host(), arange(LARGE).to_host())
                np.testing.assert_array_equal(left, np.random.default_rng(1).normal(size=LARGE).astype("f4"))
                np.testing.assert_array_equal(right, np.arange(LARGE, dtype="f4"))

            nursery.start_soon(wait)
            await until(lambda: threads)
            for _ in range(20):
                await trio.lowlevel.checkpoint()  # the loop goes on
            go_on.set()

    monkeypatch.setattr(new_boxes.HostNumbers, "array", noting)
    trio.run(main)
    assert len(threads) == 2
    assert threading.main_thread() not in threads


def test_numbers_that_a_function_asks_for_are_made_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        got = await value(0).and_then(lambda _: arange(LARGE)).to_host()
        np.testing.assert_array_equal(got, np.arange(LARGE, dtype="f4"))

    trio.run(main)


def test_an_error_while_they_are_made_is_the_operations() -> None:
    class Refusing:
        def __call__(self) -> Any:
            raise MemoryError("no room for so many")

    async def main() -> None:
        operation = new_boxes.Generated("arange", (LARGE,), np.dtype("f4"), Refusing())
        with pytest.raises(MemoryError, match="so many") as raised:
            await operation
        assert any("in <oxide operation arange of" in note for note in raised.value.__notes__)

    trio.run(main)


def test_numbers_of_an_operation_that_was_dropped_are_not_made() -> None:
    async def main() -> None:
        with pytest.warns(RuntimeWarning, match="never run"):
            arange(LARGE)
            gc.collect()
        assert await value(1) == 1

    made: list[object] = []
    array = new_boxes.HostNumbers.array
    new_boxes.HostNumbers.array = lambda self: made.append(self) or array(self)  # type: ignore[method-assign,func-returns-value]
    try:
        trio.run(main)
    finally:
        new_boxes.HostNumbers.array = array  # type: ignore[method-assign]
    assert not made


def test_a_graph_uploads_its_numbers_at_each_launch() -> None:
    graph = arange(LARGE).graph()
    box = graph.take_output()
    assert box is not None
    for _ in range(2):
        graph.launch().sync()
        np.testing.assert_array_equal(oxide.d2h(box).sync(), np.arange(LARGE, dtype="f4"))
        oxide.memcpy(box, np.zeros(LARGE, "f4")).sync()
