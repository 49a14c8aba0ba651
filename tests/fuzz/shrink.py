"""Makes a failing program smaller while it still fails: without statements, without loops, with simpler expressions."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator

from .arithmetic import FLOATS, INTEGERS
from .interpret import Launch
from .tree import Expr, Program, Stmt

Fails = Callable[[Program, Launch], bool]


def shrink(program: Program, launch: Launch, fails: Fails, seconds: float) -> tuple[Program, Launch]:
    """Returns the smallest program and launch found in so many seconds for which ``fails`` is still true."""
    deadline = time.monotonic() + seconds
    changed = True
    while changed and time.monotonic() < deadline:
        changed = False
        for attempt in (_without_statements, _with_bodies, _with_simpler_expressions, _without_parts):
            position = 0
            while time.monotonic() < deadline:
                candidate = attempt(copy.deepcopy(program), position)
                if candidate is None:
                    break
                if candidate and fails(candidate, launch):
                    program, changed = candidate, True
                else:
                    position += 1
        for smaller in _smaller_launches(launch):
            if time.monotonic() >= deadline:
                break
            if fails(program, smaller):
                launch, changed = smaller, True
                break
    return program, launch


def _bodies(program: Program) -> Iterator[list[Stmt]]:
    def inside(body: list[Stmt]) -> Iterator[list[Stmt]]:
        yield body
        for statement in body:
            for each in statement.bodies:
                yield from inside(each)

    for body in (program.body, *(function.body for function in program.functions)):
        yield from inside(body)


def _places(program: Program) -> list[tuple[list[Stmt], int]]:
    return [(body, place) for body in _bodies(program) for place in range(len(body))]


# Each attempt changes its copy of a program at a position, and gives it back, or None past the last position; False
# where there is nothing to do at that one.


def _without_statements(program: Program, position: int) -> Program | bool | None:
    places = _places(program)
    if position >= len(places):
        return None
    # From the end, as what comes first is what others need.
    body, place = places[-1 - position]
    del body[place]
    return program


def _with_bodies(program: Program, position: int) -> Program | bool | None:
    places = _places(program)
    if position >= len(places):
        return None
    body, place = places[position]
    statement = body[place]
    if not statement.bodies:
        return False
    body[place : place + 1] = [each for inner in statement.bodies for each in inner]
    return program


def _with_simpler_expressions(program: Program, position: int) -> Program | bool | None:
    slots: list[tuple[list[Expr], int]] = []

    def collect(holder: list[Expr]) -> None:
        for place, each in enumerate(holder):
            slots.append((holder, place))
            collect(each.args)

    for statement in program.statements:
        collect(statement.exprs)
    number, which = divmod(position, 4)
    if number >= len(slots):
        return None
    holder, place = slots[number]
    found = holder[place]
    options = [each for each in found.args if each.type == found.type][:3]
    if found.args and found.type in (*INTEGERS, *FLOATS):
        zero: float | int = 1.0 if found.type in FLOATS else 1
        literal = Expr("literal", "f64" if found.type in FLOATS else "i64", [], zero)
        options.append(Expr("convert", found.type, [literal]))
    if which >= len(options):
        return False
    holder[place] = options[which]
    return program


def _without_parts(program: Program, position: int) -> Program | bool | None:
    parts = [program.functions, program.arrays, program.parameters]
    slots = [(part, place) for part in parts for place in range(len(part))]  # type: ignore[arg-type]
    if position >= len(slots):
        return None
    part, place = slots[position]
    del part[place]
    return program


def _smaller_launches(launch: Launch) -> Iterator[Launch]:
    for axis in (0, 1):
        if launch.grid[axis] > 1:
            grid = tuple(1 if each == axis else side for each, side in enumerate(launch.grid))
            yield Launch(grid, launch.block, launch.arguments)  # type: ignore[arg-type]
    for name, given in launch.arguments.items():
        if isinstance(given, list) and len(given) > 1:
            for kept in (len(given) // 2, len(given) - 1):
                yield Launch(launch.grid, launch.block, {**launch.arguments, name: given[:kept]})
        elif isinstance(given, int) and not isinstance(given, bool) and given not in (0, 1):
            for number in (1, 0):
                yield Launch(launch.grid, launch.block, {**launch.arguments, name: number})
