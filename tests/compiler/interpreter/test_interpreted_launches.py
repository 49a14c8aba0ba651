"""Interpreted launches give what compiled ones give: results, faults, and refusals before they run."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest

import oxide
from oxide import (
    AtomicSlice,
    BarrierError,
    BoundsError,
    DisjointSlice,
    DisjointSlice2,
    DynamicSharedArray,
    KernelAssertionError,
    KernelFault,
    LaunchConfig,
    LaunchError,
    LocalArray,
    SharedArray,
    Slice,
    Slice2,
    Tiles,
    bf16,
    d2h,
    device,
    f16,
    f32,
    f64,
    full,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    u8,
    u32,
    u64,
    warp,
    zeros,
)

ROOT = Path(__file__).parents[3]
T = TypeVar("T", f32, f64)
RNG = np.random.default_rng(5)
WEIGHTS = np.array([0.25, 0.5, 0.125], np.float32)


class Settings(NamedTuple):
    rows: i32
    factor: f32


def both(launch: Any, arguments: Callable[[], tuple[Any, ...]], place: int = -1) -> tuple[Any, Any]:
    """Returns the bits of an argument after a compiled and after an interpreted launch."""

    def bits(way: Any) -> Any:
        found = way(*arguments()).map(lambda results: results[place]).and_then(d2h).sync()
        return found.view(np.uint8).tolist()

    return bits(launch), bits(launch.interpret)


@device
def polynomial(x, a: f32):
    return a * x * x + x / 3 - 0.5


@kernel(block=32)
def arithmetic(x: Slice[f32], n: Slice[i32], y: DisjointSlice[f64]):
    index = thread.index_1d()
    i = index.get()
    element = y.get_mut(index)
    if element is not None:
        total = 0
        while total < 5:
            total = total + 2
        wrapped = u8(n[i] * 77) + i32(x[i] * 1e12)
        local = LocalArray(3, f32)
        for place, weight in enumerate(WEIGHTS):
            local[place] = weight * x[i] + polynomial(x[i], n[i])
        scale = 2 if n[i] % 3 == 1 else 0.5
        element.value = local[0] * scale + local[1] + local[2] - wrapped // 7 + total % -3
        element.value += math.exp(x[i]) * math.sin(f64(x[i])) + (x[i] * x[i]) ** 2.5 + (n[i] << 40)
        element.value -= f16(x[i]) * bf16(x[i]) + abs(i32(-5)) + min(x[i], n[i]) + round(x[i])


def test_arithmetic_has_the_same_bits() -> None:
    x = (RNG.standard_normal(70) * 3).astype(np.float32)
    n = RNG.integers(-(2**31), 2**31, 70).astype(np.int32)
    compiled, interpreted = both(arithmetic, lambda: (h2d(x), h2d(n), zeros(70, f64)))
    assert compiled == interpreted


@kernel(block=32)
def with_large_arrays(x: Slice[i32], y: DisjointSlice[i32]):
    rows = SharedArray((32, 500), i32, alignment=1024)
    more = SharedArray((32, 500), i32, 128)
    index = thread.index_1d()
    here = thread.thread_idx.x
    rows[here, here] = x[index.get()]
    more[here, 499] = i32(here)
    thread.sync_threads()
    element = y.get_mut(index)
    if element is not None:
        element.value = rows[31 - here, 31 - here] - more[here, 499]


def test_arrays_beyond_48_kib_have_the_same_values() -> None:
    compiled, interpreted = both(with_large_arrays, lambda: (h2d(np.arange(64, dtype=np.int32)), zeros(64, i32)))
    assert compiled == interpreted


@kernel
def cooperating(x: Slice[i32], counts: AtomicSlice[u32], y: DisjointSlice[i64]):
    index = thread.index_1d()
    here = thread.thread_idx.x
    tile = DynamicSharedArray(i32)
    tile[here] = x[index.get()]
    votes = thread.sync_threads_count(x[index.get()] > 0)
    value = tile[thread.block_dim.x - 1 - here]
    total = warp.reduce_add(value)
    above = warp.shuffle_down(value, 1)
    lanes = warp.ballot(value > above)
    counts.fetch_add(value & 7, 1)
    element = y.get_mut(index)
    if element is not None:
        element.value = i64(total) * 1000 + above + votes + i64(lanes) * (1 << 20)


@pytest.mark.slow
@pytest.mark.parametrize("block", [1, 31, 64])
def test_barriers_warps_and_atomics_give_the_same(block: int) -> None:
    x = RNG.integers(-1000, 1000, 2 * block).astype(np.int32)
    launch = cooperating[LaunchConfig(2, block, shared_mem_bytes=4 * block)]
    for place in (1, 2):
        compiled, interpreted = both(launch, lambda: (h2d(x), zeros(8, u32), zeros(2 * block, i64)), place)
        assert compiled == interpreted


@kernel(block=(4, 4))
def of_two_axes(settings: Settings, x: Slice2[f32], y: DisjointSlice2[f32]):
    element = y.get_mut(thread.index_2d(y.shape[1]))
    row, col = thread.index_2d_row(), thread.index_2d_col()
    if element is not None and row < settings.rows:
        element.value = x[row, col] * settings.factor + x[row, 0]


def test_slices_of_two_axes_and_tuples_give_the_same() -> None:
    x = RNG.standard_normal((6, 5)).astype(np.float32)
    compiled, interpreted = both(of_two_axes, lambda: (Settings(4, 1.5), h2d(x), zeros((6, 5))))
    assert compiled == interpreted


@kernel(block=2)
def generic(f: Callable[[T], T], x: Slice[T], y: DisjointSlice[T, Tiles(2)]):
    index = thread.index_1d()
    tile = y.get_mut(index)
    if tile is not None:
        for place in range(len(tile)):
            tile[place] = f(x[index.get() * 2 + place])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_that_capture_numbers_and_tiles_give_the_same(dtype: type) -> None:
    for factor in (1.5, 3):
        x = RNG.standard_normal(8).astype(dtype)
        compiled, interpreted = both(
            generic,
            lambda: (lambda a: a * factor + 0.1, h2d(x), zeros(8, dtype)),  # noqa: B023
        )
        assert compiled == interpreted


@device
def chosen(n: u64):
    number = 1
    if n > 3:
        number = n
    return number, 0 if n else number


@kernel(block=1)
def joined(n: u64, x: Slice[f32], y: DisjointSlice2[f64]):
    if thread.index_1d().get() == 0:
        number = 1
        if n > 3:
            number = n
        y.scatter[0, 0] = 1 if number < 2 else 0
        y.scatter[0, 1] = number
        y.scatter[0, 2] = f32(number) * 0.5 + max(number, 5)
        copied, other = number, n
        y.scatter[0, 3] = copied + f64(other)
        number >>= 1
        y.scatter[0, 4] = chosen(n)[0] + x[0] * number
        total = 1
        for _ in range(3):
            total = total + n
        y.scatter[0, 5] = total


@pytest.mark.parametrize("n", [2, 5, 2**63, 2**64 - 3])
def test_a_variable_of_several_types_is_read_in_the_type_that_they_have_in_common(n: int) -> None:
    compiled, interpreted = both(joined, lambda: (n, full(1, 0.1), zeros((1, 6), f64)))
    assert compiled == interpreted


@kernel(block=1)
def conditional(n: i64, m: u8, v: f64, w: f32, y: DisjointSlice2[f64]):
    if thread.index_1d().get() == 0:
        y.scatter[0, 0] = i64(n if n > 3 else v) - n
        y.scatter[0, 1] = i64(n or v) - n
        y.scatter[0, 2] = i64((m and n) or w) - n
        y.scatter[0, 3] = i64((n if m else w) if n else (m if n > 7 else v)) - n
        number = f64(n)
        y.scatter[0, 4] = i64(number if v < 100 else v) - n
        if v > 100:
            number = v
        y.scatter[0, 5] = i64(number) - n
        y.scatter[0, 6] = (m or w) * 3 + (n if m else 2.5)
        print(n if n > 3 else v, m or w, n and v, number if m else n)


@pytest.mark.parametrize("n", [2**53 + 1, 0])
@pytest.mark.parametrize("m", [200, 0])
@pytest.mark.parametrize("v", [1.5, 150.5])
def test_the_branches_of_a_conditional_expression_have_one_type(
    n: int, m: int, v: float, capfd: pytest.CaptureFixture[str]
) -> None:
    def arguments() -> tuple[Any, ...]:
        return n, m, v, 0.3, zeros((1, 7), f64)

    compiled, interpreted = both(conditional[1, 1], arguments)
    assert compiled == interpreted
    first, second = capfd.readouterr().out.splitlines()
    assert first == second


@kernel(block=1)
def views_of_unsigned_numbers(row: u64, count: u64, x: Slice2[f32], y: DisjointSlice[f32]):
    element = y.get_mut(thread.index_1d())
    if element is not None:
        if x.row(row) is not None:
            element.value += 1
        if x.col(row) is not None:
            element.value += 2
        if x.tile(0, row, count, 1) is not None:
            element.value += 4


@pytest.mark.parametrize("word", [2**63, 2**64 - 1, 1])
def test_a_u64_past_the_words_of_views_is_negative(word: int) -> None:
    compiled, interpreted = both(views_of_unsigned_numbers, lambda: (word, word, zeros((2, 2)), zeros(1)))
    assert compiled == interpreted


def faults(launch: Any, *arguments: Any) -> tuple[KernelFault, KernelFault]:
    """Returns the fault of a compiled and of an interpreted launch."""
    found = []
    for way in (launch, launch.interpret):
        with pytest.raises(KernelFault) as raised:
            way(*arguments).sync()
        found.append(raised.value)
    return found[0], found[1]


@kernel(block=4)
def reads_outside(x: Slice[f32], y: DisjointSlice[f32]):
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get() + 3]


@kernel(block=4)
def reads_a_shared_array_outside(y: DisjointSlice[f32]):
    tile = SharedArray((2, 3), f32)
    tile[0, 0] = 1
    thread.sync_threads()
    element = y.get_mut(thread.index_1d())
    if element is not None and thread.thread_idx.x == 3:
        element.value = tile[1, thread.thread_idx.x + 2]


@kernel(block=1)
def reads_a_tile_of_unsigned_size(x: Slice2[f32], y: DisjointSlice[f32]):
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = len(x.tile(0, 1, u64(1), u64(0xFFFFFFFFFFFFFFFE)))


@kernel(block=4)
def asserts(y: DisjointSlice[f32]):
    index = thread.index_1d()
    assert index.get() != 2, "not two"


@kernel(block=4)
def meets_at_two_barriers(y: DisjointSlice[f32]):
    if thread.thread_idx.x < 2:
        thread.sync_threads()
    else:
        thread.sync_threads()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launch", "arguments", "kind"),
    [
        (reads_outside, (zeros(6), zeros(4)), BoundsError),
        (reads_a_shared_array_outside, (zeros(4),), BoundsError),
        (reads_a_tile_of_unsigned_size, (zeros((2, 3)), zeros(1)), BoundsError),
        (asserts, (zeros(4),), KernelAssertionError),
        (meets_at_two_barriers, (zeros(4),), BarrierError),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_faults_are_the_same(launch: Any, arguments: tuple[Any, ...], kind: type[KernelFault]) -> None:
    boxes = [argument.sync() for argument in arguments]
    compiled, interpreted = faults(launch, *boxes)
    assert type(compiled) is type(interpreted) is kind
    assert str(compiled) == str(interpreted)


def test_the_launch_is_lazy_and_yields_its_arguments() -> None:
    box = zeros(4).sync()
    x = h2d(np.arange(8, dtype=np.float32)).sync()
    operation = reads_outside[1, 4].interpret(x, box)
    assert d2h(box).sync().tolist() == [0, 0, 0, 0]
    results = operation.sync()
    assert results[1] is box
    assert d2h(box).sync().tolist() == [3, 4, 5, 6]


def test_arguments_are_checked_as_a_launchs_are() -> None:
    with pytest.raises(oxide.ArgumentError, match="expected a device buffer of float32"):
        reads_outside.interpret(np.zeros(4, np.float32), zeros(4))
    with pytest.raises(LaunchError, match="needs a launch with y and z of 1"):
        reads_outside[(1, 2), 4].interpret(zeros(6).sync(), zeros(4).sync())


def test_an_untyped_kernel_is_refused() -> None:
    @kernel
    def untyped(x, y):
        y[0] = x[0]

    with pytest.raises(LaunchError, match="numba-cuda's semantics"):
        untyped.interpret(zeros(1), zeros(1))


@kernel(block=1)
def product(x: Slice[f32], y: DisjointSlice[f64]):
    element = y.get_mut(thread.index_1d())
    if element is not None:
        factor = 0.1
        element.value = math.prod((x[0], factor))


def test_what_cannot_be_interpreted_is_refused_with_its_line() -> None:
    boxes = zeros(2).sync(), zeros(1, f64).sync()
    line = product.function.__code__.co_firstlineno + 5
    with pytest.raises(LaunchError, match=rf"{Path(__file__).name}:{line}: math.prod"):
        product.interpret(*boxes).sync()


@device
def calls_itself(n: i32) -> i32:
    return 1 if n <= 1 else n * calls_itself(n - 1)


@kernel(block=1)
def recursive(y: DisjointSlice[i32]):
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = calls_itself(5)


@device
def indexes_with_a_float(x: Slice[f32], at: f32) -> f32:
    first = x[0]
    return first + x[at]


@kernel(block=1)
def mistaken(x: Slice[f32], y: DisjointSlice[f32]):
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = indexes_with_a_float(x, 1.0)


@kernel(block=1)
def ill_typed(x: Slice[f32], y: DisjointSlice[i32]):
    element = y.get_mut(thread.index_1d())
    if element is not None:
        first = x[0] + 1
        element.value = first


@pytest.mark.parametrize(
    ("mistake", "arguments"),
    [(recursive, (zeros(1, i32),)), (mistaken, (zeros(1), zeros(1))), (ill_typed, (zeros(1), zeros(1, i32)))],
    ids=lambda value: getattr(value, "name", ""),
)
def test_errors_of_typing_are_the_same(mistake: Any, arguments: tuple[Any, ...]) -> None:
    boxes = [argument.sync() for argument in arguments]
    said = []
    for way in (mistake.interpret, mistake):
        with pytest.raises(oxide.CompileError) as raised:
            way(*boxes).sync()
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_a_graph_is_refused() -> None:
    boxes = zeros(8).sync(), zeros(4).sync()
    with pytest.raises(LaunchError, match="cannot be interpreted in a graph"):
        reads_outside.interpret(*boxes).graph()


def test_another_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = zeros(8).sync(), zeros(4).sync()
    operation = reads_outside.interpret(*boxes)
    monkeypatch.setattr(type(oxide.devices()[0].driver), "name", "cuda")
    with pytest.raises(LaunchError, match="set OXIDE_DEVICE=cpu"):
        operation.sync()


def test_a_launch_past_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_INTERPRET_LIMIT", "5")
    with pytest.raises(LaunchError, match="OXIDE_INTERPRET_LIMIT"):
        reads_outside.interpret(zeros(8).sync(), zeros(4).sync()).sync()


@kernel(block=1)
def prints(x: Slice[f32]):
    print("x", x[0], 3, x[0] > 1, f"{x[0]:.2g}|{7:>3}")


def test_print_writes_what_a_compiled_kernel_prints(capfd: pytest.CaptureFixture[str]) -> None:
    box = h2d(np.array([2.5], np.float32)).sync()
    prints[1, 1](box).sync()
    compiled = capfd.readouterr().out
    prints[1, 1].interpret(box).sync()
    assert capfd.readouterr().out == compiled != ""


def test_the_variable_has_every_launch_interpreted(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np\n"
        "from oxide import *\n"
        "seen = []\n"
        "def breakpointhook():\n"
        "    seen.append(1)\n"
        "@kernel(block=4)\n"
        "def k(y: DisjointSlice[f32]):\n"
        "    element = y.get_mut(thread.index_1d())\n"
        "    breakpoint()\n"
        "    if element is not None:\n"
        "        element.value = 2\n"
        "import sys\n"
        "sys.breakpointhook = breakpointhook\n"
        "print(k(zeros(3)).last().and_then(d2h).sync(), len(seen))\n"
    )
    environment = {"PYTHONPATH": str(ROOT), "OXIDE_DEVICE": "cpu", "OXIDE_INTERPRET": "1", "HOME": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.stdout == "[2. 2. 2.] 4\n", ran.stderr
