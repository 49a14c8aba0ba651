"""Native kernels for the driver's own tests, written in LLVM IR so that no compiler of oxide's is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from oxide.driver.base import Code
from oxide.driver.cpu import CpuDriver
from oxide.driver.cpu.code import host_target

Compile = Callable[[str, str], Code]


class Gate:
    """A host function that says when it has begun, and ends once it is released."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.release = threading.Event()

    def __call__(self) -> None:
        self.started.set()
        self.release.wait()


@pytest.fixture(scope="session")
def compile_ir() -> Compile:
    """``compile_ir(ir, entry)``: the object file of a module, as the compiler would hand it to a driver."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()

    def compile_(ir: str, entry: str) -> Code:
        machine = llvm.Target.from_default_triple().create_target_machine(opt=2, jit=True)
        return Code(host_target(), entry, machine.emit_object(llvm.parse_assembly(ir)))

    return compile_


@pytest.fixture(scope="session")
def count_blocks(compile_ir: Compile) -> Code:
    """Parameters ``(u32 *counts, i64 spins)``: adds 1 to ``counts[block]``, after ``spins`` loads of it."""
    return compile_ir(COUNT_BLOCKS, "count_blocks")


@pytest.fixture(scope="session")
def wait_for_flag(compile_ir: Compile) -> Code:
    """Parameters ``(u32 *flag)``: runs until somebody makes the flag something other than 0."""
    return compile_ir(WAIT_FOR_FLAG, "wait_for_flag")


@pytest.fixture
def driver() -> Iterator[CpuDriver]:
    driver = CpuDriver(2, threads=2)
    yield driver
    driver.close()


@pytest.fixture
def steps() -> Iterator[CpuDriver]:
    driver = CpuDriver(2, step=True)
    yield driver
    driver.close()


COUNT_BLOCKS = """
define void @count_blocks(ptr %launch, i64 %first, i64 %end) {
entry:
  %params.field = getelementptr i8, ptr %launch, i64 32
  %params = load ptr, ptr %params.field
  %counts = load ptr, ptr %params
  %spins.field = getelementptr i8, ptr %params, i64 8
  %spins = load i64, ptr %spins.field
  br label %block
block:
  %b = phi i64 [ %first, %entry ], [ %b.next, %done ]
  %count = getelementptr i32, ptr %counts, i64 %b
  br label %spin
spin:
  %i = phi i64 [ 0, %block ], [ %i.next, %spin ]
  %ignored = load volatile i32, ptr %count
  %i.next = add i64 %i, 1
  %again = icmp slt i64 %i.next, %spins
  br i1 %again, label %spin, label %done
done:
  %old = atomicrmw add ptr %count, i32 1 monotonic
  %b.next = add i64 %b, 1
  %more = icmp slt i64 %b.next, %end
  br i1 %more, label %block, label %exit
exit:
  ret void
}
"""

WAIT_FOR_FLAG = """
define void @wait_for_flag(ptr %launch, i64 %first, i64 %end) {
entry:
  %params.field = getelementptr i8, ptr %launch, i64 32
  %params = load ptr, ptr %params.field
  %flag = load ptr, ptr %params
  br label %spin
spin:
  %value = load atomic volatile i32, ptr %flag acquire, align 4
  %waiting = icmp eq i32 %value, 0
  br i1 %waiting, label %spin, label %exit
exit:
  ret void
}
"""
