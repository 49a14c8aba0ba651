"""One case: a program compiled by oxide in several ways, launched, and compared with the reference.

What is compared: every output bit by bit (a NaN is a NaN), what lies before and behind every buffer, the inputs, and
the fault, which must be the first one of some thread of the reference's.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import linecache
import math
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

import oxide
from oxide import BoundsError, Kernel, KernelAssertionError, KernelFault, d2h, h2d, kernel

from . import arithmetic, tree
from .generate import keeps, launches_of, program_of
from .interpret import Fault, Launch, Outcome, Reference, TooLong, Undefined
from .tree import Parameter, Program

PAD = 64
"""Elements before and behind each buffer that no kernel may touch. A multiple of 16 bytes of any type."""

HAS_FMA_OPTION = "fma" in inspect.signature(kernel).parameters


class Finding(Exception):
    """What a case shows of oxide that the reference does not say. ``kind`` is the same for like findings, ``way`` says
    how the kernel was compiled."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.way: Way | None = None
        self.launch: Launch | None = None


class Way(NamedTuple):
    """How a program is compiled and where it runs; ``ptx`` is not run."""

    name: str
    device: str


@dataclass(slots=True)
class Counts:
    """What a run has done."""

    cases: int = 0
    launches: int = 0
    faulting: int = 0
    skipped: int = 0

    def add(self, other: Counts) -> None:
        for name in ("cases", "launches", "faulting", "skipped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Settings:
    """How cases are run: on which devices, and whether their PTX is assembled by ``ptxas``."""

    device: str = "cpu"
    ptxas: str | None = None
    launches: int = 6
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="oxide-fuzz-")))


