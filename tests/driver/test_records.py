"""The records that machine code and Python share: their offsets are those that compiled code writes and reads."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import DisjointSlice, Slice, i32, kernel, thread
from oxide.compiler.ir.llvm import ir_file, with_offsets
from oxide.compiler.source.faults import DIVERGENT
from oxide.driver.records import (
    COOPERATIVE,
    FAULT,
    LAUNCH,
    RECORDS,
    SANITIZED_ACCESS,
    SANITIZED_REPORT,
    SANITIZED_STATE,
    SANITIZED_VIEW,
    Layout,
)
from tests.compiler.native_runner import run_blocks

PACKAGE = Path(oxide.__file__).parent
IR = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.ll"))


@kernel
def reads_behind_itself(x: Slice[i32], y: DisjointSlice[i32]) -> None:
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        element.value = x[i.get() + 1]


@pytest.mark.parametrize("layout", RECORDS.values(), ids=list(RECORDS))
def test_numpy_and_ctypes_see_each_field_at_the_layouts_offset(layout: Layout) -> None:
    assert layout.dtype.itemsize == ctypes.sizeof(layout.structure) == layout.size
    for name, field in layout.fields.items():
        assert layout.dtype.fields is not None
        assert layout.dtype.fields[name][1] == getattr(layout.structure, name).offset == layout.offset(name)
        assert layout.dtype.fields[name][0].itemsize == getattr(layout.structure, name).size
        assert field.count is None or layout.offset(f"{name}[1]") == field.offset + ctypes.sizeof(field.ctype._type_)


def test_a_layout_follows_the_rules_of_c_and_alignments_of_its_own() -> None:
    layout = Layout("some", a="u32", b="u64", c="u32[3]", d="u32@64", e="i64")
    assert [layout.offset(name) for name in layout.fields] == [0, 8, 16, 64, 72]
    assert (layout.offset("c[2]"), layout.size, layout.alignment) == (24, 128, 64)
    longer = Layout("longer", layout, f="u32")
    assert (longer.offset("b"), longer.offset("f"), longer.size) == (8, 128, 192)
    made = layout.structure(d=7)
    assert bytes(made)[64:68] == np.uint32(7).tobytes()


@pytest.mark.parametrize("written", ["f32", "u32[", "u32[x]", "u32@"])
def test_a_field_of_no_known_type_is_an_error(written: str) -> None:
    with pytest.raises(ValueError, match=r"some\.a: .* is no new field of a type among u32, u64"):
        Layout("some", a=written)


def test_what_is_read_at_a_records_own_address_comes_first() -> None:
    """IR reads these without an offset."""
    for layout, first in (
        (FAULT, "claimed"),
        (SANITIZED_STATE, "claimed"),
        (LAUNCH, "grid"),
        (COOPERATIVE, "grid"),
        (SANITIZED_REPORT, "kind"),
        (SANITIZED_VIEW, "lo"),
        (SANITIZED_ACCESS, "time"),
    ):
        assert layout.offset(first) == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<fualt.site>", r"a\.ll: <fualt\.site> names no record; the records are fault, launch"),
        ("<fault.place>", r"a\.ll: <fault\.place>: record fault has no field place; its fields are claimed, site"),
        ("<fault.block[3]>", r"a\.ll: <fault\.block\[3\]>: record fault has no block\[3\]: block has 3 elements"),
        ("<fault.site[0]>", r"record fault has no site\[0\]: site has no elements"),
    ],
)
def test_a_placeholder_that_names_no_field_is_an_error(text: str, problem: str) -> None:
    with pytest.raises(LookupError, match=problem):
        with_offsets(f"getelementptr i8, ptr %record, i64 {text}\n", "a.ll")


def test_a_placeholder_becomes_an_offset_and_a_back_ends_own_stay() -> None:
    text = "<fault.thread[1]> <launch.sizeof> <entry> {{grid.site}} <2 x i64>"
    expected = f"{FAULT.offset('thread[1]')} {LAUNCH.size} <entry> {{{{grid.site}}}} <2 x i64>"
    assert with_offsets(text, "a.ll") == expected


@pytest.mark.parametrize("path", IR, ids=str)
def test_no_ir_file_has_the_offset_of_a_record_as_a_number(path: Path) -> None:
    text = (PACKAGE / path).read_text(encoding="utf-8")
    assert not re.findall(r"getelementptr i\d+, ptr (?!null)\S+, i(?:32|64) [1-9]\d*$", text, re.MULTILINE)
    ir_file(str(PACKAGE / path), path.name)  # its placeholders name fields


def test_a_kernel_fills_each_field_of_its_fault_record() -> None:
    x, y = np.arange(5, dtype=np.int32), np.zeros(6, np.int32)
    record: Any = run_blocks(reads_behind_itself, (3, 1, 1), (2, 1, 1), x, y, first=2, end=3)[0]
    special = reads_behind_itself.specialize()
    assert special.sites[record["site"]].parameter == "x"
    assert (record["claimed"], record["kernel_id"]) == (1, special.kernel_id)
    assert (record["index"], record["length"]) == (5, 5)
    assert record["block"].tolist() == [2, 0, 0]
    assert record["thread"].tolist() == [0, 0, 0]


def test_a_deadlock_fills_each_field_of_the_fault_record() -> None:
    @kernel
    def apart(x: Slice[i32]) -> None:
        if thread.index_1d().get() % 2 == 0:
            thread.sync_threads()
        else:
            thread.sync_threads()

    record: Any = run_blocks(apart, (2, 1, 1), (2, 1, 1), np.zeros(1, np.int32), first=1, end=2)[0]
    special = apart.specialize()
    lines = {special.sites[int(record[field])].line for field in ("site", "index")}
    assert len(lines) == 2
    assert (record["claimed"], record["kernel_id"], record["length"]) == (DIVERGENT, special.kernel_id, 0)
    assert record["block"].tolist() == [1, 0, 0]
