"""Structures: NamedTuples of scalars, vectors and structures as elements of slices and as values in kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import oxide
from oxide import (
    AtomicSlice,
    BoundsError,
    DisjointSlice,
    DisjointSlice2,
    LocalArray,
    SharedArray,
    Slice,
    Slice2,
    Tiles,
    Vec2,
    Vec3,
    Vec4,
    bool_,
    c64,
    d2h,
    device,
    dup,
    f16,
    f32,
    f64,
    h2d,
    i16,
    i32,
    i64,
    kernel,
    thread,
    u8,
    zeros,
)
from oxide.errors import ArgumentError, CompileError, SanitizerError

SIZES = (1, 31, 257)
WAYS = ("compiled", "interpreted")


class Particle(NamedTuple):
    position: Vec3[f32]
    velocity: Vec3[f32]
    mass: f32


class Corner(NamedTuple):
    place: Vec4[f32]
    color: Vec4[u8]
    shown: bool_


class Everything(NamedTuple):
    flag: bool_
    wide: f64
    small: u8
    half: f16
    corner: Corner
    pair: Vec2[i16]
    phase: c64
    last: i32 = 7


class Record(NamedTuple):
    """One line of a table."""

    key: i32
    group: u8
    amount: f64


class Other(NamedTuple):
    mass: f32
    position: Vec3[f32]


def in_way(way: str, of: Any) -> Any:
    return of if way == "compiled" else of.interpret


def ran(way: str, of: Any, *args: Any) -> Any:
    """Returns the last argument of a launch as a NumPy array."""
    return in_way(way, of)(*args).last().and_then(d2h).sync()


def particles(n: int, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    found = np.zeros(n, oxide.dtype_of(Particle))
    found["position"], found["velocity"] = random.random((n, 3)), random.random((n, 3))
    found["mass"] = random.random(n)
    return found


def everything(n: int) -> Any:
    found = np.zeros(n, oxide.dtype_of(Everything))
    found["flag"] = np.arange(n) % 2 == 0
    found["wide"], found["small"], found["half"] = np.arange(n) / 3, np.arange(n) % 256, np.arange(n) / 2
    found["corner"]["place"] = np.arange(4 * n).reshape(n, 4)
    found["corner"]["color"] = np.arange(4 * n).reshape(n, 4) % 256
    found["corner"]["shown"] = np.arange(n) % 3 == 0
    found["pair"] = np.arange(2 * n).reshape(n, 2) - n
    found["phase"] = np.arange(n) * 1j + 1
    found["last"] = -np.arange(n)
    return found


# Memory


def test_dtypes_are_aligned_as_in_c() -> None:
    found = oxide.dtype_of(Particle)
    assert found == np.dtype([("position", "f4", (3,)), ("velocity", "f4", (3,)), ("mass", "f4")], align=True)
    assert found.itemsize == 28
    whole = oxide.dtype_of(Everything)
    assert whole["corner"] == oxide.dtype_of(Corner)
    assert [whole.fields[name][1] for name in Everything._fields] == [0, 8, 16, 18, 20, 44, 48, 56]  # type: ignore[index]
    assert whole.itemsize == 64


def test_zeros_and_transfers_take_structures() -> None:
    box = zeros(5, Particle).sync()
    assert box.dtype == oxide.dtype_of(Particle)
    assert d2h(box).sync().tobytes() == bytes(5 * 28)
    assert oxide.pinned_empty(5, Particle).dtype == box.dtype
    table = everything(9)
    assert (d2h(h2d(table)).sync() == table).all()


def test_a_field_of_a_box_is_a_strided_view() -> None:
    table = everything(31)
    box = h2d(table).sync()
    masses = box["wide"]
    assert (masses.shape, masses.strides, masses.dtype) == ((31,), (64,), np.dtype(np.float64))
    for name in ("wide", "small", "pair", "phase", "flag", "last"):
        assert (d2h(box[name]).sync() == table[name]).all()
        assert (d2h(dup(box[name])).sync() == table[name]).all()
    assert box["corner"]["place"].shape == (31, 4)
    assert (d2h(box["corner"]["place"][:, 1]).sync() == table["corner"]["place"][:, 1]).all()
    with pytest.raises(ValueError, match=r"a box of flag, wide, .* has no field 'narrow'"):
        box["narrow"]
    with pytest.raises(TypeError):
        zeros(3).sync()["wide"]


# Values in kernels


@kernel(block=64)
def same(a: Slice[Everything], c: DisjointSlice[Everything]) -> None:
    index = thread.index_1d()
    c_elem = c.get_mut(index)
    if c_elem is not None:
        c_elem.value = a[index.get()]


@kernel(block=64)
def rebuilt(a: Slice[Everything], c: DisjointSlice[Everything]) -> None:
    index = thread.index_1d()
    c_elem = c.get_mut(index)
    if c_elem is not None:
        one = a[index.get()]
        place, color, shown = one.corner
        corner = Corner(shown=shown, place=place + 1.0, color=color)
        c_elem.value = Everything(
            not one.flag, one[1] * 2, 3, one.half + 1, corner, Vec2(one.pair.y, one.pair.x), phase=one.phase * 1j
        )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", SIZES)
def test_structures_are_loaded_and_stored_field_by_field(way: str, n: int) -> None:
    table = everything(n)
    assert (ran(way, same, h2d(table), zeros(n, Everything)) == table).all()
    found = ran(way, rebuilt, h2d(table), zeros(n, Everything))
    assert (found["flag"] == ~table["flag"]).all()
    assert (found["wide"] == table["wide"] * 2).all()
    assert (found["small"] == 3).all()
    assert (found["half"] == table["half"] + np.float16(1)).all()
    assert (found["corner"]["place"] == table["corner"]["place"] + np.float32(1)).all()
    assert (found["corner"]["color"] == table["corner"]["color"]).all()
    assert (found["pair"] == table["pair"][:, ::-1]).all()
    assert (found["phase"] == table["phase"] * np.complex64(1j)).all()
    assert (found["last"] == 7).all()
    assert found.tobytes() == _without_padding(found).tobytes()


def _without_padding(table: Any) -> Any:
    clean = np.zeros(table.shape, table.dtype)
    for name in table.dtype.names:
        clean[name] = _without_padding(table[name]) if table.dtype[name].names else table[name]
    return clean


@device
def moved(one: Particle, seconds: f32) -> Particle:
    return one._replace(position=one.position + one.velocity * seconds)


@device
def heavier(one: Particle, other: Particle) -> Particle:
    return one if one.mass > other.mass else other


@kernel(block=64)
def step(a: Slice[Particle], seconds: f32, c: DisjointSlice[Particle]) -> None:
    index = thread.index_1d()
    c_elem = c.get_mut(index)
    if c_elem is not None:
        c_elem.value = moved(a[index.get()], seconds)


@kernel(block=64)
def heaviest(a: Slice[Particle], c: DisjointSlice[Particle]) -> None:
    c_elem = c.get_mut(thread.index_1d())
    if c_elem is not None:
        best: Particle = a[0]
        for i in range(1, len(a)):
            best = heavier(best, a[i])
        c_elem.value = best


@pytest.mark.parametrize("way", WAYS)
def test_functions_take_and_return_structures(way: str) -> None:
    table = particles(31)
    found = ran(way, step, h2d(table), 0.5, zeros(31, Particle))
    expected = table["position"] + table["velocity"] * np.float32(0.5)
    np.testing.assert_allclose(found["position"], expected, rtol=1e-6)
    assert (found["mass"] == table["mass"]).all()
    assert ran(way, heaviest, h2d(table), zeros(1, Particle))[0] == table[table["mass"].argmax()]


REFERENCE = Record(3, 5, 0.1)
SCALE = Particle(Vec3(1.0, 2.0, 3.0), Vec3(0.0, 0.0, 0.0), 0.1)


@kernel(block=64)
def with_constants(limit: Record, one: Particle, c: DisjointSlice[Particle], d: DisjointSlice[Record]) -> None:
    index = thread.index_1d()
    c_elem, d_elem = c.get_mut(index), d.get_mut(index)
    if c_elem is not None and d_elem is not None:
        c_elem.value = SCALE._replace(velocity=one.position, mass=SCALE.mass * one.mass)
        d_elem.value = limit if index.get() == 0 else REFERENCE


@pytest.mark.parametrize("way", WAYS)
def test_structures_are_parameters_and_constants(way: str) -> None:
    one = Particle(Vec3(4.0, 5.0, 6.0), Vec3(0.0, 0.0, 0.0), 3.0)
    boxes = zeros(2, Particle).sync(), zeros(2, Record).sync()
    in_way(way, with_constants)(Record(9, 8, 0.7), one, *boxes).sync()
    c, d = (d2h(box).sync() for box in boxes)
    assert (c["position"] == [1, 2, 3]).all()
    assert (c["velocity"] == [4, 5, 6]).all()
    assert (c["mass"] == np.float32(0.1) * np.float32(3)).all()
    assert d.tolist() == [(9, 8, 0.7), (3, 5, 0.1)]


@kernel(block=(8, 8))
def transposed(a: Slice2[Record], c: DisjointSlice2[Record]) -> None:
    c_elem = c.get_mut(thread.index_2d())
    if c_elem is not None:
        row, column = thread.index_2d_row(), thread.index_2d_col()
        c_elem.value = a[column, row]


@kernel(block=8)
def in_tiles(a: Slice[Record], c: DisjointSlice[Record, Tiles(4)]) -> None:  # type: ignore[valid-type]
    index = thread.index_1d()
    tile = c.get_mut(index)
    if tile is not None:
        for i in range(4):
            tile[i] = a[index.get() * 4 + i]._replace(group=9)  # type: ignore[index]


@kernel(block=8)
def through_blocks(a: Slice[Corner], c: DisjointSlice[Corner]) -> None:
    shared, local = SharedArray(8, Corner), LocalArray(2, Corner)
    index = thread.index_1d()
    shared[thread.thread_idx.x] = a[index.get()]
    thread.sync_threads()
    local[0] = shared[7 - thread.thread_idx.x]
    local[1] = local[0]._replace(shown=True)
    c_elem = c.get_mut(index)
    if c_elem is not None:
        c_elem.value = local[1]


@pytest.mark.parametrize("way", WAYS)
def test_slices_of_two_axes_tiles_and_the_arrays_of_blocks_have_structures(way: str) -> None:
    table = np.zeros((5, 7), oxide.dtype_of(Record))
    table["key"] = np.arange(35).reshape(5, 7)
    table["amount"] = table["key"] / 7
    assert (ran(way, transposed, h2d(table), zeros((7, 5), Record)) == table.T).all()
    flat = table.reshape(-1)[:32].copy()
    found = ran(way, in_tiles, h2d(flat), zeros(32, Record))
    assert (found["key"] == flat["key"]).all()
    assert (found["group"] == 9).all()
    corners = everything(16)["corner"]
    found = ran(way, through_blocks, h2d(np.ascontiguousarray(corners)), zeros(16, Corner))
    assert (found["place"].reshape(2, 8, 4) == corners["place"].reshape(2, 8, 4)[:, ::-1]).all()
    assert found["shown"].all()


@kernel(block=32)
def beyond(a: Slice[Particle], past: i32, c: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    c_elem = c.get_mut(index)
    if c_elem is not None:
        c_elem.value = a[index.get() + past].mass


@kernel(block=32)
def scattered(c: DisjointSlice[Particle], past: i32) -> None:
    index = thread.index_1d()
    if index.get() < len(c):
        c.scatter[index.get() + past] = SCALE


@pytest.mark.parametrize("way", WAYS)
def test_accesses_of_structures_are_checked(way: str) -> None:
    with pytest.raises(BoundsError, match=r"\w\[31\] is outside \w, which has 31 elements"):
        in_way(way, beyond)(h2d(particles(31)), 1, zeros(31)).sync()
    with pytest.raises(BoundsError, match=r"\w\[31\] is outside \w, which has 31 elements"):
        in_way(way, scattered)(zeros(31, Particle), 1).sync()


# What the compiled code accesses


@kernel(block=64)
def one_field(a: Slice[Particle], c: DisjointSlice[Particle]) -> None:
    index = thread.index_1d()
    c_elem = c.get_mut(index)
    if c_elem is not None:
        c_elem.value = c_elem.value._replace(mass=a[index.get()].position.y)


@kernel(block=64)
def whole(a: Slice[Corner], c: DisjointSlice[Corner]) -> None:
    index = thread.index_1d()
    c_elem = c.get_mut(index)
    if c_elem is not None:
        c_elem.value = a[index.get()]


class Pair(NamedTuple):
    first: Vec3[f32]
    radius: f32


@kernel(block=64)
def in_one_access(a: Slice[Pair], c: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    c_elem = c.get_mut(index)
    if c_elem is not None:
        one = a[index.get()]
        c_elem.value = one.first.x + one.first.y + one.first.z + one.radius


def accesses(of: Any) -> tuple[list[str], list[str]]:
    """Returns the loads and the stores of global memory in a kernel's PTX, without those of the record of faults."""
    lines = [line.split() for line in of.ptx().splitlines() if "[" in line]
    records = {line[2].strip("[],;") for line in lines if line[0].startswith("atom.")}
    kept = [line for line in lines if not records & {word.strip("[],;").split("+")[0] for word in line}]
    loads = [line[0] for line in kept if line[0].startswith("ld.global")]
    return loads, [line[0] for line in kept if line[0].startswith("st.global")]


