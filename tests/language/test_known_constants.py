"""What is known when a kernel is compiled is a literal: members of enumerations, constants of classes, ``ord``, the
variable of a loop over a tuple, and the elements that ``in`` compares with."""

from __future__ import annotations

import enum
import linecache
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import CompileError, h2d, zeros
from oxide.compiler.cache.fingerprint import fingerprint
from oxide.language.types import SCALARS


class Color(enum.IntEnum):
    RED = 1
    BLUE = 7


class Kind(enum.Enum):
    SOLID = 3


class Sizes:
    ROWS = 5
    SCALE = 0.25
    STEPS = (16, 8, 4, 2, 1)
    OF_NUMPY = np.float32(0.5)

    class Inner:
        DEPTH = 2


OUTSIDE: dict[str, Any] = {
    **{name: getattr(oxide, name) for name in oxide.__all__},
    "np": np,
    "Color": Color,
    "Kind": Kind,
    "Sizes": Sizes,
    "RED": Color.RED,
    "STEPS": (16, 8, 4, 2, 1),
    "OFFSETS": ((0, 1), (1, 0), (2, 2)),
    "EMPTY": (),
    "LONG": (1,) * 65,
}


def made(body: str, kind: str, result: str, **names: Any) -> Any:
    """Returns a kernel that runs the body for each number ``v`` of ``x``."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    source = f"""@kernel(block=64)
