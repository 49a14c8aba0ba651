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
import tempfile
import types
import unittest
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

HOME = "numba.cuda.tests"
_KERNELS = """
alignment array array_alignment array_args array_methods array_reductions atomics blackscholes boolean
cache_hints casting complex complex_kernel const_string constmem cooperative_groups cuda_jit_no_types datetime
device_func enums exception extending fastmath flow_control forall freevar frexp_ldexp globals idiv inline
intrinsics iterators lang laplace libdevice localmem mandel math matmul minmax montecarlo nondet operator
overload powi print py2_div_issue random record_dtype recursion slicing sm sm_creation
ssa sync transpose typeinfer ufuncs userexc vector_type warp_ops
"""
_EXAMPLES = "cpu_gpu_compat laplace matmul montecarlo random reduction sessionize ufunc vecadd"
MODULES = (
    *(f"cudapy.test_{name}" for name in _KERNELS.split()),
    *(f"doc_examples.test_{name}" for name in _EXAMPLES.split()),
)
_POINTERS = "an argument of a pointer type, or of a type that the program adds to numba's"
_OVERLOADS = "counts what numba-cuda has compiled, or pickles it"
_BINDINGS = "numba-cuda's bfloat16: CUDA C++ that its linker adds (oxide has bf16 of its own)"
_RUNTIME = "needs numba-cuda's runtime for memory in kernels, which the test turns on (CUDA_ENABLE_NRT)"
_CODE = "looks at numba-cuda's IR or machine code"
OUT_OF_SCOPE: dict[str, str] = {
    "cudapy.test_array.TestCudaArray.test_array_like_2d_view_transpose_device": "transposing a view copies it there",
    "cudapy.test_array.TestCudaArray.test_[cf]array": _POINTERS,
    "cudapy.test_array.TestCudaArray.test_issue_4628": _OVERLOADS,
    "cudapy.test_transpose.TestTranspose.test_transpose_view": "transposing a view copies it there",
    "cudapy.test_array_methods.TestCudaArrayMethods.test_array_copy": _RUNTIME,
    "cudapy.test_array_reductions.TestArrayReductions.test_*m??_basic": _RUNTIME,
    "cudapy.test_const_string.TestConstStringCodegen.test_const_string": _CODE,
    "cudapy.test_extending.TestIntrinsic.test_serialization": _OVERLOADS,
    "cudapy.test_extending.TestLowLevelExtending.test_func1_isolated": _CODE,
    "cudapy.test_localmem.TestCudaLocalMem.test_type_with_struct_data_model": _POINTERS,
    "cudapy.test_overload.TestOverload.test_overload_attribute_target": _POINTERS,
    "cudapy.test_print.TestPrint.test_bfloat16": _BINDINGS,
    "cudapy.test_sm_creation.TestSharedMemoryCreation.test_type_with_struct_data_model": _POINTERS,
}
"""Tests that ask for more than a compiler and one device, by name and with the reason. They are not counted."""

