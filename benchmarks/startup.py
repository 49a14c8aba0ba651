"""From process start to the last line: importing oxide, one kernel, and the example, beside plain numba-cuda.

Every sample is a fresh interpreter. The caches on disk are warm, unless a contender says otherwise: the check before
the timing fills them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Contender, Session, WrongResult, peer

ROOT = Path(__file__).parent.parent
EXAMPLE = "oxide: python -m examples.async_mlp"
NUMBA = "numba-cuda: the same program, cache=True"
WARM = "oxide"
ON_CPU = "oxide on the CPU device"
COLD = "oxide, no cache (OXIDE_CACHE=0)"
SIMULATOR = "numba-cuda's simulator"


def run(session: Session) -> None:
    """Measures the group."""
    turns, warmup = session.choose(7, 1), session.choose(1, 0)
    session.compare(
        "import",
        {
            "python -c pass": _program(["-c", "print('SUCCESS')"]),
            "oxide": _program(["-c", "import oxide; print('SUCCESS')"]),
            "NumPy": _program(["-c", "import numpy; print('SUCCESS')"]),
        },
        unit="ms",
        turns=turns,
        warmup=warmup,
    )

    def numba(module: str) -> Callable[[], Contender]:
        def make() -> Contender:
            session.require_gpu()
            peer("numba.cuda", "numba-cuda")
            return _program(["-m", module])()

        return make

    def simulator() -> Contender:
        peer("numba.cuda", "numba-cuda")
        return _program(["-m", "benchmarks.numba_first_kernel"], NUMBA_ENABLE_CUDASIM="1")()

    first = ["-m", "benchmarks.first_kernel"]
    beside = {ON_CPU: _program(first, OXIDE_DEVICE="cpu")} if session.device == "cuda" else {}
    kernels = session.compare(
        "one kernel, process start to its first result",
        {
            WARM: _program(first, OXIDE_DEVICE=session.device),
            COLD: _program(first, OXIDE_DEVICE=session.device, OXIDE_CACHE="0"),
            **beside,
            NUMBA: numba("benchmarks.numba_first_kernel"),
            SIMULATOR: simulator,
        },
        unit="ms",
        turns=turns,
        warmup=warmup,
    )
    session.claim("first kernel, oxide / numba-cuda", kernels.ratio(WARM, NUMBA), "at most", 0.5)
    session.claim(
        "first kernel, oxide's CPU device / numba-cuda's simulator",
        kernels.ratio(ON_CPU, SIMULATOR),
        "at most",
        0.5,
    )

    compared = session.compare(
        "async_mlp, process start to SUCCESS",
        {
            EXAMPLE: _program(["-m", "examples.async_mlp", "--device", session.device]),
            NUMBA: numba("benchmarks.numba_mlp"),
        },
        unit="ms",
        turns=turns,
        warmup=warmup,
    )
    session.claim("start-up, example / the same in numba-cuda", compared.ratio(EXAMPLE, NUMBA), "at most", 0.6)
    if session.device == "cuda":
        on_cpu = session.compare(
            "async_mlp on the CPU device",
            {EXAMPLE: _program(["-m", "examples.async_mlp", "--device", "cpu"])},
            unit="ms",
            turns=turns,
            warmup=warmup,
        )
        if EXAMPLE in on_cpu.figures:
            session.claim("start-up on the CPU device, s", on_cpu.figures[EXAMPLE].median / 1e3, "at most", 1.0)


def _program(arguments: list[str], **environment: str) -> Callable[[], Contender]:
    def start() -> float:
        begun = time.perf_counter()
        ran = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        elapsed = (time.perf_counter() - begun) * 1e3
        if ran.returncode or "SUCCESS" not in ran.stdout:
            last = (ran.stderr.strip() or ran.stdout.strip()).splitlines()[-1:]
            raise WrongResult(f"exit code {ran.returncode}: {' '.join(last)}")
        return elapsed

    return lambda: Contender(lambda: [start()], lambda: _ignore(start()))


def _ignore(_: float) -> None:
    """The check is that it ran to the end."""
