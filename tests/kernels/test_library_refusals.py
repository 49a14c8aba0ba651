"""What the kernel library refuses: each time by the name of the function and of the parameter, with what was expected
and what was found; where the boxes are there, when the operation is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oxide_kernels as library
from oxide import ArgumentError, BoundsError, DeviceBox, LaunchError, d2h, h2d, zeros
from oxide_kernels import ops


def box(*shape: int, dtype: Any = np.float32) -> DeviceBox:
    return zeros(shape, dtype).sync()


WRONG_SHAPES: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    (
        "axpy of a short y",
        lambda: library.axpy(1.0, box(3, 4), box(3)),
        LaunchError,
        r"axpy requires len\(x\) == len\(y\), but len\(x\) is 12, len\(y\) is 3",
    ),
    (
        "ops.axpy of a short y",
        lambda: ops.axpy(1.0, box(3, 4), box(3)),
        ValueError,
        r"axpy: y has shape \(3,\), and x \(3, 4\)",
    ),
    (
        "ops.axpy of other axes",
        lambda: ops.axpy(1.0, box(12), box(3, 4)),
        ValueError,
        r"axpy: y has shape \(3, 4\), and x \(12,\)",
    ),
    ("dot", lambda: ops.dot(box(3, 4), box(4, 3)), ValueError, r"dot: b has shape \(4, 3\), and a \(3, 4\)"),
    (
        "silu",
        lambda: library.silu(box(8), box(4)),
        LaunchError,
        r"silu requires .*, but len\(input\) is 8, len\(output\) is 4",
    ),
    ("relu", lambda: library.relu(box(3), box(8)), LaunchError, r"relu .*len\(input\) is 3, len\(output\) is 8"),
    (
        "map_",
        lambda: library.map_(lambda v: v, box(41), box(3)),
        LaunchError,
        r"map_ .*len\(x\) is 41, len\(out\) is 3",
    ),
    (
        "zip_map",
        lambda: library.zip_map(lambda v, w: v + w, box(3), box(4), box(3)),
        LaunchError,
        r"zip_map .*len\(y\) is 4, len\(out\) is 3",
    ),
    (
        "a scan",
        lambda: library.inclusive_scan(box(3), box(5)),
        ValueError,
        r"inclusive_scan: output has shape \(5,\), and input \(3,\)",
    ),
    (
        "another scan",
        lambda: library.exclusive_scan(box(5), box(3)),
        ValueError,
        r"exclusive_scan: output has shape \(3,\), and input \(5,\)",
    ),
    *(
        (
            name,
            lambda name=name: getattr(library, name)(box(5), box(3)),
            ValueError,
            rf"{name}: output has shape \(3,\)",
        )
        for name in ("reduce_sum", "reduce_max", "argmax")
    ),
    (
        "dot into three",
        lambda: library.dot(box(5), box(5), box(3)),
        ValueError,
        r"dot: output has shape \(3,\), 3 elements",
    ),
    ("softmax", lambda: library.softmax(box(3, 4), box(4, 3)), ValueError, r"softmax: output has shape \(4, 3\)"),
    ("ops.softmax", lambda: ops.softmax(box()), ValueError, "softmax: input has no axes"),
    ("ops.rms_norm", lambda: ops.rms_norm(box(3, 4), box(5)), ValueError, "rms_norm: weight has 5 elements"),
    (
        "ops.layer_norm",
        lambda: ops.layer_norm(box(3, 4), box(4), box(3)),
        ValueError,
        "layer_norm: bias has 3 elements, and a row of the input has 4",
    ),
    (
        "gather",
        lambda: library.gather(4, box(3, 4), box(2, dtype=np.int32), box(1, 4)),
        LaunchError,
        r"gather requires len\(output\) == len\(indices\) \* width, but .* is 4, .* is 8",
    ),
]


@pytest.mark.parametrize(("error", "message"), [row[2:] for row in WRONG_SHAPES], ids=[row[0] for row in WRONG_SHAPES])
def test_wrong_shapes_are_refused_when_the_operation_is_built(
    error: type[Exception], message: str, request: pytest.FixtureRequest
) -> None:
    build = next(row[1] for row in WRONG_SHAPES if request.node.callspec.id == row[0])
    with pytest.raises(error, match=message):
        build()


def test_what_operations_yield_is_refused_when_it_is_there() -> None:
    later = zeros((4, 3)).map(lambda found: found)
    with pytest.raises(ValueError, match=r"dot: b has shape \(4, 3\)"):
        ops.dot(zeros((3, 4)), later).sync()
    with pytest.raises(LaunchError, match=r"axpy requires len\(x\) == len\(y\)"):
        library.axpy(1.0, zeros(3).map(lambda found: found), zeros(4)).sync()


def test_a_matrix_is_not_transposed_in_place() -> None:
    x = box(64, 64)
    with pytest.raises(ArgumentError, match=r"transpose: the output .* shares memory with input .*memory of its own"):
        library.transpose(64, 64, x, x)
    with pytest.raises(ArgumentError, match="transpose: the output"):
        library.transpose(8, 8, x.split(64)[0], x.reshape(-1))
    with pytest.raises(ArgumentError, match="transpose: the output"):
        zeros((64, 64)).and_then(lambda made: library.transpose(64, 64, made, made)).sync()
    top, bottom = x.split(32)
    library.transpose(32, 64, top, bottom).sync()  # halves of one allocation are apart


def test_a_product_is_not_made_in_its_factors() -> None:
    a, b = box(40, 40), box(40, 40)
    with pytest.raises(ArgumentError, match=r"sgemm_tiled: the output .* shares memory with a "):
        library.sgemm_tiled(40, 40, 40, 1.0, a, b, 0.0, a)
    with pytest.raises(ArgumentError, match=r"sgemm_tiled: the output .* shares memory with b "):
        library.sgemm_tiled(40, 40, 40, 1.0, a, b, 0.0, b)
    with pytest.raises(ArgumentError, match=r"matvec: the output .* shares memory with vector "):
        library.matvec(40, 40, a, b, b)


def test_rows_and_scans_are_made_in_place_or_apart_and_not_halfway() -> None:
    whole, weight, longer = box(12), box(4), box(16)
    first, second = whole.split(8)[0], whole.split(4)[1].reshape(1, 4)
    library.softmax(first, first).sync()
    library.inclusive_scan(first, first).sync()
    library.rms_norm(second, weight, second).sync()
    with pytest.raises(ArgumentError, match=r"rms_norm: the output .* shares memory with weight"):
        library.rms_norm(second, weight, weight.reshape(1, 4))
    with pytest.raises(ArgumentError, match=r"inclusive_scan: .*only all of input may be the output too"):
        library.inclusive_scan(longer.split(6)[1], longer.split(10)[1])


@pytest.mark.parametrize("size", ["a", 2.5, None, -1, True])
def test_sizes_are_whole_numbers(size: Any) -> None:
    x, y = box(4, 4), box(4, 4)
    with pytest.raises(ArgumentError, match=r"sgemm_tiled: k is .*; give an integer of at least 0"):
        library.sgemm_tiled(4, 4, size, 1.0, x, x, 0.0, y)
    with pytest.raises(ArgumentError, match="transpose: rows is "):
        library.transpose(size, 4, x, y)
    with pytest.raises(ArgumentError, match="matvec: m is "):
        library.matvec(size, 4, x, box(4), y)
    with pytest.raises(ArgumentError, match="histogram: bins is "):
        ops.histogram(box(4, dtype=np.uint32), size)


NAMES = {
    "reduce_sum": lambda x: ops.reduce_sum(x),
    "reduce_max": lambda x: ops.reduce_max(x),
    "argmax": lambda x: ops.argmax(x),
    "dot": lambda x: ops.dot(x, x),
    "inclusive_scan": lambda x: ops.inclusive_scan(x),
    "exclusive_scan": lambda x: ops.exclusive_scan(x),
    "histogram": lambda x: ops.histogram(x, 5),
    "softmax": lambda x: ops.softmax(x),
    "matvec": lambda x: ops.matvec(x.reshape(1, 3), x),
    "transpose": lambda x: library.transpose(1, 3, x, zeros((3, 1), np.uint32)),
}


@pytest.mark.parametrize("name", NAMES)
def test_wrong_dtypes_are_refused_by_the_name_of_the_function(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"kernel {name}[:,]"):
        NAMES[name](box(3, dtype=np.int16 if name != "transpose" else np.float32)).sync()


@pytest.mark.parametrize("bins", [0, 3, 5000])
def test_a_value_without_a_bin_is_told_of_histogram(bins: int) -> None:
    with pytest.raises(BoundsError, match="histogram"):
        ops.histogram(h2d(np.array([bins + 1], np.uint32)), bins).sync()


def test_counts_go_on_and_those_of_ops_begin_at_0() -> None:
    values, counts = h2d(np.array([0, 1, 1], np.uint32)).sync(), box(2, dtype=np.uint32)
    for turn in (1, 2):
        assert d2h(library.histogram(values, counts).last()).sync().tolist() == [turn, 2 * turn]
        assert d2h(ops.histogram(values, 2)).sync().tolist() == [1, 2]
