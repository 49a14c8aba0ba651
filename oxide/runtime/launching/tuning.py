"""``k.tune(configs, *args)``: finds the fastest constants, ``warps`` and ``stages`` of a tile kernel, and remembers
them.

The candidates run in a child process, on copies of the arguments. A candidate that takes too long, ends the process or
fails is excluded, and a new child takes the next one; so is a candidate whose results differ from those of the first
that ran. What is found is kept on disk beside the compiled kernels, under the kernel's source, the device, the shapes
and the candidates, and with every measurement. A second process then measures nothing.

The module stays interpreted in the compiled form, as ``decorator`` does.
"""

from __future__ import annotations

import inspect
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, final

import numpy as np

from oxide import disk
from oxide.errors import ArgumentError, OxideError
from oxide.messages import written
from oxide.runtime.device.arc import Arc
from oxide.runtime.device.memory import DeviceBox
from oxide.runtime.device.partition import Partition
from oxide.runtime.device.runtime import current_runtime
from oxide.runtime.operations.transfers import d2h, h2d

__all__ = ["Tuned", "checked_configs", "shapes_of", "tune"]

OPTIONS = ("warps", "stages")
"""The options of a kernel that a candidate may have beside constants."""
_SLOWEST = 20.0
"""The seconds that one candidate may take, compilation included."""
_SECONDS = 0.05
"""The seconds of one candidate's measurements, about."""
_TOLERANCE = {2: 2e-2, 1: 2e-1}
"""The relative difference of results that is taken for rounding, by the size of an element."""
_Passed = tuple[Any, ...]


@final
@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of a search: the fastest candidate, its seconds a launch, and of each candidate its seconds or why it
    is excluded. ``from_disk`` is True if an earlier search had found it."""

    config: dict[str, Any]
    seconds: float
    measured: tuple[tuple[dict[str, Any], float | str], ...]
    from_disk: bool


def checked_configs(name: str, configs: Any, constants: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Returns candidates, each a dict of constants, warps and stages. Raises ``ArgumentError``."""
    known = (*constants, *OPTIONS)
    if isinstance(configs, Mapping) or not isinstance(configs, Sequence) or isinstance(configs, str):
        raise ArgumentError(f"kernel {name}: configs is a list of dicts, as [{{'warps': 4}}], not {written(configs)}")
    for each in configs:
        if not isinstance(each, Mapping):
            raise ArgumentError(f"kernel {name}: a candidate is a dict, as {{'warps': 4}}, not {written(each)}")
        for key, value in each.items():
            if key not in known:
                raise ArgumentError(f"kernel {name}: a candidate has {', '.join(known)}, not {written(key)}")
            if key in OPTIONS and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ArgumentError(f"kernel {name}: a candidate's {key} is a number from 1 on, not {written(value)}")
    return tuple(dict(each) for each in configs)


def shapes_of(arguments: Sequence[Any]) -> tuple[Any, ...] | None:
    """Returns the shapes, types and tiles of a launch's arguments, or None if one is not known yet."""
    found: list[Any] = []
    for each in arguments:
        plain = each.value if isinstance(each, Arc) else each
        if isinstance(plain, Partition):
            found.append((plain.shape, plain.dtype.name, plain.tile_shape))
        elif isinstance(plain, DeviceBox):
            found.append((plain.shape, plain.dtype.name))
        elif isinstance(plain, int | float | bool | np.generic):
            found.append(None)  # a number that is not a constant makes no specialization
        else:
            return None
    return tuple(found)


def tune(kernel: Any, configs: tuple[dict[str, Any], ...], arguments: _Passed, budget: float, progress: bool) -> Tuned:
    """Returns the fastest candidate for a kernel's arguments, without the constants. Raises ``ArgumentError``."""
    shapes = shapes_of(arguments)
    if shapes is None:
        raise ArgumentError(
            f"kernel {kernel.name}: tune takes boxes, partitions and numbers; run operations first, as with .sync()"
        )
    try:
        kernel.__reduce__()
    except TypeError as error:
        raise ArgumentError(f"kernel {kernel.name}: tune runs it in another process, and {error}") from None
    device = current_runtime().default_device
    try:
        text = inspect.getsource(kernel.function)
    except OSError:
        text = kernel.function.__code__.co_code.hex()
    place = [kernel.function.__module__, kernel.name, text, device.name, repr(shapes), repr(configs)]
    name = "tuned-" + disk.digest(place)
    kept = disk.read(name)
    if kept is not None:
        found = json.loads(kept)
        measured = tuple((configs[number], result) for number, result in enumerate(found["measured"]))
        return Tuned(configs[found["best"]], found["measured"][found["best"]], measured, from_disk=True)
    results = _search(kernel, configs, arguments, budget, progress)
    times = {number: result for number, result in enumerate(results) if isinstance(result, float)}
    if not times:
        reasons = "; ".join(f"{config}: {result}" for config, result in zip(configs, results, strict=True))
        raise ArgumentError(f"kernel {kernel.name}: no candidate could be measured: {reasons}")
    best = min(times, key=times.__getitem__)
    record = {
        "best": best,
        "measured": results,
        "configs": repr(configs),
        "device": device.name,
        "shapes": repr(shapes),
    }
    disk.write(name, json.dumps(record).encode())
    return Tuned(configs[best], times[best], tuple(zip(configs, results, strict=True)), from_disk=False)


