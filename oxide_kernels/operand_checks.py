"""Checks of operands that several functions of the library share, before anything is submitted.

A kernel sees only addresses and lengths. So the function that launches the kernel checks the shapes, and that the
kernel does not write memory that it also reads. The error messages name this function and its parameters.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar

from oxide import ArgumentError, DeviceBox

F = TypeVar("F", bound=Callable[..., Any])


def called(name: str) -> Callable[[F], F]:
    """Returns a decorator, for use under ``@kernel``, that gives a kernel the name ``name``. Errors and profilers then
    show the name of the library's function that launches the kernel."""

    def named(function: F) -> F:
        function.__name__ = name
        return function

    return named


def require_same_shape(function: str, **boxes: DeviceBox) -> None:
    """Raises ``ValueError`` unless all boxes have the same shape."""
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
    """Raises ``ArgumentError`` for a number that is not an integer of at least 0."""
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
    """Raises ``ArgumentError`` if the output shares memory with an input: a thread could then read elements that
    another thread has already overwritten. ``in_place`` names an input that may be exactly the output's memory. This is
    safe for a kernel in which only one thread reads an element and then writes it, or in which a block reads its
    elements before a barrier and writes them after it."""
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