def test_one_field_is_one_store_and_only_used_fields_are_loaded() -> None:
    loads, stores = accesses(one_field)
    assert len(loads) == 1
    assert len(stores) == 1
    loads, stores = accesses(in_one_access)
    assert len(loads) == 1
    assert ".v4." in loads[0]
    loads, stores = accesses(whole)
    assert len(loads) == 3  # of 8 bytes each
    assert stores == ["st.global.v2.b32", "st.global.v2.b32", "st.global.b32", "st.global.b8"]


# Records filtered and reduced, and bodies that attract each other


@kernel(block=64)
def amounts_of(table: Slice[Record], group: u8, least: f64, out: DisjointSlice[f64]) -> None:
    out_elem = out.get_mut(thread.index_1d())
    if out_elem is not None:
        total = f64(0.0)
        for i in range(thread.index_1d().get(), len(table), len(out)):
            record = table[i]
            if record.group == group and record.amount >= least:
                total += record.amount * record.key
        out_elem.value = total


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", SIZES)
def test_a_table_of_records_is_filtered_and_reduced(way: str, n: int) -> None:
    random = np.random.default_rng(n)
    table = np.zeros(n, oxide.dtype_of(Record))
    table["key"], table["group"], table["amount"] = (
        random.integers(-9, 9, n),
        random.integers(0, 3, n),
        random.random(n),
    )
    found = ran(way, amounts_of, h2d(table), 1, 0.25, zeros(16, f64)).sum()
    kept = table[(table["group"] == 1) & (table["amount"] >= 0.25)]
    np.testing.assert_allclose(found, (kept["amount"] * kept["key"]).sum(), rtol=1e-12, atol=1e-12)


