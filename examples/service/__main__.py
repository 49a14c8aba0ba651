"""``python -m examples.service``: serves until SIGTERM or Ctrl-C, and finishes what it has accepted."""

from __future__ import annotations

import argparse
import errno
import math
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from examples.embeddings.options import add_model_options

if TYPE_CHECKING:
    from .app import Service
    from .hashing import Embeds

CORPUS = Path(__file__).with_name("corpus.txt")

DRAIN_SECONDS = 30.0
"""The most seconds from SIGTERM for the requests that were accepted before."""


async def serve(service: Service, listener: int, address: str) -> None:
    """Runs the service on a bound socket, given by its descriptor. Prints the address when the service is ready."""
    import hypercorn.trio
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"fd://{listener}"]
    config.graceful_timeout = 1  # for requests that were refused, as the accepted ones have their answers
    config.loglevel = "WARNING"
    served = trio.Event()

    async def stop_on_signals(task_status: Any) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGINT and service.draining.is_set():  # Ctrl-C again: ends at once
                    signal.signal(signal.SIGINT, signal.SIG_DFL)
                    signal.raise_signal(signal.SIGINT)
                # SIGTERM may come twice: ``make``, in the same process group, passes its own SIGTERM on.
                service.drain()

    async def end_of_service() -> None:
        # Hypercorn listens until then, so that /readyz is answered. If it ends while a connection is between two
        # requests, and the next one arrives, it waits for that connection until its time-out.
        await service.draining.wait()
        with trio.move_on_after(DRAIN_SECONDS):
            await service.drained.wait()

    async def listen(task_status: Any) -> None:
        app: Any = service.app
        await hypercorn.trio.serve(app, config, shutdown_trigger=end_of_service, task_status=task_status)
        served.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(stop_on_signals)
        await nursery.start(listen)  # from here on /healthz answers "alive", and /readyz "not ready"
        async with service.running():
            print(f"serving {service.size} texts on {address}", flush=True)
            await served.wait()
        nursery.cancel_scope.cancel()
    print("finished", flush=True)


def model_of(options: argparse.Namespace) -> Embeds:
    """Returns the model that the options name, with its weights on the device."""
    if options.model == "hashing":
        from .hashing import HashingEmbedder

        return HashingEmbedder()
    from examples.embeddings import Embedder

    return Embedder.load(options.weights, options.precision)


def listening(host: str, port: int) -> tuple[int, str]:
    """Binds a socket to an address. Returns its descriptor and the address. Ends the program with the reason if this
    fails; so it is called before the model is loaded."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        hint = ": --port takes another one" if error.errno == errno.EADDRINUSE else ""
        sys.exit(f"cannot listen on {host}, port {port}: {error.strerror}{hint}")
    found = listener.getsockname()
    shown = f"[{found[0]}]" if family == socket.AF_INET6 else found[0]
    return listener.detach(), f"http://{shown}:{found[1]}"


def at_least(least: float, kind: type[int] | type[float], most: float = math.inf) -> Callable[[str], int | float]:
    """Returns the function that parses the number of an option, and refuses a number outside of the bounds."""

    def read(text: str) -> int | float:
        try:
            number = kind(text)
        except ValueError:
            number = kind(least) - 1
        if not least <= number <= most:
            bounds = f"of {least:g} or more" if most == math.inf else f"from {least:g} to {most:g}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {bounds}")
        return number

    return read


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.service", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=at_least(0, int, 65535), default=8000, help="8000; 0 picks a free one")
    parser.add_argument("--model", choices=("minilm", "hashing"), default="minilm")
    parser.add_argument("--corpus", type=Path, default=CORPUS, metavar="FILE", help="the searched texts, one a line")
    parser.add_argument(
        "--max-queue", type=at_least(1, int), default=1024, help="texts that wait at most, before it answers 429 (1024)"
    )
    parser.add_argument(
        "--timeout", type=at_least(0.001, float), default=10.0, help="seconds until a request is answered with 504 (10)"
    )
    add_model_options(parser)
    options = parser.parse_args(arguments)
    try:
        lines = options.corpus.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        sys.exit(f"{options.corpus} cannot be read: {reason}")
    if not any(line.strip() for line in lines):
        sys.exit(f"{options.corpus} has no lines")
    listener, address = listening(options.host, options.port)
    try:
        from .app import Service

        service = Service(model_of(options), lines, max_queue=options.max_queue, timeout=options.timeout)
        trio.run(serve, service, listener, address)
    except ModuleNotFoundError as error:
        sys.exit(f"{error}\nThe service itself needs pip install 'oxide-gpu[service]', or make serve in a clone")
    except (FileNotFoundError, ValueError) as error:  # the model's files are missing or wrong
        sys.exit(str(error))


if __name__ == "__main__":
    main()
