"""``oxide doctor``: examines whether everything that kernels need is installed. Each problem comes with its fix.

This process imports neither numba nor LLVM, and kernels are tried in processes of their own. So the command also works
where the compiler cannot be imported, or crashes its process. Most functions take the facts that they judge as
arguments, so that a test can pass the facts of any machine. ``examine`` gathers the facts of this machine.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from oxide.commands.machine import CudaDriver, cuda_driver, find_tool, nvidia_cards
from oxide.commands.output import FINDINGS, console, size_text
from oxide.host import disk

DISTRIBUTION = "oxide-gpu"
PACKAGE = Path(__file__).resolve().parent.parent
LEAST_CAPABILITY = (5, 0)
TENSOR_CORES = (8, 0)
SECONDS = 300.0
"""The time-out of a kernel's trial, in seconds. A trial takes two seconds, and far more on a busy machine."""

RELEASES = {(12, 7): 565, (12, 8): 570, (12, 9): 575, (13, 0): 580}
"""Maps versions of CUDA to the first release of the driver that supports them."""

PTX_NEEDS = {(8, 8): (13, 0), (11, 0): (13, 0), (12, 0): (12, 8), (10, 3): (12, 9), (12, 1): (12, 9)}
"""Maps compute capabilities to the first version of CUDA that accepts the PTX which the compiler writes for them. For
all others the compiler writes PTX 8.6."""

PTX = (12, 7)
"""The first version of CUDA that accepts PTX 8.6."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one examination. ``fix`` says how to correct what is wrong, "" if nothing is."""

    name: str
    status: Literal["ok", "warning", "failed"]
    found: str
    fix: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of a kernel's trial in a process of its own. ``error`` is "" if the result was right. Else ``phase``
    is where the trial failed: "import", "compile" or "run"."""

    error: str = ""
    phase: str = ""


def doctor(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Examines the driver, GPUs, libdevice, package versions and cache, and runs a kernel on each device.

    Exit status 0 if kernels run here; warnings, such as a missing GPU, count as fine. Exit status 1 if something has to
    be fixed.

    \b
    Examples:
      oxide doctor
      oxide doctor --json | jq '.findings[] | select(.status != "ok")'
    """
    failed = warned = 0
    found = []
    shown = console()
    for finding in examine():
        failed += finding.status == "failed"
        warned += finding.status == "warning"
        if as_json:
            found.append(finding.as_json())
            continue
        style = {"ok": "green", "warning": "yellow", "failed": "bold red"}[finding.status]
        shown.print(f"{finding.status:<8}", style=style, end="")
        shown.print(f"{finding.name}: {finding.found}")
        if finding.fix:
            shown.print(f"{'':8}fix: {finding.fix}")
    if as_json:
        status = "failed" if failed else "warning" if warned else "ok"
        sys.stdout.write(json.dumps({"status": status, "findings": found}, indent=2, ensure_ascii=False) + "\n")
    elif failed:
        shown.print(f"{failed} to fix", style="bold red")
    else:
        shown.print(
            "kernels run here" + (f"; {warned} {'warning' if warned == 1 else 'warnings'}" if warned else ""),
            style="green",
        )
    if failed:
        raise typer.Exit(FINDINGS)


def examine() -> Iterator[Finding]:
    """Examines this machine. Yields each finding as soon as it is known."""
    asked = os.environ.get("OXIDE_DEVICE", "")
    yield from package()
    yield from versions(requirements(), installed_version)
    driver = cuda_driver()
    yield from gpus(driver, nvidia_cards(), asked, bindings_major())
    yield libdevice(_libdevice(), bool(driver.gpus))
    yield cache()
    yield from variables(os.environ)
    yield tools({name: find_tool(name) for name in ("compute-sanitizer", "ncu", "nsys", "nvdisasm", "ptxas")})
    yield trial("cpu", try_kernel("cpu", 0))
    if driver.problem is None and not too_old(driver, bindings_major()):
        for gpu in driver.gpus:
            yield trial(f"cuda:{gpu.number}", try_kernel("cuda", gpu.number))


