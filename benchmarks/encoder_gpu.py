"""The embeddings example's encoder in f16 beside torch's, on a GPU: milliseconds of a batch.

torch runs the same encoder, written with ``torch.nn.functional`` and ``scaled_dot_product_attention``, in f16: eagerly,
and as a CUDA graph. oxide runs it as a graph. The ways alternate. A round of each is many runs in a row and one wait;
the figures are medians of rounds, and ratios have quartiles. ``call`` is a single run from the tokens on the host to
the vectors on the host. Vectors are compared with torch's in float64 first. Weights are those of ``--weights FOLDER``,
otherwise random ones of the model's shapes.

    python -m benchmarks.encoder_gpu [--weights FOLDER] [--rounds 9] [--kernels] [--write]

``--kernels`` also times each kernel of a layer by itself. ``--check`` only compares vectors, on any device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import record
from benchmarks.harness import peer
from examples.embeddings import half, half_kernels
from examples.embeddings.half import HalfEncoder
from examples.embeddings.kernels import HEAD
from examples.embeddings.layout import Layout
from oxide import DeviceOperation, Stream, d2h, devices, empty, f16, h2d
from oxide_kernels import layer_norm, matmul

SHAPES = ((1, 32), (8, 32), (32, 32), (128, 64), (256, 128))
WIDTH, INNER, LAYERS, WORDS, PLACES = 384, 1536, 6, 30_522, 512
_SECONDS = 0.03
"""The time of a round of a way, about."""


def main() -> None:
    """Measures and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", metavar="FOLDER", type=Path, help="a folder with model.safetensors")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--kernels", action="store_true", help="also time each kernel of a layer")
    parser.add_argument("--check", action="store_true", help="compare the vectors of a small batch, and time nothing")
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    given = parser.parse_args()
    torch = peer("torch")
    weights = random_weights() if given.weights is None else read(given.weights)
    place = "cuda" if devices()[0].kind == "cuda" else "cpu"
    encoder = HalfEncoder(weights)
    exact = TorchEncoder(torch, weights, torch.float64, place)
    if given.check:
        print("cosine to float64, the least:", checked(torch, encoder, exact, texts_of(2, 19)))
        return
    if place == "cpu":
        raise SystemExit("there is no GPU: benchmarks.encoder measures the CPU device, and --check compares vectors")
    torch_encoder = TorchEncoder(torch, weights, torch.float16, place)
    rows = []
    for batch, tokens in SHAPES:
        texts = texts_of(batch, tokens)
        row = {"batch": batch, "tokens": tokens, "cosine": checked(torch, encoder, exact, texts)}
        row |= compare(torch, encoder, torch_encoder, texts, given.rounds)
        if given.kernels:
            row["us of a kernel"] = kernel_times(batch * tokens, tokens)
        print(json.dumps(row), flush=True)
        rows.append(row)
    if given.write:
        figures = {
            "device": devices()[0].name,
            "torch": torch.__version__,
            "weights": "random" if given.weights is None else "all-MiniLM-L6-v2",
            "rounds": given.rounds,
            "unit": "ms, medians",
            "rows": rows,
        }
        record.write("encoder", figures, "numba-cuda", "llvmlite", "numpy")


def texts_of(batch: int, tokens: int) -> NDArray[np.int32]:
    """Returns the words of so many texts."""
    return np.random.default_rng(batch).integers(1000, 30_000, (batch, tokens)).astype(np.int32)


def random_weights() -> dict[str, NDArray[np.float16]]:
    """Returns weights of the model's shapes that keep the size of what passes through them."""
    rng = np.random.default_rng(0)

    def drawn(*shape: int, scale: float = 1.0, around: float = 0.0) -> NDArray[np.float16]:
        return (around + scale * rng.standard_normal(shape, np.float32)).astype(np.float16)

    made = {
        "embeddings.word_embeddings.weight": drawn(WORDS, WIDTH),
        "embeddings.position_embeddings.weight": drawn(PLACES, WIDTH, scale=0.3),
        "embeddings.token_type_embeddings.weight": drawn(2, WIDTH, scale=0.3),
    }
    linear = {f"attention.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")}
    linear |= {"attention.output.dense": (WIDTH, WIDTH)}
    linear |= {"intermediate.dense": (INNER, WIDTH), "output.dense": (WIDTH, INNER)}
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{number}" for number in range(LAYERS)):
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
        for name, (outputs, inputs) in linear.items():
            made[f"{layer}.{name}.weight"] = drawn(outputs, inputs, scale=inputs**-0.5)
            made[f"{layer}.{name}.bias"] = drawn(outputs, scale=0.1)
    for name in norms:
        made[f"{name}.weight"], made[f"{name}.bias"] = drawn(WIDTH, scale=0.1, around=1), drawn(WIDTH, scale=0.1)
    return made


