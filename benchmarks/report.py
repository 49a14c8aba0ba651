"""What a run found, for reading: tables for a terminal, a Markdown page with plots, and JSON with all of it."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import platform
import re
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import oxide
from benchmarks.harness import Claim, Comparison, Figure, Session
from oxide.host.core import FORM

_PACKAGES = (
    *("oxide-gpu", "numpy", "numba", "numba-cuda", "llvmlite", "cuda-core", "cuda-bindings", "trio"),
    *("torch", "triton", "cupy", "cupy-cuda12x", "cupy-cuda13x", "warp-lang"),
)

_NO_PLOTS = "no plots: matplotlib is not installed (pip install 'oxide-gpu[bench]')"

RECORD, PAGE = "run.json", "page.md"
"""A run's files, in a folder of its own."""


def describe() -> dict[str, Any]:
    """The machine: device, driver, Python and the versions of everything compared."""
    info = oxide.devices()[0].info
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": info.name,
        "target": info.target.arch,
        "driver": _driver_version(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "core": FORM,
        "packages": versions,
    }


def table(comparison: Comparison) -> str:
    """One comparison, its best first."""
    lines = [f"\n{comparison.group}: {comparison.title} [{comparison.unit}]"]
    order = sorted(comparison.figures.items(), key=lambda item: item[1].median, reverse=comparison.better == "more")
    if order:
        best = order[0][1].median
        lines.append(f"  {'':<42}{'median':>11}{'10%':>11}{'90%':>11}{'best = 1':>10}{'samples':>9}")
        for name, figure in order:
            ratio = figure.median / best if comparison.better == "less" else best / figure.median
            numbers = "".join(f"{_number(value):>11}" for value in (figure.median, figure.low, figure.high))
            lines.append(f"  {name:<42}{numbers}{ratio:>10.2f}{figure.count:>9}")
    lines += [f"  {name:<42}skipped: {reason}" for name, reason in comparison.skipped.items()]
    lines += [f"  {name:<42}WRONG: {reason}" for name, reason in comparison.wrong.items()]
    return "\n".join(lines)


def claims(session: Session) -> str:
    """What oxide is held to, a line each."""
    return "\n".join(
        f"{'PASS' if claim.met else 'FAIL'}  {claim.name}: {claim.value:.3g} ({claim.relation} {claim.limit:g})"
        for claim in session.claims
    )


def refusal(folder: Path, name: str) -> str | None:
    """Why ``write`` could not write there, if so: asked before anything is measured."""
    if Path(name).name != name:
        return f"--name {name!r} is no name of a folder"
    file = folder / name / RECORD
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new = not file.parent.exists()
        file.parent.mkdir(exist_ok=True)
        empty = not file.exists()
        with file.open("a"):
            pass
        if empty:
            file.unlink()
        if new:
            file.parent.rmdir()
    except (OSError, ValueError) as error:
        return f"the results cannot be written to {str(file)!r}: {error}"
    return None


