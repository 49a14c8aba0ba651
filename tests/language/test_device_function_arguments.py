"""``@device`` functions that are passed to kernels: their own annotations belong to their code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oxide import DisjointSlice, Slice, d2h, device, f32, f64, h2d, kernel, thread, zeros


@kernel(block=32)
def apply(function: Callable[[f64], f64], x: Slice[f64], y: DisjointSlice[f64]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = function(x[index.get()])


def square(kind: Any) -> Any:
    """Returns a device function; those of two types have the same code."""

    @device
    def squared(x: kind) -> kind:  # type: ignore[valid-type]
        return x * x  # type: ignore[operator]

    return squared


@pytest.mark.parametrize("kinds", [(f32, f64), (f64, f32)], ids=str)
def test_functions_of_one_code_with_other_annotations_are_other_functions(kinds: tuple[Any, Any]) -> None:
    x = np.random.default_rng().standard_normal(100)
    for kind in kinds:
        *_, y = apply(square(kind), h2d(x), zeros(100, np.float64)).sync()
        rounded = x.astype(kind.dtype)
        np.testing.assert_array_equal(d2h(y).sync(), (rounded * rounded).astype(np.float64))


@device
def power(x):  # type: ignore[no-untyped-def]
    return (M * M * M * M * M * M * M * M * M * M * M * M * M * M * M * M * M * M * M * M * M) * x


M: Any = 10


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [(10, 10.0), (10.0, 10), (0.0, -0.0), (1, True, 1.0)], ids=str)
def test_a_number_of_the_module_has_its_type_and_sign(numbers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that are equal to Python may give other code: 10**21 wraps as an integer."""
    found = []
    for number in numbers:
        monkeypatch.setitem(globals(), "M", number)
        found.append(d2h(apply(power, h2d(np.ones(1)), zeros(1, np.float64)).sync()[2]).sync()[0])
    for number, each in zip(numbers, found, strict=True):
        wrapped = np.array(int(number) ** 21 % 2**64, np.uint64).view(np.int64) if type(number) is int else number**21
        assert each == float(wrapped)
        assert np.signbit(each) == np.signbit(float(wrapped))
