"""Graphs with branches beside a linear graph, eager runs and torch's CUDA graphs, and fused elementwise stages.

A chain's kernels have few blocks, so that a GPU has room for all four chains at once. Each contender submits the same
work and waits for its end. The linear graph is what a capture of one stream gives.

    python -m benchmarks.plans --write
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

import oxide
from benchmarks import record
from oxide import DeviceBox, DeviceOperation, DisjointSlice, Slice, empty, f32, h2d, i32, kernel, thread
from oxide.runtime.submission import capture
from oxide_kernels import gelu, ops, relu, softmax

CHAINS = 4
STAGES = 16
THREADS = 256
STEPS = 2000


@kernel(block=THREADS)
def march(steps: i32, x: DisjointSlice[f32]) -> None:
    """x[i] = x[i] * 0.999 + 0.001, again and again."""
    element = x.get_mut(thread.index_1d())
    if element is not None:
        value = element.value
        for _ in range(steps):
            value = value * f32(0.999) + f32(0.001)
        element.value = value


def chain(box: DeviceBox) -> DeviceOperation[Any]:
    operation: DeviceOperation[Any] = march(STEPS, box)
    for _ in range(STAGES - 1):
        operation = operation.and_then(lambda launched: march(STEPS, launched[1]))
    return operation


def reference(x: Any) -> Any:
    value = x.astype(np.float64)
    for _ in range(STEPS * STAGES):
        value = value * np.float32(0.999) + np.float32(0.001)
    return value


def linear(nodes: Any) -> list[tuple[int, ...]]:
    return [(number - 1,) if number else () for number in range(len(nodes))]


def torch_graph(host: list[Any], *, forked: bool) -> Callable[[], Any] | None:
    """The same chains of a Triton kernel, captured by torch on one stream or on one for each chain. None without torch,
    Triton and a GPU."""
    try:
        import torch

        from benchmarks.triton_kernels import march as triton_march
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    boxes = [torch.from_numpy(array).cuda() for array in host]
    streams = [torch.cuda.Stream() for _ in boxes]

    def run(box: Any) -> None:
        for _ in range(STAGES):
            triton_march[(1,)](box, STEPS, THREADS, num_warps=THREADS // 32)

    for box in boxes:
        run(box)  # compiles it
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(main)
        for box, stream in zip(boxes, streams, strict=True):
            with torch.cuda.stream(stream if forked else main):
                run(box)
        for stream in streams:
            main.wait_stream(stream)

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay


def contenders(host: list[Any]) -> dict[str, Callable[[], Any] | None]:
    def boxes() -> list[DeviceBox]:
        return [h2d(array).sync() for array in host]

    def branches() -> DeviceOperation[Any]:
        return oxide.zip(*[chain(box) for box in boxes()])

    eager, graph = branches(), branches().graph()
    with mock.patch.object(capture, "dependencies", linear):
        one_stream = branches().graph()
    return {
        "graph": lambda: graph.launch().sync(),
        "linear graph": lambda: one_stream.launch().sync(),
        "eager": eager.sync,
        "torch and Triton, forked graph": torch_graph(host, forked=True),
        "torch and Triton, linear graph": torch_graph(host, forked=False),
    }


def check(host: list[Any]) -> float:
    """Returns the relative error of a replay."""
    boxes = [h2d(array).sync() for array in host]
    oxide.zip(*[chain(box) for box in boxes]).graph().launch().sync()
    found = np.concatenate([oxide.d2h(box).sync() for box in boxes]).astype(np.float64)
    expected = reference(np.concatenate(host))
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@kernel(block=256)
def scale(a: f32, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = a * x[i.get()]


@kernel(block=256)
def add(x: Slice[f32], y: Slice[f32], z: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = z.get_mut(i)
    if e is not None:
        e.value = x[i.get()] + y[i.get()]


def elementwise(x: DeviceBox, out: DeviceBox) -> DeviceOperation[DeviceBox]:
    """max(0, 0.7 gelu(x) + x), in four launches."""
    size = x.size
    return (
        gelu(x, empty(size))
        .last()
        .and_then(lambda box: scale(0.7, box, empty(size)).last())
        .and_then(lambda box: add(box, x, empty(size)).last())
        .and_then(lambda box: relu(box, out).last())
    )


def scaled_and_masked(x: DeviceBox, mask: DeviceBox, out: DeviceBox) -> DeviceOperation[DeviceBox]:
    """softmax(0.125 x + mask), in three launches."""
    return (
        scale(0.125, x, empty(x.shape))
        .last()
        .and_then(lambda box: add(box, mask, empty(x.shape)).last())
        .and_then(lambda box: softmax(box, out).last())
    )


def rectified(a: DeviceBox, b: DeviceBox, out: DeviceBox) -> DeviceOperation[DeviceBox]:
    """max(0, a @ b), in two launches."""
    return ops.matmul(a, b).and_then(lambda box: relu(box, out).last())


def around(rows: int, width: int, dim: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of a softmax after a scale and a mask over rows of ``width`` numbers, and of a product of ``dim`` by
    ``dim`` matrices with a relu after it: fused, launch by launch, and in torch. The bounds are a copy of as many bytes
    as the softmax reads and writes at least, and the product alone."""
    rng = np.random.default_rng(0)
    x, mask = (rng.standard_normal((rows, width), np.float32) for _ in range(2))
    a, b = (rng.standard_normal((dim, dim), np.float32) for _ in range(2))
    boxes = [h2d(array).sync() for array in (x, mask, a, b)]
    weights, product = oxide.zeros((rows, width)).sync(), oxide.zeros((dim, dim)).sync()
    whole = oxide.zeros(3 * rows * width // 2).sync()
    half = oxide.zeros(3 * rows * width // 2).sync()
    found: dict[str, Any] = {"rows": rows, "width": width, "dim": dim}
    works: dict[str, tuple[DeviceOperation[Any], DeviceBox]] = {
        "softmax": (scaled_and_masked(boxes[0], boxes[1], weights), weights),
        "matmul": (rectified(boxes[2], boxes[3], product), product),
    }
    alone = ops.matmul(boxes[2], boxes[3]).graph()
    bounds: dict[str, Callable[[], Any]] = {"softmax": oxide.memcpy(half, whole).sync, "matmul": partial(replay, alone)}
    in_torch = torch_around(x, mask, a, b)
    for name, (operation, out) in works.items():
        operation.sync()
        expected = oxide.d2h(out).sync()
        oxide.memcpy(out, oxide.zeros(out.shape).sync()).sync()
        operation.fused().sync()
        equal = bool(np.array_equal(oxide.d2h(out).sync(), expected))
        fused_graph, graph = operation.graph(fuse=True), operation.graph()
        running: dict[str, Callable[[], Any]] = {
            "fused graph": partial(replay, fused_graph),
            "graph, not fused": partial(replay, graph),
            "bound": bounds[name],
            **in_torch.get(name, {}),
        }
        print(f"{name}; fused is equal bit for bit: {equal}; {operation.explain().splitlines()[0]}")
        found[name] = {"equal": equal, "ms": measured(running, rounds)}
        assert equal
    return found


def replay(graph: oxide.CudaGraph[Any]) -> None:
    graph.launch().sync()


def torch_around(x: Any, mask: Any, a: Any, b: Any) -> dict[str, dict[str, Callable[[], Any]]]:
    """The same in torch: eager, and by its compiler. Empty without torch and a GPU."""
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    torch.backends.cuda.matmul.allow_tf32 = True
    first, second, left, right = (torch.from_numpy(array).cuda() for array in (x, mask, a, b))

    def weights() -> Any:
        return torch.softmax(0.125 * first + second, -1)

    def product() -> Any:
        return torch.relu(left @ right)

    def in_torch(function: Callable[[], Any]) -> None:
        function()
        torch.cuda.synchronize()

    found: dict[str, dict[str, Callable[[], Any]]] = {}
    for name, function in (("softmax", weights), ("matmul", product)):
        found[name] = {"torch": partial(in_torch, function)}
        try:
            compiled = torch.compile(function)
            compiled()
            found[name]["torch.compile"] = partial(in_torch, compiled)
        except Exception as error:
            print(f"torch.compile: {type(error).__name__}")
    return found


def measured(running: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Returns the milliseconds of each contender in each round, and prints the medians."""
    times: dict[str, list[float]] = {name: [] for name in running}
    for number in range(rounds + 1):
        for name, run in running.items():
            begun = time.perf_counter()
            for _ in range(5):
                run()
            if number:
                times[name].append((time.perf_counter() - begun) / 5 * 1e3)
    for name, all_ms in times.items():
        print(f"{name:32} {statistics.median(all_ms):9.3f} ms")
    return times


def fusion(size: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of four elementwise stages over ``size`` numbers: fused, launched one by one, as graphs, in torch,
    and of a copy of as many bytes."""
    rng = np.random.default_rng(0)
    host = rng.standard_normal(size).astype(np.float32)
    x, out = h2d(host).sync(), oxide.zeros(size).sync()
    elementwise(x, out).sync()
    expected = oxide.d2h(out).sync()
    oxide.memcpy(out, x).sync()
    elementwise(x, out).fused().sync()
    equal = bool(np.array_equal(oxide.d2h(out).sync(), expected))
    fused_graph, graph = elementwise(x, out).graph(fuse=True), elementwise(x, out).graph()
    running: dict[str, Callable[[], Any]] = {
        "fused": elementwise(x, out).fused().sync,
        "fused graph": lambda: fused_graph.launch().sync(),
        "four launches": elementwise(x, out).sync,
        "graph of four launches": lambda: graph.launch().sync(),
        "copy": oxide.memcpy(out, x).sync,
    }
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None and torch.cuda.is_available():
        tensor = torch.from_numpy(host).cuda()

        def stages(values: Any) -> Any:
            return torch.relu(0.7 * torch.nn.functional.gelu(values, approximate="tanh") + values)

        def in_torch() -> None:
            stages(tensor)
            torch.cuda.synchronize()

        running["torch"] = in_torch
        try:
            compiled = torch.compile(stages)
            compiled(tensor)

            def in_inductor() -> None:
                compiled(tensor)
                torch.cuda.synchronize()

            running["torch.compile"] = in_inductor
        except Exception as error:
            print(f"torch.compile: {type(error).__name__}")
    print(f"{size} numbers, four elementwise stages; fused is equal bit for bit: {equal}")
    times = measured(running, rounds)
    assert equal
    return {"size": size, "equal": equal, "ms": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/plans-<device>.json")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    host = [rng.random(THREADS, np.float32) for _ in range(CHAINS)]
    error = check(host)
    assert error < 1e-3, f"a replay is wrong: relative error {error}"
    running = {name: run for name, run in contenders(host).items() if run is not None}
    times: dict[str, list[float]] = {name: [] for name in running}
    for number in range(options.rounds + 1):
        for name, run in running.items():
            begun = time.perf_counter()
            for _ in range(options.length):
                run()
            if number:
                times[name].append((time.perf_counter() - begun) / options.length * 1e6)
    device = oxide.devices()[0]
    base = statistics.median(times["linear graph"])
    print(f"{device.name}: {CHAINS} chains of {STAGES} kernels of {THREADS} threads; relative error {error:.1e}")
    for name, all_us in times.items():
        print(
            f"{name:32} {statistics.median(all_us):9.1f} us, {statistics.median(all_us) / base:.3f} of the linear one"
        )
    fused = fusion(1 << (27 if device.kind == "cuda" else 20), options.rounds)
    cuda = device.kind == "cuda"
    others = around(1 << 15 if cuda else 1 << 8, 1024, 4096 if cuda else 256, options.rounds)
    if options.write:
        figures = {"device": device.name, "branches_us": times, "relative_error": error, "fusion": fused}
        figures["prologue_and_epilogue"] = others
        record.write("plans", figures, "numba", "numba-cuda", "llvmlite", "cuda-core", "cuda-bindings")


if __name__ == "__main__":
    main()
