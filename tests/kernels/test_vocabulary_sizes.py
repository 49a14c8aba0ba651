"""Every entry of the kernel vocabulary, over dtypes and sizes, against NumPy: a table of cases, one kernel for each.

What an entry does at its edges is told where the entry is tested for itself; here each meets empty, odd and large data.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from oxide import (
    AtomicSlice,
    DisjointSlice,
    DynamicSharedArray,
    Kernel,
    LaunchConfig,
    LocalArray,
    SharedArray,
    Slice,
    bf16,
    d2h,
    device,
    f16,
    f32,
    f64,
    fast,
    h2d,
    i32,
    i64,
    intrinsics,
    kernel,
    thread,
    u8,
    u32,
    u64,
    warp,
    zeros,
)
from tests.elementwise import binary, unary

SIZES = (0, 1, 31, 32, 33, 1025, 1_000_003)
BLOCK = 128
QUARTER = 32
_PERIOD = 4099  # data repeat, so that a reference is cheap, at a prime that no block or warp divides

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A kernel from some inputs to one output, all of a size, and NumPy's word for it.

    ``expected`` takes the inputs as numbers, of one period, or, of a ``blocks`` case, filled up with zeros to whole
    blocks. ``error`` bounds the difference relative to the expected number, or to ``floor`` if that is larger.
    """

    name: str
    kernel: Callable[[], Kernel]
    inputs: tuple[Array, ...]
    kind: Any
    result: Any
    expected: Callable[..., Any]
    error: float = 0.0
    floor: float = 0.0
    blocks: bool = False
    shared_mem_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.name}-{self.kind}"


