"""Arithmetic of each pair of scalar types in tile kernels, beside NumPy 2, by the table of ``test_numbers``."""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import zlib
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import CompileError, d2h, h2d, tile, zeros
from oxide.compiler.tile import tile_source
from oxide.language.types import SCALARS
from tests.kernels.test_numbers import (
    ARITHMETIC,
    BITWISE,
    COMPARISONS,
    EXTREMES,
    FLOATS,
    INTEGERS,
    MIXED,
    PAIRS,
    integer_result,
    pairs,
    wide,
)

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU device, every second test runs the code of a GPU, thread by thread."""
    if os.environ["OXIDE_DEVICE"] == "cpu":
        monkeypatch.setattr(tile_source, "simulated", (0, 90)[zlib.crc32(request.node.name.encode()) % 2])


@functools.cache
def made(body: str, first: str, second: str, results: tuple[str, ...], extra: str = "") -> Any:
    """Returns a kernel that runs the statements of ``body`` on tiles ``a`` and ``b``. It has a partition ``z0``, ``z1``
    and so on for each of the ``results``."""
    outputs = ", ".join(f"z{number}: tile.Partition[{kind}, 1]" for number, kind in enumerate(results))
    source = f"""{extra}
@tile.kernel
def k({outputs}, x: tile.Tensor[{first}, 1], y: tile.Tensor[{second}, 1], n: i32):
    a, b = tile.load_like(x, z0), tile.load_like(y, z0)
