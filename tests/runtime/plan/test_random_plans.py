"""Random recipes with branches, captured and run under random schedules, mean what they mean in NumPy run one after the
other. Canaries on both sides of all device memory stay as they are.

A recipe is a tree of tuples. ``built`` makes an operation of it, ``modelled`` runs it on NumPy arrays.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oxide
from oxide import (
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    Slice,
    cond,
    d2h,
    dup,
    f64,
    full,
    h2d,
    i32,
    kernel,
    memcpy,
    thread,
    to_device,
    value,
    while_loop,
    zeros,
)
from oxide.host.environment import whole_number
from oxide.runtime.plan import nodes
from oxide.runtime.submission import capture
from oxide.testing import DelegatingDriver, step_driver, use_driver
from tests.choosing import examples

SIZE = 6
BOXES = 4

Recipe = Any


@kernel(block=32)
def add_into(x: Slice[f64], y: DisjointSlice[f64]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = element.value + x[index.get()]


@kernel(block=32)
def halve(y: DisjointSlice[f64]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = element.value * 0.5


@kernel(block=32)
def count_down(n: DisjointSlice[i32]) -> None:
    element = n.get_mut(thread.index_1d())
    if element is not None:
        element.value -= i32(1)


@kernel(block=32)
def is_small(x: Slice[f64], flag: DisjointSlice[i32]) -> None:
    element = flag.get_mut(thread.index_1d())
    if element is not None:
        element.value = i32(1) if x[0] < 20.0 else i32(0)


def built(recipe: Recipe, boxes: list[DeviceBox]) -> DeviceOperation[Any]:
    name, *parts = recipe
    if name == "zip":
        return oxide.zip(*[built(part, boxes) for part in parts])
    if name == "chain":
        operation = built(parts[0], boxes)
        for part in parts[1:]:
            operation = operation.and_then(lambda _, part=part: built(part, boxes))
        return operation
    if name in ("dup", "full"):  # a box of the plan's own, which the rest uses as one more
        made = dup(boxes[parts[0] % len(boxes)]) if name == "dup" else full(SIZE, float(parts[0]), f64)
        return made.and_then(lambda box: built(parts[1], [*boxes, box]))
    if name == "unzip":  # two boxes of one operation, which runs once for both
        one, other, inner = parts
        pair = oxide.zip(dup(boxes[one % len(boxes)]), dup(boxes[other % len(boxes)]))
        return oxide.zip(*pair.unzip(2)).and_then(lambda both: built(inner, [*boxes, *both]))
    if name == "shared":  # it runs once, and each run has copies of it
        number, inner = parts
        made = full(SIZE, float(number), f64).and_then(lambda box: halve(box).last()).shared()
        pair = oxide.zip(made.and_then(dup), made.and_then(dup))
        return pair.and_then(lambda both: built(inner, [*boxes, *both]))
    if name == "there":  # half of a box, computed on another device
        box = boxes[parts[0] % len(boxes)]
        half = to_device(box, 1).and_then(lambda far: halve(far).last().on(1))
        return to_device(half, 0).and_then(lambda near: memcpy(box, near))
    if name == "while":
        times, inner = parts
        return full(1, times, i32).and_then(
            lambda n: while_loop(n, built(inner, boxes).and_then(lambda _: count_down(n)))
        )
    if name == "cond":
        number, *branches = parts
        then, *otherwise = [built(branch, boxes).map(lambda _: None) for branch in branches]
        return small(boxes[number % len(boxes)]).and_then(lambda flag: cond(flag, then, *otherwise))
    if name == "choose":  # one of two boxes, copied, which the rest uses as one more
        number, one, other, inner = parts
        then, second = (value(boxes[at % len(boxes)]) for at in (one, other))
        chosen = small(boxes[number % len(boxes)]).and_then(lambda flag: cond(flag, then, second))
        return chosen.and_then(lambda box: built(inner, [*boxes, box]))
    if name == "halve":
        return halve(boxes[parts[0] % len(boxes)])
    source, target = (boxes[number % len(boxes)] for number in parts)
    if name == "copy":
        return memcpy(target, source)
    return halve(target) if source is target else add_into(source, target)


def small(box: DeviceBox) -> DeviceOperation[DeviceBox]:
    return zeros(1, i32).and_then(lambda flag: is_small(box, flag).last())


def modelled(recipe: Recipe, arrays: list[Any]) -> None:
    name, *parts = recipe
    if name in ("zip", "chain"):
        for part in parts:
            modelled(part, arrays)
    elif name in ("dup", "full"):
        made = arrays[parts[0] % len(arrays)].copy() if name == "dup" else np.full(SIZE, float(parts[0]))
        modelled(parts[1], [*arrays, made])
    elif name == "unzip":
        pair = [arrays[number % len(arrays)].copy() for number in parts[:2]]
        modelled(parts[2], [*arrays, *pair])
    elif name == "shared":
        modelled(parts[1], [*arrays, *(np.full(SIZE, parts[0] * 0.5) for _ in range(2))])
    elif name == "while":
        for _ in range(parts[0]):
            modelled(parts[1], arrays)
    elif name == "cond":
        number, *branches = parts
        for branch in branches[:1] if arrays[number % len(arrays)][0] < 20 else branches[1:]:
            modelled(branch, arrays)
    elif name == "choose":
        number, one, other, inner = parts
        first, second = arrays[one % len(arrays)], arrays[other % len(arrays)]
        chosen = first if arrays[number % len(arrays)][0] < 20 else second
        modelled(inner, [*arrays, chosen if first is second else chosen.copy()])
    elif name in ("halve", "there"):
        arrays[parts[0] % len(arrays)][:] *= 0.5
    else:
        source, target = (arrays[number % len(arrays)] for number in parts)
        if name == "copy":
            target[:] = source
        elif source is target:
            target[:] *= 0.5
        else:
            target[:] += source


NUMBERS = st.integers(0, 5)
LEAVES = st.one_of(st.tuples(st.sampled_from(["add", "copy"]), NUMBERS, NUMBERS), st.tuples(st.just("halve"), NUMBERS))


def sequences(inner: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Recipe]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=4).map(lambda parts: ("zip", *parts)),
        st.lists(inner, min_size=1, max_size=4).map(lambda parts: ("chain", *parts)),
        st.tuples(st.sampled_from(["dup", "full", "shared"]), NUMBERS, inner),
        st.tuples(st.just("unzip"), NUMBERS, NUMBERS, inner),
        st.tuples(st.just("choose"), NUMBERS, NUMBERS, NUMBERS, inner),
    )


RECIPES: st.SearchStrategy[Recipe] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        sequences(inner),
        st.tuples(st.just("while"), st.integers(0, 3), inner),
        st.tuples(st.just("cond"), NUMBERS, inner),
        st.tuples(st.just("cond"), NUMBERS, inner, inner),
    ),
    max_leaves=14,
)
RECIPES_ON_TWO: st.SearchStrategy[Recipe] = st.recursive(
    st.one_of(st.tuples(st.just("there"), NUMBERS), RECIPES), sequences, max_leaves=6
)
"""Recipes with parts on a second device. A graph holds one device, and so does the body of a loop or a choice."""


class Canaries(DelegatingDriver):
    """Surrounds device memory with bytes that must not change, and frees none before they are looked at."""

    AROUND = 256
    BYTES = b"\xa5" * AROUND

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._sizes: dict[int, int] = {}
        self._freed: list[tuple[int, int]] = []  # addresses and devices

    def invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        if method == "free":
            address, stream = arguments
            self._freed.append((address, stream.device))
            return None
        if method != "allocate":
            return super().invoke(method, *arguments, **keywords)
        nbytes, stream = arguments
        address = super().invoke("allocate", nbytes + 2 * self.AROUND, stream) + self.AROUND
        self._sizes[address] = nbytes
        for place in (address - self.AROUND, address + nbytes):
            self.stamp(place, stream)
        return address

    def stamp(self, place: int, stream: Any) -> None:
        """Writes a canary to memory that was allocated on a stream."""
        ctypes.memmove(place, self.BYTES, self.AROUND)

    def read(self, place: int, streams: list[Any]) -> bytes:
        """Returns a canary. ``streams`` has a stream of each device."""
        return ctypes.string_at(place, self.AROUND)

    def left(self) -> int:
        """Returns the number of allocations that are not freed. Call ``are_intact`` first, which frees them."""
        live = self.live_allocations
        return int(live.device_count + live.host_count)

    def are_intact(self) -> bool:
        """Returns whether all canaries are unchanged. Call it when no work is left. Frees the memory that the program
        has freed."""
        streams = [self.inner.create_stream(device) for device in range(self.inner.device_count())]
        around = [place for address, size in self._sizes.items() for place in (address - self.AROUND, address + size)]
        intact = all(self.read(place, streams) == self.BYTES for place in around)
        for address, device in self._freed:
            del self._sizes[address]
            self.inner.free(address - self.AROUND, streams[device])
        for stream in streams:
            self.inner.synchronize_stream(stream)
            self.inner.destroy_stream(stream)
        self._freed.clear()
        return intact


def captured(recipe: Recipe, boxes: list[DeviceBox]) -> Callable[[], DeviceOperation[Any]]:
    return built(recipe, boxes).graph().launch


def uncaptured(recipe: Recipe, boxes: list[DeviceBox]) -> Callable[[], DeviceOperation[Any]]:
    return lambda: built(recipe, boxes)


def agrees(recipe: Recipe, seed: int, prepare: Any = captured) -> bool:
    """Returns whether a recipe does under a random schedule what NumPy does."""
    return agrees_on(Canaries(step_driver(2, seed=seed)), recipe, prepare)


def agrees_on(canaries: Canaries, recipe: Recipe, prepare: Any) -> bool:
    """Returns whether three runs do what NumPy does, with other work before, between and after them. Checks that the
    canaries are unchanged, and that no memory is left."""
    with use_driver(canaries):
        arrays = [np.arange(SIZE) + 10.0 * number for number in range(BOXES)]
        boxes = [h2d(array).sync() for array in arrays]
        run = prepare(recipe, boxes)
        streams = [oxide.devices()[0].new_stream() for _ in range(3)]
        model = [array.copy() for array in arrays]
        for number, stream in enumerate(streams):
            run().async_on(stream)
            modelled(recipe, model)
            add_into(boxes[0], boxes[1]).async_on(streams[(number + 1) % 3])
            model[1] += model[0]
        results = [d2h(box).async_on(streams[number % 3]) for number, box in enumerate(boxes)]
        for stream in streams:
            stream.synchronize()
        same = all(np.array_equal(result, expected) for result, expected in zip(results, model, strict=True))
        del run, boxes, results, streams
        gc.collect(0)
        oxide.reclaim.drain()
        assert canaries.are_intact()
        assert canaries.left() == 0
        return same


def planned(recipe: Recipe, boxes: list[DeviceBox]) -> Callable[[], DeviceOperation[Any]]:
    operation = oxide.planned(built(recipe, boxes))
    return lambda: operation


def fused(recipe: Recipe, boxes: list[DeviceBox]) -> Callable[[], DeviceOperation[Any]]:
    operation = built(recipe, boxes).fused()
    return lambda: operation


def captured_and_fused(recipe: Recipe, boxes: list[DeviceBox]) -> Callable[[], DeviceOperation[Any]]:
    return built(recipe, boxes).graph(fuse=True).launch


COUNT = whole_number("OXIDE_RANDOM_PLANS", least=1)
"""How many recipes to try in each way. Fusing takes longest, as nearly every recipe has a fused kernel of its own."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prepare", "count"), [(captured, 300), (planned, 300), (uncaptured, 200), (fused, 25), (captured_and_fused, 25)]
)
def test_a_recipe_under_a_random_schedule_equals_its_sequential_meaning(prepare: Any, count: int) -> None:
    all_agree(RECIPES, prepare, count)


