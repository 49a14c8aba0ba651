"""``oxide graph``: a picture of an operation that a file names."""

from __future__ import annotations

from pathlib import Path

import pytest

from oxide.commands.program import main
from tests.commands.command_line import oxide

PIPELINE = '''"""A pipeline, which is run only as a program."""

import numpy as np

from oxide import DisjointSlice, LaunchConfig, d2h, f32, h2d, kernel, thread


@kernel
def halved(x: DisjointSlice[f32]):
    element = x.get_mut(thread.index_1d())
    if element is not None:
        element.value *= f32(0.5)


def build():
    return halved[LaunchConfig.for_num_elems(8)](h2d(np.ones(8, np.float32))).first().and_then(d2h)


def takes(x):
    return x


configured = halved[LaunchConfig.for_num_elems(8)]
recipe = build()
number = 3

if __name__ == "__main__":
    raise SystemExit("it is imported, not run")
'''


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    return tmp_path


def test_an_operation_and_a_function_that_returns_one_are_drawn(pipeline: Path) -> None:
    drawn = oxide("graph", "pipeline.py:recipe", "--svg", "-o", "recipe.svg", cwd=pipeline, OXIDE_DEVICE="cpu")
    assert (drawn.status, drawn.out) == (0, "recipe.svg\n"), drawn.err
    svg = (pipeline / "recipe.svg").read_text()
    assert svg.lstrip().startswith("<svg")
    assert "halved" in svg
    printed = oxide("graph", "pipeline:build", cwd=pipeline, OXIDE_DEVICE="cpu")
    assert printed.status == 0, printed.err
    assert "halved" in printed.out
    assert oxide("graph", "pipeline:build", "-o", "-", cwd=pipeline, OXIDE_DEVICE="cpu").out == printed.out


def test_what_cannot_be_drawn_is_refused(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(pipeline)
    for name, message in (
        ("absent", "pipeline has no absent; what can be drawn there is recipe"),
        ("number", "pipeline.py:number: "),
        ("halved", "halved is a kernel; an operation is its launch with arguments"),
        ("configured", "such as `recipe = configured(...)`"),
        ("takes", "takes is a function that cannot be called without arguments"),
    ):
        assert main(["graph", f"pipeline.py:{name}"]) == 2
        assert message in capsys.readouterr().err
    assert main(["graph", "pipeline.py:recipe", "-o", "no/such/picture.svg"]) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err
