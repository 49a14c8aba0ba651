"""Random programs, right and wrong, are judged by the sanitizer as by a model with complete vector clocks."""

from __future__ import annotations

import random

import numpy as np
import pytest

from oxide import Kernel
from tests.compiler.sanitizer.model import (
    ATOMIC,
    BARRIER,
    ELEMENTS,
    GRID,
    IDLE,
    LOAD,
    LOOK,
    READ,
    STORE,
    TILE_ATOMIC,
    TILE_READ,
    TILE_WRITE,
    WARP,
    WRITE,
    Finding,
    Model,
    Program,
    drawn,
    interpreter,
)
from tests.compiler.sanitizer.sanitized import on_the_cpu_device

PROGRAMS = 250


pytestmark = on_the_cpu_device


@pytest.fixture(scope="module")
def kernels() -> dict[bool, Kernel]:
    return {meets: interpreter(meets) for meets in (False, True)}


def races(findings: set[Finding]) -> set[Finding]:
    return {finding for finding in findings if finding[0] == "race"}


@pytest.mark.slow
@pytest.mark.parametrize("grid", [False, True])
def test_what_a_model_finds_wrong_is_found_and_nothing_else(kernels: dict[bool, Kernel], grid: bool) -> None:
    right = wrong = 0
    for seed in range(PROGRAMS):
        program = drawn(random.Random(seed), fences=False, grid=grid)
        expected, found = Model(program).run(), program.run(kernels[grid])
        assert found <= expected, f"program {seed}"
        assert expected - found <= races(expected), f"program {seed}"
        # Of an element that many threads race for, not every pair is told.
        assert bool(races(found)) == bool(races(expected)), f"program {seed}"
        right, wrong = right + (not expected), wrong + bool(expected)
    assert min(right, wrong) > PROGRAMS // 10


@pytest.mark.slow
@pytest.mark.parametrize("grid", [False, True])
def test_fences_hide_a_race_at_most(kernels: dict[bool, Kernel], grid: bool) -> None:
    for seed in range(PROGRAMS):
        program = drawn(random.Random(seed), fences=True, grid=grid)
        expected, found = Model(program).run(), program.run(kernels[grid])
        assert found <= expected, f"program {seed}"
        assert expected - found <= races(expected), f"program {seed}"


def program_of(*steps: dict[int, tuple[int, int]] | int, threads: int = 3, blocks: int = 1) -> Program:
    """Each step is what some threads do with which element, counted through the blocks, or what all do."""
    table = np.zeros((len(steps), blocks * threads, 2), np.int32)
    for step, done in enumerate(steps):
        if isinstance(done, dict):
            for thread, (what, n) in done.items():
                table[step, thread] = what, n
        else:
            table[step, :, 0] = done
    return Program(table.reshape(len(steps), blocks, threads, 2))


FIRST_TWO = {0: (WARP, 0b011), 1: (WARP, 0b011)}
LAST_TWO = {1: (WARP, 0b110), 2: (WARP, 0b110)}


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        # Cleared by a thread that then adds to it before the others do: its own addition does not hide the write.
        (
            program_of({0: (TILE_WRITE, 0)}, {0: (TILE_ATOMIC, 0)}, {1: (TILE_ATOMIC, 0)}),
            {("race", TILE_ATOMIC, TILE_WRITE)},
        ),
        (program_of({0: (TILE_WRITE, 0)}, BARRIER, {0: (TILE_ATOMIC, 0), 1: (TILE_ATOMIC, 0)}), set()),
        # Atomic loads after a plain one do not hide that one.
        (
            program_of({0: (STORE, 0)}, GRID, {0: (LOOK, 0), 1: (LOAD, 0), 2: (LOAD, 0)}, {3: (STORE, 0)}, blocks=2),
            {("race", STORE, LOOK)},
        ),
        # A thread's own load does not hide its store.
        (program_of({0: (STORE, 0)}, {0: (LOAD, 0)}, {1: (LOOK, 0)}), {("race", LOOK, STORE)}),
        # Two synchronisations that share a lane pass on what one of them ordered.
        (program_of({0: (TILE_WRITE, 0)}, FIRST_TWO, LAST_TWO, {2: (TILE_READ, 0)}), set()),
        (program_of({0: (TILE_WRITE, 0)}, LAST_TWO, FIRST_TWO, {2: (TILE_READ, 0)}), {("race", TILE_READ, TILE_WRITE)}),
        # The grid's barrier orders blocks, and the block's own does not.
        (program_of({0: (WRITE, 0)}, GRID, {3: (READ, 0)}, blocks=2), set()),
        (program_of({0: (WRITE, 0)}, GRID, {1: (READ, 0)}), set()),
        (program_of({0: (WRITE, 0)}, BARRIER, {3: (READ, 0)}, blocks=2), {("race", READ, WRITE)}),
        (program_of({0: (WRITE, 0)}, GRID, {0: (WRITE, 1)}, {3: (READ, 1)}, blocks=2), {("race", READ, WRITE)}),
        # What a block wrote into its shared memory before the grid's barrier is there after it, and nobody else's.
        (program_of({0: (TILE_WRITE, 0)}, GRID, {1: (TILE_READ, 0)}, blocks=2), set()),
        (program_of({0: (TILE_WRITE, 0)}, GRID, {3: (TILE_READ, 0)}, blocks=2), {("uninitialized", TILE_READ, IDLE)}),
        (program_of({0: (ATOMIC, ELEMENTS)}), {("out-of-bounds", ATOMIC, IDLE)}),
    ],
)
def test_programs_that_are_easily_misjudged(
    kernels: dict[bool, Kernel], program: Program, expected: set[Finding]
) -> None:
    assert Model(program).run() == expected
    assert program.run(kernels[True]) == expected