"""
    source += "".join(f"    {line}\n" for line in body.splitlines())
    name = f"<numbers of tiles {hash(source)}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    namespace: dict[str, Any] = {name: getattr(oxide, name) for name in oxide.__all__} | {"tile": tile, "np": np}
    exec(compile(source, name, "exec"), namespace)
    return namespace["k"]


def run(k: Any, results: tuple[str, ...], a: Array, b: Array, n: int = 3) -> list[Array]:
    length = 1 << (len(a) - 1).bit_length()
    outputs = [zeros(len(a), SCALARS[kind]).partition(length) for kind in results]
    boxes = k(*outputs, h2d(a), h2d(b), n).sync()[: len(results)]
    return [d2h(each.unpartition()).sync() for each in boxes]


def stored(expressions: list[str]) -> str:
    return "\n".join(f"z{number}.store({each})" for number, each in enumerate(expressions))


def computed(first: str, second: str, result: str, expressions: list[str], a: Array, b: Array) -> list[Array]:
    results = (result,) * len(expressions)
    return run(made(stored(expressions), first, second, results), results, a, b)


def refused(body: str, first: str = "i32", second: str = "i32", result: str = "i32", extra: str = "") -> str:
    """Returns the first line of the error of a kernel, without its place."""
    a = np.zeros(4, SCALARS[first].dtype)
    with pytest.raises(CompileError) as raised:
        run(made(body, first, second, (result,), extra), (result,), a, a.astype(SCALARS[second].dtype))
    return str(raised.value).splitlines()[0].partition(": ")[2]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_integers_have_numpys_common_type_and_wrap_in_it(first: str, second: str) -> None:
    common = integer_result(first, second)
    a, b = pairs(first, second)
    if common is None:
        for symbol in (*ARITHMETIC, *BITWISE):
            assert refused(f"z0.store(a {symbol} b)", first, second, "i64") == (
                f"{first} {symbol} {second}: no integer type holds both; convert one, as in i64(x) or u64(x)"
            )
        assert "where" in refused("z0.store(tile.where(a < b, a, b))", first, second, "i64")
    else:
        operators = ARITHMETIC | BITWISE
        texts = [f"a {symbol} b" for symbol in operators]
        texts += [f"tile.{name}imum(a, b)" for name in EXTREMES] + [f"{name}(a, b)" for name in EXTREMES]
        texts += ["tile.where(a < b, a, b)"]
        functions = [*operators.values(), *EXTREMES.values(), *EXTREMES.values(), np.minimum]
        with np.errstate(all="ignore"):
            expected = [function(a, b) for function in functions]
        for text, found, right in zip(texts, computed(first, second, wide(common), texts, a, b), expected, strict=True):
            np.testing.assert_array_equal(found, right, text)
    texts = [f"a {symbol} b" for symbol in COMPARISONS]
    for text, found in zip(texts, computed(first, second, "bool_", texts, a, b), strict=True):
        right = [eval(text, {"a": int(one), "b": int(two)}) for one, two in zip(a, b, strict=True)]
        np.testing.assert_array_equal(found, right, text)
    (found,) = computed(first, second, "f64", ["a / b"], a, b)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, a.astype(np.float64) / b.astype(np.float64))


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), list(itertools.product(("i8", "u8", "i32", "u32", "u64"), ("i8", "u64"))))
def test_a_shift_has_the_type_of_its_left_operand(first: str, second: str) -> None:
    a, b = pairs(first, second)
    bits = SCALARS[first].bits
    texts = ["a << b", "a >> b", "a << 70", "a >> -1", "a << 3"]
    counts = [b.tolist(), b.tolist(), [70] * len(a), [-1] * len(a), [3] * len(a)]
    for text, count, found in zip(
        texts, counts, computed(first, second, wide(SCALARS[first].dtype), texts, a, b), strict=True
    ):
        expected = []
        for one, two in zip(a.tolist(), count, strict=True):
            if 0 <= two < bits:
                value = one << two if "<<" in text else one >> two
            else:
                value = -1 if ">>" in text and one < 0 else 0
            expected.append(SCALARS[first](np.array(value % 2**64, np.uint64).astype(SCALARS[first].dtype)))
        np.testing.assert_array_equal(found, np.array(expected, SCALARS[first].dtype), text)


@pytest.mark.slow
@pytest.mark.parametrize("name", INTEGERS)
def test_a_power_has_the_type_of_its_base(name: str) -> None:
    a, b = pairs(name, "i16")
    texts = ["a ** b", "a ** 3", "a ** 0", "a ** 1", "a ** 21", "a ** -1", "1 ** b.astype(a.dtype)"]
    counts = [b, *(np.full_like(b, power) for power in (3, 0, 1, 21, -1)), b]
    for text, count, found in zip(
        texts, counts, computed(name, "i16", wide(SCALARS[name].dtype), texts, a, b), strict=True
    ):
        base = np.ones_like(a) if text.startswith("1") else a
        count = b.astype(a.dtype) if text.startswith("1") else count
        expected = [0 if two < 0 else pow(int(one), int(two), 2**64) for one, two in zip(base, count, strict=True)]
        np.testing.assert_array_equal(found, np.array(expected, np.uint64).astype(SCALARS[name].dtype), text)


@pytest.mark.slow
@pytest.mark.parametrize("name", INTEGERS)
def test_signs_keep_the_type(name: str) -> None:
    a, b = pairs(name, "u8")
    expected = {"-a": np.negative(a), "abs(a)": np.abs(a), "tile.abs(a)": np.abs(a), "~a": ~a, "+a": a}
    for (text, right), found in zip(
        expected.items(), computed(name, "u8", wide(SCALARS[name].dtype), list(expected), a, b), strict=True
    ):
        np.testing.assert_array_equal(found, right, text)


@pytest.mark.slow
@pytest.mark.parametrize("name", INTEGERS)
def test_a_literal_takes_the_type_that_it_meets(name: str) -> None:
    a, b = pairs(name, "u8")
    low, high = SCALARS[name].limits
    bits = SCALARS[name].bits
    beyond = -7 if name == "u64" else high + 7
    found, moved, wrapped = computed(
        name, "u8", wide(SCALARS[name].dtype), ["a * 3 + 1", "1 << a", f"a + {name}({beyond})"], a, b
    )
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, a * 3 + 1)
        np.testing.assert_array_equal(wrapped, a + np.array(beyond % 2**64, np.uint64).astype(a.dtype))
    expected = [SCALARS[name](1 << int(each)) if 0 <= each < bits else SCALARS[name](0) for each in a]
    np.testing.assert_array_equal(moved, np.array(expected, SCALARS[name].dtype))
    for value in (low - 1, high + 1):
        if not -(2**63) <= value < 2**64:
            continue
        assert refused(f"z0.store(a + {value})", name, "u8", "f64") == (
            f"{name} + {value}: {value} does not fit in {name}, which holds {low} to {high}; convert the other operand "
            f"to a wider type, or write {name}({value}), which wraps"
        )
        texts = [f"a {symbol} {value}" for symbol in COMPARISONS] + [f"{value} {symbol} a" for symbol in COMPARISONS]
        for text, found in zip(texts, computed(name, "u8", "bool_", texts, a, b), strict=True):
            np.testing.assert_array_equal(found, [eval(text, {"a": int(each)}) for each in a], text)


@pytest.mark.parametrize(("real", "whole"), MIXED)
def test_floats_with_integers(real: str, whole: str) -> None:
    """NumPy's common type, but that narrow floats keep theirs."""
    a, b = pairs(real, whole)
    common = np.dtype(np.float16) if real == "f16" else np.result_type(a, b)
    texts = [f"a {symbol} b" for symbol in ("+", "-", "*", "/")] + ["tile.where(a < 0, a, b)"]
    for text, found in zip(texts, computed(real, whole, "f64", texts, a, b), strict=True):
        with np.errstate(all="ignore"):
            names = {"a": a.astype(common), "b": b.astype(common), "tile": np}
            expected = eval(text, names)
        np.testing.assert_array_equal(found, expected, text)
    for (symbol, function), found in zip(
        COMPARISONS.items(),
        computed(real, whole, "bool_", [f"a {symbol} b" for symbol in COMPARISONS], a, b),
        strict=True,
    ):
        np.testing.assert_array_equal(found, function(a, b), symbol)


