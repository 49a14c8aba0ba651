"""What every test needs: which device the runtime uses, and what becomes of GPU tests where there is no GPU.

``--device cpu`` (the default) or ``--device cuda`` picks the device for all tests that run on any. Tests marked
``gpu``, and all under ``tests/gpu``, need a CUDA device *and* the runtime on it: run them with ``-m gpu`` or
``--device cuda``. Elsewhere they are skipped, and the last lines of the run say how many.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from traceback import format_exception

import hypothesis
import pytest

from tests.hiding import hide

# Continuous integration draws the same examples each time, so that what it says is about the change; everywhere else
# each run looks at new ones. No example has a deadline: a busy machine takes any time for any of them.
hypothesis.settings.register_profile("any time", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "any time")

LARGEST_INTERPRETED = 20_000
"""Accesses to memory, barriers and threads of a launch that ``--interpret`` interprets: a tenth of a second."""

NOT_INTERPRETED = {
    "OXIDE_INTERPRET_LIMIT": "a launch is too large to be interpreted",
    "cannot be interpreted in a graph": "a graph holds compiled launches",
}
"""Words of the errors that ``--interpret`` takes for a reason to skip."""

NOT_COMPILED = {"which compiles typed kernels, is not installed": "a typed kernel needs a package that is hidden"}
"""Words of the errors that ``--hide`` takes for a reason to skip."""

KERNELS = Path(__file__).parent.parent / ".pytest_cache" / "kernels"
"""The folder of the kernels that earlier runs compiled."""
GPU_TESTS = Path(__file__).parent / "gpu"
COMPILING = {Path(__file__).parent / name for name in ("compiler", "kernels", "language", "numba_cuda")}
"""The folders of tests that compile for most of their time."""
_device = pytest.StashKey[str]()
_modules = itertools.count(1)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    plugins = ("choosing", "limits", "spreading") if pluginmanager.hasplugin("xdist") else ("choosing", "limits")
    for plugin in plugins:
        pluginmanager.import_plugin(f"tests.{plugin}")
    parser.addoption("--device", choices=("cpu", "cuda"), help="the device of tests that run on any (cpu)")
    parser.addoption("--hide", default="", help="packages that tests must not find, as numba,numba_cuda,cuda")
    parser.addoption("--interpret", action="store_true", help="interpret launches, and skip tests with large ones")


def pytest_configure(config: pytest.Config) -> None:
    if hidden := config.getoption("--hide"):
        hide(hidden.split(","))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it for what it runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    device = config.getoption("--device")
    if device is None:
        only_gpu_tests = config.getoption("markexpr") == "gpu" and cuda_device_count() > 0
        device = "cuda" if only_gpu_tests else os.environ.get("OXIDE_DEVICE", "cpu")
    elif device == "cuda" and cuda_device_count() == 0:
        raise pytest.UsageError("--device cuda: this machine has no CUDA device")
    os.environ["OXIDE_DEVICE"] = device
    config.stash[_device] = device
    if config.getoption("--interpret"):
        if device != "cpu":
            raise pytest.UsageError("--interpret: the interpreter runs on the CPU device")
        os.environ["OXIDE_INTERPRET"] = "1"
        os.environ.setdefault("OXIDE_INTERPRET_LIMIT", str(LARGEST_INTERPRETED))
    if not hasattr(config, "workerinput"):
        _set_cache(config)
    os.environ.setdefault("OXIDE_VERIFY", "1")  # the IR of every kernel that a test compiles
    for name in ("OXIDE_CACHE", "OXIDE_CACHE_LIMIT"):
        os.environ.pop(name, None)


def _set_cache(config: pytest.Config) -> None:
    """Neither reads nor writes the user's own cache. What this run compiles serves its processes, their subprocesses,
    and the next run: a kernel's fingerprint covers the compiler's source. ``OXIDE_TEST_CACHE=0`` begins with nothing
    and keeps nothing."""
    if os.environ.get("OXIDE_TEST_CACHE") != "0":
        os.environ["OXIDE_CACHE_DIR"] = str(KERNELS)
        return
    cache = tempfile.TemporaryDirectory(prefix="oxide-tests-")
    os.environ["OXIDE_CACHE_DIR"] = cache.name
    config.add_cleanup(cache.cleanup)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    try:
        return (yield)
    except Exception as error:
        _skip_what_cannot_run(item, error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    try:
        return (yield)
    except Exception as error:
        _skip_what_cannot_run(item, error)
        raise


def _skip_what_cannot_run(item: pytest.Item, error: Exception) -> None:
    """Skips a test whose error is one that the run was asked for."""
    asked = NOT_INTERPRETED if item.config.getoption("--interpret") else {}
    asked = asked | (NOT_COMPILED if item.config.getoption("--hide") else {})
    text = "".join(format_exception(error)) if asked else ""
    for words, reason in asked.items():
        if words in text:
            pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if GPU_TESTS in item.path.parents:
            item.add_marker("gpu")
        if config.getoption("--interpret") and "sanitized" in item.path.name:
            item.add_marker(pytest.mark.skip(reason="the sanitizer is of compiled code"))
    if config.stash[_device] == "cuda":
        return
    reason = "they need the runtime on the GPU: -m gpu" if cuda_device_count() else "no CUDA device"
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    for item in gpu_tests:
        item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = [
        report
        for report in terminalreporter.getreports("skipped")
        if "gpu" in getattr(report, "keywords", ()) and config.stash[_device] != "cuda"
    ]
    if skipped:
        reason = "no CUDA device" if cuda_device_count() == 0 else "the runtime is on the CPU; use -m gpu"
        terminalreporter.write_line(f"{len(skipped)} GPU tests not run: {reason}", yellow=True, bold=True)


@pytest.fixture(autouse=True, scope="module")
def frozen_past(request: pytest.FixtureRequest) -> Iterator[None]:
    """What earlier modules left, millions of objects of the compiler's, is not walked by each of this module's
    collections: tests that inject faults collect after every one, and took ten times as long late in a run. Nor is it
    walked as each module begins, which takes seven seconds late in a run, but as every fiftieth does.

    Where most of the time is the compiler's, its objects are collected less often, which takes an eighth less. When
    what is dropped is freed, the other folders test, as often as Python collects.
    """
    if next(_modules) % 50 == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    first, *others = gc.get_threshold()
    if COMPILING.intersection(request.path.parents):
        gc.set_threshold(10_000, *others)
    yield
    gc.set_threshold(first, *others)


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles every kernel of a test that looks at the compiler's work, whatever earlier runs compiled."""
    monkeypatch.setenv("OXIDE_CACHE", "0")


