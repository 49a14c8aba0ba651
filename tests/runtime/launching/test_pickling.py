"""Kernels and device functions are pickled by name and are their own copies, as Python's functions."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any, TypeVar

import numpy as np
import pytest
from numba import cuda

import oxide
from oxide import DisjointSlice, LaunchConfig, Slice, device, f32, h2d, kernel, thread, zeros
from oxide.errors import SanitizedAccess
from oxide_kernels import relu

T = TypeVar("T")


@kernel(block=64)
def double(x: Slice[f32], out: DisjointSlice[f32]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = f32(2) * x[thread.index_1d().get()]


@kernel
def fill(value: T, out: DisjointSlice[T]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = value


@device
def triple(x: f32) -> f32:
    return x * f32(3)


@cuda.jit
def numbas(x):
    x[0] = 1


adopted = kernel(numbas)

KEPT: list[Any] = [
    double,
    adopted,
    triple,
    relu,
    fill,
    double[1, 32],
    double[LaunchConfig(1, 32)],
]
NAMES = ["kernel", "adopted", "device function", "library kernel", "generic", "configured", "with a config"]


@pytest.mark.parametrize("kept", KEPT[:5], ids=NAMES[:5])
def test_what_a_module_holds_is_pickled_by_name(kept: Any) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(kept, protocol)) is kept


@pytest.mark.parametrize("kept", KEPT, ids=NAMES)
def test_a_copy_is_the_thing_itself(kept: Any) -> None:
    assert copy.copy(kept) is kept
    assert copy.deepcopy([kept]) == [kept]


def test_a_scalar_type_is_pickled_by_name() -> None:
    for each in (f32, oxide.bf16, oxide.u8):
        assert pickle.loads(pickle.dumps(each)) is each
        assert copy.deepcopy(each) is each


def test_a_configured_kernel_is_pickled_with_its_configuration() -> None:
    x = h2d(np.arange(50, dtype=np.float32)).sync()
    for configured in (double[1, 40], double[LaunchConfig(1, 40)]):
        launch = pickle.loads(pickle.dumps(configured))(x, zeros(50))
        expected = np.where(np.arange(50) < 40, 2 * np.arange(50), 0)
        np.testing.assert_array_equal(launch.last().to_host().sync(), expected)


def test_a_specialization_is_pickled_with_its_kernel_if_it_is_the_only_one() -> None:
    special = double.specialize()
    assert pickle.loads(pickle.dumps(special)) is special
    assert copy.deepcopy(special) is special
    with pytest.raises(TypeError, match=r"specialization of kernel fill .* cannot be pickled; pickle the kernel"):
        pickle.dumps(fill.specialize(T=f32))


def test_another_process_finds_its_own_kernel() -> None:
    program = (
        "import pickle, sys; kernel = pickle.loads(sys.stdin.buffer.read()); import oxide_kernels; "
        "print(kernel is oxide_kernels.relu)"
    )
    ran = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(relu), capture_output=True, check=True)
    assert ran.stdout.split() == [b"True"]


def test_what_no_module_holds_cannot_be_pickled_and_is_named() -> None:
    def body(x: Slice[f32]) -> None:
        pass

    local = kernel(block=32)(body)
    for thing, shown in (
        (local, "kernel body"),
        (local[1, 32], "kernel body"),
        (local.specialize(), "kernel body"),
        (device(lambda x: x), "device function"),
    ):
        for attempt in (pickle.dumps, lambda held: pickle.dumps([held])):
            with pytest.raises(TypeError, match=f"{shown}.* cannot be pickled: .*define .* at the top of a module"):
                attempt(thing)
        assert copy.deepcopy(thing) is thing


def errors() -> list[oxide.OxideError]:
    place = ((1, 0, 0), (2, 0, 0), "program.py", 7)
    access = SanitizedAccess("read", "x[3]", *place)
    return [
        oxide.CompileError("no kernel"),
        oxide.DriverError(2, "CUDA_ERROR", "no room"),
        oxide.OutOfMemoryError("no room"),
        oxide.BoundsError("k", "x", 9, 8, *place),
        oxide.BoundsError("k", "x", 9, 8, *place, axis=1, indices=(2, 9), shape=(3, 8)),
        oxide.KernelAssertionError("k", "wrong", *place),
        oxide.BarrierError("k", (1, 0, 0), (("program.py", 7), ("program.py", 9)), "some left"),
        oxide.SanitizerError("race", "k", "x", 3, "is a race", access),
    ]


@pytest.mark.parametrize("error", errors(), ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("way", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_an_error_arrives_in_another_process_with_its_fields_and_notes(error: Any, way: Any) -> None:
    error.add_note("in an operation")
    arrived = way(error)
    assert type(arrived) is type(error)
    assert (str(arrived), arrived.args, arrived.__notes__) == (str(error), error.args, error.__notes__)
    assert {name: repr(value) for name, value in vars(arrived).items() if "SanitizedAccess" not in repr(value)} == {
        name: repr(value) for name, value in vars(error).items() if "SanitizedAccess" not in repr(value)
    }