@pytest.mark.parametrize(("one", "two", "result"), [("f16", "bf16", "f32"), ("f8e4m3", "f8e5m2", "f32"),
                                                     ("bf16", "i64", "bf16"), ("f8e4m3", "u64", "f8e4m3"),
                                                     ("bf16", "f32", "f32"), ("f16", "f64", "f64")])  # fmt: skip
def test_narrow_floats(one: str, two: str, result: str) -> None:
    body = f"assert (a + b).dtype == {result}\nz0.store(a + b)"
    a, b = np.arange(4).astype(SCALARS[one].dtype), np.arange(4).astype(SCALARS[two].dtype)
    (found,) = run(made(body, one, two, (result,)), (result,), a, b)
    np.testing.assert_array_equal(found.astype(np.float32), 2 * np.arange(4))


def test_bools() -> None:
    a, b = pairs("bool_", "bool_")
    operators = BITWISE | {"< ": np.less, "== ": np.equal}
    texts = [*[f"a {symbol} b" for symbol in operators], "~a", "tile.minimum(a, b)", "tile.maximum(a, b)"]
    expected = [*[function(a, b) for function in operators.values()], ~a, a & b, a | b]
    for text, found, right in zip(texts, computed("bool_", "bool_", "bool_", texts, a, b), expected, strict=True):
        np.testing.assert_array_equal(found, right, text)
    words = "of bools: write &, | or ^ for logic, or convert to count, as in i32(x)"
    for symbol in (*ARITHMETIC, "<<", ">>", "**"):
        assert refused(f"z0.store(a {symbol} b)", "bool_", "bool_", "i64") == f"{symbol} {words}"
    for text, shown in (("-a", "-"), ("+a", "+"), ("tile.abs(a)", "abs"), ("abs(a)", "abs")):
        assert refused(f"z0.store({text})", "bool_", "bool_", "i64") == f"{shown} {words}"
    (found,) = computed("bool_", "bool_", "i64", ["a.sum() + b.sum()"], a, b)
    assert (found == 4).all()
    for name in INTEGERS:
        a, b = pairs("bool_", name)
        with np.errstate(all="ignore"):
            (found,) = computed("bool_", name, wide(SCALARS[name].dtype), ["a + b"], a, b)
            np.testing.assert_array_equal(found, a + b)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*INTEGERS, "bool_"])
