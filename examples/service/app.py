"""The application: its routes, its limits, and the answer to each failure."""

from __future__ import annotations

import gc
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import orjson
import trio
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import oxide
from oxide import OperationCancelledError, h2d
from oxide.serving import Batcher, BatcherClosedError, BatchReport, Overloaded

from .corpus import MOST, Corpus
from .hashing import Embeds, Tokens, Vectors

MOST_IN_BATCH = 32
MOST_TOKENS = 4096
"""The most tokens of a batch."""

MOST_BYTES = 256 * 1024
MOST_TEXTS = 64
MOST_CHARACTERS = 4000
FEW_CHARACTERS = 2000
"""Texts of up to this many characters in all are tokenised without a thread, in about a millisecond."""

PAGE = Path(__file__).with_name("page.html")


class BadRequest(Exception):
    """Raised for a request that is answered with an error status, 400 by default, and a reason."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


@final
class Service:
    """The service with a model and a corpus. ``app`` is the ASGI application. It answers requests inside the block
    ``async with service.running()``.

    After ``drain()`` it finishes the requests that it has accepted, and then ``drained`` is set. Requests that arrive
    later get 503, and so does ``/readyz``. Every answer ends its connection (``Connection: close``).
    """

    def __init__(self, model: Embeds, lines: Sequence[str], *, max_queue: int = 1024, timeout: float = 10.0) -> None:
        self._model = model
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        self._lines = [line for _, line in numbered]
        self._numbers = [number for number, _ in numbered]  # the numbers of the lines in the file
        self._timeout = timeout
        self._most_texts = min(MOST_TEXTS, max_queue)  # more texts than max_queue would never find room in the queue
        self._reports: deque[dict[str, Any]] = deque(maxlen=200)
        self._corpus: Corpus | None = None
        self._ready = False
        self._accepted = 0  # requests that arrived before ``drain`` and have no answer
        self.draining, self.drained = trio.Event(), trio.Event()
        self._buckets = model.buckets_up_to(MOST_IN_BATCH, MOST_TOKENS)
        self._batcher: Batcher[Tokens, Vectors] = Batcher(
            self._buckets,
            max_batch=MOST_IN_BATCH,
            cost=lambda tokens: max(1, len(tokens)),
            max_cost=MOST_TOKENS,
            max_queue=max_queue,
            on_batch=self._note,
            name="embed",
        )
        self._routes = Starlette(
            routes=[
                Route("/", self._page),
                Route("/embed", self._guarded(self._embed), methods=["POST"]),
                Route("/search", self._guarded(self._search), methods=["POST"]),
                Route("/healthz", self._lives),
                Route("/readyz", self._is_ready),
                Route("/metrics", self._metrics),
                Route("/statistics", self._statistics),
            ]
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Compiles the kernels, embeds the corpus, and accepts requests until the end of the block. Then waits until
        the accepted requests have been answered."""
        async with self._batcher:
            vectors = np.zeros((len(self._lines), self._model.dimension), np.float32)
            tokens = await trio.to_thread.run_sync(self._model.tokenise, self._lines)
            for first in range(0, len(tokens), 32):
                # Other numbers of tokens may need other kernels, which are compiled in a thread.
                encoded = partial(self._model.encode, tokens[first : first + 32])
                await oxide.prepare(encoded)
                vectors[first : first + 32] = await encoded()
            corpus = self._corpus = Corpus(self._lines, await h2d(vectors))
            await oxide.prepare(lambda: corpus.search(vectors[0], 1))
            # The objects made so far live as long as the service, so full collections need not traverse them. Such a
            # collection took 60 to 120 ms, in which no request was answered.
            gc.collect()
            gc.freeze()
            self._ready = True
            try:
                yield
            finally:
                self._ready = False
                gc.unfreeze()

    @property
    def size(self) -> int:
        """Returns the number of texts that are searched."""
        return len(self._lines)

    def drain(self) -> None:
        """Begins to drain."""
        self.draining.set()
        self._note_drained()

    def _note_drained(self) -> None:
        if self.draining.is_set() and not self._accepted:
            self.drained.set()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """Is the ASGI application."""

        async def send_on(message: Any) -> None:
            if message["type"] == "http.response.start" and self.draining.is_set() and scope["http_version"][0] == "1":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        accepted = scope["type"] == "http" and not self.draining.is_set()
        self._accepted += accepted
        try:
            await self._routes(scope, receive, send_on)
        finally:
            self._accepted -= accepted
            self._note_drained()

    # Requests

    async def _embed(self, request: Request) -> Response:
        return embeddings(await self._vectors(texts_of(await self._read(request), self._most_texts)))

    async def _search(self, request: Request) -> Response:
        body = await self._read(request)
        _require_text("query", body.get("query"))
        k = body.get("k", 5)
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= MOST:
            raise BadRequest(f'"k" must be an integer from 1 to {MOST}')
        corpus = self._corpus
        if corpus is None:
            raise BadRequest("the service is starting", 503)
        [vector] = await self._vectors([body["query"]])
        scores, numbers = await corpus.search(vector, k)
        found = zip(scores.tolist(), numbers.tolist(), strict=True)
        return JSONResponse(
            {"results": [{"text": corpus.texts[n], "line": self._numbers[n], "score": score} for score, n in found]}
        )

    async def _read(self, request: Request) -> dict[str, Any]:
        try:
            with trio.fail_after(self._timeout):
                body = await body_of(request)
        except trio.TooSlowError as error:
            raise BadRequest(f"the body did not arrive within {self._timeout:g} s", 408) from error
        request.state.read.set()
        if request.state.late:
            raise BadRequest("the service is shutting down", 503)
        return body

    async def _vectors(self, texts: list[str]) -> list[Vectors]:
        """Embeds each text as a request of its own to the batcher. The first error cancels the other requests and is
        raised."""
        if sum(map(len, texts)) <= FEW_CHARACTERS:
            requests = self._model.tokenise(texts)
        else:
            requests = await trio.to_thread.run_sync(self._model.tokenise, texts)
        if len(texts) == 1:  # most requests: saves a nursery and a task
            return [await self._batcher(requests[0], timeout=self._timeout)]
        vectors: list[Any] = [None] * len(texts)
        errors: list[Exception] = []
        async with trio.open_nursery() as nursery:

            async def embed(number: int, tokens: Tokens) -> None:
                try:
                    vectors[number] = await self._batcher(tokens, timeout=self._timeout)
                except Exception as error:
                    errors.append(error)
                    nursery.cancel_scope.cancel()

            for number, tokens in enumerate(requests):
                nursery.start_soon(embed, number, tokens)
        if errors:
            raise errors[0]
        return vectors

    def _guarded(self, handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Wraps a handler. The returned handler turns failures into answers, and is cancelled when its client hangs
        up."""

        async def answer(request: Request) -> Response:
            request.state.late = self.draining.is_set()  # before anything is awaited
            answered: list[Response] = []
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    # Only after the body has been read: both take messages from the same channel.
                    await request.state.read.wait()
                    while (await request.receive())["type"] != "http.disconnect":
                        pass
                    nursery.cancel_scope.cancel()

                request.state.read = trio.Event()
                nursery.start_soon(watch)
                answered.append(await self._answer(handle, request))
                nursery.cancel_scope.cancel()
            return answered[0] if answered else Response(status_code=499)

        return answer

    async def _answer(self, handle: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
        try:
            return await handle(request)
        except BadRequest as error:
            return _problem(error.status, str(error), {"Retry-After": "5"} if error.status == 503 else None)
        except Overloaded as error:
            return _problem(429, str(error), {"Retry-After": "1"})
        except TimeoutError as error:
            return _problem(504, str(error))
        except (BatcherClosedError, OperationCancelledError):
            what = "starting" if self._corpus is None else "shutting down"
            return _problem(503, f"the service is {what}", {"Retry-After": "5"})
        except ClientDisconnect:
            return Response(status_code=499)

    # The page, health and statistics

    def _note(self, report: BatchReport) -> None:
        self._reports.append({"ended": time.monotonic(), **asdict(report), "error": report.error and str(report.error)})

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(PAGE.read_text(encoding="utf-8"))

    async def _lives(self, request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def _is_ready(self, request: Request) -> Response:
        ready = self._ready and not self.draining.is_set()
        return PlainTextResponse("ready\n") if ready else PlainTextResponse("not ready\n", 503)

    async def _metrics(self, request: Request) -> Response:
        return Response(self._batcher.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _statistics(self, request: Request) -> Response:
        found = self._batcher.statistics()._asdict()
        found["batch_sizes"] = sorted(found["batch_sizes"].items())
        return JSONResponse(
            {
                "now": time.monotonic(),
                "statistics": found,
                "batches": list(self._reports),
                "captured": list(self._buckets.captured),
            }
        )


async def body_of(request: Request) -> dict[str, Any]:
    """Returns the JSON object in a request's body. Raises ``BadRequest`` for any other body. Also raises it as soon as
    more than 256 KiB have arrived."""
    too_large = BadRequest(f"the body has more than {MOST_BYTES} bytes", 413)
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > MOST_BYTES:
        raise too_large
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MOST_BYTES:
            raise too_large
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8: byte {error.start} is {data[error.start]:#04x}") from error
    try:
        body = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def texts_of(body: dict[str, Any], most: int = MOST_TEXTS) -> list[str]:
    """Returns the texts of a request. Raises ``BadRequest`` if they are missing, too many, too long or empty."""
    texts = body.get("texts")
    if not isinstance(texts, list) or not texts:
        raise BadRequest('"texts" must be a list of texts')
    if len(texts) > most:
        raise BadRequest(f'"texts" has {len(texts)} texts; at most {most} are allowed')
    for number, text in enumerate(texts):
        _require_text(f"texts[{number}]", text)
    return texts


def embeddings(vectors: Iterable[Vectors]) -> Response:
    """Returns the answer with a vector for each text. This blocks the event loop, but orjson takes a twentieth of the
    time that Python's ``json`` needs for a vector. It writes just the digits that identify a float32."""
    body = orjson.dumps({"embeddings": list(vectors)}, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, media_type="application/json")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def _require_text(name: str, text: object) -> None:
    if not isinstance(text, str) or not text.strip():
        raise BadRequest(f'"{name}" must be a text that is not empty')
    if len(text) > MOST_CHARACTERS:
        raise BadRequest(f'"{name}" has {len(text)} characters; at most {MOST_CHARACTERS} are allowed')
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON can write half of a surrogate pair
        raise BadRequest(f'"{name}" has half a surrogate pair at character {error.start}') from error


def _problem(status: int, reason: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": reason}, status, headers)
