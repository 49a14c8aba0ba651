"""Random programs for the sanitizer, and a model that says which of them are wrong, and where.

One kernel interprets a table that says what each thread does at each step, so that a program costs a launch and no
compilation. The model runs the same table in the CPU device's order, with a vector clock for each thread, and keeps
every access of an element, where the sanitizer keeps a few.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np

from oxide import (
    AtomicSlice,
    DisjointSlice,
    Kernel,
    LocalArray,
    SanitizerError,
    SharedArray,
    Slice,
    atomic,
    empty,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    u32,
    warp,
    zeros,
)
from oxide.driver import sanitizing

ELEMENTS = 3  # of each array
IDLE, TILE_READ, TILE_WRITE, TILE_ATOMIC, READ, WRITE, OWN_READ, OWN_WRITE = range(8)
ATOMIC, BLOCK_ATOMIC, LOAD, STORE, LOOK = range(8, 13)  # the last is a plain read of what the others change
BARRIER, WARP, FENCE, GRID = range(13, 17)
ACCESSES = tuple(range(TILE_READ, BARRIER))

Finding = tuple[str, int, int]
"""A kind; what was done, and for a race what was done before."""


def interpreter(meets: bool) -> Kernel:
    """The kernel that runs a program; with the grid's barrier, or without."""

    @kernel(unchecked=True, sanitize=("memory", "race"))
    def interpret(
        table: Slice[i32],
        steps: i64,
        x: Slice[i32],
        y: DisjointSlice[i32],
        a: AtomicSlice[i32],
        b: Slice[i32],
        sums: DisjointSlice[i32],
    ) -> None:
        tile = SharedArray(ELEMENTS, i32)
        own = LocalArray(ELEMENTS, i32)
        total = i32(0)
        for step in range(steps):
            at = (step * thread.grid_dim.x + thread.block_idx.x) * thread.block_dim.x + thread.thread_idx.x
            what = table[2 * at]
            n = i64(table[2 * at + 1])
            if what == TILE_READ:
                total += tile[n]  # 1
            elif what == TILE_WRITE:
                tile[n] = i32(1)  # 2
            elif what == TILE_ATOMIC:
                tile.fetch_add(n, 1, scope=atomic.BLOCK)  # 3
            elif what == READ:
                total += x[n]  # 4
            elif what == WRITE:
                y.unchecked_mut[n] = i32(1)  # 5
            elif what == OWN_READ:
                total += own[n]  # 6
            elif what == OWN_WRITE:
                own[n] = i32(1)  # 7
            elif what == ATOMIC:
                a.fetch_add(n, 1)  # 8
            elif what == BLOCK_ATOMIC:
                a.fetch_add(n, 1, scope=atomic.BLOCK)  # 9
            elif what == LOAD:
                total += a.load(n)  # 10
            elif what == STORE:
                a.store(n, 1)  # 11
            elif what == LOOK:
                total += b[n]  # 12
            elif what == BARRIER:
                thread.sync_threads()
            elif what == WARP:
                warp.sync(u32(n))
            elif what == FENCE:
                atomic.fence()
            elif meets and what == GRID:
                thread.sync_grid()
        out = sums.get_mut(thread.index_1d())
        if out is not None:
            out.value = total

    return interpret


@dataclass(frozen=True)
class Program:
    """``table[step, block, thread]`` is what to do and the element, or for a warp's synchronisation the mask."""

    table: np.ndarray[Any, Any]

    @property
    def blocks(self) -> int:
        return int(self.table.shape[1])

    @property
    def threads(self) -> int:
        return int(self.table.shape[2])

    def run(self, interpret: Kernel) -> set[Finding]:
        """What the sanitizer finds."""
        plain, changed = empty((ELEMENTS,), i32).sync(), empty((ELEMENTS,), i32).sync()
        sums = zeros(self.blocks * self.threads, np.int32)
        launch = interpret[self.blocks, self.threads](
            h2d(self.table.reshape(-1)), len(self.table), plain, plain, changed, changed, sums
        )
        found: list[SanitizerError] = []
        publish = sanitizing.publish

        def kept(errors: tuple[SanitizerError, ...]) -> int:
            found.extend(errors)
            return publish(errors)

        with patch.object(sanitizing, "publish", kept), suppress(SanitizerError):
            launch.sync()
        return {
            (error.kind, _done_at(error.line), _done_at(error.other.line) if error.other else IDLE) for error in found
        }


def _done_at(line: int) -> int:
    """What a line of the interpreter does: it says so at its end."""
    lines, first = inspect.getsourcelines(interpreter)
    return int(lines[line - first].rpartition("# ")[2])


def drawn(generator: random.Random, *, fences: bool, grid: bool) -> Program:
    """Few threads that do anything, so that what they do is often ordered, and often not."""
    threads = generator.choice([3, 34])
    blocks = generator.choice([1, 1, 2])
    active = [t for t in (0, 1, 2, 32, 33) if t < threads]
    steps = generator.randint(2, 9)
    table = np.zeros((steps, blocks, threads, 2), np.int32)
    density = generator.choice([0.15, 0.3, 0.6])
    liked = generator.sample(ACCESSES, generator.randint(2, 5))
    for step in range(steps):
        choice = generator.random()
        if grid and choice < 0.2:
            table[step, :, :, 0] = GRID
            continue
        for block in range(blocks):
            choice = generator.random()
            if choice < 0.2:
                table[step, block, :, 0] = BARRIER
            elif choice < 0.4:
                for warp_first in range(0, threads, 32):
                    lanes = range(min(32, threads - warp_first))
                    named = generator.choice([list(lanes), [t for t in lanes if generator.random() < 0.6]])
                    mask = sum(1 << lane for lane in named)
                    for lane in named:
                        table[step, block, warp_first + lane] = WARP, mask - (1 << 32 if mask >> 31 else 0)
            else:
                for t in active:
                    if fences and generator.random() < 0.2:
                        table[step, block, t, 0] = FENCE
                    elif generator.random() < density:
                        n = generator.randrange(ELEMENTS)
                        if generator.random() < 0.01:
                            n = generator.choice([-1, ELEMENTS])
                        table[step, block, t] = generator.choice(liked), n
    return Program(table)