def test_sums_of_integers_have_64_bits(name: str) -> None:
    a, b = pairs(name, "u8")
    kind = "u64" if name.startswith("u") else "i64"
    total, running = computed(name, "u8", kind, ["tile.sum(a)", "tile.cumsum(a)"], a, b)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(total, a.astype(SCALARS[kind].dtype).sum())
        np.testing.assert_array_equal(running, np.cumsum(a, dtype=SCALARS[kind].dtype))


PLACES = {
    "z0.index[0]": 0, "tile.program_id(0)": 0, "tile.num_programs(0)": 1, "x.shape[0]": 4, "z0.shape[0]": 4, "k": 2,
    "tile.cdiv(x.shape[0], 3)": 2, "2 ** k": 4, "1 << k": 4, "-k": -2, "k % 2 + 1": 1,
}  # fmt: skip
"""Places with their values, where ``k`` is the counter of a loop."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["i8", "u8", "i32", "u32", "i64", "f16", "f32", "f64"])
def test_places_are_i64_to_integers_and_python_integers_to_floats(name: str) -> None:
    result = name if name.startswith("f") else "i64"
    numbers = range(len(PLACES))
    lines = [f"t{number} = tile.zeros({4}, {result})" for number in numbers]
    lines += ["for k in range(2, n):"]
    lines += [f"    t{number} = a * ({place})" for number, place in enumerate(PLACES)]
    lines += [f"    assert t{number}.dtype == {result}" for number in numbers]
    low, high = (0, 100) if name.startswith("f") else SCALARS[name].limits
    a = np.array([low, 1, high // 2, high], SCALARS[name].dtype)
    results = (result,) * len(PLACES)
    body = "\n".join([*lines, stored([f"t{number}" for number in numbers])])
    outputs = run(made(body, name, "i32", results), results, a, a.astype(np.int32))
    for (place, value), found in zip(PLACES.items(), outputs, strict=True):
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(found, a.astype(SCALARS[result].dtype) * value, place)


def test_a_place_does_not_meet_a_u64() -> None:
    assert refused("z0.store(a + z0.index[0])", "u64", result="u64") == (
        "u64 + i64: no integer type holds both; convert one, as in i64(x) or u64(x)"
    )
    a = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    found, other = computed("u64", "i32", "bool_", ["a > x.shape[0] - 4", "x.shape[0] - 5 > a"], a, a.astype(np.int32))
    np.testing.assert_array_equal(found, a > 0)
    assert not other.any()


def test_a_variable_that_holds_a_python_integer_takes_the_type_that_it_meets() -> None:
    body = "t = 1\nwhile t < n:\n    t = t * 2\nassert (a + t).dtype == u8\nz0.store(a + t)"
    a = np.array([0, 1, 250, 255], np.uint8)
    (found,) = run(made(body, "u8", "i32", ("u8",)), ("u8",), a, a.astype(np.int32), 8)
    np.testing.assert_array_equal(found, a + np.uint8(8))


@pytest.mark.slow
@pytest.mark.parametrize("target", [*INTEGERS, *FLOATS])
def test_stores_narrow_as_same_kind(target: str) -> None:
    for source in (*INTEGERS, *FLOATS, "bool_"):
        one, two = SCALARS[source], SCALARS[target]
        a, b = pairs(source, "u8")
        if one.kind == "f" and two.kind != "f":
            why = f"the value is {source}; convert it, as in {target}(x)"
        elif one.kind == "i" and two.kind == "u":
            why = f"the value is {source}, which may be negative; convert it, as in {target}(x)"
        else:
            (found,) = computed(source, "u8", target, ["a"], a, b)
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(found, a.astype(two.dtype), source)
            continue
        assert refused("z0.store(a)", source, "u8", target) == f"store: z0 has elements of {target} and {why}"
        assert refused("tile.scatter(z0, tile.arange(4), a)", source, "u8", target) == (
            f"scatter: z0 has elements of {target} and {why}"
        )
    if two.kind in "iu" and target != "u64":
        low, high = two.limits
        why = f"the value is {high + 1}, which does not fit; {target} holds {low} to {high}, and {target}({high + 1})"
        text = refused(f"z0.store({high + 1})", result=target)
        assert text == f"store: z0 has elements of {target} and {why} wraps"


def test_explain_lists_integers_that_narrow() -> None:
    helper = "@tile.function\ndef f(x: i8) -> i8:\n    return x\n"
    body = """total: u16 = 0
