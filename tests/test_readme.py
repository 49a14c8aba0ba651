"""Every Python block of the README and of the book is a complete program, and runs.

Conventions, read from the line that opens a block:

- ```` ```python ```` must exit with 0; ```` ```python raises=Name ```` must end in that exception.
- ```` ```text output ```` right after it is what the program prints; after ``raises=`` it is the exception's message.
  ``...`` stands for any text, and white space counts as one blank.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import oxide
from benchmarks.__main__ import GROUPS
from oxide import errors, serving
from tests.programs import Programs

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"^```python(?: raises=(?P<raises>\w+))?\n(?P<code>.*?)^```\n(?:\n*```text output\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Program:
    """One block: where it is, its code and what it promises."""

    page: Path
    line: int
    code: str
    raises: str | None
    output: str | None


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def programs(page: Path) -> list[Program]:
    """Every Python block of a page, in order."""
    text = read(page)
    return [
        Program(page, text.count("\n", 0, found.start()) + 2, found["code"], found["raises"], found["output"])
        for found in BLOCK.finditer(text)
    ]


SLOW = [pytest.mark.slow]
ALL_PROGRAMS = [program for page in PAGES for program in programs(page)]


@pytest.fixture(scope="module")
def processes() -> Iterator[Programs]:
    with Programs() as processes:
        yield processes


FIRST = {program.page: program for program in reversed(ALL_PROGRAMS)}
CASES = [
    pytest.param(
        program, id=f"{program.page.name}:{program.line}", marks=[] if FIRST[program.page] is program else SLOW
    )
    for program in ALL_PROGRAMS
]


@pytest.mark.parametrize("program", CASES)
def test_a_block_does_what_its_page_says(program: Program, processes: Programs, tmp_path: Path) -> None:
    ran = processes.run(program.code, tmp_path)
    where = f"{program.page.name}, line {program.line}"
    if program.raises is None:
        assert ran.returncode == 0, f"{where} failed:\n{ran.stderr}"
        if program.output is not None:
            assert matches(program.output, ran.stdout), f"{where} promises\n{program.output}\nbut prints\n{ran.stdout}"
        return
    assert ran.returncode == 1, f"{where} should raise {program.raises}, but exits with {ran.returncode}:\n{ran.stderr}"
    raised = re.search(rf"^(?:\w+\.)*{program.raises}(?:: (?P<message>.*))?\Z", ran.stderr, re.MULTILINE | re.DOTALL)
    assert raised is not None, f"{where} should raise {program.raises}:\n{ran.stderr}"
    if program.output is not None:
        message = raised["message"] or ""
        assert matches(program.output, message), f"{where} promises\n{program.output}\nbut says\n{message}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_block_escapes_these_tests(page: Path) -> None:
    opened = re.findall(r"^```(?:python|py\b|text output).*$", read(page), re.MULTILINE)
    tested = sum(1 + (program.output is not None) for program in programs(page))
    assert len(opened) == tested, f"{page.name} has blocks that no test runs; see tests/test_readme.py for the format"


def test_a_block_that_breaks_its_promise_is_noticed(processes: Programs, tmp_path: Path) -> None:
    assert processes.run("raise SystemExit(3)", tmp_path).returncode == 3
    assert processes.run("import os; os.abort()", tmp_path).returncode < 0
    failed = processes.run("print(__name__)\n1 / 0", tmp_path)
    assert (failed.returncode, failed.stdout) == (1, "__main__\n")
    assert failed.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert matches("a ... c\n", "a b  c\n")
    assert not matches("a b\n", "a c\n")


def test_links_between_pages_lead_to_a_page_and_a_heading_that_are_there() -> None:
    broken = [
        f"{page.name}: {target}{heading}"
        for page in PAGES
        for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)", without_code(read(page)))
        if not leads_somewhere(page, target, heading.removeprefix("#"))
    ]
    assert not broken


def leads_somewhere(page: Path, target: str, heading: str) -> bool:
    """Whether a link from a page has its file and, where it names one, its heading."""
    file = page.parent / target if target else page
    return file.exists() and (not heading or heading in headings(file))


def headings(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    text = re.sub(r"^```.*?^```", "", read(page), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def test_a_link_to_a_page_or_a_heading_that_is_not_there_is_noticed() -> None:
    readme = ROOT / "README.md"
    assert leads_somewhere(readme, "docs/performance.md", "the-core")
    assert leads_somewhere(readme, "", "two-commands")
    assert not leads_somewhere(readme, "docs/performance.md", "the-cure")
    assert not leads_somewhere(readme, "docs/speed.md", "")


def test_the_book_names_every_variable_of_the_environment() -> None:
    source = "".join(read(path) for path in (ROOT / "oxide").rglob("*.py"))
    table = read(ROOT / "docs" / "devices.md").partition("## The environment")[2]
    assert set(re.findall(r"\bOXIDE_[A-Z_]+", table)) == set(re.findall(r"\bOXIDE_[A-Z_]+", source))


def test_the_book_names_every_public_name() -> None:
    words = set(re.findall(r"\w+", "".join(read(page) for page in PAGES)))
    assert not set(oxide.__all__) - words


def test_every_name_that_the_package_imports_is_public() -> None:
    tree = ast.parse(read(ROOT / "oxide" / "__init__.py"))
    imported = {
        each.asname or each.name for node in tree.body if isinstance(node, ast.ImportFrom) for each in node.names
    }
    hidden = {name for name in imported - {*oxide.__all__} if name[0] != "_"}
    assert hidden == {"TYPE_CHECKING", "Any", "zip"}  # a star import leaves Python's own zip


def test_the_reference_has_every_public_name() -> None:
    pages = "".join(read(page) for page in (ROOT / "docs" / "reference").glob("*.md"))
    listed = re.findall(r"^::: (oxide[\w.]*)", pages, re.MULTILINE)
    assert len(listed) == len(set(listed))
    modules = [
        found
        for name in listed
        if (name.count(".") > 1 and not name.startswith("oxide.serving."))
        or name in ("oxide.errors", "oxide.numba_cuda")
        if isinstance(found := pkgutil.resolve_name(name), ModuleType)
    ]
    for name in serving.__all__:
        assert f"oxide.serving.{name}" in listed or hasattr(errors, name), name
    for name in oxide.__all__:
        value = getattr(oxide, name)
        inside = any(value is module or getattr(module, name, None) is value for module in modules)
        assert inside or f"oxide.{name}" in listed, name


def test_what_the_architecture_names_is_there() -> None:
    page = read(ROOT / "docs" / "architecture.md") + read(ROOT / "CONTRIBUTING.md")
    named = re.findall(r"`((?:oxide|tests|compiler|runtime|driver|benchmarks)/[\w/.]+)(?:::(\w+))?`", page)
    assert len(named) > 30
    for path, test in named:
        file = ROOT / path if (ROOT / path).exists() else ROOT / "oxide" / path
        assert file.exists(), path
        assert not test or f"def {test}(" in read(file), test


def test_the_architecture_finds_the_files_of_features() -> None:
    """In its tables of features, a name without a folder is in the folder of the path before it."""
    tables = read(ROOT / "docs" / "architecture.md").partition("## Where is …")[2].partition("\n## ")[0]
    rows = [line for line in tables.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    assert len(rows) > 40
    for row in rows:
        _, feature, files, _ = row.split("|")
        folder = ROOT / "oxide"
        for name in re.findall(r"`([\w/]+(?:\.py|\.c)?)`", files):
            if "/" in name or (ROOT / "oxide" / name).exists():
                path = ROOT / "oxide" / name
                folder = path.parent
            else:
                path = folder / name
            named = name.isidentifier() and not path.exists()  # a class or a record, of the file named next
            assert named or path.exists() or (ROOT / name).exists(), f"{feature}: {name}"


def test_the_book_names_every_option_of_a_kernel() -> None:
    table = read(ROOT / "docs" / "kernels.md").partition("| option |")[2].partition("\n\n")[0]
    options = {name for name in inspect.signature(oxide.kernel).parameters if name != "function"}
    assert options <= set(re.findall(r"\w+", table))


def test_every_program_that_measures_is_in_the_book() -> None:
    files = (ROOT / "benchmarks").glob("*.py")
    programs = {file.stem for file in files if "def main() ->" in read(file) and "argparse" in read(file)}
    assert {"copies", "sanitizer"} <= programs
    assert programs | set(GROUPS) <= set(re.findall(r"`(\w+)`", read(ROOT / "docs" / "performance.md")))


def test_the_book_draws_the_errors_as_they_derive_from_one_another() -> None:
    tree = read(ROOT / "docs" / "errors.md").partition("```text\n")[2].partition("```")[0]
    drawn: dict[str, str] = {}
    above: list[str] = []
    for line in tree.splitlines():
        branch, name = re.match(r"([│├└─ ]*)(\w+)", line).groups()  # type: ignore[union-attr]
        above[len(branch) // 4 :] = [name]
        drawn[name] = above[-2] if len(above) > 1 else "Exception"
    classes = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.OxideError)]
    assert drawn == {kind.__name__: kind.__bases__[0].__name__ for kind in classes}


def without_code(text: str) -> str:
    """A page's prose: no blocks, no `code`."""
    return re.sub(r"^```.*?^```|`[^`\n]+`(?!\])", "", text, flags=re.MULTILINE | re.DOTALL)


def matches(promised: str, found: str) -> bool:
    """Whether the output is what was promised, ``...`` standing for anything."""
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(promised.strip() + "\n", found.strip() + "\n", options)
