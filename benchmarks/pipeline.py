"""async_mlp from end to end: batches a second by size and number of batches, oxide beside numba-cuda and torch.

Each batch is uploaded, multiplied by W0 and w1, rectified and downloaded; every batch is submitted before any is
waited for, on four streams. What the peers are spared is in their favour: numba-cuda and torch get page-locked
buffers for every batch and device buffers for every stream, made before the clock starts, where oxide allocates
memory for each batch as the example does. numba-cuda runs the same algorithm as oxide, one thread an element;
torch uses cuBLAS.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, final

import numpy as np
import trio

import oxide
from benchmarks.harness import Contender, Session, Unavailable, expect, peer
from examples.async_mlp import pipeline
from oxide import LaunchConfig, gather, h2d
from oxide_kernels import matvec_naive, relu, sgemm_naive

STREAMS = 4
EAGER = "oxide eager"
GRAPHS = "oxide graphs"
WHOLE_GRAPHS = "oxide graphs of 16 batches"
KERNELS = "oxide kernels alone"
NUMBA = "numba-cuda, 4 streams"
NumpyArray = np.ndarray[Any, np.dtype[np.float32]]

# Page-locked and device memory for a run: above this a size gets no more batches.
_BYTES_AT_ONCE = 4 << 30

_BATCHES_A_GRAPH = 16
_KERNELS_ALONE = 20

CONTENDERS: dict[str, Callable[[Workload], Contender]] = {}
"""Every contender by name; each is made of the workload. See ``contender``."""


def contender(name: str) -> Callable[[Callable[[Workload], Contender]], Callable[[Workload], Contender]]:
    """Adds a contender to the pipeline's comparisons."""

    def add(make: Callable[[Workload], Contender]) -> Callable[[Workload], Contender]:
        CONTENDERS[name] = make
        return make

    return add


@final
class Workload:
    """The network of one size and its batches, random, with the results in float64."""

    def __init__(self, session: Session, dim: int, batches: int) -> None:
        rng = np.random.default_rng()
        self.session = session
        self.dim = dim
        self.batches = batches
        self.w0 = rng.standard_normal((dim, dim), np.float32)
        self.w1 = rng.standard_normal(dim, np.float32)
        # Sixteen different ones are enough to catch a mix-up, and making 1024 would take longer than the run.
        self.inputs = [rng.standard_normal((dim, dim), np.float32) for _ in range(min(batches, 16))]
        product = self.w0.astype(np.float64) @ self.w1  # (batch @ W0) @ w1 = batch @ (W0 @ w1)
        self.expected = [np.maximum(0, batch.astype(np.float64) @ product) for batch in self.inputs]

    def batch(self, number: int) -> NumpyArray:
        return self.inputs[number % len(self.inputs)]

    def contender(self, run: Callable[[], list[Any]], seconds: Callable[[], float] | None = None) -> Contender:
        """Of a function that runs every batch and returns their results, still valid until it runs again. ``seconds``
        does the same and says how long it took, where that is not the whole call."""

        def timed() -> float:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start

        def check() -> None:
            results = run()
            for number, result in enumerate(results):
                expect(result, self.expected[number % len(self.expected)], relative=1e-3, what=f"batch {number}")
            if len(results) != self.batches:
                raise ValueError(f"{len(results)} results for {self.batches} batches")

        measure = seconds or timed
        return Contender(lambda: [self.batches / measure()], check)


def run(session: Session) -> None:
    """Measures the group."""
    for dim in session.choose((64, 512, 2048), (16,)):
        for batches in session.choose((1, 4, 16, 64, 256, 1024), (1, 16)):
            if batches > 1 and batches * dim * dim * 12 > _BYTES_AT_ONCE:
                break
            workload = Workload(session, dim, batches)
            compared = session.compare(
                f"dim {dim}, {batches} batch{'es' if batches > 1 else ''}",
                {name: _bound(make, workload) for name, make in CONTENDERS.items()},
                unit="batches/s",
                better="more",
                turns=15,
                warmup=1,
                series=f"dim {dim}",
                x=batches,
            )
            share = compared.ratio(EAGER, KERNELS)
            if share is not None:
                busy = share * 100
                if dim == 2048 and batches * dim * dim * 48 > _BYTES_AT_ONCE:
                    session.claim("dim 2048, sum of kernel times / wall, %", busy, "at least", 95)
                print(f"  dim {dim}, {batches} batches: kernels take {busy:.1f}% of oxide's wall time")
            if dim == 64 and batches == 1024:
                session.claim(
                    "dim 64, 1024 batches: oxide eager / numba-cuda", compared.ratio(EAGER, NUMBA), "at least", 3.0
                )
                for graphs in (GRAPHS, WHOLE_GRAPHS):
                    session.claim(
                        f"dim 64, 1024 batches: {graphs} / numba-cuda",
                        compared.ratio(graphs, NUMBA),
                        "at least",
                        8.0,
                    )