@kernel(block=32)
def attracted(bodies: Slice[Particle], seconds: f32, c: DisjointSlice[Particle]) -> None:
    index = thread.index_1d()
    c_elem = c.get_mut(index)
    if c_elem is not None:
        one = bodies[index.get()]
        pull = Vec3[f32](0.0, 0.0, 0.0)
        for j in range(len(bodies)):
            other = bodies[j]
            apart = other.position - one.position
            squared = apart.dot(apart) + 0.01
            pull += apart * (other.mass / (squared * squared**0.5))
        velocity = one.velocity + pull * seconds
        c_elem.value = one._replace(position=one.position + velocity * seconds, velocity=velocity)


@pytest.mark.parametrize(("way", "n"), [("compiled", 1), ("compiled", 31), ("compiled", 257), ("interpreted", 31)])
def test_bodies_attract_each_other_as_in_float64(way: str, n: int) -> None:
    table = particles(n)
    found = ran(way, attracted, h2d(table), 0.01, zeros(n, Particle))
    place = table["position"].astype(np.float64)
    apart = place[None, :] - place[:, None]
    squared = (apart**2).sum(-1) + 0.01
    pull = (apart * (table["mass"][None, :] / squared**1.5)[..., None]).sum(1)
    velocity = table["velocity"] + pull * 0.01
    for name, expected in (("velocity", velocity), ("position", place + velocity * 0.01)):
        assert np.linalg.norm(found[name] - expected) / np.linalg.norm(expected) < 1e-6
    assert (found["mass"] == table["mass"]).all()