def all_agree(recipes: st.SearchStrategy[Recipe], prepare: Any, count: int) -> None:
    @settings(max_examples=COUNT or examples(count), deadline=None, suppress_health_check=list(HealthCheck))
    @given(recipe=recipes, seed=st.integers(0, 2**32))
    def agree(recipe: Recipe, seed: int) -> None:
        assert agrees(recipe, seed, prepare)

    agree()


@pytest.mark.slow
@pytest.mark.parametrize(("prepare", "count"), [(planned, 150), (uncaptured, 150), (fused, 10)])
def test_a_recipe_on_two_devices_equals_its_sequential_meaning(prepare: Any, count: int) -> None:
    all_agree(RECIPES_ON_TWO, prepare, count)


@pytest.mark.parametrize("distance", [-8, SIZE * 8])
def test_the_canaries_see_a_write_beside_a_box(distance: int) -> None:
    with use_driver(Canaries(step_driver(2))) as driver:
        box = zeros(SIZE, f64).sync()
        stream = driver.create_stream(0)
        driver.fill(box.ptr + distance, b"\0", 8, stream)
        driver.synchronize_stream(stream)
        assert not driver.are_intact()


FORKED = ("zip", ("chain", ("add", 0, 1), ("copy", 1, 2)), ("chain", ("add", 2, 3), ("halve", 2), ("add", 3, 0)))


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["no edges", "no order of a write after reads"])
def test_without_the_edges_captured_recipes_go_wrong(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: it needs each kind of edge."""
    assert all(agrees(FORKED, seed) for seed in range(20))
    dependencies = nodes.dependencies

    def without(recorded: Any) -> Any:
        if broken == "no edges":
            return [() for _ in recorded]
        return dependencies([nodes.Node("", (), "", (), n.writes) for n in recorded])

    monkeypatch.setattr(capture, "dependencies", without)
    assert not all(agrees(FORKED, seed) for seed in range(20))
