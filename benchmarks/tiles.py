"""Tile kernels, the book's own programs, beside torch and Triton on a GPU, and beside NumPy on the CPU device.

``python -m benchmarks.tiles [--only gemm|attention|rows|fused] [--rounds 9] [--write]`` prints TFLOPS, or TB/s of the
bytes that a program must move, the median of rounds that all run in turn, and the ratio to each peer with its
quartiles. Each program is launched with each of some tile shapes, warps and stages first, and is measured with the
fastest, as Triton's are. Results are compared with float64 before anything is timed. On the CPU device
(``OXIDE_DEVICE=cpu``) it prints GFLOPS, or GB/s, and the ratio to NumPy on as many threads.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from benchmarks import record
from benchmarks.harness import peer
from benchmarks.tensor import _error as product_error
from benchmarks.tensor import _triton, compare
from examples.tiles import attention, gemm, layer_norm, softmax
from oxide import DeviceOperation, OxideError, bf16, devices, f32, from_dlpack, h2d, tile, zeros

_LEAST_ERROR = 4e-3
_ROWS = (128, 1024, 8192)
_ELEMENTS = 2**26
"""The elements of the matrices of rows: more than the cache holds."""


@tile.kernel
def bias_gelu_residual(
    y: tile.Partition2[bf16], x: tile.Tensor2[bf16], bias: tile.Tensor1[bf16], residual: tile.Tensor2[bf16]
) -> None:
    columns = y.tile_shape[1]
    v = tile.load_like(x, y).astype(f32) + bias.load(y.index[1], columns).astype(f32)
    activated = 0.5 * v * (1 + tile.erf(v * 0.7071067811865476))
    y.store(activated + tile.load_like(residual, y).astype(f32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("gemm", "attention", "rows", "fused"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    given = parser.parse_args()
    device = devices()[0]
    if device.kind == "cpu":
        rows = list(on_the_cpu(given.rounds))
        figures: dict[str, Any] = {"device": device.name, "rows": rows}
    else:
        torch = peer("torch")
        rows = []
        for n in (4096, 8192) if given.only in (None, "gemm") else ():
            rows.append(product(torch, n, given.rounds))
        if given.only in (None, "attention"):
            rows.append(attended(torch, (2, 16, 8192, 128), given.rounds))
        for columns in _ROWS if given.only in (None, "rows") else ():
            rows += [
                rowwise(torch, "softmax", columns, given.rounds),
                rowwise(torch, "layer norm", columns, given.rounds),
            ]
        if given.only in (None, "fused"):
            rows.append(fused(torch, given.rounds))
        figures = {"device": device.name, "torch": torch.__version__, "rows": rows}
    if given.write:
        record.write("tiles", figures, "numba", "numba-cuda", "llvmlite", "numpy")


def variants(kernel: Any, warps: Iterable[int], stages: Iterable[int] = (1,)) -> list[Any]:
    """Returns a kernel with other options: the same function."""
    return [tile.kernel(warps=w, stages=s)(kernel.function) for w, s in itertools.product(warps, stages)]


def fastest(
    candidates: Iterable[tuple[str, Callable[[], DeviceOperation[Any]]]], check: Callable[[], float]
) -> tuple[str, DeviceOperation[Any]]:
    """Returns the fastest of some launches. Ends the program if one is wrong; a launch that cannot be compiled, as its
    tiles do not fit, is left out."""
    stream = devices()[0].new_stream()
    best: tuple[float, str, DeviceOperation[Any]] | None = None
    for name, make in candidates:
        try:
            operation = make()
            operation.sync_on(stream)
        except OxideError as error:
            print(json.dumps({"left out": name, "why": str(error).split("\n")[0]}), flush=True)
            continue
        if not check() < _LEAST_ERROR:
            raise SystemExit(f"{name}: the result is off by {check():.1e} of its norm")
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            for _ in range(4):
                operation.async_on(stream)
            stream.synchronize()
            times.append(time.perf_counter() - begun)
        taken = min(times)
        if best is None or taken < best[0]:
            best = taken, name, operation
    assert best is not None, "no candidate could be compiled"
    return best[1], best[2]


def product(torch: Any, n: int, rounds: int) -> dict[str, Any]:
    """Measures ``a @ b`` in bf16."""
    a, b = (torch.randn(n, n, device="cuda").to(torch.bfloat16) for _ in range(2))
    c, c_torch = (torch.empty(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch.cuda.synchronize()
    left, right, out = (from_dlpack(each) for each in (a, b, c))
    candidates = []
    for (warps, shape), stages, bk in itertools.product(
        ((8, (128, 256)), (4, (64, 256)), (8, (256, 128)), (4, (128, 128)), (8, (128, 128))), (3, 4), (64, 128)
    ):
        kernel = tile.kernel(warps=warps, stages=stages)(gemm.matmul.function)
        name = f"tiles {shape}, bk {bk}, {warps} warps, {stages} stages"
        candidates.append((name, lambda k=kernel, s=shape, b=bk: k(out.partition(s), left, right, b)))
    name, operation = fastest(candidates, lambda: product_error(torch, c, a, b))
    peers: dict[str, Callable[[], Any]] = {"torch": lambda: torch.matmul(a, b, out=c_torch)}
    if triton := _triton():
        c_triton = torch.empty_like(c)

        def grid(chosen: Any) -> tuple[int]:
            return (-(-n // chosen["M"]) * -(-n // chosen["N"]),)

        def theirs() -> None:
            triton.matmul[grid](a, b, c_triton, n, n, n, n, 1, n, 1)

        theirs()  # tunes
        peers["triton"] = theirs
    found = compare(torch, operation, peers, 2 * n**3, rounds)
    return _printed({"what": "gemm bf16", "n": n, "with": name, "error": product_error(torch, c, a, b), **found})


def attended(torch: Any, sizes: tuple[int, int, int, int], rounds: int) -> dict[str, Any]:
    """Measures attention in bf16."""
    batches, heads, tokens, width = sizes
    q, k, v = (torch.randn(*sizes, device="cuda").to(torch.bfloat16) for _ in range(3))
    out = torch.empty_like(q)
    torch.cuda.synchronize()
    flat = [from_dlpack(each.reshape(-1, width)) for each in (q, k, v, out)]
    scale = math.log2(math.e) / math.sqrt(width)
    wide = [each[-1, -1].double() for each in (q, k, v)]
    expected = (wide[0] @ wide[1].T / width**0.5).softmax(-1) @ wide[2]

    def error() -> float:
        return float((out[-1, -1].double() - expected).norm() / expected.norm()) / 2

    candidates = []
    for (warps, high), stages, bn in itertools.product(((8, 128), (4, 64), (4, 128)), (2, 3), (64, 128)):
        kernel = tile.kernel(warps=warps, stages=stages, fastmath=True)(attention.attention.function)

        def make(kernel: Any = kernel, high: int = high, bn: int = bn) -> DeviceOperation[Any]:
            return kernel(flat[3].partition((high, width)), *flat[:3], tokens, scale, bn)  # type: ignore[no-any-return]

        candidates.append((f"{high} queries, {bn} keys, {warps} warps, {stages} stages", make))
    name, operation = fastest(candidates, error)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    peers: dict[str, Callable[[], Any]] = {"torch": lambda: sdpa(q, k, v)}
    if triton := _triton():
        other = torch.empty_like(q)

        def grid(chosen: Any) -> tuple[int, int]:
            return tokens // chosen["M"], batches * heads

        def theirs() -> None:
            triton.attention[grid](q, k, v, other, tokens, width**-0.5, D=width, CAUSAL=False)

        theirs()  # tunes
        peers["triton"] = theirs
    found = compare(torch, operation, peers, 4 * batches * heads * tokens * tokens * width, rounds)
    return _printed({"what": "attention bf16", "B, H, S, D": list(sizes), "with": name, "error": 2 * error(), **found})


def rowwise(torch: Any, what: str, columns: int, rounds: int) -> dict[str, Any]:
    """Measures softmax or layer norm of rows, in f32."""
    rows = _ELEMENTS // columns
    x = torch.randn(rows, columns, device="cuda")
    weight, bias = (torch.randn(columns, device="cuda") for _ in range(2))
    y = torch.empty_like(x)
    torch.cuda.synchronize()
    source, target, *more = (from_dlpack(each) for each in (x, y, weight, bias))
    of = torch.nn.functional
    if what == "softmax":
        kernel, more = softmax.softmax, []

        def expected(some: Any) -> Any:
            return some.softmax(-1)
    else:
        kernel = layer_norm.layer_norm

        def expected(some: Any) -> Any:
            return of.layer_norm(some, (columns,), weight.to(some.dtype), bias.to(some.dtype))

    def error() -> float:
        exact = expected(x[-64:].double())
        return float((y[-64:].double() - exact).norm() / exact.norm()) * 1e3  # f32 has that much more precision

    candidates = []
    for one in variants(kernel, (1, 2, 4, 8, 16)):
        for high in (1, 2, 4, 8, 16, 32):
            if 256 <= high * columns <= 16384:
                name = f"tiles {(high, columns)}, {one._warps} warps"
                candidates.append((name, lambda k=one, h=high: k(target.partition((h, columns)), source, *more)))
    name, operation = fastest(candidates, error)
    peers: dict[str, Callable[[], Any]] = {"torch": lambda: expected(x)}
    if triton := _triton():
        other = torch.empty_like(x)

        def theirs() -> None:
            if what == "softmax":
                triton.softmax[(rows,)](x, other, columns, WIDTH=columns)
            else:
                triton.layer_norm[(rows,)](x, weight, bias, other, columns, WIDTH=columns)

        theirs()  # tunes
        peers["triton"] = theirs
    found = _bandwidth(compare(torch, operation, peers, 2 * 4 * _ELEMENTS, rounds))
    return _printed({"what": what, "rows, columns": [rows, columns], "with": name, "error": error() / 1e3, **found})


def fused(torch: Any, rounds: int) -> dict[str, Any]:
    """Measures ``gelu(x + bias) + residual`` in bf16, beside a copy of as many bytes."""
    rows, columns = 16384, 4096
    x, residual = (torch.randn(rows, columns, device="cuda").to(torch.bfloat16) for _ in range(2))
    bias = torch.randn(columns, device="cuda").to(torch.bfloat16)
    y = torch.empty_like(x)
    moved = torch.empty(3 * rows * columns, device="cuda", dtype=torch.bfloat16)
    half = moved.numel() // 2
    torch.cuda.synchronize()
    target, source, offsets, rest = (from_dlpack(each) for each in (y, x, bias, residual))
    gelu = torch.nn.functional.gelu

    def error() -> float:
        exact = gelu(x[:256].double() + bias.double()) + residual[:256].double()
        return float((y[:256].double() - exact).norm() / exact.norm())

    candidates = []
    for one in variants(bias_gelu_residual, (2, 4, 8)):
        for shape in ((1, 1024), (1, 2048), (1, 4096), (4, 512), (8, 256), (16, 128)):
            name = f"tiles {shape}, {one._warps} warps"
            candidates.append((name, lambda k=one, s=shape: k(target.partition(s), source, offsets, rest)))
    name, operation = fastest(candidates, error)
    peers = {
        "torch": lambda: gelu(x + bias) + residual,
        "copy": lambda: moved[:half].copy_(moved[half : 2 * half]),
    }
    found = _bandwidth(compare(torch, operation, peers, 3 * 2 * rows * columns, rounds))
    return _printed(
        {"what": "bias, gelu, residual", "rows, columns": [rows, columns], "with": name, "error": error(), **found}
    )


def _bandwidth(figures: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("TFLOPS", "TB/s"): value for name, value in figures.items()}


# The CPU device


def on_the_cpu(rounds: int) -> Iterable[dict[str, Any]]:
    """Measures products, softmax and layer norm in f32 beside NumPy."""
    rng = np.random.default_rng(1)
    n = 1024
    a, b = (rng.standard_normal((n, n)).astype(np.float32) for _ in range(2))
    boxes = [h2d(each).sync() for each in (a, b)]
    c = zeros((n, n)).sync()
    launch = gemm.matmul_f32(c.partition((120, 256)), *boxes, 256)
    yield _beside_numpy("gemm f32", launch, c, lambda: a @ b, a.astype(np.float64) @ b, 2 * n**3, rounds)
    x = rng.standard_normal((4096, 1024)).astype(np.float32)
    weight, bias = (rng.standard_normal(1024).astype(np.float32) for _ in range(2))
    y = zeros(x.shape).sync()
    source, *more = (h2d(each).sync() for each in (x, weight, bias))

    def numpys(x: Any) -> Any:
        e = np.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    def normed(x: Any) -> Any:
        return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + x.dtype.type(1e-5)) * weight + bias

    wide = x.astype(np.float64)
    launch = softmax.softmax(y.partition((4, 1024)), source)
    yield _beside_numpy("softmax f32", launch, y, lambda: numpys(x), numpys(wide), 2 * x.nbytes, rounds)
    launch = layer_norm.layer_norm(y.partition((4, 1024)), source, *more)
    yield _beside_numpy("layer norm f32", launch, y, lambda: normed(x), normed(wide), 2 * x.nbytes, rounds)


def _beside_numpy(
    what: str,
    launch: DeviceOperation[Any],
    result: Any,
    theirs: Callable[[], Any],
    expected: Any,
    work: int,
    rounds: int,
) -> dict[str, Any]:
    def timed(call: Callable[[], Any]) -> float:
        begun = time.perf_counter()
        call()
        return time.perf_counter() - begun

    launch.sync()
    error = float(np.linalg.norm(result.host_view() - expected) / np.linalg.norm(expected))
    if not error < 1e-5:
        raise SystemExit(f"{what}: the result is off by {error:.1e} of its norm")
    theirs()
    pairs = [(timed(launch.sync), timed(theirs)) for _ in range(rounds)]
    low, middle, high = statistics.quantiles([other / own for own, other in pairs], n=4)
    unit = "GFLOPS" if what.startswith("gemm") else "GB/s"
    mine, other = (statistics.median(each) for each in zip(*pairs, strict=True))
    return _printed({
        "what": what, "error": error, f"oxide, {unit}": round(work / mine / 1e9, 1),
        f"numpy, {unit}": round(work / other / 1e9, 1), "ratio to numpy": round(middle, 3),
        "quartiles, numpy": [round(low, 3), round(high, 3)],
    })  # fmt: skip


def _printed(row: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(row), flush=True)
    return row


if __name__ == "__main__":
    main()