def _search(
    kernel: Any, configs: tuple[dict[str, Any], ...], arguments: _Passed, budget: float, progress: bool
) -> list[float | str]:
    """Returns the seconds of each candidate, or why it is excluded."""
    ends = time.monotonic() + budget
    results: list[float | str] = []
    first: list[Any] | None = None
    child: _Child | None = None
    try:
        for number, config in enumerate(configs):
            left = ends - time.monotonic()
            if left <= 0:
                results.append("not measured: the budget was spent")
                continue
            child = child or _Child(kernel, arguments)
            answer = child.measure(config, min(_SLOWEST, left))
            if isinstance(answer, str):
                if not child.is_alive:
                    child = None
                results.append(answer)
            elif first is not None and (wrong := _difference(first, answer[1])):
                results.append(wrong)
            else:
                first = first or answer[1]
                results.append(answer[0])
            if progress:
                _show(kernel.name, number + 1, len(configs), results)
    finally:
        if child is not None:
            child.end()
        if progress and sys.stderr.isatty():
            print(file=sys.stderr)
    return results


def _difference(expected: list[Any], found: list[Any]) -> str:
    """Returns in words how results differ, or "" if they do not."""
    for one, two in zip(expected, found, strict=True):
        if one.dtype.kind in "biu":
            if not np.array_equal(one, two):
                return "wrong: its integers differ from those of the first candidate"
            continue
        wide, other = one.astype(np.float64), two.astype(np.float64)
        size = float(np.linalg.norm(wide))
        if not np.linalg.norm(wide - other) <= _TOLERANCE.get(one.dtype.itemsize, 1e-3) * size:
            return "wrong: its result differs from that of the first candidate"
    return ""


def _show(name: str, done: int, count: int, results: Sequence[float | str]) -> None:
    if sys.stderr.isatty():
        times = [each for each in results if isinstance(each, float)]
        best = f", best {min(times) * 1e6:.0f} us" if times else ""
        bar = "#" * (20 * done // count)
        print(f"\rtuning {name} [{bar:20}] {done}/{count}{best}", end="", file=sys.stderr, flush=True)


@final
class _Child:
    """A process that measures candidates."""

    def __init__(self, kernel: Any, arguments: _Passed) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        device = current_runtime().default_device
        plain = [each.value if isinstance(each, Arc) else each for each in arguments]
        given = [
            (d2h(each.box).sync(), each.tile_shape) if isinstance(each, Partition)
            else (d2h(each).sync(), None) if isinstance(each, DeviceBox) else (each, None)
            for each in plain
        ]  # fmt: skip
        self._process = context.Process(target=_serve, args=(there, kernel, given, device.kind), daemon=True)
        self._process.start()
        there.close()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def measure(self, config: dict[str, Any], seconds: float) -> tuple[float, list[Any]] | str:
        """Returns a candidate's seconds and results, or why it is excluded."""
        try:
            self._here.send(config)
            if not self._here.poll(seconds):
                self.end()
                return f"took longer than {seconds:.0f} s"
            answer: tuple[float, list[Any]] | str = self._here.recv()
        except (EOFError, OSError):
            self._process.join(1)  # so that what it says reaches stderr
            self.end()
            return "ended the process"
        return answer

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()
        self._here.close()


def _serve(connection: Connection, kernel: Any, given: list[tuple[Any, Any]], device: str) -> None:
    """Measures candidates until the parent ends the process. ``device`` is the kind of the parent's device."""
    import os

    os.environ["OXIDE_DEVICE"] = device
    while True:
        try:
            config = connection.recv()
        except EOFError:
            return
        try:
            connection.send(_measured(kernel, given, config))
        except OxideError as error:
            connection.send(f"failed: {str(error).splitlines()[0]}")


def _measured(kernel: Any, given: list[tuple[Any, Any]], config: dict[str, Any]) -> tuple[float, list[Any]]:
    boxes = [h2d(each).sync() if isinstance(each, np.ndarray) else each for each, _ in given]
    arguments = [
        box.partition(shape) if shape is not None else box for box, (_, shape) in zip(boxes, given, strict=True)
    ]
    operation = kernel.with_config(config, arguments)
    operation.sync()
    results = [d2h(box).sync() for box in boxes if isinstance(box, DeviceBox)]
    stream = current_runtime().default_device.new_stream()
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - begun < _SECONDS and len(times) < 1000):
        before = time.perf_counter()
        operation.sync_on(stream)
        times.append(time.perf_counter() - before)
    return statistics.median(times), results
