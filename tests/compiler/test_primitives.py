"""The table of primitives: every function of its modules has one entry, and what it does is known by its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import oxide.compiler.check.vocabulary  # noqa: F401 - declares every function
from oxide.compiler.primitives import scalars, threads, warps
from oxide.compiler.primitives.effects import WAITING, Effect, having
from oxide.compiler.primitives.table import Primitive
from oxide.compiler.source.typings import Signature
from oxide.language import fast, intrinsics, primitives, random, thread, warp

ENTRIES = (*scalars.ENTRIES, *warps.ENTRIES, *threads.ENTRIES)
COORDINATES = {
    thread.index_1d, thread.index_2d, thread.index_3d, thread.index_2d_row, thread.index_2d_col,
    warp.lane_id, warp.warp_id,
}  # fmt: skip


def test_every_function_has_one_entry_unless_it_reads_coordinates() -> None:
    modules = {module.__name__ for module in (fast, intrinsics, random, thread, warp)}
    declared = {each for each in primitives.FUNCTIONS if each.__module__ in modules}
    functions = [entry.function for entry in ENTRIES]
    assert len(set(functions)) == len(functions)
    assert {*functions, *COORDINATES} == declared


def test_the_reference_has_every_function() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "kernels.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: (.*)$", page, re.MULTILINE))
    assert not {each for each in primitives.FUNCTIONS if not {each.__module__, f"oxide.{each.__name__}"} & shown}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_what_a_function_does_follows_from_its_name(entry: Primitive) -> None:
    annotations = [each for name, each in entry.function.__annotations__.items() if name not in ("mask", "return")]
    kind = "f32" if "float" in annotations else "u32"
    given = tuple("bool_" if each == "bool" else kind for each in annotations)
    signature = entry.typed(entry.name, given)
    assert isinstance(signature, Signature)
    symbol = entry.symbol_of(signature)
    assert symbol.startswith(WAITING) == entry.meets
    assert symbol.startswith(having(Effect.PURE)) == (entry in scalars.ENTRIES)
    if entry in threads.ENTRIES:
        assert f"@{symbol}(" in entry.cpu_text
        assert all(f"@{symbol}(" in entry.ptx_text(capability) for capability in (50, 75, 90))
