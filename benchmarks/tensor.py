"""Matrix products and attention on tensor cores beside torch's, which are cuBLAS's, cuDNN's and FlashAttention 2's, and
beside Triton's.

``python -m benchmarks.tensor [--only matmul|types|attention] [--rounds 9] [--write]`` prints TFLOPS, the median of
rounds that all run in turn, and the ratio to each peer with its quartiles. All run as CUDA graphs of many calls, so no
host time counts. Inputs are random. Each result is compared with float64 before anything is timed: ‖C − C64‖ / ‖C64‖.
"""

from __future__ import annotations

import argparse
import builtins
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks import record
from benchmarks.harness import peer
from oxide import devices, f8e4m3, from_dlpack, h2d, zip
from oxide_kernels import attention, matmul

_SECONDS = 0.02
"""The time of one round of each, about."""
_LEAST_ERROR = {"f16": 5e-4, "bf16": 4e-3}
"""The error of rounding the result, with a margin."""

_SHAPES = ((1024,) * 3, (2048,) * 3, (4096,) * 3, (8192,) * 3)
_ODD_SHAPES = ((32, 4096, 4096), (8192, 384, 1536), (4096, 4096, 1000), (333, 777, 1111))
_ATTENTIONS = ((2, 16, 8192, 128), (4, 16, 2048, 128), (4, 32, 4096, 64))
"""Batches, heads, tokens and head sizes."""
_LAYOUTS = {"nn": (False, False), "nt": (False, True), "tn": (True, False), "tt": (True, True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("matmul", "types", "attention"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    given = parser.parse_args()
    torch = peer("torch")
    rows = []
    for shape in _SHAPES + _ODD_SHAPES if given.only in (None, "matmul") else ():
        layouts = tuple(_LAYOUTS) if shape == _SHAPES[2] else ("nt",)
        rows += [product(torch, "bf16", shape, layout, given.rounds) for layout in layouts]
    if given.only in (None, "matmul"):
        rows += [product(torch, "f16", shape, "nt", given.rounds) for shape in _SHAPES[1:]]
        rows += [fused(torch, shape, given.rounds) for shape in _SHAPES[2:]]
    if given.only in (None, "types"):
        rows += [single(torch, precision, given.rounds) for precision in ("tf32", "high")]
        rows += [narrow(torch, each, fast, given.rounds) for each in (False, True) for fast in (False, True)]
    for sizes in _ATTENTIONS if given.only in (None, "attention") else ():
        for causal in (False, True):
            rows.append(attended(torch, sizes, causal, given.rounds))
    if given.write:
        figures = {"device": devices()[0].name, "torch": torch.__version__, "rows": rows}
        record.write("tensor", figures, "numba", "numba-cuda", "llvmlite", "numpy")


def product(torch: Any, dtype: str, shape: tuple[int, int, int], layout: str, rounds: int) -> dict[str, Any]:
    """Measures ``a @ b``. In a layout, ``t`` stands for a matrix that is stored as its transpose."""
    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    m, n, k = shape
    a_turned, b_turned = _LAYOUTS[layout]
    a = torch.randn(*((k, m) if a_turned else (m, k)), device="cuda").to(kind)
    b = torch.randn(*((n, k) if b_turned else (k, n)), device="cuda").to(kind)
    c, c_torch = (torch.empty(m, n, device="cuda", dtype=kind) for _ in range(2))
    left, right = a.T if a_turned else a, b.T if b_turned else b
    torch.cuda.synchronize()
    first, second = from_dlpack(a), from_dlpack(b)
    operation = matmul(first.T if a_turned else first, second.T if b_turned else second, from_dlpack(c))
    operation.sync()
    error = _error(torch, c, left, right)
    if not error < _LEAST_ERROR[dtype]:
        raise SystemExit(f"{shape} {dtype} {layout}: the product is off by {error:.1e} of its norm")
    peers = {"torch": lambda: torch.matmul(left, right, out=c_torch)}
    if triton := _triton():
        c_triton = torch.empty_like(c)
        strides = left.stride(0), left.stride(1), right.stride(0), right.stride(1)

        def grid(chosen: Any) -> tuple[int]:
            return (-(-m // chosen["M"]) * -(-n // chosen["N"]),)

        def theirs() -> None:
            triton.matmul[grid](left, right, c_triton, m, n, k, *strides)

        theirs()  # tunes
        if not _error(torch, c_triton, left, right) < _LEAST_ERROR[dtype]:
            raise SystemExit(f"{shape} {dtype} {layout}: Triton's product is wrong")
        peers["triton"] = theirs
    found = compare(torch, operation, peers, 2 * m * n * k, rounds)
    return _printed({"what": f"{dtype} {layout}", "m, n, k": list(shape), "error": error, **found})


def fused(torch: Any, shape: tuple[int, int, int], rounds: int) -> dict[str, Any]:
    """Measures ``gelu(a @ b + bias)`` in bf16 beside torch's three kernels."""
    m, n, k = shape
    a, b = (torch.randn(*sides, device="cuda").to(torch.bfloat16) for sides in ((m, k), (n, k)))
    bias = torch.randn(n, device="cuda").to(torch.bfloat16)
    c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    operation = matmul(from_dlpack(a), from_dlpack(b).T, from_dlpack(c), bias=from_dlpack(bias), activation="gelu")
    operation.sync()
    gelu = torch.nn.functional.gelu
    expected = gelu(a[:256].double() @ b.T.double() + bias.double())
    error = float((c[:256].double() - expected).norm() / expected.norm())
    if not error < _LEAST_ERROR["bf16"]:
        raise SystemExit(f"{shape}, fused: the result is off by {error:.1e} of its norm")

    def theirs() -> Any:
        return gelu(torch.matmul(a, b.T) + bias)

    found = compare(torch, operation, {"torch": theirs}, 2 * m * n * k, rounds)
    return _printed({"what": "bf16 nt, bias and gelu", "m, n, k": list(shape), "error": error, **found})


def single(torch: Any, precision: str, rounds: int) -> dict[str, Any]:
    """Measures products of f32 beside cuBLAS's, in tf32 or in f32."""
    n = 4096
    a, b = (torch.randn(n, n, device="cuda") for _ in range(2))
    c, c_torch = torch.empty_like(a), torch.empty_like(a)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.cuda.synchronize()
    operation = matmul(from_dlpack(a), from_dlpack(b).T, from_dlpack(c), precision=precision)
    operation.sync()
    torch.matmul(a, b.T, out=c_torch)
    errors = [_error(torch, each, a, b.T) for each in (c, c_torch)]
    if not errors[0] < {"tf32": 1e-3, "high": 1e-6}[precision]:
        raise SystemExit(f"f32, {precision}: the product is off by {errors[0]:.1e} of its norm")
    peers = {"torch": lambda: torch.matmul(a, b.T, out=c_torch)}
    found = compare(torch, operation, peers, 2 * n**3, rounds)
    shown = {"what": f"f32 nt, {precision}", "m, n, k": [n] * 3, "error": errors[0], "torch's error": errors[1]}
    return _printed({**shown, **found})


def narrow(torch: Any, each: bool, fast: bool, rounds: int) -> dict[str, Any]:
    """Measures products of f8e4m3 with one scale for each operand, or one for each row and column, beside
    ``torch._scaled_mm``."""
    n = 8192
    a, b = (torch.randn(n, n, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    a_scale, b_scale = torch.rand(n if each else 1, 1, device="cuda"), torch.rand(1, n if each else 1, device="cuda")
    c = torch.empty(n, n, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    first, second = (h2d(x.view(torch.uint8).cpu().numpy().view(f8e4m3.dtype)).sync() for x in (a, b))
    operation = matmul(
        first,
        second.T,
        from_dlpack(c),
        a_scale=from_dlpack(a_scale),
        b_scale=from_dlpack(b_scale),
        precision="fast" if fast else "high",
    )
    operation.sync()

    def theirs() -> Any:
        more = {"scale_a": a_scale, "scale_b": b_scale, "use_fast_accum": fast}
        return torch._scaled_mm(a, b.T, out_dtype=torch.bfloat16, **more)

    exact = a[:64].double() @ b.T.double() * (a_scale[:64] if each else a_scale).double() * b_scale.double()
    errors = [float((x[:64].double() - exact).norm() / exact.norm()) for x in (c, theirs())]
    if not errors[0] < _LEAST_ERROR["bf16"]:
        raise SystemExit(f"f8e4m3: the product is off by {errors[0]:.1e} of its norm")
    found = compare(torch, operation, {"torch": theirs}, 2 * n**3, rounds)
    what = f"f8e4m3 nt, {'a scale a row' if each else 'one scale'}, {'fast' if fast else 'high'}"
    return _printed({"what": what, "m, n, k": [n] * 3, "error": errors[0], "torch's error": errors[1], **found})


def attended(torch: Any, sizes: tuple[int, int, int, int], causal: bool, rounds: int) -> dict[str, Any]:
    """Measures attention in bf16 beside cuDNN's and FlashAttention 2's, as torch has them, and Triton's. A causal one
    counts half the operations."""
    batches, heads, tokens, width = sizes
    q, k, v = (torch.randn(*sizes, device="cuda").to(torch.bfloat16) for _ in range(3))
    out = torch.empty_like(q)
    torch.cuda.synchronize()
    operation = attention(*(from_dlpack(each) for each in (q, k, v, out)), causal=causal)
    operation.sync()
    worst = 0.0
    for batch, head in ((0, 0), (batches - 1, heads - 1)):
        wide = [each[batch, head].double() for each in (q, k, v)]
        scores = wide[0] @ wide[1].T / width**0.5
        if causal:
            scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        expected = scores.softmax(-1) @ wide[2]
        worst = max(worst, float((out[batch, head].double() - expected).norm() / expected.norm()))
    if not worst < 2 * _LEAST_ERROR["bf16"]:
        raise SystemExit(f"attention {sizes}, causal {causal}: the result is off by {worst:.1e} of its norm")
    flops = 4 * batches * heads * tokens * tokens * width // (2 if causal else 1)
    peers: dict[str, Callable[[], Any]] = {}
    for name, backend in (("cuDNN", "CUDNN_ATTENTION"), ("FlashAttention 2", "FLASH_ATTENTION")):

        def theirs(backend: str = backend) -> Any:
            with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        peers[name] = theirs
    if triton := _triton():
        other = torch.empty_like(q)

        def grid(chosen: Any) -> tuple[int, int]:
            return tokens // chosen["M"], batches * heads

        def tritons() -> None:
            triton.attention[grid](q, k, v, other, tokens, width**-0.5, D=width, CAUSAL=causal)

        tritons()  # tunes
        if not float((other - out).double().norm() / out.double().norm()) < 2 * _LEAST_ERROR["bf16"]:
            raise SystemExit(f"attention {sizes}, causal {causal}: Triton's result is another")
        peers["triton"] = tritons
    found = compare(torch, operation, peers, flops, rounds)
    what = f"attention, bf16{', causal' if causal else ''}"
    return _printed({"what": what, "B, H, S, D": list(sizes), "error": worst, **found})


def _triton() -> Any:
    """Returns the module of Triton's kernels, or None where Triton is not installed."""
    try:
        from benchmarks import triton_kernels
    except ImportError:
        return None
    return triton_kernels


def _error(torch: Any, found: Any, left: Any, right: Any) -> float:
    """Returns the error of some rows of a product: in float64 all of a large one would take long."""
    rows = torch.randint(0, found.shape[0], (min(256, found.shape[0]),), device="cuda")
    expected = left[rows].double() @ right.double()
    return float((found[rows].double() - expected).norm() / expected.norm())


def compare(torch: Any, operation: Any, peers: dict[str, Callable[[], Any]], flops: int, rounds: int) -> dict[str, Any]:
    """Returns the TFLOPS of an operation and of each peer's call, and their ratios with quartiles."""
    stream = devices()[0].new_stream()
    begun = time.perf_counter()
    operation.sync_on(stream)
    taken = time.perf_counter() - begun
    # Calls of a round. The time of a short call is mostly the host's: then the operations tell.
    count = max(2, round(_SECONDS / max(flops / 5e14 + 5e-6, taken - 2e-4)))
    replay = zip(*[operation] * count).graph_on(stream).launch()
    recorded = {name: _recorded(torch, call, count) for name, call in peers.items()}

    def ours() -> float:
        begun = time.perf_counter()
        replay.sync_on(stream)
        return (time.perf_counter() - begun) / count

    def theirs(graph: Any) -> float:
        begun = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - begun) / count

    ours(), *map(theirs, recorded.values())
    taken_by: dict[str, list[float]] = {name: [] for name in ("oxide", *recorded)}
    for _ in range(rounds):
        taken_by["oxide"].append(ours())
        for name, graph in recorded.items():
            taken_by[name].append(theirs(graph))
    figures: dict[str, Any] = {
        f"{name}, TFLOPS": round(flops / statistics.median(times) / 1e12, 1) for name, times in taken_by.items()
    }
    for name in recorded:
        ratios = [other / own for own, other in builtins.zip(taken_by["oxide"], taken_by[name], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        figures[f"ratio to {name}"] = round(middle, 3)
        figures[f"quartiles, {name}"] = [round(low, 3), round(high, 3)]
    return figures


def _recorded(torch: Any, call: Callable[[], Any], count: int) -> Any:
    """Returns a CUDA graph of so many calls."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded, stream=side):
        for _ in range(count):
            call()
    return recorded


def _printed(row: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(row), flush=True)
    return row


if __name__ == "__main__":
    main()