@contender(KERNELS)
def _kernels(workload: Workload) -> Contender:
    """The sum of the three kernels' own times, each alone on the device, back to back: what no way to submit them can
    beat. Measured in turn with the others, as the device's clock falls under load."""
    workload.session.require_gpu()
    dim, stream = workload.dim, oxide.devices()[0].new_stream()
    inputs, w0, w1 = oxide.zip(h2d(workload.batch(0)), h2d(workload.w0), h2d(workload.w1)).sync_on(stream)
    hidden, output = oxide.zip(oxide.zeros((dim, dim)), oxide.zeros(dim)).sync_on(stream)
    tiles = -(-dim // pipeline.TILE)
    tiled = LaunchConfig((tiles, tiles), (pipeline.TILE, pipeline.TILE))
    rows = LaunchConfig.for_num_elems(dim)
    kernels = [
        oxide.zip(*[launch] * _KERNELS_ALONE).graph_on(stream)
        for launch in (
            sgemm_naive[tiled](dim, dim, dim, 1.0, inputs, w0, 0.0, hidden),
            matvec_naive[rows](dim, dim, hidden, w1, output),
            relu[rows](output, output),
        )
    ]

    def sample() -> list[float]:
        total = 0.0
        for many in kernels:
            start = stream.record_event()
            many.launch().async_on(stream)
            end = stream.record_event()
            stream.synchronize()
            total += start.elapsed_ms(end) / _KERNELS_ALONE / 1e3
        return [1 / total]

    def check() -> None:
        sample()
        expect(oxide.d2h(output).sync_on(stream), workload.expected[0], relative=1e-3, what="batch 0")

    return Contender(sample, check)


@contender(EAGER)
def _eager(workload: Workload) -> Contender:
    policy = oxide.StreamPoolRoundRobin(STREAMS)
    w0, w1 = h2d(workload.w0).arc().sync(), h2d(workload.w1).arc().sync()

    async def all_batches() -> tuple[Any, ...]:
        return await gather(
            *[
                pipeline.mlp(workload.batch(number), w0.clone(), w1.clone()).schedule(policy)
                for number in range(workload.batches)
            ]
        )

    async def seconds() -> float:
        """In a loop that runs already, as a service's does: starting one, and the first await in it, take as long as
        several batches. What is awaited first touches nothing that the batches use."""
        await gather(oxide.value(0))
        start = time.perf_counter()
        await all_batches()
        return time.perf_counter() - start

    return workload.contender(lambda: list(trio.run(all_batches)), lambda: trio.run(seconds))


@contender(GRAPHS)
def _graphs(workload: Workload) -> Contender:
    w0, w1 = h2d(workload.w0).arc().sync(), h2d(workload.w1).arc().sync()
    batch = oxide.input((workload.dim, workload.dim))
    instances = pipeline.forward(batch, workload.dim, w0, w1).graph().instances(STREAMS)
    streams = [graph.stream for graph in instances]

    def run() -> list[Any]:
        results = []
        for number in range(workload.batches):
            launched = instances.launch(workload.batch(number)).and_then(oxide.d2h)
            results.append(launched.async_on(streams[number % STREAMS]))
        for stream in streams:
            stream.synchronize()
        return results

    return workload.contender(run)


@contender(WHOLE_GRAPHS)
def _whole_graphs(workload: Workload) -> Contender:
    """The same uploads, kernels and downloads, those of sixteen batches captured: a launch uploads sixteen arrays and
    fills those that the downloads yielded."""
    held = min(_BATCHES_A_GRAPH, workload.batches)
    lanes = min(STREAMS, workload.batches // held)
    w0, w1 = h2d(workload.w0).arc().sync(), h2d(workload.w1).arc().sync()
    inputs = [oxide.input((workload.dim, workload.dim)) for _ in range(held)]
    batches = [pipeline.forward(box, workload.dim, w0, w1).to_host() for box in inputs]
    instances = oxide.zip(*batches).graph().instances(lanes)
    streams = [graph.stream for graph in instances]
    results = [np.zeros(workload.dim, np.float32) for _ in range(workload.batches)]

    def run() -> list[Any]:
        flying: deque[tuple[int, Any]] = deque()
        for turn, first in enumerate(range(0, workload.batches, held)):
            if len(flying) == lanes:
                collect(*flying.popleft())
            launched = instances.launch(*[workload.batch(number) for number in range(first, first + held)])
            flying.append((turn, launched.async_on(streams[turn % lanes])))
        while flying:
            collect(*flying.popleft())
        return results

    def collect(turn: int, outputs: Any) -> None:
        streams[turn % lanes].synchronize()
        for number, output in enumerate(outputs, turn * held):
            np.copyto(results[number], output)

    return workload.contender(run)


@contender("NumPy")
def _numpy(workload: Workload) -> Contender:
    if workload.session.device == "cuda":
        raise Unavailable("compared on the CPU device only")

    def run() -> list[Any]:
        return [np.maximum(0, workload.batch(number) @ workload.w0 @ workload.w1) for number in range(workload.batches)]

    return workload.contender(run)


@contender(NUMBA)
def _numba(workload: Workload) -> Contender:
    workload.session.require_gpu()
    peer("numba.cuda", "numba-cuda")
    from numba import cuda

    from benchmarks import numba_kernels

    dim, batches = workload.dim, workload.batches
    streams = [cuda.stream() for _ in range(STREAMS)]
    w0, w1 = cuda.to_device(workload.w0), cuda.to_device(workload.w1)
    staged = [cuda.pinned_array((dim, dim), np.float32) for _ in range(batches)]
    results = [cuda.pinned_array(dim, np.float32) for _ in range(batches)]
    buffers = [
        (cuda.to_device(workload.w0), cuda.to_device(workload.w0), cuda.to_device(workload.w1)) for _ in range(STREAMS)
    ]
    tiles = -(-dim // pipeline.TILE)
    rows = -(-dim // 256)
    one, zero = np.float32(1), np.float32(0)

    def run() -> list[Any]:
        for number in range(batches):
            stream = streams[number % STREAMS]
            inputs, hidden, output = buffers[number % STREAMS]
            np.copyto(staged[number], workload.batch(number))
            inputs.copy_to_device(staged[number], stream=stream)
            numba_kernels.sgemm[(tiles, tiles), (pipeline.TILE, pipeline.TILE), stream](one, inputs, w0, zero, hidden)
            numba_kernels.matvec[rows, 256, stream](hidden, w1, output)
            numba_kernels.relu[rows, 256, stream](output, output)
            output.copy_to_host(results[number], stream=stream)
        for stream in streams:
            stream.synchronize()
        return results

    return workload.contender(run)


@contender("torch, 4 streams")
def _torch(workload: Workload) -> Contender:
    workload.session.require_gpu()
    torch = peer("torch")
    torch.backends.cuda.matmul.allow_tf32 = False
    dim, batches = workload.dim, workload.batches
    w0, w1 = torch.from_numpy(workload.w0).cuda(), torch.from_numpy(workload.w1).cuda()
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    staged = [torch.empty((dim, dim)).pin_memory() for _ in range(batches)]
    results = [torch.empty(dim).pin_memory() for _ in range(batches)]
    torch.cuda.synchronize()

    def run() -> list[Any]:
        for number in range(batches):
            with torch.cuda.stream(streams[number % STREAMS]):
                np.copyto(staged[number].numpy(), workload.batch(number))
                inputs = staged[number].to("cuda", non_blocking=True)
                results[number].copy_(torch.relu(inputs @ w0 @ w1), non_blocking=True)
        torch.cuda.synchronize()
        return results

    return workload.contender(run)


@contender("torch, CUDA graphs")
def _torch_graphs(workload: Workload) -> Contender:
    workload.session.require_gpu()
    torch = peer("torch")
    torch.backends.cuda.matmul.allow_tf32 = False
    dim, batches = workload.dim, workload.batches
    w0, w1 = torch.from_numpy(workload.w0).cuda(), torch.from_numpy(workload.w1).cuda()
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    staged = [torch.empty((dim, dim)).pin_memory() for _ in range(batches)]
    results = [torch.empty(dim).pin_memory() for _ in range(batches)]
    graphs: list[tuple[Any, Any, Any]] = []
    for stream in streams:
        inputs = torch.zeros((dim, dim), device="cuda")
        with torch.cuda.stream(stream):  # a capture wants its libraries warm
            torch.relu(inputs @ w0 @ w1)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            output = torch.relu(inputs @ w0 @ w1)
        graphs.append((graph, inputs, output))
    torch.cuda.synchronize()

    def run() -> list[Any]:
        for number in range(batches):
            graph, inputs, output = graphs[number % STREAMS]
            with torch.cuda.stream(streams[number % STREAMS]):
                np.copyto(staged[number].numpy(), workload.batch(number))
                inputs.copy_(staged[number], non_blocking=True)
                graph.replay()
                results[number].copy_(output, non_blocking=True)
        torch.cuda.synchronize()
        return results

    return workload.contender(run)


def _bound(make: Callable[[Workload], Contender], workload: Workload) -> Callable[[], Contender]:
    return lambda: make(workload)
