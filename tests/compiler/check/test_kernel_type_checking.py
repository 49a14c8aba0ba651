"""A static type checker sees the safety rules too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

ROOT = Path(__file__).parents[3]

HEAD = """
from oxide import DisjointSlice, Slice, f32, kernel, thread, u32

@kernel
def fill(n: u32, a: Slice[f32], c: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mypy's cache, which all tests of the file share: it checks oxide itself once, and that takes seconds."""
    return tmp_path_factory.mktemp("mypy")


def mypy(tmp_path: Path, cache: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    return run_mypy(tmp_path, cache, HEAD + "".join(f"    {line}\n" for line in lines))


def run_mypy(tmp_path: Path, cache: Path, program: str) -> subprocess.CompletedProcess[str]:
    source = tmp_path / "kernels.py"
    source.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={cache}"]
    command += ["--follow-imports=silent", f"--config-file={ROOT / 'pyproject.toml'}", str(source)]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)


def test_a_kernel_that_looks_before_it_writes_passes(tmp_path: Path, cache: Path) -> None:
    checked = mypy(
        tmp_path,
        cache,
        "acc = f32(0.0)",
        "for j in range(n):",
        "    acc += a[i.get() * n + j]",
        "e = c.get_mut(i)",
        "if e is not None:",
        "    e.value = acc + e.value",
    )
    assert checked.returncode == 0, checked.stdout


def test_a_kernel_that_forgets_the_none_check_is_rejected(tmp_path: Path, cache: Path) -> None:
    checked = mypy(tmp_path, cache, "c.get_mut(i).value = 1.0")
    assert checked.returncode == 1
    assert 'Item "None" of "Ref[float] | None" has no attribute "value"' in checked.stdout


def test_the_other_rules_are_type_errors_too(tmp_path: Path, cache: Path) -> None:
    checked = mypy(
        tmp_path,
        cache,
        "c[0] = 1.0",
        "a[0] = 1.0",
        "c.get_mut(3)",
        "j = i + 1",
        "c.get_mut(thread.index_2d(n))",
        "x = a[1.5]",
    )
    assert checked.returncode == 1
    wrong = {int(line.split(":")[1]) for line in checked.stdout.splitlines() if ": error:" in line}
    first = HEAD.count("\n") + 1
    assert wrong == set(range(first, first + 6)), checked.stdout


PLACES = """
from oxide import Rows
from oxide import DisjointSlice2, DisjointSlice3, f32, i64, kernel, thread, u32

@kernel
def places(n: u32, y: DisjointSlice2[f32], z: DisjointSlice3[f32]) -> None:
    index = thread.index_2d()
    element, other = y.get_mut(index), z.get_mut(thread.index_3d())
    if element is not None and other is not None:
        element.value = other.value + f32(index.row + index.column)
    y.get_mut(thread.index_2d(n))
    index.row = 3

@kernel
def rows(y: DisjointSlice2[f32, Rows]) -> None:
    row = y.get_mut(thread.index_1d())
    if row is not None:
        row[0] = row[1] + len(row)
        row[0, 1] = 1.0
    row[0] = 1.0
"""


def test_only_an_index_with_a_width_may_be_none(tmp_path: Path, cache: Path) -> None:
    checked = run_mypy(tmp_path, cache, PLACES)
    wrong = {int(line.split(":")[1]) for line in checked.stdout.splitlines() if ": error:" in line}
    assert wrong == {11, 12, 19, 20}, checked.stdout
    assert '"ThreadIndex | None"; expected "ThreadIndex"' in checked.stdout


def test_the_kernel_library_passes(cache: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={cache}", "--follow-imports=silent"]
    done = subprocess.run([*command, "oxide_kernels"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout


VIEWS = """
from typing import Literal
from oxide import AtomicSlice, DisjointSlice, RowMajorTiles, Slice2, Tiles
from oxide import f32, kernel, thread, u32, zip_exact

@kernel
def safe(
    n: u32,
    m: Slice2[f32],
    c: DisjointSlice[f32, Tiles[Literal[4]]],
    d: DisjointSlice[f32, RowMajorTiles[Literal[2], Literal[2]]],
    e: DisjointSlice[f32],
    h: AtomicSlice[f32],
) -> None:
    i = thread.index_1d()
    row, col = m.row(0), m.col(0)
    tile, rest, flat = m.tile(0, 0, 2, 2), c.get_remainder(i), c.get_mut(i)
    total = f32(0.0)
    if row is not None and col is not None:
        for x, y in zip_exact(row, col):
            total += x * y
        total += row[0] + len(row)
    if tile is not None:
        for one in tile:
            for x in one:
                total += x + tile[0, 1]
    if flat is not None:
        flat[0] = total + flat[1]
    if rest is not None:
        for j in range(len(rest)):
            rest[j] = total
    index = thread.index_2d(n)
    if index is not None:
        matrix = d.get_mut(index)
        if matrix is not None:
            matrix[0, 1] = total
"""

WRONG = """    for x in m.row(0): pass
    m.col(0)[0]
    m.tile(0, 0, 2, 2)[0, 0]
    zip_exact(m.row(0), m.col(0))
    c.get_mut(i)[0] = total
    c.get_remainder(i)[0] = total
    c.get_mut(0)
    d.get_mut(thread.index_2d(n))
    e.get_remainder(i)
    e.get_mut(i)[0] = total
    c[0] = total
    m.row(0, n)
    if row is not None: row[0] = total
    if flat is not None: flat.value = total
    if flat is not None: flat[0, 0] = total
    h[0] = total
    h.get_mut(i)
"""


def test_the_rules_of_views_tiles_and_atomics_are_type_errors_too(tmp_path: Path, cache: Path) -> None:
    checked = run_mypy(tmp_path, cache, VIEWS + WRONG)
    wrong = {int(line.split(":")[1]) for line in checked.stdout.splitlines() if ": error:" in line}
    first = VIEWS.count("\n") + 1
    assert wrong == set(range(first, first + WRONG.count("\n"))), checked.stdout


SHAPED = """
from typing import Literal
from oxide import AtomicSlice2, DisjointSlice2, DisjointSlice3, RowMajorTiles, Slice2, Slice3, f32, i32, kernel, thread
from oxide import zip_exact

@kernel
def product(a: Slice2[f32], b: Slice3[f32], n: AtomicSlice2[i32], c: DisjointSlice2[f32]) -> None:
    i = thread.index_2d(c.shape[1])
    if i is not None:
        e = c.get_mut(i)
        if e is not None:
            e.value = a[0, 1] + b[0, 1, a.shape[1]] + a.flat[2] + f32(len(b))
            n.fetch_add((0, 1), 1)

@kernel
def views(a: Slice2[f32], b: Slice3[f32], c: DisjointSlice2[f32], d: DisjointSlice3[f32]) -> None:
    row, col, tile = a.row(0), a.col(1), a.tile(0, 0, 2, 2)
    if row is not None and col is not None and tile is not None and a.is_aligned(4) and d.is_aligned(2):
        for x, y in zip_exact(row, col):
            c.unchecked_mut.store2((0, 2), x, y + tile[0, 1])
        p, q, r, s = a.load4((0, 4))
        d.unchecked_mut.streaming.store2((0, 0, 2), *b.load2((0, 1, 2)))
        c.unchecked_mut.store4((0, 4), p, q, *a.unchecked.load2((0, 0)))

@kernel
def tiled(c: DisjointSlice2[f32, RowMajorTiles[Literal[2], Literal[4]]], d: DisjointSlice3[f32]) -> None:
    i = thread.index_2d(c.shape[1])
    if i is not None:
        t = c.get_mut(i)
        if t is not None:
            t[0, 1] = f32(t.shape[1] + d.shape[2])
"""

WRONG_SHAPED = """
@kernel
def wrong(a: Slice2[f32], c: DisjointSlice2[f32], d: DisjointSlice3[f32]) -> None:
    f32(a[0])
    f32(a[0, 1, 2])
    a.shape[2]
    c[0, 1]
    i = thread.index_1d()
    c.get_mut(i).value = 1.0
    d.get_mut(i).value = 1.0

@kernel
def wrong_views(a: Slice2[f32], b: Slice3[f32], c: DisjointSlice2[f32]) -> None:
    for x in a.row(0): pass
    a.col(0)[0]
    a.tile(0, 0, 2, 2)[0, 0]
    a.row(0, 3)
    b.row(0)
    c.row(0)
    a.load4(0)
    a.load4((0, 1, 2))
    b.load4((0, 1))
    c.unchecked_mut.store2(0, 1.0, 2.0)
    c.store2((0, 0), 1.0, 2.0)
    a.store2((0, 0), 1.0, 2.0)
    a.unchecked.load4(0)
    zip_exact(a.row(0), a.col(0))
"""


def test_slices_of_several_axes_are_typed(tmp_path: Path, cache: Path) -> None:
    checked = run_mypy(tmp_path, cache, SHAPED)
    assert checked.returncode == 0, checked.stdout
    checked = run_mypy(tmp_path, cache, SHAPED + WRONG_SHAPED)
    first = SHAPED.count("\n") + 4
    assert sorted({int(line.split(":")[1]) for line in checked.stdout.splitlines() if ": error:" in line}) == [
        *range(first, first + 4),
        first + 5,
        first + 6,
        *range(first + 10, first + 24),
    ]


VECTORS = """
from typing import assert_type
from oxide import DisjointSlice, DisjointSlice2, Slice, Vec2, Vec3, Vec4, device, f32, kernel, thread, u8

@device
def mirrored(v: Vec3[f32], normal: Vec3[f32]) -> Vec3[f32]:
    return v - 2.0 * v.dot(normal) * normal

@kernel
def fill(a: Slice[Vec3[f32]], image: DisjointSlice2[Vec3[u8]], off: Vec3[f32], c: DisjointSlice[Vec3[f32]]) -> None:
    i = thread.index_1d()
    v = a[i.get()]
    assert_type(v.x, float)
    assert_type(v < 1.0, Vec3[bool])
    assert_type(v[0], float)
    e = c.get_mut(i)
    x, y, z = v
    acc = Vec3(0.0, 0.0, 0.0)
    for k in range(3):
        acc += v * k
    own: Vec3[f32] = acc / 2 + off
    if e is not None and (v < own).all() and v != own:
        e.value = mirrored(v, own.normalize()).cross(v) + abs(-v).max(0.5).min(v) + v.fma(v, 1.0) + x * v.length() + 1
    p = image.get_mut(thread.index_1d())
    if p is not None:
        p.value = 255 - Vec3[u8](1, 2, 3)

host = Vec4(1.0, 2.0, 3.0, 4.0) * 2
assert_type(host, Vec4[float])
assert_type(Vec2(1, 2) + 1, Vec2[int])
"""

WRONG_VECTORS = """
@kernel
def wrong(a: Slice[Vec3[f32]], c: DisjointSlice[Vec3[f32]]) -> None:
    e = c.get_mut(thread.index_1d())
    if e is not None:
        e.value = a[0].x
        e.value = a[0].w
        e.value = a[0] + Vec2(1.0, 2.0)
        e.value = Vec3(1.0, 2.0)
        v = a[0]
        v[0] = 1.0
        v.x = 2.0
        e.value = Vec2(1.0, 2.0).cross(v)
"""


def test_vectors_have_their_fields_and_operators(tmp_path: Path, cache: Path) -> None:
    checked = run_mypy(tmp_path, cache, VECTORS)
    assert checked.returncode == 0, checked.stdout
    checked = run_mypy(tmp_path, cache, VECTORS + WRONG_VECTORS)
    first = VECTORS.count("\n") + 6
    assert sorted({int(line.split(":")[1]) for line in checked.stdout.splitlines() if ": error:" in line}) == [
        *range(first, first + 4),
        *range(first + 5, first + 8),
    ]
