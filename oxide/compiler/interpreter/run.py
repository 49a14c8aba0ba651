"""Runs a launch of an interpreted kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

from oxide.compiler.primitives.numbers import CONVERT, FLOATS
from oxide.compiler.signature.signature import Closed, Lifted, Parameter, Parts
from oxide.compiler.signature.tuples import Fields
from oxide.compiler.source.source import located_in
from oxide.compiler.source.typings import TypedFunction
from oxide.errors import LaunchError
from oxide.language import narrow
from oxide.language.types import NARROW

from .arrays import Array, DisjointSlice, Memory
from .functions import Refused
from .rewrite import Interpreter, Native
from .threads import Fault, Launch, Triple, run_alone, run_together


@final
@dataclass(frozen=True, slots=True)
class TypedKernel:
    """The front end's results that the interpreter needs for a kernel with certain types."""

    name: str
    function: TypedFunction
    parameters: tuple[Closed, ...]
    fma: bool
    """True if products are fused into sums, as fused multiply-adds."""
    goes_on: bool
    """True if a thread continues after a fault, because other threads may wait for it."""
    suspends: bool
    """True if threads of a block or of a warp synchronise with one another."""
    cooperative: bool
    """True if the blocks of the grid synchronise with one another."""


@final
class InterpretedKernel:
    """A kernel for certain types, rewritten as Python functions."""

    def __init__(self, kernel: TypedKernel, native: Native) -> None:
        """Rewrites the kernel and all functions that it calls. Raises ``LaunchError`` for a construct that cannot be
        interpreted."""
        self._kernel = kernel
        interpreter = Interpreter(kernel.name, fma=kernel.fma, native=native)
        try:
            self._function: Callable[..., Any] = interpreter.function(kernel.function)
        except Refused as refused:
            found = located_in(refused.file, refused.line, f"{refused.what} cannot be interpreted; launch it compiled")
            raise LaunchError(f"kernel {kernel.name}: {found}") from None

    def run(
        self,
        values: Sequence[Any],
        grid: Triple,
        block: Triple,
        shared_bytes: int,
        *,
        limit: int | None = None,
    ) -> Fault | None:
        """Runs a launch to its end. Returns its first fault, or None.

        ``values`` are in the order of the parameters. A scalar's value is a number. The value of a tuple is a sequence
        of its numbers, and the value of a function a sequence of the numbers that it captures. A slice's value is its
        address and the lengths of its axes. ``limit`` bounds the number of accesses to memory: a launch that makes more
        raises ``TooLong``.
        """
        kernel = self._kernel
        launch = Launch(grid, block, shared_bytes, kernel.goes_on)
        launch.accesses = limit
        parameters = kernel.parameters
        arguments = [_argument(parameter, value) for parameter, value in zip(parameters, values, strict=True)]
        function = self._function

        def body() -> None:
            function(*arguments)

        if kernel.suspends or kernel.cooperative:
            run_together(launch, body, cooperative=kernel.cooperative)
        else:
            run_alone(launch, body)
        return launch.fault


def _argument(parameter: Closed, value: Any) -> Any:
    assert isinstance(parameter, Parameter), "numba-cuda's arrays are refused before"
    if isinstance(parameter.lifted, Lifted):
        words = iter(value)
        return tuple(_element(part, words) for part in parameter.lifted.parts)
    if parameter.lifted is not None:
        return _element(parameter, iter(value))
    if parameter.kind == "scalar":
        return _number(parameter, value)
    address, *shape = value
    memory = Memory.at(parameter.structure or parameter.element, address, math.prod(shape))
    if parameter.kind in ("slice", "atomic"):
        return Array(memory, tuple(shape), parameter.name)
    return DisjointSlice(memory, tuple(shape), parameter.name, parameter.tile)


def _number(parameter: Parameter, word: Any) -> Any:
    """Returns the interpreter's number for an argument of a launch. For a narrow float, ``word`` holds its bits."""
    kind = parameter.scalar.name
    if kind in NARROW:
        return narrow.number_of(kind, word)
    return CONVERT[kind](float(word) if kind in FLOATS else int(word))


def _element(parameter: Parameter, words: Iterator[Any]) -> Any:
    """Returns the interpreter's number or tuple for a parameter. Takes its numbers from the iterator ``words``."""
    fields = parameter.lifted
    if isinstance(fields, Fields):
        elements = [_element(element, words) for element in fields.elements]
        return fields.made_of(*elements) if fields.names else tuple(elements)
    if isinstance(fields, Parts):
        return complex(*(_number(part, next(words)) for part in fields.parts))
    return _number(parameter, next(words))