TIME_LIMIT = 900.0
"""Seconds that a module may take before the test that it is at counts as crashed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help="such as cudapy.test_math; all that concern kernels by default")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--verbose", action="store_true", help="show what failed in full, and what was skipped")
    parser.add_argument("--json", type=Path, help="write the outcome and the kernels of each test to this file")
    options = parser.parse_args()
    if options.child:
        prepare()
        for module in options.child.split(","):
            _run_module(module, options.modules)
        return 0
    counts: Counter[str] = Counter()
    told: list[dict[str, Any]] = []
    reasons: Counter[str] = Counter()
    with ThreadPoolExecutor(options.jobs) as pool:
        modules = options.modules or MODULES
        for module, outcomes in zip(modules, pool.map(run, modules), strict=True):
            counts += _tell(module, outcomes, options.verbose)
            told += outcomes
            if options.json:
                options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
            reasons += Counter(_reason(outcome) for outcome in outcomes if outcome["outcome"] == "skipped")
    ran = counts["passed"] + counts["failed"] + counts["crashed"]
    print(f"{counts['passed']} of {ran} pass: {counts['passed'] / max(ran, 1):.1%}; {counts['skipped']} skipped:")
    for reason, count in reasons.most_common():
        print(f"{count:5} {reason}")
    return 0


def _tell(module: str, outcomes: list[dict[str, Any]], verbose: bool) -> Counter[str]:
    counted = Counter(outcome["outcome"] for outcome in outcomes)
    print(f"{module:36} {dict(counted)}", flush=True)
    for outcome in outcomes:
        name = outcome["test"].removeprefix(f"{HOME}.")
        if outcome["outcome"] in ("failed", "crashed"):
            print(f"    {name}: {_reason(outcome)}")
            if verbose:
                print("\n".join("        " + line for line in outcome["why"].strip().split("\n")[-25:]))
        elif outcome["outcome"] == "skipped" and verbose:
            print(f"    {name}: skipped: {_reason(outcome)}")
    return counted


def _reason(outcome: dict[str, Any]) -> str:
    lines = outcome["why"].strip().split("\n")
    return next((line for line in reversed(lines) if _ERROR.match(line)), lines[-1])[:300]


def run(*modules: str) -> list[dict[str, Any]]:
    """The outcome of each test of modules that share a process: ``test``, ``outcome`` (passed, failed, crashed,
    skipped), ``why`` and ``kernels``, those that it launched.

    A process that ends takes one test with it, which counts as crashed: another process goes on with the next."""
    outcomes: list[dict[str, Any]] = []
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OXIDE_TRACEBACK": "full",
        "OXIDE_CACHE": "0",
    }
    while True:
        done = [outcome["test"] for outcome in outcomes]
        command = [sys.executable, __file__, "--child", ",".join(modules), *done]
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            try:
                code = subprocess.run(
                    command,
                    stdout=output,
                    stderr=errors,
                    env=environment,
                    cwd=Path(__file__).parent,
                    timeout=TIME_LIMIT,
                    check=False,
                ).returncode
                ended = f"the process ended with {code}"
            except subprocess.TimeoutExpired:
                code, ended = 1, f"no end after {TIME_LIMIT:.0f} s"
            output.seek(0)
            errors.seek(0)
            started = None
            for line in output:
                if line.startswith("@@"):
                    event = json.loads(line[2:])
                    started = None if "outcome" in event else event["test"]
                    if "outcome" in event:
                        outcomes.append(event)
            why = f"{errors.read()[-2000:]}\n{ended}"
        if code == 0:
            return outcomes
        outcomes.append({"test": started or ",".join(modules), "outcome": "crashed", "why": why})
        if started is None:
            return outcomes


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
        skipped = error[0] is not None and error[0].__name__ in ("SkipTest", "Skipped")  # unittest's, pytest's
        outcome = "skipped" if skipped else "failed"
        _say(test=test.id(), outcome=outcome, why=self._exc_info_to_string(error, test))

    def addExpectedFailure(self, test: Any, error: Any) -> None:
        _say(test=test.id(), outcome="passed", why="")

    def addSubTest(self, test: Any, subtest: Any, error: Any) -> None:
        if error is not None and not getattr(test, "_said", False):
            test._said = True
            self.addError(test, error)


def _say(**event: Any) -> None:
    shim = sys.modules.get("shim")
    if shim is not None:
        if "outcome" in event:
            event["kernels"] = sorted(shim.launched)
        shim.launched.clear()
    sys.__stdout__.write(f"\n@@{json.dumps(event)}\n")
    sys.__stdout__.flush()


def prepare() -> None:
    """Makes ``numba.cuda`` oxide's, for the rest of the process."""
    _stand_ins()
    import shim

    shim.install()
    _stand_in_for_cffi()
    _install_in_programs()


def _run_module(name: str, done: list[str]) -> None:
    try:
        module = importlib.import_module(f"{HOME}.{name}")
    except unittest.SkipTest as reason:
        _say(test=f"{HOME}.{name}", outcome="skipped", why=str(reason))
        return
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    functions = [unittest.FunctionTestCase(value) for key, value in vars(module).items() if _is_test(key, value)]
    result = _Result()
    for test in (*_flat(suite), *functions):
        if isinstance(test, unittest.FunctionTestCase):
            test.id = partial("{0.__module__}.{0.__name__}".format, test._testFunc)  # type: ignore[attr-defined]
        name = test.id().removeprefix(f"{HOME}.")
        if test.id() in done:
            continue
        reasons = [reason for pattern, reason in OUT_OF_SCOPE.items() if fnmatchcase(name, pattern)]
        if reasons:
            _say(test=test.id(), outcome="skipped", why=reasons[0])
        else:
            unittest.TestSuite([test]).run(result)


def _is_test(name: str, value: Any) -> bool:
    return name.startswith("test_") and isinstance(value, types.FunctionType) and not signature(value).parameters


def _install_in_programs() -> None:
    """Tests of printing run programs given as text: these begin with the shim too."""
    run_program = subprocess.run

    def run(command: Any, *args: Any, **options: Any) -> Any:
        if command[:2] == [sys.executable, "-c"]:
            text = f"import suite; suite.prepare()\n{command[2]}"
            command = [*command[:2], text, *command[3:]]
        return run_program(command, *args, **options)

    subprocess.run = run  # type: ignore[assignment]


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
