"""Random programs for ``test_core_forms.py``. As a program: runs the programs of some seeds with the core's form that
the environment asks for, and prints what each of their steps did: a JSON list of a list of lines for each seed."""

from __future__ import annotations

import gc
import itertools
import json
import random
import re
import struct
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import trio

import oxide
from oxide import (
    Arc,
    Array,
    DeviceBox,
    DeviceError,
    DeviceOperation,
    DisjointSlice,
    ExecutionContext,
    LaunchConfig,
    Slice,
    bool_,
    d2h,
    dup,
    f32,
    f64,
    full,
    h2d,
    i8,
    i16,
    i32,
    i64,
    kernel,
    memcpy,
    pinned_empty,
    thread,
    u8,
    u16,
    u32,
    u64,
    value,
    with_context,
    zeros,
)
from oxide.errors import OutOfMemoryError
from oxide.host import core
from oxide.runtime.awaiting import future
from oxide.runtime.launching.launch import KernelLaunch
from oxide.runtime.loop import pace
from oxide.runtime.memory import reclaim
from oxide.testing import Call, FailingDriver, RecordingDriver, step_driver, use_driver

STEPS = 24
ANY_ORDER = ("  free", "  synchronize_stream")
SIZE = 8
T = TypeVar("T", f32, f64, i32)
CONFIG = LaunchConfig(1, 32)


class Pair(NamedTuple):
    n: i32
    scale: f32


