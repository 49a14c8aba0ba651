"""The three forms of a partition: of a box that the program owns, of a shared one, and in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio

from oxide import Arc, CompileError, d2h, f32, f64, h2d, tile, zeros


@tile.kernel
def add(z: tile.Partition[f32, 2], x: tile.Tensor[f32, 2], y: tile.Tensor[f32, 2]) -> None:
    z.store(tile.load_like(x, z) + tile.load_like(y, z))


X = np.random.default_rng(1).standard_normal((32, 32)).astype(np.float32)


def test_a_lazy_partition_is_awaited() -> None:
    async def main() -> None:
        z = await add(zeros((32, 32)).partition((4, 4)), h2d(X), h2d(X)).first().unpartition()
        np.testing.assert_array_equal(await d2h(z), X + X)

    trio.run(main)


def test_an_owned_box_comes_back() -> None:
    box, x = zeros((32, 32)).sync(), h2d(X).sync()
    z, *_ = add(box.partition((4, 4)), x, x).sync()
    assert z.unpartition() is box
    np.testing.assert_array_equal(d2h(box).sync(), X + X)


def test_a_shared_box_is_an_arc_before_and_after() -> None:
    shared, x = Arc(zeros((32, 32)).sync()), Arc(h2d(X).sync())
    z, *_ = add(shared.partition((4, 4)), x, x.clone()).sync()
    again = z.unpartition()
    assert isinstance(again, Arc)
    assert again.value is shared.value
    assert Arc.strong_count(shared) == 3
    np.testing.assert_array_equal(d2h(shared.value).sync(), X + X)
    box = add(shared.partition((4, 4)), x, x).first().unpartition().sync()
    assert box is shared.value
    with pytest.raises(TypeError, match="partition takes an Arc of a box, not one of int"):
        Arc(3).partition(4)
    with pytest.raises(TypeError, match="unpartition takes an Arc of a partition, not one of DeviceBox"):
        shared.unpartition()


def test_a_box_is_changed_in_place() -> None:
    x = h2d(X).sync()
    add(x.partition((4, 4)), x, x).sync()
    np.testing.assert_array_equal(d2h(x).sync(), X + X)


@tile.kernel
def scaled(z: tile.Partition[f64, 1], x: tile.Tensor[f64, 1], c: tile.Constant[tuple]) -> None:
    z.store(tile.load_like(x, z) * (c[0] * c[1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "numbers", [((0.0, 1.0), (-0.0, 1.0)), ((5, 2**62), (5.0, 2**62)), ((True, 1), (1, 1.0))], ids=str
)
def test_constants_that_python_takes_for_equal_are_told_apart(numbers: Any) -> None:
    outcomes = []
    for number in (*numbers, *reversed(numbers)):
        try:
            z, *_ = scaled(zeros(4, np.float64).partition(4), h2d(np.ones(4)), number).sync()
            outcomes.append(d2h(z.box).sync().tobytes())
        except CompileError as error:
            outcomes.append(str(error).split("fit")[-1])
    assert outcomes[0] == outcomes[3]
    assert outcomes[1] == outcomes[2]
    if numbers[0][0] in (0.0, 5):
        assert outcomes[0] != outcomes[1]
