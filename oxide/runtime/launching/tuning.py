"""``k.tune(configs, *args)``: finds and remembers the fastest configuration of a kernel. A configuration consists of
constants, ``warps`` and ``stages`` for a tile kernel, and of options such as ``block`` for a thread kernel.

The candidates are compiled in parallel in a child process. They run there one after the other, on copies of the
arguments. A candidate is excluded if it fails, takes too long, ends the process, or gives other results than the first
candidate that ran. If the child process has ended, a new child runs the remaining candidates. The result, with every
measurement, is kept in the disk cache of compiled kernels. Its key is made of the kernel's source, the device, the
driver, the shapes and the candidates. A later process that finds the result measures nothing. With ``Tuned.save`` and
``load_tuned``, a program can ship the result as a file.
"""

from __future__ import annotations

import ast
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.source.source import text_of
from oxide.compiler.tile.ir import DTYPES
from oxide.errors import ArgumentError, OxideError, cell_of
from oxide.host import disk
from oxide.host.messages import written
from oxide.language.types import ScalarType
from oxide.runtime.awaiting.loading import loaded_function
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.loop.event_loops import current_loop
from oxide.runtime.memory.memory import Arc, DeviceBox, Partition
from oxide.runtime.operations.operation import DeviceOperation
from oxide.runtime.operations.transfers import d2h, h2d

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["Tuned", "Tuner", "checked_configs", "loaded", "shapes_of", "tune"]

OPTIONS = ("warps", "stages")
"""The options of a tile kernel that a candidate may have in addition to constants."""
THREAD_OPTIONS = ("block", "items_per_thread", "max_registers")
"""The options of a thread kernel that a candidate may have."""
_SLOWEST = 20.0
"""The seconds that one candidate may take, compilation included."""
_SECONDS = 0.1
"""The approximate seconds of one candidate's measurements."""
_AT_ONCE = 2e-3
"""The approximate seconds that each batch of launches takes. A batch is submitted at once."""
_TOLERANCE = {2: 2e-2, 1: 2e-1}
"""The largest relative difference of results that counts as rounding, by the bytes of an element. For other sizes it is
1e-3."""
_Passed = tuple[Any, ...]


@final
@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of a search. ``config`` is the fastest candidate and ``seconds`` its time for a launch. ``measured``
    has, for each candidate, its seconds or the reason why it is excluded. ``from_disk`` is True if the result of an
    earlier search was used. The result is valid for this ``kernel``, ``source`` (a digest), ``device``, ``driver`` and
    ``shapes``."""

    config: dict[str, Any]
    seconds: float
    measured: tuple[tuple[dict[str, Any], float | str], ...]
    from_disk: bool
    kernel: str
    source: str
    device: str
    driver: str
    shapes: tuple[Any, ...]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the result to a JSON file that ``k.load_tuned`` reads. Results in the file for other kernels, devices
        and shapes stay there. Raises ``OSError``, and ``ArgumentError`` for a file of another kind."""
        file = Path(path)
        records = _records(file) if file.exists() else []
        mine = self._record()
        same = ("kernel", "device", "shapes")
        records = [each for each in records if any(each[key] != mine[key] for key in same)]
        file.write_text(json.dumps({_FORMAT: 1, "records": [*records, mine]}, indent=1) + "\n", encoding="utf-8")

    def _record(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "source": self.source,
            "device": self.device,
            "driver": self.driver,
            "shapes": repr(self.shapes),
            "config": _encoded(self.config),
            "seconds": self.seconds,
            "measured": [[_encoded(config), result] for config, result in self.measured],
        }


_FORMAT = "oxide tuned kernels"


_TEXTS = ("kernel", "source", "device", "shapes")


