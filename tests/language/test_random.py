"""Random numbers in typed kernels: Philox 4x32-10 by its published answers, and what is made of its words."""

from __future__ import annotations

import ctypes
import random as of_python
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

import oxide
from oxide import (
    CompileError,
    DisjointSlice,
    DisjointSlice2,
    Slice,
    d2h,
    f32,
    h2d,
    i32,
    i64,
    kernel,
    random,
    thread,
    tile,
    u32,
    u64,
    zeros,
)
from oxide.compiler.primitives import random_numbers
from oxide.compiler.primitives.random_numbers import philox

SEEDS = (0, 1, 0x123456789ABCDEF, 2**64 - 1)
COUNTERS = np.array([*range(40), 2**31, 2**32 - 1, 2**32, 2**40 + 3, 2**63, 2**64 - 1], np.uint64)

# The known answers that the authors publish with Random123: the counter, the key, the words.
ANSWERS = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@kernel(block=64)
def words(seed: u64, counters: Slice[u64], one: DisjointSlice[u32], four: DisjointSlice2[u32]) -> None:
    index = thread.index_1d()
    element = one.get_mut(index)
    if element is not None:
        i = index.get()
        element.value = random.bits(seed, counters[i])
        a, b, c, d = random.bits4(seed, counters[i])
        four.unchecked_mut[i, 0] = a
        four.unchecked_mut[i, 1] = b
        four.unchecked_mut[i, 2] = c
        four.unchecked_mut[i, 3] = d


@kernel(block=64)
def drawn(seed: u64, x: DisjointSlice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    uniform, normal = x.get_mut(index), y.get_mut(index)
    if uniform is not None and normal is not None:
        uniform.value = random.uniform(seed, index.get())
        normal.value = random.normal(seed, index.get())


@kernel(block=64)
def thrown(seed: u64, low: i64, high: i64, z: DisjointSlice[i64]) -> None:
    index = thread.index_1d()
    element = z.get_mut(index)
    if element is not None:
        element.value = random.integers(seed, index.get(), low, high)


@tile.kernel
def by_tiles(z: tile.Partition[f32, 1], seed: i64) -> None:
    z.store(tile.rand(seed, z.index[0] * z.tile_shape[0] + tile.arange(z.tile_shape[0])))


def expected(seed: int, counters: Any) -> np.ndarray[Any, Any]:
    key = seed % 2**32, seed >> 32
    return np.array([philox(key, (int(i) % 2**32, int(i) >> 32, 0, 0)) for i in counters], np.uint32)


def compiled(text: str, arguments: list[Any], result: Any) -> Callable[..., Any]:
    """Returns the function ``f`` of a module of IR, compiled for this machine."""
    text += "define i32 @oxide.word(i32 %word) alwaysinline {\n  ret i32 %word\n}"
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    called = ctypes.CFUNCTYPE(result, *arguments)(engine.get_function_address("f"))
    called.engine = engine  # type: ignore[attr-defined]
    return called


@pytest.mark.parametrize(("counter", "key", "answer"), ANSWERS, ids=["zeros", "ones", "pi"])
def test_philox_has_the_published_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], answer: tuple[int, ...]
) -> None:
    assert philox(key, counter) == answer
    body = random_numbers.rounds(("%c2", "%c3"))
    seed, i = key[0] | key[1] << 32, counter[0] | counter[1] << 32
    for place, word in enumerate(answer):
        head = "define i32 @f(i64 %seed, i64 %i, i32 %c2, i32 %c3) {"
        f = compiled(
            f"{head}\n{body}\n  ret i32 %w{place}\n}}", [ctypes.c_uint64] * 2 + [ctypes.c_uint32] * 2, ctypes.c_uint32
        )
        assert f(seed, i, *counter[2:]) == word


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_words_are_those_of_the_key_and_the_counter(seed: int, interpreted: bool) -> None:
    n = len(COUNTERS)
    way = words.interpret if interpreted else words
    *_, one, four = way(seed, h2d(COUNTERS), zeros(n, u32), zeros((n, 4), u32)).sync()
    found = expected(seed, COUNTERS)
    np.testing.assert_array_equal(d2h(four).sync(), found)
    np.testing.assert_array_equal(d2h(one).sync(), found[:, 0])
    if seed == 0:
        assert tuple(d2h(four).sync()[0]) == ANSWERS[0][2]


def test_uniform_numbers_are_those_of_tile_rand() -> None:
    seed, n = 0x123456789ABCDEF, 1000
    x = drawn(seed, zeros(n), zeros(n)).sync()[1]
    found = d2h(x).sync()
    bits = expected(seed, range(n))[:, 0]
    np.testing.assert_array_equal(found, (bits >> 8).astype(np.float32) * np.float32(2**-24))
    np.testing.assert_array_equal(found, by_tiles(zeros(n).partition(128), seed).first().unpartition().to_host().sync())


