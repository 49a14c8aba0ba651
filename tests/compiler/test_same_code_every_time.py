"""The same kernel is the same code in every process: neither hashes nor addresses decide in which order it is written.

Python orders a set of strings by hashes that differ from process to process, and numba keeps what it links in sets.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COMPILED = """
import hashlib
from oxide import DisjointSlice, Slice, Slice2, device, f32, i64, kernel, thread, u32
from oxide.compiler.ir.llvm import host_target

@device
def one(x):
    return x + f32(1)

@device
def two(x):
    return one(x) * f32(2)

@device
def three(x):
    return two(x) - one(x)

@kernel
def called(x: Slice[f32], y: DisjointSlice[f32]):
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        element.value = three(x[i.get()]) + two(x[i.get()]) + one(x[i.get()])

@kernel
def multiplied(m: u32, n: u32, a: Slice[f32], b: Slice[f32], y: DisjointSlice[f32]):
    i = thread.index_1d()
    row = i.get()
    if row < m:
        total = f32(0)
        for j in range(n):
            total += a[row * n + j] * b[j]
        element = y.get_mut(i)
        if element is not None:
            element.value = total

@kernel
def chosen(which: i64, a: Slice2[i64], b: Slice2[i64], y: DisjointSlice[i64]):
    element = y.get_mut(thread.index_1d())
    view = a.row(0)
    if which > 0:
        view = b.col(1)
    if element is not None and view is not None:
        element.value = view[1]

for each in (called, multiplied, chosen):
    special = each.specialize()
    sanitized = special._compile_sanitized(host_target(), frozenset({"memory", "race"}))
    for text in (special.llvm_ir(), special.ptx(), repr(sanitized.sanitized.accesses), sanitized.image):
        print(each.name, hashlib.sha256(text if isinstance(text, bytes) else text.encode()).hexdigest())
"""


@pytest.mark.nightly
def test_neither_hashes_nor_addresses_decide_what_a_kernel_is_compiled_to(tmp_path: object) -> None:
    program = f"{tmp_path}/program.py"
    with open(program, "w", encoding="utf-8") as file:
        file.write(COMPILED)
    found = []
    for seed in ("1", "2", "3", "4"):
        setting = {**os.environ, "PYTHONHASHSEED": seed, "OXIDE_CACHE": "0"}
        run = subprocess.run([sys.executable, program], env=setting, capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stderr
        found.append(run.stdout)
    assert found[0].count("\n") == 12
    assert len(set(found)) == 1, found
