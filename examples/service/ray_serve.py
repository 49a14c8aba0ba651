"""``POST /embed`` on Ray Serve: replicas with a device and a ``Batcher`` each, and a front that loses no request.

    pip install 'oxide-gpu[ray,service]' 'ray[serve]'
    python -m examples.service.ray_serve --replicas 2

Serve sends a request to another replica if its replica has not accepted it, and fails it if the replica dies later. An
embedding may be computed twice without harm, so the front sends it again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import ray
from ray import serve
from ray.exceptions import RayActorError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from examples.embeddings.options import add_model_options
from oxide.serving import Batcher, Overloaded

from .app import FEW_CHARACTERS, MOST_IN_BATCH, MOST_TOKENS, BadRequest, body_of, embeddings, texts_of
from .hashing import Embeds, HashingEmbedder, Tokens, Vectors

TRIES = 4
"""The most replicas that a request is sent to. It is sent to another replica when its replica has died."""


class Embeddings:
    """A replica: the model on a device, and the batcher for the requests that Serve sends to the replica."""

    async def __init__(self, load: Callable[[], Embeds], timeout: float = 10.0) -> None:  # type: ignore[misc]
        """Loads the model. Serve awaits this constructor in the event loop in which it later calls the methods."""
        self._model = await asyncio.to_thread(load)
        self._timeout = timeout
        self._batcher: Batcher[Tokens, Vectors] = Batcher(
            self._model.buckets_up_to(MOST_IN_BATCH, MOST_TOKENS),
            max_batch=MOST_IN_BATCH,
            cost=lambda tokens: max(1, len(tokens)),
            max_cost=MOST_TOKENS,
            name="embed",
        )
        await (
            self._batcher.__aenter__()
        )  # open for the life of the process: before Serve ends a replica, it waits for the replica's requests

    async def embed(self, texts: list[str]) -> Vectors:
        """Returns a row for each text. Raises ``Overloaded`` if the queue is full, ``TimeoutError`` if it takes too
        long."""
        if sum(map(len, texts)) <= FEW_CHARACTERS:
            requests = self._model.tokenise(texts)
        else:
            requests = await asyncio.to_thread(self._model.tokenise, texts)
        return np.stack(await asyncio.gather(*(self._batcher(each, timeout=self._timeout) for each in requests)))

    async def process(self) -> int:
        """Returns the number of the replica's process."""
        return os.getpid()


class Front:
    """Takes requests over HTTP or through its Serve handle. Sends each request to replicas until one has answered."""

    def __init__(self, replicas: Any) -> None:
        self._replicas = replicas

    async def __call__(self, request: Request) -> Response:
        """Answers ``POST /embed``."""
        try:
            if request.url.path != "/embed" or request.method != "POST":
                raise BadRequest("POST /embed takes texts", 404)
            return embeddings(await self.embed(texts_of(await body_of(request))))
        except BadRequest as error:
            return JSONResponse({"error": str(error)}, error.status)
        except Overloaded as error:
            return JSONResponse({"error": str(error)}, 429, {"Retry-After": "1"})
        except TimeoutError as error:
            return JSONResponse({"error": str(error)}, 504)
        except ClientDisconnect:
            return Response(status_code=499)

    async def embed(self, texts: list[str]) -> Vectors:
        """Returns a row for each text. Raises ``RayActorError`` if ``TRIES`` replicas have died."""
        for _ in range(TRIES - 1):
            try:
                return await self._sent(texts)
            except RayActorError:
                pass
        return await self._sent(texts)

    async def _sent(self, texts: list[str]) -> Vectors:
        vectors: Vectors = await self._replicas.embed.remote(texts)
        return vectors


class Loads(Protocol):
    """A function that returns the model. Each replica calls it in its own process."""

    def __call__(self) -> Embeds: ...


def application(load: Loads, *, replicas: int = 2) -> Any:
    """Returns the application for ``serve.run``. Each replica has a GPU, or one core if the cluster has no GPU."""
    gpus = 1 if ray.cluster_resources().get("GPU", 0) else 0
    device = {"OXIDE_DEVICE": "cuda" if gpus else "cpu", "OXIDE_CPU_THREADS": "1"}
    deployed: Any = serve.deployment(
        name="Embeddings",
        num_replicas=replicas,
        max_ongoing_requests=4 * MOST_IN_BATCH,  # enough to fill two batches in flight and two that wait
        health_check_period_s=1,
        ray_actor_options={"num_cpus": 1, "num_gpus": gpus, "runtime_env": {"env_vars": device}},
    )(Embeddings)
    front: Any = serve.deployment(name="Front", max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0})(Front)
    return front.bind(deployed.bind(load))


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.service.ray_serve", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--model", choices=("minilm", "hashing"), default="minilm")
    add_model_options(parser)
    options = parser.parse_args()
    load: Loads = HashingEmbedder
    if options.model == "minilm":
        from examples.embeddings import Embedder

        load = partial(Embedder.load, options.weights, options.precision)
    ray.init()
    serve.start(http_options={"host": options.host, "port": options.port})
    serve.run(application(load, replicas=options.replicas))
    print(f"serving on http://{options.host}:{options.port}/embed", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    serve.shutdown()


if __name__ == "__main__":
    main()