def _of_one_name(kind: Any) -> Any:
    class Named(NamedTuple):
        first: kind
        second: f32

    def copied(a: Slice[Named], c: DisjointSlice[Named]) -> None:
        index = thread.index_1d()
        c_elem = c.get_mut(index)
        if c_elem is not None:
            c_elem.value = Named(a[index.get()].first, second=2.0)

    return Named, kernel(block=32)(copied)


def test_two_structures_may_have_one_name() -> None:
    for kind in (f64, u8, i32, Vec2[f32]):
        made_of, copied = _of_one_name(kind)
        table = np.ones(5, oxide.dtype_of(made_of))
        found = ran("compiled", copied, h2d(table), zeros(5, made_of))
        assert (found["first"] == 1).all()
        assert (found["second"] == 2).all()


@kernel(block=32, sanitize=("memory",))
def past_the_end(a: Slice[Particle], n: i64, c: DisjointSlice[f32]) -> None:
    c_elem = c.get_mut(thread.index_1d())
    if c_elem is not None:
        c_elem.value = a.unchecked[n].mass


def test_the_sanitizer_knows_structures(device: str) -> None:
    if device == "cuda":
        pytest.skip("the sanitizer is the CPU device's")
    assert ran("compiled", past_the_end, zeros(5, Particle), 4, zeros(1)) == 0
    with pytest.raises(SanitizerError, match="a has 5 elements of 28 bytes; this is byte 140, element 5"):
        ran("compiled", past_the_end, zeros(5, Particle), 5, zeros(1))