@kernel(block=32)
def add(x: Slice[f32], y: Slice[f32], z: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = z.get_mut(index)
    if element is not None:
        element.value = x[index.get()] + y[index.get()]


@kernel(block=32)
def both(x: DisjointSlice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    first, second = x.get_mut(index), y.get_mut(index)
    if first is not None and second is not None:
        first.value = second.value + 1.0
        second.value = 2.0


@kernel(block=32)
def numbers(
    a: i8, b: u8, c: i16, d: u16, e: i32, f: u32, g: i64, h: u64, x: f32, y: f64, t: bool_, out: DisjointSlice[f64]
) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = f64(a) + f64(b) + f64(c) + f64(d) + f64(e) + f64(f) + x + y


@kernel(block=32, requires=("n >= 1", "len(x) >= n", "len(y) % n == 0"))
def contract(n: u32, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[i64(0)]


@kernel(block=32)
def fails(offset: i64, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get() + offset]


@kernel(block=32)
def generic(f: Callable[[T], T], x: Slice[T], y: DisjointSlice[T]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = f(x[index.get()])


@kernel(block=32)
def with_pair(pair: Pair, x: Array[f32, 1], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = pair.scale


@kernel(block=(8, 4))
def matrix(x: Slice[f32, 2], y: DisjointSlice[f32, 2]) -> None:
    index = thread.index_2d(y.shape[1])
    if index is not None:
        element = y.get_mut(index)
        if element is not None:
            element.value = x[0, 0]


EDGES = [2**bits + near for bits in (7, 8, 15, 16, 31, 32, 63, 64) for near in (-1, 0)]
EDGES += [-number - less for number in EDGES[::2] for less in (0, 1, 2)]
NUMBERS: list[Any] = [
    *EDGES, 0, 1, -1, True, 0.0, -0.0, 1.5, 3.4e38, 3.5e38, -1e300, float("inf"), float("nan"), np.int8(-3),
    np.uint64(2**64 - 1), np.float32(2.5), np.float64(1e40), np.bool_(True), np.array(3), 1j, "3", None, 2**200,
]  # fmt: skip
RANGES = [(-128, 127), (0, 255), (-(2**15), 2**15 - 1), (0, 2**16 - 1), (-(2**31), 2**31 - 1), (0, 2**32 - 1)]
RANGES += [(-(2**63), 2**63 - 1), (0, 2**64 - 1)]


class Own(DeviceOperation[Any]):
    """An operation of a program's, perhaps one that forgets ``super().__init__``."""

    def __init__(self, box: Any, whole: bool) -> None:
        if whole:
            super().__init__()
        self.box = box

    def execute(self, context: ExecutionContext) -> Any:
        context.keep(self)
        return self.box


class Names:
    """Gives addresses and handles names that do not differ between two runs."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int, int]] = []
        self.until = sys.maxsize  # the number of the driver's call in which the names are used
        self.numbers: dict[int, str] = {}
        self.objects: dict[int, tuple[str, Any]] = {}

    def number(self, number: int, least: int = 1 << 33) -> str:
        for at in range(len(self.ranges) - 1, -1, -1):
            begin, size, since = self.ranges[at]
            if begin <= number < begin + size and since <= self.until:
                return f"memory {at} + {number - begin}"
        return str(number) if abs(number) < least else self.numbers.setdefault(number, f"number {len(self.numbers)}")

    def params(self, params: bytes) -> str:
        words = [params[at : at + 8] for at in range(0, len(params), 8)]
        plain = [self.number(struct.unpack("@Q", word)[0]) if len(word) == 8 else "" for word in words]
        return " ".join(
            name if name.startswith("memory") else word.hex() for name, word in zip(plain, words, strict=True)
        )

    def text(self, text: str) -> str:
        return re.sub(r"0x[0-9a-f]+", lambda found: f"<{self.number(int(found[0], 16), least=0)}>", text)

    def any(self, thing: Any) -> str:
        if isinstance(thing, bool | float | str | None):
            return self.text(repr(thing))
        if isinstance(thing, int):
            return self.number(thing)
        if isinstance(thing, bytes):
            return self.params(thing)
        if isinstance(thing, np.ndarray):
            return f"array {thing.dtype} {thing.shape} {np.asarray(thing).tolist()}"
        if isinstance(thing, DeviceBox):
            return f"box {thing.dtype} {thing.shape} {thing.strides} at {self.any(thing.ptr)}"
        if isinstance(thing, Arc):
            return f"arc of {self.any(thing.value)}"
        if isinstance(thing, tuple | list):
            return f"({', '.join(map(self.any, thing))})"
        name, _ = self.objects.setdefault(id(thing), (f"{type(thing).__name__} {len(self.objects)}", thing))
        return name


class Program:
    """One random program, with what it has done so far."""

    def __init__(self, seed: int, driver: Any) -> None:
        self.random = random.Random(seed)
        self.recorded: RecordingDriver = driver
        self.failing: FailingDriver = driver.inner
        self.names = Names()
        self.lines: list[str] = []
        self.streams = [oxide.devices()[number].new_stream() for number in (0, 0, 0, 0, 0, 1)]
        self.boxes: list[Any] = []
        self.operations: list[DeviceOperation[Any]] = []
        self.futures: list[Any] = []
        self.graphs: list[Any] = []
        self.wildness = self.random.choice((0.02, 0.1, 0.4))
        self.calls = 0
        self.drained = False
        self.noted = 0

    def pick(self, *things: Any) -> Any:
        return self.random.choice(things)

    def wild(self) -> bool:
        """Returns whether what comes next may be wrong."""
        return self.random.random() < self.wildness

    def stream(self) -> Any:
        return self.pick(*(self.streams if self.wild() else self.streams[:-1]))

    # Arguments

    def box(self) -> Any:
        wild = self.wild()
        if not self.boxes or self.random.random() < 0.1:
            shape, dtype = (SIZE,), np.float32
            if wild:
                shape = self.pick((SIZE,), (0,), (5,), (2, SIZE), (2, 0))
                dtype = self.pick(np.float32, np.float32, np.float64, np.int32)
            self.boxes.append(h2d(np.ones(shape, dtype)).sync_on(self.stream()))
        box = self.pick(*self.boxes)
        if self.random.random() < 0.1:
            return Arc(box) if not isinstance(box, Arc) else box.clone()
        plain = box.value if isinstance(box, Arc) else box
        if wild and plain.ndim:
            return self.pick(plain[1:], plain[::2], plain.T, plain[:0], plain[..., 1:3])
        return box

    def argument(self) -> Any:
        if self.random.random() < 0.8:
            return self.box()
        if not self.wild():
            return self.pick(value(self.box()), zeros(SIZE), dup(self.box()), h2d(np.ones(SIZE, np.float32)))
        return self.pick(
            np.ones(SIZE, np.float32), None, 3, (1, 2), value(2), zeros(SIZE, i32), lambda x: x, Arc(3), "x",
            self.operation(1),
        )  # fmt: skip

    def scalar(self, least: int, most: int) -> Any:
        if not self.wild():
            return self.pick(least, most, 0, 1, most // 2)
        return self.pick(least - 1, most + 1, True, np.int64(1), np.uint8(7), value(1), *NUMBERS)

    def config(self, found: Any) -> Any:
        kind = self.random.random()
        if kind < 0.4:
            return found
        if kind < 0.7:
            return found[CONFIG if not self.wild() else self.pick(LaunchConfig(1, (8, 4)), LaunchConfig(1, 2))]
        if not self.wild():
            return found[self.pick(1, 2, (1,), (1, 1), (1, 1, 1)), self.pick(32, 64, (32,), (32, 1, 1), np.int64(32))]
        grid = self.pick(
            1, (2, 1), 0, -1, 2**31 - 1, 2**31, 2**40, (1, 65535), (1, 2**16), 1.0, True, (), None, (1,) * 4
        )
        return found[grid, self.pick(32, (8, 4), 1024, 1025, (1024, 2), 0, "3", (1, 1, 64), (1, 1, 65))]

    def launch(self) -> Any:
        made = self.pick(add, add, add, both, numbers, numbers, contract, fails, generic, with_pair, matrix)
        wild = self.wild()
        if made is numbers:
            arguments = [self.scalar(*each) for each in RANGES]
            arguments += [self.pick(1.5, -0.0, 3.4028234663852886e38), self.pick(2.5, 1e300, float("inf"))]
            arguments.append(self.pick(True, False))
            if wild:
                arguments[self.random.randrange(len(arguments))] = self.pick(*NUMBERS)
            arguments.append(self.argument() if wild else zeros(4, f64).sync_on(self.stream()))
        elif made is contract:
            number = self.pick(0, 3, 9, 2**32, *NUMBERS) if wild else self.pick(1, 2, 4, 8)
            arguments = [number, self.argument(), self.argument()]
        elif made is fails:
            arguments = [self.pick(100, -(2**63)) if wild else 0, self.argument(), self.argument()]
        elif made is generic:
            shift = self.random.randrange(3)
            arguments = [self.pick(lambda x: x + shift, lambda x: x * 2), self.argument(), self.argument()]
            if wild:
                arguments[0] = 3
        elif made is with_pair:
            pair = self.pick(Pair(1, 2.5), Pair(-(2**31), -0.0), (1, 2.0))
            if wild:
                pair = self.pick(Pair(2**31, 1.0), Pair(1, 1e39), None, (1,))
            arguments = [pair, self.argument(), self.argument()]
        elif made is matrix:
            boxes = [h2d(np.ones((4, 8), np.float32)).sync_on(self.stream()) for _ in range(2)]
            return self.config(made)(*boxes)
        else:
            arguments = [self.argument() for _ in range(len(made.parameters))]
        if self.wild() and wild:
            arguments = self.pick(arguments[1:], [*arguments, 1])
        return self.config(made)(*arguments)

    # Operations

    def function(self, depth: int) -> Any:
        """A function of the program's for ``and_then``."""
        found = self.box()

        async def late(result: Any) -> Any:
            return result

        def fail(result: Any) -> Any:
            raise self.pick(KeyError("own"), DeviceError("own"), ValueError("own"), OutOfMemoryError("own"))

        def again(result: Any) -> Any:
            first = result[0] if isinstance(result, tuple) and result else result
            return add[CONFIG](first, found, found)

        def sums(result: Any) -> Any:
            return value(self.seen(result))

        def nested(result: Any) -> Any:
            return self.operation(depth - 1)

        def copies(result: Any) -> Any:
            first = result[0] if isinstance(result, tuple) and result else result
            return self.pick(h2d if isinstance(first, np.ndarray) else d2h, dup)(first)

        if self.wild():
            return self.pick(fail, fail, late, Arc, d2h, h2d, dup, lambda result: 3, 3)
        return self.pick(
            value, sums, again, again, nested, nested, copies, copies, partial(again),
            lambda result: value(result).map(lambda each: each),
        )  # fmt: skip

    def operation(self, depth: int = 3) -> Any:
        if self.operations and self.random.random() < 0.15:
            return self.pick(*self.operations)
        if depth <= 0 and not self.wild():
            return self.pick(
                lambda: value(self.box()), lambda: h2d(np.ones(SIZE, np.float32)), lambda: zeros(SIZE),
                lambda: d2h(self.box()), lambda: dup(self.box()), lambda: Own(self.box(), True), self.launch,
                self.launch, self.launch, self.launch,
            )()  # fmt: skip
        if depth <= 0:
            return self.pick(
                lambda: value(self.pick(1, None, (1, 2), "x")),
                lambda: h2d(self.pick(np.ones(SIZE, np.float32), np.zeros((2, 3)), np.zeros(0), np.ones(16)[::2])),
                lambda: zeros(self.pick(SIZE, 0, (2, SIZE)), self.pick(f32, f64, i32)),
                lambda: full(SIZE, 3.0),
                lambda: d2h(self.box()),
                lambda: dup(self.box()),
                lambda: memcpy(self.box(), self.pick(self.box(), np.full(SIZE, 7, np.float32), pinned_empty(SIZE))),
                lambda: Own(self.box(), self.random.random() < 0.7),
                self.launch,
                self.launch,
                self.launch,
            )()
        made = self.operation(depth - 1)
        kind = self.random.randrange(16)
        if kind < 5:
            return made.and_then(self.function(depth))
        if kind == 5:
            return made.map(
                self.pick(lambda each: each, self.seen) if not self.wild() else self.pick(self.function(0), None)
            )
        if kind == 6:
            return made.inspect(self.seen if not self.wild() else self.function(0))
        if kind == 7:
            function = self.function(depth)
            return made.and_then_with_context(lambda context, result: function(result))
        if kind == 8:
            return oxide.zip(*[self.operation(depth - 2) for _ in range(self.random.randrange(4))], made)
        if kind == 9:
            if isinstance(made, KernelLaunch) or self.wild():
                return self.pick(made.first, made.last)()
            return self.pick(made.arc, made.shared, made.shared)()
        if kind == 10:
            wild = self.wild()
            return self.pick(*(made if wild else oxide.zip(made, value(3))).unzip(3 if wild else None))
        if kind == 11:
            return made.on(1 if self.wild() else 0)
        if kind == 12:
            return with_context(lambda context: 3 if self.wild() else made)
        if kind == 13:
            self.operations.append(made)
        return made

    # Steps

    def step(self) -> Any:
        kinds = (
            self.blocking, self.blocking, self.at_once, self.at_once, self.at_once, self.awaited, self.future,
            self.futures_on, self.graph, self.relaunch, self.drop, self.forget, self.device, self.device,
            self.failure, self.low,
        )  # fmt: skip
        step = self.pick(*kinds)
        self.lines.append(f"-- {step.__name__}")
        return step()

    def kept_of(self, result: Any) -> Any:
        for each in result if isinstance(result, tuple) else (result,):
            if isinstance(each, DeviceBox) or (isinstance(each, Arc) and isinstance(each.value, DeviceBox)):
                self.boxes = [*self.boxes[-5:], each]
        return result

    def blocking(self) -> Any:
        return self.kept_of(self.operation().sync_on(self.stream()))

    def at_once(self) -> Any:
        result = self.kept_of(self.operation().async_on(self.stream()))
        return result if not isinstance(result, np.ndarray) else (result.shape, str(result.dtype))  # it is in flight

    def awaited(self) -> Any:
        operations = [self.operation() for _ in range(self.random.randrange(1, 3))]

        async def main() -> Any:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.work)
                try:
                    return await (operations[0] if len(operations) == 1 else oxide.gather(*operations))
                finally:
                    nursery.cancel_scope.cancel()

        return self.kept_of(trio_run(main))

    async def work(self) -> None:
        while True:
            await trio.sleep(0)
            self.recorded.step()  # type: ignore[attr-defined]

    def future(self) -> Any:
        future = self.operation().schedule(oxide.StreamPoolRoundRobin(2))
        self.futures.append(future)
        if self.random.random() < 0.7:
            stop = future.start()
            if future._error is not None:
                traceback.clear_frames(future._error.__traceback__)
            return type(stop).__name__, future.state.value
        return future.state.value

    def futures_on(self) -> Any:
        if not self.futures:
            return None
        future = self.futures.pop(self.random.randrange(len(self.futures)))
        if self.random.random() < 0.3:
            return "dropped"

        async def main() -> Any:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.work)
                try:
                    return await future
                finally:
                    nursery.cancel_scope.cancel()

        first = trio_run(main)
        return first, self.random.random() < 0.3 and trio_run(main) is first

    def graph(self) -> Any:
        graph = self.operation().graph_on(self.stream())
        self.graphs = [*self.graphs[-2:], graph]
        return type(graph.take_output()).__name__

    def relaunch(self) -> Any:
        if not self.graphs:
            return None
        launch = self.pick(*self.graphs).launch()
        return self.pick(launch.sync_on, launch.async_on)(self.stream())

    def drop(self) -> Any:
        self.operation()
        return "dropped"

    def forget(self) -> Any:
        kind = self.random.randrange(4)
        (self.boxes, self.operations, self.futures, self.graphs)[kind].clear()
        return kind

    def device(self) -> Any:
        return self.pick(
            lambda: self.recorded.step(),  # type: ignore[attr-defined]
            lambda: self.recorded.run_until_idle(),  # type: ignore[attr-defined]
            lambda: self.stream().synchronize(),
            self.drain,
        )()

    def drain(self) -> None:
        self.drained = True
        oxide.reclaim.drain()

    def failure(self) -> Any:
        method = self.pick("launch", "record_event", "allocate", "copy_to_device", "copy_to_host", "wait_event")
        error = self.pick(
            DeviceError("failed"), OutOfMemoryError("failed"), KeyError("failed"), oxide.LaunchError("failed")
        )
        self.failing.fail(method, error, at=self.random.randrange(1, 4))
        return method, repr(error)

    def low(self) -> Any:
        """Calls of the core's types and functions."""
        stream = self.stream()
        timeline = stream._timeline
        return self.pick(
            lambda: timeline.mark().passed(),
            lambda: timeline.close(),
            lambda: (timeline.advance() > 0, timeline.end is None, len(timeline._marks)),
            lambda: core.run_blocking(self.operation(), stream),
            lambda: core.submit_at_once(self.operation(), stream, "call").finish(),
            lambda: core.submit(self.operation(0), stream).abandon(),
            lambda: self.uses(self.box()),
            lambda: core.current_turn().over(3),
            lambda: core.refuse_inside(),
        )()

    def uses(self, box: Any) -> Any:
        allocation = (box.value if isinstance(box, Arc) else box)._allocation
        reads = sorted(self.names.any(each.handle) for each in allocation.reads)
        written = allocation.written_by
        return len(reads), None if written is None else self.names.any(written.handle), allocation.adopted

    # What is compared

    def run(self) -> list[str]:
        for number in range(STEPS):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    result = self.step()
                    called = self.called()
                    line = self.names.any(result)
                    del result
                except Exception as error:
                    called = self.called()
                    line = self.described(error)
                    del error
                if self.random.random() < 0.5:
                    self.failing.forget()
                gc.collect()
            called += self.called()
            self.drained = False
            said = sorted(f"{each.category.__name__} {self.names.text(str(each.message))}" for each in caught)
            self.lines.append(f"{number}: {line}")
            self.lines += [f"{number}: {each}" for each in said]
            self.lines += [f"{number}: {each}" for each in called]
        return self.lines

    def described(self, error: BaseException, depth: int = 0) -> str:
        if isinstance(error, BaseExceptionGroup):
            inside = [self.described(each) for each in error.exceptions]
            return f"{type(error).__name__} {inside}"
        notes = [self.names.text(note) for note in getattr(error, "__notes__", [])]
        cause = error.__cause__
        also = "" if cause is None or depth > 3 else f" from {self.described(cause, depth + 1)}"
        return f"{type(error).__name__}: {self.names.text(str(error))} {notes}{also}"

    def called(self) -> list[str]:
        """Returns what the driver was called for since the last time. Frees that follow one another have any order, as
        have the waits for all streams."""
        self.note_memory()
        lines: list[str] = []
        for call in self.recorded.calls:
            self.names.until = self.calls
            lines.append(self.line_of(call))
            self.calls += 1
        self.names.until = sys.maxsize
        self.recorded.clear()
        self.noted = 0
        if self.drained:
            return sorted(lines)
        groups = itertools.groupby(lines, lambda line: line.partition("(")[0])
        return [line for name, group in groups for line in (sorted(group) if name in ANY_ORDER else group) if line]

    def seen(self, result: Any) -> str:
        """Describes what a function of the program sees while its operation is submitted."""
        self.note_memory()
        return self.names.any(result)

    def note_memory(self) -> None:
        calls = self.recorded.calls
        for call in calls[self.noted :]:
            if call.exception is None and call.result and call.method in ("allocate", "allocate_host"):
                self.names.ranges.append((call.result, call.arguments[0], self.calls + self.noted))
            self.noted += 1

    def line_of(self, call: Call) -> str:
        if call.method in ("device_info", "stream_address", "launch_native_host_function"):
            return ""
        arguments = list(call.arguments)
        if call.method == "load":
            arguments[1:] = [arguments[1].entry]
        result = "" if call.result is None else f" = {self.names.any(call.result)}"
        failed = "" if call.exception is None else f" raises {self.described(call.exception)}"
        return f"  {call.method}{self.names.any(arguments)}{result}{failed}"


def run(seed: int) -> list[str]:
    """Returns what the program of a seed does."""
    gc.freeze()  # what compiling has made, for the collections of each step
    driver = RecordingDriver(FailingDriver(step_driver(2)))
    with use_driver(driver, completion="callback"):
        program = Program(seed, driver)
        lines = program.run()
        driver.inner.forget()
        program.__dict__.clear()
        gc.collect()
    lines.append(f"left: {driver.outstanding()}")
    driver.close()
    gc.collect()
    return lines


def trio_run(main: Any) -> Any:
    """Runs tasks in an order that is always the same."""
    trio._core._run._r.seed(0)
    return trio.run(main)


def main() -> None:
    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True
    # No step depends on the time that one before it took.
    pace.SHARE_SECONDS = future.SHARE_SECONDS = reclaim.SHARE_SECONDS = 3600.0
    first, count = int(sys.argv[1]), int(sys.argv[2])
    gc.collect()
    gc.freeze()
    gc.disable()
    print(json.dumps([core.FORM, [run(seed) for seed in range(first, first + count)]]))


if __name__ == "__main__":
    main()
