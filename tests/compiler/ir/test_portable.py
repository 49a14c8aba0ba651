"""A portable kernel is a value: it is printed and read back, and neither back end changes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from examples.tiles import softmax
from oxide import DisjointSlice, SharedArray, Slice, f32, i64, kernel, thread
from oxide.compiler.cache.entries import decoded, encoded
from oxide.compiler.cpu.object_code import compile_native
from oxide.compiler.fusion.fusion import Stage, fused
from oxide.compiler.ir.llvm import host_target
from oxide.compiler.kernel.specialization import Specialization
from oxide.compiler.ptx.ptx import compile_ptx, target_of
from oxide_kernels import gelu, relu


def turned(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    shared = SharedArray(64, f32)
    index = thread.index_1d()
    shared[thread.thread_idx.x] = x[index.get()] % f32(3)
    thread.sync_threads()
    element = y.get_mut(index)
    if element is not None:
        element.value = shared[63 - thread.thread_idx.x]


def shifted(x: Slice[i64], y: DisjointSlice[i64]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = max(x[0] << x[1], x[2] & 3)


def chain() -> Specialization:
    return fused(
        [Stage(relu.specialize(T=f32), (0, 1)), Stage(gelu.specialize(T=f32), (1, 2))], {1}
    ).kernel.specialize()


@pytest.mark.parametrize(
    "made",
    [
        lambda: kernel(turned).specialize(),
        lambda: kernel(lineinfo=True)(turned).specialize(),
        lambda: kernel(shifted).specialize(),
        lambda: kernel(lineinfo=True)(shifted).specialize(),
        chain,
        lambda: softmax.softmax.specialize(y=(4, 1024)),
    ],
    ids=["thread", "thread, lines", "shifts", "shifts, lines", "fused", "tile"],
)
def test_a_portable_kernel_is_read_back_and_left_unchanged(made: Callable[[], Specialization]) -> None:
    special = made()
    portable = special.portable
    before = portable.text
    again = decoded(encoded(portable, {}), {})
    assert again == portable
    assert hash(again) == hash(portable)
    target = target_of("k", (9, 0))
    compile_ptx(portable, "k", special.signature, 1, target, unchecked=False, max_registers=None, block=None)
    compile_native(portable, special.signature, 1, host_target(), unchecked=False)
    assert portable.text == before
