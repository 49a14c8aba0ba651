"""Kernels in the cells of notebooks and of IPython: caching between sessions, places of errors, loops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).parents[3]

IMPORTS = "import numpy as np\nfrom oxide import *\nfrom oxide import tile"
DEVICE_FUNCTION = """@device
def scaled(v: f32):
    return v * f32(FACTOR)"""
KERNEL = """# A comment, so that no line has the number of another kernel's.
@kernel(block=64)
def k(x: Slice[f32], y: DisjointSlice[f32]):
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        element.value = scaled(x[i.get()])"""
WATCH = "compiled = []\nk.compiled = lambda *note: compiled.append(note)"
RUN = "print((await k(h2d(np.ones(4, 'f4')), zeros(4)).last().to_host()).tolist())"
FAULT = "await k(h2d(np.ones(2, 'f4')), zeros(4))"
COMPILED = "print(bool(compiled))"


def session(*cells: str) -> list[str]:
    """Runs cells in a kernel of their own, and returns what each prints, or its error."""
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=300, kernel_name="python3", allow_errors=True).execute()
    return [
        "".join(output.get("text", output.get("evalue", "")) for output in cell.outputs).strip()
        for cell in notebook.cells
    ]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def compiled_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_DEVICE", "cpu")
    monkeypatch.delenv("OXIDE_INTERPRET", raising=False)


@pytest.mark.nightly
def test_a_cell_that_is_run_again_defines_another_kernel() -> None:
    twice, thrice = DEVICE_FUNCTION.replace("FACTOR", "2.0"), DEVICE_FUNCTION.replace("FACTOR", "3.0")
    printed = session(IMPORTS, twice, KERNEL, RUN, thrice, KERNEL, RUN, KERNEL.replace("= scaled(", "= -scaled("), RUN)
    assert [printed[3], printed[6], printed[8]] == [
        "[2.0, 2.0, 2.0, 2.0]",
        "[3.0, 3.0, 3.0, 3.0]",
        "[-3.0, -3.0, -3.0, -3.0]",
    ]


@pytest.mark.nightly
def test_the_next_session_takes_a_cells_kernel_from_the_cache_and_names_its_own_cells() -> None:
    function = DEVICE_FUNCTION.replace("FACTOR", "2.0")
    first = session(IMPORTS, function, KERNEL, WATCH, RUN, FAULT, COMPILED)
    second = session(IMPORTS, "1", "2", function, "3", KERNEL, WATCH, RUN, FAULT, COMPILED)
    assert first[4] == second[7] == "[2.0, 2.0, 2.0, 2.0]"
    assert first[5].endswith("at In [3], line 7")
    assert second[8].endswith("at In [6], line 7")
    assert [first[6], second[9]] == ["True", "False"]
    other = session(IMPORTS, DEVICE_FUNCTION.replace("FACTOR", "5.0"), KERNEL, WATCH, RUN, COMPILED)
    assert other[4:] == ["[5.0, 5.0, 5.0, 5.0]", "True"]


@pytest.mark.nightly
def test_two_kernels_of_one_name_in_a_graph_report_their_own_faults() -> None:
    """They have the name and the line in common, which is all that tells other kernels apart."""
    kernel = (
        "@kernel(block=64)\ndef k(x: Slice[f32], y: DisjointSlice[f32]):\n"
        "    element = y.get_mut(thread.index_1d())\n    if element is not None:\n        element.value = x[{}]"
    )
    *_, fault = session(
        IMPORTS,
        kernel.format(0) + "\nearlier = k",
        kernel.format(5),
        "from oxide import zip\nx = await zeros(2)\n"
        "graph = zip(earlier(x, zeros(3)), k(x, zeros(3))).graph()\nawait graph.launch()",
    )
    assert fault.startswith("kernel k: x[5] is outside x")
    assert fault.endswith("at In [3], line 5")


def test_errors_name_the_cell_and_show_the_line_with_a_caret() -> None:
    _, wrong, tiles, barrier, place, tuned = session(
        IMPORTS,
        "@kernel\ndef wrong(x: Slice[f32], y: DisjointSlice[f32]):\n    y[3] = x[2]\nwrong.ptx()",
        "@tile.kernel\ndef wrong(z: tile.Partition[f32, 1]):\n    z.store(tile.zoros(3))\n"
        "wrong(zeros(64).partition(16))",
        "@kernel(block=64)\ndef waits(y: DisjointSlice[f32]):\n    if thread.thread_idx.x < 3:\n"
        "        thread.sync_threads()\n    else:\n        thread.sync_threads()\nawait waits(zeros(64))",
        "def fails(box):\n    raise ValueError('no')\n"
        "try:\n    await zeros(3).and_then(fails)\nexcept ValueError as error:\n    print(error.__notes__)",
        "@kernel(block=64)\ndef tuned(y: DisjointSlice[f32]):\n    y.get_mut(thread.index_1d())\n"
        "tuned.tune([{'block': 32}], await zeros(64))",
    )
    assert wrong.startswith("In [2], line 3: y is a DisjointSlice[f32], which has no [...]")
    assert wrong.endswith("\n    y[3] = x[2]\n    ^")
    assert (
        tiles
        == "In [3], line 3: tile has no zoros; did you mean tile.zeros?\n    z.store(tile.zoros(3))\n            ^"
    )
    assert "at In [4], line 4" in barrier
    assert "at In [4], line 6" in barrier
    assert "and_then(fails at In [5], line 1)" in place
    assert tuned == (
        "kernel tuned is defined in the cell In [6], and tune runs it in another process, which has no cells: write it "
        "to a file, as %%writefile does, and import it"
    )


def test_a_cell_may_await_under_both_loops_and_block_without_a_warning() -> None:
    _, under_asyncio, _, under_trio, _, back, blocked, task = session(
        IMPORTS + "\nimport asyncio, sniffio, trio",
        "print((await zeros(2).to_host()).tolist(), sniffio.current_async_library())",
        "%autoawait trio",
        "await trio.sleep(0)\nprint((await zeros(2).to_host()).tolist(), sniffio.current_async_library())",
        "%autoawait asyncio",
        "print((await zeros(2).to_host()).tolist())",
        "print(zeros(2).to_host().sync().tolist())",
        "async def blocks():\n    return zeros(2).to_host().sync()\nawait asyncio.create_task(blocks())",
    )
    assert [under_asyncio, back, blocked] == ["[0.0, 0.0] asyncio", "[0.0, 0.0]", "[0.0, 0.0]"]
    assert under_trio == "[0.0, 0.0] trio"
    assert "sync() blocks the asyncio event loop" in task


TERMINAL = """
import sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(history_manager=None)