# The package and its requirements


def package() -> Iterator[Finding]:
    """Finds Python's version, the package's place, and the form of its core."""
    from oxide.host.core import FORM

    yield Finding("Python", "ok", f"{platform.python_version()}, {sys.executable}")
    yield Finding("oxide", "ok", str(PACKAGE))
    if FORM == "C":
        yield Finding("core", "ok", "it is in C")
    else:
        yield Finding(
            "core",
            "warning",
            "its twin in Python runs, which wakes tasks and copies host memory more slowly",
            f"install a C compiler and Python's headers, and build it: python -m pip install {PACKAGE.parent}",
        )


def requirements() -> list[str] | None:
    """Returns the package's own requirements, None if it is not installed."""
    from importlib import metadata  # here and below, as other commands do without it: it takes 10 ms

    try:
        return metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return None


def installed_version(name: str) -> str | None:
    """Returns the version of an installed package, or None."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def versions(required: Sequence[str] | None, installed: Callable[[str], str | None]) -> Iterator[Finding]:
    """Compares the installed packages with the requirements. One finding covers all packages that fit."""
    if required is None:
        yield Finding(
            "packages",
            "warning",
            f"{DISTRIBUTION} is not installed here, so the versions that it needs are unknown",
            f"python -m pip install -e {PACKAGE.parent}",
        )
        return
    try:
        from packaging.requirements import Requirement
    except ImportError:
        yield Finding("packages", "failed", "packaging is not installed", "python -m pip install packaging")
        return
    fit = []
    for each in map(Requirement, required):
        if each.marker is not None and not each.marker.evaluate({"extra": ""}):
            continue
        found = installed(each.name)
        if found is not None and each.specifier.contains(found, prereleases=True):
            fit.append(f"{each.name} {found}")
            continue
        wanted = f"{each.name}{each.specifier}"
        state = f"{found} is installed" if found is not None else "it is not installed"
        yield Finding(each.name, "failed", f"{state}; oxide needs {wanted}", f"python -m pip install '{wanted}'")
    yield Finding("packages", "ok", ", ".join(fit) if fit else "none fits")


# The GPU


def bindings_major() -> int | None:
    """Returns the major version of the installed cuda-bindings."""
    found = installed_version("cuda-bindings")
    return int(found.partition(".")[0]) if found else None


def needed_cuda(driver: CudaDriver, bindings: int | None) -> tuple[int, int]:
    """Returns the CUDA version that the driver must support: the newest version that the PTX for one of its GPUs needs
    or, if that is newer, version X.0 for the installed cuda-bindings X.Y. Minor versions of cuda-bindings are
    compatible with each other."""
    needs = [PTX_NEEDS.get(gpu.capability, PTX) for gpu in driver.gpus] or [PTX]
    return max([*needs, *([(bindings, 0)] if bindings is not None else [])])


def too_old(driver: CudaDriver, bindings: int | None) -> bool:
    """Returns whether the driver is older than what oxide needs."""
    return driver.cuda is not None and driver.cuda < needed_cuda(driver, bindings)


def gpus(driver: CudaDriver, cards: int, asked: str, bindings: int | None) -> Iterator[Finding]:
    """Examines the driver and each GPU. ``cards`` is the number of NVIDIA's GPUs on the PCI bus. ``asked`` is the value
    of ``OXIDE_DEVICE``."""
    if driver.cuda is None:
        seen = f"; the PCI bus has {cards} of NVIDIA's GPUs" if cards else ""
        must = bool(cards) or asked == "cuda"
        yield Finding(
            "driver",
            "failed" if must else "warning",
            f"no NVIDIA driver: {driver.problem}{seen}",
            "install the NVIDIA driver, release 580 or later, and start again"
            if must
            else "none is needed for the CPU device, which runs every kernel; OXIDE_DEVICE=cpu chooses it silently. "
            "For a GPU, install the NVIDIA driver, release 580 or later; in a container, start it with --gpus all",
        )
        return
    release = f"{driver.release}, " if driver.release else ""
    version = f"{release}supports CUDA {_dotted(driver.cuda)}"
    needed = needed_cuda(driver, bindings)
    if too_old(driver, bindings):
        least = next(number for cuda, number in sorted(RELEASES.items()) if cuda >= needed)
        yield Finding(
            "driver",
            "failed",
            f"{version}; oxide needs CUDA {_dotted(needed)}",
            f"install the NVIDIA driver, release {least} or later; until then, OXIDE_DEVICE=cpu",
        )
    elif driver.problem is not None:
        yield Finding(
            "driver",
            "failed" if cards or asked == "cuda" else "warning",
            f"{version}; no GPU can be used: {driver.problem}",
            "look for the GPU with nvidia-smi, and at CUDA_VISIBLE_DEVICES; until then, OXIDE_DEVICE=cpu",
        )
    else:
        yield Finding("driver", "ok", version)
    for gpu in driver.gpus:
        what = f"{gpu.name}, compute capability {_dotted(gpu.capability)}, {size_text(gpu.memory)}"
        if gpu.capability < LEAST_CAPABILITY:
            yield Finding(
                f"cuda:{gpu.number}",
                "failed",
                f"{what}; kernels are compiled for {_dotted(LEAST_CAPABILITY)} and later",
                "hide this GPU with CUDA_VISIBLE_DEVICES, or set OXIDE_DEVICE=cpu",
            )
        elif gpu.capability < TENSOR_CORES:
            yield Finding(
                f"cuda:{gpu.number}",
                "warning",
                f"{what}; matrix products on tensor cores need {_dotted(TENSOR_CORES)}",
                "all other kernels run; `oxide_kernels` chooses kernels that this GPU has",
            )
        else:
            yield Finding(f"cuda:{gpu.number}", "ok", what)


def _libdevice() -> Path | None:
    from oxide.compiler.ptx.libdevice import find_libdevice

    return find_libdevice()


def libdevice(found: Path | None, has_gpu: bool) -> Finding:
    """Examines libdevice, NVIDIA's library of mathematics for GPU kernels."""
    if found is not None:
        return Finding("libdevice", "ok", str(found))
    return Finding(
        "libdevice",
        "warning",
        "there is none: GPU kernels that call sin, exp or other functions of `math` do not compile"
        + ("" if has_gpu else "; the CPU device has its own"),
        "python -m pip install 'nvidia-nvvm>=13,<14' (it comes with oxide-gpu[math]), or set CUDA_HOME to a toolkit",
    )


