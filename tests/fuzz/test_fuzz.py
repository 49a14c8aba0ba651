"""Some tens of random kernels against the reference, the same in continuous integration; and the fuzzer itself."""

from __future__ import annotations

import math
import os
import random
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fuzz import arithmetic, interpret, tree
from tests.fuzz.__main__ import Run
from tests.fuzz.generate import launches_of, program_of
from tests.fuzz.run import Counts, Finding, Settings, run_case

FIRST = 0 if os.environ.get("CI") else random.randrange(2**40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST, FIRST + 16), ids=lambda seed: f"seed{seed - FIRST}")
def test_a_random_kernel_does_what_the_reference_says(seed: int, device: str, tmp_path: Path) -> None:
    try:
        run_case(seed, Settings(device, launches=4, folder=tmp_path), Counts())
    except Finding as finding:
        pytest.fail(f"python -m tests.fuzz --device {device} --case {seed}: {finding.kind}: {finding}")


def numbers(kind: str, count: int) -> list[float]:
    """Floats of a type: of any size, around the ends of its range, and with few bits, so that ties are common."""
    rng = random.Random(kind)
    found: list[float] = [0.0, -0.0, math.inf, -math.inf, math.nan]
    while len(found) < count:
        exponent = rng.choice((rng.randint(-1074, 1023), rng.randint(-160, 130), rng.randint(-30, 20)))
        found.append(
            arithmetic.ROUND[kind](math.ldexp(rng.choice((rng.uniform(-2, 2), rng.randint(-9, 9) / 8)), exponent))
        )
    return found


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_the_references_rounding_is_numpys(kind: str) -> None:
    doubles = numbers("f64", 3000)
    doubles += [(a + b) / 2 for a, b in zip(numbers(kind, 1000), numbers(kind, 1001)[1:], strict=False)]
    with np.errstate(all="ignore"):
        expected = np.array(doubles).astype(arithmetic.DTYPES[kind]).astype(float)
    for round_ in (arithmetic.ROUND[kind], lambda number: arithmetic.round_to(kind, number)):
        np.testing.assert_array_equal(np.array([round_(number) for number in doubles]), expected)
        signs = np.signbit([round_(number) for number in doubles if number == number])
        np.testing.assert_array_equal(signs, np.signbit([number for number in expected if number == number]))


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_the_reference_rounds_an_integer_once(kind: str) -> None:
    rng = random.Random(kind)
    for _ in range(2000):
        bits = rng.randint(1, 64)
        number = rng.choice((-1, 1)) * min(
            2**bits + (2 ** max(bits - rng.randint(1, 25), 0)) + rng.randint(-1, 1), 2**64 - 1
        )
        found = arithmetic.of_integer(kind, number)
        for other in (math.nextafter(found, -math.inf), math.nextafter(found, math.inf)):
            if kind == "f64" and math.isfinite(found):
                assert abs(Fraction(found) - number) <= abs(Fraction(other) - number)
        if math.isfinite(found):
            precision = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}[kind]
            unit = Fraction(2) ** max(abs(number).bit_length() - precision, 0)
            error = abs(Fraction(found) - number)
            assert error < unit / 2 or (error == unit / 2 and Fraction(found) / unit % 2 == 0) or error == 0
        else:
            assert abs(number) >= 65520
            assert kind == "f16"


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_the_references_fma_is_rounded_once(kind: str) -> None:
    rng, given = random.Random(kind), numbers(kind, 400)
    for _ in range(4000):
        a, b, c = (rng.choice(given) for _ in range(3))
        if rng.random() < 0.5 and math.isfinite(a * b):
            c = arithmetic.ROUND[kind](-a * b * rng.choice((1, 1, 1 + 2**-20, 2**24, 2**-24, 2**50)))
        found = arithmetic.fused(kind, a, b, c)
        if not all(map(math.isfinite, (a, b, c))):
            assert str(found) == str(a * b + c) or math.isinf(c) or (math.isnan(found) and math.isnan(a * b + c))
            continue
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        if exact == 0:
            assert found == 0
            continue
        if math.isinf(found):
            assert abs(exact) > Fraction(arithmetic.ROUND[kind](3.4e38 if kind == "f32" else 1.797e308))
            continue
        neighbours = _neighbours(kind, found)
        for other in neighbours:
            if math.isfinite(other):
                assert abs(Fraction(found) - exact) <= abs(Fraction(other) - exact), (a, b, c)


def _neighbours(kind: str, number: float) -> list[float]:
    dtype = arithmetic.DTYPES[kind].type
    with np.errstate(all="ignore"):
        return [float(np.nextafter(dtype(number), dtype(end))) for end in (-math.inf, math.inf)]


def test_a_seed_gives_the_same_program_and_launches() -> None:
    for seed in range(5):
        first, second = program_of(seed), program_of(seed)
        assert tree.source(first) == tree.source(second)
        assert str(launches_of(first, seed, 3)) == str(launches_of(second, seed, 3))


def test_no_program_has_a_negative_literal_as_an_index() -> None:
    """oxide refuses it: Python would count from the end."""
    for seed in (990067, *range(20)):
        assert re.search(r"\bx\d+\[\(?-\d+\)?\]", tree.source(program_of(seed))) is None


def test_the_reference_ends_a_thread_at_its_fault() -> None:
    outcomes = []
    for seed in range(30):
        program = program_of(seed)
        tree.source(program)
        reference = interpret.Reference(program)
        for launch in launches_of(program, seed, 2):
            try:
                outcomes.append((program.waits, reference.run(launch)))
            except interpret.TooLong:
                continue
    assert any(outcome.faults for _, outcome in outcomes)
    assert any(not outcome.faults for _, outcome in outcomes)
    assert {waits for waits, _ in outcomes} == {False, True}


def options(**changed: Any) -> Any:
    import argparse

    given = {"device": "cpu", "ptxas": None, "limit": 60.0, "save": None, "processes": 1, "seconds": 0.0, "seed": 7}
    return argparse.Namespace(**{**given, **changed})


def test_a_process_that_dies_is_a_finding_with_its_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(options(save=tmp_path))
    monkeypatch.setattr(run, "command", lambda: [sys.executable, "-c", "import os; input(); os.abort()"])
    assert run.run() == 1
    assert run.findings == [(7, "exit status -6")]
    assert "def k(" in (tmp_path / "7.txt").read_text()
    assert capsys.readouterr().out.splitlines()[-1].endswith("1 findings: exit status -6")


def test_a_case_that_does_not_end_is_a_finding_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(options(limit=0.1))
    monkeypatch.setattr(run, "command", lambda: [sys.executable, "-c", "input(); input()"])
    assert run.run() == 1
    assert run.findings == [(7, "hang")]


@pytest.mark.nightly
def test_the_command_runs_and_counts() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", "0", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent.parent)
    assert done.stdout.splitlines()[-1].startswith("1 cases, "), done.stdout + done.stderr
