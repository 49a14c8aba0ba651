"""The geometry of boxes: the bytes that a shape and strides cover, the result of an index, and division into tiles.

Strides are in bytes, one for each axis, and may be negative. Offsets count from the first element, whose indices are
all 0. With a negative stride, other elements lie below the first element in memory.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, SupportsIndex

from oxide.host.messages import written

Geometry = tuple[tuple[int, ...], tuple[int, ...], int]
"""A shape, its strides, and the offset in bytes of its first element from the first element of the indexed array."""


def contiguous_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Returns the strides of an array in C order."""
    strides: list[int] = []
    step = itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def is_contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Returns whether the elements are contiguous in C order. The stride of an axis of length one is ignored."""
    if 0 in shape:
        return True
    expected = itemsize
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def span(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Returns where the bytes that the elements cover begin and end, relative to the first element."""
    if 0 in shape:
        return 0, 0
    reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    return sum(way for way in reach if way < 0), sum(way for way in reach if way > 0) + itemsize


def may_share_elements(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Returns whether two indices may address common bytes. Returns False if each axis steps over all bytes that the
    axes of smaller strides cover.

    The result is False for every slice of a contiguous array. It is True for sliding windows and broadcast axes, and
    for a few odd layouts that do not share bytes.
    """
    reached = itemsize
    axes = sorted((abs(stride), size) for size, stride in zip(shape, strides, strict=True) if size > 1)
    for stride, size in axes:
        if stride < reached:
            return 0 not in shape
        reached += stride * (size - 1)
    return False


def indexed(shape: tuple[int, ...], strides: tuple[int, ...], key: Any) -> Geometry:
    """Returns the geometry of ``array[key]``, for integers, slices and one ``...``.

    Raises ``IndexError`` for an index outside its axis, for more indices than axes and for a second ``...``,
    ``ValueError`` for a slice of step 0, ``TypeError`` for any other key.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    dots = [place for place, part in enumerate(parts) if isinstance(part, EllipsisType)]
    if len(dots) > 1:
        raise IndexError("a box is indexed with one ... at most")
    given = len(parts) - len(dots)
    if given > len(shape):
        raise IndexError(f"a box of shape {shape} has {len(shape)} axes, and {given} indices were given")
    place = dots[0] if dots else len(parts)
    parts[place : place + len(dots)] = [slice(None)] * (len(shape) - given)
    sizes: list[int] = []
    steps: list[int] = []
    offset = 0
    for axis, (part, size, stride) in enumerate(zip(parts, shape, strides, strict=True)):
        if isinstance(part, slice):
            first, last, step = _slice(part).indices(size)
            length = len(range(first, last, step))
            offset += first * stride if length else 0
            sizes.append(length)
            move = step * stride
            steps.append(move if abs(move) < 2**63 else 0)  # too large for the stride of one element: 0, as in NumPy
            continue
        index = _integer(part)
        if not -size <= index < size:
            raise IndexError(f"index {written(index)} is outside axis {axis} of a box of shape {shape}")
        offset += (index + size if index < 0 else index) * stride
    return tuple(sizes), tuple(steps), 0 if 0 in sizes else offset


def _slice(part: slice) -> slice:
    ends = [None if end is None else _integer(end) for end in (part.start, part.stop, part.step)]
    if ends[2] == 0:
        raise ValueError("the step of a slice is 0; give another, or none")
    return slice(*ends)


def _integer(part: object) -> int:
    try:
        if not isinstance(part, bool):
            return operator.index(part)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise TypeError(
        f"a box is indexed with integers, slices and ..., not with {type(part).__name__} {written(part):.80}; what "
        "picks elements by an array or a mask is a kernel's work, or NumPy's on the host, after d2h"
    )


def grid_of(shape: tuple[int, ...], tile_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the number of tiles along each axis."""
    return tuple([-(-length // size) for length, size in zip(shape, tile_shape, strict=True)])


def parse_tile_shape(given: Any, shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """Returns the shape of a tile, given as an int or a tuple. ``shape`` is the box's shape, or None if it is not
    known. Raises ``TypeError`` for a shape that is not of integers, and ``ValueError`` for a length below 1 or for
    another number of axes than the box has."""
    sizes: tuple[SupportsIndex, ...] = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    try:
        for each in sizes:
            if isinstance(each, bool):
                raise TypeError
        found = tuple([operator.index(each) for each in sizes])
    except TypeError:
        raise TypeError(f"partition: the shape of a tile is ints or a tuple of ints, not {written(given)}") from None
    if not found or min(found) < 1:
        raise ValueError(f"partition: {written(found)} is no shape of a tile; its lengths are 1 or more")
    if shape is not None and len(found) != len(shape):
        raise ValueError(f"partition: a box of shape {shape} has tiles of {len(shape)} axes, not of shape {found}")
    return found
