"""The service example beside the same service around torch in threads: requests a second, and how late answers are.

Both are started as processes. Clients that are always waiting for an answer, each on a connection that it keeps, load
one and then the other, in turn. Figures are medians of rounds. It needs torch, and the packages of the extras
``service`` and ``encoder``.

    python -m benchmarks.service_peer [--weights FOLDER] [--clients 256] [--write]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
import trio

from benchmarks import record
from benchmarks.service_load import WORDS, quantile
from oxide import devices


class Clients:
    """Clients of one service, and how long their requests took."""

    def __init__(self, port: int, texts: int) -> None:
        self._port = port
        lines = WORDS.read_text(encoding="utf-8").splitlines()
        draw = random.Random(2)
        bodies = (json.dumps({"texts": draw.choices(lines, k=texts)}).encode() for _ in range(512))
        head = "POST /embed HTTP/1.1\r\nHost: load\r\nContent-Length: {}\r\n\r\n"
        self._requests = [head.format(len(body)).encode() + body for body in bodies]
        self.latencies: list[float] = []

    async def run(self, clients: int, seconds: float) -> float:
        """Loads the service, and returns the requests a second."""
        self.latencies.clear()
        begun = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for number in range(clients):
                nursery.start_soon(self._client, number, begun + seconds)
        return len(self.latencies) / (time.perf_counter() - begun)

    async def _client(self, number: int, end: float) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
            while (begun := time.perf_counter()) < end:
                await stream.send_all(self._requests[number % len(self._requests)])
                await self.answer(stream)
                self.latencies.append(time.perf_counter() - begun)
                number += 1

    async def answer(self, stream: trio.SocketStream) -> bytes:
        """Returns the body of an answer. Raises ``RuntimeError`` unless its status is 200."""
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            piece = await stream.receive_some()
            if not piece:
                raise RuntimeError("the service closed a connection")
            data += piece
        head, body = data[:end].lower(), data[end + 4 :]
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(f"the service answered {data[:300]!r}")
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        while len(body) < length:
            piece = await stream.receive_some()
            if not piece:
                raise RuntimeError("the service closed a connection")
            body += piece
        return body

    async def vectors(self) -> Any:
        """Returns the vectors of the first request."""
        async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
            await stream.send_all(self._requests[0])
            return np.array(json.loads(await self.answer(stream))["embeddings"])


async def measure(options: argparse.Namespace, ports: dict[str, int]) -> dict[str, Any]:
    """Loads the services in turn."""
    services = {name: Clients(port, options.texts) for name, port in ports.items()}
    vectors = [await clients.vectors() for clients in services.values()]
    least = float((vectors[0] * vectors[1]).sum(1).min())
    if not least > 0.998:
        raise SystemExit(f"the services' vectors differ: their least cosine is {least}")
    rates: dict[str, list[float]] = {name: [] for name in services}
    times: dict[str, list[list[float]]] = {name: [] for name in services}
    for turn in range(options.rounds + 1):
        for name, clients in services.items():
            rate = await clients.run(options.clients, options.seconds)
            if turn:  # the first round warms up
                rates[name].append(rate)
                times[name].append([quantile(clients.latencies, fraction) for fraction in (0.5, 0.99)])
    return {
        name: {
            "requests/s": round(statistics.median(rates[name]), 1),
            "of rounds": [round(rate, 1) for rate in rates[name]],
            "p50, ms": statistics.median(each[0] for each in times[name]),
            "p99, ms": statistics.median(each[1] for each in times[name]),
        }
        for name in services
    } | {"least cosine": round(least, 6)}


def started(*command: str) -> tuple[subprocess.Popen[str], int]:
    """Starts a service, and returns it and its port when it is ready."""
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{command[0]} did not start")
    return process, int(line.rpartition(":")[2])


def main() -> None:
    """Starts the services, loads them, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", metavar="FOLDER", help="a folder with model.safetensors and tokenizer.json")
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--texts", type=int, default=1, help="the texts of a request")
    parser.add_argument("--threads", type=int, default=8, help="the threads of the service around torch")
    parser.add_argument("--seconds", type=float, default=5, help="the seconds of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    options = parser.parse_args()
    weights = [] if options.weights is None else ["--weights", options.weights]
    queue = f"--max-queue={max(1024, 2 * options.clients * options.texts)}"
    processes = []
    try:
        ports = {}
        for name, command in {
            "oxide": ("examples.service", "--port=0", queue, *weights),
            "torch": ("benchmarks.torch_service", f"--threads={options.threads}", *weights),
        }.items():
            process, ports[name] = started(*command)
            processes.append(process)
        found = trio.run(measure, options, ports)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    found["ratio"] = round(found["oxide"]["requests/s"] / found["torch"]["requests/s"], 2)
    given = {name: getattr(options, name) for name in ("clients", "texts", "threads", "seconds", "rounds")}
    figures = {"device": devices()[0].name, **given, **found}
    print(json.dumps(figures, indent=1))
    if options.write:
        record.write("service-peer", figures, "numpy", "starlette", "hypercorn", "torch")


if __name__ == "__main__":
    main()
