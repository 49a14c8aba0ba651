"""Atomics on either device: totals that no thread's update is missing from, orderings, scopes, and refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import (
    AtomicSlice,
    BoundsError,
    CompileError,
    DisjointSlice,
    SharedArray,
    Slice,
    atomic,
    d2h,
    f32,
    f64,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    u32,
    zeros,
)
from tests.compiler.assembler import assembled, needs_ptxas

RANDOM = np.random.default_rng(5)
DTYPES = ["i32", "u32", "i64", "u64", "f32", "f64"]


@pytest.mark.slow
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("operation", ["add", "sub", "min", "max", "and", "or", "xor"])
def test_no_update_is_lost(name: str, operation: str) -> None:
    scalar = getattr(oxide, name)
    source = f"""
@kernel
def update(x: Slice[scalar], y: AtomicSlice[scalar]):
    i = thread.index_1d().get()
    if i < len(x):
        y.fetch_{operation}(i % len(y), x[i])
"""
    update = define(source, {"scalar": scalar})
    if scalar.dtype.kind == "f" and operation in ("and", "or", "xor"):
        with pytest.raises(CompileError, match=rf"fetch_{operation} takes integers, and the elements of y are {name}"):
            update.specialize()
        return
    # Whole numbers: the order of the updates then changes no float sum.
    x = RANDOM.integers(0, 1000, 40_000).astype(scalar.dtype)
    start = np.array([500, 7, 3], scalar.dtype)
    combine = {
        "add": np.add,
        "sub": np.subtract,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[operation]
    expected = start.copy()
    for place in range(3):
        for value in x[place::3]:
            expected[place] = combine(expected[place], value)
    got = update[160, 256](h2d(x), h2d(start)).last().and_then(d2h).sync()
    np.testing.assert_array_equal(got, expected)


def define(source: str, names: dict[str, Any], path: Path | None = None) -> Any:
    """The kernel that a source text defines, with a file to point errors at."""
    import linecache

    file = f"<kernel {len(linecache.cache)}>" if path is None else str(path)
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = {**vars(oxide), **names}
    exec(compile(source, file, "exec"), scope)
    return next(value for value in scope.values() if isinstance(value, oxide.Kernel))


@pytest.mark.parametrize("name", DTYPES)
def test_each_thread_gets_a_number_of_its_own(name: str) -> None:
    scalar = getattr(oxide, name)

    @kernel
    def tickets(next_number: AtomicSlice[scalar], y: DisjointSlice[scalar]) -> None:  # type: ignore[valid-type]
        mine = next_number.fetch_add(0, 1)
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = mine

    counter, numbers = tickets[40, 256](zeros(1, scalar.dtype), zeros(10_240, scalar.dtype)).sync()
    np.testing.assert_array_equal(np.sort(d2h(numbers).sync()), np.arange(10_240))
    assert d2h(counter).sync()[0] == 10_240


@pytest.mark.slow
@pytest.mark.parametrize("name", DTYPES)
def test_exchange_hands_one_value_on_and_compare_exchange_writes_once(name: str) -> None:
    scalar = getattr(oxide, name)

    @kernel
    def hand_on(slot: AtomicSlice[scalar], y: DisjointSlice[scalar], first: DisjointSlice[i32]) -> None:  # type: ignore[valid-type]
        index = thread.index_1d()
        before = slot.exchange(0, index.get() + 1)
        won = slot.compare_exchange(1, 0, index.get() + 1) == 0
        element, winner = y.get_mut(index), first.get_mut(index)
        if element is not None and winner is not None:
            element.value = before
            winner.value = won

    outputs = zeros(2, scalar.dtype), zeros(5000, scalar.dtype), zeros(5000, np.int32)
    slot, seen, won = (d2h(box).sync() for box in hand_on[50, 100](*outputs).sync())
    np.testing.assert_array_equal(np.sort(np.append(seen, slot[0])), np.arange(5001))
    assert won.sum() == 1
    assert slot[1] == np.flatnonzero(won)[0] + 1


def test_loads_and_stores_under_every_ordering_and_scope() -> None:
    source = "@kernel\ndef ordered(a: AtomicSlice[f32], b: AtomicSlice[i64]):\n    i = thread.index_1d().get()\n"
    for ordering in ("RELAXED", "ACQUIRE", "RELEASE", "ACQUIRE_RELEASE", "SEQUENTIAL"):
        for scope in ("BLOCK", "DEVICE", "SYSTEM"):
            settings = f"atomic.{ordering}, atomic.{scope}"
            source += f"    b.store(i, b.load(i, {settings}) + i64(a.fetch_add(i, f32(1), {settings})), {settings})\n"
            source += f"    atomic.fence({settings})\n"
    ordered = define(source, {})
    a, b = (d2h(box).sync() for box in ordered[2, 32](zeros(64), zeros(64, np.int64)).sync())
    np.testing.assert_array_equal(a, np.full(64, 15))
    np.testing.assert_array_equal(b, np.full(64, sum(range(15))))


@kernel
def histogram(values: Slice[u32], counts: AtomicSlice[u32]) -> None:
    """Counts in shared memory first, one bin a thread."""
    bins = SharedArray(64, u32)
    t = thread.thread_idx.x
    if t < 64:
        bins[t] = 0
    thread.sync_threads()
    i = thread.index_1d().get()
    if i < len(values):
        bins.fetch_add(values[i], 1, scope=atomic.BLOCK)
    thread.sync_threads()
    if t < 64:
        counts.fetch_add(t, bins.load(t))


@pytest.mark.parametrize("count", [1, 31, 64, 100_000])
def test_a_histogram_counts_in_shared_memory_and_across_blocks(count: int) -> None:
    values = RANDOM.integers(0, 64, count).astype(np.uint32)
    counts = histogram[-(-count // 96), 96](h2d(values), zeros(64, np.uint32)).last().and_then(d2h).sync()
    np.testing.assert_array_equal(counts, np.bincount(values, minlength=64))


def test_shared_atomics_take_indices_of_several_axes() -> None:
    @kernel
    def grid_max(y: DisjointSlice[i32]) -> None:
        best = SharedArray((2, 2), i32)
        t = thread.thread_idx.x
        if t < 4:
            best[t // 2, t % 2] = 0
        thread.sync_threads()
        best.fetch_max((t % 2, 1), i32(t))
        thread.sync_threads()
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = best[t % 2, 1] * 100 + best[t % 2, 0]

    got = grid_max[1, 50](zeros(50, np.int32)).last().and_then(d2h).sync()
    np.testing.assert_array_equal(got, np.where(np.arange(50) % 2, 4900, 4800))


def test_an_index_outside_changes_nothing_and_is_a_fault() -> None:
    @kernel
    def outside(at: i64, y: AtomicSlice[f32]) -> None:
        y.fetch_add(at, f32(1))

    for at in (4, -1):
        box = zeros(4).sync()
        with pytest.raises(BoundsError, match=rf"y\[{at}\] is outside y, which has 4 elements"):
            outside[1, 2](at, box).sync()
        np.testing.assert_array_equal(d2h(box).sync(), np.zeros(4))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y[0] = 1.0", r"=|setitem|\[\.\.\.\]"),
        ("y.fetch_add(0)", r"\.fetch_add takes \(index, value, ordering, scope\)"),
        ("y.fetch_add(1.5, 1.0)", "the index of y.fetch_add is an integer, not f64"),
        ("n.fetch_add(0, 1.5)", r"convert it, as in i32\(x\)"),
        ("y.fetch_or(0, 1)", "fetch_or takes integers"),
        ("y.fetch_add(0, 1.0, n.load(0))", "ordering is a constant of oxide.atomic"),
        ("y.increment(0)", "has no .increment"),
        ("a = LocalArray(4, i32); a.fetch_add(0, 1)", "a LocalArray belongs to one thread"),
        ("a = SharedArray(4, u8); a.fetch_add(0, 1)", "atomics take i32 u32 i64 u64 f16 bf16 f32 f64"),
    ],
)
def test_a_wrong_atomic_is_a_compile_error(body: str, message: str) -> None:
    wrong = define(f"@kernel\ndef wrong(y: AtomicSlice[f32], n: AtomicSlice[i32]):\n    {body}\n", {})
    with pytest.raises(CompileError, match=message):
        wrong.specialize()


def test_elements_of_other_types_are_refused_when_the_kernel_is_defined() -> None:
    with pytest.raises(CompileError, match="an AtomicSlice has elements of i32 u32 i64 u64 f16 bf16 f32 f64, not u8"):
        define("@kernel\ndef wrong(y: AtomicSlice[u8]):\n    return\n", {})


def test_additions_are_one_instruction_with_their_scope() -> None:
    ptx = histogram.ptx()
    assert re.search(r"(atom|red)(\.relaxed\.(cta|gpu))?\.shared\.add\.u32", ptx)
    assert re.search(r"(atom|red)(\.relaxed\.gpu)?\.global\.add\.u32", ptx)
    # PTX without a scope means the device's, so the system's is always written.
    system = define("@kernel\ndef far(y: AtomicSlice[i32]):\n    y.fetch_add(0, 1, scope=atomic.SYSTEM)\n", {}).ptx()
    assert "atom.relaxed.sys.global.cas.b32" in system
    assert ".global.add" not in system


def test_atomic_loads_and_stores_of_neighbouring_threads_are_made_one_by_one() -> None:
    @kernel(block=64)
    def read(x: AtomicSlice[i64], z: DisjointSlice[f64]) -> None:
        index = thread.index_1d()
        element = z.get_mut(index)
        if element is not None:
            element.value += f64(i32(x.load(index.get()))) * 0.5

    @kernel(block=64)
    def write(x: Slice[i32], y: AtomicSlice[i32]) -> None:
        i = thread.index_1d().get()
        if i < len(x):
            y.store(i, x[i] + 1)

    x = np.arange(1000)
    np.testing.assert_array_equal(d2h(read(h2d(x), zeros(1000, f64)).sync()[1]).sync(), x * 0.5)
    y = write[16, 64](h2d(x.astype(np.int32)), zeros(1000, i32)).sync()[1]
    np.testing.assert_array_equal(d2h(y).sync(), x + 1)


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("cc", [(7, 5), (9, 0)])
def test_ptxas_accepts_every_operation(cc: tuple[int, int]) -> None:
    source = "@kernel\ndef everything("
    source += ", ".join(f"{name}_: AtomicSlice[{name}]" for name in DTYPES) + "):\n"
    for name in DTYPES:
        for operation in ("add", "sub", "min", "max", *(("and", "or", "xor") if name[0] != "f" else ())):
            source += f"    {name}_.fetch_{operation}(0, 1, atomic.SEQUENTIAL, atomic.SYSTEM)\n"
        source += f"    {name}_.store(1, {name}_.exchange(0, {name}_.compare_exchange(2, 3, {name}_.load(4))))\n"
    assembled(define(source, {}).ptx(cc), cc)


@pytest.mark.parametrize("name", DTYPES)
def test_no_update_is_lost_at_the_systems_scope(name: str) -> None:
    scalar = getattr(oxide, name)

    @kernel
    def all_ways(y: AtomicSlice[scalar]) -> None:  # type: ignore[valid-type]
        i = thread.index_1d().get()
        y.fetch_add(0, 3, scope=atomic.SYSTEM)
        y.fetch_sub(1, 1, scope=atomic.SYSTEM)
        y.fetch_max(2, i, scope=atomic.SYSTEM)
        y.fetch_min(3, i, scope=atomic.SYSTEM)

    got = all_ways[40, 128](h2d(np.array([0, 6000, 9, 9], scalar.dtype))).last().and_then(d2h).sync()
    np.testing.assert_array_equal(got, [3 * 5120, 6000 - 5120, 5119, 0])
