"""``python -m examples.service``: serves until SIGTERM or Ctrl-C, and finishes what it has accepted."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

import trio

from examples.embeddings.options import add_model_options

CORPUS = Path(__file__).with_name("corpus.txt")


async def serve(options: argparse.Namespace, lines: list[str]) -> None:
    """Runs the service. Prints its address when it is ready."""
    import hypercorn.trio
    from hypercorn.config import Config

    from .app import Service
    from .hashing import HashingEmbedder

    if options.model == "hashing":
        service = Service(HashingEmbedder(), lines, max_queue=options.max_queue, timeout=options.timeout)
    else:
        from examples.embeddings import Embedder

        model = await trio.to_thread.run_sync(Embedder.load, options.weights, options.precision)
        service = Service(model, lines, max_queue=options.max_queue, timeout=options.timeout)
    config = Config()
    config.bind = [f"{options.host}:{options.port}"]
    config.graceful_timeout = 30
    config.loglevel = "WARNING"
    stopped = trio.Event()

    async def stop_on_signals(task_status: Any) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                service.drain()
                stopped.set()
                return

    app: Any = service.app
    async with trio.open_nursery() as nursery:
        await nursery.start(stop_on_signals)
        async with service.running(), trio.open_nursery() as serving:

            async def listen(task_status: Any) -> None:
                await hypercorn.trio.serve(app, config, shutdown_trigger=stopped.wait, task_status=task_status)

            binds = await serving.start(listen)
            print(f"serving {len(lines)} texts on {binds[0]}", flush=True)
    print("finished", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.service", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="8000; 0 picks a free one")
    parser.add_argument("--model", choices=("minilm", "hashing"), default="minilm")
    parser.add_argument("--corpus", type=Path, default=CORPUS, metavar="FILE", help="the searched texts, one a line")
    parser.add_argument("--max-queue", type=int, default=1024)
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds until a request is answered with 504 (10)")
    add_model_options(parser)
    options = parser.parse_args(arguments)
    try:
        lines = [line for line in options.corpus.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"{options.corpus} cannot be read: {error}")
    if not lines:
        sys.exit(f"{options.corpus} has no lines")
    try:
        trio.run(serve, options, lines)
    except ModuleNotFoundError as error:
        sys.exit(f"{error}\nThe service itself needs pip install 'oxide-gpu[service]', or make serve in a clone")
    except FileNotFoundError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
