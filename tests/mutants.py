"""Mutants: do the tests notice a change of the code that makes it wrong?

    python -m tests.mutants draw          draws them with cosmic-ray's operators, and writes mutants.json
    python -m tests.mutants run TREE      tries each in a copy of the checkout, against what `make check` selects
    python -m tests.mutants table         how many were found, and those that were not

``draw`` needs ``pip install cosmic-ray`` and takes the same number from each of ``PLACES``, with a fixed seed. It
leaves out what no run can tell apart: annotations, which are not evaluated, and ``@final``. ``run`` goes on where an
earlier one stopped. It changes files of TREE, a copy made by ``git clone``, and puts them back.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tests import reach

SEED = 49
COUNT = 100
PLACES = (
    "oxide/compiler/bounds",
    "oxide/compiler/tile/lowering",
    "oxide/runtime/submission",
    "oxide/runtime/ordering",
    "oxide/runtime/memory",
    "oxide/runtime/devices",
)
LIST = Path(__file__).parent / "mutants.json"
SECONDS = 1200
"""A mutant that makes the tests run longer counts as found."""


@dataclass
class Mutant:
    """One change of one line. ``found`` says by what the tests noticed it, or "" for a survivor; None before it ran.
    ``remark`` says what is known of a survivor."""

    file: str
    line: int
    before: str
    after: str
    operator: str
    found: str | None = None
    remark: str = ""


def stored() -> list[Mutant]:
    return [Mutant(**each) for each in json.loads(LIST.read_text(encoding="utf-8"))["mutants"]]


def store(mutants: list[Mutant]) -> None:
    content = {"seed": SEED, "mutants": [asdict(mutant) for mutant in mutants]}
    LIST.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def draw() -> list[Mutant]:
    """Draws mutants of one line each, the same number from each place."""
    from cosmic_ray.commands.init import _all_work_items  # type: ignore[import-not-found]

    drawn = random.Random(SEED)
    found = []
    for place in PLACES:
        items = [item.mutations[0] for item in _all_work_items(sorted((reach.ROOT / place).rglob("*.py")), {})]
        drawn.shuffle(items)
        found += list(islice(filter(None, map(mutant_of, items)), COUNT // len(PLACES)))
    return found


def mutant_of(mutation: Any) -> Mutant | None:
    """Returns a mutant of cosmic-ray's, or None if it is of more than a line or if no run can tell it apart."""
    from cosmic_ray.mutating import mutate_code  # type: ignore[import-not-found]
    from cosmic_ray.plugins import get_operator  # type: ignore[import-not-found]

    text = Path(mutation.module_path).read_text(encoding="utf-8")
    line = mutation.start_pos[0]
    if line in set(not_evaluated(ast.parse(text))):
        return None
    changed = mutate_code(text, get_operator(mutation.operator_name)(**mutation.operator_args), mutation.occurrence)
    before, after = text.splitlines(), (changed or "").splitlines()
    differ = [number for number, pair in enumerate(zip(before, after, strict=False), 1) if pair[0] != pair[1]]
    if len(before) != len(after) or differ != [line]:
        return None
    name = str(Path(mutation.module_path).relative_to(reach.ROOT))
    return Mutant(name, line, before[line - 1], after[line - 1], mutation.operator_name.rpartition("/")[2])


def not_evaluated(tree: ast.AST) -> Iterator[int]:
    """Yields the lines of annotations and of ``@final``."""
    for node in ast.walk(tree):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        parts += [each for each in getattr(node, "decorator_list", []) if ast.unparse(each) == "final"]
        for part in parts:
            if isinstance(part, ast.AST):
                yield from range(part.lineno, (part.end_lineno or part.lineno) + 1)  # type: ignore[attr-defined]


def run(tree: Path, mutant: Mutant) -> str:
    """Returns by what a copy of the checkout notices a mutant; "" if it does not."""
    file = tree / mutant.file
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    same = [number for number, line in enumerate(lines, 1) if line.rstrip("\n") == mutant.before]
    if not same:
        raise SystemExit(f"{mutant.file} has no line {mutant.before!r} any more")
    mutant.line = min(same, key=lambda number: abs(number - mutant.line))  # lines above it may have come or gone
    lines[mutant.line - 1] = mutant.after + "\n"
    environment = {**os.environ, "PYTHONPATH": str(tree)}  # for programs that tests start elsewhere, too
    command = [sys.executable, "-m", "tests.check", mutant.file, "--tests-only", "--first"]
    try:
        file.write_text("".join(lines), encoding="utf-8")
        ran = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"more than {SECONDS} s"
    finally:
        file.write_text(text, encoding="utf-8")
    if ran.returncode == 0:
        return ""
    failed = [line.split(" - ")[0] for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else f"status {ran.returncode}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("draw")
    commands.add_parser("run").add_argument("tree", type=Path)
    commands.add_parser("table")
    asked = parser.parse_args()
    if asked.command == "draw":
        store(draw())
        return
    mutants = stored()
    for mutant in mutants if asked.command == "run" else []:
        if mutant.found is None:
            mutant.found = run(asked.tree.resolve(), mutant)
            print(f"{mutant.file}:{mutant.line}: {mutant.found or 'SURVIVED'}", flush=True)
            store(mutants)
    tried = [mutant for mutant in mutants if mutant.found is not None]
    print(f"{sum(map(bool, (mutant.found for mutant in tried)))} of {len(tried)} found")
    for mutant in tried:
        if not mutant.found:
            print(f"{mutant.file}:{mutant.line}\n-{mutant.before}\n+{mutant.after}\n{mutant.remark}")


if __name__ == "__main__":
    main()
