"""A small JSON service, written from the book alone, as its first user would: Starlette, three batchers, two kernels.

``POST /softmax {"row": […]}``, ``POST /values {"at": […]}``, which reads a table, and ``POST /deposits {"account": 3,
"amount": 5}``, which changes a balance on the device and so may not be run twice.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import oxide
from oxide import (
    AtomicSlice,
    BoundsError,
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    OutOfMemoryError,
    Slice,
    d2h,
    h2d,
    i64,
    kernel,
    thread,
    zeros,
)
from oxide.serving import Batcher, BatcherClosedError, Overloaded
from oxide_kernels import ops

TABLE = 5000
ACCOUNTS = 16
MOST = 256
"""The most numbers of a row and of a list of places."""

request_id: ContextVar[str] = ContextVar("request_id", default="the service")


def table() -> NDArray[np.int64]:
    return np.arange(TABLE, dtype=np.int64) ** 2


@kernel(block=64)
def look_up(table: Slice[i64], at: Slice[i64], values: DisjointSlice[i64]) -> None:
    index = thread.index_1d()
    value = values.get_mut(index)
    if value is not None:
        value.value = table[at[index.get()]]  # a place outside of the table is a BoundsError


@kernel(block=64)
def add(accounts: Slice[i64], amounts: Slice[i64], balances: AtomicSlice[i64], after: DisjointSlice[i64]) -> None:
    index = thread.index_1d()
    balance = after.get_mut(index)
    if balance is not None:
        account, amount = accounts[index.get()], amounts[index.get()]
        balance.value = balances.fetch_add(account, amount) + amount


class BadRequest(Exception):
    """Raised for a body that is answered with 400 and a reason."""


class JsonService:
    """The service. ``app`` is the ASGI application, which answers inside ``async with service.running()``."""

    def __init__(self, *, max_queue: int = 1024, timeout: float = 60.0) -> None:
        self._timeout = timeout
        self._table: DeviceBox
        self._balances: DeviceBox
        self.ran: list[list[str]] = []  # the requests of each run, by their ids
        self._softmax: Batcher[NDArray[np.float32], list[float]] = Batcher(
            self._run_softmax, key=len, max_queue=max_queue, name="softmax"
        )
        self._values: Batcher[NDArray[np.int64], list[int]] = Batcher(
            self._run_values, cost=len, max_cost=4 * MOST, max_queue=max_queue, name="values"
        )
        self._deposits: Batcher[tuple[int, int], np.int64] = Batcher(
            self._run_deposits, reruns=0, max_queue=max_queue, name="deposits"
        )
        self.app = Starlette(
            routes=[
                Route("/softmax", self._answering(self._softmax_of), methods=["POST"]),
                Route("/values", self._answering(self._values_at), methods=["POST"]),
                Route("/deposits", self._answering(self._deposit), methods=["POST"]),
                Route("/balances", self._answering(self._all_balances), methods=["GET"]),
            ]
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Uploads the state, compiles the kernels, and answers requests until the end of the block."""
        self._table = await h2d(table())
        self._balances = await zeros(ACCOUNTS, np.int64)
        await oxide.prepare(
            # Rows of other lengths may need other kernels.
            *[partial(self._softmax_operation, [np.zeros(length, np.float32)]) for length in (1, 3, 7, 100, MOST)],
            lambda: self._values_operation([np.zeros(1, np.int64)]),
            lambda: self._deposits_operation([(0, 0)]),
        )
        async with self._softmax, self._values, self._deposits:
            yield

    # Batches

    def _run_softmax(self, rows: list[NDArray[np.float32]]) -> DeviceOperation[Any]:
        self._note(self._softmax)
        return self._softmax_operation(rows)

    def _run_values(self, requests: list[NDArray[np.int64]]) -> DeviceOperation[Any]:
        self._note(self._values)
        return self._values_operation(requests)

    def _run_deposits(self, requests: list[tuple[int, int]]) -> DeviceOperation[Any]:
        self._note(self._deposits)
        return self._deposits_operation(requests)

    def _note(self, batcher: Batcher[Any, Any]) -> None:
        assert request_id.get() == "the service"
        self.ran.append([context[request_id] for context in batcher.contexts()])

    def _softmax_operation(self, rows: list[NDArray[np.float32]]) -> DeviceOperation[Any]:
        return d2h(ops.softmax(h2d(np.stack(rows)))).map(lambda found: found.tolist())

    def _values_operation(self, requests: list[NDArray[np.int64]]) -> DeviceOperation[Any]:
        at = np.concatenate(requests)
        ends = np.cumsum([len(request) for request in requests])[:-1]
        values = look_up(self._table, h2d(at), zeros(len(at), np.int64)).last()
        return d2h(values).map(lambda found: [part.tolist() for part in np.split(found, ends)])

    def _deposits_operation(self, requests: list[tuple[int, int]]) -> DeviceOperation[Any]:
        accounts, amounts = np.array(requests, np.int64).T.copy()
        after = zeros(len(requests), np.int64)
        return d2h(add(h2d(accounts), h2d(amounts), self._balances, after).last())

    # Requests

    async def _softmax_of(self, body: dict[str, Any]) -> dict[str, Any]:
        row = np.array(numbers_of(body, "row", (int, float)), np.float32)
        if not np.isfinite(row).all():
            raise BadRequest('"row" has a number that is no finite float32')
        return {"softmax": await self._softmax(row, timeout=self._timeout)}

    async def _values_at(self, body: dict[str, Any]) -> dict[str, Any]:
        at = np.array(numbers_of(body, "at", (int,)), np.int64)
        try:
            return {"values": await self._values(at, timeout=self._timeout)}
        except BoundsError as error:
            if error.index in at:
                raise BadRequest(f'"at" has {error.index}, and the table has {error.length} values') from error
            raise  # the error of another request of the batch, see "Requests that fail" in the book

    async def _deposit(self, body: dict[str, Any]) -> dict[str, Any]:
        account, amount = body.get("account"), body.get("amount")
        # Checked here, and not by the kernel: with reruns=0 its error would be that of the whole batch.
        if type(account) is not int or not 0 <= account < ACCOUNTS:
            raise BadRequest(f'"account" must be an integer from 0 to {ACCOUNTS - 1}')
        if type(amount) is not int or not 1 <= amount <= 1000:
            raise BadRequest('"amount" must be an integer from 1 to 1000')
        return {"balance": int(await self._deposits((account, amount), timeout=self._timeout))}

    async def _all_balances(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"balances": (await d2h(self._balances)).tolist()}

    def _answering(
        self, handle: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            request_id.set(request.headers.get("x-request-id", "unnamed"))
            try:
                body = {} if request.method == "GET" else parsed(await request.body())
                return JSONResponse(await handle(body))
            except BadRequest as error:
                return JSONResponse({"error": str(error)}, 400)
            except Overloaded:
                return JSONResponse({"error": "too many requests"}, 429)
            except (BoundsError, BatcherClosedError, OutOfMemoryError):
                return JSONResponse({"error": "try again"}, 503)
            except TimeoutError:
                return JSONResponse({"error": "too slow"}, 504)

        return answer


def parsed(data: bytes) -> dict[str, Any]:
    """Returns the JSON object in a body. Raises ``BadRequest`` for any other body."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def numbers_of(body: dict[str, Any], name: str, types: tuple[type, ...]) -> list[Any]:
    """Returns a list of numbers of a body. Raises ``BadRequest`` if it is missing, empty, too long or another thing."""
    numbers = body.get(name)
    if not isinstance(numbers, list) or not 1 <= len(numbers) <= MOST:
        raise BadRequest(f'"{name}" must be a list of 1 to {MOST} numbers')
    for number in numbers:
        if type(number) not in types or not -(2**63) <= number < 2**63 or math.isnan(number):
            kind = "numbers" if float in types else "integers"
            raise BadRequest(f'"{name}" must have {kind} of at most 64 bits')
    return numbers