# What is wrong


def no_field(a: Slice[Particle], c: DisjointSlice[f32]) -> None:
    c_elem = c.get_mut(thread.index_1d())
    if c_elem is not None:
        c_elem.value = a[0].weight  # type: ignore[attr-defined]


def changed(c: DisjointSlice[Particle]) -> None:
    c_elem = c.get_mut(thread.index_1d())
    if c_elem is not None:
        c_elem.value.mass = f32(1.0)  # type: ignore[misc]


def too_few(c: DisjointSlice[Particle]) -> None:
    c_elem = c.get_mut(thread.index_1d())
    if c_elem is not None:
        c_elem.value = Particle(Vec3(0.0, 0.0, 0.0), mass=f32(1.0))  # type: ignore[call-arg]


def unknown_keyword(c: DisjointSlice[Particle]) -> None:
    c_elem = c.get_mut(thread.index_1d())
    if c_elem is not None:
        c_elem.value = c_elem.value._replace(weight=1.0)  # type: ignore[call-arg]


def wrong_value(c: DisjointSlice[Particle]) -> None:
    c_elem = c.get_mut(thread.index_1d())
    if c_elem is not None:
        c_elem.value = c_elem.value._replace(position=1.0)  # type: ignore[arg-type]


def narrower(c: DisjointSlice[Record], amount: f64) -> None:
    c_elem = c.get_mut(thread.index_1d())
    if c_elem is not None:
        c_elem.value = Record(1, amount, amount)  # type: ignore[arg-type]


def does_not_fit(c: DisjointSlice[Record]) -> None:
    c_elem = c.get_mut(thread.index_1d())
    if c_elem is not None:
        c_elem.value = Record(1, 300, 0.5)


def of_another_class(c: DisjointSlice[Particle]) -> None:
    c_elem = c.get_mut(thread.index_1d())
    if c_elem is not None:
        c_elem.value = Other(c_elem.value.mass, c_elem.value.position)  # type: ignore[assignment]


def read_only(a: Slice[Particle]) -> None:
    a[0] = SCALE  # type: ignore[index]


def atomic(a: AtomicSlice[Particle]) -> None:
    pass


class Counter(NamedTuple):
    count: i32  # type: ignore[assignment]


def a_method_of_tuples(a: Slice[Counter], c: DisjointSlice[i32]) -> None:
    pass


class Listed(NamedTuple):
    numbers: list[int]


def of_a_list(a: Slice[Listed], c: DisjointSlice[i32]) -> None:
    pass


def of_python(a: DisjointSlice[i32]) -> None:
    made = Listed([1])  # noqa: F841


def annotated_as_another(a: Slice[Record], c: DisjointSlice[f32]) -> None:
    best: Particle = a[0]  # type: ignore[assignment]
    c_elem = c.get_mut(thread.index_1d())
    if c_elem is not None:
        c_elem.value = best.mass


def compared(a: Slice[Particle], c: DisjointSlice[f32]) -> None:
    c_elem = c.get_mut(thread.index_1d())
    if c_elem is not None and a[0] == a[1]:
        c_elem.value = 1.0


def of_two_classes(a: Slice[Particle], b: Slice[Record], c: DisjointSlice[f32]) -> None:
    c_elem = c.get_mut(thread.index_1d())
    if c_elem is not None:
        one = a[0] if len(a) > 3 else b[0]
        c_elem.value = one[0]  # type: ignore[assignment]


