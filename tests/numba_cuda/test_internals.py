"""The page of what the front end takes of numba's internals is complete, and true of the numba that is installed."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import oxide.compiler.frontend.frontend  # noqa: F401 - imports all of the front end

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "notes" / "numba-internals.md").read_text()
ROWS = [line.split("|")[1:-1] for line in PAGE.split("\n") if line.startswith("| `")]
NAMES = [name for row in ROWS for name in re.findall(r"`([\w.]+)`", row[0])]
PUBLIC = {"numba", "numba.cuda", "numba.cuda.types", "numba.cuda.extending", "numba.cuda.typing.templates"}
PUBLIC |= {"numba.cuda.cgutils", "numba.cuda.types.void"}


def found(name: str) -> Any:
    """What a name of the page stands for. A class goes by its own name in all but one place."""
    owner, _, attribute = name.rpartition(".")
    if name.startswith("numba."):
        try:
            return importlib.import_module(name)
        except ImportError:
            return getattr(found(owner), attribute)
    if owner:
        return getattr(found(owner), attribute)
    return found(next(other for other in NAMES if f".{name}." in other).partition(f".{name}.")[0] + f".{name}")


@pytest.mark.parametrize("name", NAMES)
def test_numba_has_what_the_page_names(name: str) -> None:
    if name != "CUDATargetContext.cached_internal_func":  # an attribute of each context
        found(name)


def test_the_page_has_every_import() -> None:
    for path in (ROOT / "oxide" / "compiler" / "frontend").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "numba":
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    public = node.module in PUBLIC - {"numba", "numba.cuda"} or name in PUBLIC
                    assert public or f"{name}`" in PAGE or f"{name}." in PAGE, f"{path}: {name}"


def test_the_page_has_every_method_that_is_overridden() -> None:
    models = {"AbstractTemplate", "AttributeTemplate", "ConcreteTemplate"}
    for module in [module for name, module in sys.modules.items() if name.startswith("oxide.compiler.frontend")]:
        for kind in vars(module).values():
            if not inspect.isclass(kind) or kind.__module__ != module.__name__:
                continue
            bases = [base for base in kind.__mro__[1:] if base.__module__.startswith(("numba.cuda", "numba.core"))]
            if not bases or ".types.abstract" in bases[0].__module__ or bases[0].__name__ in models:
                continue
            for name in vars(kind):
                own = name.startswith("__") and name not in ("__hash__", "__eq__")
                if inspect.isfunction(vars(kind)[name]) and not own and any(name in vars(base) for base in bases):
                    assert f".{name}`" in PAGE, f"{kind.__name__}.{name}"


def test_the_page_names_files_and_tests_that_exist() -> None:
    for _, _, files, tests in ROWS:
        for file in re.findall(r"`([\w/.]+)`", files):
            assert (ROOT / "oxide" / "compiler" / "frontend" / file).exists(), file
        named = re.findall(r"`([\w/.]+)(?:::(\w+))?`", tests)
        assert named, tests
        for path, test in named:
            assert not test or f"def {test}(" in (ROOT / path).read_text(), test
            assert (ROOT / path).exists(), path
