"""What submitting a kernel of three slices costs the host, a launch: oxide, its peers, and a compiled loop.

One block of 32 threads adds two vectors, so the device keeps up and the host is what is measured. oxide appears three
times: a chain that is built while it is submitted (what ``and_then`` does), a recipe that was built before and is run
again, and graphs of several launches, for each launch in them. All include the ordering of buffers and the fault
record, which no peer has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, final

import numpy as np

import oxide
from benchmarks.harness import Contender, Session, expect, peer, timed_batch
from oxide import DeviceBox, DisjointSlice, LaunchConfig, Slice, f32, h2d, kernel, thread

SIZE = 32
BATCH = 200
CONFIG = LaunchConfig(1, SIZE)
FLOOR = "native loop of cuLaunchKernel"
CHAIN = "oxide, chain built and submitted"
RECIPE = "oxide, recipe run again"
GRAPH_OF = "oxide, graph of {} launches"
REPLAYS_OF = "oxide, chain of replays of a graph of {}"
GRAPH_SIZES = (3, 20)
NUMBA = "numba-cuda kernel[grid, block, stream]"


@kernel
def add(a: Slice[f32], b: Slice[f32], c: DisjointSlice[f32]) -> None:
    idx = thread.index_1d()
    elem = c.get_mut(idx)
    if elem is not None:
        i = idx.get()
        elem.value = a[i] + b[i]


def run(session: Session) -> None:
    """Measures the group."""
    bench = _Launch()
    contenders: dict[str, Callable[[], Contender]] = {
        CHAIN: bench.chain,
        RECIPE: bench.recipe,
        "oxide driver.launch": bench.driver_launch,
        **{GRAPH_OF.format(size): functools.partial(bench.graph, size) for size in GRAPH_SIZES},
        **{REPLAYS_OF.format(size): functools.partial(bench.chain_of_replays, size) for size in GRAPH_SIZES},
    }
    for name, make in {
        FLOOR: bench.native_loop,
        "cuda.bindings cuLaunchKernel": bench.bindings,
        "cuda.core launch": bench.cuda_core,
        NUMBA: bench.numba_cuda,
        "CuPy RawKernel": bench.cupy,
        "Triton": bench.triton,
        "torch.add(out=)": bench.torch,
    }.items():
        contenders[name] = _on_gpu(session, make)
    compared = session.compare("launch, three slices", contenders, turns=session.choose(40, 5))
    session.claim("eager launch in a chain / native floor", compared.ratio(CHAIN, FLOOR), "at most", 2.0)
    session.claim("numba-cuda's launch / eager launch in a chain", compared.ratio(NUMBA, CHAIN), "at least", 4.0)
    for size in GRAPH_SIZES:
        replayed = compared.ratio(GRAPH_OF.format(size), FLOOR)
        session.claim(f"replay of a graph of {size} launches, each / floor", replayed, "at most", 0.5)
        chained = compared.ratio(REPLAYS_OF.format(size), FLOOR)
        session.claim("   (the same, the replays in a chain) / floor", chained, "at most", 0.5)
    session.claim("   (the same with the recipe built before) / floor", compared.ratio(RECIPE, FLOOR), "at most", 2.0)


def _on_gpu(session: Session, make: Callable[[], Contender]) -> Callable[[], Contender]:
    def checked() -> Contender:
        session.require_gpu()
        return make()

    return checked


@final
class _Launch:
    """Inputs, and one method for each contender."""

    def __init__(self) -> None:
        rng = np.random.default_rng()
        self.a, self.b = rng.standard_normal((2, SIZE), np.float32)
        self.expected = self.a.astype(np.float64) + self.b
        self.stream = oxide.devices()[0].new_stream()
        self.driver: Any = self.stream.device.driver
        self.handle: Any = self.stream._timeline.handle

    def boxes(self) -> tuple[DeviceBox, DeviceBox, DeviceBox]:
        operation = oxide.zip(h2d(self.a), h2d(self.b), oxide.zeros(SIZE))
        return operation.sync_on(self.stream)

    def contender(self, submit: Callable[[], object], units: int, c: DeviceBox) -> Contender:
        """For what writes to a box of oxide's on the benchmark's stream."""

        def check() -> None:
            submit()
            self.stream.synchronize()
            expect(oxide.d2h(c).sync_on(self.stream), self.expected)

        return Contender(timed_batch(submit, units, self.stream.synchronize), check)

    def chain(self) -> Contender:
        a, b, c = self.boxes()
        configured = add[CONFIG]

        def submit() -> None:
            operation = configured(a, b, c)
            for _ in range(BATCH // 10 - 1):
                operation = operation.and_then(lambda boxes: configured(*boxes))
            operation.async_on(self.stream)

        def submit_all() -> None:
            for _ in range(10):
                submit()

        return self.contender(submit_all, BATCH, c)

    def recipe(self) -> Contender:
        a, b, c = self.boxes()
        operation = oxide.zip(*[add[CONFIG](a, b, c) for _ in range(BATCH)])
        return self.contender(lambda: operation.async_on(self.stream), BATCH, c)

    def graph(self, size: int) -> Contender:
        captured, c = self.captured(size)
        replays = BATCH // size

        def submit() -> None:
            for _ in range(replays):
                captured.launch().async_on(self.stream)

        return self.contender(submit, replays * size, c)

    def chain_of_replays(self, size: int) -> Contender:
        captured, c = self.captured(size)
        replays = BATCH // size

        def submit() -> None:
            operation = captured.launch()
            for _ in range(replays - 1):
                operation = operation.and_then(lambda _: captured.launch())
            operation.async_on(self.stream)

        return self.contender(submit, replays * size, c)

    def captured(self, size: int) -> tuple[oxide.CudaGraph[Any], DeviceBox]:
        """A graph of ``size`` launches, and the box that it writes."""
        a, b, c = self.boxes()
        captured = oxide.zip(*[add[CONFIG](a, b, c) for _ in range(size)]).graph_on(self.stream)
        captured.take_output()
        return captured, c

    def driver_launch(self) -> Contender:
        boxes = self.boxes()
        function, params = self.function(), self.params(boxes)
        launch, handle = self.driver.launch, self.handle

        def submit() -> None:
            for _ in range(BATCH):
                launch(function, (1, 1, 1), (SIZE, 1, 1), 0, params, handle)

        return self.contender(submit, BATCH, boxes[2])

    def native_loop(self) -> Contender:
        from benchmarks.native_loop import NativeLoop, PackedParameters, launch_kernel_address

        boxes = self.boxes()
        packet = PackedParameters(self.params(boxes))
        function = self.function()
        loop = NativeLoop(launch_kernel_address(), int(function.handle), 1, SIZE, self.handle.address, packet.address)

        def submit() -> None:
            loop.run(BATCH)

        # The contender holds the loop, and this what the loop points at.
        submit.keep = (packet, function, boxes)  # type: ignore[attr-defined]
        return self.contender(submit, BATCH, boxes[2])

    def bindings(self) -> Contender:
        from cuda.bindings import driver

        from benchmarks.native_loop import PackedParameters

        boxes = self.boxes()
        packet = PackedParameters(self.params(boxes))
        function = self.function()

        def submit() -> None:
            handle, stream, address = function.handle, self.handle.handle, packet.address
            for _ in range(BATCH):
                driver.cuLaunchKernel(handle, 1, 1, 1, SIZE, 1, 1, 0, stream, 0, address)

        return self.contender(submit, BATCH, boxes[2])

    def cuda_core(self) -> Contender:
        import struct

        import cuda.core as core

        boxes = self.boxes()
        info = self.stream.device.info
        code = add.specialize().code(info.target)
        core.Device(0).set_current()
        function = core.ObjectCode.from_ptx(code.image).get_kernel(code.entry)
        words = struct.unpack("@7Q", self.params(boxes))
        config = core.LaunchConfig(grid=1, block=SIZE)
        stream = self.handle.core

        def submit() -> None:
            for _ in range(BATCH):
                core.launch(stream, config, function, *words)

        return self.contender(submit, BATCH, boxes[2])

    def numba_cuda(self) -> Contender:
        peer("numba.cuda", "numba-cuda")
        from numba import cuda

        from benchmarks.numba_kernels import add as numba_add

        stream = cuda.stream()
        a, b = cuda.to_device(self.a), cuda.to_device(self.b)
        c = cuda.device_array(SIZE, np.float32)

        def submit() -> None:
            for _ in range(BATCH):
                numba_add[1, SIZE, stream](a, b, c)

        def check() -> None:
            submit()
            stream.synchronize()
            expect(c.copy_to_host(), self.expected)

        return Contender(timed_batch(submit, BATCH, stream.synchronize), check)

    def cupy(self) -> Contender:
        cupy = peer("cupy")
        source = """
        extern "C" __global__ void add(const float* a, const float* b, float* c) {
            unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
            c[i] = a[i] + b[i];
        }"""
        function = cupy.RawKernel(source, "add")
        stream = cupy.cuda.Stream(non_blocking=True)
        a, b, c = cupy.asarray(self.a), cupy.asarray(self.b), cupy.zeros(SIZE, np.float32)
        cupy.cuda.Device().synchronize()

        def submit() -> None:
            with stream:
                for _ in range(BATCH):
                    function((1,), (SIZE,), (a, b, c))

        def check() -> None:
            submit()
            stream.synchronize()
            expect(cupy.asnumpy(c), self.expected)

        return Contender(timed_batch(submit, BATCH, stream.synchronize), check)

    def triton(self) -> Contender:
        peer("triton")
        torch = peer("torch")
        from benchmarks.triton_kernels import add as triton_add

        a, b = torch.from_numpy(self.a).cuda(), torch.from_numpy(self.b).cuda()
        c = torch.zeros_like(a)

        def submit() -> None:
            for _ in range(BATCH):
                triton_add[(1,)](a, b, c, SIZE)

        return self.torch_contender(torch, submit, c)

    def torch(self) -> Contender:
        torch = peer("torch")
        a, b = torch.from_numpy(self.a).cuda(), torch.from_numpy(self.b).cuda()
        c = torch.zeros_like(a)

        def submit() -> None:
            for _ in range(BATCH):
                torch.add(a, b, out=c)

        return self.torch_contender(torch, submit, c)

    def torch_contender(self, torch: Any, submit: Callable[[], object], c: Any) -> Contender:
        def check() -> None:
            submit()
            torch.cuda.synchronize()
            expect(c.cpu().numpy(), self.expected)

        return Contender(timed_batch(submit, BATCH, torch.cuda.synchronize), check)

    def function(self) -> Any:
        """The kernel as the driver loaded it."""
        device = self.stream.device
        return device.driver.load(device.id, add.specialize().code(device.info.target))

    def params(self, boxes: tuple[DeviceBox, DeviceBox, DeviceBox]) -> bytes:
        """The kernel's parameters, packed; without a fault record, as nothing can go wrong here."""
        return add.specialize().pack([(box.ptr, box.size) for box in boxes], 0)
