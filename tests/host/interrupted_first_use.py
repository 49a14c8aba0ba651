"""Ctrl-C during ``import oxide`` or during a first compilation, then the same again in the same process.

``python -m tests.host.interrupted_first_use`` interrupts a process at every module of the import and of a first use,
and others at places drawn at random: in the calls of the import, in the calls of a first compilation, and at moments of
one. It prints the places after which the second attempt failed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

MODES = ("modules", "import", "compile", "moments")

IMPORT = "from oxide import *\nimport oxide, oxide.errors, oxide_kernels\noxide.errors.CompileError\n"
KERNEL = """
import math
import numpy as np
from oxide import DisjointSlice, Slice, d2h, f32, h2d, kernel, thread, zeros
@kernel(block=32)
def scaled(x: Slice[f32], y: DisjointSlice[f32]):
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        for k in range(2):
            element.value += math.sin(x[i.get()]) + f32(k)
"""
USE = """
import numpy as np
from oxide import d2h, h2d, zeros
one = np.ones(4, np.float32)
result = scaled(h2d(one), zeros(4)).last().and_then(d2h)
assert abs(result.sync()[3] - 2.682942) < 1e-5
"""
AGAIN = """
import trio
from oxide_kernels import relu
async def main():
    return await result
assert abs(trio.run(main)[3] - 2.682942) < 1e-5
assert relu(h2d(one), zeros(4)).last().and_then(d2h).sync().sum() == 4
"""


class ModuleHook:
    """A finder that raises as the ``number``-th module of oxide's is sought, on whatever thread."""

    def __init__(self, number: int) -> None:
        self.sought = 0
        self._number = number

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in ("oxide", "oxide_kernels"):
            self.sought += 1
            if self.sought == self._number:
                raise KeyboardInterrupt


class CallHook:
    """A profiler that raises at the ``number``-th call of a function of Python's on this thread, as a signal's handler
    may: handlers run on the main thread alone."""

    def __init__(self, number: int) -> None:
        self.sought = 0
        self._number = number

    def look(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.sought += 1
            if self.sought == self._number:
                sys.setprofile(None)
                raise KeyboardInterrupt


def child(mode: str, number: int) -> None:
    """Runs the program, is interrupted at place ``number``, and runs it again. Prints how many places there were and
    what became of the second attempt."""
    names: dict[str, Any] = {"__name__": "__main__"}
    if mode != "import" and mode != "modules":
        run(names, KERNEL)
    hook: Any = ModuleHook(number) if mode == "modules" else CallHook(number)
    first = {"modules": (IMPORT, KERNEL, USE), "import": (IMPORT,)}.get(mode, (USE,))
    interrupted = False
    try:
        if mode == "modules":
            sys.meta_path.insert(0, hook)
        elif mode == "moments":
            alarm = threading.Timer(number / 1000, os.kill, (os.getpid(), signal.SIGINT))
            alarm.start()
        else:
            sys.setprofile(hook.look)
        for text in first:
            run(names, text)
        if mode == "moments":
            alarm.join()
            time.sleep(0)  # the signal's handler runs here at the latest
    except KeyboardInterrupt:
        interrupted = True
    sys.setprofile(None)
    places = hook.sought
    for text in (IMPORT, KERNEL, USE, AGAIN) if "scaled" not in names else (IMPORT, USE, AGAIN):
        run(names, text)
    print("interrupted" if interrupted else "whole", places, "ok", flush=True)
    os._exit(0)


def run(names: dict[str, Any], text: str) -> None:
    """Runs a part of the program, as a cell of a notebook."""
    import linecache

    file = f"<part {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), names)


def after_an_interrupt(mode: str, number: int) -> tuple[int, str]:
    """Runs a child. Returns the number of places that it reached, and what went wrong, or an empty string."""
    command = [sys.executable, "-W", "ignore", "-X", "faulthandler", "-m", "tests.host.interrupted_first_use"]
    command += ["--child", mode, str(number)]
    environment = {**os.environ, "OXIDE_DEVICE": "cpu"}
    if mode != "modules":
        environment["OXIDE_CACHE"] = "0"  # so that there is something to compile
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return 0, f"{mode} {number}: the second attempt hangs"
    words = done.stdout.split()
    if done.returncode or words[-1:] != ["ok"]:
        return 0, f"{mode} {number}: {done.returncode}\n{done.stdout}{done.stderr}"
    return int(words[1]), ""


def places_of(mode: str) -> int:
    """Returns how many places a run has that is not interrupted."""
    if mode == "moments":
        return 2500  # milliseconds
    found, wrong = after_an_interrupt(mode, 0)
    assert not wrong, wrong
    return found


def wrong_after(mode: str, numbers: Sequence[int]) -> list[str]:
    """Returns what went wrong after interrupts at each of these places."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return [wrong for _, wrong in pool.map(lambda number: after_an_interrupt(mode, number), numbers) if wrong]


def main() -> None:
    arguments = argparse.ArgumentParser(description="Interrupts first uses, and tries them again.")
    arguments.add_argument("--mode", choices=MODES, action="append")
    arguments.add_argument("--places", type=int, default=50, help="of each mode but modules, which takes them all")
    arguments.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    asked = arguments.parse_args()
    if asked.child:
        child(asked.child[0], int(asked.child[1]))
    draw = random.Random(asked.seed)
    failed = False
    for mode in asked.mode or MODES:
        last = places_of(mode)
        numbers = range(1, last + 1) if mode == "modules" else [draw.randint(1, last) for _ in range(asked.places)]
        wrong = wrong_after(mode, numbers)
        print(f"{mode}: {len(numbers)} of {last} places, seed {asked.seed}: {len(wrong)} failed", flush=True)
        failed |= bool(wrong)
        for each in wrong:
            print(each)
    sys.exit(failed)


if __name__ == "__main__":
    main()