_TILE, _OWN = (TILE_READ, TILE_WRITE, TILE_ATOMIC), (OWN_READ, OWN_WRITE)
_WRITES = (TILE_WRITE, TILE_ATOMIC, WRITE, OWN_WRITE, ATOMIC, BLOCK_ATOMIC, STORE)
_READS = (TILE_READ, TILE_ATOMIC, READ, OWN_READ, ATOMIC, BLOCK_ATOMIC, LOAD, LOOK)
_ATOMICS = (TILE_ATOMIC, ATOMIC, BLOCK_ATOMIC, LOAD, STORE)
_OF_A_BLOCK = (TILE_ATOMIC, BLOCK_ATOMIC)

Clock = list[int]
Cell = tuple[Any, ...]


@dataclass
class _Made:
    what: int
    block: int
    thread: int
    time: int  # of the thread that made it


@dataclass
class Model:
    """What is wrong with a program, after ``run``."""

    program: Program
    findings: set[Finding] = field(default_factory=set)
    _accesses: dict[Cell, list[_Made]] = field(default_factory=dict)
    _written: set[Cell] = field(default_factory=set)

    def run(self) -> set[Finding]:
        """Runs it as the CPU device does: block after block, in one warp after warp, from barrier to barrier."""
        count = self.program.blocks * self.program.threads
        self._clocks = [[int(other == thread) for other in range(count)] for thread in range(count)]
        self._released: list[Clock] = [[0] * count for _ in range(count)]
        self._acquired: list[Clock] = [[0] * count for _ in range(count)]
        self._messages: dict[Cell, Clock] = {}
        blocks = [self._block(block) for block in range(self.program.blocks)]
        while blocks:
            waiting = [block for block in blocks if next(block, None) is not None]
            if waiting:
                self._meet(range(count))
            blocks = waiting
        return self.findings

    def _block(self, block: int) -> Iterator[int]:
        """Until the grid's barrier, each time."""
        threads = range(self.program.threads)
        runs = {number: self._thread(block, number) for number in threads}
        first = block * self.program.threads
        while runs:
            at_barrier: list[tuple[int, int]] = []
            for lowest in range(0, len(threads), 32):
                going = [number for number in runs if lowest <= number < lowest + 32]
                waiting: dict[int, int] = {}
                while going:
                    for number in going:
                        where = next(runs[number], None)
                        if where is None:
                            del runs[number]
                        elif where[0] == WARP:
                            waiting[number] = where[1]
                        else:
                            at_barrier.append((number, where[0]))
                    going = []
                    for mask in sorted(set(waiting.values())):
                        group = [lowest + lane for lane in range(32) if mask >> lane & 1]
                        if all(waiting.get(number) == mask for number in group):
                            self._meet([first + number for number in group])
                            going += group
                    going.sort()
                    waiting = {number: mask for number, mask in waiting.items() if number not in going}
            if at_barrier and at_barrier[0][1] == BARRIER:
                self._meet([first + number for number, _ in at_barrier])
            elif at_barrier:
                yield GRID

    def _thread(self, block: int, thread: int) -> Iterator[tuple[int, int]]:
        me = block * self.program.threads + thread
        for what, n in self.program.table[:, block, thread].tolist():
            if what == WARP:
                yield WARP, n & 0xFFFFFFFF
            elif what in (BARRIER, GRID):
                yield what, 0
            elif what == FENCE:
                self._released[me] = list(self._clocks[me])
                self._clocks[me][me] += 1
                self._clocks[me] = _later(self._clocks[me], self._acquired[me])
            elif what != IDLE:
                self._access(_Made(what, block, me, self._clocks[me][me]), n)

    def _meet(self, threads: Any) -> None:
        """All that these have done comes before all that they do from now on."""
        clock = self._clocks[threads[0]]
        for number in threads:
            clock = _later(clock, self._clocks[number])
        for number in threads:
            self._clocks[number] = list(clock)
            self._clocks[number][number] += 1

    def _access(self, made: _Made, n: int) -> None:
        what, me = made.what, made.thread
        if not 0 <= n < ELEMENTS:
            self.findings.add(("out-of-bounds", what, IDLE))
            return
        cell: Cell = ("changed", n)
        if what in _OWN:
            cell = "own", me, n
        elif what in _TILE:
            cell = "tile", made.block, n
        elif what in (READ, WRITE):
            cell = "plain", n
        if what in _READS and cell not in self._written:
            self.findings.add(("uninitialized", what, IDLE))
        if what in _WRITES:
            self._written.add(cell)
        before = self._accesses.setdefault(cell, [])
        for old in before:
            conflict = what in _WRITES or old.what in _WRITES
            if what in _ATOMICS and old.what in _ATOMICS:
                conflict &= made.block != old.block and (what in _OF_A_BLOCK or old.what in _OF_A_BLOCK)
            if conflict and old.time > self._clocks[me][old.thread]:
                self.findings.add(("race", what, old.what))
        before.append(made)
        if what in _ATOMICS:
            message = self._messages.get(cell, [0] * len(self._clocks))
            self._acquired[me] = _later(self._acquired[me], message)
            if what in _WRITES:
                self._messages[cell] = _later(message, self._released[me])


def _later(one: Clock, other: Clock) -> Clock:
    return [max(pair) for pair in zip(one, other, strict=True)]
