"""The HTML that notebooks show: operations, graphs, kernels, boxes, checks and explanations as HTML."""

from __future__ import annotations

import copy
import pickle
import re
from html.parser import HTMLParser

import numpy as np

from oxide import DisjointSlice, Slice, f16, f32, h2d, i64, kernel, thread, tile, zeros

VOID = {"br", "hr"}


class Balanced(HTMLParser):
    """Fails if an element is not closed, and collects the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@kernel(block=64)
def summed(n: i64, x: Slice[f32], y: DisjointSlice[f32]):
    """Adds x[:n] & nothing <else>."""
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        total = x[i.get()]
        for k in range(n):
            total += x[k]
        element.value = total


@tile.kernel(warps=2)
def product(c: tile.Partition[f32, 2], a: tile.Tensor[f32, 2], b: tile.Tensor[f32, 2], bk: tile.Constant[int] = 16):
    """Multiplies."""
    row, column = c.index
    rows, columns = c.tile_shape
    acc = tile.zeros((rows, columns), f32)
    for k in range(tile.cdiv(a.shape[1], bk)):
        acc = tile.mma(a.load((row, k), (rows, bk)), b.load((k, column), (bk, columns)), acc)
    c.store(acc)


def test_an_operation_is_its_picture() -> None:
    operation = h2d(np.zeros(3, np.float32))
    shown = Balanced(operation._repr_html_())
    assert "h2d" in shown.text


def test_a_kernel_shows_its_parameters_options_and_docstring() -> None:
    shown = Balanced(summed._repr_html_()).text
    line = summed.function.__code__.co_firstlineno
    for part in (
        f"kernel summed, {__file__}:{line}",
        "Slice[f32]",
        "(64, 1, 1)",
        "& nothing <else>",
    ):
        assert part in shown


def test_a_tile_kernel_shows_its_parameters_options_and_docstring() -> None:
    shown = Balanced(product._repr_html_()).text
    for part in ("tile kernel product", "bk", "= 16", "warps2", "Multiplies."):
        assert part in shown


def test_a_box_shows_its_shape_and_dtype() -> None:
    box = zeros((3, 4)).sync()
    shown = Balanced(box._repr_html_()).text
    assert "(3, 4)" in shown
    assert "float32" in shown
    assert "strides" not in shown
    assert "strides" in Balanced(box.T._repr_html_()).text


def test_the_checks_stand_behind_their_lines() -> None:
    checks = summed.checks()
    shown = Balanced(checks._repr_html_()).text  # type: ignore[attr-defined]
    marked = {int(match[1]) for match in re.finditer(r"^ *(\d+)  .*# [xy]: ", shown, re.MULTILINE)}
    assert marked == {check.line for check in checks}
    assert "at every access" in shown
    assert "@kernel(block=64)" in shown
    assert "# x: hoisted, one check before the loop" in shown


def test_the_checks_are_still_a_tuple() -> None:
    checks = summed.checks()
    assert checks == tuple(checks)
    assert repr(checks) == repr(tuple(checks))
    assert pickle.loads(pickle.dumps(checks)) == copy.copy(checks) == checks


def test_a_kernel_without_checks_says_so() -> None:
    @kernel(unchecked=True)
    def unchecked(x: Slice[f32], y: DisjointSlice[f32]):
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = x[i.get()]

    assert "no bounds checks" in unchecked.checks()._repr_html_()  # type: ignore[attr-defined]


def test_an_explanation_stands_behind_the_lines_that_it_is_about() -> None:
    explained = product.explain(c=(32, 32))
    shown = Balanced(explained._repr_html_()).text  # type: ignore[attr-defined]
    assert explained.splitlines()[0] in shown
    for line in explained.splitlines()[1:]:
        number, remark = re.fullmatch(r"line (\d+): (.*)", line).groups()  # type: ignore[union-attr]
        assert re.search(rf"^ *{number}  .*{re.escape(remark)}", shown, re.MULTILINE)
    assert isinstance(explained, str)


def test_remarks_on_a_whole_kernel_stand_above_its_source() -> None:
    @tile.kernel
    def multiplied(c: tile.Partition[f16, 2], a: tile.Tensor[f16, 2], b: tile.Tensor[f16, 2]):
        row, column = c.index
        acc = tile.zeros((64, 64), f32)
        for k in range(tile.cdiv(a.shape[1], 64)):
            acc = tile.mma(a.load((row, k), (64, 64)), b.load((k, column), (64, 64)), acc)
        c.store(acc.astype(f16))

    explained = multiplied.explain(c=(64, 64))
    shown = Balanced(explained._repr_html_()).text  # type: ignore[attr-defined]
    general = [line for line in explained.splitlines() if not line.startswith("line ")]
    assert len(general) == 2  # the second is about the threads that copy
    assert "; ".join(general) in shown
    assert "a pipeline of" in shown
