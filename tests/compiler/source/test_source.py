"""The text of a kernel's file is that of the import, whatever happens to the file later; and where a kernel without a
file has its text."""

from __future__ import annotations

import code
import doctest
import importlib
import linecache
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import CompileError, h2d, zeros
from oxide.compiler.source.source import text_of

KERNEL = """from oxide import DisjointSlice, Slice, device, f32, kernel, thread, tile

FACTOR = 2.0

@device
def scaled(v: f32):
    return v * f32(FACTOR)

@kernel(block=32)
def k(x: Slice[f32], y: DisjointSlice[f32]):
    for i, v in enumerate(x):  # rewritten before it is compiled
        e = y.get_mut(thread.index_1d())
        if e is not None:
            e.value = scaled(v)

@kernel(block=32)
def wrong(y: DisjointSlice[f32]):
    y.sort()

@tile.function
def doubled(x):
    return x * 2.0

@tile.kernel
def t(y: tile.Partition[f32, 1], x: tile.Tensor[f32, 1]):
    y.store(doubled(tile.load_like(x, y)))

def made():
    @tile.kernel
    def later(y: tile.Partition[f32, 1], x: tile.Tensor[f32, 1]):
        y.store(tile.load_like(x, y) * 2.0)
    return later
"""
NUMBAS = """from oxide import numba_cuda as cuda

@cuda.jit(device=True)
def scaled(v):
    return v * 2

@cuda.jit
def k(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = scaled(x[i])
"""
EDITS: dict[str, Callable[[Path], object]] = {
    "comments": lambda file: file.write_text("# a comment\n" * 7 + file.read_text()),
    "another function": lambda file: file.write_text(file.read_text().replace("@kernel", "def f():\n  pass\n@kernel")),
    "other numbers": lambda file: file.write_text(file.read_text().replace("2", "100")),
    "other names": lambda file: file.write_text(re.sub(r"def (\w+)\(", r"def other_\1(", file.read_text())),
    "an unfinished string": lambda file: file.write_text('"""\n' + file.read_text()),
    "emptied": lambda file: file.write_text(""),
    "removed": lambda file: file.unlink(),
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Writes a module of a new name, and imports it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def imported(text: str) -> ModuleType:
        name = f"module_{os.urandom(4).hex()}"
        (tmp_path / f"{name}.py").write_text(text)
        return importlib.import_module(name)

    return imported


def run(kernel: Any) -> float:
    return float(kernel(h2d(np.ones(1, np.float32)), zeros(1)).last().to_host().sync()[0])


def run_one(kernel: Any) -> float:
    return float(kernel(zeros(1).sync()).last().to_host().sync()[0])


def run_tile(kernel: Any) -> float:
    y = zeros(1).sync()
    kernel(y.partition(1), h2d(np.ones(1, np.float32))).sync()
    return float(oxide.d2h(y).sync()[0])


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_file_that_is_edited_after_the_import_changes_no_kernel(
    edit: Callable[[Path], object], module: Callable[[str], ModuleType]
) -> None:
    found = module(KERNEL)
    file = Path(str(found.__file__))
    edit(file)
    assert (run(found.k), run_tile(found.t), run_tile(found.made())) == (2, 2, 2)
    line = KERNEL.split("\n").index("    y.sort()") + 1
    with pytest.raises(CompileError, match=rf"{file.name}:{line}: .*\n    y\.sort\(\)"):
        run_one(found.wrong)


def test_a_kernel_of_numba_cuda_keeps_its_text(module: Callable[[str], ModuleType]) -> None:
    found = module(NUMBAS)
    Path(str(found.__file__)).unlink()
    assert text_of(found.k.py_func).startswith("@cuda.jit\ndef k(x, y):\n")
    assert text_of(found.scaled.py_func).startswith("@cuda.jit(device=True)\ndef scaled(v):\n")
    x, y = np.ones(4), np.zeros(4)
    found.k[1, 32](x, y)
    np.testing.assert_array_equal(y, 2)


def test_each_import_of_a_file_has_its_own_text(module: Callable[[str], ModuleType]) -> None:
    text = KERNEL.replace("scaled(v)", "v * f32(2)")
    found = module(text)
    old, old_wrong = found.k, found.wrong
    file = Path(str(found.__file__))
    file.write_text("# a comment\n" + text.replace("f32(2)", "f32(100)"))
    importlib.reload(found)
    assert found.k is not old
    assert [run(found.k), run(old), run(found.k)] == [100, 2, 100]
    line = KERNEL.split("\n").index("    y.sort()") + 1
    for wrong, place in ((old_wrong, line), (found.wrong, line + 1)):
        with pytest.raises(CompileError, match=rf"{file.name}:{place}: .*\n    y\.sort\(\)"):
            run_one(wrong)


def test_a_kernel_that_is_made_after_its_file_has_changed_says_so(module: Callable[[str], ModuleType]) -> None:
    text = (
        "from oxide import *\n\ndef made():\n    @kernel(block=32)\n    def k(y: DisjointSlice[f32]):\n        pass\n"
        "    return k\n"
    )
    found = module(text)
    Path(str(found.__file__)).write_text("#\n" + text)
    with pytest.raises(CompileError, match=r"module_\w+\.py:4: k is not at this line any more: .* importlib\.reload"):
        run_one(found.made())


PROGRAM = """
import numpy as np
from oxide import DisjointSlice, f32, h2d, kernel, thread, zeros
@kernel(block=32)
def k(y: DisjointSlice[f32]):
    for _, n in enumerate(range(3)):
        e = y.get_mut(thread.index_1d())
        if e is not None:
            e.value += f32(n)
print(k(zeros(1)).first().to_host().sync())
"""


def python(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(oxide.__file__).parents[1]), *filter(None, sys.path)])
    environment = os.environ | {"OXIDE_DEVICE": "cpu", "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments], input=given, env=environment, capture_output=True, text=True, check=False
    )


