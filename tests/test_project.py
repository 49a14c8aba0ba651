"""The shape of the project: what ``import oxide`` costs, which way imports point, what is shipped."""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.reach import ROOT, imports_of, module_name

HEAVY = {"numba", "numba_cuda", "llvmlite", "trio", "cuda", "typer", "rich"}

# What the packages of oxide may import of one another, beside themselves and what everybody may import.
MAY_IMPORT = {
    "oxide.language": set[str](),
    "oxide.driver": {"oxide.language.types"},
    "oxide.pictures": set[str](),
    "oxide.compiler": {
        "oxide.language",
        "oxide.pictures",
        *(f"oxide.driver.{name}" for name in ("base", "object", "records", "sanitizing", "tools")),
    },
    "oxide.runtime": {"oxide.compiler", "oxide.language", "oxide.driver", "oxide.pictures"},
    "oxide.serving": {"oxide.runtime"},
    "oxide.interop": {"oxide.compiler", "oxide.language", "oxide.runtime", "oxide.driver", "oxide.numba_cuda", "oxide"},
    "oxide.tracing": {"oxide.runtime", "oxide.driver"},
    "oxide.distributed": {"oxide.compiler", "oxide.driver", "oxide.language", "oxide.runtime", "oxide.serving"},
}
FOR_EVERYBODY = {
    "oxide.errors",
    *(f"oxide.host.{name}" for name in ("disk", "host_arrays", "messages", "weak_table")),
}
WITH_ERRORS = {
    f"oxide.host.{name}" for name in ("core", "environment", "locks", "uninterrupted")
}  # for everybody too, on top of these
# The parts of two packages, each of which may import those before it, types included; what is in none may import all.
COMPILER = (
    "source",
    "signature",
    "primitives",
    "ir",
    "check",
    "frontend",
    "bounds",
    "elementwise",
    "ptx",
    "cpu",
    "sanitizer",
    "interpreter",
    "tile",
    "declaration",
    "cache",
    "kernel",
    "fusion",
)
RUNTIME = (
    "tracepoints",
    "loop",
    "ordering",
    "memory",
    "devices",
    "plan",
    "submission",
    "awaiting",
    "operations",
    "launching",
)
ORDERS = {"compiler": COMPILER, "runtime": RUNTIME}
# An operation's methods make other operations, whose modules derive from it.
CIRCLE = {
    f"oxide.runtime.operations.{name}"
    for name in (
        "captured_graph",
        "combinators",
        "depicting",
        "graph",
        "new_boxes",
        "operation",
        "planning",
        "transfers",
    )
}
# Names that several modules have, each for the same thing: in several layers, for both devices or in several languages.
SHARED_NAMES = {
    "arrays", "atomic", "barriers", "captured", "clock", "debug", "driver", "errors", "fragments", "graph", "half",
    "primitives", "products", "random", "reductions", "shaped", "shared", "shared_tiles", "slices", "streams",
    "tensors", "thread", "threads", "tile", "tiles", "types", "unroll", "vectors", "views", "warp", "wgmma",
}  # fmt: skip
NUMBA_IS_ALLOWED_IN = ("oxide.compiler.frontend",)


def test_importing_oxide_loads_no_compiler_and_no_event_loop() -> None:
    program = "import sys, oxide; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = set(run_python(program).split())
    assert "oxide" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_defining_kernels_and_building_operations_loads_no_compiler() -> None:
    program = (
        "import sys, oxide, oxide_kernels\n"
        "operation = oxide.zip(oxide.value(1), oxide.value(2)).map(sum).and_then(oxide.zeros)\n"
        "print(*{name.partition('.')[0] for name in sys.modules})\n"
    )
    assert set(run_python(program).split()).isdisjoint({"numba", "numba_cuda", "llvmlite"})


@pytest.mark.parametrize("module", sorted(path.relative_to(ROOT) for path in (ROOT / "oxide").rglob("*.py")), ids=str)
def test_imports_point_one_way(module: Path) -> None:
    name = module_name(module)
    package = ".".join(name.split(".")[:2])
    if package not in MAY_IMPORT:
        # oxide/__init__.py, oxide/testing.py and oxide/commands may see everything; tests/commands checks who may see
        # these. What is for everybody is checked below.
        return
    allowed = MAY_IMPORT[package] | {package, *WITH_ERRORS, *FOR_EVERYBODY}
    wrong = [
        f"line {line}: {imported}"
        for line, imported in imports_of(ROOT / module)
        if is_within(imported, "oxide") and not any(is_within(imported, one) for one in allowed)
    ]
    assert not wrong, f"{name} may import only {', '.join(sorted(allowed))}"


@pytest.mark.parametrize(("package", "part"), [(name, part) for name, order in ORDERS.items() for part in order])
def test_the_parts_of_a_package_import_only_those_before_them(package: str, part: str) -> None:
    place = ROOT / "oxide" / package / part
    modules = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    wrong = [
        f"{module.relative_to(ROOT)}:{line}: {imported}"
        for module in modules
        for line, imported in imports_of(module, types=True)
        if is_later(imported, package, part)
    ]
    assert not wrong


def test_an_import_of_a_later_part_is_found() -> None:
    assert is_later("oxide.runtime.submission.submission.Submission", "runtime", "loop")
    assert not is_later("oxide.runtime.loop.pace", "runtime", "submission")
    assert not is_later("oxide.compiler.kernel.kernel", "runtime", "loop")


