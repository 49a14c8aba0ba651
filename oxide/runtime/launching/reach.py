"""Computes how much of an output the threads of a launch reach, and which launch would reach all of it.

With ``index_1d`` only the number of threads counts. With ``index_2d`` and ``index_3d`` each axis counts: the threads
along x reach columns, those along y reach rows, and those along z planes. So 2 × 1 blocks of 16 × 16 threads leave out
rows of a 30 × 10 matrix, although they have more threads than the matrix has elements. This is computed only for an
output with more elements than ``Plan.fit`` is sure of, and not again while the shape stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oxide.compiler.signature.signature import NumbaParameter
from oxide.driver.base import Dim3
from oxide.runtime.launching.binding import words_for
from oxide.runtime.launching.launch_config import threads_of
from oxide.runtime.memory.memory import Arc, DeviceBox
from oxide.runtime.operations.operation import BoxSpec, DeviceOperation

if TYPE_CHECKING:
    from oxide.runtime.launching.binding import ParameterSlot, Plan


def shape_of(argument: object) -> tuple[int, ...] | None:
    """Returns the shape of a box, or of the box that an operation announces; None for anything else."""
    plain = argument.value if isinstance(argument, Arc) else argument
    return plain.shape if isinstance(plain, (DeviceBox, BoxSpec)) else None


def width_of(plan: Plan, arguments: Sequence[object]) -> int | None:
    """Returns the width that a launch's ``index_2d`` is called with; None if it is not known yet. ``arguments`` are the
    launch's arguments, or specs in place of boxes."""
    width = plan.needs.width
    if not isinstance(width, str):
        return width
    for parameter, argument in zip(plan.special.parameters, arguments, strict=True):
        if isinstance(parameter, NumbaParameter) or isinstance(argument, DeviceOperation):
            continue
        shape = shape_of(argument)
        if shape is not None:
            axes: tuple[int, ...] = parameter.elements(shape)
            if width in parameter.lengths:
                return axes[parameter.lengths.index(width)] if parameter.ndim > 1 else math.prod(axes)
        elif parameter.lifted is not None:
            names = [part.name for part in parameter.lifted.parts]
            if width in names:
                return int(words_for(parameter, argument)[names.index(width)])
        elif parameter.kind == "scalar" and parameter.name == width:
            return int(words_for(parameter, argument)[0])
    return None


def reach(plan: Plan, slot: ParameterSlot, shape: tuple[int, ...], width: int | None) -> tuple[int, str]:
    """Returns the number of elements of an output that the threads of the plan's ``fitting`` configuration reach, and
    the configuration, as text, that reaches all elements; "" if no such configuration is known."""
    config = plan.fitting
    assert config is not None
    size, tile = math.prod(shape), slot.parameter.tile
    threads = threads_of(config)
    block = config.block
    by_places = len(shape) == slot.ndim in (2, 3) and len(tile) != 1
    if plan.axes == 1 or (width is None and not by_places):
        own = "" if plan.axes > 1 else f"LaunchConfig.for_num_elems({-(-size // slot.tile)}, {block[0]})"
        return min(size, math.prod(threads) * slot.tile), own
    if by_places:
        sides = tile or (1,) * len(shape)
        along = threads[: len(shape)][::-1]
        found = math.prod(min(length, most * side) for length, most, side in zip(shape, along, sides, strict=True))
        return found, _for_shape(tuple(-(-length // side) for length, side in zip(shape, sides, strict=True)), block)
    assert width is not None
    if width <= 0:
        return 0, ""
    x, y, _ = threads
    if len(tile) == 2:
        rows, columns = size // width, width
        found = min(rows, y * tile[0]) * min(columns, x * tile[1])
        wanted = -(-rows // tile[0]), -(-columns // tile[1])
    else:
        each = slot.tile
        total = -(-size // each)
        across = min(x, width)
        whole = min(y, total // width)
        rest = min(total - whole * width, across) if whole < y else 0
        found = min(size, (whole * across + rest) * each)
        wanted = -(-total // width), width
    return found, _for_shape(wanted, block)


def _for_shape(wanted: tuple[int, ...], block: Dim3) -> str:
    """Returns the configuration of so many threads along each axis, as it is written."""
    shown = f"{wanted}" if block[1] == block[2] == 1 else f"{wanted}, {block[: len(wanted)]}"
    return f"LaunchConfig.for_shape({shown})"
