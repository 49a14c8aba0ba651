"""Matrix products and attention on tensor cores beside torch's, which are cuBLAS's, cuDNN's and FlashAttention 2's, and
beside Triton's.

``python -m benchmarks.tensor [--only matmul|epilogues|types|attention] [--rounds 9] [--write]`` prints TFLOPS, the
median of rounds that all run in turn, and the ratio to each peer with its quartiles. All run as CUDA graphs of many
calls, so no host time counts. Inputs are random. Each result is compared with float64 before anything is timed:
‖C − C64‖ / ‖C64‖. ``--write`` keeps the figures after each group. Rows of earlier runs that this run does not measure
stay in the file, each with its date.
"""

from __future__ import annotations

import argparse
import builtins
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from typing import Any

from benchmarks import record
from benchmarks.harness import peer
from oxide import devices, f8e4m3, from_dlpack, h2d, zip
from oxide_kernels import attention, matmul, sgemm_tiled

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
    parser.add_argument("--only", choices=tuple(_GROUPS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    given = parser.parse_args()
    torch = peer("torch")
    rows: list[dict[str, Any]] = []
    for name, group in _GROUPS.items():
        if given.only not in (None, name):
            continue
        begun = time.perf_counter()
        rows += group(torch, given.rounds)
        print(f"{name}: {time.perf_counter() - begun:.0f} s", flush=True)
        if given.write:
            _write(torch, rows)


def _write(torch: Any, rows: list[dict[str, Any]]) -> None:
    """Writes the rows, after those of earlier runs of this GPU that measured something else."""
    name = devices()[0].name
    path = record.path_of("tensor", name, devices()[0].kind)
    before = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    measured = {_measured(row) for row in rows}
    kept = [row for row in before if _measured(row) not in measured]
    figures = {"device": name, "torch": torch.__version__, "rows": kept + rows}
    record.write("tensor", figures, "numba", "numba-cuda", "llvmlite", "numpy")


def _measured(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns what tells a row from others: what was measured, and its sizes."""
    return row["what"], *(tuple(row[key]) for key in ("m, n, k", "B, H, S, D") if key in row)


def _products(torch: Any, rounds: int) -> Iterator[dict[str, Any]]:
    for dtype in ("bf16", "f16"):
        for shape in _SHAPES + _ODD_SHAPES:
            for layout in _LAYOUTS if shape in _SHAPES[2:] else ("nt",):
                yield product(torch, dtype, shape, layout, rounds)


def _epilogues(torch: Any, rounds: int) -> Iterator[dict[str, Any]]:
    for shape in _SHAPES[2:]:
        for biased, activation in ((True, None), (False, "gelu"), (True, "gelu")):
            yield fused(torch, shape, biased, activation, rounds)


def _types(torch: Any, rounds: int) -> Iterator[dict[str, Any]]:
    for precision in ("tf32", "high"):
        yield single(torch, precision, rounds)
    for n in (4096, 1000):
        yield tiled(torch, n, rounds)
    for each in (False, True):
        for fast in (False, True):
            yield narrow(torch, each, fast, rounds)


def _attentions(torch: Any, rounds: int) -> Iterator[dict[str, Any]]:
    for sizes in _ATTENTIONS:
        for causal in (False, True):
            yield attended(torch, sizes, causal, rounds)


_GROUPS = {"matmul": _products, "epilogues": _epilogues, "types": _types, "attention": _attentions}


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


def fused(torch: Any, shape: tuple[int, int, int], biased: bool, activation: str | None, rounds: int) -> dict[str, Any]:
    """Measures ``activation(a @ b + bias)`` in bf16 beside the plain product and torch's two or three kernels."""
    m, n, k = shape
    a, b = (torch.randn(*sides, device="cuda").to(torch.bfloat16) for sides in ((m, k), (n, k)))
    bias = torch.randn(n, device="cuda").to(torch.bfloat16)
    c, c_plain = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch.cuda.synchronize()
    left, right = from_dlpack(a), from_dlpack(b).T
    operation = matmul(left, right, from_dlpack(c), bias=from_dlpack(bias) if biased else None, activation=activation)
    operation.sync()
    gelu = torch.nn.functional.gelu

    def ended(sums: Any, bias: Any) -> Any:
        sums = sums + bias if biased else sums
        return gelu(sums) if activation else sums

    what = " and ".join([*["bias"] * biased, *([activation] if activation else [])])
    expected = ended(a[:256].double() @ b.T.double(), bias.double())
    error = float((c[:256].double() - expected).norm() / expected.norm())
    if not error < _LEAST_ERROR["bf16"]:
        raise SystemExit(f"{shape}, {what}: the result is off by {error:.1e} of its norm")
    plain = matmul(left, right, from_dlpack(c_plain))
    plain.sync()
    if not _error(torch, c_plain, a, b.T) < _LEAST_ERROR["bf16"]:
        raise SystemExit(f"{shape}: the plain product is wrong")
    peers = {"torch": lambda: ended(torch.matmul(a, b.T), bias)}
    found = compare(torch, operation, peers, 2 * m * n * k, rounds, {"plain": plain})
    return _printed({"what": f"bf16 nt, {what}", "m, n, k": list(shape), "error": error, **found})


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


def tiled(torch: Any, n: int, rounds: int) -> dict[str, Any]:
    """Measures ``sgemm_tiled``, f32 without tensor cores, beside cuBLAS's f32."""
    a, b = (torch.randn(n, n, device="cuda") for _ in range(2))
    c, c_torch = torch.empty_like(a), torch.empty_like(a)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.cuda.synchronize()
    first, second, result = (from_dlpack(x.reshape(-1)) for x in (a, b, c))
    operation = sgemm_tiled(n, n, n, 1.0, first, second, 0.0, result)
    operation.sync()
    torch.matmul(a, b, out=c_torch)
    errors = [_error(torch, each, a, b) for each in (c, c_torch)]
    if not errors[0] < 5e-6:
        raise SystemExit(f"sgemm_tiled, {n}: the product is off by {errors[0]:.1e} of its norm")
    found = compare(torch, operation, {"torch": lambda: torch.matmul(a, b, out=c_torch)}, 2 * n**3, rounds)
    shown = {"what": "f32 nn, sgemm_tiled", "m, n, k": [n] * 3, "error": errors[0], "torch's error": errors[1]}
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


def compare(
    torch: Any,
    operation: Any,
    peers: Mapping[str, Callable[[], Any]],
    flops: int,
    rounds: int,
    others: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the TFLOPS of an operation, of each peer's call and of other operations, and their ratios with quartiles.
    A ratio is the other's time divided by the operation's."""
    stream = devices()[0].new_stream()
    begun = time.perf_counter()
    operation.sync_on(stream)
    taken = time.perf_counter() - begun
    # Calls of a round. The time of a short call is mostly the host's: then the operations tell.
    count = max(2, round(_SECONDS / max(flops / 5e14 + 5e-6, taken - 2e-4)))

    def ours(operation: Any) -> Callable[[], None]:
        replay = zip(*[operation] * count).graph_on(stream).launch()
        return lambda: replay.sync_on(stream)

    def theirs(call: Callable[[], Any]) -> Callable[[], None]:
        graph = _recorded(torch, call, count)

        def replay() -> None:
            graph.replay()
            torch.cuda.synchronize()

        return replay

    turns = {name: ours(each) for name, each in {"oxide": operation, **(others or {})}.items()}
    turns |= {name: theirs(call) for name, call in peers.items()}
    for turn in turns.values():
        turn()
    taken_by: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name, turn in turns.items():
            begun = time.perf_counter()
            turn()
            taken_by[name].append((time.perf_counter() - begun) / count)
    figures: dict[str, Any] = {
        f"{name}, TFLOPS": round(flops / statistics.median(times) / 1e12, 1) for name, times in taken_by.items()
    }
    own = taken_by.pop("oxide")
    for name, times in taken_by.items():
        ratios = [other / mine for mine, other in builtins.zip(own, times, strict=True)]
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
    row["run"] = date.today().isoformat()
    print(json.dumps(row), flush=True)
    return row


if __name__ == "__main__":
    main()
