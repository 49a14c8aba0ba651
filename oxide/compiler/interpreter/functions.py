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

from oxide.compiler.check.print_formats import FORMAT
from oxide.compiler.source.faults import FaultSite
from oxide.compiler.source.typings import TypedCall
from oxide.language import atomic, debug, intrinsics, thread, views, warp
from oxide.language.shared import DynamicSharedArray, LocalArray, SharedArray
from oxide.language.types import SCALARS
from oxide.language.unroll import unroll

from . import tensor
from .arrays import ThreadIndex, declared_array, dynamic_array, greatest, least
from .numbers import CONVERT, FLOATS, GREATEST, INTEGERS, LEAST, ROUND, WRAP, binary, bits_of, fused
from .tensor import nothing, simple
from .threads import Leave, Meeting, current, here
from .views import MatrixView, zip_exact

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


def _index_2d(width: int) -> ThreadIndex:
    running = current()
    width = WRAP["i64"](width)
    row, col = running.place(1), running.place(0)
    inside = 0 <= col < width < 2**36 and row < 2**26
    return ThreadIndex(row * width + col if inside else -1, width)


# Barriers and warp operations


def _barrier(name: str, combine: Callable[[dict[int, Any]], Any], kind: str = "block") -> Maker:
    def meet(condition: Any = None) -> Any:
        return current().meet(Meeting(kind, FaultSite(f"{name}()", *here()), bool(condition), combine))

    return simple(meet)


def _all_of(result: Callable[[dict[int, Any]], Any]) -> Callable[[dict[int, Any]], dict[int, Any]]:
    """Returns a function that computes one result from the values of all lanes, and gives this result to each lane."""

    def combine(brought: dict[int, Any]) -> dict[int, Any]:
        return dict.fromkeys(brought, result(brought))

    return combine


def _of_lanes(name: str, made: Callable[[str], Callable[[dict[int, Any]], dict[int, Any]]], values: int = 1) -> Maker:
    """Returns the maker of a warp operation that takes ``values`` values and, after them, an optional mask.

    ``made`` takes the type of the first value. It returns a function that maps the values of the lanes to the results
    of the lanes.
    """

    def maker(call: TypedCall, key: Key) -> Callable[..., Any]:
        kinds = call.signature.arguments
        combine = made(kinds[0] if kinds else "")
        converts = [CONVERT[kind] for kind in kinds[:values]]

        def meet(*args: Any, **named: Any) -> Any:
            given = [*args, *named.values()]
            brought = [to(value) for to, value in zip(converts, given, strict=False)]
            mask = given[values] & warp.FULL_MASK if len(given) > values else warp.FULL_MASK
            site = FaultSite(f"warp.{name}()", *here())
            value = brought[0] if values == 1 else tuple(brought)
            return current().meet(Meeting("warp", site, value, combine, mask))

        return meet

    return maker


def _shuffle(source: Callable[[int, int], int]) -> Callable[[str], Callable[[dict[int, Any]], dict[int, Any]]]:
    def made(kind: str) -> Callable[[dict[int, Any]], dict[int, Any]]:
        def combine(brought: dict[int, Any]) -> dict[int, Any]:
            return {lane: brought.get(source(lane, by), brought[lane])[0] for lane, (_, by) in brought.items()}

        return combine

    return made


def _up(lane: int, by: int) -> int:
    return lane - by if 0 <= by <= lane else lane


def _down(lane: int, by: int) -> int:
    return lane + by if by >= 0 and lane + by < warp.SIZE else lane


def _mask_of(lanes: Any) -> int:
    return sum(1 << lane for lane in lanes)


def _match_any(kind: str) -> Callable[[dict[int, Any]], dict[int, Any]]:
    def combine(brought: dict[int, Any]) -> dict[int, Any]:
        bits = {lane: bits_of(kind, value) for lane, value in brought.items()}
        return {lane: _mask_of(other for other in bits if bits[other] == own) for lane, own in bits.items()}

    return combine


def _elect(kind: str) -> Callable[[dict[int, Any]], dict[int, Any]]:
    return lambda brought: {lane: lane == min(brought) for lane in brought}


def _match_all(kind: str) -> Callable[[dict[int, Any]], dict[int, Any]]:
    return _all_of(
        lambda brought: _mask_of(brought) if len({bits_of(kind, value) for value in brought.values()}) == 1 else 0
    )


def _reduction(operation: Callable[[Any, Any], Any]) -> Callable[[str], Callable[[dict[int, Any]], dict[int, Any]]]:
    """Returns a function that maps a type to the warp reduction of that type. The reduction combines the values in the
    order of the lanes, from the lowest, as the CPU device does."""

    def made(kind: str) -> Callable[[dict[int, Any]], dict[int, Any]]:
        rounded = ROUND[kind] if kind in FLOATS else WRAP[kind]

        def result(brought: dict[int, Any]) -> Any:
            first, *others = [brought[lane] for lane in sorted(brought)]
            for each in others:
                first = rounded(operation(first, each))
            return first

        return _all_of(result)

    return made


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
        to = CONVERT[call.signature.result]
        return _converted(call, lambda *args: to(function(*args)))

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