def write(session: Session, machine: dict[str, Any], folder: Path, *, plots: bool) -> list[str]:
    """Writes a run's record, its page and, if asked, its plots to ``folder``. Returns what to tell the user of them."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        **machine,
        "quick": session.quick,
        "claims": [{**asdict(claim), "met": claim.met} for claim in session.claims],
        "comparisons": [asdict(comparison) for comparison in session.comparisons],
        "errors": session.errors,
    }
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    written = _draw(session.comparisons, session.claims, record, folder, plots=plots)
    return [f"written: {folder / RECORD}", *written]


def redraw(file: Path) -> list[str]:
    """The page and the plots of an earlier run, beside its JSON ``file``: it may have been made on a machine without
    matplotlib. Raises ``OSError`` where it cannot be read, ``ValueError`` for what ``write`` has not written, and here
    without matplotlib, before anything is written."""
    if find_spec("matplotlib") is None:
        raise ValueError(f"{file} is not drawn: {_NO_PLOTS}")
    if file.suffix != ".json":
        raise ValueError(f"{file} is no .json of a run of the benchmarks")
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        claims = [Claim(claim["name"], claim["value"], claim["limit"], claim["relation"]) for claim in record["claims"]]
        comparisons = [
            Comparison(**{**one, "figures": {name: Figure(**figure) for name, figure in one["figures"].items()}})
            for one in record["comparisons"]
        ]
        _page(comparisons, claims, record, {})  # what it cannot show is found before anything is written
        return _draw(comparisons, claims, record, file.parent, plots=True)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{file} is no JSON of a run of the benchmarks: {type(error).__name__}: {error}") from error


def _draw(
    comparisons: list[Comparison], claims: list[Claim], machine: dict[str, Any], folder: Path, *, plots: bool
) -> list[str]:
    drawn, note = _plots(comparisons, folder) if plots else ({}, [])
    (folder / PAGE).write_text(_page(comparisons, claims, machine, drawn), encoding="utf-8")
    return [f"written: {folder / PAGE}" + (f" and {len(drawn)} plots" if drawn else ""), *note]


def _page(comparisons: list[Comparison], claims: list[Claim], machine: dict[str, Any], plots: dict[str, str]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    lines = [
        f"# Benchmarks on {machine['device']}",
        "",
        f"{machine['when']}, driver {machine['driver']}, Python {machine['python']}, {versions}. "
        + (f"Core: {machine['core']}. " if "core" in machine else "")
        + ("A quick run: of right results, not of times. " if machine.get("quick") else "")
        + "Contenders took turns in one run; results were checked before they were timed.",
    ]
    lines += [f"\nBROKEN, not measured to its end: {group}: {error}" for group, error in machine["errors"].items()]
    if claims:
        lines += ["", "| | what oxide is held to | found | limit |", "| --- | --- | --- | --- |"]
        for claim in claims:
            met = "PASS" if claim.met else "FAIL"
            lines.append(f"| {met} | {claim.name} | {claim.value:.3g} | {claim.relation} {claim.limit:g} |")
    for group, members in itertools.groupby(comparisons, key=lambda comparison: comparison.group):
        lines += ["", f"## {group}"]
        shown: set[str] = set()
        for comparison in members:
            title = comparison.series or comparison.title
            if title in plots and title not in shown:
                shown.add(title)
                lines += ["", f"![{title}]({plots[title]})"]
            lines += ["", f"{comparison.title}, {comparison.unit}:", ""]
            lines += ["| | median | 10% | 90% | samples |", "| --- | --- | --- | --- | --- |"]
            for name, figure in comparison.figures.items():
                numbers = " | ".join(_number(value) for value in (figure.median, figure.low, figure.high))
                lines.append(f"| {name} | {numbers} | {figure.count} |")
            for kind, found in (("skipped", comparison.skipped), ("WRONG", comparison.wrong)):
                lines += [f"| {name} | {kind}: {reason} | | | |" for name, reason in found.items()]
    return "\n".join(lines) + "\n"


def _plots(comparisons: list[Comparison], folder: Path) -> tuple[dict[str, str], list[str]]:
    """Draws bars for a comparison and lines for a series; the file of each title."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return {}, [_NO_PLOTS]
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "oxide"  # the same figures give the same file
    matplotlib.rcParams["svg.fonttype"] = "none"  # text, and not the outlines of its letters
    from matplotlib import pyplot

    files: dict[str, str] = {}
    measured = [comparison for comparison in comparisons if comparison.figures]
    for title in dict.fromkeys(comparison.series or comparison.title for comparison in measured):
        members = [comparison for comparison in measured if (comparison.series or comparison.title) == title]
        first = members[0]
        figure, axes = pyplot.subplots(figsize=(7, 4 if first.series else 1.2 + 0.35 * len(first.figures)))
        if first.series:
            for contender in dict.fromkeys(itertools.chain.from_iterable(member.figures for member in members)):
                points = [(member.x, member.figures[contender]) for member in members if contender in member.figures]
                xs, figures = zip(*points, strict=True)
                line = axes.plot(xs, [one.median for one in figures], marker="o", label=contender)
                axes.fill_between(
                    xs,
                    [one.low for one in figures],
                    [one.high for one in figures],
                    alpha=0.2,
                    color=line[0].get_color(),
                )
            axes.set_xscale("log", base=2 if first.group == "pipeline" else 10)
            axes.set_yscale("log")
            axes.set_xlabel("batches" if first.group == "pipeline" else first.series)
            axes.set_ylabel(first.unit)
            axes.set_xticks([member.x for member in members], [f"{member.x:g}" for member in members])
            axes.set_xticks([], minor=True)
            axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.02, 0.5))
        else:
            names = list(first.figures)[::-1]
            figures = tuple(first.figures[contender] for contender in names)
            spread = (
                [one.median - one.low for one in figures],
                [one.high - one.median for one in figures],
            )
            axes.barh(
                names,
                [one.median for one in figures],
                xerr=spread,
                color=["tab:orange" if contender.startswith("oxide") else "tab:gray" for contender in names],
            )
            axes.set_xlabel(first.unit)
        axes.set_title(f"{first.group}: {title}", fontsize="medium")
        figure.tight_layout()
        file = f"{first.group}-{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}.svg"
        figure.savefig(folder / file, metadata={"Date": None}, bbox_inches="tight")
        pyplot.close(figure)
        files[title] = file
    return files, []


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def _driver_version() -> str:
    path = Path("/proc/driver/nvidia/version")
    if not path.exists():
        return "none"
    words = path.read_text(encoding="utf-8").splitlines()[0].split()
    return next((word for word in words if "." in word and word[0].isdigit()), "unknown")
