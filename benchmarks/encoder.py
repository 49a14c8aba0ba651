"""The embeddings example's encoder beside onnxruntime, float32, on the CPU device: milliseconds for a batch.

Both have the same weights and as many threads as there are cores. oxide replays a captured graph, as a service does,
and runs the operation as it is. The ways alternate, each with ten runs in a row and a pause before, in which
onnxruntime's threads stop spinning; the figures are medians of all runs, and of the first runs after a pause. Vectors
are compared first. The ONNX file is made by ``python -m tests.examples.embeddings_reference --onnx FILE``. Writes
``benchmarks/results/encoder-cpu.json``.

    python -m benchmarks.encoder FILE
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import oxide
from examples.embeddings.embedder import model_folder
from examples.embeddings.encoder import Encoder
from examples.embeddings.layout import Layout
from oxide import d2h

RESULTS = Path(__file__).parent / "results"
SHAPES = ((1, 32), (8, 32), (32, 32), (8, 128))
TURNS = 9
RUNS = 10
PAUSE = 0.05


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("onnx", metavar="FILE")
    file = parser.parse_args().onnx
    import onnxruntime
    from safetensors.numpy import load_file

    cores = len(os.sched_getaffinity(0))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    encoder = Encoder(load_file(model_folder() / "model.safetensors"))
    rng = np.random.default_rng(0)
    rows = []
    for batch, tokens in SHAPES:
        texts = [rng.integers(1000, 30_000, tokens).astype(np.int32) for _ in range(batch)]
        layout = Layout(batch * tokens, batch)
        layout.fill(texts)
        operation = d2h(encoder(layout))
        graph = encoder(layout).graph()
        output = graph.take_output()
        ids = np.array(texts, np.int64)
        feed = {"ids": ids, "mask": np.ones_like(ids)}
        expected = session.run(None, feed)[0]
        ways: dict[str, Callable[[], Any]] = {
            "oxide, a graph": lambda graph=graph, output=output: graph.launch().and_then(lambda _: d2h(output)).sync(),
            "oxide, the operation": operation.sync,
            "onnxruntime": lambda feed=feed: session.run(None, feed)[0],
        }
        row: dict[str, Any] = {"batch": batch, "tokens": tokens}
        for name, way in ways.items():
            cosines = (way() * expected).sum(1) / np.linalg.norm(expected, axis=1)
            assert cosines.min() > 0.99999, (name, cosines.min())
        times: dict[str, list[list[float]]] = {name: [] for name in ways}
        for _ in range(TURNS):
            for name, way in ways.items():
                time.sleep(PAUSE)
                times[name].append([timed(way) for _ in range(RUNS)])
        for name, found in times.items():
            row[name] = round(statistics.median(run for each in found for run in each), 2)
            row[f"{name}, first"] = round(statistics.median(each[0] for each in found), 2)
        row["ratio"] = round(row["oxide, a graph"] / row["onnxruntime"], 2)
        print(row)
        rows.append(row)
    result = {
        "device": oxide.devices()[0].label,
        "cores": cores,
        "processor": platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in ("numpy", "onnxruntime", "llvmlite")},
        "unit": "ms, medians of 90 runs, and of 9 first runs after a pause",
        "rows": rows,
    }
    (RESULTS / "encoder-cpu.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def timed(way: Callable[[], Any]) -> float:
    """Returns the milliseconds of a call."""
    begun = time.perf_counter()
    way()
    return (time.perf_counter() - begun) * 1e3


if __name__ == "__main__":
    main()
