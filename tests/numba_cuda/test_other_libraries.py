"""Arrays of other libraries as arguments: on the CPU device those in host memory, with ``__dlpack__``, in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import numba_cuda as cuda
from oxide.testing import step_driver, use_driver
from tests.interop.capsules import Exporter

pytestmark = pytest.mark.skipif(
    os.environ.get("OXIDE_DEVICE") == "cuda", reason="arrays in host memory are used in place by the CPU device"
)


@pytest.fixture(autouse=True)
def nothing_runs_before_a_wait() -> Iterator[None]:
    with use_driver(step_driver()):
        yield


class Tensor:
    """An array like torch's: a NumPy array's own ``__dlpack__``, and nothing else of it."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> Any:
        raise AttributeError("a tensor in host memory has no __cuda_array_interface__")


class OldTensor(Tensor):
    """A library that implements DLPack before version 1."""

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.array.__dlpack__()


@cuda.jit
def add_one(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += 1


@cuda.jit
def add_rows(pair, factor):
    i, j = cuda.grid(2)
    source, target = pair
    if i < source.shape[0] and j < source.shape[1]:
        target[i, j] += factor * source[i, j]


WAYS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda tensor: tensor,
    "as_cuda_array": cuda.as_cuda_array,
    "a view of as_cuda_array": lambda tensor: cuda.as_cuda_array(tensor)[:],
    "cuda.InOut": cuda.InOut,
    "a box": oxide.from_dlpack,
}


@pytest.mark.parametrize("kind", [Tensor, OldTensor])
@pytest.mark.parametrize("give", WAYS.values(), ids=WAYS.keys())
def test_a_host_tensor_is_used_in_place_and_the_launch_waits_for_the_kernel(give: Any, kind: Any) -> None:
    x = np.zeros(1000, np.float32)
    for count in range(1, 4):
        add_one[4, 256](give(kind(x)))
        assert (x == count).all()
        add_one[4, 256, cuda.stream()](give(kind(x)))
        x -= 1


def test_strided_tensors_of_two_axes_in_a_tuple_are_used_in_place() -> None:
    source, target = np.arange(24.0).reshape(4, 6), np.zeros((6, 4))
    add_rows[(1, 1), (8, 8)]((Tensor(source[::2]), Tensor(target.T[:2])), 3.0)
    np.testing.assert_array_equal(target.T[:2], 3 * source[::2])
    assert not target.T[2:].any()


def test_an_array_on_a_tensor_is_read_and_assigned_to_in_place() -> None:
    x = np.arange(6.0)
    d = cuda.as_cuda_array(Tensor(x))
    d[1:3] = 7
    assert x.tolist() == [0, 7, 7, 3, 4, 5]
    d[3] = cuda.to_device(np.array(9.0))
    assert x[3] == 9
    x[5] = 8
    assert d.copy_to_host().tolist() == [0, 7, 7, 9, 4, 8]
    d.copy_to_device(np.ones(6))
    assert x.tolist() == [1] * 6
    assert cuda.reduce(lambda a, b: a + b)(d) == 6


def test_the_memory_of_an_exporter_that_is_gone_is_kept_and_let_go() -> None:
    memory = np.zeros(4, np.float32)
    exporter = Exporter(memory.ctypes.data)
    d = cuda.as_cuda_array(exporter)
    add_one[1, 4](d)
    add_one[1, 4](exporter)
    assert memory.tolist() == [2] * 4
    del d
    oxide.reclaim.drain()
    assert exporter.deleted == 2


def test_a_host_tensor_goes_to_the_device_as_a_copy() -> None:
    x = np.zeros(4)

    class Array(Tensor):
        def __array__(self, *_: Any, **__: Any) -> Any:
            return self.array

    d = cuda.to_device(Array(x))
    add_one[1, 4](d)
    assert d.copy_to_host().tolist() == [1] * 4
    assert not x.any()


def test_what_cannot_be_used_in_place_is_refused_by_the_parameters_name() -> None:
    fixed = np.zeros(4)
    fixed.flags.writeable = False
    with pytest.raises(BufferError, match=r"kernel add_one, parameter x: .*read-?only"):
        add_one[1, 4](Tensor(fixed))
    with pytest.raises(BufferError, match=r"kernel add_one, parameter x: .*share memory"):
        add_one[1, 4](Tensor(np.lib.stride_tricks.as_strided(np.zeros(4), (4,), (0,))))
    with pytest.raises(oxide.DeviceError, match=r"kernel add_one, parameter x: .*device type 2"):
        add_one[1, 4](Exporter(4096, device=(2, 0), announced=(2, 0)))
    for other in (Exporter(4096, device=(2, 0), announced=(2, 0)), np.zeros(4), [1.0], 3):
        with pytest.raises(TypeError, match="cuda array interface"):
            cuda.as_cuda_array(other)
