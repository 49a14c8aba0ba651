"""The size limit of local arrays, the arrays that belong to one thread.

The front end allocates each array under the name ``local_array.<number>.<bytes>``. The limit of a CUDA thread applies
to both devices. A GPU's driver refuses a kernel that exceeds it. The CPU device keeps the arrays on its threads'
stacks, so arrays beyond the limit could crash the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from oxide.compiler.source.source import SourcePlace, column_of, located_in

from .module import Function, Module
from .values import Alloca

LIMIT = 512 * 1024
"""The bytes of local memory that every CUDA device gives a thread."""

_PREFIX = "%local_array."


def array_name(number: int, size: int) -> str:
    """Returns the name of an array of ``size`` bytes. ``place_local_memory`` reads the number and the size from the
    name."""
    return f"{_PREFIX[1:]}{number}.{size}"


def place_local_memory(
    kernel: Callable[..., Any], module: Module, symbol: str, places: Mapping[int, SourcePlace]
) -> None:
    """Numbers the module's local arrays from 0. Raises ``CompileError``, at the largest array, if their total size
    exceeds the limit.

    A device function's arrays count once for each of its calls, because each call is inlined with arrays of its own.
    """
    arrays = {alloca: size for function in module.defined for alloca, size in _arrays(function)}
    total = _bytes_of(symbol, module, {}) if arrays else 0
    if total > LIMIT:
        largest = max(arrays, key=lambda alloca: arrays[alloca])
        file, line, span = places[int(largest.name.split(".")[1])]
        raise located_in(
            file,
            line,
            f"kernel {kernel.__name__}: its LocalArrays take {total} bytes together, and a thread has {LIMIT}; make "
            "them smaller, or give each thread its part of an array that is a parameter",
            column_of(file, span),
        )
    for place, alloca in enumerate(arrays):
        alloca.name = f"{_PREFIX}{place}"


def _arrays(function: Function) -> Iterator[tuple[Alloca, int]]:
    """Yields a function's local arrays, each with its size in bytes."""
    for instruction in function.instructions:
        if isinstance(instruction, Alloca) and instruction.name.startswith(_PREFIX):
            yield instruction, int(instruction.name.split(".")[2])


def _bytes_of(symbol: str, module: Module, known: dict[str, int]) -> int:
    """Returns the bytes that the local arrays of a function and its callees take. A recursive function counts once."""
    if symbol not in known and symbol in module.functions:
        known[symbol] = 0
        function = module.functions[symbol]
        own = sum(size for _, size in _arrays(function))
        known[symbol] = own + sum(_bytes_of(call.called, module, known) for call in function.calls)
    return known.get(symbol, 0)
