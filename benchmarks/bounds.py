"""What do bounds checks cost? The same loops checked and unchecked, beside CUDA C++ and ``numba.cuda.jit``.

All contenders of a row run in turn in one process on the same buffers, are compared with NumPy first, and are timed
with events on the GPU: each sample is ``LAUNCHES`` launches queued behind copies, so the host is not measured. Writes
``benchmarks/results/bounds-<device>.json``.

    python -m benchmarks.bounds
    python -m benchmarks.bounds --sizes 256 --repeats 3   # a trial, on any device
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

import oxide
from benchmarks import record
from benchmarks.bounds_kernels import horner, strided_squares, window_sums
from oxide import DeviceBox, LaunchConfig, Stream, h2d, kernel, zeros
from oxide_kernels import matvec_naive, sgemm_naive

LAUNCHES = 10
Contenders = dict[str, Callable[[], Any]]

CUDA_SGEMM = """
extern "C" __global__ void sgemm(unsigned m, unsigned n, unsigned k, float alpha, const float *a, const float *b,
                                 float beta, float *c) {
  size_t row = (size_t)blockIdx.y * blockDim.y + threadIdx.y;
  size_t col = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (row < m && col < n) {
    float acc = 0.0f;
    for (size_t i = 0; i < k; ++i) acc += a[row * k + i] * b[i * n + col];
    c[row * n + col] = alpha * acc + beta * c[row * n + col];
  }
}
"""


def unchecked(checked: Any) -> Any:
    return kernel(unchecked=True, block=checked.default_block)(checked.function)


def sgemm(n: int, stream: Stream) -> tuple[Contenders, DeviceBox, np.ndarray[Any, Any], float]:
    """The contenders, where their result is, what it must be, and the floating point operations of one launch."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n), np.float32) for _ in range(2))
    boxes = [h2d(a).sync(), h2d(b).sync(), zeros((n, n)).sync()]
    tiles = -(-n // 16)
    config = LaunchConfig(grid=(tiles, tiles), block=(16, 16))
    contenders: Contenders = {
        name: lambda each=each: each[config](n, n, n, 1.0, boxes[0], boxes[1], 0.0, boxes[2]).async_on(stream)
        for name, each in (("checked", sgemm_naive), ("unchecked", unchecked(sgemm_naive)))
    }
    if oxide.devices()[0].kind == "cuda":
        for name, build in (("cuda_cpp_size_t", nvrtc_sgemm), ("numba_cuda_arrays", numba_sgemm)):
            try:
                contenders[name] = build(n, boxes, stream)
                contenders[name]()  # compiles
                stream.synchronize()
            except Exception as error:  # NVRTC and libNVVM are not oxide's: without one, its row is missing
                contenders.pop(name, None)
                print(f"no {name}: {error}")
    return contenders, boxes[2], a.astype(np.float64) @ b, 2.0 * n**3


def nvrtc_sgemm(n: int, boxes: list[DeviceBox], stream: Stream) -> Callable[[], Any]:
    from cuda.core import Device, Program, ProgramOptions, launch
    from cuda.core import LaunchConfig as CudaConfig
    from cuda.core import Stream as CudaStream

    device = Device(oxide.devices()[0].id)
    device.set_current()
    major, minor = device.compute_capability
    compiled = Program(CUDA_SGEMM, "c++", ProgramOptions(arch=f"sm_{major}{minor}")).compile("cubin")
    function = compiled.get_kernel("sgemm")
    tiles = -(-n // 16)
    config, on = CudaConfig(grid=(tiles, tiles), block=(16, 16)), CudaStream.from_handle(stream.handle)
    size, one, zero = np.uint32(n), np.float32(1), np.float32(0)
    a, b, c = (box.ptr for box in boxes)
    return lambda: launch(on, config, function, size, size, size, one, a, b, zero, c)


def numba_sgemm(n: int, boxes: list[DeviceBox], stream: Stream) -> Callable[[], Any]:
    from numba import cuda

    @cuda.jit  # type: ignore[untyped-decorator]
    def arrays(alpha: Any, a: Any, b: Any, beta: Any, c: Any) -> None:
        col, row = cuda.grid(2)
        if row < c.shape[0] and col < c.shape[1]:
            acc = np.float32(0.0)
            for i in range(a.shape[1]):
                acc += a[row, i] * b[i, col]
            c[row, col] = alpha * acc + beta * c[row, col]

    tiles = -(-n // 16)
    a, b, c = (cuda.as_cuda_array(box) for box in boxes)
    on = cuda.external_stream(stream.handle)
    one, zero = np.float32(1), np.float32(0)
    return lambda: arrays[(tiles, tiles), (16, 16), on](one, a, b, zero, c)


def matvec(n: int, stream: Stream) -> tuple[Contenders, DeviceBox, np.ndarray[Any, Any], float]:
    rng = np.random.default_rng(1)
    matrix, vector = rng.standard_normal((n, n), np.float32), rng.standard_normal(n, np.float32)
    boxes = [h2d(matrix).sync(), h2d(vector).sync(), zeros(n).sync()]
    return pair(matvec_naive, (n, n, *boxes), stream), boxes[2], matrix.astype(np.float64) @ vector, 2.0 * n * n


def strided(n: int, stream: Stream) -> tuple[Contenders, DeviceBox, np.ndarray[Any, Any], float]:
    """A grid-stride loop: n threads over n*n/4 elements, the step known at run time."""
    count = n * n // 4
    x = np.random.default_rng(2).standard_normal(count, np.float32)
    boxes = [h2d(x).sync(), zeros(n).sync()]
    expected = (x.astype(np.float64).reshape(-1, n) ** 2).sum(axis=0)
    return pair(strided_squares, (count, n, *boxes), stream), boxes[1], expected, 2.0 * count


def window(n: int, stream: Stream) -> tuple[Contenders, DeviceBox, np.ndarray[Any, Any], float]:
    """A nest: the sum of a 9×9 window around each of n×n elements."""
    size = 9
    image = np.random.default_rng(3).standard_normal((n + size, n + size), np.float32)
    boxes = [h2d(image).sync(), zeros((n, n)).sync()]
    view = np.lib.stride_tricks.sliding_window_view(image.astype(np.float64), (size, size))
    expected = view[:n, :n].sum(axis=(2, 3))
    tiles = -(-n // 16)
    config = LaunchConfig(grid=(tiles, tiles), block=(16, 16))
    return pair(window_sums, (size, n, n, *boxes), stream, config), boxes[1], expected, 1.0 * size * size * n * n


def polynomial(n: int, stream: Stream) -> tuple[Contenders, DeviceBox, np.ndarray[Any, Any], float]:
    """A loop that counts down: a polynomial of 512 terms at 64*n points."""
    terms, points = 512, 64 * n
    rng = np.random.default_rng(4)
    coefficients = rng.standard_normal(terms, np.float32)
    x = rng.uniform(-1, 1, points).astype(np.float32)
    boxes = [h2d(coefficients).sync(), h2d(x).sync(), zeros(points).sync()]
    expected = np.polynomial.polynomial.polyval(x.astype(np.float64), coefficients.astype(np.float64))
    return pair(horner, (terms, *boxes), stream), boxes[2], expected, 2.0 * terms * points


def pair(checked: Any, arguments: tuple[Any, ...], stream: Stream, config: LaunchConfig | None = None) -> Contenders:
    def launched(each: Any) -> Callable[[], Any]:
        return lambda: (each if config is None else each[config])(*arguments).async_on(stream)

    return {"checked": launched(checked), "unchecked": launched(unchecked(checked))}


WORKLOADS = {"sgemm": sgemm, "matvec": matvec, "strided": strided, "window": window, "horner": polynomial}


def measure(workload: str, n: int, repeats: int, gate: np.ndarray[Any, Any]) -> dict[str, Any]:
    stream = oxide.devices()[0].new_stream()
    contenders, output, expected, operations = WORKLOADS[workload](n, stream)
    for name, launch in contenders.items():
        oxide.memcpy(output, zeros(output.shape).sync()).sync_on(stream)
        launch()
        stream.synchronize()
        error = np.abs(oxide.d2h(output).sync().reshape(expected.shape) - expected).max() / np.abs(expected).max()
        assert error < 1e-4, f"{workload} {name} n={n}: relative error {error}"
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, launch in contenders.items():
            for _ in range(2):
                h2d(gate).to_host().async_on(stream)  # the host is far ahead before the first launch begins
            start = stream.record_event()
            for _ in range(LAUNCHES):
                launch()
            end = stream.record_event()
            stream.synchronize()
            if repeat:
                times[name].append(start.elapsed_ms(end) / LAUNCHES)
    medians = {name: statistics.median(values) for name, values in times.items()}
    row: dict[str, Any] = {"workload": workload, "n": n, "ms": medians, "all_ms": times}
    row["gflops"] = {name: operations / milliseconds / 1e6 for name, milliseconds in medians.items()}
    row["checked_over"] = {name: medians[name] / medians["checked"] for name in medians if name != "checked"}
    speeds = ", ".join(f"{name} {speed:.0f}" for name, speed in row["gflops"].items())
    ratios = ", ".join(f"{ratio:.3f} of {name}" for name, ratio in row["checked_over"].items())
    print(f"{workload} n={n}: GFLOPS {speeds}; checked is {ratios}")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    device = oxide.devices()[0]
    gate = np.zeros((64 if device.kind == "cuda" else 1) << 20, np.uint8)
    rows = [measure(workload, n, options.repeats, gate) for workload in options.workloads for n in options.sizes]
    figures = {
        "device": device.name,
        "launches_a_sample": LAUNCHES,
        "rows": rows,
    }
    record.write("bounds", figures, "numba", "numba-cuda", "llvmlite", "cuda-core", "cuda-bindings")


if __name__ == "__main__":
    main()
