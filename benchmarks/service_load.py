"""The service example at twice its capacity, over loopback: what is accepted and refused, and how late answers are.

Starts ``examples.service`` as a process. First the latency without load and the capacity are measured by the same
clients. Then requests of ``--texts`` texts arrive at random moments, twice as many as the capacity, each on a
connection of its own. Of the clients 10 % hang up in the middle and 1 % send poison (NaN, an over-long text, invalid
UTF-8). At the end, SIGTERM comes under load. Writes ``benchmarks/results/service-load-cpu.json``;
with ``--batch-ms``, by a device whose batches take that long, ``service-load-timed.json``.

    python -m benchmarks.service_load --seconds 60 [--batch-ms 50]
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import trio

MOST_IN_BATCH = 32
"""The texts of a batch, as in ``examples.service``."""

RESULTS = Path(__file__).parent / "results"
POISON = (b'{"texts": [NaN]}', json.dumps({"texts": ["a" * 5000]}).encode(), b'{"texts": ["\xff"]}')
WORDS = Path(__file__).parent.parent / "examples" / "service" / "corpus.txt"


class Load:
    """The clients, and what they saw."""

    def __init__(self, port: int, texts: int) -> None:
        self.port = port
        self._draw = random.Random(1)
        self._lines = WORDS.read_text(encoding="utf-8").splitlines()
        self._texts = texts
        self.statuses: Counter[str] = Counter()
        self.latencies: list[float] = []  # of answers with 200
        self.wrong = 0

    def good(self) -> bytes:
        """Returns the body of a request of lines of the corpus."""
        return json.dumps({"texts": self._draw.choices(self._lines, k=self._texts)}).encode()

    async def ask(self, body: bytes, *, hangs_up: bool = False) -> int:
        """Sends a request on a new connection. Returns the status, 0 if the connection broke."""
        begun = time.perf_counter()
        try:
            async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
                head = f"POST /embed HTTP/1.1\r\nHost: load\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
                await stream.send_all(head.encode() + body)
                if hangs_up:
                    await trio.sleep(self._draw.random() * 0.1)
                    self.statuses["hung up"] += 1
                    return 0
                answer = b""
                async for piece in stream:
                    answer += piece
        except (OSError, trio.BrokenResourceError):
            self.statuses["refused"] += 1
            return 0
        status = int(answer[9:12]) if answer else 0
        self.statuses[str(status)] += 1
        if status == 200:
            self.latencies.append(time.perf_counter() - begun)
            found = json.loads(answer.partition(b"\r\n\r\n")[2])["embeddings"]
            self.wrong += len(found) != self._texts
        return status

    async def at_rate(self, rate: float, seconds: float) -> None:
        """Sends requests at random moments, so many a second."""
        end = trio.current_time() + seconds
        async with trio.open_nursery() as nursery:
            while trio.current_time() < end:
                await trio.sleep(self._draw.expovariate(rate))
                chance = self._draw.random()
                if chance < 0.01:
                    nursery.start_soon(self._poison)
                else:
                    nursery.start_soon(partial(self.ask, self.good(), hangs_up=chance < 0.11))

    async def _poison(self) -> None:
        self.wrong += await self.ask(self._draw.choice(POISON)) != 400

    async def closed_loop(self, clients: int, seconds: float) -> float:
        """Returns the requests a second that so many clients get answered."""
        before = len(self.latencies)
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def client() -> None:
                while trio.current_time() < begun + seconds:
                    await self.ask(self.good())

            for _ in range(clients):
                nursery.start_soon(client)
        return (len(self.latencies) - before) / (trio.current_time() - begun)


async def statistics(port: int) -> dict[str, Any]:
    """Returns the service's own figures."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(b"GET /statistics HTTP/1.1\r\nHost: load\r\nConnection: close\r\n\r\n")
        answer = b""
        async for piece in stream:
            answer += piece
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


def resident(pid: int) -> int:
    """Returns the MiB of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 >> 20


def quantile(values: list[float], fraction: float) -> float:
    """Returns a quantile in milliseconds."""
    return round(sorted(values)[int(fraction * (len(values) - 1))] * 1e3, 1)


async def measure(options: argparse.Namespace, process: subprocess.Popen[str], port: int) -> dict[str, Any]:
    """Runs all phases."""
    load = Load(port, options.texts)
    for _ in range(20):
        await load.ask(load.good())
    load.latencies.clear()
    await load.closed_loop(1, 3)
    unloaded = quantile(load.latencies, 0.99)
    capacity = await load.closed_loop(32, 5)
    load.latencies.clear()
    load.statuses.clear()
    before, longest, memory = (await statistics(port))["statistics"], 0, [resident(process.pid)]
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            nonlocal longest
            while True:
                await trio.sleep(0.5)
                longest = max(longest, (await statistics(port))["statistics"]["queued"])
                memory.append(resident(process.pid))

        nursery.start_soon(watch)
        await load.at_rate(2 * capacity, options.seconds)
        nursery.cancel_scope.cancel()
    found = await statistics(port)
    after = found["statistics"]
    batches = [batch for batch in found["batches"] if batch["error"] is None]
    batch_ms = sum(batch["seconds"] for batch in batches) / len(batches) * 1e3
    result = {
        "texts a request": options.texts,
        "max_queue": options.max_queue,
        "capacity, requests/s": round(capacity, 1),
        "seconds": options.seconds,
        "p99 without load, ms": unloaded,
        "answers": dict(load.statuses),
        "p50, p99 of accepted, ms": [quantile(load.latencies, 0.5), quantile(load.latencies, 0.99)],
        "ms of a batch, mean": round(batch_ms, 1),
        "requests of a batch, mean": round(sum(batch["size"] for batch in batches) / len(batches), 1),
        "p99 in the batcher, ms": round(after["latency_p99"] * 1e3, 1),
        "p99 in the queue, ms": round(after["wait_p99"] * 1e3, 1),
        "bound of p99, ms": round(2 * unloaded + options.max_queue / MOST_IN_BATCH * batch_ms, 1),
        "longest queue": longest,
        "memory after 5 s and at the end, MiB": [memory[min(10, len(memory) - 1)], memory[-1]],
        "wrong answers": load.wrong,
        "not counted": after["accepted"]
        - sum(after[name] for name in ("answered", "failed", "cancelled", "timed_out", "queued", "running")),
        "batches": after["batches"] - before["batches"],
    }
    load.statuses.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.at_rate, capacity, 3)
        await trio.sleep(1)
        process.send_signal(signal.SIGTERM)
    result["answers from a second before SIGTERM to two after"] = dict(load.statuses)
    result["exit status"] = await trio.to_thread.run_sync(process.wait)
    return result


def main() -> None:
    """Starts the service, loads it, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--max-queue", type=int, default=256)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--batch-ms", type=float, help="serve by a device whose batches take a fixed time")
    options = parser.parse_args()
    if options.batch_ms is None:
        command = ["examples.service", "--port=0", f"--model={options.model}"]
    else:
        command = ["benchmarks.timed_service", f"--batch-ms={options.batch_ms}"]
    process = subprocess.Popen(
        [sys.executable, "-m", *command, f"--max-queue={options.max_queue}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline().rpartition(":")[2])
        result = trio.run(measure, options, process, port)
    finally:
        process.kill()
    print(json.dumps(result, indent=1))
    name = "service-load-cpu" if options.batch_ms is None else "service-load-timed"
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
