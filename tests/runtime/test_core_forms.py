"""The two forms of the core, in C and in Python, do the same: random programs run once with each, in processes of their
own, and give the same results, errors, warnings and calls of the driver.

``OXIDE_CORE_PROGRAMS`` is the number of programs, and ``OXIDE_CORE_FIRST`` the seed of the first."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import zip_longest

import pytest

from oxide.host import core

FIRST = int(os.environ.get("OXIDE_CORE_FIRST", "1"))
PROGRAMS = int(os.environ.get("OXIDE_CORE_PROGRAMS", "24"))
STRICTLY = 0.8  # the least share of the programs in which everything is the same; the others differ in when objects go

# What depends on when the last reference to an object goes. After an error that is later in Python, whose frames are
# kept by the error's traceback. Then memory is freed by another sweep, and whether a stream is idle is asked elsewhere.
OF_LIFETIMES = re.compile(
    r"\d+:   (free|query|record_event|wait_event|create_|destroy_|free_host|allocate_host|synchronize)"
)

NAMED = re.compile(r"((?:Cpu\w+|memory|function) \d+)( \+ \d+)?")


def start(form: str, first: int, count: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "OXIDE_DEVICE": "cpu", "OXIDE_CORE": form}
    program = [sys.executable, "-m", "tests.runtime.core_forms", str(first), str(count)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def compare(first: int, count: int) -> None:
    differs = difference_of(first, count)
    if differs:  # a kernel that is compiled for the first time, in a thread, may be loaded a step later
        differs = difference_of(first, count)
    assert not differs, differs


def difference_of(first: int, count: int) -> str:
    """Returns where two programs differ, in words, or nothing."""
    runs = [start(form, first, count) for form in ("", "0")]
    found = []
    for run in runs:
        out, error = run.communicate()
        assert run.returncode == 0, error
        found.append(json.loads(out))
    (c, programs_c), (python, programs_python) = found
    assert (c, python) == ("C", "Python")
    same = 0
    for seed, in_c, in_python in zip(range(first, first + count), programs_c, programs_python, strict=True):
        same += in_c == in_python
        if in_c != in_python and loosely(in_c) != loosely(in_python):
            return f"program {seed} {difference(in_c, in_python)}"
    return "" if same >= STRICTLY * count else f"{same} of {count} programs do the same at the same time"


def loosely(lines: list[str]) -> list[str]:
    """Returns what a program does whenever its objects go."""
    locked = {name for line in lines for name in re.findall(r"allocate_host\(\d+\) = (memory \d+)", line)}
    said = sorted(line.partition(": ")[2] for line in lines if "was never run" in line)
    names: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        if found[1] in locked:
            return "page-locked memory"
        return names.setdefault(found[1], f"thing {len(names)}") + (found[2] or "")

    kept = [line for line in lines if "was never run" not in line and not OF_LIFETIMES.match(line)]
    return [*said, *[NAMED.sub(renamed, line) for line in kept]]


def difference(in_c: list[str], in_python: list[str]) -> str:
    pairs = list(zip_longest(in_c, in_python))
    at = next(number for number, (one, other) in enumerate(pairs) if one != other)
    before = "\n".join(in_c[max(0, at - 12) : at])
    return "\n".join(
        ["differs:", before, "in C:", *in_c[at : at + 8], "in Python:", *in_python[at : at + 8]],
    )


@pytest.mark.skipif(core.FORM == "Python", reason="only the core's twin is here")
def test_random_programs_do_the_same_in_both_forms() -> None:
    compare(FIRST, PROGRAMS)


@pytest.mark.nightly
@pytest.mark.skipif(core.FORM == "Python", reason="only the core's twin is here")
@pytest.mark.parametrize("first", range(10_000, 14_000, 500))
def test_many_random_programs_do_the_same_in_both_forms(first: int) -> None:
    compare(first, 500)