def load(program: Program, settings: Settings, stem: str = "case") -> ModuleType:
    """Writes a program's module and imports it."""
    path = settings.folder / f"{stem}.py"
    path.write_text(tree.source(program))
    linecache.checkcache(str(path))
    spec = importlib.util.spec_from_file_location(stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


def run_case(seed: int, settings: Settings, counts: Counts) -> None:
    """Runs the case of a seed. Raises ``Finding``."""
    program = program_of(seed)
    rng = random.Random(f"ways {seed}")
    names = ["checked"]
    names += ["unchecked"] if rng.random() < 0.6 else []
    names += ["sanitized"] if rng.random() < 0.3 else []
    devices = ("cuda", "cpu") if settings.device == "cuda" else ("cpu",)
    ways = [Way(name, device) for name in names for device in devices if (name, device) != ("sanitized", "cuda")]
    ways.append(Way("interpreted", "cpu"))
    ways += [Way("ptx", "cuda")] if settings.ptxas is not None or rng.random() < 0.1 else []
    check(program, launches_of(program, seed, settings.launches), ways, settings, counts)


def check(program: Program, launches: list[Launch], ways: list[Way], settings: Settings, counts: Counts) -> None:
    """Compiles a program in several ways, launches each and compares. Raises ``Finding``."""
    counts.cases += 1
    module = load(program, settings)
    reference = Reference(program)
    expected: list[tuple[Launch, Outcome | None]] = []
    for launch in launches:
        if not all(keeps(contract, launch.arguments) for contract in program.requires):
            expected.append((launch, None))
            continue
        try:
            expected.append((launch, reference.run(launch)))
        except (TooLong, Undefined):
            counts.skipped += 1
    kernels: dict[str, Kernel] = {}
    for way in ways:
        k = kernels.setdefault(way.name, kernel(**_options(program), **_OF_WAYS[way.name])(module.k))
        try:
            if way.name == "ptx":
                assemble(_of_types(k, program), settings)
                continue
            with _on(way.device, settings):
                for launch, outcome in expected:
                    if way.name == "unchecked" and outcome is not None and outcome.faults:
                        continue
                    counts.launches += 1
                    counts.faulting += outcome is not None and bool(outcome.faults)
                    try:
                        _launch_and_compare(program, k, launch, outcome, module, interpreted=way.name == "interpreted")
                    except Finding as finding:
                        finding.launch = launch
                        raise
        except Finding as finding:
            finding.way = way
            raise
        except oxide.CompileError as error:
            finding = Finding(f"CompileError {_plain(error, module)}", str(error))
            finding.way = way
            raise finding from error
    if not expected:
        counts.cases -= 1


_OF_WAYS: dict[str, dict[str, Any]] = {
    "checked": {},
    "unchecked": {"unchecked": True},
    "sanitized": {"sanitize": ("memory", "race")},
    "interpreted": {},
    "ptx": {},
}


def _plain(error: Exception, module: ModuleType) -> str:
    """An error's message without what differs from program to program."""
    line = str(error).splitlines()[0].replace(str(module.__file__), "")
    return re.sub(r"\b\w*\d[\w.]*", "", line)[:80]


def _options(program: Program) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if program.requires:
        options["requires"] = program.requires
    if not program.fma and HAS_FMA_OPTION:
        options["fma"] = False
    return options


_cpu_driver: Any = None


@contextlib.contextmanager
def _on(device: str, settings: Settings) -> Iterator[None]:
    """Has the runtime use a device. Where the runs are on a GPU, the CPU device is put in force for a while."""
    if settings.device == device:
        yield
        return
    from oxide.driver.cpu import CpuDriver
    from oxide.testing import use_driver

    global _cpu_driver
    _cpu_driver = _cpu_driver or CpuDriver()
    with use_driver(_cpu_driver):
        yield


def _launch_and_compare(
    program: Program, k: Kernel, launch: Launch, outcome: Outcome, module: ModuleType, *, interpreted: bool
) -> None:
    arguments, boxes, before = [], {}, {}
    for parameter in program.parameters:
        given = launch.arguments[parameter.name]
        if isinstance(given, list):
            array = arithmetic.to_array(parameter.type, given)
            whole = np.concatenate([_canary(array, 1), array, _canary(array, 2)])
            box = h2d(whole).sync()
            boxes[parameter.name], before[parameter.name] = box, whole
            piece = box[PAD : PAD + len(given)]
            rows = len(given) // math.prod(parameter.inner)
            arguments.append(piece.reshape(rows, *parameter.inner) if parameter.inner else piece)
        elif parameter.kind == "tuple" and parameter.type == "named":
            arguments.append(getattr(module, parameter.name.capitalize())(*given))
        else:
            arguments.append(given)
    fault: KernelFault | None = None
    try:
        configured = k[launch.grid, launch.block]
        (configured.interpret if interpreted else configured)(*arguments).sync()
    except KernelFault as error:
        fault = error
    except oxide.CompileError:
        raise
    except oxide.LaunchError as error:
        if outcome is None and "requires" in str(error):
            return
        raise Finding("LaunchError", str(error)) from error
    except oxide.OxideError as error:
        raise Finding(type(error).__name__, str(error)) from error
    if outcome is None:
        raise Finding("contract", f"a launch that breaks one of {program.requires} was not refused")
    for parameter in program.parameters:
        if parameter.name in boxes:
            found = d2h(boxes[parameter.name]).sync()
            want = outcome.outputs.get(parameter.name)
            whole = before[parameter.name].copy()
            if want is not None:
                whole[PAD : PAD + len(want)] = arithmetic.to_array(parameter.type, want)
            _compare(parameter, found, whole, fault, outcome)
    _compare_fault(program, fault, outcome.faults, module)


def _canary(array: np.ndarray[Any, Any], salt: int) -> np.ndarray[Any, Any]:
    raw = (np.arange(PAD * array.itemsize) * 37 + 11 * salt).astype(np.uint8)
    if array.dtype == np.bool_:
        raw &= 1
    return raw.view(array.dtype)


def _compare(
    parameter: Parameter,
    found: np.ndarray[Any, Any],
    want: np.ndarray[Any, Any],
    fault: KernelFault | None,
    outcome: Outcome,
) -> None:
    differs = found.view(np.uint8).reshape(found.size, -1) != want.view(np.uint8).reshape(found.size, -1)
    places = np.flatnonzero(differs.any(axis=1))
    inner = places[(places >= PAD) & (places < found.size - PAD)]
    if inner.size != places.size:
        outside = sorted(set(places.tolist()) - set(inner.tolist()))
        raise Finding("canary", f"{parameter.name} was changed outside, at {[p - PAD for p in outside[:8]]}")
    if parameter.type in arithmetic.FLOATS:
        inner = inner[~(_is_nan(parameter.type, found[inner]) & _is_nan(parameter.type, want[inner]))]
    if inner.size:
        shown = [
            f"{parameter.name}[{p - PAD}] is {_shown(parameter.type, found[p : p + 1])}, "
            f"not {_shown(parameter.type, want[p : p + 1])}"
            for p in inner[:5].tolist()
        ]
        kind = "input" if parameter.kind in ("slice", "shaped") else "value with faults" if outcome.faults else "value"
        said = f"; {fault}" if fault is not None else ""
        more = f" and {inner.size - len(shown)} more" if inner.size > len(shown) else ""
        raise Finding(kind, f"{'; '.join(shown)}{more}{said} ({len(outcome.faults)} threads fault)")


def _is_nan(kind: str, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if kind == "bf16":
        numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
    return np.isnan(numbers)


def _shown(kind: str, number: np.ndarray[Any, Any]) -> str:
    (value,) = arithmetic.of_array(kind, number)
    return f"{value!r} ({value.hex()})" if isinstance(value, float) else repr(value)


def _compare_fault(program: Program, fault: KernelFault | None, expected: list[Fault], module: ModuleType) -> None:
    if fault is None:
        if expected:
            raise Finding("fault", f"nothing was raised, and {len(expected)} threads fault, as {expected[0]}")
        return
    if isinstance(fault, BoundsError):
        what = fault.parameter if fault.axis is None else f"axis {fault.axis} of {fault.parameter}"
        place = fault.block, fault.thread, fault.line
        found = Fault(what, fault.index, fault.length, None, *place, fault.indices, fault.shape)
    elif isinstance(fault, KernelAssertionError):
        found = Fault("", 0, 0, fault.text, fault.block, fault.thread, fault.line)
    else:
        raise Finding(type(fault).__name__, f"{fault}")
    if fault.kernel != "k" or fault.file != module.__file__:
        raise Finding("fault", f"the fault is of {fault.kernel} in {fault.file}: {fault}")
    like = [each for each in expected if (each.block, each.thread) == (found.block, found.thread)]
    if any(_same(found, each) for each in like):
        return
    if not like:
        raise Finding("fault", f"that thread has no fault: {fault}; expected {expected[:3]}")
    raise Finding("fault", f"{fault}; expected {like[0]}")


def _same(found: Fault, expected: Fault) -> bool:
    if expected.text is None and expected.parameter:
        return found == expected
    # Of the faults of vectors and of zip_exact the text is not part of the rules.
    same_text = found.text is not None and (not expected.text or found.text == expected.text)
    return same_text and found.line == expected.line


def _of_types(k: Kernel, program: Program) -> Any:
    """A generic kernel for the types of its arguments."""
    generic = [parameter.type for parameter in program.parameters if parameter.generic]
    return k.specialize(T=getattr(oxide, generic[0])) if generic else k


def assemble(k: Any, settings: Settings) -> None:
    """Makes the PTX of a kernel, and has ``ptxas`` assemble it where there is one."""
    text = k.ptx(cc=(9, 0))
    if settings.ptxas is None:
        return
    path = settings.folder / "case.ptx"
    path.write_text(text)
    done = subprocess.run(
        [settings.ptxas, "-arch=sm_90", "-o", "/dev/null", str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Finding("ptxas", done.stderr[-2000:])
