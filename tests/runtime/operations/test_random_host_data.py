"""Random recipes with functions behind copies to the host, run in every way, mean what they mean in NumPy.

A recipe is a tree of tuples: its kind, the kind of its result ("box", "array", "number" or "tuple"), and its parts.
``built`` makes an operation of it, and ``Model`` evaluates it on NumPy arrays, in the order of the program. The
functions of the program note what they see, so that a function that sees an array too early is found even if the
result is right. Stores into boxes of the program show the order of the effects.

``OXIDE_RANDOM_HOST_DATA=5000`` tries as many recipes in each way.
"""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import (
    CudaGraph,
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    Slice,
    as_completed,
    d2h,
    dup,
    f64,
    full,
    gather,
    h2d,
    kernel,
    memcpy,
    planned,
    spawn,
    thread,
    value,
    with_context,
    zeros,
)
from oxide.driver.cpu import CpuDriver
from oxide.host.environment import whole_number
from oxide.testing import seeded_driver, use_driver

COUNT = whole_number("OXIDE_RANDOM_HOST_DATA", least=1) or 25
BOXES = 3
SIZES = (5, 5, 5, 300, 40_000)  # the last is copied in chunks through the ring where page-locked memory is limited

Recipe = tuple[Any, ...]


@kernel(block=64)
def twice_and(x: Slice[f64], c: f64, y: DisjointSlice[f64]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = 2.0 * x[index.get()] + c


def recipe(draw: random.Random, kind: str, depth: int, names: tuple[str, ...] = (), recorded: bool = False) -> Recipe:
    """Draws a recipe whose result is of a kind. ``names`` are the shared operations in scope, all of arrays. With
    ``recorded``, leaves out what a plan cannot record, as a plan may then call functions twice."""

    def of(kind: str, names: tuple[str, ...] = names, recorded: bool = recorded) -> Recipe:
        return recipe(draw, kind, depth - 1, names, recorded)

    if depth <= 0:
        if kind == "box":
            return draw.choice(
                [("held", draw.randrange(BOXES)), ("up", draw.randrange(9)), ("full", draw.randrange(9))]
            )
        if kind == "array":
            return ("use", draw.choice(names)) if names and draw.random() < 0.5 else ("down", of("box"))
        return ("number", draw.randrange(9))
    if kind == "box":
        ways = ["launch", "launch", "dup", "reup", "upload", "by number", "last", "context"]
        way = draw.choice(ways if recorded else [*ways, "store"])
        if way in ("launch", "dup"):
            return way, of("box")
        if way in ("reup", "upload"):  # ``h2d`` itself, or in a function of the program
            return way, of("array")
        if way == "by number":
            return way, of("number")
        if way == "store":
            return way, draw.randrange(BOXES), draw.random() < 0.5, of("array")
        if way == "last":
            return way, of(draw.choice(["array", "number", "box"])), of("box")
        return way, of("box")
    if kind == "array":
        ways = ["down", "down", "map", "map", "inspect", "sum", "first", "planned", "fused", "then"]
        way = draw.choice(ways if recorded else [*ways, "let", "let", "replay", "far"])
        if way == "down":
            return way, of("box")
        if way in ("map", "inspect"):
            return way, of("array")
        if way in ("planned", "fused"):
            return way, of("array", (), True)
        if way == "sum":  # a function of a tuple of arrays
            return way, *[of("array") for _ in range(draw.randint(1, 3))]
        if way == "let":
            name = f"s{depth}{draw.randrange(1000)}"
            return way, name, of("array"), of("array", (*names, name))
        if way == "first":
            return way, of("array"), of(draw.choice(["array", "number", "box"]))
        if way == "replay":
            return way, draw.randrange(BOXES)
        if way == "far":
            return way, draw.randrange(9), draw.random() < 0.5
        return way, of("array"), of("array")
    way = draw.choice(["number", "mean", "mean", "plus"])
    if way == "number":
        return way, draw.randrange(9)
    return way, of("array" if way == "mean" else "number")


class Program:
    """Builds operations of recipes. ``seen`` is what the functions of the program have noted."""

    def __init__(self, size: int, boxes: list[DeviceBox], graphs: list[CudaGraph[Any]]) -> None:
        self.size = size
        self.boxes = boxes
        self.graphs = graphs
        self.outputs: dict[int, Any] = {}
        self.seen: list[float] = []

    def note(self, found: Any) -> None:
        self.seen.append(float(np.sum(found)))

    def noted(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noting(found: Any) -> Any:
            self.note(found)
            return function(found)

        return noting

    def built(self, recipe: Recipe, shared: dict[str, DeviceOperation[Any]]) -> DeviceOperation[Any]:
        name, *parts = recipe
        size = self.size

        def of(part: Recipe) -> DeviceOperation[Any]:
            return self.built(part, shared)

        if name == "held":
            return value(self.boxes[parts[0]])
        if name == "up":
            return h2d(np.arange(size) + float(parts[0]))
        if name == "full":
            return full(size, float(parts[0]), f64)
        if name == "number":
            return value(float(parts[0]))
        if name == "launch":
            return of(parts[0]).and_then(lambda x: twice_and(x, 1.0, zeros(size, f64))).last()
        if name == "dup":
            return of(parts[0]).and_then(dup)
        if name == "reup":
            return of(parts[0]).and_then(h2d)
        if name == "upload":
            return of(parts[0]).and_then(self.noted(lambda array: h2d(array + 1)))
        if name == "by number":
            return (
                of(parts[0])
                .and_then(self.noted(lambda number: twice_and(self.boxes[0], number, zeros(size, f64))))
                .last()
            )
        if name == "store":
            number, direct, inner = parts
            box = self.boxes[number]
            store = functools.partial(memcpy, box) if direct else self.noted(lambda array: memcpy(box, array))
            return of(inner).and_then(store).and_then(dup)
        if name == "last":
            return oxide.zip(*map(of, parts)).last()
        if name == "context":
            return with_context(lambda _: of(parts[0])).and_then_with_context(lambda _, x: dup(x))
        if name == "use":
            return shared[parts[0]]
        if name == "down":
            return of(parts[0]).and_then(d2h)
        if name == "map":
            return of(parts[0]).map(self.noted(lambda array: array * 0.5 + 1))
        if name == "inspect":
            return of(parts[0]).inspect(self.note)
        if name == "sum":
            return oxide.zip(*map(of, parts)).map(self.noted(lambda arrays: np.sum(arrays, axis=0) * 0.25))
        if name == "let":
            bound, inner, body = parts
            once = of(inner).shared()
            once.consume()  # perhaps the body does not use it
            return self.built(body, shared | {bound: once})
        if name == "first":
            return oxide.zip(*map(of, parts)).unzip(2)[0]
        if name == "planned":
            return planned(of(parts[0]))
        if name == "fused":
            return of(parts[0]).fused()
        if name == "replay":
            return self.graphs[parts[0]].launch().map(lambda _: self.output(parts[0]))
        if name == "far":
            start, mapped = parts
            there = (
                h2d(np.arange(size) + float(start))
                .and_then(lambda x: twice_and(x, 3.0, zeros(size, f64)).last())
                .to_host()
            )
            placed = (there.map(self.noted(lambda array: array - 1)) if mapped else there).on(1)
            return oxide.zip(value(None), placed).last()  # what follows is not placed
        if name == "then":  # the second operation is made when the first array is there
            first, second = parts
            return of(first).and_then(
                self.noted(lambda array: of(second).map(self.noted(lambda other: 0.5 * (array + other))))
            )
        if name == "mean":
            return of(parts[0]).map(self.noted(lambda array: float(array.mean())))
        assert name == "plus"
        return of(parts[0]).map(self.noted(lambda number: number + 1))

    def output(self, number: int) -> Any:
        if number not in self.outputs:
            self.outputs[number] = self.graphs[number].take_output()
        copy = self.outputs[number].copy()
        self.note(copy)
        return copy


class Model:
    """Evaluates recipes."""

    def __init__(self, size: int, boxes: list[Any]) -> None:
        self.size = size
        self.boxes = boxes
        self.seen: list[float] = []

    def note(self, found: Any) -> Any:
        self.seen.append(float(np.sum(found)))
        return found

    def of(self, recipe: Recipe, shared: dict[str, Any]) -> Any:
        name, *parts = recipe
        if name == "held":
            return self.boxes[parts[0]]
        if name in ("up", "full"):
            return (np.arange(self.size) if name == "up" else np.zeros(self.size)) + float(parts[0])
        if name == "number":
            return float(parts[0])
        if name == "use":
            cell = shared[parts[0]]
            if callable(cell[0]):
                cell[0] = cell[0]()
            return cell[0]
        if name == "let":
            bound, inner, body = parts
            return self.of(body, shared | {bound: [lambda: self.of(inner, shared)]})
        if name == "far":
            start, mapped = parts
            found = 2.0 * (np.arange(self.size) + start) + 3.0
            return self.note(found) - 1 if mapped else found
        if name == "replay":
            return self.note(self.boxes[parts[0]].copy())
        if name == "store":
            self.boxes[parts[0]][:] = found = (
                self.of(parts[2], shared) if parts[1] else self.note(self.of(parts[2], shared))
            )
            return found.copy()
        if name == "then":
            array = self.note(self.of(parts[0], shared))
            return 0.5 * (array + self.note(self.of(parts[1], shared)))
        if name in ("sum", "first", "last"):
            found = [self.of(part, shared) for part in parts]
            if name == "sum":
                self.note(found)
                return np.sum(found, axis=0) * 0.25
            return found[0 if name == "first" else -1]
        found = self.of(parts[0], shared)
        if name == "launch":
            return 2.0 * found + 1.0
        if name in ("dup", "reup", "down", "context"):
            return found.copy()
        if name == "by number":
            return 2.0 * self.boxes[0] + self.note(found)
        if name == "upload":
            return self.note(found) + 1
        if name == "map":
            return self.note(found) * 0.5 + 1
        if name == "inspect":
            return self.note(found)
        if name == "mean":
            return float(self.note(found).mean())
        if name == "plus":
            return self.note(found) + 1
        return found  # planned, fused


def recipes(seed: int) -> Iterator[tuple[random.Random, int, list[Recipe]]]:
    """Yields for each case its generator, its size, and three recipes that are run one after the other."""
    for number in range(COUNT):
        draw = random.Random(f"{seed} {number}")
        kinds = draw.choices(["array", "number", "box"], [4, 1, 1], k=3)
        yield draw, draw.choice(SIZES), [recipe(draw, kind, draw.randint(1, 5)) for kind in kinds]


def program(size: int) -> tuple[Program, Model]:
    arrays = [np.arange(size) * 0.5 + 10.0 * number for number in range(BOXES)]
    boxes = [h2d(array).sync() for array in arrays]
    graphs = [d2h(box).graph() for box in boxes]
    return Program(size, boxes, graphs), Model(size, [array.copy() for array in arrays])


def operation_of(made: Program, recipe: Recipe) -> DeviceOperation[Any]:
    operation = made.built(recipe, {})
    return operation.and_then(lambda box: d2h(box)) if recipe[0] in BOX_KINDS else operation


BOX_KINDS = {"held", "up", "full", "launch", "dup", "reup", "upload", "by number", "store", "last", "context"}


def check(made: Program, model: Model, recipes: list[Recipe], found: list[Any]) -> None:
    expected = [np.copy(model.of(recipe, {})) for recipe in recipes]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    np.testing.assert_allclose(made.seen, model.seen, rtol=1e-12)
    for box, array in zip(made.boxes, model.boxes, strict=True):
        np.testing.assert_allclose(d2h(box).sync(), array, rtol=1e-12)


def one_after_the_other(
    how: Callable[[DeviceOperation[Any]], Any],
) -> Callable[[list[DeviceOperation[Any]]], list[Any]]:
    return lambda operations: [how(operation) for operation in operations]


def awaited(operations: list[DeviceOperation[Any]]) -> list[Any]:
    async def main() -> list[Any]:
        return [await operation for operation in operations]

    return trio.run(main)


def of_a_future(operations: list[DeviceOperation[Any]]) -> list[Any]:
    """Each is awaited by two tasks, one of which is cancelled at once."""

    async def main() -> list[Any]:
        found = []
        for operation in operations:
            future = operation.into_future()
            with trio.CancelScope() as scope:
                scope.cancel()
                await future
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as scope:
                    nursery.start_soon(_wait, future)
                    scope.cancel()
                found.append(await future)
        return found

    return trio.run(main)


async def _wait(future: Any) -> None:
    with trio.move_on_after(0):
        await future


def spawned(operations: list[DeviceOperation[Any]]) -> list[Any]:
    async def main() -> list[Any]:
        found = []
        for operation in operations:
            async with trio.open_nursery() as nursery:
                found.append(await spawn(nursery, operation))
        return found

    return trio.run(main)


WAYS: dict[str, Callable[[list[DeviceOperation[Any]]], list[Any]]] = {
    "sync": one_after_the_other(lambda operation: operation.sync()),
    "sync_on": one_after_the_other(lambda operation: operation.sync_on(oxide.devices()[0].new_stream())),
    "await": awaited,
    "future": of_a_future,
    "spawn": spawned,
    "chain": lambda operations: one_after_the_other(lambda each: each.sync())([oxide.zip(*operations)])[0],
}


@pytest.mark.parametrize("way", list(WAYS))
def test_a_recipe_under_a_random_schedule_means_what_it_means_in_numpy(way: str) -> None:
    for number, (_, size, trees) in enumerate(recipes(list(WAYS).index(way))):
        driver = seeded_driver(number, 2)
        with use_driver(driver):
            made, model = program(size)
            try:
                check(made, model, trees, WAYS[way]([operation_of(made, tree) for tree in trees]))
            except BaseException as error:
                error.add_note(f"case {number}: {size=} {trees=}")
                raise
            del made
        driver.close()


@pytest.mark.parametrize("way", ["gather", "as_completed"])
def test_recipes_at_the_same_time_mean_what_they_mean_alone(way: str) -> None:
    """On several streams of a device with threads, each recipe with boxes of its own, while other threads run some."""

    async def gathered(operations: list[DeviceOperation[Any]]) -> list[Any]:
        if way == "gather":
            return list(await gather(*operations))
        numbered = [operation.map(lambda found, n=number: (n, found)) for number, operation in enumerate(operations)]
        found = [each async for each in as_completed(numbered, limit=4)]
        return [result for _, result in sorted(found, key=lambda pair: pair[0])]

    with use_driver(CpuDriver(2)):
        cases = [(size, tree) for _, size, trees in recipes(50) for tree in trees]
        errors: list[BaseException] = []

        def beside() -> None:
            try:
                for size, tree in cases[::3]:
                    made, model = program(size)
                    check(made, model, [tree], [operation_of(made, tree).sync()])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=beside) for _ in range(2)]
        for each in threads:
            each.start()
        for first in range(0, len(cases), 15):
            some = cases[first : first + 15]
            programs = [program(size) for size, _ in some]
            operations = [operation_of(made, tree) for (made, _), (_, tree) in zip(programs, some, strict=True)]
            found = trio.run(gathered, operations)
            for (made, model), (_, tree), result in zip(programs, some, found, strict=True):
                check(made, model, [tree], [result])
        for each in threads:
            each.join()
        assert not errors, errors[0]


def test_where_page_locked_memory_is_short_the_results_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads then go through a ring into ordinary memory, which an upload reads when it is submitted."""
    monkeypatch.setenv("OXIDE_PINNED_LIMIT", "0")
    for number, (_, _, trees) in enumerate(recipes(60)):
        driver = seeded_driver(number, 2)
        with use_driver(driver):
            arrays = [np.arange(300) * 0.5 + 10.0 * box for box in range(BOXES)]
            made = Program(300, [h2d(array).sync() for array in arrays], [])
            # A graph and a plan need page-locked memory for their results.
            trees = [tree for tree in trees if not any(name in str(tree) for name in ("replay", "planned", "fused"))]
            check(
                made,
                Model(300, [array.copy() for array in arrays]),
                trees,
                WAYS["sync"]([operation_of(made, tree) for tree in trees]),
            )
        driver.close()
