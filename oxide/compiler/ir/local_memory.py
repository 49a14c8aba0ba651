"""The size limit of local arrays, the arrays that belong to one thread.

The front end allocates each array under the name ``local_array.<number>.<bytes>``. Both devices have a CUDA thread's
limit. Past it a GPU's driver refuses the kernel. The CPU device keeps the arrays on its threads' stacks, and past the
limit the process would end.
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
    """Returns the name of an array of ``size`` bytes, which ``check_local_memory`` reads."""
    return f"local_array.{number}.{size}"


@dataclass(slots=True)
class _Function:
    """Bytes of a function's arrays by number, and its callees, an entry for each call."""

    arrays: dict[int, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)


def check_local_memory(
    kernel: Callable[..., Any], modules: tuple[str, ...], symbol: str, places: Mapping[int, SourcePlace]
) -> tuple[str, ...]:
    """Returns the modules with their arrays numbered from 0. Raises ``CompileError`` over the limit, at the largest
    array.

    A device function's arrays count once for each call of it, since each call is inlined with its own arrays."""
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
    """Returns the bytes of the arrays of a function and of its callees. A recursive function counts once."""
    if name not in known and name in functions:
        known[name] = 0
        function = functions[name]
        known[name] = sum(function.arrays.values()) + sum(_bytes_of(each, functions, known) for each in function.calls)
    return known.get(name, 0)