def _records(file: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found[_FORMAT] == 1 and all(isinstance(each[name], str) for each in found["records"] for name in _TEXTS):
            return list(found["records"])
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise ArgumentError(f"{file} has no results of tuning")


def _encoded(value: Any) -> Any:
    """Returns a candidate, or a value in it, in the types that JSON has."""
    if isinstance(value, dict):
        return {key: _encoded(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return {"tuple": [_encoded(each) for each in value]}
    return {"dtype": value.name} if isinstance(value, ScalarType) else value


def _decoded(config: dict[str, Any]) -> dict[str, Any]:
    def one(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if "tuple" in value:
            return tuple(map(one, value["tuple"]))
        return {each.name: each for each in DTYPES}[value["dtype"]]

    return {key: one(value) for key, value in config.items()}


def loaded(kernel: Any, path: str | os.PathLike[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Reads a kernel's results for the current device from a file. Returns, for each choice of shapes, the fastest
    candidate."""
    own = [each for each in _records(Path(path)) if each["kernel"] == kernel.name]
    if not own:
        raise ArgumentError(f"kernel {kernel.name}: {os.fspath(path)} has no results for it")
    source = _source(kernel)
    own = [each for each in own if each["source"] == source]
    if not own:
        raise ArgumentError(
            f"kernel {kernel.name}: the results in {os.fspath(path)} are of another source; tune it again"
        )
    device = current_runtime().default_device.name
    try:
        return {ast.literal_eval(each["shapes"]): _decoded(each["config"]) for each in own if each["device"] == device}
    except (ValueError, TypeError, LookupError, AttributeError, SyntaxError, RecursionError, MemoryError):
        raise ArgumentError(
            f"kernel {kernel.name}: the results in {os.fspath(path)} are damaged; tune it again"
        ) from None


def _source(kernel: Any) -> str:
    return disk.digest([text_of(kernel.function) or kernel.function.__code__.co_code.hex()])


def checked_configs(
    name: str, configs: Any, constants: Sequence[str], options: Sequence[str] = OPTIONS
) -> tuple[dict[str, Any], ...]:
    """Checks candidates and returns them as dicts. Raises ``ArgumentError`` unless ``configs`` is a list of dicts whose
    keys are names of ``constants`` or ``options``."""
    known = (*constants, *options)
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
    """Returns the shapes, types and tile shapes of a launch's boxes and partitions, with None for each number among the
    arguments. Returns None if an argument is anything else, such as an operation."""
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
    """Returns the result of a search for the fastest candidate. ``arguments`` leave out the constants. Raises
    ``ArgumentError``."""
    shapes = shapes_of(arguments)
    if shapes is None:
        raise ArgumentError(
            f"kernel {kernel.name}: tune takes boxes, partitions and numbers; run operations first, as with .sync()"
        )
    cell = cell_of(kernel.function.__code__.co_filename)
    if cell is not None:
        raise ArgumentError(
            f"kernel {kernel.name} is defined in the cell {cell}, and tune runs it in another process, which has no "
            "cells: write it to a file, as %%writefile does, and import it"
        )
    try:
        kernel.__reduce__()
    except TypeError as error:
        raise ArgumentError(f"kernel {kernel.name}: tune runs it in another process, and {error}") from None
    device = current_runtime().default_device
    driver, source = device.info.version, _source(kernel)
    place = [kernel.function.__module__, kernel.name, source, device.name, driver, repr(shapes), repr(configs)]
    name = "tuned-" + disk.digest(place)

    def made(best: int, measured: Sequence[float | str], *, from_disk: bool) -> Tuned:
        pairs = tuple(zip(configs, measured, strict=True))
        seconds = measured[best]
        assert isinstance(seconds, float)
        return Tuned(configs[best], seconds, pairs, from_disk, kernel.name, source, device.name, driver, shapes)

    kept = disk.read(name)
    if kept is not None:
        found = json.loads(kept)
        return made(found["best"], found["measured"], from_disk=True)
    results = _search(kernel, configs, arguments, budget, progress)
    times = {number: result for number, result in enumerate(results) if isinstance(result, float)}
    if not times:
        reasons = "; ".join(f"{config}: {result}" for config, result in zip(configs, results, strict=True))
        raise ArgumentError(f"kernel {kernel.name}: no candidate could be measured: {reasons}")
    best = min(times, key=times.__getitem__)
    result = made(best, results, from_disk=False)
    # Only ``best`` and ``measured`` are read back. The rest is for people who look at the file.
    record = result._record() | {"best": best, "measured": results, "configs": repr(configs)}
    disk.write(name, json.dumps(record).encode())
    return result


def _search(
    kernel: Any, configs: tuple[dict[str, Any], ...], arguments: _Passed, budget: float, progress: bool
) -> list[float | str]:
    """Returns, for each candidate, its seconds or the reason why it is excluded."""
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
            if child is None:
                child = _Child(kernel, arguments)
                if not child.compile(configs[number:], left / 2):  # from now on, measuring compiles the candidate
                    child = _Child(kernel, arguments)
            answer = child.measure(config, min(_SLOWEST, max(1.0, ends - time.monotonic())))
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
    """Returns a text that says how results differ, or "" if they agree."""
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
        import multiprocessing  # imported here: most programs tune nothing

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
        """Returns a candidate's seconds and results, or the reason why it is excluded."""
        try:
            self._here.send(config)
            if not self._here.poll(seconds):
                self.end()
                return f"took longer than {seconds:.0f} s"
            answer: tuple[float, list[Any]] | str = self._here.recv()
        except (EOFError, OSError):
            self._process.join(1)  # so that its last messages reach stderr
            self.end()
            return "ended the process"
        return answer

    def compile(self, configs: Sequence[dict[str, Any]], seconds: float) -> bool:
        """Compiles candidates in parallel. If this takes longer than ``seconds``, ends the process. Returns False if
        the process has ended, for this or another reason, else True."""
        try:
            self._here.send(list(configs))
            if self._here.poll(seconds):
                self._here.recv()
                return True
        except (EOFError, OSError):
            pass
        self.end()
        return False

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()
        self._here.close()


def _serve(connection: Connection, kernel: Any, given: list[tuple[Any, Any]], device: str) -> None:
    """Measures candidates until the parent ends the process. ``device`` is the kind of the parent's device."""
    os.environ["OXIDE_DEVICE"] = device
    while True:
        try:
            config = connection.recv()
        except EOFError:
            return
        try:
            if isinstance(config, list):
                _compile(kernel, given, config)
                connection.send(None)
                continue
            connection.send(_measured(kernel, given, config))
        except OxideError as error:
            connection.send(f"failed: {str(error).splitlines()[0]}")


def _arguments(given: list[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    """Copies the arrays to the device. Returns two lists of the arguments: the first with the boxes, the second as a
    launch takes them, with partitions."""
    boxes = [h2d(each).sync() if isinstance(each, np.ndarray) else each for each, _ in given]
    return boxes, [
        box.partition(shape) if shape is not None else box for box, (_, shape) in zip(boxes, given, strict=True)
    ]


def _compile(kernel: Any, given: list[tuple[Any, Any]], configs: list[dict[str, Any]]) -> None:
    """Compiles candidates in parallel. Errors are ignored here: measuring the candidate raises them again."""
    from concurrent.futures import ThreadPoolExecutor

    _, arguments = _arguments(given)
    device = current_runtime().default_device

    def one(config: dict[str, Any]) -> None:
        try:
            operation = kernel.with_config(config, arguments)
            operation.consume()
            loaded_function(operation.specialization, device)
        except OxideError:
            pass

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, configs))


def _measured(kernel: Any, given: list[tuple[Any, Any]], config: dict[str, Any]) -> tuple[float, list[Any]]:
    boxes, arguments = _arguments(given)
    operation = kernel.with_config(config, arguments)
    operation.sync()
    results = [d2h(box).sync() for box in boxes if isinstance(box, DeviceBox)]
    stream = current_runtime().default_device.new_stream()

    def seconds(launches: int) -> float:
        """Runs the operation ``launches`` times and returns the mean seconds of a launch. All launches are submitted at
        once, so that the device does not wait for the host."""
        before = time.perf_counter()
        for _ in range(launches - 1):
            operation.async_on(stream)
        operation.sync_on(stream)
        return (time.perf_counter() - before) / launches

    launches = max(1, min(20, round(_AT_ONCE / seconds(1))))
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - begun < _SECONDS and len(times) < 1000):
        times.append(seconds(launches))
    return statistics.median(times), results


@final
class Tuner:
    """Tunes one thread kernel, and launches it with the fastest candidate."""

    def __init__(self, kernel: Kernel, configs: Any) -> None:
        self._kernel = kernel
        self._configs = self._checked(configs)
        self._tuned: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._forms: dict[str, Kernel] = {}

    def _checked(self, configs: Any) -> tuple[dict[str, Any], ...]:
        found = checked_configs(self._kernel.name, configs, (), THREAD_OPTIONS)
        for each in found:
            self._kernel.with_options(each)  # raises for sizes that no block has
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> DeviceOperation[tuple[Any, ...]]:
        """Returns the launch with the candidate that was found fastest for the arguments' shapes, or if there is none,
        with the first candidate."""
        arguments = self._kernel.positional(args, kwargs)
        shapes = shapes_of(arguments) if self._tuned else None
        config = self._tuned.get(shapes) if shapes is not None else None
        if config is None:
            config = self._configs[0] if self._configs else {}
        form = self._forms.get(repr(config))
        if form is None:
            form = self._forms[repr(config)] = self._kernel.with_options(config)
        launch: DeviceOperation[tuple[Any, ...]] = form.called(form, arguments)
        return launch

    def tune(self, configs: Any, args: tuple[Any, ...], kwargs: dict[str, Any], budget: float, progress: bool) -> Tuned:
        """Does the work of ``Kernel.tune``."""
        kernel = self._kernel
        candidates = self._configs if configs is None else self._checked(configs)
        if not candidates:
            raise ArgumentError(f"kernel {kernel.name}: tune needs candidates, as in k.tune([{{'block': 128}}], …)")
        found = tune(kernel, candidates, kernel.positional(args, kwargs), budget, progress)
        self._tuned[found.shapes] = found.config
        return found

    async def tune_async(
        self, configs: Any, args: tuple[Any, ...], kwargs: dict[str, Any], budget: float, progress: bool
    ) -> Tuned:
        """Does the work of ``Kernel.tune_async``."""
        return await current_loop().in_thread(lambda: self.tune(configs, args, kwargs, budget, progress))

    def load(self, path: str | os.PathLike[str]) -> int:
        """Does the work of ``Kernel.load_tuned``."""
        found = loaded(self._kernel, path)
        self._tuned |= found
        return len(found)
