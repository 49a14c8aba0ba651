"""Misuse of the core's types, by the thousand: whatever a program does to them, it gets an exception and never a crash.

``python -m tests.core.misuse Zip --seed 3`` does what the batch of one type does, in this process; the last lines of
``--log`` name what it was doing. ``batch`` runs it in a child, so that a crash is a failure that has a name.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import faulthandler
import gc
import os
import pickle
import random
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import oxide
from oxide import DisjointSlice, f32, h2d, kernel, thread
from oxide.host import core
from oxide.host.locks import RUNTIME_LOCK

ROOT = Path(__file__).parent.parent.parent

# An address is called or read as it is given: a wrong one is a wrong pointer, in C as in ctypes.
RAW_FIELDS = {"address", "_launch_kernel", "_launch_graph", "_record"}
RAW_FIELDS |= {"_stream_query", "_event_query", "_event_record", "_event_synchronize"}
RAW_FUNCTIONS = {"alarm", "call", "copy", "copy_host", "launch", "setup", "start_helpers", "watch_kernel"}
OF_THE_PROCESS = {"points", "RUNTIME_LOCK"}

SECONDS = 300
"""A batch that takes longer hangs."""


@kernel(block=32)
def bump(x: DisjointSlice[f32], by: f32) -> None:
    element = x.get_mut(thread.index_1d())
    if element is not None:
        element.value = element.value + by


def core_types() -> dict[str, type]:
    found = vars(core._core)
    return {name: kind for name, kind in found.items() if isinstance(kind, type) and kind.__module__ == "oxide._core"}


def derived(kind: type) -> list[type]:
    """The package's own classes of a type of the core: those that say nothing of a type of its own."""
    found = [each for each in kind.__subclasses__() if each.__module__.startswith("oxide")]
    return found + [deeper for each in found for deeper in derived(each)]


class Odd:
    """An object whose every attribute is there, and wrong."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Odd()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self


class Huge:
    """A sequence that is longer than memory."""

    def __len__(self) -> int:
        return sys.maxsize // 4

    def __getitem__(self, index: int) -> Any:
        return new_box()._allocation


def slot_as(slot: Any) -> Any:
    """Returns a slot of one's own, as a slot of a plan."""
    made = type(slot).__new__(type(slot))
    for name, field in vars(core.ParameterSlot).items():
        if type(field) is type(core.ParameterSlot.kind):
            setattr(made, name, getattr(slot, name))
    for name in type(slot).__slots__:
        setattr(made, name, getattr(slot, name))
    return made


def plan_of(*slots: Any) -> Any:
    made = core.Plan.__new__(core.Plan)
    made.compile(slots, (0,), (), b"", True)
    return made


def new_box() -> oxide.DeviceBox:
    return h2d(np.ones(32, np.float32)).sync()


def reals() -> dict[str, Callable[[], Any]]:
    """How a program gets an object of each type."""
    stream = oxide.devices()[0].new_stream()
    made = bump(new_box(), 1.0)
    made.sync()

    def launch() -> Any:
        return bump(new_box(), 1.0)

    def context() -> Any:
        return core.context_for(oxide.value(1), stream)

    def walk() -> Any:
        return Walk(oxide.value(1).map(repr), context())

    def graph() -> Any:
        return launch().graph()

    def graph_report() -> Any:
        ran = core.context_for(oxide.value(1), stream)
        core.run_through(graph().launch(), ran)
        return ran._faults[0]

    def pool() -> Any:
        return PinnedPool(stream._timeline.driver)

    from oxide.runtime.loop.pace import Turn
    from oxide.runtime.memory.pinned import PinnedPool
    from oxide.runtime.submission.host_copies import HostCopies
    from oxide.runtime.submission.submission import ExecutionContext
    from oxide.runtime.submission.walk import Walk

    return {
        "Allocation": lambda: new_box()._allocation,
        "Captured": lambda: graph()._captured,
        "ConfiguredKernel": lambda: bump[(1, 32)],
        "DeviceBox": new_box,
        "DeviceFuture": lambda: launch().into_future(),
        "Dropping": lambda: oxide.Arc(1),
        "Element": lambda: oxide.unzip(oxide.zip(oxide.value(1), launch()), 2)[1],
        "ExecutionContext": lambda: ExecutionContext(stream),
        "FaultReport": lambda: core.new_report(stream._timeline._runtime.fault_records),
        "GraphFaultReport": graph_report,
        "GraphLaunch": lambda: graph().launch(),
        "HostCopies": HostCopies,
        "Launch": launch,
        "LaunchConfig": lambda: oxide.LaunchConfig(grid=(1, 1, 1), block=(32, 1, 1)),
        "Mark": lambda: stream._timeline.mark(),
        "PinnedBlock": lambda: pool().acquire(64)._block,
        "PinnedBuffer": lambda: pool().acquire(64),
        "PinnedPool": pool,
        "ParameterSlot": lambda: slot_as(made._plan.slots[0]),
        "Plan": lambda: plan_of(*map(slot_as, made._plan.slots)),
        "Stage": lambda: launch().map(lambda result: result),
        "Submission": lambda: core.submit(launch(), stream),
        "Timeline": lambda: oxide.devices()[0].new_stream()._timeline,
        "Turn": Turn,
        "Value": lambda: oxide.value([1]),
        "Walk": walk,
        "Zip": lambda: oxide.zip(oxide.value(1), launch()),
    }