def test_no_modules_import_in_a_circle_but_the_documented_one() -> None:
    modules = {module_name(path.relative_to(ROOT)): path for path in (ROOT / "oxide").rglob("*.py")}

    def module_of(name: str) -> str:
        while name not in modules:
            name = name.rpartition(".")[0] or "oxide"
        return "the circle" if name in CIRCLE else name

    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        imported = {module_of(each) for _, each in imports_of(path, types=True) if is_within(each, "oxide")}
        # All modules are in the package ``oxide``, whose names ``interop`` takes as a program does.
        graph.setdefault(module_of(name), set()).update(imported - {module_of(name), "oxide"})
    graphlib.TopologicalSorter(graph).prepare()  # its error names a circle


def test_modules_of_one_name_mean_one_thing() -> None:
    found = Counter(path.stem for path in (ROOT / "oxide").rglob("*.py") if path.parent.name != "commands")
    shared = {name for name, count in found.items() if count > 1 and name != "__init__"}
    assert shared <= SHARED_NAMES


@pytest.mark.parametrize("package", ORDERS)
def test_every_folder_of_a_package_has_its_place_in_the_order(package: str) -> None:
    root = ROOT / "oxide" / package
    folders = {path.name for path in root.iterdir() if (path / "__init__.py").exists()}
    assert folders == {part for part in ORDERS[package] if not (root / f"{part}.py").exists()}


@pytest.mark.parametrize("module", sorted(FOR_EVERYBODY))
def test_what_everybody_may_import_imports_nothing_of_oxide(module: str) -> None:
    path = ROOT / (module.replace(".", "/") + ".py")
    assert not [name for _, name in imports_of(path) if is_within(name, "oxide")]


@pytest.mark.slow
@pytest.mark.parametrize("package", ["oxide", "oxide_kernels", "examples"])
def test_numba_is_imported_only_by_the_front_end(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {imported}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if not any(is_within(module_name(path.relative_to(ROOT)), allowed) for allowed in NUMBA_IS_ALLOWED_IN)
        for line, imported in imports_of(path)
        if imported.split(".")[0] in {"numba", "numba_cuda"}
    ]
    assert not wrong


PATTERNS = {
    "oxide/compiler/ir": {"parser", "values", "module", "llvm"},  # the parser, names, and names in templates of IR
    "oxide/compiler/check": {"numba_errors", "conveniences"},  # messages
    "oxide/compiler/frontend/lowering": {"debug"},  # messages
}
"""The files of the compiler that may look into text by regular expressions."""


def test_the_compiler_reads_no_text_by_patterns_but_in_its_parser_names_and_messages() -> None:
    allowed = {f"{folder}/{name}.py" for folder, names in PATTERNS.items() for name in names}
    found = {
        str(path.relative_to(ROOT)): sum(
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "re"
            for node in ast.walk(ast.parse(path.read_text()))
        )
        for path in (ROOT / "oxide" / "compiler").rglob("*.py")
        if any(name.partition(".")[0] == "re" for _, name in imports_of(path))
    }
    assert set(found) == allowed
    assert sum(found.values()) <= 25


@pytest.mark.slow
@pytest.mark.parametrize("package", ["oxide_kernels", "examples"])
def test_kernels_and_examples_use_only_public_names(package: str) -> None:
    public = {f"oxide.{name}" for name in run_python("import oxide; print(*oxide.__all__)").split()}
    public |= {"oxide.random", "oxide.zip"}  # public, and in no star import
    public |= {f"oxide.serving.{name}" for name in run_python("import oxide.serving as s; print(*s.__all__)").split()}
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {imported}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, imported in imports_of(path)
        if imported.startswith("oxide.") and imported not in public
    ]
    assert not wrong


def test_every_file_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for package in ("oxide", "oxide_kernels", "examples", "tests")
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.read_text(encoding="utf-8").strip()
        and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not silent


def test_every_public_name_exists_and_is_listed_once() -> None:
    program = (
        "import oxide\n"
        "missing = [name for name in oxide.__all__ if not hasattr(oxide, name)]\n"
        "assert not missing, missing\n"
        "assert len(set(oxide.__all__)) == len(oxide.__all__)\n"
    )
    run_python(program)


def test_the_changelog_has_an_entry_for_the_version_or_unreleased_work() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert version in headings or "Unreleased" in headings


def test_the_import_rules_catch_a_wrong_import(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "def f():\n    from numba import cuda\nimport oxide.runtime.awaiting.future as x\n"
    )
    assert list(imports_of(tmp_path / "wrong.py")) == [
        (2, "numba"),
        (2, "numba.cuda"),
        (3, "oxide.runtime.awaiting.future"),
    ]


def is_later(imported: str, package: str, part: str) -> bool:
    """Returns whether a module of ``part`` may not import a name, as it is of the same package and not before it."""
    order = ORDERS[package]
    allowed = [f"oxide.{package}.{each}" for each in order[: order.index(part) + 1]]
    return is_within(imported, f"oxide.{package}") and not any(is_within(imported, one) for one in allowed)


def is_within(name: str, package: str) -> bool:
    """Whether a dotted name is the package or in it."""
    return name == package or name.startswith(f"{package}.")


def run_python(program: str) -> str:
    """The output of a program in a fresh interpreter."""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_each_python_of_the_classifiers_has_a_recorded_run() -> None:
    spec = importlib.util.spec_from_file_location("classifiers", ROOT / ".ci" / "classifiers.py")
    assert spec is not None
    assert spec.loader is not None
    classifiers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(classifiers)
    claimed = classifiers.claims(ROOT / "pyproject.toml")
    runs = json.loads((ROOT / ".ci" / "runs.json").read_text())
    assert claimed
    assert classifiers.without_run(claimed, runs) == []
    assert classifiers.without_run([*claimed, "2.7"], runs) == ["2.7"]
    assert classifiers.without_run(claimed, {claimed[0]: {"passed": 0}}) == claimed
