"""Kernels that may begin before the one in front of them has ended: results, the rule of their wait, and the PTX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxide import CompileError, DisjointSlice, SharedArray, Slice, d2h, devices, f32, h2d, kernel, thread, zeros
from tests.compiler.assembler import assembled, needs_ptxas

RANDOM = np.random.default_rng(3)


@kernel(block=128)
def doubled(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    mine = SharedArray(128, f32)
    mine[thread.thread_idx.x] = 1.0  # shared memory is the block's own
    thread.sync_threads()
    thread.wait_dependencies()
    out = y.get_mut(i)
    if out is not None:
        out.value = 2.0 * x[i.get()] * mine[thread.thread_idx.x ^ 1]
    thread.launch_dependents()


def chain(steps: int, n: int) -> tuple[Any, Any]:
    """Returns operations that double numbers again and again, each in the memory that the one before has read."""
    a, b = h2d(RANDOM.random(n, np.float32)).sync(), zeros(n).sync()
    before = d2h(a).sync()
    operation = doubled(a, b)
    for step in range(1, steps):
        pair = (b, a) if step % 2 else (a, b)
        operation = operation.and_then(lambda _, pair=pair: doubled(*pair))
    return operation, (before, a if steps % 2 == 0 else b)


@pytest.mark.parametrize("n", [1, 31, 33, 100_003])
@pytest.mark.parametrize("steps", [1, 2, 20])
def test_each_kernel_sees_all_that_the_one_before_wrote(n: int, steps: int) -> None:
    operation, (before, result) = chain(steps, n)
    operation.sync()
    assert np.array_equal(d2h(result).sync(), before * np.float32(2.0**steps))


@pytest.mark.parametrize("steps", [1, 8])
def test_a_graph_of_them_has_the_same_result(steps: int) -> None:
    n = 50_001
    operation, (before, result) = chain(steps, n)
    graph = operation.graph()
    graph.launch().sync()
    once = before * np.float32(2.0**steps)
    if steps % 2:
        assert np.array_equal(d2h(result).sync(), once)
        return
    # An even number of steps ends where it began, so that each launch multiplies what is there.
    seen = d2h(result).sync()
    graph.launch().sync()
    assert np.array_equal(d2h(result).sync(), seen * np.float32(2.0**steps))


def test_sanitized_and_interpreted_they_give_the_same() -> None:
    if devices()[0].kind != "cpu":
        pytest.skip("the interpreter runs on the CPU device")
    x = RANDOM.random(100, np.float32)
    assert np.array_equal(doubled.interpret(h2d(x), zeros(100)).last().and_then(d2h).sync(), 2 * x)


def test_the_ptx_has_both_instructions_where_the_gpu_has_them() -> None:
    hopper, ampere = doubled.ptx(cc=(9, 0)), doubled.ptx(cc=(8, 0))
    assert hopper.index("griddepcontrol.wait;") < hopper.index("ld.global")
    assert hopper.rindex("griddepcontrol.launch_dependents;") > hopper.index("st.global")
    assert "griddepcontrol" not in ampere


@needs_ptxas
def test_the_assembler_takes_the_ptx() -> None:
    assert "registers" in assembled(doubled.ptx())


EARLY = "a thread accesses device memory before thread.wait_dependencies(), on some path; each thread makes the call"
RETURNS = "a thread returns before thread.wait_dependencies(), on some path; each thread makes the call first"
REFUSED = {
    "early": ("    t = x[0]\n    thread.wait_dependencies()\n    y.scatter[0] = t\n", EARLY),
    "on one path": ("    if n > 0:\n        thread.wait_dependencies()\n    y.scatter[0] = 1.0\n", EARLY),
    "a return before": (
        "    if n > 0:\n        return\n    thread.wait_dependencies()\n    y.scatter[0] = x[0]\n",
        RETURNS,
    ),
    "no access": ("    if n > 0:\n        thread.wait_dependencies()\n", RETURNS),
    "in a loop": ("    for i in range(n):\n        thread.wait_dependencies()\n    y.scatter[0] = x[0]\n", EARLY),
    "an atomic": ("    z.fetch_add(0, 1.0)\n    thread.wait_dependencies()\n", EARLY),
    "in a device function": ("    t = first(x)\n    thread.wait_dependencies()\n    y.scatter[0] = t\n", EARLY),
}


def compiled(body: str, path: Path) -> str:
    path.write_text(
        "from oxide import AtomicSlice, DisjointSlice, LocalArray, SharedArray, Slice, device, f32, i64, kernel\n"
        "from oxide import tensor, thread\n\n"
        "@device\ndef first(x):\n    return x[0]\n\n"
        "@device\ndef waits():\n    thread.wait_dependencies()\n\n"
        "@kernel(partial=True)\n"
        "def refused(n: i64, x: Slice[f32], y: DisjointSlice[f32], z: AtomicSlice[f32]):\n" + body,
        encoding="utf-8",
    )
    scope: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), scope)
    try:
        return str(scope["refused"].ptx(cc=(9, 0)))
    except CompileError as error:
        return str(error)


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_not_come_before_the_wait_is_refused(name: str, tmp_path: Path) -> None:
    body, sentence = REFUSED[name]
    message = compiled(body, tmp_path / "refused.py")
    line = 13 + body[: body.index("thread.wait_dependencies()")].count("\n")
    assert f"refused.py:{line + 1}" in message
    assert f"kernel refused: {sentence}" in message


ALLOWED = {
    "shared and local memory": (
        "    a = SharedArray(8, f32)\n    b = LocalArray(4, f32)\n    full = tensor.Barrier(2, 1)\n"
        "    a[n] = f32(n)\n    b[n] = a[n]\n    full.arrive(0)\n    thread.sync_threads()\n"
        "    thread.wait_dependencies()\n    y.scatter[0] = a[1] + b[n]\n"
    ),
    "both branches": (
        "    if n > 0:\n        thread.wait_dependencies()\n        y.scatter[0] = x[0]\n"
        "    else:\n        thread.wait_dependencies()\n        y.scatter[0] = x[1]\n"
    ),
    "in a device function": "    waits()\n    y.scatter[0] = x[0]\n",
    "the lengths": "    t = f32(len(x))\n    thread.wait_dependencies()\n    y.scatter[0] = t\n",
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_touches_no_device_memory_may_come_before_the_wait(name: str, tmp_path: Path) -> None:
    assert "griddepcontrol.wait;" in compiled(ALLOWED[name], tmp_path / "allowed.py")


def test_the_functions_have_no_meaning_outside_of_kernels() -> None:
    for function in (thread.wait_dependencies, thread.launch_dependents):
        with pytest.raises(TypeError, match="only inside a @kernel"):
            function()