def box_and_muller(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Computes the normal numbers of two words in f64."""
    u = ((a.astype(np.float32).astype(np.float64) + 0.5) / 2**32).astype(np.float32).astype(np.float64)
    angle = 2 * np.pi * b.astype(np.float64) / 2**32
    return np.asarray(np.sqrt(-2 * np.log(u)) * np.cos(angle))


def normal_of_words(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Computes the normal numbers of two words by the code of kernels, on this machine."""
    *declared, body = random_numbers.NORMAL.strip("\n").rpartition("float)\n")
    text = f"{''.join(declared)}define float @f(i32 %w0, i32 %w1) {{\n{body}\n}}"
    f = compiled(text, [ctypes.c_uint32] * 2, ctypes.c_float)
    return np.array([f(int(one), int(two)) for one, two in zip(a, b, strict=True)], np.float32)


def test_normal_numbers_are_box_and_mullers_of_words_0_and_1() -> None:
    seed, n = 77, 20000
    y = d2h(drawn(seed, zeros(n), zeros(n)).sync()[2]).sync()
    a, b, *_ = expected(seed, range(n)).T
    np.testing.assert_array_max_ulp(y, box_and_muller(a, b).astype(np.float32), 4)
    np.testing.assert_array_equal(y, normal_of_words(a, b), "the same on every device")
    assert abs(y.mean()) < 0.03
    assert abs(y.std() - 1) < 0.03
    assert abs((y**3).mean()) < 0.1
    assert abs((y**4).mean() - 3) < 0.2


def test_normal_numbers_at_the_edges_of_the_words() -> None:
    ends = [0, 1, 2, 2**23, 2**24 + 1, 2**31, 2**32 - 257, 2**32 - 129, 2**32 - 1]
    eighths = [place * 2**29 + more for place in range(8) for more in (-1, 0, 1)]
    a = np.repeat(np.array(ends, np.uint32), len(eighths))
    b = np.tile(np.array(eighths, np.int64).astype(np.uint32), len(ends))
    found, exact = normal_of_words(a, b), box_and_muller(a, b)
    assert np.abs(found).max() <= 6.77
    np.testing.assert_allclose(found, exact, rtol=4 * 2.0**-23, atol=1e-14)


@pytest.mark.parametrize("options", [{"fastmath": True}, {"fma": False}, {}], ids=["fastmath", "no fma", "interpreted"])
def test_every_way_to_run_a_kernel_gives_the_same_numbers(options: dict[str, Any]) -> None:
    other = kernel(block=64, **options)(drawn.function) if options else drawn.interpret
    _, *found = other(5, zeros(70), zeros(70)).sync()
    _, *plain = drawn(5, zeros(70), zeros(70)).sync()
    for one, two in zip(found, plain, strict=True):
        np.testing.assert_array_equal(d2h(one).sync(), d2h(two).sync())


BOUNDS = [(0, 6), (-3, 9), (5, 6), (5, 5), (6, 5), (0, 2**40 + 1), (-(2**63), 2**63 - 1), (2**63 - 1, -(2**63))]


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_integers_are_the_upper_half_of_a_product(low: int, high: int, interpreted: bool) -> None:
    n = 60 if interpreted else 3000
    way = thrown.interpret if interpreted else thrown
    found = way(9, low, high, zeros(n, i64)).last().to_host().sync()
    a, b, *_ = expected(9, range(n)).T.astype(object)
    assert found.tolist() == [low + ((x + (y << 32)) * max(high - low, 0) >> 64) for x, y in zip(a, b, strict=True)]
    if (low, high) == (0, 6) and not interpreted:
        assert (np.abs(np.bincount(found, minlength=6) - n / 6) < 5 * np.sqrt(n / 6)).all()


def test_seeds_and_counters_are_integers_of_any_type() -> None:
    @kernel(block=32)
    def k(seed: i32, x: DisjointSlice[u32], y: DisjointSlice[u32]) -> None:
        index = thread.index_1d()
        a, b = x.get_mut(index), y.get_mut(index)
        if a is not None and b is not None:
            a.value = oxide.random.bits(seed, thread.thread_idx.x)
            b.value = random.bits(2**63 + 5, -1)

    _, x, y = k(-7, zeros(32, u32), zeros(32, u32)).sync()
    np.testing.assert_array_equal(d2h(x).sync(), expected(2**64 - 7, range(32))[:, 0])
    assert (d2h(y).sync() == expected(2**63 + 5, [2**64 - 1])[0, 0]).all()


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("random.uniform(x, 0)", r"random\.uniform takes integers, not f32; convert it, as in i64\(x\)"),
        ("random.bits(0, True)", r"random\.bits takes integers, not bool_"),
        ("random.normal(0)", r"random\.normal takes 2 arguments, by position"),
        ("random.integers(0, 1, 2.0, 3)", r"random\.integers takes integers, not f64"),
        ("random.integers(0, 1, 0, wide)", r"random\.integers takes bounds that an i64 holds, not u64"),
        (
            "of_python.random()",
            r"of_python\.random has a state, .* use oxide\.random, as in random\.uniform\(seed, i\)",
        ),
    ],
)
def test_wrong_arguments_are_refused(expression: str, problem: str, tmp_path: Any) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(
        f"@kernel\ndef k(x: f32, wide: u64, y: DisjointSlice[f32]):\n    y.unchecked_mut[0] = {expression}\n"
    )
    names = {**vars(oxide), "random": random, "of_python": of_python}
    exec(compile(path.read_text(), str(path), "exec"), names)
    with pytest.raises(CompileError, match=problem):
        names["k"].ptx()


def test_outside_of_kernels_it_is_refused() -> None:
    with pytest.raises(TypeError, match=r"random\.bits has a meaning only inside a @kernel"):
        random.bits(1, 2)
    assert "random" not in oxide.__all__, "a star import must not replace Python's module"
    assert oxide.random is random
