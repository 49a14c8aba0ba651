"""Which tests a change can reach, the nearest first.

A file of tests reaches a module if it imports it, itself or through others. Most reach most, so what counts is how far:
a file that imports the module, that lies in the folder that mirrors the module's, or that a document names as guarding
it is at distance 1; others are as far as the chain of imports is long. A page of the book is reached by the programs on
it and by the tests that name it.

``Budget`` then takes the nearest tests, of equally near ones the quickest, while their expected time lasts. Times are
those of ``times.json``, seconds on a processor with nothing compiled before; ``pytest --times`` renews it.
"""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("oxide", "oxide_kernels", "examples", "benchmarks", "tests")
TIMES = Path(__file__).parent / "times.json"
"""The mean seconds of a case of each test whose cases take ``LEAST`` or more."""
LEAST = 0.05
QUICK = 0.02
"""Seconds that a case of every other test is taken for."""


def module_name(path: Path) -> str:
    """Returns the dotted name of a file under the repository's root."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, *, types: bool = False) -> Iterator[tuple[int, str]]:
    """Yields the line and the absolute name of all that a file imports, inside functions too, ``from a import b`` as
    ``a.b``. What is imported under ``if TYPE_CHECKING`` counts with ``types`` alone."""
    parts = module_name(path.relative_to(ROOT)).split(".") if path.is_relative_to(ROOT) else []
    package = parts if path.name == "__init__.py" else parts[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if types else _executed(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            if node.module and node.level == 0 and source.split(".")[0] not in PACKAGES:
                yield node.lineno, source
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}"


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        yield child
        yield from _executed(child)


@cache
def _modules() -> dict[str, Path]:
    """The file of each module of the project, relative to the root."""
    files = (path.relative_to(ROOT) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {module_name(path): path for path in files}


@cache
def _exports() -> dict[str, str]:
    """The module that defines each public name of ``oxide``: a test that imports ``oxide.kernel`` imports not all."""
    tree = ast.parse((ROOT / "oxide" / "__init__.py").read_text(encoding="utf-8"))
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def _imported(name: str) -> str | None:
    """The module of the project that an imported name is, or is in."""
    package, _, rest = name.partition(".")
    if package == "oxide" and rest in _exports():
        name = _exports()[rest]
    while name:
        if name in _modules():
            return name
        name = name.rpartition(".")[0]
    return None


@cache
def _importers() -> dict[str, set[str]]:
    """The modules that import each module."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in _modules().items():
        for _, imported in imports_of(ROOT / path):
            module = _imported(imported)
            if module is not None and module != "oxide" and name != "oxide":
                found[module].add(name)
    return found


def is_test(path: Path) -> bool:
    """Returns whether a file, relative to the root, has tests."""
    return path.parts[0] == "tests" and path.name.startswith("test_") and path.suffix == ".py"


def distances(changed: Path) -> dict[Path, int]:
    """Returns how far each file of tests is from a changed file; what the change cannot reach is left out."""
    found: dict[Path, int] = {}
    if changed.suffix == ".py" and changed.parts[0] in PACKAGES:
        near = {module_name(changed)}
        seen = set(near)
        steps = 0
        while near:
            for path in (_modules()[name] for name in near if name in _modules()):
                if is_test(path):
                    found.setdefault(path, steps)
            near = {importer for name in near for importer in _importers()[name]} - seen
            seen |= near
            steps += 1
    for path in _named(changed):
        found[path] = min(found.get(path, 1), 1)
    return found


def _named(changed: Path) -> Iterator[Path]:
    """The files of tests that mirror a file, that name it, or that a row of a document names with it."""
    mirror = _mirror(changed)
    for path in filter(is_test, _modules().values()):
        text = (ROOT / path).read_text(encoding="utf-8")
        if path.parent == mirror or f"{changed}" in text or f'"{changed.name}"' in text:
            yield path
    for page in (ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md"):
        for row in page.read_text(encoding="utf-8").splitlines():
            if str(changed) in row:
                yield from filter(is_test, map(Path, re.findall(r"tests/[\w/]+\.py", row)))
    if changed.suffix == ".md":
        yield Path("tests/test_readme.py")


def _mirror(changed: Path) -> Path | None:
    """The folder of tests that mirrors a file's folder, or the nearest one above it. None if there is none."""
    if changed.parts[0] != "oxide":
        return None
    folders = (Path("tests", *folder.parts[1:]) for folder in changed.parents if len(folder.parts) > 1)
    return next((folder for folder in folders if (ROOT / folder).is_dir()), None)


@cache
def times() -> dict[str, float]:
    """Returns the mean seconds of a case of each test whose cases take long."""
    return dict(json.loads(TIMES.read_text(encoding="utf-8"))) if TIMES.exists() else {}


@dataclass
class Budget:
    """Takes the nearest tests while the time lasts."""

    changed: tuple[Path, ...]
    seconds: float
    taken: float = field(default=0.0, init=False)

    def choose(self, cases: dict[str, int]) -> set[str]:
        """Returns those of the tests that are run: of tests by name (``tests/test_x.py::test_y``), each with the number
        of its cases."""
        far: dict[Path, int] = {}
        for path in self.changed:
            for test, steps in distances(path).items():
                far[test] = min(far.get(test, steps), steps)

        def order(name: str) -> tuple[int, float]:
            return far[Path(name.partition("::")[0])], expected(name, cases[name])

        chosen = set()
        for name in sorted((name for name in cases if Path(name.partition("::")[0]) in far), key=order):
            seconds = expected(name, cases[name])
            if self.taken + seconds <= self.seconds:
                self.taken += seconds
                chosen.add(name)
        return chosen


def expected(name: str, cases: int) -> float:
    """Returns the seconds that a test takes with a number of cases."""
    return times().get(name, QUICK) * cases


def files(changed: Iterable[Path]) -> list[Path]:
    """Returns the files of tests that some changed files reach."""
    return sorted({test for path in changed for test in distances(path)})
