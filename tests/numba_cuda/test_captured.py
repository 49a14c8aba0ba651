"""Device arrays that a kernel names and does not take as arguments: globals, closure variables, names in modules."""

from __future__ import annotations

import gc
import os
import warnings
import weakref
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import LaunchConfig, d2h, h2d, kernel
from oxide import numba_cuda as cuda
from oxide.testing import step_driver, use_driver
from tests.compiler.sanitizer.sanitized import on_the_cpu_device
from tests.numba_cuda.test_other_libraries import Tensor

tables = ModuleType("tables")


def fill(table: Any) -> Any:
    @cuda.jit
    def add_to(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] += table[i]
            table[i] += 1

    return add_to


def test_a_global_array_is_read_and_written() -> None:
    table = cuda.to_device(np.arange(5.0))
    out = np.zeros(5)
    add_to = fill(table)
    for count in range(1, 4):
        add_to[1, 8](out)
        assert table.copy_to_host().tolist() == [each + count for each in range(5)]
    assert out.tolist() == [3 * each + 3 for each in range(5)]
    table[:] = 0
    add_to[1, 8](out)
    assert out.tolist() == [3 * each + 3 for each in range(5)]


def test_arrays_of_every_layout_are_reached_also_through_device_functions_tuples_and_modules() -> None:
    base = np.arange(24.0).reshape(4, 6)
    whole, strided = cuda.to_device(base), cuda.to_device(base)[::2, ::3]
    turned, box = cuda.to_device(base).T, h2d(np.arange(4, dtype=np.int32)).sync()
    tables.numbers = cuda.to_device(np.array([100.0]))  # type: ignore[attr-defined]
    pair = (whole, strided)

    @cuda.jit(device=True)
    def inner(i):
        return strided[1, 1] + tables.numbers[0] + i  # type: ignore[attr-defined]

    @cuda.jit(device=True)
    def outer(i):
        return inner(i) + whole[i, 2]

    @cuda.jit
    def gather(out, factor):
        i = cuda.grid(1)
        out[i] = factor * (outer(i) + turned[2, i] + box[i] + pair[0][i, 1] + pair[1][0, 1] + whole.shape[1])

    out = np.zeros(4)
    gather[1, 4](out, 2.0)
    expected = [
        2 * (base[2, 3] + 100 + i + base[i, 2] + base[i, 2] + i + base[i, 1] + base[0, 3] + 6) for i in range(4)
    ]
    assert out.tolist() == expected


def test_two_kernels_share_a_device_function_that_names_an_array() -> None:
    table = cuda.to_device(np.arange(4.0))

    @cuda.jit(device=True)
    def look_up(i):
        return table[i]

    def make(offset: Any) -> Any:
        @cuda.jit
        def store(out):
            i = cuda.grid(1)
            out[i] = look_up(i) + offset[i]

        return store

    for number in (10.0, 20.0):
        out = np.zeros(4)
        make(cuda.to_device(np.full(4, number)))[1, 4](out)
        assert out.tolist() == [number + i for i in range(4)]


def test_a_kernel_without_parameters_writes_an_array_from_outside() -> None:
    table = cuda.to_device(np.zeros(4))

    @cuda.jit
    def count():
        table[cuda.grid(1)] += cuda.grid(1)

    count[1, 4]()
    count[1, 4]()
    assert table.copy_to_host().tolist() == [0, 2, 4, 6]
    assert count.signatures == [()]
    assert ".param" in count.inspect_asm(())


def test_a_kernel_keeps_the_array_that_it_was_compiled_with() -> None:
    def make() -> Any:
        @cuda.jit
        def read(out):
            out[0] = table[0]

        table = cuda.to_device(np.ones(1))

        def replace() -> None:
            nonlocal table
            table = cuda.to_device(np.full(1, 2.0))

        return read, replace

    read, replace = make()
    out = np.zeros(1)
    read[1, 1](out)
    replace()
    gc.collect()
    read[1, 1](out)
    assert out[0] == 1
    cuda.jit(read.py_func)[1, 1](out)
    assert out[0] == 2


def test_a_dropped_kernel_lets_go_of_the_array() -> None:
    table = cuda.to_device(np.arange(4.0))
    gone = weakref.ref(table)
    add_to = fill(table)
    add_to[1, 4](np.zeros(4))
    del table, add_to
    gc.collect()
    assert gone() is None


def test_a_launch_is_ordered_with_the_uses_of_the_array_on_other_streams() -> None:
    with use_driver(step_driver()) as driver:  # where nothing runs before it is told to
        table, out = h2d(np.arange(4.0)).sync(), h2d(np.zeros(4)).sync()
        add_to = kernel(fill(table).numba_dispatcher)
        before, launched, after = (oxide.devices()[0].new_stream() for _ in range(3))
        oxide.memcpy(table, h2d(np.full(4, 2.0)).sync()).async_on(before)
        add_to[1, 4](out).async_on(launched)
        found = d2h(table).async_on(after)
        while streams := driver.pending():
            driver.step(streams[-1])  # of what may run, what was submitted last
        assert found.tolist() == [3] * 4
        assert d2h(out).sync().tolist() == [2] * 4