def read(folder: Path) -> dict[str, NDArray[Any]]:
    """Returns the tensors of ``model.safetensors``: a header of JSON, its length before it, and the bytes after it. The
    package safetensors may be missing on a machine without a network."""
    data = (folder / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    kinds = {"F16": np.dtype(np.float16), "F32": np.dtype(np.float32)}
    tensors = {}
    for name, entry in json.loads(data[8:begin]).items():
        if name != "__metadata__" and entry["dtype"] in kinds:
            first, end = (begin + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(data[first:end], kinds[entry["dtype"]]).reshape(entry["shape"])
    return tensors


class TorchEncoder:
    """The encoder in torch: one product for queries, keys and values, and torch's kernels for the rest."""

    def __init__(self, torch: Any, weights: Mapping[str, NDArray[Any]], dtype: Any, place: str) -> None:
        self._torch = torch
        given = {name: torch.from_numpy(np.array(weight)).to(place, dtype) for name, weight in weights.items()}
        self._words = given["embeddings.word_embeddings.weight"]
        self._places = (
            given["embeddings.position_embeddings.weight"] + given["embeddings.token_type_embeddings.weight"][0]
        )

        def pair(name: str) -> tuple[Any, Any]:
            return given[f"{name}.weight"], given[f"{name}.bias"]

        self._norm = pair("embeddings.LayerNorm")
        self._layers = []
        for layer in (f"encoder.layer.{number}" for number in range(LAYERS)):
            parts = [pair(f"{layer}.attention.self.{part}") for part in ("query", "key", "value")]
            self._layers.append(
                (
                    tuple(torch.cat(each) for each in zip(*parts, strict=True)),
                    pair(f"{layer}.attention.output.dense"),
                    pair(f"{layer}.attention.output.LayerNorm"),
                    pair(f"{layer}.intermediate.dense"),
                    pair(f"{layer}.output.dense"),
                    pair(f"{layer}.output.LayerNorm"),
                )
            )

    def __call__(self, ids: Any, mask: Any = None) -> Any:
        """Returns a row of unit length for each row of ``ids``. ``mask`` is 1 for tokens, and 0 for padding."""
        f = self._torch.nn.functional
        batch, tokens = ids.shape
        heads = WIDTH // HEAD

        def norm(x: Any, of: tuple[Any, Any]) -> Any:
            return f.layer_norm(x, (WIDTH,), *of, eps=1e-12)

        x = norm(f.embedding(ids, self._words) + self._places[:tokens], self._norm)
        for products, after, attention_norm, inner, outer, last in self._layers:
            q, k, v = f.linear(x, *products).view(batch, tokens, 3, heads, HEAD).permute(2, 0, 3, 1, 4)
            seen = None if mask is None else mask.bool()[:, None, None]
            attended = f.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).reshape(batch, tokens, WIDTH)
            x = norm(x + f.linear(attended, *after), attention_norm)
            x = norm(x + f.linear(f.gelu(f.linear(x, *inner)), *outer), last)
        if mask is None:
            return f.normalize(x.mean(1).float(), dim=1)
        return f.normalize((x * mask[..., None]).sum(1).float() / mask.sum(1, keepdim=True), dim=1)


def layout_of(texts: NDArray[np.int32]) -> Layout:
    """Returns the texts packed, one after another."""
    layout = Layout(texts.size, len(texts))
    layout.fill(list(texts))
    return layout


def checked(torch: Any, encoder: HalfEncoder, exact: TorchEncoder, texts: NDArray[np.int32]) -> float:
    """Returns the least cosine to the vectors in float64. Ends the program if it is below 0.999."""
    some = texts[:32]  # float64 of all texts would take long
    found = d2h(encoder(layout_of(texts))).sync()[: len(some)].astype(np.float64)
    with torch.no_grad():
        ids = torch.from_numpy(some.astype(np.int64)).to(exact._words.device)
        expected = exact(ids).double().cpu().numpy()
    cosine = float(((found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)).min())
    if not cosine > 0.999:
        raise SystemExit(f"{texts.shape}: the least cosine to the vectors in float64 is {cosine}")
    return round(cosine, 6)


def compare(
    torch: Any, encoder: HalfEncoder, theirs: TorchEncoder, texts: NDArray[np.int32], rounds: int
) -> dict[str, Any]:
    """Returns the times of all ways, and the ratios to oxide's."""
    stream = devices()[0].new_stream()
    layout = layout_of(texts)
    tokens, sequences = layout.upload().sync()
    resident = encoder.vectors(tokens, sequences).graph_on(stream)
    whole = encoder(layout).graph_on(stream)
    vectors = whole.take_output()
    fetched = whole.launch().and_then(lambda _: d2h(vectors))

    pinned = torch.from_numpy(texts.astype(np.int64)).pin_memory()
    ids = pinned.cuda()
    side = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            theirs(ids)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            output = theirs(ids)

    def replay(count: int) -> None:
        for _ in range(count):
            graph.replay()
        torch.cuda.synchronize()

    def eager(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                theirs(ids)
        torch.cuda.synchronize()

    def replay_call() -> Any:
        ids.copy_(pinned, non_blocking=True)
        graph.replay()
        return output.cpu()

    def eager_call() -> Any:
        with torch.no_grad():
            return theirs(pinned.to("cuda", non_blocking=True)).cpu()

    runs: dict[str, Callable[[int], None]] = {
        "oxide": repeated(resident.launch(), stream),
        "torch, a graph": replay,
        "torch, eager": eager,
    }
    calls: dict[str, Callable[[], Any]] = {
        "oxide": lambda: fetched.sync_on(stream),
        "torch, a graph": replay_call,
        "torch, eager": eager_call,
    }
    for name, call in calls.items():
        call()
        runs[name](1)
    counts = {name: max(3, round(_SECONDS / seconds(lambda run=run: run(3)) * 3)) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    single: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds(lambda run=run, name=name: run(counts[name])) / counts[name] * 1e3)
            single[name] += [seconds(calls[name]) * 1e3 for _ in range(5)]
    found: dict[str, Any] = {
        "ms": {name: round(statistics.median(each), 4) for name, each in times.items()},
        "call, ms": {name: round(statistics.median(each), 4) for name, each in single.items()},
    }
    for name in ("torch, a graph", "torch, eager"):
        ratios = [other / mine for other, mine in zip(times[name], times["oxide"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        found[f"{name} / oxide"] = {"median": round(middle, 2), "quartiles": [round(low, 2), round(high, 2)]}
    return found


def repeated(operation: DeviceOperation[Any], stream: Stream) -> Callable[[int], None]:
    """Returns a function that runs an operation so many times, and waits once."""

    def run(count: int) -> None:
        for _ in range(count):
            operation.async_on(stream)
        stream.synchronize()

    return run


def kernel_times(rows: int, tokens: int, count: int = 40) -> dict[str, float]:
    """Returns the microseconds of each launch of a layer: a graph of ``count`` of it, by the number."""
    stream = devices()[0].new_stream()
    rng = np.random.default_rng(1)

    def box(*shape: int) -> Any:
        return h2d(rng.standard_normal(shape, np.float32).astype(np.float16)).sync()

    x, scale, shift, inner = box(rows, WIDTH), box(WIDTH), box(WIDTH), box(rows, INNER)
    out, products, wide = (empty((rows, each), f16).sync() for each in (WIDTH, 3 * WIDTH, INNER))
    weights = {shape: box(*shape) for shape in ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (INNER, WIDTH), (WIDTH, INNER))}
    biases = {size: box(size) for size in (WIDTH, 3 * WIDTH, INNER)}
    layout = layout_of(texts_of(rows // tokens, tokens))
    places, sequences = layout.upload().sync()
    pool = half_kernels.pool_of(WIDTH)[len(layout.sequences[0]), 32 * half_kernels.POOL_WARPS]
    units = empty((len(layout.sequences[0]), WIDTH)).sync()
    operations: dict[str, DeviceOperation[Any]] = {
        "attention": half.attention(products, places, out),
        "pool": pool(x, scale, shift, 1e-12, sequences, units),
        "layer norm": layer_norm(x, scale, shift, out, 1e-12),
    }
    for name, given, weight, size, result, activation, beta in (
        ("qkv", x, (3 * WIDTH, WIDTH), 3 * WIDTH, products, None, 0),
        ("after attention", x, (WIDTH, WIDTH), WIDTH, out, None, 1),
        ("inner", x, (INNER, WIDTH), INNER, wide, "gelu", 0),
        ("outer", inner, (WIDTH, INNER), WIDTH, out, None, 1),
    ):
        operations[name] = matmul(given, weights[weight].T, result, bias=biases[size], activation=activation, beta=beta)
    found = {}
    for name, operation in operations.items():
        operation.sync_on(stream)
        chain = operation
        for _ in range(count - 1):
            chain = chain.and_then(lambda _, operation=operation: operation)
        graph = chain.graph_on(stream)
        run = repeated(graph.launch(), stream)
        run(1)
        found[name] = round(min(seconds(lambda run=run: run(5)) for _ in range(5)) / (5 * count) * 1e6, 2)
    return found


def seconds(call: Callable[[], Any]) -> float:
    """Returns the time of a call."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
