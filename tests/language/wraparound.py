"""Loops whose indices reach the edges of 32 and 64 bits, and what must come of them: for the tests of both devices.

Every case gives the same on any device, so the GPU's memory checker can watch them too.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from oxide import DisjointSlice, Slice, i32, i64, kernel, thread, u32, u64
from oxide.compiler.kernel.kernel import Kernel
from tests.compiler.bounds.loop_interpreter import Interpreter


@kernel
def counted(n: u32, scale: i64, shift: i64, x: Slice[i64], y: DisjointSlice[i64]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        acc = i64(0)
        for i in range(n):
            acc = acc * 3 + x[i * scale + shift]
        element.value = acc


@kernel
def stepped(start: i64, stop: i64, step: i64, shift: i64, x: Slice[i64], y: DisjointSlice[i64]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        acc = i64(0)
        for i in range(start, stop, step):
            acc = acc * 3 + x[i + shift]
        element.value = acc


@kernel
def narrow(n: i32, scale: i32, shift: i32, x: Slice[i64], y: DisjointSlice[i64]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        acc = i64(0)
        for i in range(n):
            acc = acc * 3 + x[i32(i * scale + shift)]
        element.value = acc


@kernel
def unsigned(n: u32, scale: u32, shift: u64, x: Slice[i64], y: DisjointSlice[i64]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        acc = i64(0)
        for i in range(n):
            acc = acc * 3 + x[u32(i * scale) + shift]
        element.value = acc


@kernel
def nested(rows: u32, columns: u32, pitch: i64, shift: i64, x: Slice[i64], y: DisjointSlice[i64]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        acc = i64(0)
        for i in range(rows):
            for j in range(columns):
                acc = acc * 3 + x[i * pitch + j + shift]
        element.value = acc


@kernel
def running(start: i64, limit: i64, scale: i64, x: Slice[i64], y: DisjointSlice[i64]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        acc = i64(0)
        i = start
        while i < limit:
            acc = acc * 3 + x[i * scale]
            i = i + 1
        element.value = acc


@dataclass(frozen=True)
class Case:
    """One launch of one thread: the kernel, its numbers, and the length of ``x``."""

    kernel: Kernel
    numbers: tuple[int, ...]
    length: int

    def __str__(self) -> str:
        return f"{self.kernel.name}{self.numbers} of {self.length}"

    def x(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.arange(1, self.length + 1, dtype=np.int64) * 0x12345678_9ABCDEF

    def expected(self, before: int) -> tuple[int, tuple[int, int] | None]:
        """The element, and the first fault's index and length, by the interpreter. A thread whose check fails leaves
        the kernel, and the element is what it was ``before``."""
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(self.kernel.function))).body
        assert isinstance(definition, ast.FunctionDef)
        guarded = definition.body[1]
        assert isinstance(guarded, ast.If)
        names = [parameter.name for parameter in self.kernel.parameters]
        thread = Interpreter(dict(zip(names, (*self.numbers, self.x().tolist()), strict=False)))
        thread.run(guarded.body)
        assert thread.result is not None
        fault = thread.first_fault
        return (thread.result, None) if fault is None else (before, (fault[1], fault[2]))


def cases() -> Iterator[Case]:
    edges = [e + d for e in (2**31, 2**32, 2**63, -(2**31), -(2**32), -(2**63)) for d in (-2, -1, 0, 1, 2)]
    words = [edge for edge in edges if -(2**63) <= edge < 2**63]
    for length in (0, 1, 5):
        for n in (0, 1, 2, 3, 5, 6):
            yield Case(counted, (n, 1, 0), length)
            for edge in words:
                yield Case(counted, (n, edge, 0), length)
                yield Case(counted, (n, 1, edge), length)
                yield Case(counted, (n, edge, -edge if edge != -(2**63) else edge), length)
            for scale in (2**62, -(2**62), 2**61, -1):  # products that come back to 0 modulo 2**64
                for shift in (0, 2, 4):
                    yield Case(counted, (n, scale, shift), length)
                    yield Case(nested, (n, 3, scale, shift), length)
                    yield Case(nested, (3, n, scale, shift), length)
            for scale in (1, -1, 2**30, 2**31 - 1, -(2**31)):
                for shift in (0, 4, 2**31 - 1, 2**31 - 3, -(2**31)):
                    yield Case(narrow, (n, scale, shift), length)
            for scale in (1, 2**31, 2**32 - 1):
                for unsigned_shift in (0, 1, 2**63, 2**64 - 1, 2**64 - 2**32):
                    yield Case(unsigned, (n, scale, unsigned_shift), length)
        for start, stop in [
            (0, 5),
            (4, -1),
            (5, 0),
            (2**63 - 3, 2**63 - 1),
            (-(2**63), -(2**63) + 3),
            (3, 3),
        ]:
            for step in (1, 2, 5, -1, -2, 2**62, -(2**62)):
                for shift in (0, -(2**63) + 3, 2**63 - 1, 1):
                    yield Case(stepped, (start, stop, step, shift), length)
        for start, stop, step in [(-(2**63), 2**63 - 1, 2**62), (2**63 - 1, -(2**63), -(2**62)), (2**63 - 1, 5, 1)]:
            for shift in (0, -(2**63), 2**63 - 1):
                yield Case(stepped, (start, stop, step, shift), length)
        for start, limit in [(0, 5), (-2, 2), (2**63 - 3, 2**63 - 1), (-(2**63), -(2**63) + 2), (5, 0)]:
            for scale in (1, 2, 2**32, 2**63 - 1, -(2**63), 0):
                yield Case(running, (start, limit, scale), length)
    yield Case(counted, (0, 2**63 - 1, 2**63 - 1), 0)