def test_a_kernel_of_python_c_runs() -> None:
    ran = python("-c", PROGRAM)
    assert (ran.stdout, ran.stderr) == ("[3.]\n", "")


def test_the_program_of_python_c_is_not_taken_for_the_text_of_exec() -> None:
    assert "Python keeps none of exec and compile" in python("-c", f"exec({PROGRAM!r})").stderr


def test_a_kernel_of_standard_input_says_what_helps() -> None:
    assert (
        "<stdin>:4: the source of k cannot be read: Python keeps none of standard input, nor of a REPL before Python "
        "3.13: write it to a file, or define it in IPython or a notebook's cell"
    ) in python("-", given=PROGRAM).stderr


def defined(text: str, name: str) -> Any:
    names: dict[str, Any] = {"__name__": "executed"}
    exec(compile(text, name, "exec", dont_inherit=True), names)
    return names["k"]


ADDED = KERNEL.partition("@kernel(block=32)\ndef wrong")[0]


def test_a_kernel_of_exec_says_what_helps_and_that_helps() -> None:
    with pytest.raises(CompileError, match=r"<string>:9: the source of k cannot be read: .*write it") as error:
        run(defined(ADDED, "<string>"))
    advised = re.search(r"after (linecache\.cache\[name\] = .*, name)$", str(error.value))
    assert advised is not None
    exec(advised[1], {"linecache": linecache, "name": "<mine>", "text": ADDED})
    assert run(defined(ADDED, "<mine>")) == 2


def test_texts_that_share_a_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python names every text of ``exec`` "<string>"."""
    monkeypatch.setitem(linecache.cache, "<string>", (len(ADDED), None, ADDED.splitlines(True), "<string>"))
    assert run(defined(ADDED, "<string>")) == 2
    with pytest.raises(CompileError, match="the source of k cannot be read"):
        run(defined(ADDED.replace("= scaled(v)", "= scaled(v) + v"), "<string>"))


def test_a_kernel_of_the_repl_of_python_3_13_has_the_text_that_python_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's REPL enters each statement by its code."""
    kept: dict[Any, list[str]] = {}
    monkeypatch.setattr(linecache, "_getlines_from_code", lambda asked: kept.get(asked, []), raising=False)
    names: dict[str, Any] = {"__name__": "executed"}
    compiled = compile(ADDED, "<python-input-7>", "exec", dont_inherit=True)
    kept |= {each: ADDED.splitlines(True) for each in compiled.co_consts if isinstance(each, type(compiled))}
    exec(compiled, names)
    assert run(names["k"]) == 2


def test_a_kernel_of_doctest_runs() -> None:
    shown = """
    >>> from oxide import DisjointSlice, Slice, f32, kernel, thread
    >>> @kernel(block=32)
    ... def k(x: Slice[f32], y: DisjointSlice[f32]):
    ...     for v in x:
    ...         e = y.get_mut(thread.index_1d())
    ...         if e is not None:
    ...             e.value = v * f32(2)
    >>> run(k)
    2.0
    """
    names = {"run": run, "__name__": "executed"}
    test = doctest.DocTestParser().get_doctest(shown, names, "of_doctest", None, None)
    assert doctest.DocTestRunner(verbose=False).run(test) == (0, 3)


def test_a_kernel_of_an_interactive_console_says_what_helps() -> None:
    console = code.InteractiveConsole()
    for line in ADDED.split("\n"):
        console.push(line)
    kernel: Any = console.locals["k"]
    with pytest.raises(CompileError, match=r"<console>:1: .* cannot be read: .* IPython or a notebook's cell"):
        run(kernel)


def test_a_warning_about_the_source_names_its_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(
        "from oxide import *\n\n@kernel(block=32)\ndef k(y: DisjointSlice[f32]):\n"
        "    'Adds \\delta'\n    e = y.get_mut(thread.index_1d())\n    if e is not None:\n        e.value = 1.0\n"
    )
    names: dict[str, Any] = {"__name__": "odd"}
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        exec(compile(file.read_text(), str(file), "exec"), names)
        assert names["k"](zeros(4)).last().to_host().sync().sum() == 4
    found = {(warning.filename, warning.lineno) for warning in given if "invalid escape" in str(warning.message)}
    assert found == {(str(file), 5)}