class Misuse:
    """One batch: the misuse of one type, with the log of what is done."""

    def __init__(self, name: str, seed: int, log: int) -> None:
        self.name, self.random, self.log = name, random.Random(f"{name} {seed}"), log
        self.types = core_types()
        self.reals = reals()
        self.stream = oxide.devices()[0].new_stream()
        self.done = 0
        self.wrong: list[str] = []
        plain = [
            None, True, 0, 1, -1, 8, 2**31, 2**62, -(2**63), 2**70, 0.5, float("nan"), "x", "", b"", b"12345678",
            (), (1,), (1, 2, 3), (None, None), [], [1], [None, -7], {}, {1: 2}, set(), object, len, repr, Odd(), Huge(),
            ValueError("x"), ValueError,
        ]  # fmt: skip
        self.pool: list[Callable[[], Any]] = [lambda each=each: each for each in plain]
        self.pool += [lambda kind=kind: kind.__new__(kind) for kind in self.types.values() if kind.__name__ != "Points"]
        self.pool += list(self.reals.values())

    def note(self, what: str) -> None:
        os.pwrite(self.log, what.encode()[:4000].ljust(4000) + b"\n", 0)

    def makers(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        kind = self.types[self.name]
        if kind.__name__ == "Points":
            yield "points", lambda: core.points
            return
        yield "raw", lambda: kind.__new__(kind)
        with contextlib.suppress(TypeError):  # it is final
            forgetful = type("Forgetful", (kind,), {"__init__": lambda self, *given: None})
            yield "forgetful", forgetful
        for each in derived(kind)[:4]:
            yield f"raw {each.__name__}", lambda each=each: each.__new__(each)
        if self.name in self.reals:
            yield "real", self.reals[self.name]
            yield "real", self.reals[self.name]

    def attempt(self, what: str, call: Callable[[], Any]) -> Any:
        """Makes a call, which may raise anything but SystemError, and leaves no lock held."""
        self.note(what)
        self.done += 1
        try:
            return call()
        except SystemError as error:
            self.wrong.append(f"{what}: SystemError: {error}")
        except (KeyboardInterrupt, SystemExit) as error:
            self.wrong.append(f"{what}: {error!r}")
        except BaseException:
            pass
        finally:
            if RUNTIME_LOCK._is_owned():
                if "acquire" not in what and "__enter__" not in what:
                    self.wrong.append(f"{what}: the lock is held")
                while RUNTIME_LOCK._is_owned():
                    RUNTIME_LOCK.release()
            core.points.tracer = None
        return None

    def any(self) -> Any:
        for _ in range(5):
            with contextlib.suppress(Exception):
                return self.random.choice(self.pool)()
        return None

    def names(self, kind: type) -> list[str]:
        """The fields and methods that the core gives a type."""
        found = {name for base in kind.__mro__ if base.__module__ == "oxide._core" for name in vars(base)}
        return sorted(
            name
            for name in found
            if not name.startswith("__") or name in ("__init__", "__call__", "__enter__", "__exit__")
        )

    def single(self) -> None:
        """Each method with each argument, alone and with others, and each field with each value."""
        for label, make in self.makers():
            for name in self.names(type(self.attempt(f"{label} make", make))):
                for argument in self.pool:
                    for count in range(1, 4) if self.random.random() < 0.3 else (1,):
                        self.call(
                            label, make, name, [argument, *(self.random.choice(self.pool) for _ in range(count - 1))]
                        )
                    if name not in RAW_FIELDS:
                        self.set(label, make, name, argument)
                for count in (0, 2, 5, 8):
                    self.call(label, make, name, [self.random.choice(self.pool) for _ in range(count)])
                self.call(label, make, name, [], {"unknown": 1})

    def call(
        self,
        label: str,
        make: Callable[[], Any],
        name: str,
        pool: list[Callable[[], Any]],
        named: dict[str, Any] | None = None,
    ) -> None:
        made, arguments = self.attempt(f"{label} make", make), []
        for each in pool:
            with contextlib.suppress(Exception):
                arguments.append(each())
        if made is not None:
            self.use(label, made, name, arguments, named or {})

    def use(self, label: str, made: Any, name: str, arguments: list[Any], named: dict[str, Any]) -> None:
        words = [repr(each) if type(each) in (int, str, tuple, list) else type(each).__name__ for each in arguments]
        what = f"{label} {self.name}.{name} {words} {named}"
        found = self.attempt(what, lambda: getattr(made, name))
        if callable(found) and found is not given_back:
            self.attempt(what, lambda: found(*arguments, **named))

    def set(self, label: str, make: Callable[[], Any], name: str, argument: Callable[[], Any]) -> None:
        """Sets a field, and then uses everything."""
        made = self.attempt(f"{label} make", make)
        if made is None:
            return
        with contextlib.suppress(Exception):
            value = argument()
            what = f"{label} {self.name}.{name} = {type(value).__name__}"
            self.attempt(what, lambda: setattr(made, name, value))
            self.typical(what, made)
        self.attempt(f"{label} del {self.name}.{name}", lambda: delattr(made, name))
        self.typical(f"{label} del {self.name}.{name}", made)

    def typical(self, what: str, made: Any) -> None:
        """What the package itself does with an object of the type."""
        stream = self.stream
        calls: dict[str, Callable[[], Any]] = {}
        if isinstance(made, core.Operation):
            calls = {
                "sync": lambda: made.sync(),
                "submit": lambda: core.submit(made, stream),
                "blocking": lambda: core.run_blocking(made, stream),
                "through": lambda: core.run_through(made, core.context_for(made, stream)),
                "waits": lambda: core.may_wait(made),
                "map": lambda: made.map(repr).sync(),
                "zip": lambda: oxide.zip(made, oxide.value(1)).sync(),
            }
        elif isinstance(made, core.DeviceBox):
            calls = {"launch": lambda: bump(made, 1.0).sync()}
        elif isinstance(made, core.Allocation) and made.address:  # the kernel is given the address as it is
            calls = {"launch": lambda: bump(oxide.DeviceBox(made, (32,), np.dtype(np.float32)), 1.0).sync()}
        elif isinstance(made, core.ConfiguredKernel):
            calls = {"launch": lambda: made(new_box(), 1.0).sync()}
        elif isinstance(made, (core.Plan, core.ParameterSlot)):
            # without a run: the bytes that a slot packs are what the kernel gets
            plan = made if isinstance(made, core.Plan) else None
            calls = {"bind": lambda: core.Launch.__new__(core.Launch).bind(plan or plan_of(made), (new_box(), 1.0))}
        elif isinstance(made, core.ExecutionContext):
            calls = {
                "through": lambda: core.run_through(bump(new_box(), 1.0), made),
                "zip": lambda: core.run_through(oxide.zip(oxide.value(1), oxide.value(1).map(repr)), made),
                "submission": lambda: core.Submission(made, 1, "x"),
                "end": lambda: made.end([], [new_box()._allocation], submitted=True),
            }
        elif isinstance(made, core.Walk):
            calls = {"advance": lambda: made.advance(False), "traced": lambda: made.advance(True)}
        elif isinstance(made, core.Frame):
            calls = {
                "step": lambda: oxide.zip(oxide.value(1)).step(made, None),
                "chain": lambda: oxide.value(1).map(repr).step(made, None),
            }
        elif isinstance(made, core.DeviceFuture):
            calls = {"start": lambda: made.start(), "outcome": lambda: made.outcome()}
        elif isinstance(made, core.Submission):
            calls = {"finish": lambda: made.finish(), "abandon": lambda: made.abandon()}
        elif isinstance(made, core.Timeline):
            calls = {"mark": lambda: made.mark(), "passed": lambda: made.mark().passed(), "close": lambda: made.close()}
        elif isinstance(made, core.Mark):
            calls = {"passed": lambda: made.passed()}
        for name, call in calls.items():
            self.attempt(f"{what}; {name}", call)

    def mixed(self, steps: int) -> None:
        """Steps at random on one object after the other."""
        makers = list(self.makers())
        functions = [
            name for name, found in vars(core._core).items()
            if type(found) is type(len) and name not in RAW_FUNCTIONS
        ]  # fmt: skip
        while steps > 0:
            label, make = self.random.choice(makers)
            made = self.attempt(f"{label} make", make)
            if made is None:
                steps -= 1
                continue
            names = self.names(type(made))
            history = label
            for _ in range(self.random.randint(1, 6)):
                steps -= 1
                name, action = self.random.choice(names), self.random.random()
                if action < 0.35:
                    if name not in RAW_FIELDS:
                        value = self.any()
                        history += f"; {name} = {type(value).__name__}"
                        self.attempt(history, lambda made=made, name=name, value=value: setattr(made, name, value))
                elif action < 0.45:
                    history += f"; del {name}"
                    self.attempt(history, lambda made=made, name=name: delattr(made, name))
                elif action < 0.7:
                    self.use(history, made, name, [self.any() for _ in range(self.random.randint(0, 3))], {})
                elif action < 0.8:
                    function = self.random.choice(functions)
                    given = [self.any() for _ in range(self.random.randint(0, 2))]
                    given.insert(self.random.randint(0, len(given)), made)
                    call = getattr(core._core, function)
                    self.attempt(f"{history}; {function}", lambda call=call, given=given: call(*given))
                elif action < 0.9:
                    self.typical(history, made)
                else:
                    self.oddities(history, made)

    def oddities(self, label: str, made: Any) -> None:
        for kind in (*self.types.values(), object, int, Odd, *derived(type(made).__mro__[1])[:4]):
            self.attempt(f"{label}; __class__ = {kind.__name__}", lambda kind=kind: setattr(made, "__class__", kind))
        for change in (copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))):
            other = self.attempt(f"{label}; copied", lambda change=change: change(made))
            if other is not None and other is not made:
                self.typical(f"{label}; copied", other)
        for use in (repr, hash, str, bool, len, iter, dir, vars, gc.get_referents, sys.getsizeof):
            self.attempt(f"{label}; {use.__name__}", lambda use=use: use(made))
        self.attempt(f"{label}; ==", lambda: made == self.any())
        gc.collect()


