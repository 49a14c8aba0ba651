"""The loop over positions changes nothing but the time: random kernels by it and without it, bit by bit, faults too.

Kernels are drawn whose reads and tests are mostly linear in the thread's position, so that launches have blocks inside
and outside of all intervals. ``OXIDE_POSITIONS`` is how many the random test draws, 40 by default; each is run in a
dozen launches.
"""

from __future__ import annotations

import itertools
import linecache
import math
import os
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from numba import cuda

from oxide import (
    Array,
    AtomicSlice,
    DisjointSlice,
    LocalArray,
    Slice,
    bool_,
    d2h,
    f32,
    i16,
    i32,  # noqa: F401 - the drawn kernels say it
    i64,
    intrinsics,
    kernel,
    thread,
    u32,  # noqa: F401
    u64,
    zeros,
)
from oxide.compiler.cpu import object_code, positions
from oxide.compiler.ir.llvm import host_target
from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.kernel.specialization import Specialization
from oxide.compiler.source.faults import RECORD, read_fault
from oxide.driver.cpu.code import CpuFunction
from oxide.errors import BoundsError, KernelAssertionError
from tests.choosing import examples

KERNELS = int(os.environ.get("OXIDE_POSITIONS", "40"))
PACKED = r"\bv?(?:add|sub|mul|max|cmp\w*|fmadd\d+)ps\b|\.4s\b"
"""Instructions on several numbers at once, of two makes of processor."""