def cell(text):
    ran = shell.run_cell(text, store_history=True)
    print(ran.result if ran.success else str(ran.error_in_exec or ran.error_before_exec), file=sys.stderr)

cell("from oxide import *")
cell("%autoawait trio")
cell("import sniffio; (await zeros(2).to_host(), sniffio.current_async_library())")
cell('''@kernel(block=64)
def k(x: Slice[f32], y: DisjointSlice[f32]):
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        element.value = x[i.get()]''')
cell("await k(zeros(2), zeros(3))")
cell('''import trio
async with trio.open_nursery() as nursery:
    handle = spawn(nursery, zeros(3).to_host())
    found = await handle
found''')
cell("await trio.sleep(0); zeros(1).to_host().sync()")
cell("%autoawait asyncio")
cell("await zeros(2).to_host()")
"""


@pytest.mark.nightly
def test_ipython_in_a_terminal_awaits_under_trio_and_asyncio() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", TERMINAL],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    fault = "kernel k: x[2] is outside x, which has 2 elements; block (0, 0, 0), thread (2, 0, 0), at In [4], line 6"
    assert ran.stderr.splitlines() == [
        "None",
        "None",
        "(array([0., 0.], dtype=float32), 'trio')",
        "None",
        fault,
        "[0. 0. 0.]",
        "[0.]",
        "None",
        "[0. 0.]",
    ]
