"""The interpreter's implementations of the kernel language's functions, and of Python's functions in kernels.

A ``Maker`` takes a typed call and a key for the call's place. It returns the function that implements the call, or None
if the interpreter cannot run it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from string import Formatter
from typing import Any, TypeAlias, final

from oxide.compiler.check.conveniences import FORMAT
from oxide.compiler.primitives import scalars, threads, warps
from oxide.compiler.primitives.numbers import CONVERT, FLOATS, INTEGERS, ROUND, WRAP, binary, widened
from oxide.compiler.primitives.table import Primitive
from oxide.compiler.source.faults import FaultSite
from oxide.compiler.source.typings import TypedCall
from oxide.language import atomic, debug, thread, views, warp
from oxide.language.shared import DynamicSharedArray, LocalArray, SharedArray
from oxide.language.types import SCALARS
from oxide.language.unroll import unroll

from . import tensor
from .arrays import ThreadIndex, declared_array, dynamic_array, zip_exact
from .tensor import nothing, simple
from .threads import Leave, Meeting, current, here

Key: TypeAlias = tuple[int, int]
Maker: TypeAlias = Callable[[TypedCall, Key], Callable[..., Any] | None]


class Refused(Exception):
    """Raised for a construct that the interpreter cannot run. Holds a description of the construct, and its file and
    line."""

    def __init__(self, what: str, file: str, line: int) -> None:
        super().__init__(what)
        self.what, self.file, self.line = what, file, line


def helper_for(callee: Any, call: TypedCall, key: Key) -> Callable[..., Any] | None:
    """Returns the function that implements a call in the interpreter, or None if the interpreter has no such function.
    ``key`` identifies the call's place: the id of the function and the number of the call's node."""
    try:
        maker = _MAKERS.get(callee)
    except TypeError:  # an object that cannot be hashed
        return None
    return None if maker is None else maker(call, key)


# Statements


def fail(message: str) -> None:
    """Ends the thread at a failed assertion."""
    current().fail(message)


def is_none(value: Any) -> bool:
    """Returns whether a reference, a view, a tile or a thread index is None."""
    return value is None or bool(getattr(value, "is_none", False))


def print_line(*items: Any) -> None:
    """Prints a line as a compiled kernel does. A float without a format specification is printed as ``%f``."""
    if items and isinstance(items[0], str) and items[0].startswith(FORMAT):
        text, values = "", iter(items[1:])
        for literal, _, spec, _ in Formatter().parse(items[0].removeprefix(FORMAT)):
            text += literal
            if spec is not None:
                text += _formatted(next(values), spec)
    else:
        text = " ".join(_formatted(item, "") for item in items)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _formatted(value: Any, spec: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return f"({', '.join(_formatted(each, '') for each in value)}{',' * (len(value) == 1)})"
    if isinstance(value, complex):
        return f"({value.real:f}{value.imag:+f}j)"
    if not spec:
        return f"{value:f}" if isinstance(value, float) else str(value)
    letter = spec[-1] if spec[-1].isalpha() else ""
    if letter in ("e", "E", "f", "F", "g", "G"):
        value = float(value)
    elif isinstance(value, float):
        letter, spec = "f", spec + "f"
    else:
        value, letter, spec = int(value), letter or "d", spec if letter else spec + "d"
    left = spec.startswith("<")
    flags = ("-" if left else "") + spec.lstrip("<>")
    return str(f"%{flags}" % value)


# Coordinates


@final
class Coordinates:
    """``thread_idx``, ``block_idx``, ``block_dim`` or ``grid_dim`` of the running thread."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _of(self, axis: int) -> int:
        running = current()
        values = {
            "thread_idx": running.thread_idx,
            "block_idx": running.block_idx,
            "block_dim": running.launch.block,
            "grid_dim": running.launch.grid,
        }
        return values[self._name][axis]

    x = property(lambda self: self._of(0))
    y = property(lambda self: self._of(1))
    z = property(lambda self: self._of(2))

    def __repr__(self) -> str:
        return f"<{self._name} ({self.x}, {self.y}, {self.z})>"


def _index_2d(width: int | None = None) -> ThreadIndex:
    running = current()
    if width is None:
        return ThreadIndex(0, axes=2)
    width = WRAP["i64"](width)
    row, col = running.place(1), running.place(0)
    inside = 0 <= col < width < 2**36 and row < 2**26
    return ThreadIndex(row * width + col if inside else -1, width, axes=2)


# Functions of the table of primitives


def _of_table(entry: Primitive) -> Maker:
    """Returns the maker of a function that the table of primitives has."""

    def maker(call: TypedCall, key: Key) -> Callable[..., Any] | None:
        made = None if entry.interpreted is None else entry.interpreted(call.signature)
        return None if made is None else _converted(call, made)

    return maker


def _meeting(entry: Primitive, combined: Callable[[str, dict[int, Any]], Any]) -> Maker:
    """Returns the maker of a function at which threads meet. It takes values and, in a warp, an optional mask."""
    values = entry.least

    def maker(call: TypedCall, key: Key) -> Callable[..., Any]:
        kinds = call.signature.arguments
        kind = kinds[0] if kinds else ""
        converts = [CONVERT[kind] for kind in kinds[:values]]

        def meet(*args: Any, **named: Any) -> Any:
            given = [*args, *named.values()]
            brought = [to(value) for to, value in zip(converts, given, strict=False)]
            mask = given[values] & warp.FULL_MASK if len(given) > values else warp.FULL_MASK
            value = brought[0] if values == 1 else tuple(brought)
            site = FaultSite(entry.place, *here())
            return current().meet(Meeting(entry.meeting, site, value, lambda each: combined(kind, each), mask))

        return meet

    return maker


