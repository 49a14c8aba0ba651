"""Runs numba-cuda's own tests of kernels on oxide, and says which share of them passes.

    python tests/numba_cuda/suite.py [module ...]

numba-cuda ships its test suite; where it is not installed there is nothing to run. Each module of tests runs in a
process of its own, with ``shim.install()`` first. Tests that a shim cannot serve (they look at numba-cuda's machine
code, its debug mode, its caches) are skipped and not counted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import types
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

HOME = "numba.cuda.tests"
_KERNELS = """
alignment array array_alignment array_args array_methods array_reductions atomics blackscholes boolean
cache_hints casting complex complex_kernel const_string constmem cuda_jit_no_types datetime device_func enums
extending fastmath flow_control forall freevar frexp_ldexp globals idiv inline intrinsics iterators lang
laplace libdevice localmem mandel math matmul minmax montecarlo nondet operator overload powi py2_div_issue
random record_dtype recursion slicing sm sm_creation ssa sync transpose typeinfer ufuncs vector_type warp_ops
"""
_EXAMPLES = "cpu_gpu_compat laplace matmul montecarlo random reduction sessionize ufunc vecadd"
MODULES = (
    *(f"cudapy.test_{name}" for name in _KERNELS.split()),
    *(f"doc_examples.test_{name}" for name in _EXAMPLES.split()),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help="such as cudapy.test_math; all that concern kernels by default")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--verbose", action="store_true", help="show what failed")
    options = parser.parse_args()
    if options.child:
        _run_module(options.child, options.modules)
        return 0
    counts: Counter[str] = Counter()
    for module in options.modules or MODULES:
        outcomes = run(module)
        counted = Counter(outcome["outcome"] for outcome in outcomes)
        counts += counted
        print(f"{module:36} {dict(counted)}", flush=True)
        for outcome in outcomes:
            if outcome["outcome"] not in ("passed", "skipped"):
                lines = outcome["why"].strip().split("\n")
                why = next((line for line in reversed(lines) if _ERROR.match(line)), lines[-1])
                print("    " + outcome["test"].removeprefix(f"{HOME}.") + ": " + why[:300])
                if options.verbose:
                    print("\n".join("        " + line for line in lines[-25:]))
    ran = counts["passed"] + counts["failed"] + counts["crashed"]
    print(f"{counts['passed']} of {ran} pass: {counts['passed'] / max(ran, 1):.1%}; {counts['skipped']} skipped")
    return 0


def run(module: str) -> list[dict[str, str]]:
    """The outcome of each test of a module: ``test``, ``outcome`` (passed, failed, crashed, skipped) and ``why``."""
    outcomes: list[dict[str, str]] = []
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OXIDE_TRACEBACK": "full",
        "OXIDE_CACHE": "0",
    }
    while True:
        done = [outcome["test"] for outcome in outcomes]
        child = subprocess.run(
            [sys.executable, __file__, "--child", module, *done],
            capture_output=True,
            text=True,
            env=environment,
            cwd=Path(__file__).parent,
            timeout=1800,
            check=False,
        )
        started = None
        for line in child.stdout.split("\n"):
            if not line.startswith("@@"):
                continue
            event = json.loads(line[2:])
            if "outcome" in event:
                outcomes.append(event)
                started = None
            else:
                started = event["test"]
        if child.returncode == 0:
            return outcomes
        if started is None:
            outcomes.append({"test": module, "outcome": "crashed", "why": child.stderr[-2000:]})
            return outcomes
        outcomes.append({"test": started, "outcome": "crashed", "why": child.stderr[-500:] or str(child.returncode)})


_ERROR = re.compile(r"[\w.]*(Error|Exception|Warning)\b")


class _Result(unittest.TestResult):
    def startTest(self, test: Any) -> None:
        super().startTest(test)
        _say(test=test.id())

    def addSuccess(self, test: Any) -> None:
        _say(test=test.id(), outcome="passed", why="")

    def addSkip(self, test: Any, reason: str) -> None:
        _say(test=test.id(), outcome="skipped", why=reason)

    def addFailure(self, test: Any, error: Any) -> None:
        _say(test=test.id(), outcome="failed", why=self._exc_info_to_string(error, test))

    def addError(self, test: Any, error: Any) -> None:
        skipped = error[0] is not None and issubclass(error[0], unittest.SkipTest)
        outcome = "skipped" if skipped else "failed"
        _say(test=test.id(), outcome=outcome, why=self._exc_info_to_string(error, test))

    def addExpectedFailure(self, test: Any, error: Any) -> None:
        _say(test=test.id(), outcome="passed", why="")

    def addSubTest(self, test: Any, subtest: Any, error: Any) -> None:
        if error is not None and not getattr(test, "_said", False):
            test._said = True
            self.addError(test, error)


def _say(**event: str) -> None:
    sys.__stdout__.write(f"\n@@{json.dumps(event)}\n")
    sys.__stdout__.flush()


def _run_module(name: str, done: list[str]) -> None:
    _stand_ins()
    import shim

    shim.install()
    _stand_in_for_cffi()
    try:
        module = importlib.import_module(f"{HOME}.{name}")
    except unittest.SkipTest as reason:
        _say(test=f"{HOME}.{name}", outcome="skipped", why=str(reason))
        return
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    result = _Result()
    for test in _flat(suite):
        if test.id() not in done:
            unittest.TestSuite([test]).run(result)


def _stand_in_for_cffi() -> None:
    """Only a few tests use it, of a module that imports it."""
    import numba.core.typing.cffi_utils
    import numba.cuda.typing.cffi_utils  # noqa: F401 - these look for cffi when they are imported

    class FFI:
        def __getattr__(self, name: str) -> Any:
            raise unittest.SkipTest("cffi is not installed")

    sys.modules.setdefault("cffi", types.ModuleType("cffi")).__dict__.setdefault("FFI", FFI)


def _flat(suite: Any) -> list[Any]:
    return [test for part in suite for test in (_flat(part) if isinstance(part, unittest.TestSuite) else [part])]


def _stand_ins() -> None:
    """Modules that numba-cuda's tests import and only some of them use."""

    for name in ("filecheck", "filecheck.matcher", "filecheck.options", "filecheck.parser", "filecheck.finput"):
        if name not in sys.modules:
            stand_in = types.ModuleType(name)
            for each in ("Matcher", "Options", "Parser", "pattern_for_opts", "FInput"):
                setattr(stand_in, each, None)
            sys.modules[name] = stand_in


if __name__ == "__main__":
    sys.exit(main())
