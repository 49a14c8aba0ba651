"""The memory safety of the core, ``oxide._core``: ``make test-core``, or ``python -m tests.core`` with names of parts.

- ``sanitized``: the tests of the runtime and the misuse of each type, with a core that is built with
  AddressSanitizer and UndefinedBehaviorSanitizer, in a copy of the tree;
- ``dev``: tests under ``-X dev``;
- ``collected``: tests with a garbage collection at nearly every allocation;
- ``leaks``: ``leaks.py``;
- ``memory``: ``no_memory.py``;
- ``misuse``: ``misuse.py``, with more steps than in the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.core import misuse, no_memory

ROOT = Path(__file__).parent.parent.parent
PROCESSES = os.cpu_count() or 1
COPIED = (
    "oxide",
    "oxide_kernels",
    "oxide_command.py",
    "tests",
    "examples",
    "benchmarks",
    "setup.py",
    "pyproject.toml",
    "README.md",
)

TESTS = [
    "tests/runtime/operations/test_operations.py", "tests/runtime/operations/test_graphs.py",
    "tests/runtime/awaiting/test_awaiting.py", "tests/runtime/launching/test_binding.py",
    "tests/runtime/launching/test_launch.py", "tests/runtime/ordering/test_marks.py",
    "tests/runtime/ordering/test_ordering.py",
    "tests/runtime/memory/test_dropped_boxes.py", "tests/runtime/test_dropping.py", "tests/driver/cuda/test_call.py",
]  # fmt: skip
FEW = [
    "tests/runtime/operations/test_operations.py",
    "tests/runtime/launching/test_binding.py",
    "tests/runtime/ordering/test_marks.py",
]

FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -O1 -g -fno-omit-frame-pointer"
OPTIMIZED = '"-O2", "-g0"'  # in setup.py
SANITIZED = {
    "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0:allow_user_segv_handler=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "PYTHONMALLOC": "malloc",  # so that a use of a freed object of Python's is seen, too
}


def pytest(
    tests: list[str], *options: str, folder: Path = ROOT, environment: dict[str, str] | None = None
) -> list[str]:
    """Returns the last lines of a run that failed."""
    command = [
        sys.executable,
        *options,
        "-m",
        "pytest",
        "-q",
        "--sample",
        "-n",
        str(PROCESSES),
        "--dist",
        "loadfile",
        *tests,
    ]
    ended = subprocess.run(
        command, cwd=folder, env={**os.environ, **(environment or {})}, capture_output=True, text=True
    )
    lines = (ended.stdout + ended.stderr).splitlines()
    print("   ", next((line for line in reversed(lines) if " in " in line), ""), flush=True)
    return (
        [line for line in lines if line.startswith(("FAILED", "E  ", "==", "SUMMARY"))][-60:]
        if ended.returncode
        else []
    )


def library(name: str) -> str:
    return subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()


def sanitized() -> list[str]:
    with tempfile.TemporaryDirectory(prefix="oxide-core-") as place:
        folder = Path(place)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
            else:
                shutil.copy(ROOT / name, folder)
        setup = folder / "setup.py"
        text = setup.read_text()
        assert OPTIMIZED in text
        setup.write_text(text.replace(OPTIMIZED, ", ".join(f'"{flag}"' for flag in FLAGS.split())))
        build = {**os.environ, "OXIDE_CORE": "require", "LDFLAGS": "-fsanitize=address,undefined"}
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        built = subprocess.run(command, cwd=folder, env=build, capture_output=True, text=True)
        if built.returncode:
            return (built.stdout + built.stderr).splitlines()[-30:]
        environment = {**SANITIZED, "PYTHONPATH": place, "OXIDE_CORE": "require"}
        environment["LD_PRELOAD"] = f"{library('libasan.so')} {library('libubsan.so')}"
        wrong = pytest(TESTS, folder=folder, environment=environment)
        return wrong + every_misuse(100, folder=folder, environment=environment)


def dev() -> list[str]:
    return pytest(FEW, "-X", "dev")


def collected() -> list[str]:
    """A few runs of each scenario, each of which collects garbage at nearly every allocation."""
    program = """if True:
        import gc
        from tests.core.scenarios import SCENARIOS, settle
        for run in SCENARIOS.values():
            run()  # which compiles its kernels
            gc.freeze()
            gc.set_threshold(1)
            run()
            settle()
            gc.set_threshold(700)
        print(len(SCENARIOS), "scenarios")
    """
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", program]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print("   ", ended.stdout.strip(), flush=True)
    return (ended.stdout + ended.stderr).splitlines()[-60:] if ended.returncode else []


def leaks() -> list[str]:
    command = [sys.executable, "-m", "tests.core.leaks"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return (ended.stdout + ended.stderr).splitlines()[-30:] if ended.returncode else []


def at_once(call: Callable[[str], list[str]], names: list[str]) -> list[str]:
    with ThreadPoolExecutor(PROCESSES) as pool:
        return [line for lines in pool.map(call, names) for line in lines]


def memory() -> list[str]:
    return at_once(no_memory.batch, list(no_memory.NAMES)) if no_memory.set_nomemory else []


def every_misuse(steps: int, *, folder: Path = ROOT, environment: dict[str, str] | None = None) -> list[str]:
    names = sorted(misuse.core_types())
    return at_once(
        lambda name: misuse.batch(name, 1, steps, single=True, folder=folder, environment=environment), names
    )


PARTS: dict[str, Callable[[], list[str]]] = {
    "sanitized": sanitized,
    "dev": dev,
    "collected": collected,
    "leaks": leaks,
    "memory": memory,
    "misuse": lambda: every_misuse(1000),
}


def main(names: list[str]) -> int:
    failed = 0
    for name in names or PARTS:
        begun = time.monotonic()
        print(f"{name} …", flush=True)
        wrong = PARTS[name]()
        print(*wrong, sep="\n", end="\n" if wrong else "")
        print(f"    {name}: {'failed' if wrong else 'passed'} in {time.monotonic() - begun:.0f} s", flush=True)
        failed += bool(wrong)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