for k in range(n):
    total = total + a
z0.store(a)
tile.scatter(z0, tile.arange(4), f(a))
z0.store(z0.index[0] + 7)
z1.store(a)"""
    text = made(body, "i32", "i32", ("i16", "i64"), helper).explain(z0=4, z1=4)
    assert [line for line in text.splitlines() if "may wrap" in line] == [
        f"line {line}: {target} takes {value} as {result}, which may wrap; write {result}(…) where that is meant"
        for line, target, value, result in (
            (10, "total", "i32", "u16"),
            (11, "an element of z0", "i32", "i16"),
            (12, "parameter x of f", "i32", "i8"),
            (13, "an element of z0", "i64", "i16"),
        )
    ]


def test_a_variable_has_one_type() -> None:
    text = refused("if n > 3:\n    t = a\nelse:\n    t = b\nz0.store(t)", "i32", "i16")
    assert text == (
        "t is i32 in line 6 and i16 in line 8, and both reach what follows: a variable has one type; convert one, or "
        "annotate it, as in t: i16 = …"
    )
    text = refused("t = a\nfor k in range(n):\n    t = t + k\nz0.store(t)")
    assert text == (
        "t is i32 in line 5 and i64 in line 7, and both reach what follows: a variable has one type; convert one, or "
        "annotate it, as in t: i64 = …"
    )
    text = refused("t = z0.index[0]\nif n > 3:\n    t = n\nz0.store(a + t)")
    assert text.startswith("t is i64 in line 5 and i32 in line 7, and both reach what follows")
    text = refused("t = a\nwhile n > 100:\n    t = 0.5\nz0.store(t)")
    assert text.startswith("t is i32 in line 5 and f64 in line 7, and both reach what follows")


@pytest.mark.parametrize("name", ["i8", "u8", "i16", "u16"])
def test_a_sum_that_begins_as_a_literal_has_no_narrow_type(name: str) -> None:
    text = refused("t = 0\nfor k in range(n):\n    t += a\nz0.store(t)", name, result=name)
    assert text == (
        f"t begins as an integer literal and takes the type {name}, in which a sum soon wraps: write t: i32 = …, or "
        f"t: {name} = … where that is meant"
    )
    a = np.array([0, 1, 7, SCALARS[name].limits[1]], SCALARS[name].dtype)
    for kind in ("i32", name):
        body = f"t: {kind} = 0\nfor k in range(n):\n    t += a\nz0.store(t)"
        (found,) = run(made(body, name, "i32", (kind,)), (kind,), a, a.astype(np.int32))
        np.testing.assert_array_equal(found, a.astype(SCALARS[kind].dtype) * SCALARS[kind](3))


def test_an_annotated_variable_converts_at_each_assignment() -> None:
    body = """h: u32 = 2166136261
for k in range(n):
    h = h * 31 + k
if n > 2:
    h = a
z0.store(h)
z1.store(f(h, 7))"""
    helper = """@tile.function
def f(x, y):
    total: u8 = y
    total = x + total
    return total
"""
    a = np.array([-1, 0, 300, 2**31 - 1], np.int32)
    kinds = ("u32", "u8")
    found, narrow = run(made(body, "i32", "i32", kinds, helper), kinds, a, a, 3)
    np.testing.assert_array_equal(found, a.astype(np.uint32))
    np.testing.assert_array_equal(narrow, (a.astype(np.uint32) + np.uint32(7)).astype(np.uint8))
    found, _ = run(made(body, "i32", "i32", kinds, helper), kinds, a, a, 2)
    np.testing.assert_array_equal(found, (2166136261 * 31 * 31 + 1) % 2**32)
    assert refused("h: u8 = 300") == (
        "h is annotated as u8 and the value is 300, which does not fit; u8 holds 0 to 255, and u8(300) wraps"
    )
    assert refused("h: u8 = n * 0.5") == "h is annotated as u8 and the value is f64; convert it, as in u8(x)"
    assert refused("h: int = 3") == (
        "h: int is no scalar type of kernels: write one, as in h: f32, or leave the annotation out"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [*zip(INTEGERS, INTEGERS, strict=True), ("u8", "i8"), ("i16", "u8")])
def test_cdiv_rounds_up(first: str, second: str) -> None:
    a, b = pairs(first, second)
    common = np.result_type(a, b)
    (found,) = computed(first, second, wide(common), ["tile.cdiv(a, b)"], a, b)
    expected = [-(-int(one) // int(two)) if two else 0 for one, two in zip(a, b, strict=True)]
    np.testing.assert_array_equal(found, np.array([each % 2**64 for each in expected], np.uint64).astype(common))


def test_constants_from_outside_are_literals_unless_they_have_a_type() -> None:
    extra = """import enum
