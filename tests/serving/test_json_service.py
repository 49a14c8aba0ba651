"""Ten thousand answers of a service that was written from the book alone, each checked against NumPy; and attacks.

A case asks 500 times, from 64 clients. Some send poison, some hang up. ``make test`` runs one of the cases.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from oxide.driver.cpu import CpuDriver
from oxide.testing import use_driver

httpx: Any = pytest.importorskip("httpx")
pytest.importorskip("starlette")

from tests.runtime.awaiting.conftest import run_asyncio  # noqa: E402
from tests.serving.json_service import ACCOUNTS, MOST, TABLE, JsonService, table  # noqa: E402

CLIENTS = 64
REQUESTS = 500
VALUES = table()
REFUSED = (429, 503, 504)
"""The queue was full; others of the batch failed, and the reruns were used up; it took too long."""

MALFORMED = [
    ("/softmax", b"{"),
    ("/softmax", b"[1, 2]"),
    ("/softmax", b"\xff"),
    ("/softmax", b'{"row": [1, NaN]}'),
    ("/softmax", b'{"row": [Infinity]}'),
    ("/softmax", b'{"row": [1e39]}'),
    ("/softmax", b'{"row": ["1"]}'),
    ("/softmax", b'{"row": []}'),
    ("/softmax", json.dumps({"row": [1] * (MOST + 1)}).encode()),
    ("/values", b'{"at": 3}'),
    ("/values", b'{"at": [1.5]}'),
    ("/values", b'{"at": [true]}'),
    ("/values", b'{"at": [9223372036854775808]}'),
    ("/values", b"[" * 50_000),
    ("/deposits", b"{}"),
    ("/deposits", b'{"account": 16, "amount": 1}'),
    ("/deposits", b'{"account": -1, "amount": 1}'),
    ("/deposits", b'{"account": 0, "amount": 0.5}'),
    ("/deposits", b'{"account": 0, "amount": null}'),
]


class Clients:
    """The clients of one case, who check what they get."""

    def __init__(self, seed: int, service: JsonService, client: Any) -> None:
        self.draw = random.Random(seed)
        self.service = service
        self.client = client
        self.answers = 0
        self.statuses: dict[int, int] = {}
        self.deposits: list[tuple[int, int, int]] = []  # account, amount, balance after
        self.unknown: list[tuple[int, int]] = []  # account and amount, where there was no answer
        self.asked: dict[str, int] = {}  # status by id

    async def ask(self, path: str, body: bytes) -> Any:
        """Asks once, and hangs up first in one of twenty cases. Returns the answer or None."""
        name = f"request {len(self.asked)}"
        self.asked[name] = 0
        request = partial(self.client.post, path, content=body, headers={"x-request-id": name})
        hangs_up = self.draw.random() < 0.05
        answer = await (hanging_up(request, self.draw.choice([0, 1, 3, 10])) if hangs_up else request())
        if answer is not None:
            self.asked[name] = answer.status_code
            self.statuses[answer.status_code] = self.statuses.get(answer.status_code, 0) + 1
            self.answers += 1
        return answer

    async def one(self) -> None:
        """Asks for something at random, and checks the answer."""
        good = self.draw.choice([self.softmax, self.values, self.deposit])
        await {0: self.malformed, 1: self.malformed, 2: self.outside}.get(self.draw.randrange(40), good)()

    async def softmax(self) -> None:
        row = np.array([self.draw.gauss(0, 5) for _ in range(self.draw.choice([1, 3, 7, 100, MOST]))], np.float32)
        answer = await self.ask("/softmax", json.dumps({"row": row.tolist()}).encode())
        if answer is not None and answer.status_code == 200:
            powers = np.exp(row.astype(np.float64) - row.max())
            np.testing.assert_allclose(answer.json()["softmax"], powers / powers.sum(), rtol=1e-5, atol=1e-9)
        else:
            assert answer is None or answer.status_code in REFUSED

    async def values(self) -> None:
        at = [self.draw.randrange(TABLE) for _ in range(self.draw.choice([1, 2, 30, MOST]))]
        answer = await self.ask("/values", json.dumps({"at": at}).encode())
        if answer is not None and answer.status_code == 200:
            assert answer.json() == {"values": VALUES[at].tolist()}
        else:
            assert answer is None or answer.status_code in REFUSED

    async def outside(self) -> None:
        at = [self.draw.randrange(TABLE), self.draw.choice([-1, TABLE, 2**62, -(2**63)])]
        answer = await self.ask("/values", json.dumps({"at": at}).encode())
        if answer is not None and answer.status_code == 400:
            assert answer.json() == {"error": f'"at" has {at[1]}, and the table has {TABLE} values'}
        else:
            assert answer is None or answer.status_code in REFUSED

    async def malformed(self) -> None:
        path, body = self.draw.choice(MALFORMED)
        answer = await self.ask(path, body)
        assert answer is None or answer.status_code == 400, (body[:50], answer)

    async def deposit(self) -> None:
        account, amount = self.draw.randrange(ACCOUNTS), self.draw.randrange(1, 1001)
        answer = await self.ask("/deposits", json.dumps({"account": account, "amount": amount}).encode())
        if answer is not None and answer.status_code == 200:
            self.deposits.append((account, amount, answer.json()["balance"]))
        else:
            assert answer is None or answer.status_code in REFUSED
            self.unknown.append((account, amount))

    def check(self, balances: list[int]) -> None:
        """Each deposit that was answered was made once, in some order, and each request was run in its own name."""
        for account, final in enumerate(balances):
            made = sorted((balance, amount) for number, amount, balance in self.deposits if number == account)
            before = 0
            for balance, amount in made:
                assert balance - amount >= before, (account, made)
                before = balance
            missing = final - sum(amount for _, amount in made)
            assert missing in sums(amount for number, amount in self.unknown if number == account)
            assert before <= final
        ran = [name for names in self.service.ran for name in names]
        assert set(ran) <= set(self.asked)
        assert {name for name, status in self.asked.items() if status == 200} <= set(ran)


def sums(amounts: Any) -> set[int]:
    """Returns the sums of all subsets."""
    found = {0}
    for amount in amounts:
        found |= {one + amount for one in found}
    return found


async def hanging_up(request: Callable[[], Awaitable[Any]], turns: int) -> Any:
    """Awaits a request for some turns of the event loop. Returns the answer if it comes in that time, else None."""
    answers: list[Any] = []

    async def ask() -> None:
        answers.append(await request())

    if in_trio():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    else:
        task = asyncio.ensure_future(ask())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    return answers[0] if answers else None


def in_trio() -> bool:
    return trio.lowlevel.in_trio_run()


async def at_once(*functions: Callable[[], Awaitable[None]]) -> None:
    if in_trio():
        async with trio.open_nursery() as nursery:
            for function in functions:
                nursery.start_soon(function)
    else:
        await asyncio.gather(*[function() for function in functions])


async def with_clients(seed: int, requests: int, **options: Any) -> Clients:
    """Asks a service from all clients, checks the answers, and returns the clients."""
    service = JsonService(**options)
    transport = httpx.ASGITransport(app=service.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client, service.running():
        clients = Clients(seed, service, client)

        async def ask_on() -> None:
            while clients.answers < requests:
                await clients.one()

        await at_once(*[ask_on] * CLIENTS)
        balances = (await client.get("/balances")).json()["balances"]
    clients.check(balances)
    return clients


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_every_answer_is_right(seed: int) -> None:
    run: Any = run_asyncio if seed % 2 else trio.run
    clients = run(lambda: with_clients(seed, REQUESTS))
    assert clients.answers >= REQUESTS
    assert set(clients.statuses) <= {200, 400, 503}
    assert clients.statuses[200] > 0.7 * REQUESTS
    assert clients.statuses.get(503, 0) < 0.1 * REQUESTS


def test_a_small_queue_refuses_some_and_answers_the_others_right() -> None:
    clients = trio.run(lambda: with_clients(100, 200, max_queue=4))
    assert {200, 429} <= set(clients.statuses) <= {200, 400, 429, 503}


def test_where_requests_time_out_those_that_are_answered_are_answered_right() -> None:
    clients = trio.run(lambda: with_clients(300, 200, timeout=0.0005))
    assert {504} <= set(clients.statuses) <= {200, 400, 503, 504}


def test_on_a_device_that_is_nearly_full_what_is_answered_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_CPU_MEMORY", str(60_000))  # the table takes 40,000
    with use_driver(CpuDriver(1)):
        clients = trio.run(lambda: with_clients(200, 200))
    assert {200} <= set(clients.statuses) <= {200, 400, 503}
    assert clients.statuses[200] > 100


def test_a_request_after_the_end_is_refused() -> None:
    async def main() -> None:
        service = JsonService()
        transport = httpx.ASGITransport(app=service.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            async with service.running():
                assert (await client.post("/values", json={"at": [3]})).json() == {"values": [9]}
            assert (await client.post("/values", json={"at": [3]})).status_code == 503

    trio.run(main)