@kernel
def axpy(alpha: f32, x: Slice[f32], y: Slice[f32], out: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        element.value = alpha * x[index.get()] + y[index.get()]


@kernel
def relu(x: DisjointSlice[f32]) -> None:
    element = x.get_mut(thread.index_1d())
    if element is not None:
        element.value = max(element.value, f32(0))


@kernel
def stencil(x: Slice[f32], out: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    i = index.get()
    element = out.get_mut(index)
    if element is not None:
        if i > 0 and i + 1 < len(x):
            element.value = x[i - 1] + x[i] + x[i + 1]
        else:
            element.value = x[i]


@kernel
def as_in_numba(alpha: f32, x: Array[f32], out: Array[f32]) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = alpha * x[i] + x[i]


@kernel
def reversed_(flag: bool_, x: Slice[f32], out: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None and flag:
        element.value = x[len(x) - 1 - index.get()] + f32(1)


@kernel
def gather(at: Slice[i64], x: Slice[f32], out: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        element.value = x[at[index.get()]]


@kernel
def own_coordinates(out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = i64(thread.thread_idx.x)


@kernel
def own_memory(x: Slice[f32], out: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    held = LocalArray(4, f32)
    if element is not None:
        held[index.get() % 4] = x[index.get()]
        element.value = held[index.get() % 3]


@kernel
def counting(counts: AtomicSlice[i64], out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        counts.fetch_add(0, 1)
        element.value = 1


@kernel
def by_fours(x: Slice[f32], out: DisjointSlice[f32]) -> None:
    first, end, every = 4 * thread.index_1d().get(), len(out), out.unchecked_mut
    if first + 4 <= end and x.is_aligned(4) and out.is_aligned(4):
        a, b, c, d = x.load4(first)
        every.store4(first, a + f32(1), b + f32(1), c + f32(1), d + f32(1))
    else:
        for i in range(first, min(first + 4, end)):
            every[i] = x[i] + f32(1)


@kernel
def looping(x: Slice[f32], out: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        total = f32(0)
        for i in range(len(x)):
            total += x[i]
        element.value = total


def has_loop(kernel: Kernel) -> bool:
    special = kernel.specialize()
    return positions.positions(special.portable, "entry", special.parameters) is not None


@pytest.mark.slow
@pytest.mark.parametrize("vectorised", [axpy, relu, stencil, as_in_numba, reversed_, by_fours], ids=lambda k: k.name)
def test_threads_known_by_their_positions_run_several_at_once(vectorised: Kernel) -> None:
    assert has_loop(vectorised)
    assert re.search(PACKED, vectorised.native_asm())


@pytest.mark.parametrize("left", [gather, own_coordinates, own_memory, counting, looping], ids=lambda k: k.name)
def test_kernels_that_need_more_than_a_position_are_left_as_they_are(left: Kernel) -> None:
    assert not has_loop(left)


@pytest.mark.slow
@pytest.mark.parametrize("longest", [0, 1, 255, 256, 257, 1000, 100_000])
def test_the_first_thread_outside_of_a_slice_is_the_one_reported(longest: int) -> None:
    rng = np.random.default_rng()
    n = 2000
    x, y = rng.standard_normal(longest, np.float32), rng.standard_normal(n, np.float32)
    out = np.zeros(n, np.float32)
    with Compared(axpy) as compared:
        record = compared.run((8, 1, 1), (256, 1, 1), 2.0, x, y, out)
    inside = min(longest, n)
    np.testing.assert_allclose(out[:inside], np.float64(2) * x[:inside] + y[:inside], rtol=1e-6, atol=1e-6)
    assert not out[inside:].any()
    if longest < n:
        fault = read_fault(record, "axpy", axpy.specialize().sites)
        assert isinstance(fault, BoundsError)
        assert (fault.parameter, fault.index, fault.length) == ("x", longest, longest)
        assert (fault.block[0], fault.thread[0]) == divmod(longest, 256)
    else:
        assert not record["claimed"].any()


def test_a_failed_assertion_is_that_of_its_thread() -> None:
    asserting = compiled(ASSERTING)
    x, out = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    with Compared(asserting) as compared:
        assert compared.by_position
        record = compared.run((4, 1, 1), (256, 1, 1), 700, x, out)
    fault = read_fault(record, "asserting", asserting.specialize().sites)
    assert isinstance(fault, KernelAssertionError)
    assert (fault.block[0], fault.thread[0]) == divmod(700, 256)
    assert out[:700].all()
    assert not out[700:].any()


@pytest.mark.slow
@pytest.mark.parametrize(("grid", "block"), [((2, 3, 1), (64, 1, 1)), ((2, 1, 1), (16, 4, 1)), ((1, 1, 2), (8, 8, 2))])
def test_blocks_and_grids_of_more_axes_run_thread_by_thread(grid: Any, block: Any) -> None:
    x, out = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
    with Compared(stencil) as compared:
        compared.run(grid, block, x, out)


@pytest.mark.slow
@pytest.mark.parametrize("block", [1, 3, 32, 48, 64, 100, 256, 1000, 1024])
def test_every_range_of_blocks_does_its_threads_and_no_others(block: int) -> None:
    rng = np.random.default_rng()
    with Compared(stencil) as compared:
        for blocks in (1, 7, 130):
            first, end = sorted(rng.integers(0, blocks + 1, 2).tolist())
            x = rng.standard_normal(blocks * block - 1, np.float32)
            out = np.zeros(blocks * block + 5, np.float32)
            compared.run((blocks, 1, 1), (block, 1, 1), x, out, first=first, end=end)
            assert not out[: first * block].any()
            assert not out[end * block :].any()


def test_a_buffer_that_is_input_and_output_is_read_before_it_is_written_by_the_same_thread() -> None:
    x = np.random.default_rng().standard_normal(4096).astype(np.float32)
    expected = np.float64(3) * x + x
    with Compared(axpy) as compared:
        compared.run((16, 1, 1), (256, 1, 1), 3.0, x, x, x)
    np.testing.assert_allclose(x, expected, rtol=1e-6)


@kernel
def of_high_products(n: u64, y: DisjointSlice[i64]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = 1 if intrinsics.mulhi(u64(15), n) > i16(intrinsics.mulhi(u64(15), n)) else 2


def test_products_of_128_bits_are_left_where_they_are() -> None:
    for n in (5, 2**63):
        (y,) = (d2h(box).sync() for box in of_high_products[2, 32](n, zeros(40, i64)).sync()[1:])
        assert set(y.tolist()) == {2}


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("missing", [0, 1, 300])
def test_threads_of_four_elements_need_all_four_and_their_boundary(offset: int, missing: int) -> None:
    n = 4099
    held = np.random.default_rng().standard_normal(n + 8, np.float32)
    start = -held.ctypes.data % 16 // 4 + offset
    x = held[start : start + n - missing]
    out = aligned_alike(np.zeros(n + 8, np.float32)[:n])
    with Compared(by_fours) as compared:
        record = compared.run((5, 1, 1), (256, 1, 1), x, out)
    assert bool(record["claimed"][0]) is (missing > 0)
    np.testing.assert_array_equal(out[: (n - missing) // 4 * 4], (x + np.float32(1))[: (n - missing) // 4 * 4])


ASSERTING = """def asserting(bound: i64, x: Slice[f32], out: DisjointSlice[f32]):
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        assert index.get() < bound, "beyond the bound"
        element.value = x[index.get()] + f32(1)
"""
"""In a string, as pytest rewrites the asserts of a file of tests."""

# Random kernels

HEAD = """def drawn(p: i64, q: i32, m: u32, x: Slice[f32], w: Slice[i64], out: DisjointSlice[f32]):
    index = thread.index_1d()
    i = index.get()
    acc = f32(0)
"""
EDGES = [e + d for e in (2**31, 2**32, 2**61, 2**62, 2**63, -(2**31), -(2**61), -(2**63)) for d in (-1, 0, 1)]
EDGES = [edge for edge in EDGES if -(2**63) <= edge < 2**63]
numbers = st.one_of(st.integers(-3, 3), st.integers(-200, 200), st.sampled_from(EDGES)).map(lambda n: f"i64({n})")
atoms = st.one_of(st.integers(-3, 3).map(str), st.sampled_from(["p", "i64(q)", "i64(m)", "len(x)", "len(w)"]), numbers)
lines = st.one_of(
    st.just("i"),
    st.builds("i + {}".format, atoms),
    st.builds("i - {}".format, atoms),
    st.builds("{} - i".format, atoms),
    st.builds("i * {} + {}".format, st.sampled_from(["2", "3", "-1", "-2", "7", "p"]), atoms),
    st.builds("i64(i32(i) + {})".format, st.sampled_from(["q", "i32(1)", "i32(-2)", "i32(p)"])),
    st.builds("i64(u32(i) - {})".format, st.sampled_from(["m", "u32(1)"])),
    st.builds("i64(i32(i) * q)".format),
    st.builds("i % {}".format, st.sampled_from(["3", "5"])),
    atoms,
)
# A constant negative index is a compile error.
indices = lines.map(lambda line: f"i64({line})" if line.startswith("-") else line)
comparisons = st.builds("{} {} {}".format, lines, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), atoms)
conditions = st.one_of(
    comparisons,
    comparisons,
    comparisons,
    st.builds("{} and {}".format, comparisons, comparisons),
    st.builds("{} or {}".format, comparisons, comparisons),
    st.builds("not {}".format, comparisons),
    st.builds("x[{}] > f32(0)".format, indices),
)
reads = st.one_of(
    st.builds("acc += x[{}]".format, indices),
    st.builds("acc += f32(w[{}])".format, indices),
    st.builds("acc = max(acc, x[{}])".format, indices),
)


@st.composite
def bodies(draw: Any) -> str:
    body: list[str] = []
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["read", "read", "if", "else", "return", "assert"]))
        if kind == "read":
            body.append(draw(reads))
        elif kind == "return":
            body += [f"if {draw(conditions)}:", "    return"]
        elif kind == "assert":
            body.append(f"assert {draw(conditions)}")
        else:
            body += [f"if {draw(conditions)}:", f"    {draw(reads)}"]
            body += ["else:", f"    {draw(reads)}"] if kind == "else" else []
    inside = ["element.value = acc + f32(i)"]
    if draw(st.booleans()):
        inside.insert(0, draw(reads))
    body += ["element = out.get_mut(index)", "if element is not None:", *(f"    {line}" for line in inside)]
    return HEAD + "".join(f"    {line}\n" for line in body)


counter = itertools.count()


def compiled(source: str) -> Kernel:
    name = f"<positions {next(counter)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {}
    exec(compile(source, name, "exec", dont_inherit=True), dict(globals()), namespace)
    return kernel(*namespace.values())


sizes = st.one_of(st.integers(0, 3), st.integers(0, 700), st.just(600))


@settings(
    max_examples=examples(KERNELS),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@given(source=bodies(), data=st.data())
def test_random_kernels_do_and_report_the_same_as_thread_by_thread(source: str, data: Any) -> None:
    with Compared(compiled(source)) as compared:
        event("by position" if compared.by_position else "as before")
        for _ in range(12 if compared.by_position else 0):
            block = data.draw(st.sampled_from([1, 32, 64, 96, 100, 128]))
            blocks = data.draw(st.integers(1, 9))
            rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
            x = rng.standard_normal(data.draw(sizes)).astype(np.float32)
            w = rng.integers(-5, 5, data.draw(sizes))
            out = np.zeros(data.draw(sizes), np.float32)
            p, q, m = data.draw(st.tuples(st.integers(-3, 300), st.integers(-3, 300), st.integers(0, 300)))
            compared.run((blocks, 1, 1), (block, 1, 1), p, q, m, x, w, out)


def aligned_alike(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that begins as far from a boundary of 64 bytes."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + array.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


class Compared:
    """One kernel, compiled with the loop and without; ``run`` runs both and compares what is left in memory."""

    def __init__(self, kernel: Kernel) -> None:
        self.special: Specialization = kernel.specialize()
        self.by_position = has_loop(kernel)
        self.by_loop = self._compiled()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(positions, "positions", lambda *_: None)
            self.by_thread = self._compiled()

    def __enter__(self) -> Compared:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def _compiled(self) -> CpuFunction:
        special = self.special
        code = object_code.compile_native(
            special.portable, special.parameters, special.kernel_id, host_target(), unchecked=False
        )
        return CpuFunction(0, code)

    def run(self, grid: Any, block: Any, *args: Any, first: int = 0, end: int | None = None) -> Any:
        """Runs blocks; the arrays are changed in place. Gives the fault record."""
        end = math.prod(grid) if end is None else end
        # An array that is passed twice is one buffer in both runs.
        copies = {id(arg): aligned_alike(arg) for arg in args if isinstance(arg, np.ndarray)}
        plain = self._run(self.by_thread, grid, block, [copies.get(id(arg), arg) for arg in args], first, end)
        record = self._run(self.by_loop, grid, block, list(args), first, end)
        for arg in args:
            if isinstance(arg, np.ndarray):
                assert arg.tobytes() == copies[id(arg)].tobytes()
        assert record.tobytes() == plain.tobytes()
        return record

    def _run(self, function: CpuFunction, grid: Any, block: Any, args: list[Any], first: int, end: int) -> Any:
        record = np.zeros(1, RECORD)
        values = [
            (arg.ctypes.data, arg.size) if isinstance(arg, np.ndarray) else parameter.convert(arg)
            for parameter, arg in zip(self.special.parameters, args, strict=True)
        ]
        function.bind(grid, block, 0, self.special.pack(values, record.ctypes.data))(first, end)
        return record
