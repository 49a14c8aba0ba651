"""The notebook of the examples runs from the first cell to the last, and its cells show what its text says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def code_cells(notebook: Any) -> Iterator[Any]:
    return (cell for cell in notebook.cells if cell.cell_type == "code")


@pytest.fixture(scope="module")
def executed() -> Any:
    notebook = nbformat.read(FOLDER / "first_kernel.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    return notebook


def shown(notebook: Any, begins: str) -> dict[str, str]:
    """Returns the result of the cell that contains a line, by MIME type."""
    (cell,) = (cell for cell in code_cells(notebook) if begins in cell.source)
    (output,) = cell.outputs
    assert output.output_type == "execute_result", output
    data: dict[str, str] = output.data
    return data


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: str(path.stem))
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in code_cells(notebook):
        assert not cell.outputs
        assert cell.execution_count is None


def test_no_cell_warns_or_prints(executed: Any) -> None:
    kinds = [output.output_type for cell in code_cells(executed) for output in cell.outputs]
    assert set(kinds) == {"execute_result", "error"}


def test_a_kernel_is_shown_with_its_cell(executed: Any) -> None:
    html = shown(executed, "def axpy")["text/html"]
    assert "kernel axpy, In [2], line 1" in html
    assert "Adds alpha * x to y." in html


def test_a_recipe_is_a_picture_and_its_result_is_right(executed: Any) -> None:
    html = shown(executed, "recipe = ")["text/html"]
    assert "<svg" in html
    assert html.count("host to device") >= 2
    assert "alpha = 2.0" in html
    assert shown(executed, "await recipe")["text/plain"] == "array([1., 3., 5., 7., 9.], dtype=float32)"


def test_operations_awaited_together_have_their_results(executed: Any) -> None:
    assert shown(executed, "await gather")["text/plain"] == "[1.0, 500.5, 1000.0, 1499.5]"


def test_the_checks_are_marked_in_the_cells_source(executed: Any) -> None:
    html = shown(executed, "axpy.checks()")["text/html"]
    assert "2 bounds checks, 1 of them at every access" in html
    assert "element.value += alpha * x[i.get()]" in html


def test_a_fault_names_the_cell_and_the_line(executed: Any) -> None:
    (error,) = (output for cell in code_cells(executed) for output in cell.outputs if output.output_type == "error")
    assert error.ename == "BoundsError"
    assert re.fullmatch(
        r"kernel axpy: x\[\d+\] is outside x, which has 500 elements; block .*, thread .*, at In \[2\], line 7",
        error.evalue,
    )


def test_a_graph_is_a_picture_of_all_its_work(executed: Any) -> None:
    html = shown(executed, ".graph()")["text/html"]
    assert "2 launches, 2 copies" in html
    assert html.count('class="node launch"') == 2
    assert shown(executed, "graph.launch()")["text/plain"] == "array([ 2.,  4.,  6.,  8., 10.], dtype=float32)"


def test_a_tile_kernel_is_explained_in_the_cells_source(executed: Any) -> None:
    html = shown(executed, "softmax.explain()")["text/html"]
    assert "softmax: 128 threads a program" in html
    assert "rows = tile.load_like(x, out)" in html