def k(x: Slice[{kind}], y: DisjointSlice[{result}]):
    index = thread.index_1d()
    out = y.get_mut(index)
    if out is not None:
        v = x[index.get()]
{lines}
"""
    name = f"<known {hash(source)}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    outside = OUTSIDE | names
    exec(compile(source, name, "exec"), outside)
    return outside["k"]


def run(body: str, values: list[float], kind: str = "u32", result: str = "i64") -> list[Any]:
    x = np.array(values, SCALARS[kind].dtype)
    return list(made(body, kind, result)(h2d(x), zeros(len(x), SCALARS[result])).last().to_host().sync().tolist())


@pytest.mark.parametrize(
    ("expression", "kind", "values", "expected"),
    [
        ("v - Color.BLUE", "u32", [9, 2], [2, 2**32 - 5]),
        ("v + RED", "u8", [255], [0]),
        ("v * Kind.SOLID.value", "i16", [-2], [-6]),
        ("v * Sizes.ROWS + Sizes.Inner.DEPTH", "u8", [60], [46]),
        ("1 if v * Sizes.SCALE == 0.025 else 0", "f32", [0.1], [1]),
        ("v ^ ord('a')", "u8", [0], [97]),
        ("np.uint8(v) + np.uint8(250)", "u32", [300], [38]),
        ("2 * np.float64(v) * 0.1 == np.float32(v) * 0.2", "f32", [3.0], [0]),
    ],
)
def test_numbers(expression: str, kind: str, values: list[float], expected: list[int]) -> None:
    assert run(f"out.value = {expression}", values, kind) == expected


def test_a_member_takes_the_type_that_it_meets_and_must_fit() -> None:
    assert ".f64" not in made("out.value = v * Sizes.SCALE + Color.RED", "f32", "f32").ptx()
    with pytest.raises(CompileError, match=r"i8 \+ 300: 300 does not fit in i8"):
        made("out.value = v + Big.ALL", "i8", "i64", Big=enum.IntEnum("Big", {"ALL": 300})).ptx()
    with pytest.raises(CompileError, match=r"Sizes\.OF_NUMPY is an attribute of a class"):
        made("out.value = v * Sizes.OF_NUMPY", "f32", "f32").ptx()


def test_match_on_members() -> None:
    cases = {"Color.RED": 10, "Color.BLUE | Sizes.ROWS": 20, "_": 30}
    body = "".join(f"\n    case {case}:\n        out.value = {number}" for case, number in cases.items())
    assert run(f"match v:{body}", [1, 7, 5, 3]) == [10, 20, 20, 30]


@pytest.mark.parametrize(
    ("body", "values", "expected"),
    [
        ("t: u32 = 0\nfor d in (16, 8, 4, 2, 1):\n    t += v ^ d", [0, 1], [31, 34]),
        ("t: u32 = 0\nfor d in STEPS:\n    t += d * v", [2], [62]),
        ("t: u32 = 0\nfor d in Sizes.STEPS:\n    if d == 4:\n        continue\n    t += d * v", [2], [54]),
        ("t: u32 = 0\nfor d in STEPS:\n    if d < v:\n        break\n    t += d\nelse:\n    t += 100",
         [3, 1, 99], [28, 131, 0]),
        ("t: u32 = 0\nfor d in STEPS:\n    t += d\nelse:\n    t += 100", [1], [131]),
        ("t: u32 = 7\nfor d in EMPTY:\n    t += d\nelse:\n    t += 100", [1], [107]),
        ("t: u32 = 0\nfor dx, dy in OFFSETS:\n    t = t * 100 + 10 * dx + dy + v", [0], [11022]),
        ("t: u32 = 0\nfor n, (dx, dy) in enumerate(OFFSETS):\n    t += n * (dx + dy) * v", [1], [9]),
        ("t: u32 = 0\nfor a in (1, 2):\n    for b in (10, 20):\n        if b > 10 * v:\n            break\n"
         "        t += a * b", [1, 2], [30, 90]),
        ("t: u32 = 0\nfor a in (1, 2):\n    while t < 5:\n        t += 3\n        if t > 4:\n            break\n"
         "    t += v + a", [1], [11]),
        ("for d in STEPS:\n    if v >= d:\n        t = d\n        break\nelse:\n    t = 0", [9, 0, 20], [8, 0, 16]),
    ],
)  # fmt: skip
def test_loops_over_tuples(body: str, values: list[float], expected: list[int]) -> None:
    assert run(f"{body}\nout.value = t", values) == expected


def test_the_variable_of_a_loop_over_a_tuple_is_a_literal() -> None:
    assert run("t: u8 = v\nfor d in (0.5, 2):\n    t = u8(t * d)\nout.value = t", [9], "u8") == [8]
    k = made("t = v\nfor d in (0.1, 0.2):\n    t += v * d\nout.value = t", "f32", "f32")
    assert ".f64" not in k.ptx()
    written = "t = v\nt ^= v >> 8\nt ^= v >> 4\nout.value = t"
    loop = "t = v\nfor d in (8, 4):\n    t ^= v >> d\nout.value = t"
    assert made(loop, "u32", "u32").ptx() == made(written, "u32", "u32").ptx()
    with pytest.raises(CompileError, match=r"u8 \+ 256: 256 does not fit"):
        made("t: u8 = 0\nfor d in (255, 256):\n    t = v + d\nout.value = t", "u8", "u8").ptx()
    with pytest.raises(CompileError, match=r"LONG is a tuple: outside the kernel write LONG = np\.array\(LONG\)"):
        made("t = v\nfor d in LONG:\n    t += d\nout.value = t", "u32", "u32").ptx()


@pytest.mark.parametrize(
    ("test", "values", "expected"),
    [
        ("v in (1, 2, 3)", [0, 1, 3, 4], [0, 1, 1, 0]),
        ("v not in (1, 2, 3)", [0, 1, 3, 4], [1, 0, 0, 1]),
        ("v + 1 in STEPS", [0, 2, 7], [1, 0, 1]),
        ("v in {RED, Color.BLUE}", [1, 7, 2], [1, 1, 0]),
        ("v in [v + 0, 5]", [3], [1]),
        ("v in (2,)", [2, 3], [1, 0]),
        ("v in ()", [2], [0]),
        ("v in (-1, 2**40)", [2**32 - 1], [0]),
        ("(v in STEPS) == (v in (3, 4))", [3, 4, 5, 8], [0, 1, 1, 0]),
        ("v > 0 and x[v - 1] in (1, 2)", [0, 1, 2], [0, 0, 1]),
    ],
)
def test_membership(test: str, values: list[float], expected: list[int]) -> None:
    assert run(f"out.value = 1 if {test} else 0", values) == expected


def test_membership_in_the_test_of_a_while() -> None:
    assert run("n = 0\nwhile x[n] in (1, 2, 3) and n < 3:\n    n += 1\nout.value = n", [1, 1, 2, 9]) == [3] * 4


def test_membership_evaluates_its_operand_once() -> None:
    body = "c = LocalArray(1, i32)\nn = 0\nif next_of(c) in (5, 6, 1):\n    n = c[0]\nout.value = n"
    source = "def next_of(c):\n    c[0] += 1\n    return c[0]\n"
    name = "<next of>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    names: dict[str, Any] = {}
    exec(compile(source, name, "exec"), names)
    k = made(body, "u32", "i64", next_of=oxide.device(names["next_of"]))
    assert k(h2d(np.zeros(1, np.uint32)), zeros(1, oxide.i64)).last().to_host().sync().tolist() == [1]


def test_a_constant_of_a_class_is_in_the_fingerprint_and_so_is_the_name_of_an_annotation() -> None:
    def of(**names: Any) -> bytes:
        special = made("t: Word = v + Own.N\nout.value = t", "u32", "i64", **names).specialize()
        return fingerprint(special.description, special.parameters)[0]

    first, second = type("Own", (), {"N": 1}), type("Own", (), {"N": 2})
    assert of(Own=first, Word=oxide.u16) == of(Own=first, Word=oxide.u16)
    assert of(Own=first, Word=oxide.u16) != of(Own=second, Word=oxide.u16)
    assert of(Own=first, Word=oxide.u16) != of(Own=first, Word=oxide.u8)