def bits_of(numbers: Array) -> Array:
    """Numbers as bfloat16s, which are the upper halves of float32s; not rounded."""
    return (np.asarray(numbers, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def numbers_of(kind: Any, stored: Array) -> Array:
    """What a buffer of a kind holds: floats as float64, integers as they are."""
    if kind is bf16:
        return (stored.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64) if stored.dtype.kind == "f" else stored


def data(kind: Any, low: float = -8.0, high: float = 8.0, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    if kind is bf16:
        return bits_of(rng.uniform(low, high, _PERIOD))
    if kind.dtype.kind == "f":
        return rng.uniform(low, high, _PERIOD).astype(kind.dtype)
    limits = np.iinfo(kind.dtype)
    return rng.integers(limits.min, limits.max, _PERIOD, kind.dtype, endpoint=True)


def small(kind: Any, seed: int = 0, low: int = 0, high: int = 4) -> Array:
    """Whole numbers of few values, which floats hold exactly."""
    numbers = np.random.default_rng(seed).integers(low, high, _PERIOD)
    return bits_of(numbers) if kind is bf16 else numbers.astype(kind.dtype)


# Kernels, made of what a case applies


def together(function: Any, kind: Any, result: Any) -> Kernel:
    """Every thread of each block calls the function, those past the end with a 0."""

    @kernel(block=BLOCK)
    def apply(x: Slice[kind], y: DisjointSlice[result]) -> None:
        i = thread.index_1d()
        value = kind(0)
        if i.get() < len(x):
            value = x[i.get()]
        got = function(value)
        element = y.get_mut(i)
        if element is not None:
            element.value = got

    return apply


def placed(function: Any, kind: Any, result: Any) -> Kernel:
    """The function reads the slice itself."""

    @kernel(block=BLOCK)
    def apply(x: Slice[kind], y: DisjointSlice[result]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = function(x, i.get())

    return apply


# The table

ANY, POSITIVE, UNIT, ABOVE_ONE = (-8.0, 8.0), (1e-3, 30.0), (-0.999, 0.999), (1.001, 50.0)
_ANYWHERE = """sin cos tan atan sinh cosh tanh asinh exp exp2 expm1 erf erfc cbrt fabs degrees radians floor ceil
trunc"""
_UNARY = {
    **dict.fromkeys(_ANYWHERE.split(), ANY),
    **dict.fromkeys(["log", "log2", "log10", "log1p", "sqrt", "gamma", "lgamma"], POSITIVE),
    **dict.fromkeys(("asin", "acos", "atanh"), UNIT),
    "acosh": ABOVE_ONE,
}
_BINARY = {**dict.fromkeys(["atan2", "copysign", "fmod", "hypot", "remainder", "nextafter"], ANY), "pow": (0.1, 6.0)}
_FAST = {"exp": ANY, "exp10": (-2.0, 2.0), "sin": (-3.0, 3.0), "cos": (-3.0, 3.0), "tan": (-1.0, 1.0)}
_FAST |= dict.fromkeys(("log", "log2", "log10"), POSITIVE)
_INTEGERS, _FLOATS, _HALVES = (i32, u32, i64, u64), (f32, f64), (f16, bf16)
_ERRORS = {f16: 2e-3, bf16: 1.6e-2, f32: 3e-6, f64: 1e-13}


def of_numpy(name: str) -> Callable[..., Any]:
    """NumPy's function, or Python's over the elements where it has none."""
    found: Any = None if name == "remainder" else getattr(np, name, None)  # NumPy's is another: Python's %
    return found if isinstance(found, np.ufunc) else np.vectorize(getattr(math, name), otypes=[np.float64])


def mathematics() -> Iterator[Case]:
    for name, (low, high) in _UNARY.items():
        function = getattr(math, name)
        floor = 1.0 if name == "lgamma" else 0.0
        for kind in _FLOATS:
            made = partial(unary, function, kind)
            x = data(kind, low, high)
            yield Case(f"math.{name}", made, (x,), kind, kind, of_numpy(name), _ERRORS[kind], floor)
    for name in ("exp", "sqrt", "tanh"):
        for kind in _HALVES:
            made = partial(unary, getattr(math, name), kind)
            x = data(kind, 0.1, 4.0)
            yield Case(f"math.{name}", made, (x,), kind, kind, of_numpy(name), _ERRORS[kind])
    for name, (low, high) in _BINARY.items():
        for kind in _FLOATS:
            made = partial(binary, getattr(math, name), kind)
            ab = data(kind, low, high, 1), data(kind, low, high, 2)
            expected = of_numpy(name)
            if name == "nextafter":  # of the type itself
                expected = lambda a, b, kind=kind: np.nextafter(a.astype(kind.dtype), b.astype(kind.dtype))  # noqa: E731
            yield Case(f"math.{name}", made, ab, kind, kind, expected, 0.0 if name == "nextafter" else _ERRORS[kind])
    for name, (low, high) in _FAST.items():
        made = partial(unary, getattr(fast, name), f32)
        expected = (lambda x: 10.0**x) if name == "exp10" else of_numpy(name)
        yield Case(f"fast.{name}", made, (data(f32, low, high),), f32, f32, expected, 5e-6, 1.0)
    for name, reference in {"pow": np.power, "divide": np.divide}.items():
        made = partial(binary, getattr(fast, name), f32)
        ab = data(f32, 0.1, 4.0, 1), data(f32, 0.1, 4.0, 2)
        yield Case(f"fast.{name}", made, ab, f32, f32, reference, 5e-6)


@device
def fused(a: Any, b: Any) -> Any:
    return intrinsics.fma(a, b, a)


def _set_bits(x: Array) -> Array:
    return np.bitwise_count(x.view(f"u{x.dtype.itemsize}"))


def _leading_zeros(x: Array) -> Array:
    width = 8 * x.dtype.itemsize
    return np.array([width - (int(each) % 2**width).bit_length() for each in x])


def _lowest_set(x: Array) -> Array:
    return np.array([(int(each) & -int(each)).bit_length() for each in x])


def _reversed_bits(x: Array) -> Array:
    width = 8 * x.dtype.itemsize
    unsigned = np.array([int(f"{int(each) % 2**width:0{width}b}"[::-1], 2) for each in x], f"u{width // 8}")
    return unsigned.view(x.dtype)


def _upper_half(a: Array, b: Array) -> Array:
    width = 8 * a.dtype.itemsize
    return np.array([(int(x) * int(y)) >> width for x, y in zip(a, b, strict=True)], a.dtype)


def _saturating(function: Any) -> Callable[[Array, Array], Array]:
    def expected(a: Array, b: Array) -> Array:
        limits = np.iinfo(a.dtype)
        exact = (function(int(x), int(y)) for x, y in zip(a, b, strict=True))
        return np.array([min(max(each, int(limits.min)), int(limits.max)) for each in exact], a.dtype)

    return expected


def intrinsic() -> Iterator[Case]:
    bits = {"popc": _set_bits, "clz": _leading_zeros, "ffs": _lowest_set, "brev": _reversed_bits}
    pairs = {
        "mulhi": _upper_half,
        "saturating_add": _saturating(operator.add),
        "saturating_sub": _saturating(operator.sub),
    }
    for kind in (i32, u64):
        for name, expected in bits.items():
            out = kind if name == "brev" else i32
            made = partial(unary, getattr(intrinsics, name), kind, out)
            x = np.where(np.arange(_PERIOD) % 5 == 0, 0, data(kind)).astype(kind.dtype)
            yield Case(f"intrinsics.{name}", made, (x,), kind, out, expected)
        for name, expected in pairs.items():
            made = partial(binary, getattr(intrinsics, name), kind)
            yield Case(f"intrinsics.{name}", made, (data(kind, seed=1), data(kind, seed=2)), kind, kind, expected)
    for kind in _FLOATS:
        made = partial(unary, intrinsics.saturate, kind)
        yield Case("intrinsics.saturate", made, (data(kind),), kind, kind, lambda x: np.clip(x, 0, 1))
        made = partial(unary, intrinsics.rsqrt, kind)
        x = data(kind, *POSITIVE)
        yield Case("intrinsics.rsqrt", made, (x,), kind, kind, lambda x: 1 / np.sqrt(x), _ERRORS[kind])
        made = partial(binary, fused, kind)
        ab = data(kind, 0.1, 4.0, 1), data(kind, 0.1, 4.0, 2)
        yield Case("intrinsics.fma", made, ab, kind, kind, lambda a, b: a * b + a, _ERRORS[kind])


@device
def plus(a: Any, b: Any) -> Any:
    return a + b


@device
def minus(a: Any, b: Any) -> Any:
    return a - b


@device
def times(a: Any, b: Any) -> Any:
    return a * b


@device
def divided(a: Any, b: Any) -> Any:
    return a / b


@device
def whole_part(a: Any, b: Any) -> Any:
    return a // b


@device
def rest(a: Any, b: Any) -> Any:
    return a % b


def arithmetic() -> Iterator[Case]:
    exact: dict[str, tuple[Any, Any]] = {"+": (plus, np.add), "-": (minus, np.subtract), "*": (times, np.multiply)}
    for kind in (i32, u64, *_FLOATS, *_HALVES):
        is_float = kind in _ERRORS
        others = {"/": (divided, np.divide)} if is_float else {"//": (whole_part, np.floor_divide), "%": (rest, np.mod)}
        a, b = (
            (data(kind, 0.5, 8.0, 1), data(kind, 0.5, 8.0, 2)) if is_float else (data(kind, seed=1), small(kind, 2, 1))
        )
        for sign, (function, expected) in (exact | others).items():
            made = partial(binary, function, kind)
            yield Case(f"a {sign} b", made, (a, b), kind, kind, expected, _ERRORS.get(kind, 0.0), 0.5)


# Warps: a reference sees rows of 32 lanes


def by_warp(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: np.broadcast_to(function(x.reshape(-1, 32)), (x.size // 32, 32)).ravel()


def bits(lanes: Array) -> Array:
    """A row of conditions as a mask."""
    return (lanes.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(axis=-1, keepdims=True, dtype=np.uint64)


@device
def rotated(value: Any) -> Any:
    return warp.shuffle(value, (warp.lane_id() + 5) % 32)


@device
def from_below(value: Any) -> Any:
    return warp.shuffle_up(value, 1)


@device
def from_above(value: Any) -> Any:
    return warp.shuffle_down(value, 3)


@device
def from_partner(value: Any) -> Any:
    return warp.shuffle_xor(value, 16)


@device
def all_odd(value: Any) -> Any:
    return i32(warp.all(value != 2))


@device
def any_three(value: Any) -> Any:
    return i32(warp.any(value == 3))


@device
def who_has_one(value: Any) -> Any:
    return warp.ballot(value == 1)


@device
def agreed(value: Any) -> Any:
    # Lanes of the same value form a group only where all of them have it.
    warp.sync()
    return warp.match_all(value)


@device
def place(value: Any) -> Any:
    return 100 * warp.warp_id() + warp.lane_id()


@device
def here(value: Any) -> Any:
    return i32((warp.active_mask() >> u32(warp.lane_id())) & u32(1))


def _of_the_same(x: Array) -> Array:
    masks = np.zeros(x.shape, np.uint64)
    for value in np.unique(x):
        masks = np.where(x == value, bits(x == value), masks)
    return masks


def _upward(x: Array) -> Array:
    return np.concatenate([x[:, :1], x[:, :-1]], axis=1)


def _downward(x: Array) -> Array:
    return np.concatenate([x[:, 3:], x[:, 29:]], axis=1)


def warps() -> Iterator[Case]:
    moves: dict[str, tuple[Any, Any]] = {
        "shuffle": (rotated, lambda x: np.roll(x, -5, axis=1)),
        "shuffle_up": (from_below, _upward),
        "shuffle_down": (from_above, _downward),
        "shuffle_xor": (from_partner, lambda x: np.roll(x, 16, axis=1)),
    }
    reductions: dict[str, Any] = {
        "add": lambda x: x.sum(axis=1, keepdims=True, dtype=x.dtype),
        "min": lambda x: x.min(axis=1, keepdims=True),
        "max": lambda x: x.max(axis=1, keepdims=True),
        "and": lambda x: np.bitwise_and.reduce(x, axis=1, keepdims=True),
        "or": lambda x: np.bitwise_or.reduce(x, axis=1, keepdims=True),
        "xor": lambda x: np.bitwise_xor.reduce(x, axis=1, keepdims=True),
    }
    for kind in (i32, u64, *_FLOATS):
        for name, (function, expected) in moves.items():
            made = partial(together, function, kind, kind)
            yield Case(f"warp.{name}", made, (data(kind),), kind, kind, by_warp(expected), blocks=True)
        for name, expected in reductions.items():
            if kind in _FLOATS and name in ("and", "or", "xor"):
                continue
            made = partial(together, getattr(warp, f"reduce_{name}"), kind, kind)
            # Sums of whole numbers: in any order the same.
            x = small(kind, low=-99, high=99) if kind in _FLOATS else data(kind)
            yield Case(f"warp.reduce_{name}", made, (x,), kind, kind, by_warp(expected), blocks=True)
    votes: dict[str, tuple[Any, Any, Any]] = {
        "all": (all_odd, i32, lambda x: (x != 2).all(axis=1, keepdims=True)),
        "any": (any_three, i32, lambda x: (x == 3).any(axis=1, keepdims=True)),
        "ballot": (who_has_one, u32, lambda x: bits(x == 1)),
        "match_any": (warp.match_any, u32, _of_the_same),
        "match_all": (agreed, u32, lambda x: np.where((x == x[:, :1]).all(axis=1, keepdims=True), 2**32 - 1, 0)),
        "active_mask": (here, i32, np.ones_like),
    }
    for kind in (u64, f32):
        for name, (function, out, expected) in votes.items():
            made = partial(together, function, kind, out)
            yield Case(f"warp.{name}", made, (small(kind),), kind, out, by_warp(expected), blocks=True)
    made = partial(together, place, i32, i32)
    numbered = np.arange(BLOCK) // 32 * 100 + np.arange(BLOCK) % 32
    yield Case("warp.lane_id", made, (small(i32),), i32, i32, lambda x: np.resize(numbered, x.size), blocks=True)


# Blocks, arrays and vectors

TABLES = {kind: np.arange(37, 74).astype(kind.dtype) for kind in (u8, i64, f32)}


def reversed_in_shared(kind: Any) -> Kernel:
    @device
    def function(value: Any) -> Any:
        tile = SharedArray(BLOCK, kind)
        tile[thread.thread_idx.x] = value
        thread.sync_threads()
        return tile[BLOCK - 1 - thread.thread_idx.x]

    return together(function, kind, kind)


def reversed_in_dynamic(kind: Any) -> Kernel:
    @device
    def function(value: Any) -> Any:
        tile = DynamicSharedArray(kind)
        tile[thread.thread_idx.x] = value
        thread.sync_threads()
        return tile[len(tile) - 1 - thread.thread_idx.x]

    return together(function, kind, kind)


def vectors_in_shared(kind: Any) -> Kernel:
    @device
    def function(value: Any) -> Any:
        tile = SharedArray((QUARTER, 4), kind)
        t = thread.thread_idx.x
        tile[t // 4, t % 4] = value
        thread.sync_threads()
        if t < QUARTER:
            a, b, c, d = tile.load4((t, 0))
            tile.store4((t, 0), d, c, b, a)
        thread.sync_threads()
        return tile[t // 4, t % 4]

    return together(function, kind, kind)


def through_local(kind: Any) -> Kernel:
    @device
    def function(value: Any) -> Any:
        local = LocalArray(4, kind)
        for j in range(4):
            local[j] = value
            if j > 0:
                local[j] = local[j] - local[j - 1]
        return local[2]

    return unary(function, kind)


def from_constant(kind: Any) -> Kernel:
    table = TABLES[kind]

    @device
    def function(x: Any, i: Any) -> Any:
        return table[i % 37]

    return placed(function, kind, kind)


@device
def by_twos(x: Any, i: Any) -> Any:
    first = i // 2 * 2
    result = x[i]
    if first + 2 <= len(x):
        a, b = x.load2(first)
        result = a
        if i == first:
            result = b
    return result


@device
def by_fours(x: Any, i: Any) -> Any:
    first = i // 4 * 4
    result = x[i]
    if first + 4 <= len(x):
        a, b, c, d = x.load4(first)
        result = d
        if i == first + 1:
            result = c
        if i == first + 2:
            result = b
        if i == first + 3:
            result = a
    return result


def _swapped(count: int) -> Callable[[Array], Array]:
    """Each whole vector the other way round; what is left at the end, as it is."""

    def expected(x: Array) -> Array:
        whole = x.size // count * count
        return np.concatenate([x[:whole].reshape(-1, count)[:, ::-1].ravel(), x[whole:]])

    return expected


@device
def how_many(value: Any) -> Any:
    return thread.sync_threads_count(value == 1)


@device
def whether_all(value: Any) -> Any:
    return i32(thread.sync_threads_and(value != 3))


@device
def whether_any(value: Any) -> Any:
    return i32(thread.sync_threads_or(value == 3))


def by_block(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: np.broadcast_to(function(x.reshape(-1, BLOCK)), (x.size // BLOCK, BLOCK)).ravel()


def blocks() -> Iterator[Case]:
    backwards = by_block(lambda x: x[:, ::-1])
    for kind in TABLES:
        x = data(kind)
        made = partial(reversed_in_shared, kind)
        yield Case("SharedArray", made, (x,), kind, kind, backwards, blocks=True)
        made = partial(reversed_in_dynamic, kind)
        size = BLOCK * x.itemsize
        yield Case("DynamicSharedArray", made, (x,), kind, kind, backwards, blocks=True, shared_mem_bytes=size)
        made = partial(vectors_in_shared, kind)
        yield Case(
            "store4",
            made,
            (x,),
            kind,
            kind,
            by_block(lambda x: x.reshape(-1, 4)[:, ::-1].reshape(x.shape)),
            blocks=True,
        )
        made = partial(through_local, kind)
        yield Case("LocalArray", made, (x,), kind, kind, lambda x: x)
        made = partial(from_constant, kind)
        table = TABLES[kind]
        expected = lambda x, table=table: np.resize(table, x.size)  # noqa: E731
        yield Case("a constant array", made, (x,), kind, kind, expected, blocks=True)
    for kind in (i64, f32):
        for count, function in ((2, by_twos), (4, by_fours)):
            made = partial(placed, function, kind, kind)
            yield Case(f"load{count}", made, (data(kind),), kind, kind, _swapped(count), blocks=True)
    for name, function, expected in (
        ("count", how_many, by_block(lambda x: (x == 1).sum(axis=1, keepdims=True))),
        ("and", whether_all, by_block(lambda x: (x != 3).all(axis=1, keepdims=True))),
        ("or", whether_any, by_block(lambda x: (x == 3).any(axis=1, keepdims=True))),
    ):
        made = partial(together, function, i32, i32)
        yield Case(f"sync_threads_{name}", made, (small(i32, high=40),), i32, i32, expected, blocks=True)


CASES = [*mathematics(), *intrinsic(), *arithmetic(), *warps(), *blocks()]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_what_numpy_says_at_every_size(case: Case) -> None:
    made = case.kernel()
    period = [numbers_of(case.kind, each) for each in case.inputs]
    with np.errstate(over="ignore"):
        once = None if case.blocks else np.asarray(case.expected(*period))
    for size in SIZES:
        inputs = [np.resize(each, size) for each in case.inputs]
        blocks = -(-size // BLOCK)
        config = LaunchConfig(max(blocks, 1), BLOCK, case.shared_mem_bytes)
        boxes = (h2d(each) for each in inputs)
        stored = made[config](*boxes, zeros(size, case.result.dtype)).last().and_then(d2h).sync()
        found = numbers_of(case.result, stored)
        if once is not None:
            expected = np.resize(once, size)
        elif "load" in case.name:
            expected = case.expected(*inputs)
        else:
            filled = [np.concatenate([each, np.zeros(blocks * BLOCK - size, each.dtype)]) for each in inputs]
            expected = case.expected(*filled)[:size]
        if case.error:
            off = np.abs(found - expected) / np.maximum(np.abs(expected), case.floor or np.finfo(np.float64).tiny)
            assert off.max(initial=0.0) <= case.error, f"size {size}"
        else:
            np.testing.assert_array_equal(found, expected, err_msg=f"size {size}")


# Atomics: into a few elements that all threads change, and into one for each thread

BINS = 17
_MANY: dict[str, Any] = {
    "fetch_add": np.add,
    "fetch_sub": np.subtract,
    "fetch_min": np.minimum,
    "fetch_max": np.maximum,
    "fetch_and": np.bitwise_and,
    "fetch_or": np.bitwise_or,
    "fetch_xor": np.bitwise_xor,
}


@device
def fetch_add(bins: Any, i: Any, value: Any) -> Any:
    return bins.fetch_add(i, value)


@device
def fetch_sub(bins: Any, i: Any, value: Any) -> Any:
    return bins.fetch_sub(i, value)


@device
def fetch_min(bins: Any, i: Any, value: Any) -> Any:
    return bins.fetch_min(i, value)


@device
def fetch_max(bins: Any, i: Any, value: Any) -> Any:
    return bins.fetch_max(i, value)


@device
def fetch_and(bins: Any, i: Any, value: Any) -> Any:
    return bins.fetch_and(i, value)


@device
def fetch_or(bins: Any, i: Any, value: Any) -> Any:
    return bins.fetch_or(i, value)


@device
def fetch_xor(bins: Any, i: Any, value: Any) -> Any:
    return bins.fetch_xor(i, value)


def updating(function: Any, kind: Any) -> Kernel:
    @kernel
    def apply(count: i64, x: Slice[kind], bins: AtomicSlice[kind]) -> None:
        i = thread.index_1d().get()
        if i < count:
            function(bins, i % len(bins), x[i])

    return apply


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, id=f"{name}-{kind}")
        for kind in (u32, i64, *_FLOATS)
        for name in (_MANY if kind in _INTEGERS else ("fetch_add", "fetch_sub", "fetch_min", "fetch_max"))
    ],
)
def test_no_update_of_a_few_elements_is_lost_at_any_size(name: str, kind: Any) -> None:
    update = updating(globals()[name], kind)
    period = small(kind, low=0, high=90)
    for size in SIZES:
        x = np.resize(period, size)
        start = np.full(BINS, 64, kind.dtype)
        launch = update[max(1, -(-size // BLOCK)), BLOCK](size, h2d(x), h2d(start))
        found = launch.last().and_then(d2h).sync()
        with np.errstate(over="ignore"):
            _MANY[name].at(start, np.arange(size) % BINS, x)
        np.testing.assert_array_equal(found, start, err_msg=f"size {size}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [i32, u32, i64, u64, f16, bf16, f32, f64], ids=str)
def test_the_atomics_of_one_element_for_each_thread_at_any_size(kind: Any) -> None:
    @kernel(block=BLOCK)
    def apply(x: Slice[kind], cells: AtomicSlice[kind], y: DisjointSlice[kind]) -> None:
        thread_index = thread.index_1d()
        i = thread_index.get()
        element = y.get_mut(thread_index)
        if element is not None:
            before = cells.exchange(i, x[i])
            seen = cells.compare_exchange(i, x[i], before)
            again = cells.fetch_add(i, seen)
            cells.store(i, cells.load(i) + again)
            element.value = seen

    period, starts = small(kind, 1), small(kind, 2)
    for size in SIZES:
        x, start = np.resize(period, size), np.resize(starts, size)
        _, cells, y = apply(h2d(x), h2d(start), zeros(size, kind.dtype)).sync()
        numbers, first = numbers_of(kind, x), numbers_of(kind, start)
        np.testing.assert_array_equal(numbers_of(kind, d2h(y).sync()), numbers, err_msg=f"size {size}")
        np.testing.assert_array_equal(numbers_of(kind, d2h(cells).sync()), 2 * first + numbers, err_msg=f"size {size}")


@pytest.mark.parametrize("size", SIZES)
def test_an_index_of_two_axes_reaches_each_element_once(size: int) -> None:
    @kernel
    def number(width: i64, y: DisjointSlice[i64]) -> None:
        index = thread.index_2d(width)
        if index is not None:
            element = y.get_mut(index)
            if element is not None:
                element.value += thread.index_2d_row() * 1000 + thread.index_2d_col() + 1

    width = 33
    grid = (-(-width // 8), max(1, -(-size // (16 * width))))
    found = number[grid, (8, 16)](width, zeros(size, i64)).last().and_then(d2h).sync()
    np.testing.assert_array_equal(found, np.arange(size) // width * 1000 + np.arange(size) % width + 1)
