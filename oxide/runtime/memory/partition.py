"""The shapes of tiles that a box is divided into."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

from oxide.host.messages import written


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