def test_a_launch_in_a_graph_uses_the_array() -> None:
    table = h2d(np.arange(4.0)).sync()

    @kernel
    def add(out):
        i = cuda.grid(1)
        out[i] += table[i]
        table[i] *= 2

    out = h2d(np.zeros(4)).sync()
    graph = add[1, 4](out).graph()
    del add
    gc.collect()
    for _ in range(3):
        graph.launch().sync()
    assert d2h(out).sync().tolist() == [0, 7, 14, 21]
    assert d2h(table).sync().tolist() == [0, 8, 16, 24]


def test_an_operation_as_an_argument_and_a_strided_one_are_launched_too() -> None:
    table = h2d(np.arange(4.0)).sync()

    @kernel
    def add(out):
        i = cuda.grid(1)
        out[i] += table[i]

    launcher = add[LaunchConfig(1, 4)]
    assert d2h(launcher(h2d(np.ones(4))).first()).sync().tolist() == [1, 2, 3, 4]
    out = h2d(np.ones(8)).sync()
    launcher(out[::2]).sync()
    assert d2h(out).sync().tolist() == [1, 1, 2, 1, 3, 1, 4, 1]


@pytest.mark.skipif(os.environ.get("OXIDE_DEVICE") == "cuda", reason="needs two devices")
def test_an_array_on_another_device_is_refused() -> None:
    with use_driver(step_driver(2)):
        add_to = fill(cuda.to_device(np.arange(4.0)))
        with (
            cuda.gpus[1],
            pytest.raises(oxide.DeviceError, match=r"kernel add_to, an array from outside of it: .*cpu:0"),
        ):
            add_to[1, 4](np.zeros(4))


def test_equal_kernels_that_name_other_arrays_share_no_code_and_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in (1.0, 2.0):
            out = np.zeros(4)
            fill(cuda.to_device(np.full(4, number)))[1, 4](out)
            assert out.tolist() == [number] * 4


@on_the_cpu_device
@pytest.mark.parametrize("give", [lambda memory: cuda.as_cuda_array(oxide.from_dlpack(memory)), Tensor])
def test_an_array_on_the_hosts_memory_is_complete_after_the_launch(give: Any) -> None:
    with use_driver(step_driver()), warnings.catch_warnings():
        warnings.simplefilter("error")
        memory = np.arange(12.0)
        fill(give(memory[::3]))[1, 4](cuda.to_device(np.zeros(4)))
        assert memory[::3].tolist() == [1, 4, 7, 10]


def test_a_mapped_array_is_used_in_place() -> None:
    mapped = cuda.mapped_array(4)
    mapped[:] = 5
    out = cuda.to_device(np.zeros(4))
    add_to = fill(mapped)
    for _ in range(2):
        add_to[1, 4](out)
        cuda.synchronize()
        mapped *= 2
    assert mapped.tolist() == [26] * 4
    assert out.copy_to_host().tolist() == [17] * 4


@on_the_cpu_device
def test_the_sanitizer_knows_its_bounds_and_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_SANITIZE", "memory,race")
    monkeypatch.setattr("oxide.driver.sanitizing.Tracking.wanted", True)
    fill(cuda.to_device(np.zeros(4)))[1, 8](np.zeros(4))
    cuda.synchronize()
    with pytest.raises(oxide.SanitizerError, match=r"out-of-bounds: a read of table .* has 4 elements"):
        fill(cuda.to_device(np.zeros(4)))[1, 8](np.zeros(8))
    with pytest.raises(oxide.SanitizerError, match="uninitialized: a read of table"):
        fill(cuda.device_array(4))[1, 8](np.zeros(4))
    with pytest.raises(oxide.SanitizerError, match=r"out-of-bounds: a read of table .* is a strided view"):
        fill(cuda.to_device(np.zeros(12))[::2])[1, 8](np.zeros(8))
    table = cuda.to_device(np.zeros(4))

    @cuda.jit
    def collide():
        table[0] = cuda.grid(1)

    collide[1, 2]()
    with pytest.raises(oxide.SanitizerError, match="race: a write to table"):
        cuda.synchronize()


def test_a_typed_kernel_refuses_one_with_advice() -> None:
    table = h2d(np.arange(4.0)).sync()

    @kernel
    def typed(out: oxide.DisjointSlice[oxide.f64]) -> None:
        element = out.get_mut(oxide.thread.index_1d())
        if element is not None:
            element.value = table[0]  # type: ignore[assignment]

    with pytest.raises(
        oxide.CompileError, match="table is a DeviceBox, which kernels cannot use: pass it as a parameter"
    ):
        typed[1, 4](oxide.zeros(4, oxide.f64))
