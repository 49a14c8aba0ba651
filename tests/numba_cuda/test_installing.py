"""``install()``: a program whose imports name numba runs on oxide, and numba.cuda gets its own names back."""

from __future__ import annotations

from types import ModuleType

import numba
import numpy as np
import pytest
from numba.cuda.cudadrv import devicearray
from numba.cuda.dispatcher import CUDADispatcher

from oxide import numba_cuda

PROGRAM = """
import math

import numba
import numba.cuda.random
import numpy as np
from numba import cuda, vectorize
from numba.cuda import jit, to_device
from numba.cuda.cudadrv.devicearray import DeviceNDArray
from numba.cuda.cudadrv.driver import CudaAPIError
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float64


@jit("void(float64[:], int64)")
def fill(x, number):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = number + math.sqrt(4.0)


@cuda.jit
def draw(states, x):
    cuda.cg.this_grid().sync()  # numba-cuda implements it in Python
    i = cuda.grid(1)
    x[i] = xoroshiro128p_uniform_float64(states, i)


@vectorize(["float64(float64)"], target="cuda")
def double(x):
    return x * 2


d = to_device(np.zeros(5))
fill[1, 8](d, 1)
assert isinstance(d, DeviceNDArray)
assert numba.cuda.cudadrv.devicearray.is_cuda_ndarray(d)
filled = d.copy_to_host()
drawn = np.zeros(8)
draw[1, 8](create_xoroshiro128p_states(8, 1), drawn)
doubled = double(filled)
from numba.cuda.kernels.transpose import transpose

transposed = transpose(to_device(np.arange(6.0).reshape(2, 3))).copy_to_host()
total = cuda.reduce(lambda a, b: a + b)(doubled)
"""


def test_a_program_runs_with_its_own_imports() -> None:
    program = ModuleType("program")
    with numba_cuda.install():
        exec(PROGRAM, vars(program))
    assert program.filled.tolist() == [3] * 5
    assert program.doubled.tolist() == [6] * 5
    assert program.total == 30
    np.testing.assert_array_equal(program.transposed, np.arange(6.0).reshape(2, 3).T)
    assert np.unique(program.drawn).size == 8


MANAGER = """
from numba import cuda
from numba.cuda.cudadrv import driver


class Manager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):
    def memalloc(self, size): ...
    def initialize(self): ...
    def get_memory_info(self): ...
    @property
    def interface_version(self):
        return 1


manager = Manager(context=cuda.current_context())
"""


def test_a_memory_manager_is_defined_and_not_set() -> None:
    program = ModuleType("program")
    with numba_cuda.install():
        exec(MANAGER, vars(program))
        for place in (program.cuda, program.driver, numba_cuda):
            with pytest.raises(
                NotImplementedError, match=r"cuda\.set_memory_manager: oxide has no other memory managers"
            ):
                place.set_memory_manager(program.Manager)
    assert issubclass(program.Manager, numba_cuda.BaseCUDAMemoryManager)
    assert program.manager.interface_version == 1


VERSIONS = """
from numba import cuda
from numba.cuda.cudadrv import devices, driver, runtime

versions = [
    cuda.runtime.get_version(), runtime.get_version(), driver.get_version(), driver.driver.get_version(),
    cuda.cudadrv.driver.driver.get_version(),
]
current = [cuda.require_context(cuda.current_context)(), devices.require_context(devices.get_context)()]
"""


def test_versions_and_contexts_need_no_cuda_driver() -> None:
    program = ModuleType("program")
    with numba_cuda.install():
        exec(VERSIONS, vars(program))
    assert set(program.versions) == {numba_cuda.runtime.get_version()}
    assert set(program.current) == {numba_cuda.current_context()}


def test_uninstalling_gives_numba_its_names_back() -> None:
    from numba import cuda

    def names() -> list[object]:
        return [
            cuda.jit,
            cuda.to_device,
            cuda.gpus,
            cuda.reduce,
            devicearray.DeviceNDArray,
            cuda.random,
            vars(cuda).keys(),
        ]

    before = [*names()[:-1], set(vars(cuda))]
    with numba_cuda.install(), numba_cuda.install():
        assert cuda.jit is numba_cuda.jit
        kernel = cuda.jit(lambda x: None)
        assert not isinstance(kernel, CUDADispatcher)
    numba_cuda.uninstall()
    assert [*names()[:-1], set(vars(cuda))] == before
    assert isinstance(cuda.jit(lambda x: None), CUDADispatcher)
    assert numba.cuda is cuda
