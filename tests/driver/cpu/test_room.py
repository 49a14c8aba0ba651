"""A range of blocks takes its shared memory and its threads' frames from the stack, and allocates only large ones."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from oxide import DisjointSlice, DynamicSharedArray, Kernel, SharedArray, Slice, f64, kernel, thread
from oxide.driver.cpu.code import CpuFunction, host_target
from oxide.driver.object import EXTERNAL_FUNCTIONS

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux", reason="LLVM loads the code here, and nobody counts"
)


@kernel
def copied_through_a_tile(x: Slice[f64], y: DisjointSlice[f64]) -> None:
    tile = SharedArray(1024, f64)
    i = thread.index_1d()
    tile[thread.thread_idx.x] = x[i.get()]
    out = y.get_mut(i)
    if out is not None:
        out.value = tile[thread.thread_idx.x]


@kernel
def turned_behind_a_barrier(x: Slice[f64], y: DisjointSlice[f64]) -> None:
    tile = SharedArray(1024, f64)
    i = thread.index_1d()
    tile[thread.thread_idx.x] = x[i.get()]
    thread.sync_threads()
    out = y.get_mut(i)
    if out is not None:
        out.value = tile[thread.block_dim.x - 1 - thread.thread_idx.x]


@kernel
def turned_in_dynamic_memory(x: Slice[f64], y: DisjointSlice[f64]) -> None:
    tile = DynamicSharedArray(f64)
    i = thread.index_1d()
    tile[thread.thread_idx.x] = x[i.get()]
    thread.sync_threads()
    out = y.get_mut(i)
    if out is not None:
        out.value = tile[thread.block_dim.x - 1 - thread.thread_idx.x]


@pytest.fixture
def calls() -> Iterator[Counter[str]]:
    """How often code that is loaded from now on allocates and frees."""
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    counted: Counter[str] = Counter()

    def malloc(size: int) -> Any:
        counted["malloc"] += 1
        return library.malloc(size)

    def free(address: int) -> None:
        counted["free"] += 1
        library.free(address)

    functions = {
        "malloc": ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(malloc),
        "free": ctypes.CFUNCTYPE(None, ctypes.c_void_p)(free),
    }
    before = dict(EXTERNAL_FUNCTIONS)
    EXTERNAL_FUNCTIONS.update({name: ctypes.cast(each, ctypes.c_void_p).value or 0 for name, each in functions.items()})
    yield counted
    EXTERNAL_FUNCTIONS.clear()
    EXTERNAL_FUNCTIONS.update(before)


def run(turned: Kernel, threads: int, shared_bytes: int = 0) -> None:
    """Three blocks, which one call runs."""
    special = turned.specialize()
    function = CpuFunction(0, special.code(host_target()))
    x, y = np.random.default_rng(threads).random(3 * threads), np.zeros(3 * threads)
    params = special.pack([(x.ctypes.data, x.size), (y.ctypes.data, y.size)], 0)
    function.bind((3, 1, 1), (threads, 1, 1), shared_bytes, params)(0, 3)
    blocks = x.reshape(3, threads)
    np.testing.assert_array_equal(y.reshape(3, threads), blocks if turned is copied_through_a_tile else blocks[:, ::-1])


@pytest.mark.parametrize("threads", [1, 33, 128])
@pytest.mark.parametrize("turned", [copied_through_a_tile, turned_behind_a_barrier])
def test_a_small_block_allocates_nothing(calls: Counter[str], turned: Kernel, threads: int) -> None:
    run(turned, threads)
    assert not calls


def test_large_frames_are_allocated_once_for_a_range_of_blocks(calls: Counter[str]) -> None:
    run(turned_behind_a_barrier, 1024)
    assert calls == {"malloc": 1, "free": 1}


def test_large_shared_memory_is_allocated_once_for_a_range_of_blocks(calls: Counter[str]) -> None:
    run(turned_in_dynamic_memory, 33, shared_bytes=32 << 10)
    assert not calls
    run(turned_in_dynamic_memory, 33, shared_bytes=(32 << 10) + 8)
    assert calls == {"malloc": 1, "free": 1}
