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