@pytest.fixture
def small_heap() -> None:
    """``frozen_past`` for a test that collects garbage hundreds of times: of the tests before it in its module too.

    It stays frozen: ``gc.unfreeze`` would give back the earlier modules' objects as well, to every collection of the
    tests that follow.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def settled_runtime() -> Iterator[None]:
    """No test leaves work for the next one: after each, the device is past everything that was dropped, and what was
    built and never run is not prepared for."""
    yield
    if reclaim := sys.modules.get("oxide.runtime.memory.reclaim"):
        reclaim.drain()
    if loading := sys.modules.get("oxide.runtime.awaiting.loading"):
        loading.forget_announced()


@pytest.fixture
def device(pytestconfig: pytest.Config) -> str:
    """``cpu`` or ``cuda``: what the runtime of this run uses."""
    return pytestconfig.stash[_device]


@pytest.fixture
def hopper(request: pytest.FixtureRequest) -> None:
    """Skips a test of whole warpgroups where nothing runs them."""
    from oxide import devices

    if request.config.getoption("--interpret"):
        pytest.skip("the interpreter has no Barriers")
    info = devices()[0].info
    if info.target.kind == "ptx" and info.target.arch != "sm_90":
        pytest.skip("the instructions belong to compute capability 9.0")


def cuda_device_count() -> int:
    """How many GPUs the CUDA driver finds, asked without oxide so that a broken driver module skips no test."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