class Kind(enum.IntEnum):
    BIG = 300
class Sizes:
    ROWS = 300
COUNT = 300
TYPED = np.uint32(300)
"""
    a = np.array([0, 1, 2, 60000], np.uint16)
    body = "\n".join(f"assert (a + {each}).dtype == u16" for each in ("Kind.BIG", "Sizes.ROWS", "COUNT"))
    body += "\nassert (a + TYPED).dtype == u32 and (a + np.int8(1)).dtype == i32\n"
    kinds = ("u16", "u16", "u16", "u32")
    expressions = ["a + Kind.BIG", "a * Sizes.ROWS", "a + COUNT", "a * TYPED"]
    outputs = run(made(body + stored(expressions), "u16", "u16", kinds, extra), kinds, a, a)
    with np.errstate(all="ignore"):
        expected = [a + np.uint16(300), a * np.uint16(300), a + np.uint16(300), a * np.uint32(300)]
    for text, found, right in zip(expressions, outputs, expected, strict=True):
        np.testing.assert_array_equal(found, right, text)
    for text in ("Kind.BIG", "Sizes.ROWS", "COUNT"):
        assert refused(f"z0.store(a + {text})", "u8", extra=extra).startswith("u8 + 300: 300 does not fit in u8")
        k = made(f"z0.store(a < {text})", "u8", "u8", ("bool_",), extra)
        (found,) = run(k, ("bool_",), a.astype(np.uint8), a.astype(np.uint8))
        assert found.all()


def test_arguments_of_annotated_functions_narrow_as_same_kind() -> None:
    helper = """@tile.function
def f(x: u8, y: f32 = 2) -> i16:
    assert x.dtype == u8 and y.dtype == f32
    return x + i16(y)
"""
    a = np.array([0, 1, 255, 300], np.uint32)
    (found,) = run(made("z0.store(f(a))", "u32", "i32", ("i32",), helper), ("i32",), a, a.astype(np.int32))
    np.testing.assert_array_equal(found, a.astype(np.uint8).astype(np.int32) + 2)
    for argument, why in (
        ("a", "the value is i32, which may be negative; convert it, as in u8(x)"),
        ("256", "the value is 256, which does not fit; u8 holds 0 to 255, and u8(256) wraps"),
        ("0.5", "the value is f64; convert it, as in u8(x)"),
    ):
        assert refused(f"z0.store(f({argument}))", extra=helper) == f"f: parameter x is u8 and {why}"
    helper = "@tile.function\ndef f(x) -> u8:\n    return x\n"
    assert refused("z0.store(f(a))", extra=helper) == (
        "f is declared to return u8 and the value is i32, which may be negative; convert it, as in u8(x)"
    )


def test_a_conversion_wraps_integers_and_saturates_floats() -> None:
    a = np.array([-1, 300, 2**31 - 1, -(2**31)], np.int32)
    texts = ["u8(a)", "a.astype(u8)", "u8(300)", "u8(-1)", "u8(300.0)", "u8(a.astype(f32))"]
    wrapped = a.astype(np.uint8)
    expected = [wrapped, wrapped, 44, 255, 255, [0, 255, 255, 0]]
    for text, found, right in zip(texts, computed("i32", "i32", "u8", texts, a, a), expected, strict=True):
        np.testing.assert_array_equal(found, np.full(4, right), text)
