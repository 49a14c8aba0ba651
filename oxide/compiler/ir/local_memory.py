"""The arrays that belong to one thread: how many bytes of them a kernel has, and what a thread has room for.

The front end names each ``local_array.<number>.<bytes>`` where it makes room for it. A thread's room is that of a CUDA
thread, on both devices: past it a GPU's driver refuses the kernel, and on the CPU device, whose threads keep the arrays
on their stacks, the process would end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from oxide.compiler.source.source import SourcePlace, column_of, located_in

LIMIT = 512 * 1024
"""Bytes of local memory that every CUDA device gives a thread."""

_ARRAY = re.compile(r'%"local_array\.(\d+)\.(\d+)"')
_MADE = re.compile(rf"\s*{_ARRAY.pattern} = alloca ")
_DEFINED = re.compile(r'define [^@]*@"([^"]+)"\(')
_CALLED = re.compile(r'\bcall [^@"]*@"([^"]+)"\(')


def array_name(number: int, size: int) -> str:
    """What the front end calls an array of so many bytes, for ``check_local_memory``."""
    return f"local_array.{number}.{size}"


@dataclass(slots=True)
class _Function:
    """What a function makes room for, by number, and the functions that it calls, one for each call."""

    arrays: dict[int, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)


def check_local_memory(
    kernel: Callable[..., Any], modules: tuple[str, ...], symbol: str, places: Mapping[int, SourcePlace]
) -> tuple[str, ...]:
    """The modules with their arrays numbered from 0. Raises ``CompileError`` over the limit, at the largest array.

    A device function's arrays count for each call of it, as each is inlined and has its own."""
    if not any("local_array." in text for text in modules):
        return modules
    functions = _functions(modules)
    total = _bytes_of(symbol, functions, {})
    if total > LIMIT:
        arrays = {number: size for each in functions.values() for number, size in each.arrays.items()}
        file, line, span = places[max(arrays, key=lambda number: arrays[number])]
        raise located_in(
            file,
            line,
            f"kernel {kernel.__name__}: its LocalArrays take {total} bytes together, and a thread has {LIMIT}; make "
            "them smaller, or give each thread its part of an array that is a parameter",
            column_of(file, span),
        )
    numbers: dict[str, int] = {}
    return tuple(
        _ARRAY.sub(lambda match: f'%"local_array.{numbers.setdefault(match[1], len(numbers))}"', text)
        for text in modules
    )


def _functions(modules: tuple[str, ...]) -> dict[str, _Function]:
    found: dict[str, _Function] = {}
    inside = _Function()
    for text in modules:
        for line in text.split("\n"):
            if match := _DEFINED.match(line):
                inside = found[match[1]] = _Function()
            elif match := _MADE.match(line):
                inside.arrays[int(match[1])] = int(match[2])
            elif match := _CALLED.search(line):
                inside.calls.append(match[1])
    return found


def _bytes_of(name: str, functions: Mapping[str, _Function], known: dict[str, int]) -> int:
    """Bytes of a function's arrays and of those of what it calls. A function that calls itself counts once."""
    if name not in known and name in functions:
        known[name] = 0
        function = functions[name]
        known[name] = sum(function.arrays.values()) + sum(_bytes_of(each, functions, known) for each in function.calls)
    return known.get(name, 0)
