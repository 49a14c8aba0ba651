"""Numbers that nothing holds: each is refused by the name of what was called, and by the number, however long it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oxide import (
    ArgumentError,
    CompileError,
    DeviceError,
    DisjointSlice,
    LaunchConfig,
    LaunchError,
    SingleStream,
    StreamPoolRoundRobin,
    arange,
    as_completed,
    devices,
    empty,
    f16,
    f32,
    f64,
    full,
    i32,
    i64,
    init_device_contexts,
    kernel,
    ones,
    pinned_empty,
    policy_of,
    randn,
    thread,
    to_device,
    u8,
    zeros,
)
from oxide.host.environment import whole_number
from oxide.host.messages import written
from oxide.runtime.devices.runtime import current_runtime

LONG = 10**5000  # 16610 bits, 5001 digits, which Python does not write


@kernel(block=32)
def scaled(factor: f32, offset: i32, y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = factor + f32(offset)


@kernel
def filled(factor, y):  # type: ignore[no-untyped-def]
    y[0] = factor


@kernel(block=32)
def paired(pair: tuple[i32, f32], y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = pair[1]


@pytest.mark.parametrize(
    ("x", "dtype", "error", "message"),
    [
        (float("nan"), i32, TypeError, "full: nan is no int32; give a whole number, or a dtype of floating point"),
        (np.float16("nan"), u8, TypeError, r"full: np.float16\(nan\) is no uint8"),
        (complex("nan"), i64, TypeError, r"full: \(nan\+0j\) is no int64"),
        (1.5, i32, TypeError, "full: 1.5 is no int32; give a whole number"),
        (float("inf"), i32, OverflowError, "full: inf does not fit int32, which holds -2147483648 to 2147483647; give"),
        (float("-inf"), u8, OverflowError, "full: -inf does not fit uint8, which holds 0 to 255"),
        (1e30, i64, OverflowError, r"full: 1e\+30 does not fit int64"),
        (LONG, i32, OverflowError, "full: an int of 16610 bits does not fit int32"),
        (-LONG, u8, OverflowError, "full: a negative int of 16610 bits does not fit uint8"),
        (LONG, f32, OverflowError, "full: an int of 16610 bits is too large for float32; give a smaller one"),
        (10**400, f64, OverflowError, "full: an int of 1329 bits is too large for float64"),
        (10**400, np.complex64, OverflowError, "full: an int of 1329 bits is too large for complex64"),
        (2**70, f16, OverflowError, f"full: {2**70} is too large for float16"),
        (70000, f16, OverflowError, "full: 70000 is too large for float16"),
        (1e300, f32, OverflowError, r"full: 1e\+300 is too large for float32"),
        (1j, f32, TypeError, "full: 1j is no float32; give a real number, or a complex dtype"),
        (np.complex64(1 + 2j), f64, TypeError, r"full: np.complex64\(1\+2j\) is no float64"),
        (1j, i32, TypeError, "full: 1j is no int32"),
    ],
    ids=itertools.count(),  # pytest would write the numbers
)
def test_full_refuses_what_its_dtype_does_not_hold(x: Any, dtype: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        full(3, x, dtype)


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (float("nan"), f32),
        (float("-inf"), f16),
        (3.0, i32),
        (np.float32(-7), i64),
        (2 + 0j, f64),
        (2 + 0j, u8),
        (complex("inf"), np.complex64),
        (2**31 - 1, i32),
        (65504, f16),
        (2**127, f32),
        (True, u8),
        (np.True_, f32),
    ],
)
def test_full_takes_what_its_dtype_holds(x: Any, dtype: Any) -> None:
    found = full(3, x, dtype).to_host().sync()
    number = x if np.iscomplexobj(found) else x.real
    np.testing.assert_array_equal(found, np.full(3, number, found.dtype))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: LaunchConfig(LONG, 1),
            LaunchError,
            "grid an int of 16610 bits: x is an int of 16610 bits, but must be",
        ),
        (
            lambda: LaunchConfig((1, -LONG), 1),
            LaunchError,
            r"grid \(1, a negative int of 16610 bits\): y is a negative",
        ),
        (lambda: LaunchConfig(1, LONG), LaunchError, "block an int of 16610 bits: x is"),
        (lambda: LaunchConfig((1, 1, 1, LONG), 1), LaunchError, "must be an int or a tuple of one to three ints"),
        (lambda: LaunchConfig(1, 1, LONG), LaunchError, "shared_mem_bytes is an int of 16610 bits; no device gives"),
        (lambda: LaunchConfig.for_num_elems(LONG), LaunchError, "grid an int of 16602 bits"),
        (lambda: LaunchConfig.for_num_elems(-LONG), LaunchError, r"for_num_elems\(a negative int of 16610 bits\)"),
        (lambda: scaled[1, 2, LONG], LaunchError, r"got \(1, 2, an int of 16610 bits\)"),
        (lambda: zeros(LONG), ValueError, r"zeros: shape an int of 16610 bits has a size beyond 2\*\*63 - 1"),
        (lambda: zeros((2, -LONG)), ValueError, r"shape \(2, a negative int of 16610 bits\) has a negative size"),
        (lambda: zeros(2**63), ValueError, r"zeros: shape 9223372036854775808 has a size beyond 2\*\*63 - 1"),
        (lambda: ones(LONG), ValueError, "ones: shape an int of 16610 bits"),
        (lambda: full((LONG, 2), 1), ValueError, r"full: shape \(an int of 16610 bits, 2\)"),
        (lambda: empty([LONG]), ValueError, r"empty: shape \[an int of 16610 bits\]"),
        (lambda: arange(LONG), ValueError, "arange: shape an int of 16610 bits"),
        (lambda: randn(0, 1, LONG), ValueError, "randn: shape an int of 16610 bits"),
        (lambda: randn(0, -LONG, 3), ValueError, "the standard deviation is a negative int of 16610 bits"),
        (lambda: pinned_empty(LONG), ValueError, "pinned_empty: shape an int of 16610 bits"),
        (lambda: zeros(4).sync().reshape(LONG), ValueError, r"cannot be reshaped to \(an int of 16610 bits,\)"),
        (lambda: zeros(4).sync().split(-LONG), ValueError, "no pieces of a negative int of 16610 bits rows"),
        (lambda: zeros(4).on(-LONG), DeviceError, "on was given device a negative int of 16610 bits"),
        (lambda: to_device(zeros(4), LONG).sync(), DeviceError, "there is no device an int of 16610 bits"),
        (lambda: init_device_contexts(LONG), DeviceError, "operations run on, is an int of 16610 bits; it must be"),
        (lambda: init_device_contexts(0, LONG), DeviceError, "how many devices to set up, is an int of 16610 bits"),
        (lambda: StreamPoolRoundRobin(-LONG), ValueError, r"\(streams=a negative int of 16610 bits\)"),
        (lambda: as_completed([], limit=-LONG), ValueError, r"\(limit=a negative int of 16610 bits\)"),
        (lambda: kernel(block=LONG)(scaled.function), CompileError, "block is an int of 16610 bits, an int of 16610 b"),
        (lambda: kernel(max_registers=LONG)(scaled.function), CompileError, "max_registers is an int of 16610 bits"),
        (
            lambda: filled[1, 1](LONG, zeros(3)),
            ArgumentError,
            "parameter factor: an int of 16610 bits does not fit in 64",
        ),
        (
            lambda: scaled(1.0, LONG, zeros(3)),
            ArgumentError,
            "offset is i32, the argument is an int of 16610 bits; i32",
        ),
        (lambda: paired((1, LONG), zeros(3)), ArgumentError, r"pair\[1\] is f32, the argument is an int of 16610 bits"),
        (lambda: paired((LONG,), zeros(3)), ArgumentError, r"the argument is \(an int of 16610 bits,\), of length 1"),
        (lambda: paired(LONG, zeros(3)), ArgumentError, r"the argument is an int of 16610 bits \(int\); pass a tuple"),
    ],
)
def test_an_integer_too_long_to_be_written_is_refused_as_any_other(
    make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


def test_an_integer_of_no_machine_type_is_refused_where_nothing_says_its_type() -> None:
    message = (
        f"kernel filled, parameter factor: {2**64} does not fit in 64 bits, and an int is passed as an i64 or a u64"
    )
    with pytest.raises(ArgumentError, match=message):
        filled[1, 1](2**64, zeros(3))


def test_a_variable_of_the_environment_too_long_for_python_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_SEED", "1" * 5000)
    with pytest.raises(DeviceError, match=r"OXIDE_SEED='1111.*a whole number of 0 or more is needed") as raised:
        whole_number("OXIDE_SEED", least=0)
    assert len(str(raised.value)) < 200


def test_what_is_written_is_what_was_given() -> None:
    class Odd:
        def __repr__(self) -> str:
            return f"Odd({LONG})"

    for value in (0, -7, 2**256 - 1, True, 1.5, "text", (1,), (), [2, (3, None)], np.float32(1), {"a": 1}):
        assert written(value) == repr(value)
    assert written(2**256) == "an int of 257 bits"
    assert written([1, (-LONG,)]) == "[1, (a negative int of 16610 bits,)]"
    assert written(Odd()) == "a Odd with an integer too long to be written"


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2", 10_000])
def test_init_device_contexts_says_how_many_devices_it_sets_up(count: Any) -> None:
    before = devices()
    with pytest.raises(
        DeviceError, match=f"num_devices, how many devices to set up, is {count!r}; it must be .*as there"
    ):
        init_device_contexts(0, count)
    assert devices() == before


@pytest.mark.parametrize("number", [-1, 1.5, True, "0", 10_000])
def test_init_device_contexts_says_which_default_device_there_may_be(number: Any) -> None:
    with pytest.raises(
        DeviceError, match=f"default_device, the number of .*, is {number!r}; it must be .* numbered from 0"
    ):
        init_device_contexts(number)


def test_init_device_contexts_says_what_a_policy_is() -> None:
    with pytest.raises(
        TypeError, match=r"policy is int 4; it must have a method next_stream\(device\), as StreamPoolR"
    ):
        init_device_contexts(policy=4)  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"policy is the class SingleStream; give an object of it, as in SingleStream\("
    ):
        init_device_contexts(policy=SingleStream)  # type: ignore[arg-type]
    before = current_runtime().policy
    with pytest.raises(TypeError, match=r"policy is policy_of\(0\), which takes its streams from the runtime's policy"):
        init_device_contexts(policy=policy_of(0))
    assert current_runtime().policy is before


@pytest.mark.parametrize("shape", [16.0, "16", (4, 4.0), float("nan"), None])
def test_reshape_takes_integers(shape: Any) -> None:
    box = zeros((4, 4)).sync()
    with pytest.raises(TypeError, match="reshape: a shape is ints or a tuple of ints, not "):
        box.reshape(shape)
    assert box.reshape(np.int64(2), -1).shape == (2, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 32.0}, "block is 32.0; give one to three sizes of at least 1"),
        ({"block": True}, "block is True; give one to three sizes"),
        ({"block": (32, 0)}, r"block is \(32, 0\); give one to three sizes"),
        ({"block": 32, "items_per_thread": 2**31}, "items_per_thread is 2147483648; .* from 1 to 2147483647"),
        ({"block": 32, "items_per_thread": LONG}, "items_per_thread is an int of 16610 bits"),
        ({"max_registers": 64.0}, "max_registers is 64.0; a thread has 1 to 255"),
        ({"max_registers": True}, "max_registers is True"),
    ],
)
def test_a_kernels_options_are_whole_numbers(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        kernel(**options)(scaled.function)
    assert kernel(block=np.int64(32), items_per_thread=np.uint8(2))(scaled.function).default_block == (32, 1, 1)
