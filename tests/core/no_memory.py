"""What happens when memory runs out at the n-th allocation of a small operation, for each n: ``MemoryError`` or the
right result, no lock left held, and the same operation works afterwards.

``python -m tests.core.no_memory chain`` does one. ``batch`` runs it in a child, so that a crash is a failure that has a
name. Allocations of other threads count, too, so the operations here use a driver without any.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import oxide
from oxide import OrderingError, h2d, zeros
from oxide.host import core
from oxide.host.locks import DRIVER_LOCK, RUNTIME_LOCK
from oxide.testing import step_driver, use_driver
from tests.core.scenarios import bump

try:
    from _testcapi import remove_mem_hooks, set_nomemory
except ImportError:  # some builds of Python have none
    set_nomemory = None

ROOT = Path(__file__).parent.parent.parent
SECONDS = 300


def small_operations(stream: Any, box: Any) -> dict[str, Callable[[], Any]]:
    """Each is built, run and dropped, and returns what is to be compared."""
    one = oxide.value(1)
    array = np.ones(32, np.float32)
    graph = bump(box, 0.0).graph_on(stream)

    def launch() -> Any:
        return core.submit(bump(box, 0.0), stream).result_in_flight[0] is box

    def future() -> Any:
        made = bump(box, 0.0).into_future()
        made.start()
        if made._error is not None:
            raise made._error
        return made._submission is not None

    return {
        "value": lambda: core.submit(oxide.value(7), stream).result_in_flight,
        "chain": lambda: core.submit(one.map(lambda x: x + 1).map(str), stream).result_in_flight,
        "and_then": lambda: core.submit(one.and_then(lambda x: oxide.value(x + 2)), stream).result_in_flight,
        "zip": lambda: core.submit(oxide.zip(one, one.map(lambda x: x + 1), oxide.value(3)), stream).result_in_flight,
        "element": lambda: core.submit(oxide.unzip(oxide.zip(one, oxide.value(2)), 2)[1], stream).result_in_flight,
        "launch": launch,
        "launches": lambda: len(core.submit(oxide.zip(*(bump(box, 0.0) for _ in range(10))), stream).result_in_flight),
        "box": lambda: core.submit(zeros(32), stream).result_in_flight.nbytes,
        "upload": lambda: core.submit(h2d(array), stream).result_in_flight.nbytes,
        "graph": lambda: core.submit(graph.launch(), stream).result_in_flight,
        "future": future,
        "configured": lambda: type(bump[(1, 32)]).__name__,
        "mark": lambda: stream._timeline.mark().passed() in (True, False),
        "dropped": lambda: bump(box, 0.0).consume(),
        "unused": lambda: type(bump(box, 0.0)).__name__,
    }


NAMES = (
    "value", "chain", "and_then", "zip", "element", "launch", "launches", "box", "upload", "graph", "future",
    "configured", "mark", "dropped", "unused",
)  # fmt: skip


def without_memory(name: str, log: int, most: int = 3000) -> list[str]:
    """Returns what went wrong, in words, behind the number of allocations that failed."""
    wrong: list[str] = []
    with (
        contextlib.suppress(OrderingError),
        use_driver(step_driver()) as driver,
    ):  # a lock of Python's may be held: see below
        stream = oxide.devices()[0].new_stream()
        box = core.submit(zeros(32), stream).result_in_flight
        call = small_operations(stream, box)[name]
        expected = call()
        number = quiet = 0
        while number < most and quiet < 12:  # so many in a row that need no memory: it ends before
            os.pwrite(log, f"{name} {number}".ljust(80).encode() + b"\n", 0)
            failed: BaseException | None = None
            found = None
            gc.collect()
            set_nomemory(number, number + 1)
            try:
                found = call()
            except BaseException as error:
                failed = error
            finally:
                remove_mem_hooks()
            quiet = 0 if failed is not None else quiet + 1
            if failed is not None and not caused_by_memory(failed):
                wrong.append(f"{name}, allocation {number}: {failed!r}")
            if failed is None and found != expected:
                wrong.append(f"{name}, allocation {number}: {found!r} and not {expected!r}")
            failed = None
            while DRIVER_LOCK._is_owned():  # the end of a ``with`` of a lock of ``threading`` takes memory
                DRIVER_LOCK.release()
            if RUNTIME_LOCK._is_owned():
                print(*wrong, f"{name}, allocation {number}: a lock is held", sep="\n", flush=True)
                os._exit(1)
            try:
                if (again := call()) != expected:
                    wrong.append(f"{name}, after allocation {number}: {again!r} and not {expected!r}")
            except BaseException as error:
                wrong.append(f"{name}, after allocation {number}: {error!r}")
            driver.run_until_idle()
            number += 1
    return [f"{number - quiet} allocations", *wrong]


def caused_by_memory(error: BaseException | None) -> bool:
    while error is not None:
        if (
            isinstance(error, MemoryError)
            or "memory" in str(error)
            or "MemoryError" in str(error)
            or "can't allocate lock" in str(error)
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def batch(name: str, most: int = 3000) -> list[str]:
    import tempfile

    with tempfile.NamedTemporaryFile() as log:
        options = ["--log", log.name, "--most", str(most)]
        ended = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-m", "tests.core.no_memory", name, *options],
            capture_output=True, text=True, cwd=ROOT,
        )  # fmt: skip
        if ended.returncode:
            last = Path(log.name).read_text().strip()
            return [f"the process ended with {ended.returncode}, in {last}", *ended.stderr.splitlines()[:80]]
        return ended.stdout.splitlines()[1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--log", default=os.devnull)
    parser.add_argument("--most", type=int, default=3000)
    given = parser.parse_args()
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None
    log = os.open(given.log, os.O_WRONLY)
    for line in without_memory(given.name, log, given.most):
        print(line)
    sys.stdout.flush()
    os._exit(0)  # whatever the end of the interpreter does with what has failed


if __name__ == "__main__":
    main()
