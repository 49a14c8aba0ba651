"""``oxide sanitize``: runs the CPU device's sanitizer and NVIDIA's compute-sanitizer, and prints one report."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from oxide.commands.output import FINDINGS, console, refuse
from oxide.commands.running import Arguments, AsModule, File, Program, checked_program, with_sanitizer

TOOLS = {"memory": "memcheck", "race": "racecheck"}
_ERRORS_FOUND = 86
"""The exit status that compute-sanitizer is told to end with if it has findings. Programs rarely use this number."""


@dataclass
class Report:
    """A run of the program under one sanitizer. ``left_out`` is the reason if the program was not run, else "".
    ``status`` is the program's exit status; it is 0 if compute-sanitizer ended with findings."""

    what: str
    findings: list[str] = field(default_factory=list)
    status: int = 0
    left_out: str = ""

    @property
    def is_fine(self) -> bool:
        return not self.findings and not self.status


def sanitize(
    file: File,
    arguments: Arguments = None,
    as_module: AsModule = False,
    kinds: Annotated[str, typer.Option(help="what to look for: memory, race or memory,race")] = "memory,race",
    device: Annotated[str, typer.Option(help="all, cpu or cuda: where to look")] = "all",
) -> None:
    """Runs a program under every sanitizer that is here, and prints one report. The options stand before FILE.

    On the CPU device it is oxide's own sanitizer, which finds memory errors and races with their lines. Where there is
    a GPU and compute-sanitizer, its memcheck and racecheck run the program again on the GPU.

    Exit status 1 if there is a finding, or if the program fails. Findings count also if the program handles them.

    \b
    Examples:
      oxide sanitize main.py
      oxide sanitize --kinds race --device cpu main.py --size 33
    """
    program = checked_program("sanitize", file, arguments, as_module)
    if device not in ("all", "cpu", "cuda"):
        refuse("sanitize", f"--device {device}: name all, cpu or cuda")
    chosen: dict[str, str] = {}
    with_sanitizer("sanitize", kinds, chosen)
    asked = next(iter(chosen.values())).split(",")
    reports = []
    if device != "cuda":
        reports.append(_on_cpu(program, asked))
    if device != "cpu":
        reports += _on_gpu(program, asked)
    _show(reports)
    if device == "cuda" and all(each.left_out for each in reports):
        refuse("sanitize", f"nothing ran: {reports[0].left_out}")
    if not all(each.is_fine for each in reports):
        raise typer.Exit(FINDINGS)


def _show(reports: list[Report]) -> None:
    shown = console()
    for report in reports:
        if report.left_out:
            shown.print(f"{report.what}: not run: {report.left_out}", style="yellow")
            continue
        count = len(report.findings)
        result = "no findings" if not count else "1 finding" if count == 1 else f"{count} findings"
        if report.status and not count:
            result += f", but the program failed with exit status {report.status}"
        shown.print(f"{report.what}: {result}", style="green" if report.is_fine else "bold red")
        for finding in report.findings:
            for number, line in enumerate(finding.splitlines()):
                shown.print(f"{'    ' if number else '  '}{line}")


def _on_cpu(program: Program, kinds: list[str]) -> Report:
    report = Report(f"CPU device, {' and '.join(kinds)}")
    with tempfile.TemporaryDirectory() as folder:
        findings = Path(folder, "findings")
        environment = {**os.environ, "OXIDE_DEVICE": "cpu", "OXIDE_SANITIZE": ",".join(kinds)}
        sys.stdout.flush()
        report.status = subprocess.call(program.hosted(str(findings)), env=environment | {"OXIDE_INTERPRET": ""})
        lines = findings.read_text(encoding="utf-8").splitlines() if findings.exists() else []
    counted = Counter(str(json.loads(line)["text"]) for line in lines)
    report.findings = [text if times == 1 else f"{text} ({times} launches)" for text, times in counted.items()]
    return report


def _on_gpu(program: Program, kinds: list[str]) -> Iterator[Report]:
    from oxide.commands.machine import cuda_driver, find_tool

    tool = find_tool("compute-sanitizer")
    problem = cuda_driver().problem
    if problem is not None or tool is None:
        missing = problem or "compute-sanitizer is not on PATH, nor in CUDA_HOME; it comes with the CUDA Toolkit"
        yield Report("compute-sanitizer", left_out=missing)
        return
    for kind in kinds:
        report = Report(f"GPU, {TOOLS[kind]}")
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder, "log")
            command = [tool, "--tool", TOOLS[kind], "--report-api-errors", "no", "--log-file", str(log)]
            command += ["--error-exitcode", str(_ERRORS_FOUND), *program.command]
            sys.stdout.flush()
            status = subprocess.call(command, env={**os.environ, "OXIDE_DEVICE": "cuda", "OXIDE_SANITIZE": ""})
            written = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        report.findings = tool_findings(written)
        report.status = 0 if status == _ERRORS_FOUND and report.findings else status
        yield report


def tool_findings(log: str) -> list[str]:
    """Returns the findings in a log of compute-sanitizer. Each is a block of lines without their margin. The title and
    the summary of the log are left out."""
    found: list[list[str]] = [[]]
    for margined in log.splitlines():
        line = margined.removeprefix("=========").strip()
        if not line or re.match(r"COMPUTE-SANITIZER|[A-Z ]*SUMMARY:", line):
            found.append([])
        else:
            found[-1].append(line)
    return ["\n".join(lines) for lines in found if lines]
