"""Measures the kernels of other packages on a GPU: on numba-cuda and on ``oxide.numba_cuda``, in one run.

``python -m benchmarks.foreign_speed FOLDER:PACKAGE[:NAME] … [--tests] -o FILE.json`` takes the kernels of packages that
``foreign_kernels`` found right on the CPU device (``results/foreign-kernels-cpu.json``, by ``NAME``), and with
``--tests`` each kernel that numba-cuda's own tests launch. A module, or a module of tests, runs once on each side, in
processes of their own that have the GPU in turn while they measure. A package's kernel is measured with the arguments
that it was compared with, which measures the launch, and with arrays of up to a million elements (``large``), which
measures the kernel. The tests' kernels are measured with copies of what the test gave them.

A figure is the least time of a launch over nine batches, each of as many launches as take some milliseconds, with the
arrays on the device. Results of the large launches are compared as well.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.foreign_kernels import Stubs, adapt, arguments_for, difference, kernels_of

RESULTS = Path(__file__).parent / "results"
SIDES = ("numba-cuda", "oxide")
BATCHES = 9
BATCH_SECONDS = 0.004
LIMIT = 300.0  # seconds for a process
LARGE = {1: 1024, 2: 1024, 3: 96, 4: 32}  # the length of an axis, by the most axes of an array


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("packages", nargs="*", metavar="FOLDER:PACKAGE[:NAME]")
    parser.add_argument("--tests", action="store_true", help="measure the kernels of numba-cuda's own tests too")
    parser.add_argument("--jobs", type=int, default=8, help="modules at once; they measure one after the other")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--child", nargs=4, metavar=("SIDE", "FOLDER", "MODULE", "PICKLE"))
    given = parser.parse_args()
    if given.child:
        side, folder, module, path = given.child
        child(side, folder, module, Path(path))
        return
    listed = json.loads((RESULTS / "foreign-kernels-cpu.json").read_text())["kernels"]
    jobs: list[tuple[str, str, str, list[dict[str, Any]]]] = []
    for package in given.packages:
        folder, _, name = package.partition(":")
        name, _, listed_as = name.partition(":")
        kernels = [each for each in listed if each["package"] == (listed_as or name) and "axis" in each]
        kernels = [each for each in kernels if each["module"].split(".")[0] == name]
        jobs += [
            (name, folder, module, [each for each in kernels if each["module"] == module])
            for module in sorted({each["module"] for each in kernels})
        ]
    if given.tests:
        jobs += [("numba-cuda", "", module, []) for module in tests_suite().MODULES]
    found: list[dict[str, Any]] = []
    # Others only compile while one measures, but they share the processor's cores and the GPU's memory.
    with ThreadPoolExecutor(given.jobs) as pool:
        for entries in pool.map(lambda job: list(compared(*job)), jobs):
            found += entries
            for each in entries:
                print(json.dumps(each)[:300], flush=True)
            summary = summarised(found)
            if given.output:  # what there is so far
                given.output.write_text(json.dumps(summary, indent=1) + "\n")
    print({name: value for name, value in summary.items() if name != "kernels"})


def summarised(found: list[dict[str, Any]]) -> dict[str, Any]:
    from importlib.metadata import version

    import oxide
    from oxide.host.core import FORM

    return {
        "device": oxide.devices()[0].name,
        "core": FORM,
        "versions": {name: version(name) for name in ("numba", "numba-cuda", "numpy")},
        "unit": "microseconds of a launch; speed is numba-cuda's time divided by oxide's",
        "launches": spread([each["speed"] for each in found if "speed" in each]),
        "large": spread([each["large_speed"] for each in found if "large_speed" in each]),
        "kernels": found,
    }


def spread(ratios: list[float]) -> dict[str, Any]:
    """Returns the number of ratios, how many are at least 1 and 0.98, the least, and the quartiles."""
    counts = {f"of_at_least_{bound}": sum(each >= bound for each in ratios) for bound in (1, 0.98)}
    if len(ratios) < 2:
        return {"kernels": len(ratios), **counts}
    middle = [round(each, 3) for each in statistics.quantiles(ratios)]
    return {"kernels": len(ratios), **counts, "least": min(ratios), "quartiles": middle}


def compared(package: str, folder: str, module: str, kernels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields the figures of each kernel of a module."""
    sides = {side: side_results(side, folder, module, kernels) for side in SIDES}
    theirs, ours = (sides[side] for side in SIDES)
    for key in sorted(set(theirs) | set(ours)):
        one, other = theirs.get(key, {}), ours.get(key, {})
        entry: dict[str, Any] = {"package": package, "module": module, "kernel": key}
        for name, side in zip(SIDES, (one, other), strict=True):
            entry |= {
                f"{name} {what}": side[what] for what in ("us", "large_us", "error", "large_error") if what in side
            }
        if "us" in one and "us" in other:
            entry["speed"] = round(one["us"] / other["us"], 3)
        if "large_us" in one and "large_us" in other:
            entry["axis"] = one["axis"]
            entry["large_speed"] = round(one["large_us"] / other["large_us"], 3)
            why = difference(one["after"], other["after"])
            entry["equal"] = why is None
            if why:
                entry["difference"] = why
        yield entry


