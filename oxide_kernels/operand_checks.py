"""Checks of operands that several functions of the library share, before anything is submitted.

A kernel sees only addresses and lengths. So the function that launches it checks the shapes, and that no box is both
read and written. Its errors name the function and its parameters.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar

from oxide import ArgumentError, DeviceBox

F = TypeVar("F", bound=Callable[..., Any])


def called(name: str) -> Callable[[F], F]:
    """Names a kernel, as a decorator under ``@kernel``. Errors and profilers then use ``name``, the name of the
    function that launches the kernel."""

    def named(function: F) -> F:
        function.__name__ = name
        return function

    return named


def require_same_shape(function: str, **boxes: DeviceBox) -> None:
    """Raises ``ValueError`` unless all boxes have the shape of the first."""
    (first, box), *others = boxes.items()
    for name, other in others:
        if other.shape != box.shape:
            raise ValueError(f"{function}: {name} has shape {other.shape}, and {first} {box.shape}; both need the same")


def require_one_element(function: str, output: DeviceBox) -> None:
    """Raises ``ValueError`` unless the output has exactly one element."""
    if output.size != 1:
        raise ValueError(
            f"{function}: output has shape {output.shape}, {output.size} elements; the result is one number, so it "
            "needs the shape () or (1,)"
        )


def require_integers(function: str, **numbers: Any) -> None:
    """Raises ``ArgumentError`` for a size that is not an integer or is less than 0."""
    for name, number in numbers.items():
        try:
            valid = operator.index(number) >= 0 and not isinstance(number, bool)
        except TypeError:
            valid = False
        if not valid:
            raise ArgumentError(
                f"{function}: {name} is {type(number).__name__} {number!r:.80}; give an integer of at least 0"
            )


def require_apart(function: str, output: DeviceBox, in_place: str | None = None, **inputs: DeviceBox) -> None:
    """Raises ``ArgumentError`` if the output shares memory with an input: a thread would read elements that another
    thread has written. ``in_place`` names an input that may have exactly the output's memory. Use ``in_place`` for
    kernels in which each thread writes only elements that it has read, or that its block has read before a barrier."""
    for name, box in inputs.items():
        apart = output.ptr + output.nbytes <= box.ptr or box.ptr + box.nbytes <= output.ptr
        if apart or not box.nbytes or not output.nbytes:
            continue
        if name == in_place and (box.ptr, box.nbytes) == (output.ptr, output.nbytes):
            continue
        partly = f"; only all of {name} may be the output too" if name == in_place else ""
        raise ArgumentError(
            f"{function}: the output (bytes {output.ptr:#x} to {output.ptr + output.nbytes:#x}) shares memory with "
            f"{name} (bytes {box.ptr:#x} to {box.ptr + box.nbytes:#x}), which is read while it is written{partly}; "
            "give the output memory of its own"
        )