# The cache and the environment


def cache() -> Finding:
    """Examines the cache's directory by writing to it."""
    if not disk.enabled():
        return Finding(
            "cache", "warning", "off (OXIDE_CACHE=0): every process compiles its kernels", "unset OXIDE_CACHE"
        )
    place, problem = disk.place_and_problem(create=True)
    if problem is None:
        try:
            with tempfile.TemporaryFile(dir=place) as file:
                file.write(b"oxide doctor")
        except OSError as error:
            problem = f"nothing can be written to {place} ({error.strerror or error})"
    if problem is not None:
        return Finding(
            "cache",
            "failed",
            f"{problem}; every process compiles its kernels",
            f"chown and chmod 700 {place}, or set OXIDE_CACHE_DIR to a directory of yours",
        )
    files = disk.stored()
    taken = size_text(sum(each.nbytes for each in files))
    return Finding("cache", "ok", f"{place}: {len(files)} files, {taken} of {size_text(disk.limit())}")


VARIABLES = {
    *("CACHE", "CACHE_DIR", "CACHE_LIMIT", "COMPILE", "COMPLETION", "CPU_DEVICES", "CPU_MEMORY", "CPU_THREADS"),
    *("CORE", "CRASH_REPORT", "DEVICE"),
    *("GDB", "GROUP", "LINEINFO", "NVTX", "PERF"),
    *("INTERPRET", "INTERPRET_LIMIT", "NATIVE", "ORDERING", "PINNED_LIMIT", "SANITIZE", "SEED", "TRACE", "TRACE_CLOCK"),
    "TRACEBACK",
    "VERIFY",
}
"""The environment variables of oxide, without their prefix."""


def variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Examines the names of the variables that begin with ``OXIDE_``: a misspelt one has no effect."""
    from difflib import get_close_matches

    given = sorted(name for name in environment if name.startswith("OXIDE_"))
    for name in given:
        if name.removeprefix("OXIDE_") in VARIABLES:
            continue
        close = get_close_matches(name.removeprefix("OXIDE_"), VARIABLES, 1)
        hint = f"; is OXIDE_{close[0]} meant?" if close else ""
        yield Finding(name, "warning", f"oxide reads no such variable{hint}", f"unset {name}")
    known = [f"{name}={environment[name]}" for name in given if name.removeprefix("OXIDE_") in VARIABLES]
    if known:
        yield Finding("variables", "ok", " ".join(known))


def tools(found: Mapping[str, str | None]) -> Finding:
    """Lists the tools of the CUDA Toolkit that other commands of ``oxide`` use, found and missing. Kernels run without
    them."""
    there = [f"{name} ({path})" for name, path in found.items() if path]
    missing = [name for name, path in found.items() if not path]
    parts = [", ".join(there) or "none of NVIDIA's tools is here"]
    if missing:
        parts.append(
            f"not here: {', '.join(missing)}, which sanitize, profile and inspect --sass use and kernels do not"
        )
    return Finding("tools", "ok", "; ".join(parts))


# A kernel on a device


def trial(device: str, outcome: Trial) -> Finding:
    """Returns the finding for the outcome of a kernel's trial on ``device``."""
    name = f"kernel on {device}"
    if not outcome.error:
        return Finding(name, "ok", "compiled and run, with the right result")
    if outcome.phase == "import":
        fix = "install the versions that oxide needs, which are above: what it builds on cannot be imported"
    elif device == "cpu":
        fix = "fix what is above; if nothing is, report this"
    else:
        fix = "fix what is above; see whether nvidia-smi and other CUDA programs work; until then, OXIDE_DEVICE=cpu"
    return Finding(
        name,
        "failed",
        outcome.error,
        f"{fix}. The whole error: {sys.executable} -m oxide.commands.trial {device.replace(':', ' ')}",
    )


def try_kernel(kind: str, number: int, seconds: float = SECONDS) -> Trial:
    """Compiles and runs a kernel on a device, in a process of its own and without the cache."""
    ours = {
        "OXIDE_DEVICE",
        "OXIDE_INTERPRET",
        "OXIDE_SANITIZE",
        "OXIDE_CPU_DEVICES",
        "OXIDE_CPU_THREADS",
        "OXIDE_TRACE",
    }
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {"OXIDE_DEVICE": kind, "OXIDE_CACHE": "0", "PYTHONWARNINGS": "ignore"}
    # The folder that contains the package comes last in sys.path: other packages in it must not hide Python's own
    # modules.
    start = (
        f"import runpy, sys; sys.path.append({str(PACKAGE.parent)!r}); "
        "runpy.run_module('oxide.commands.trial', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", start, kind, str(number), "--json"]
    try:
        ran = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Trial(f"the kernel had not ended after {seconds:g} s", "run")
    report = _last_json(ran.stdout)
    if report is not None:
        return Trial(str(report["error"]), str(report["phase"]))
    if ran.returncode < 0:
        return Trial(f"its process was ended by signal {-ran.returncode}", "run")
    lines = ran.stderr.strip().splitlines() or [f"exit status {ran.returncode}, and nothing on standard error"]
    return Trial(lines[-1], "import")


def _last_json(text: str) -> dict[str, Any] | None:
    lines = text.strip().splitlines()
    if not lines or not re.match(r"\{.*\}$", lines[-1]):
        return None
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
