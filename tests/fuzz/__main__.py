"""``python -m tests.fuzz --seconds N``: random kernels against a reference that is not oxide.

Each case is a random program (``generate``), compiled with its checks, without them and under the sanitizer, and
interpreted by oxide itself (``k.interpret``), launched several times, and compared with what the reference interpreter
says (``interpret``, ``run``). ``--processes P`` runs cases in P processes; one that dies or hangs is a finding with the
seed of its case. With ``--device cuda`` every case runs on the GPU and on the CPU device. Where ``ptxas`` is on the
PATH, or ``--ptxas`` says where, it assembles the PTX of every case. ``--case SEED`` runs one case again and shows it.

A finding is printed with its seed, its source, made smaller, and its inputs, and written to ``--save``. The last line
counts cases, launches, launches with faults, and findings; the exit status is 1 if there are findings.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run (60)")
    parser.add_argument("--seed", type=int, help="the seed of the first case; the others follow it (by the clock)")
    parser.add_argument("--processes", type=int, default=1, help="how many processes run cases (1)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--case", type=int, help="run the case of this seed alone, and show it")
    parser.add_argument("--ptxas", nargs="?", const="ptxas", help="assemble the PTX of each case with this program")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a case hangs (120)")
    parser.add_argument("--save", type=Path, help="a folder that findings are written to")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.ptxas = shutil.which(options.ptxas or "ptxas")
    os.environ["OXIDE_DEVICE"] = options.device
    os.environ["OXIDE_CACHE"] = "0"
    if options.worker:
        return work(options)
    if options.case is not None:
        return show(options)
    return Run(options).run()


# One process that runs cases: it reads seeds, and writes what came of each as a line of JSON


def work(options: Any) -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything else prints is no answer
    with tempfile.TemporaryDirectory(prefix="oxide-fuzz-") as folder:
        for line in sys.stdin:
            answers.write(json.dumps(outcome_of(int(line), options, Path(folder), shrinking=20.0)) + "\n")
            answers.flush()
    return 0


def outcome_of(seed: int, options: Any, folder: Path, shrinking: float) -> dict[str, Any]:
    """Runs a case. Returns the counts and, of a finding, its kind and its text."""
    from .run import Counts, Finding, Settings, run_case

    settings, counts = Settings(options.device, options.ptxas, folder=folder), Counts()
    found: dict[str, Any] = {}
    try:
        run_case(seed, settings, counts)
    except Finding as finding:
        found = {"kind": finding.kind, "text": describe(seed, finding, settings, shrinking)}
    except Exception:  # of the runtime, the compiler or the fuzzer itself: each is to be looked at
        found = {"kind": "exception", "text": f"seed {seed}\n{traceback.format_exc()}"}
    return {"seed": seed, "counts": asdict(counts), **found}


def describe(seed: int, finding: Any, settings: Any, shrinking: float) -> str:
    """Shrinks a failing case, and returns all that is to be known of it."""
    from . import tree
    from .generate import launches_of, program_of
    from .interpret import Launch
    from .run import Counts, Finding, check
    from .shrink import shrink

    program = program_of(seed)
    launch = finding.launch or launches_of(program, seed, 1)[0]
    last = finding

    def fails(candidate: tree.Program, smaller: Launch) -> bool:
        nonlocal last
        try:
            check(candidate, [smaller], [finding.way], settings, Counts())
        except Finding as found:
            if found.kind == finding.kind:
                last = found
                return True
        except Exception:
            return False  # no program any more
        return False

    whole = tree.source(program)
    if shrinking and fails(program, launch):
        program, launch = shrink(program, launch, fails, shrinking)
        fails(program, launch)
    given = "\n".join(f"    {name} = {value}" for name, value in launch.arguments.items())
    return (
        f"seed {seed}: {finding.kind}, {finding.way.name} on {finding.way.device}\n{finding}\n\n"
        f"made smaller: {last}\ngrid {launch.grid}, block {launch.block}\n{given}\n\n{tree.source(program)}\n"
        f"# as it was\n\n{whole}"
    )


def show(options: Any) -> int:
    from . import tree
    from .generate import program_of

    print(tree.source(program_of(options.case)))
    with tempfile.TemporaryDirectory(prefix="oxide-fuzz-") as folder:
        outcome = outcome_of(options.case, options, Path(folder), shrinking=60.0)
    print(outcome.pop("text", "no finding"))
    print(outcome)
    return int("kind" in outcome)


# The process that hands out seeds


@dataclass
class Worker:
    """A process, and the case that it runs since a time."""

    process: subprocess.Popen[str]
    errors: Path
    seed: int = -1
    since: float = 0.0


@dataclass
class Run:
    """A run of cases in several processes."""

    options: Any
    cases: int = 0
    launches: int = 0
    faulting: int = 0
    skipped: int = 0
    findings: list[tuple[int, str]] = field(default_factory=list)

    def run(self) -> int:
        options = self.options
        first = options.seed if options.seed is not None else int(time.time() * 1000) % 2**40
        print(f"seeds from {first}", flush=True)
        self.next_seed, self.end = first, time.monotonic() + options.seconds
        self.answers: queue.Queue[tuple[Worker, str | None]] = queue.Queue()
        with tempfile.TemporaryDirectory(prefix="oxide-fuzz-") as folder:
            self.folder = Path(folder)
            busy = [self.start(number) for number in range(options.processes)]
            while busy:
                try:
                    worker, line = self.answers.get(timeout=1.0)
                except queue.Empty:
                    self.stop_hanging(busy)
                    continue
                if line is not None:
                    self.note(json.loads(line))
                    if time.monotonic() < self.end:
                        self.hand_out(worker)
                    else:
                        assert worker.process.stdin is not None
                        worker.process.stdin.close()
                    continue
                busy.remove(worker)
                if worker.seed >= 0:
                    self.died(worker)
                    if time.monotonic() < self.end:
                        busy.append(self.start(len(busy)))
        kinds = sorted({kind for _, kind in self.findings})
        print(
            f"{self.cases} cases, {self.launches} launches, {self.faulting} with faults, {self.skipped} too long, "
            f"{len(self.findings)} findings{': ' if kinds else ''}{', '.join(kinds)}",
            flush=True,
        )
        return int(bool(self.findings))

    def command(self) -> list[str]:
        options = self.options
        command = [sys.executable, "-m", "tests.fuzz", "--worker", "--device", options.device]
        return command + (["--ptxas", options.ptxas] if options.ptxas else [])

    def start(self, number: int) -> Worker:
        errors = self.folder / f"errors-{number}-{self.next_seed}.txt"
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                self.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT
            )
        worker = Worker(process, errors)
        threading.Thread(target=self.listen, args=(worker,), daemon=True).start()
        self.hand_out(worker)
        return worker

    def listen(self, worker: Worker) -> None:
        assert worker.process.stdout is not None
        for line in worker.process.stdout:
            self.answers.put((worker, line))
        worker.process.wait()
        self.answers.put((worker, None))

    def hand_out(self, worker: Worker) -> None:
        worker.seed, worker.since = self.next_seed, time.monotonic()
        self.next_seed += 1
        assert worker.process.stdin is not None
        try:
            worker.process.stdin.write(f"{worker.seed}\n")
            worker.process.stdin.flush()
        except OSError:
            pass  # it has died: the listener says so

    def note(self, outcome: dict[str, Any]) -> None:
        for name, number in outcome["counts"].items():
            setattr(self, name, getattr(self, name) + number)
        if "kind" in outcome:
            self.report(outcome["seed"], outcome["kind"], outcome["text"])

    def stop_hanging(self, busy: list[Worker]) -> None:
        for worker in busy:
            if worker.seed >= 0 and time.monotonic() - worker.since > self.options.limit:
                worker.process.kill()

    def died(self, worker: Worker) -> None:
        if time.monotonic() - worker.since > self.options.limit:
            kind = "hang"
        elif worker.process.returncode == 0:
            return
        else:
            kind = f"exit status {worker.process.returncode}"
        text = worker.errors.read_text()[-4000:]
        self.report(worker.seed, kind, f"seed {worker.seed}: {kind}\n{text}\n\n{self.source(worker.seed)}")

    def source(self, seed: int) -> str:
        from . import tree
        from .generate import program_of

        return tree.source(program_of(seed))

    def report(self, seed: int, kind: str, text: str) -> None:
        self.findings.append((seed, kind))
        print(f"\n--- finding {len(self.findings)}\n{text}\n---\n", flush=True)
        if self.options.save is not None:
            self.options.save.mkdir(parents=True, exist_ok=True)
            (self.options.save / f"{seed}.txt").write_text(text)


if __name__ == "__main__":
    sys.exit(main())