# Python's functions


def _converted(call: TypedCall, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``function`` with its arguments converted to the types of the call's signature."""
    converts = [CONVERT.get(kind) for kind in call.signature.arguments]

    def called(*args: Any) -> Any:
        return function(
            *(arg if to is None else to(arg) for arg, to in zip(args, converts, strict=False)), *args[len(converts) :]
        )

    return called


def _to_result(call: TypedCall, key: Key) -> Callable[..., Any] | None:
    return CONVERT.get(call.signature.result)


def _extreme(function: Callable[..., Any]) -> Maker:
    def maker(call: TypedCall, key: Key) -> Callable[..., Any] | None:
        kinds = call.signature.arguments
        if len(kinds) < 2 or not call.signature.result or not all(kinds):
            return None
        converts = [widened(kind) for kind in kinds]
        return lambda *args: function(*(to(arg) for to, arg in zip(converts, args, strict=True)))

    return maker


def _range(call: TypedCall, key: Key) -> Callable[..., Any]:
    def made(*bounds: int) -> range:
        if len(bounds) == 3 and bounds[2] == 0:
            raise Leave
        return range(*bounds)

    return _converted(call, made)


def _divmod(call: TypedCall, key: Key) -> Callable[..., Any] | None:
    kinds = set(call.signature.arguments)
    if len(kinds) != 1 or not (kinds <= {*INTEGERS, *FLOATS}):
        return None
    (kind,) = kinds
    if kind in FLOATS:
        quotient, remainder = binary("FloorDiv", kind, kind, kind), binary("Mod", kind, kind, kind)
        assert quotient is not None
        assert remainder is not None
        return _converted(call, lambda a, b: (quotient(a, b), remainder(a, b)))
    wrapped = WRAP[kind]
    return _converted(call, lambda a, b: (wrapped(a // b), a % b) if b else (0, 0))


def _abs(call: TypedCall, key: Key) -> Callable[..., Any] | None:
    kind = call.signature.result
    if kind in INTEGERS:
        wrapped = WRAP[kind]
        return _converted(call, lambda a: wrapped(abs(a)))
    return _converted(call, abs) if kind in FLOATS and kind == call.signature.arguments[0] else None


def _square_root(call: TypedCall, key: Key) -> Callable[..., Any] | None:
    kind = call.signature.result
    if kind not in FLOATS:
        return None
    rounded = ROUND[kind]
    return _converted(call, lambda a: rounded(math.sqrt(a) if a >= 0.0 else a if a == 0.0 else math.nan))


def _shared(call: TypedCall, key: Key) -> Callable[..., Any] | None:
    made = call.made
    return None if made is None else lambda *args, **named: declared_array(current().shared, key, made)


def _local(call: TypedCall, key: Key) -> Callable[..., Any] | None:
    made = call.made
    if made is None:
        return None
    # Each call of the function that declares the array has its own array. The key keeps the call's frame alive, so that
    # no later frame equals it.
    return lambda *args, **named: declared_array(current().local, (sys._getframe(1), *key), made)


def _dynamic(call: TypedCall, key: Key) -> Callable[..., Any] | None:
    made = call.made
    return None if made is None else lambda *args, **named: dynamic_array(current(), made)


def _type(call: TypedCall, key: Key) -> Callable[..., Any] | None:
    kind = SCALARS.get(call.signature.arguments[0])
    return None if kind is None else lambda value: kind


_MAKERS: dict[Any, Maker] = {
    **{
        entry.function: _of_table(entry) if entry.combined is None else _meeting(entry, entry.combined)
        for entry in (*scalars.ENTRIES, *warps.ENTRIES, *threads.ENTRIES)
    },
    len: simple(len),
    type: _type,
    range: _range,
    unroll: simple(lambda numbers: numbers),
    min: _extreme(min),
    max: _extreme(max),
    abs: _abs,
    divmod: _divmod,
    int: _to_result,
    float: _to_result,
    bool: _to_result,
    math.sqrt: _square_root,
    math.fabs: _abs,
    thread.index_1d: simple(lambda: ThreadIndex(current().place(0))),
    thread.index_2d: simple(_index_2d),
    thread.index_3d: simple(lambda: ThreadIndex(0, axes=3)),
    thread.index_2d_row: simple(lambda: current().place(1)),
    thread.index_2d_col: simple(lambda: current().place(0)),
    warp.lane_id: simple(lambda: current().number % warp.SIZE),
    warp.warp_id: simple(lambda: current().number // warp.SIZE),
    warp.active_mask: simple(lambda: 1 << current().number % warp.SIZE),
    atomic.fence: simple(nothing),
    debug.clock64: simple(time.perf_counter_ns),
    debug.trap: simple(lambda: fail("debug.trap() was reached")),
    SharedArray: _shared,
    LocalArray: _local,
    DynamicSharedArray: _dynamic,
    views.zip_exact: simple(zip_exact),
    **tensor.MAKERS,
}