def two_structures(a: Slice[Particle], c: DisjointSlice[f32]) -> None:
    c_elem = c.get_mut(thread.index_1d())
    if c_elem is not None:
        one = a[0] + a[1]
        c_elem.value = one.mass  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (no_field, "a Particle has position, velocity, mass, and no weight"),
        (changed, r"a Particle does not change: make another one, as in a\._replace\(position=…\), and store it whole"),
        (too_few, r"Particle\(…\) takes position, velocity, mass, and got 2"),
        (unknown_keyword, r"\._replace of a Particle takes fields by name \(position, velocity, mass\), not weight"),
        (wrong_value, r"\._replace of a Particle: position is Vec3\[f32\], and the value is f64"),
        (narrower, r"Record\(…\): group is u8, and the value is f64"),
        (does_not_fit, r"Record\(…\): group is u8, and the value is 300"),
        (of_another_class, "the value is Other"),
        (read_only, r"a is a Slice\[Particle\], which is read-only"),
        (atomic, "a: an AtomicSlice has scalars, not Particle: no atomic operation takes several numbers"),
        (a_method_of_tuples, "Counter.count has the name of a method of tuples: rename the field"),
        (of_a_list, r"Listed.numbers is annotated list.*; the fields of a structure are scalars"),
        (of_python, "Listed is no structure that kernels can make: Listed.numbers is annotated list"),
        (two_structures, r"a\[0\] \+ a\[1\]"),
        (annotated_as_another, "best is annotated as Particle and the value is Record"),
        (compared, r"a\[0\] == a\[1\] is not supported in kernels"),
        (of_two_classes, "Particle .*Record"),
    ],
)
def test_what_kernels_cannot_say_of_structures_is_a_compile_error(function: Callable[..., Any], problem: str) -> None:
    with pytest.raises(CompileError, match=problem):
        kernel(function).specialize()


def _packed() -> Any:
    whole = oxide.dtype_of(Record)
    return np.zeros(5, np.dtype([(name, whole[name]) for name in Record._fields]))


def _in_another_order() -> Any:
    whole = oxide.dtype_of(Record)
    return np.zeros(5, np.dtype([(name, whole[name]) for name in ("amount", "key", "group")], align=True))


@kernel(block=32)
def keys(a: Slice[Record], c: DisjointSlice[i32]) -> None:
    index = thread.index_1d()
    c_elem = c.get_mut(index)
    if c_elem is not None:
        c_elem.value = a[index.get()].key


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (_packed, r"at other bytes, as in a packed dtype; .*array\.astype\(oxide\.dtype_of\(Record\)\)"),
        (_in_another_order, r"in the order amount, key, group; .*array\[\['key', 'group', 'amount'\]\]\.astype\(oxide"),
        (lambda: np.zeros(5, np.int32), r"a box of int32; .*np\.zeros\(n, oxide\.dtype_of\(Record\)\)"),
        (lambda: particles(5), "with the fields position, velocity, mass; Record has key, group, amount"),
    ],
)
def test_boxes_of_another_layout_are_refused_with_the_cure(given: Callable[[], Any], problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        keys(h2d(given()), zeros(5, i32)).sync()


def test_a_box_at_another_address_is_refused() -> None:
    memory = zeros(16 * 5 + 8, u8).sync()
    box = oxide.DeviceBox.from_raw_parts(memory.ptr + 8, (5,), oxide.dtype_of(Record), memory)
    with pytest.raises(ArgumentError, match=r"no multiple of 16, where the structures of Slice\[Record\] begin; dup"):
        keys(box, zeros(5, i32)).sync()
    assert (ran("compiled", keys, dup(box), zeros(5, i32)) == 0).all()


def test_a_view_of_one_field_is_refused_as_other_strided_views_are() -> None:
    box = h2d(particles(5)).sync()
    with pytest.raises(ArgumentError, match=r"a strided view.*dup\(view\) makes a contiguous box"):
        _masses(box["mass"], zeros(5)).sync()
    assert (ran("compiled", _masses, dup(box["mass"]), zeros(5)) == particles(5)["mass"]).all()


@kernel(block=32)
def _masses(a: Slice[f32], c: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    c_elem = c.get_mut(index)
    if c_elem is not None:
        c_elem.value = a[index.get()]
