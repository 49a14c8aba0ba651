"""The compiled kernels of a numba.cuda kernel, by the types of their arguments, and what each of them uses."""

from __future__ import annotations

import os
from typing import Any

import numba
import numpy as np
import pytest

import oxide
from oxide import DeviceError
from oxide import numba_cuda as cuda

ON_GPU = os.environ.get("OXIDE_DEVICE") == "cuda"


def totals() -> Any:
    @cuda.jit
    def total(x, out):
        shared = cuda.shared.array(64, numba.float64)
        t = cuda.threadIdx.x
        shared[t] = x[t]
        cuda.syncthreads()
        if t == 0:
            for each in range(64):
                out[0] += shared[each]

    return total


F4, F8, STRIDED = numba.float32[::1], numba.float64[::1], numba.float64[:]


def test_launches_add_an_overload_for_each_choice_of_types() -> None:
    total = totals()
    assert total.overloads == {}
    assert total.signatures == total.nopython_signatures == []
    for dtype in ("f4", "f8", "f4"):
        total[1, 64](np.ones(64, dtype), np.zeros(1))
    assert total.signatures == [(F4, F8), (F8, F8)] == list(total.overloads)
    assert [each.args for each in total.nopython_signatures] == total.signatures
    total[1, 64](cuda.to_device(np.ones(128))[::2], np.zeros(1))
    assert total.signatures[2:] == [(STRIDED, F8)]
    for types, overload in total.overloads.items():
        assert overload.argument_types == overload.signature.args == types
        assert overload.signature.return_type == numba.void
        assert overload.py_func is total.py_func


def test_a_launch_that_is_refused_adds_none() -> None:
    @cuda.jit
    def wrong(x):
        x[0] = no_such_name  # noqa: F821

    with pytest.raises(oxide.CompileError):
        wrong[1, 1](np.zeros(1))
    assert wrong.overloads == {}


def test_explicit_signatures_are_overloads_before_and_after_a_launch() -> None:
    @cuda.jit(["void(float32[:], int32)", "(float64[:], int32)"])
    def fill(x, number):
        x[cuda.grid(1)] = number

    declared = [(numba.float32[:], numba.int32), (numba.float64[:], numba.int32)]
    assert fill.signatures == declared
    assert all(overload.max_cooperative_grid_blocks(128) >= 1 for overload in fill.overloads.values())
    assert fill.get_shared_mem_per_block(numba.void(*declared[0])) == 0
    x = np.zeros((4, 2))[:, 0]
    fill[1, 4](x, 3)
    assert x.tolist() == [3] * 4
    assert fill.signatures == declared


def test_the_most_blocks_of_a_cooperative_grid_can_be_launched() -> None:
    @cuda.jit
    def meet(x):
        cuda.cg.this_grid().sync()
        if cuda.grid(1) < x.size:
            x[cuda.grid(1)] += 1

    x = np.zeros(5)
    meet[1, 64](x)
    (overload,) = meet.overloads.values()
    assert overload.cooperative
    most = overload.max_cooperative_grid_blocks(1024)
    assert (
        most == overload.max_cooperative_grid_blocks((32, 32)) == overload.max_cooperative_grid_blocks((32, 16, 2), 0)
    )
    assert 1 <= most <= overload.max_cooperative_grid_blocks(32)
    assert overload.max_cooperative_grid_blocks(2048) == 0
    meet[most, 1024](x)
    assert x.tolist() == [2] * 5
    with pytest.raises(oxide.LaunchError, match=f"holds {most} of them"):
        meet[most + 1, 1024](x)
        cuda.synchronize()


def test_what_a_kernel_uses_is_told_for_a_signature_or_for_all() -> None:
    total = totals()
    assert total.get_max_threads_per_block() == {}
    for dtype in ("f4", "f8"):
        total[1, 64](np.ones(64, dtype), np.zeros(1))
    types = (F8, F8)
    assert total.get_shared_mem_per_block() == dict.fromkeys(total.signatures, 512)
    assert total.get_shared_mem_per_block(types) == total.get_shared_mem_per_block(numba.void(*types)) == 512
    assert 64 <= total.get_max_threads_per_block(types) <= 1024
    with pytest.raises(KeyError):
        total.get_max_threads_per_block((numba.int8,))
    if ON_GPU:
        assert total.get_regs_per_thread(types) > 0
        assert total.get_regs_per_thread().keys() == total.overloads.keys()
        assert total.get_local_mem_per_thread(types) >= 0
        assert total.get_const_mem_size(types) >= 0
    else:
        for ask in (total.get_regs_per_thread, total.get_local_mem_per_thread, total.get_const_mem_size):
            with pytest.raises(DeviceError, match=r"kernel total: .*registers and occupancy are a GPU's.*OXIDE_DEVICE"):
                ask(types)


def test_a_specialised_kernel_has_one_overload_and_one_number() -> None:
    total = totals()
    x, out = np.ones(64), np.zeros(1)
    special = total.specialize(x, out)
    assert special.specialized
    assert not total.specialized
    assert special.signatures == [(F8, F8)]
    assert special.get_shared_mem_per_block() == 512
    assert total.specialize(cuda.to_device(x), out) is special
    special[1, 64](x, out)
    assert out[0] == 64
    with pytest.raises(RuntimeError, match="already specialized"):
        special.specialize(x, out)


def test_ptx_and_ir_are_oxides_own() -> None:
    total = totals()
    total[1, 64](np.ones(64), np.zeros(1))
    types = (F8, F8)
    assert ".entry" in total.inspect_asm(types)
    assert list(total.inspect_asm()) == list(total.inspect_llvm()) == [types]
    assert "define" in total.inspect_llvm(types)
    assert ".target sm_80" in total.overloads[types].inspect_asm((8, 0))
    with pytest.raises(NotImplementedError, match=r"kernel total: .*inspect_asm\(\)"):
        total.inspect_types()
