"""The embeddings on Ray Serve: two replicas, one of which is killed under load, lose no request."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'oxide-gpu[ray]'")
serve = pytest.importorskip(
    "ray.serve", reason="Ray Serve is not installed: pip install 'ray[serve]'", exc_type=ImportError
)
httpx = pytest.importorskip("httpx")

from examples.service.ray_serve import application  # noqa: E402
from tests.distributed.ray_models import FATAL, small_embedder  # noqa: E402
from tests.examples.test_embeddings import random_weights, reference  # noqa: E402

pytestmark = pytest.mark.skipif(os.environ.get("OXIDE_DEVICE") != "cpu", reason="the replicas use the CPU device")
REQUESTS, CLIENTS = 300, 8


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The service's address."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        mark = str(tmp_path_factory.mktemp("serve") / "killed")
        serve.run(application(partial(small_embedder, mark)), name="embeddings")
        yield f"http://127.0.0.1:{port}/embed"
    finally:
        serve.shutdown()
        ray.shutdown()


def text_of(number: int) -> str:
    rng = np.random.default_rng(number)
    return " ".join(map(str, rng.integers(0, 50, rng.integers(1, 30))))


def require_vectors(vectors: Any, texts: list[str]) -> None:
    """Fails unless each text has its vector, as float64 computes it."""
    weights = random_weights(0)
    for vector, text in zip(vectors, texts, strict=True):
        words = np.array([int(word) for word in text.split()], np.int32)
        assert np.linalg.norm(np.array(vector) - reference(weights, words)) < 2e-6


async def processes(handle: Any, count: int, without: frozenset[int] = frozenset()) -> set[int]:
    """Returns the replicas' processes once there are so many, and none of ``without`` among them."""
    found: set[int] = set()
    async with asyncio.timeout(100):
        while len(found) < count:
            with contextlib.suppress(ray.exceptions.RayActorError):  # of one that was just killed
                found |= set(await asyncio.gather(*(handle.process.remote() for _ in range(8)))) - without
    return found


def test_a_killed_replica_loses_no_request(address: str) -> None:
    chosen = random.Random(5)
    moment = chosen.randrange(60, 200)
    numbers = iter(range(REQUESTS))
    answered: dict[int, Any] = {}
    killed: list[int] = []

    async def main() -> None:
        handle = serve.get_deployment_handle("Embeddings", "embeddings")
        before = await processes(handle, 2)

        async def ask(client: Any) -> None:
            for number in numbers:
                answer = await client.post(address, json={"texts": [text_of(number), text_of(number + 1)]})
                assert answer.status_code == 200, answer.text
                assert number not in answered
                answered[number] = answer.json()["embeddings"]
                if len(answered) == moment:
                    killed.append(chosen.choice(sorted(before)))
                    os.kill(killed[0], signal.SIGKILL)

        async with httpx.AsyncClient(timeout=60) as client, asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS):
                tasks.create_task(ask(client))
        # Serve starts another replica.
        assert len(await processes(handle, 1, frozenset(before))) >= 1

    asyncio.run(main())
    assert len(killed) == 1
    assert sorted(answered) == list(range(REQUESTS))
    for number in range(0, REQUESTS, 7):
        require_vectors(answered[number], [text_of(number), text_of(number + 1)])


def test_a_request_by_the_fronts_handle_survives_a_killed_replica_too(address: str) -> None:
    async def main() -> None:
        front = serve.get_app_handle("embeddings")
        replicas = serve.get_deployment_handle("Embeddings", "embeddings")
        before = await processes(replicas, 2)
        sent = [front.embed.remote([text_of(number)]) for number in range(60)]
        os.kill(min(before), signal.SIGKILL)
        sent += [front.embed.remote([text_of(number)]) for number in range(60, 90)]
        for number, response in enumerate(sent):
            require_vectors(await response, [text_of(number)])

    asyncio.run(main())


def test_a_request_that_a_replica_had_accepted_when_it_died_is_sent_again(address: str) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(timeout=60) as client, asyncio.TaskGroup() as tasks:

            async def ask(text: str) -> None:
                answer = await client.post(address, json={"texts": [text]})
                assert answer.status_code == 200, answer.text
                require_vectors(answer.json()["embeddings"], [text])

            for text in (FATAL, *map(text_of, range(20))):
                tasks.create_task(ask(text))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"texts": []}, 400, "must be a list of texts"),
        ({"texts": ["1"] * 65}, 400, "at most 64 are allowed"),
        ([1], 400, "must be a JSON object"),
    ],
)
def test_wrong_requests_are_refused(address: str, body: Any, status: int, words: str) -> None:
    answer = httpx.post(address, json=body, timeout=60)
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_there_is_nothing_else(address: str) -> None:
    assert httpx.get(address, timeout=60).status_code == 404