def _fma(call: TypedCall, key: Key) -> Callable[..., Any] | None:
    kind = call.signature.result
    return _converted(call, lambda a, b, c: fused(kind, a, b, c)) if kind in ("f32", "f64") else None


def _square_root(call: TypedCall, key: Key) -> Callable[..., Any] | None:
    kind = call.signature.result
    if kind not in FLOATS:
        return None
    rounded = ROUND[kind]
    return _converted(call, lambda a: rounded(math.sqrt(a) if a >= 0.0 else a if a == 0.0 else math.nan))


def _saturating(sign: int) -> Maker:
    def maker(call: TypedCall, key: Key) -> Callable[..., Any] | None:
        kind = call.signature.result
        if kind not in INTEGERS:
            return None
        low, high = LEAST[kind], GREATEST[kind]
        return _converted(call, lambda a, b: min(max(a + sign * b, low), high))

    return maker


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


def _popc(call: TypedCall, key: Key) -> Callable[..., Any]:
    (kind,) = call.signature.arguments
    return _converted(call, lambda x: bits_of(kind, x).bit_count())


_MAKERS: dict[Any, Maker] = {
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
    intrinsics.fma: _fma,
    intrinsics.saturating_add: _saturating(1),
    intrinsics.saturating_sub: _saturating(-1),
    intrinsics.popc: _popc,
    thread.index_1d: simple(lambda: ThreadIndex(current().place(0))),
    thread.index_2d: simple(_index_2d),
    thread.index_2d_row: simple(lambda: current().place(1)),
    thread.index_2d_col: simple(lambda: current().place(0)),
    thread.nanosleep: simple(nothing),
    thread.wait_dependencies: simple(nothing),
    thread.launch_dependents: simple(nothing),
    thread.sync_threads: _barrier("sync_threads", lambda brought: None),
    thread.sync_threads_count: _barrier("sync_threads_count", lambda brought: sum(brought.values())),
    thread.sync_threads_and: _barrier("sync_threads_and", lambda brought: all(brought.values())),
    thread.sync_threads_or: _barrier("sync_threads_or", lambda brought: any(brought.values())),
    thread.sync_grid: _barrier("sync_grid", lambda brought: None, "grid"),
    warp.lane_id: simple(lambda: current().number % warp.SIZE),
    warp.warp_id: simple(lambda: current().number // warp.SIZE),
    warp.active_mask: simple(lambda: 1 << current().number % warp.SIZE),
    warp.sync: _of_lanes("sync", lambda kind: _all_of(lambda brought: None), values=0),
    warp.shuffle: _of_lanes("shuffle", _shuffle(lambda lane, by: by % warp.SIZE), values=2),
    warp.shuffle_up: _of_lanes("shuffle_up", _shuffle(_up), values=2),
    warp.shuffle_down: _of_lanes("shuffle_down", _shuffle(_down), values=2),
    warp.shuffle_xor: _of_lanes("shuffle_xor", _shuffle(lambda lane, by: lane ^ by), values=2),
    warp.all: _of_lanes("all", lambda kind: _all_of(lambda brought: all(brought.values()))),
    warp.any: _of_lanes("any", lambda kind: _all_of(lambda brought: any(brought.values()))),
    warp.ballot: _of_lanes(
        "ballot", lambda kind: _all_of(lambda brought: _mask_of(lane for lane, each in brought.items() if each))
    ),
    warp.elect: _of_lanes("elect", _elect, values=0),
    warp.match_any: _of_lanes("match_any", _match_any),
    warp.match_all: _of_lanes("match_all", _match_all),
    warp.reduce_add: _of_lanes("reduce_add", _reduction(lambda a, b: a + b)),
    warp.reduce_min: _of_lanes("reduce_min", _reduction(least)),
    warp.reduce_max: _of_lanes("reduce_max", _reduction(greatest)),
    warp.reduce_and: _of_lanes("reduce_and", _reduction(lambda a, b: a & b)),
    warp.reduce_or: _of_lanes("reduce_or", _reduction(lambda a, b: a | b)),
    warp.reduce_xor: _of_lanes("reduce_xor", _reduction(lambda a, b: a ^ b)),
    atomic.fence: simple(nothing),
    debug.clock64: simple(time.perf_counter_ns),
    debug.trap: simple(lambda: fail("debug.trap() was reached")),
    SharedArray: _shared,
    LocalArray: _local,
    DynamicSharedArray: _dynamic,
    views.MatrixView: simple(MatrixView),
    views.zip_exact: simple(zip_exact),
    **tensor.MAKERS,
}
