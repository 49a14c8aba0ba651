"""Collectives: ``all_reduce`` beside torch.distributed's, and a data-parallel step beside one device's.

A process for each rank, as ``oxide launch`` starts them. The contenders take turns in these processes, after warm-up;
times are rank 0's, medians, and each turn begins together. ``all_reduce`` is measured call by call, as many stages of
one operation, and as a CUDA graph of many. The step is ``examples/data_parallel``'s, over the ranks and then on rank
0's device alone with the whole batch. Its trace gives the time for which a collective and a kernel ran on one device at
once. Then one process drives all devices. Writes ``benchmarks/results/collectives-<device>.json``.

    python -m benchmarks.collectives --ranks 2                      # on a host with two GPUs
    OXIDE_DEVICE=cpu python -m benchmarks.collectives --quick --out figures.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import oxide
from benchmarks.record import path_of
from examples.data_parallel.training import Replica, Share, captured_step, replicas, shares, step
from oxide import collectives, devices
from oxide.host.core import FORM

MIB = 1 << 20
RATE = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark, or one rank of it. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collectives", allow_abbrev=False)
    parser.add_argument("--ranks", type=int, default=2, help="the number of ranks (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="small sizes and few turns: only that it works")
    parser.add_argument("--hidden", type=int, default=4096, help="units of the hidden layer (%(default)s)")
    parser.add_argument("--batch", type=int, default=16384, help="rows of a batch (%(default)s)")
    parser.add_argument("--inputs", type=int, default=65, help="numbers of a row (%(default)s)")
    parser.add_argument("--turns", type=int, default=11, help="turns of each contender (%(default)s)")
    parser.add_argument("--out", type=Path, help="the file for the figures")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.quick:
        options.hidden, options.batch, options.inputs, options.turns = 64, 128, 65, 2
    if options.rank_of:
        run_rank(options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "figures.json"
        launch = [sys.executable, "-m", "oxide", "launch", "-n", str(options.ranks), "-m", "benchmarks.collectives"]
        given = sys.argv[1:] if arguments is None else arguments
        status = subprocess.run([*launch, *given, "--rank-of", str(found)], check=False).returncode
        if status:
            return status
        figures = json.loads(found.read_text())
    figures["one process"] = step_of_one_process(options)
    for line in report(figures):
        print(line)
    path = options.out or path_of("collectives", devices()[0].name, devices()[0].kind)
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(f"written: {path}")
    return 0


# A process for each rank


def run_rank(options: argparse.Namespace) -> None:
    """Measures as one rank; rank 0 writes the figures."""
    with collectives.join_group() as group:
        torch = torch_of(group, options.rank_of)
        figures: dict[str, Any] = {
            "device": group.devices[0].name,
            "ranks": group.size,
            "core": FORM,
            "versions": versions(torch),
            "all_reduce": {},
        }
        sizes = ((MIB // 64, 2),) if options.quick else ((MIB, 200), (64 * MIB, 40), (1024 * MIB, 8))
        if group.devices[0].kind == "cpu" and not options.quick:
            sizes = ((MIB, 20), (64 * MIB, 2))
        for nbytes, calls in sizes:
            figures["all_reduce"][str(nbytes)] = reduce_times(group, torch, nbytes, calls, options.turns)
        figures["step"] = step_times(group, options)
        figures["overlap"] = overlap(group, options)
        if group.rank == 0:
            Path(options.rank_of).write_text(json.dumps(figures))
        if torch is not None:
            torch.distributed.destroy_process_group()


def torch_of(group: collectives.Group, path: str) -> Any:
    """Returns torch with a group of the same ranks; None where it has no GPUs."""
    if group.devices[0].kind != "cuda":
        return None
    import torch
    import torch.distributed

    torch.cuda.set_device(0)
    torch.distributed.init_process_group(
        "nccl",
        init_method=f"file://{path}.torch",
        rank=group.rank,
        world_size=group.size,
        device_id=torch.device("cuda:0"),
    )
    return torch


def versions(torch: Any) -> dict[str, str]:
    found = {"numpy": np.__version__, "python": sys.version.split()[0]}
    if torch is not None:
        from nccl.core import get_version

        found["torch"] = torch.__version__
        found["nccl"] = str(get_version().libnccl).partition(" @")[0]
        found["nccl of torch"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def reduce_times(group: collectives.Group, torch: Any, nbytes: int, calls: int, turns: int) -> dict[str, Any]:
    """Returns the microseconds of one ``all_reduce``, in runs of ``calls``, for each contender."""
    box = oxide.zeros(nbytes // 4).sync()
    stream = group.devices[0].new_stream()
    operation = group.all_reduce(box)
    chain = operation
    for _ in range(calls - 1):
        chain = chain.and_then(group.all_reduce)
    graph = chain.graph()

    def eager() -> None:
        for _ in range(calls):
            operation.async_on(stream)
        stream.synchronize()

    def replayed() -> None:
        graph.launch().async_on(stream)
        stream.synchronize()

    def as_one() -> None:
        chain.async_on(stream)
        stream.synchronize()

    contenders: dict[str, Callable[[], None]] = {"oxide": eager, "oxide, one run": as_one, "oxide, graph": replayed}
    if torch is not None:
        tensor = torch.zeros(nbytes // 4, device="cuda")

        def of_torch() -> None:
            for _ in range(calls):
                torch.distributed.all_reduce(tensor)
            torch.cuda.synchronize()

        of_torch()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for _ in range(calls):
                torch.distributed.all_reduce(tensor)

        def of_graph() -> None:
            captured.replay()
            torch.cuda.synchronize()

        contenders |= {"torch": of_torch, "torch, graph": of_graph}
    times = taken(group, contenders, turns)
    return {name: summary([seconds / calls for seconds in each]) for name, each in times.items()}


def step_times(group: collectives.Group, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the microseconds of a step over all ranks, and on rank 0's device alone; and by how much the weights
    differ after one step of each."""
    start, pixels, labels = problem(options)
    rows = options.batch
    device = list(group.devices)
    together = replicas(device, *start)
    parts = shares(device, pixels, labels, group.ranks, group.size).sync()
    first = step(group, together, parts, rows, RATE).sync()
    alone, whole = replicas(device, *start), shares(device, pixels, labels, [0], 1).sync()
    furthest = difference(first, step(None, alone, whole, rows, RATE).sync())
    stream = group.devices[0].new_stream()
    count = 2 if options.quick else 20

    def runs(operation: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(count):
                operation().async_on(stream)
            stream.synchronize()

        return run

    graph = step(group, together, parts, rows, RATE).graph()
    own_graph = step(None, alone, whole, rows, RATE).graph()
    contenders = {
        "together": runs(lambda: step(group, together, parts, rows, RATE)),
        "together, graphs": runs(captured_step(group, together, parts, rows, RATE)),
        "together, one graph": runs(graph.launch),
    }
    times = taken(group, contenders, options.turns)
    if group.rank == 0:
        own = {
            "alone": runs(lambda: step(None, alone, whole, rows, RATE)),
            "alone, one graph": runs(own_graph.launch),
        }
        times |= taken(None, own, options.turns)
    group.all_reduce(oxide.zeros(1).sync()).sync()
    figures: dict[str, Any] = {name: summary([seconds / count for seconds in each]) for name, each in times.items()}
    figures["difference of the weights"] = furthest
    return figures


def overlap(group: collectives.Group, options: argparse.Namespace) -> dict[str, Any]:
    """Returns, from the trace of three steps, the microseconds of their collectives, and for how many of them kernels
    ran on the same device: of graphs or by themselves."""
    start, pixels, labels = problem(options)
    here = replicas(list(group.devices), *start)
    parts = shares(list(group.devices), pixels, labels, group.ranks, group.size).sync()
    build = captured_step(group, here, parts, options.batch, RATE)
    build().sync()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        group.all_reduce(oxide.zeros(1).sync()).sync()  # so that all begin together
        with oxide.trace(path):
            for _ in range(3):
                build().sync()
        events = json.loads(path.read_text())["traceEvents"]
    spans: dict[str, list[tuple[float, float]]] = {"collective": [], "kernel": [], "graph": []}
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in spans:
            spans[event["cat"]].append((event["ts"], event["ts"] + event["dur"]))
    both = sum(
        max(0.0, min(end, other_end) - max(begin, other_begin))
        for begin, end in spans["collective"]
        for other_begin, other_end in spans["kernel"] or spans["graph"]
    )
    return {
        "collectives": len(spans["collective"]),
        "collective_us": sum(end - begin for begin, end in spans["collective"]),
        "with_a_kernel_us": both,
    }


# One process


def step_of_one_process(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the microseconds of a step by one process that drives all devices, and by one device."""
    found = devices()
    if len(found) < options.ranks:
        return {"left out": f"this process has {len(found)} devices"}
    start, pixels, labels = problem(options)
    rows, count = options.batch, 2 if options.quick else 20
    with collectives.local_group(found[: options.ranks]) as group:
        used = list(group.devices)
        together, parts = replicas(used, *start), shares(used, pixels, labels, group.ranks, group.size).sync()
        alone, whole = replicas(used[:1], *start), shares(used[:1], pixels, labels, [0], 1).sync()
        first = step(group, together, parts, rows, RATE).sync()
        single = step(None, alone, whole, rows, RATE).sync()
        furthest = difference(first, single)
        stream = used[0].new_stream()

        def runs(
            group: collectives.Group | None, here: list[Replica], parts: Sequence[Share], captured: bool
        ) -> Callable[[], None]:
            build = captured_step(group, here, parts, rows, RATE) if captured else None

            def run() -> None:
                for _ in range(count):
                    operation = step(group, here, parts, rows, RATE) if build is None else build()
                    operation.async_on(stream)
                stream.synchronize()

            return run

        contenders = {
            "together": runs(group, together, parts, False),
            "together, graphs": runs(group, together, parts, True),
            "alone": runs(None, alone, whole, False),
            "alone, graphs": runs(None, alone, whole, True),
        }
        times = taken(None, contenders, options.turns)
    figures: dict[str, Any] = {name: summary([seconds / count for seconds in each]) for name, each in times.items()}
    figures["difference of the weights"] = furthest
    return figures


# Used by all


def problem(options: argparse.Namespace) -> tuple[tuple[Any, Any], Any, Any]:
    """Returns weights, and a batch of made-up images with their digits; the same on every rank."""
    random = np.random.default_rng(7)
    w0 = random.normal(0, 0.1, (options.inputs, options.hidden)).astype(np.float32)
    w1 = random.normal(0, 0.1, (options.hidden, 10)).astype(np.float32)
    pixels = random.random((options.batch, options.inputs), dtype=np.float32)
    return (w0, w1), pixels, random.integers(0, 10, options.batch)


def difference(several: Any, single: Any) -> float:
    """Returns the largest distance of a replica's weights from those of one device, relative to their norm."""
    (expected,) = [arrays_of(weights) for weights in single]
    return max(
        float(np.linalg.norm(found - right) / np.linalg.norm(right))
        for weights in several
        for found, right in zip(arrays_of(weights), expected, strict=True)
    )


def arrays_of(weights: Any) -> list[Any]:
    """Returns a replica's weights as arrays."""
    return [oxide.d2h(box).on(box.device).sync().astype(np.float64) for box in weights]


def taken(
    group: collectives.Group | None, contenders: dict[str, Callable[[], None]], turns: int
) -> dict[str, list[float]]:
    """Returns the seconds of each turn of each contender. With a group, all ranks begin a turn together."""
    gate = None if group is None else oxide.zeros(1).sync()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + 2):
        for name, run in contenders.items():
            if group is not None:
                group.all_reduce(gate).sync()  # type: ignore[arg-type]
            began = time.perf_counter()
            run()
            if turn >= 2:
                times[name].append(time.perf_counter() - began)
    return times


def summary(seconds: list[float]) -> list[float]:
    """Returns the median and the quartiles in microseconds."""
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    return [round(each * 1e6, 2) for each in (middle, low, high)]


def report(figures: dict[str, Any]) -> list[str]:
    """Returns the figures as lines."""
    lines = [f"{figures['ranks']} ranks on {figures['device']}, the core in {figures['core']}"]
    share = 2 * (figures["ranks"] - 1) / figures["ranks"]
    for nbytes, times in figures["all_reduce"].items():
        shown = [f"{name} {share * int(nbytes) / each[0] / 1e3:.1f}" for name, each in times.items()]
        lines.append(f"all_reduce of {int(nbytes) / MIB:g} MiB, GB/s of each rank's link: {', '.join(shown)}")
    for name in ("step", "one process"):
        shown = [f"{key} {each[0]:.0f} us" for key, each in figures[name].items() if isinstance(each, list)]
        rest = [f"{key} {each}" for key, each in figures[name].items() if not isinstance(each, list)]
        lines.append(f"{name}: {', '.join([*shown, *rest])}")
    lines.append(f"trace: {figures['overlap']}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