def side_results(side: str, folder: str, module: str, kernels: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns one side's figures of a module's kernels, from as many processes as it takes: a fault ends one."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "state"
        state: dict[str, Any] = {"results": {}, "kernels": kernels, "running": None, "done": []}
        for _ in range(30):
            path.write_bytes(pickle.dumps(state))
            command = [sys.executable, "-m", "benchmarks.foreign_speed", "--child", side, folder, module, str(path)]
            environment = {**os.environ, "OXIDE_DEVICE": "cuda", "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0"}
            try:
                ran = subprocess.run(
                    command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT
                )
                status, why = ran.returncode, ran.stderr.strip()[-300:]
            except subprocess.TimeoutExpired:
                status, why = 1, f"no end after {LIMIT} s"
            state = pickle.loads(path.read_bytes())
            if status == 0:
                break
            running = state["running"]
            if running is None:
                state["results"]["*"] = {"error": why}
                break
            kernel, what = running
            state["results"].setdefault(kernel, {}).setdefault(what, why or f"ended with {status}")
            state["done"].append(running)
            state["running"] = None
        results: dict[str, Any] = state["results"]
        return results


# In a child process


def child(side: str, folder: str, module: str, path: Path) -> None:
    state = pickle.loads(path.read_bytes())
    if side == "oxide":
        from oxide import numba_cuda

        numba_cuda.install()
    if folder:
        measure_package(side, folder, module, state, path)
    else:
        measure_tests(side, module, state, path)
    path.write_bytes(pickle.dumps(state))
    os._exit(0)


def measure_package(side: str, folder: str, name: str, state: dict[str, Any], path: Path) -> None:
    sys.path[:0] = [folder]
    sys.meta_path.append(Stubs(folder))
    adapt(side, name)
    module = importlib.import_module(name)
    wanted = {each["kernel"]: each for each in state["kernels"]}
    results = state["results"]
    for what in ("error", "large_error"):
        for kernel_name, kernel, function in sorted(kernels_of(module), key=lambda found: found[0]):
            entry = results.setdefault(kernel_name, {}) if kernel_name in wanted else None
            if entry is None or (kernel_name, what) in state["done"] or "error" in entry:
                continue
            plan = (wanted[kernel_name]["axis"], wanted[kernel_name]["number"], wanted[kernel_name]["dtype"])
            state["running"] = (kernel_name, what)
            path.write_bytes(pickle.dumps(state))
            try:
                if what == "error":
                    entry["us"], _ = measured(kernel, function, plan, min(plan[0], 24))
                else:
                    axis = large_axis(function, plan)
                    entry["large_us"], entry["after"] = measured(kernel, function, (axis, *plan[1:]), axis)
                    entry["axis"] = axis
            except Exception as error:
                entry[what] = f"{type(error).__name__}: {str(error).strip()[:200]}"
                path.write_bytes(pickle.dumps(state))
                os._exit(1)  # the context may be lost
            state["done"].append((kernel_name, what))
            state["running"] = None
            path.write_bytes(pickle.dumps(state))


def large_axis(function: Any, plan: tuple[int, int, str]) -> int:
    arguments, _ = arguments_for(function, plan)
    return LARGE[max((each.ndim for each in arguments if isinstance(each, np.ndarray)), default=1)]


def measured(kernel: Any, function: Any, plan: tuple[int, int, str], threads: int) -> tuple[float, list[Any]]:
    """Returns the microseconds of a launch, and the arguments after the first."""
    from numba import cuda

    arguments, axes = arguments_for(function, plan)
    if axes == 1 and threads > 24 and all(each.ndim == 1 for each in arguments if isinstance(each, np.ndarray)):
        threads *= threads  # as long as these arrays are
    width = {1: 128, 2: 16, 3: 8}[axes] if threads % 128 == 0 else 8
    # From the first launch on: while a long kernel of another process runs, the GPU goes by turns of 2 ms.
    with alone():
        devices = [cuda.to_device(each) if isinstance(each, np.ndarray) else each for each in arguments]
        launch = kernel[(max(threads // width, 1),) * axes, (width,) * axes]
        launch(*devices)
        cuda.synchronize()
        after = [sample(each.copy_to_host()) if hasattr(each, "copy_to_host") else each for each in devices]
        return timed(lambda: launch(*devices), cuda.synchronize), after


def sample(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns up to 65,536 elements, from all of the array."""
    return array.ravel()[:: -(-array.size // 65_536) or 1].copy()


def timed(launch: Callable[[], Any], synchronize: Callable[[], Any]) -> float:
    """Returns the microseconds of a launch."""
    for _ in range(3):
        launch()
    synchronize()
    begun = time.perf_counter()
    launch()
    synchronize()
    count = max(1, min(200, int(BATCH_SECONDS / (time.perf_counter() - begun))))
    best = float("inf")
    for _ in range(BATCHES):
        begun = time.perf_counter()
        for _ in range(count):
            launch()
        synchronize()
        best = min(best, (time.perf_counter() - begun) / count)
    return round(best * 1e6, 3)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Waits until no other process measures."""
    with (Path(tempfile.gettempdir()) / "foreign_speed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def tests_suite() -> Any:
    return importlib.import_module("tests.numba_cuda.suite")


def measure_tests(side: str, name: str, state: dict[str, Any], path: Path) -> None:
    """Runs a module of numba-cuda's tests, and measures each kernel's first launch of each test once more."""
    from numba import cuda

    suite = tests_suite()
    suite._stand_ins()
    results = state["results"]
    current: list[str] = [""]
    if side == "oxide":
        from oxide.interop.numba_cuda.dispatcher import Configured as configured
    else:
        from numba.cuda.dispatcher import _LaunchConfiguration as configured
    call = configured.__call__

    def called(launch: Any, *arguments: Any) -> None:
        dispatcher = launch._dispatcher if side == "oxide" else launch.dispatcher
        key = f"{current[0]} {dispatcher.py_func.__name__}"
        copies = None
        if current[0] and key not in results and (key, "error") not in state["done"]:
            copies = [copied(cuda, each) for each in arguments]
        call(launch, *arguments)
        if copies is not None:
            results[key] = {}
            state["running"] = (key, "error")
            path.write_bytes(pickle.dumps(state))
            with alone():
                results[key]["us"] = timed(lambda: call(launch, *copies), cuda.synchronize)
            state["running"] = None

    configured.__call__ = called
    module = importlib.import_module(f"{suite.HOME}.{name}")
    for test in suite._flat(unittest.defaultTestLoader.loadTestsFromModule(module)):
        short = test.id().removeprefix(f"{suite.HOME}.")
        if (short, "outcome") in state["done"] or any(fnmatchcase(short, each) for each in suite.OUT_OF_SCOPE):
            continue
        current[0] = short
        state["running"] = (short, "outcome")
        path.write_bytes(pickle.dumps(state))
        with contextlib.redirect_stdout(None):
            unittest.TestSuite([test]).run(unittest.TestResult())
        state["done"].append((short, "outcome"))
        try:
            cuda.synchronize()
        except Exception:
            os._exit(1)  # the context is lost
    state["running"] = None


def copied(cuda: Any, value: Any) -> Any:
    """Returns an argument, with a copy of its own on the device if it is an array."""
    if isinstance(value, np.ndarray) and value.ndim:
        return cuda.to_device(value)
    if hasattr(value, "copy_to_host"):
        return cuda.to_device(value.copy_to_host())
    return value


if __name__ == "__main__":
    main()
