"""Scalar arguments are converted exactly or refused; parameters are packed as C does."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oxide import ArgumentError, DisjointSlice, Kernel, Slice, bool_, f32, f64, i8, i32, i64, kernel, u8, u32, u64
from oxide.compiler.signature.signature import Parameter


@kernel(block=(8, 4))
def all_kinds(
    a: i8, b: u32, c: f32, d: bool_, x: Slice[f64], e: u8, f: f64, g: i64, y: DisjointSlice[i32], h: u64
) -> None:
    """Does nothing."""


def parameter(name: str) -> Parameter:
    return next(each for each in all_kinds.parameters if each.name == name)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("a", -128, -128),
        ("a", np.int64(127), 127),
        ("a", True, 1),
        ("b", np.uint8(3), 3),
        ("b", 2**32 - 1, 2**32 - 1),
        ("b", np.array(7), 7),
        ("c", 3, 3.0),
        ("c", np.float64(1.5), 1.5),
        ("c", float("inf"), float("inf")),
        ("d", True, True),
        ("d", np.bool_(False), False),
        ("h", 2**64 - 1, 2**64 - 1),
    ],
)
def test_a_number_that_fits_is_taken(name: str, value: Any, expected: Any) -> None:
    converted = parameter(name).convert(value)
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("a", 128, r"i8, the argument is 128 \(int\); i8 holds -128 to 127"),
        ("b", -1, r"u32, the argument is -1 \(int\); u32 holds 0 to 4294967295"),
        ("b", 1.0, r"u32, the argument is 1.0 \(float\); pass an int"),
        ("b", np.float32(2), "float32"),
        ("b", "3", r"'3' \(str\)"),
        ("b", None, "NoneType"),
        ("b", np.zeros(3), "the argument is ndarray"),
        ("c", "x", "pass a number"),
        ("c", 1j, "complex"),
        ("c", 1e39, "f32 holds magnitudes up to"),
        ("c", 10**400, "f32, the argument is an int of 1329 bits; f32 holds no number as large"),
        pytest.param(
            "b", -(1 << 16609), "u32, the argument is a negative int of 16610 bits; u32 holds 0 to", id="no text"
        ),
        ("d", 1, "pass True or False"),
    ],
)
def test_anything_else_is_refused_with_kernel_and_parameter(name: str, value: Any, found: str) -> None:
    with pytest.raises(ArgumentError, match=f"kernel all_kinds: parameter {name} is .*{found}"):
        parameter(name).convert(value)


def test_parameters_have_the_alignment_of_a_c_structure() -> None:
    packed = all_kinds.specialize().pack([-1, 2, 1.5, True, (10, 20), 3, 2.5, -4, (30, 40), 5], 60)
    assert packed == struct.pack("@bIf?QQBdqQQQQ", -1, 2, 1.5, True, 10, 20, 3, 2.5, -4, 30, 40, 5, 60)


def test_a_kernel_describes_itself() -> None:
    assert all_kinds.name == all_kinds.__name__ == "all_kinds"
    assert all_kinds.__doc__ == "Does nothing."
    assert all_kinds.__module__ == __name__
    assert all_kinds.__wrapped__ is all_kinds.function
    assert all_kinds.default_block == (8, 4, 1)
    assert [p.kind for p in all_kinds.parameters] == ["scalar"] * 4 + ["slice"] + ["scalar"] * 3 + [
        "disjoint",
        "scalar",
    ]
    assert parameter("x").dtype == np.float64
    assert repr(parameter("y").annotation) == "'DisjointSlice[i32]'"


Seen = list[tuple[Kernel, object, tuple[Any, ...]]]


class Recorded:
    """The launches of a kernel, recorded."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def configured(self, kernel: Kernel, config: object) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.seen.append((kernel, config, kernel.positional(args, kwargs)))

    def resources(self, special: object, block: object, shared_mem_bytes: int) -> Any:
        raise NotImplementedError


def body(m: u32, x: Slice[f32]) -> None:
    pass


body.__name__ = "pair"


@pytest.fixture
def launches() -> Seen:
    return []


@pytest.fixture
def pair(launches: Seen) -> Kernel:
    return Kernel(body, launches=Recorded(launches))


def test_a_call_goes_to_the_launcher_with_what_was_in_the_brackets(launches: Seen, pair: Kernel) -> None:
    config = object()
    pair(1, "x")
    pair[4, 256](1, "x")
    pair[config](1, "x")
    assert launches == [(pair, None, (1, "x")), (pair, (4, 256), (1, "x")), (pair, config, (1, "x"))]


def test_without_a_runtime_nothing_can_be_launched() -> None:
    pair = Kernel(body)
    with pytest.raises(RuntimeError, match="kernel pair cannot be launched: import oxide"):
        pair(1, "x")


def test_arguments_may_be_named(launches: Seen, pair: Kernel) -> None:
    pair(x="x", m=1)
    pair[1, 2](1, x="x")
    assert [call[2] for call in launches] == [(1, "x"), (1, "x")]
    with pytest.raises(ArgumentError, match="kernel pair has no parameter n; it takes m, x"):
        pair(1, n=3)
    with pytest.raises(ArgumentError, match="parameter m is given twice"):
        pair(1, m=3)
    with pytest.raises(ArgumentError, match="parameter x is missing"):
        pair(m=3)


def test_a_kernel_is_specialized_once_however_many_threads_ask(pair: Kernel) -> None:
    found = []
    threads = [threading.Thread(target=lambda: found.append(pair.specialize())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in found}) == 1
    assert len(found) == 8


def test_what_a_launch_must_look_like_is_known(pair: Kernel) -> None:
    special = pair.specialize()
    assert not special.needs.index_1d
    assert not special.needs.index_2d
    assert 0 <= special.kernel_id < 2**64
    assert special.kernel_id != all_kinds.specialize().kernel_id
    assert special.kernel_id == kernel(pair.function).specialize().kernel_id