given_back = oxide.LaunchConfig  # a class is no method


def misuse(name: str, seed: int, log: int, steps: int, single: bool) -> list[str]:
    batch = Misuse(name, seed, log)
    if name in batch.reals:
        assert isinstance(batch.reals[name](), batch.types[name])
    if single:
        batch.single()
    for label, make in list(batch.makers()):
        made = batch.attempt(f"{label} make", make)
        if made is not None:
            batch.oddities(label, made)
    batch.mixed(steps)
    gc.collect()
    return [f"{batch.done} calls", *batch.wrong]


def batch(
    name: str,
    seed: int = 0,
    steps: int = 300,
    *,
    single: bool = False,
    folder: Path = ROOT,
    environment: dict[str, str] | None = None,
) -> list[str]:
    """Returns what went wrong in a child that misuses a type, in words."""
    with tempfile.NamedTemporaryFile() as log:
        arguments = [
            name,
            "--seed",
            str(seed),
            "--steps",
            str(steps),
            "--log",
            log.name,
            *(["--single"] if single else []),
        ]
        ended = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-m", "tests.core.misuse", *arguments],
            capture_output=True, text=True, cwd=folder, env={**os.environ, **(environment or {})},
        )  # fmt: skip
        if ended.returncode:
            last = Path(log.name).read_text().strip()
            return [f"{name}: the process ended with {ended.returncode}, in {last}", *ended.stderr.splitlines()[:60]]
        return [line for line in ended.stdout.splitlines() if not line.endswith(" calls")]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--log", default=os.devnull)
    parser.add_argument("--single", action="store_true")
    given = parser.parse_args()
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None
    log = os.open(given.log, os.O_WRONLY)
    names = sorted(core_types()) if given.name == "all" else given.name.split(",")
    for name in names:
        for line in misuse(name, given.seed, log, given.steps, given.single):
            print(f"{name}: {line}")
    sys.stdout.flush()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
