"""The service example: every answer that it gives, next to requests that are right; hang-ups; the end by SIGTERM."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import itertools
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from examples.embeddings.embedder import sizes_up_to
from examples.service.corpus import top_k
from oxide import h2d

httpx: Any = pytest.importorskip("httpx")
pytest.importorskip("starlette")
pytest.importorskip("hypercorn")

from examples.service.app import MOST_BYTES, Service  # noqa: E402
from examples.service.hashing import HashingEmbedder  # noqa: E402

LINES = ["a dog barks", "", "a cat sleeps", "stocks fell", "the cat and the dog", "<b>bold</b>"]


def with_service(test: Callable[[Any, Service], Awaitable[None]], **options: Any) -> None:
    """Calls ``test`` with a client and the running service."""

    async def main() -> None:
        service = Service(HashingEmbedder(), LINES, **options)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app=service.app), base_url="http://service")
        async with client:
            assert (await client.get("/readyz")).status_code == 503
            early = await client.post("/embed", json={"texts": ["early"]})
            assert (early.status_code, early.json()) == (503, {"error": "the service is starting"})
            async with service.running():
                await test(client, service)
            assert (await client.get("/readyz")).status_code == 503
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.post("/embed", json={"texts": ["late"]})).status_code == 503

    trio.run(main)


@pytest.mark.parametrize("size", [1, 31, 33, 512, 513, 1003, 40_001])
@pytest.mark.parametrize("k", [1, 5, 64])
def test_the_best_scores_are_numpys_and_ties_go_to_the_first(size: int, k: int) -> None:
    k = min(k, size)
    scores = np.random.default_rng(size + k).integers(0, 50, size).astype(np.float32)
    found, numbers = h2d(scores).and_then(lambda box: top_k(box, k)).sync()
    expected = np.argsort(-scores, kind="stable")[:k]
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_array_equal(found, scores[expected])


def test_a_score_that_is_nan_is_the_last() -> None:
    scores = np.array([np.nan, 1, np.nan, 2, -np.inf], np.float32)
    found, numbers = h2d(scores).and_then(lambda box: top_k(box, 5)).sync()
    np.testing.assert_array_equal(numbers, [3, 1, 0, 2, 4])
    np.testing.assert_array_equal(found, [2, 1, -np.inf, -np.inf, -np.inf])


@pytest.mark.parametrize("k", [0, 4, 65])
def test_a_wrong_number_of_results_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match=f"k is {k}; it must be from 1 to 3"):
        h2d(np.zeros(3, np.float32)).and_then(lambda box: top_k(box, k)).sync()


def test_texts_are_embedded_and_found() -> None:
    async def test(client: Any, service: Service) -> None:
        assert (await client.get("/readyz")).text == "ready\n"
        answer = await client.post("/embed", json={"texts": ["a dog", "a dog", "stocks"]})
        first, second, third = np.array(answer.json()["embeddings"])
        np.testing.assert_array_equal(first, second)
        assert first @ first == pytest.approx(1)
        assert first @ third < 0.5
        found = (await client.post("/search", json={"query": "cat sleeps", "k": 2})).json()["results"]
        assert [(one["text"], one["line"]) for one in found] == [("a cat sleeps", 3), ("the cat and the dog", 5)]
        assert len((await client.post("/search", json={"query": "x", "k": 64})).json()["results"]) == len(LINES) - 1

    with_service(test)


@pytest.mark.nightly
def test_vectors_come_back_as_they_are_on_the_device_to_the_last_bit() -> None:
    async def test(client: Any, service: Service) -> None:
        texts = [" ".join(f"w{number}" for number in range(count)) for count in (1, 7, 100, 500)]
        answer = await client.post("/embed", json={"texts": texts})
        model = HashingEmbedder()
        expected = await model.encode(model.tokenise(texts))
        np.testing.assert_array_equal(np.array(answer.json()["embeddings"], np.float32), expected)
        assert answer.headers["content-type"] == "application/json"

    with_service(test)


def test_batches_of_all_sizes_share_a_few_graphs() -> None:
    async def test(client: Any, service: Service) -> None:
        model = HashingEmbedder()
        for count in (1, 3, 31, 33, 64, 2):
            texts = [f"some words {number}" for number in range(count)]
            answer = await client.post("/embed", json={"texts": texts})
            expected = await model.encode(model.tokenise(texts))
            np.testing.assert_array_equal(np.array(answer.json()["embeddings"], np.float32), expected)
        captured = (await client.get("/statistics")).json()["captured"]
        assert set(captured) <= {1, 2, 4, 8, 16, 32}
        assert {4, 32} <= set(captured)

    with_service(test)


def test_the_sizes_of_batches_grow_by_at_most_a_quarter() -> None:
    for most in (1, 16, 17, 100, 4096):
        sizes = sizes_up_to(most)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == most
        assert all(larger <= 1.25 * smaller for smaller, larger in itertools.pairwise(sizes))


POISON = [
    (b'{"texts": ["a", NaN]}', 400, "the body is not JSON: NaN is no JSON number"),
    (b'{"texts": ["a\xff"]}', 400, "the body is not UTF-8: byte 13 is 0xff"),
    (b"{", 400, "the body is not JSON"),
    (b"[" * 100_000, 400, "the body is not JSON"),
    (b"[1]", 400, "the body must be a JSON object"),
    (b"{}", 400, '"texts" must be a list of texts'),
    (b'{"texts": []}', 400, '"texts" must be a list of texts'),
    (b'{"texts": [3]}', 400, '"texts[0]" must be a text that is not empty'),
    (b'{"texts": ["a", "  "]}', 400, '"texts[1]" must be a text that is not empty'),
    (b'{"texts": ["\\ud800"]}', 400, "half a surrogate pair at character 0"),
    (json.dumps({"texts": ["a" * 4001]}).encode(), 400, '"texts[0]" has 4001 characters; at most 4000'),
    (json.dumps({"texts": ["a"] * 65}).encode(), 400, '"texts" has 65 texts; at most 64'),
    (b'{"texts": ["' + b"a" * MOST_BYTES + b'"]}', 413, f"the body has more than {MOST_BYTES} bytes"),
]


def test_poison_is_answered_with_a_reason_and_harms_no_other_request() -> None:
    async def test(client: Any, service: Service) -> None:
        answers: dict[int, Any] = {}

        async def ask(number: int, body: bytes) -> None:
            answers[number] = await client.post("/embed", content=body)

        async with trio.open_nursery() as nursery:
            for number, (body, _, _) in enumerate(POISON):
                nursery.start_soon(ask, number, body)
                nursery.start_soon(ask, -1 - number, b'{"texts": ["a dog"]}')
        for number, (_, status, reason) in enumerate(POISON):
            assert answers[number].status_code == status
            assert reason in answers[number].json()["error"]
            assert answers[-1 - number].status_code == 200

    with_service(test)


@pytest.mark.slow
@pytest.mark.parametrize("k", ["5", 0, 65, True, 1.5, None])
def test_a_wrong_k_is_a_bad_request(k: object) -> None:
    async def test(client: Any, service: Service) -> None:
        answer = await client.post("/search", json={"query": "a", "k": k})
        assert (answer.status_code, answer.json()["error"]) == (400, '"k" must be an integer from 1 to 64')

    with_service(test)


@pytest.mark.nightly
def test_a_full_queue_is_429_and_a_late_answer_504() -> None:
    async def test(client: Any, service: Service) -> None:
        service._batcher._max_in_flight = 0  # no batch begins
        statuses = []

        async def ask() -> None:
            answer = await client.post("/embed", json={"texts": ["a"]})
            statuses.append(answer.status_code)
            if answer.status_code == 429:
                assert answer.headers["Retry-After"] == "1"

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
        assert sorted(statuses) == [429, 429, 504, 504, 504]
        service._batcher._max_in_flight = 2

    with_service(test, max_queue=3, timeout=0.5)


@pytest.mark.nightly
def test_more_texts_than_the_queue_holds_are_a_bad_request_not_429() -> None:
    async def test(client: Any, service: Service) -> None:
        answer = await client.post("/embed", json={"texts": ["a"] * 4})
        assert (answer.status_code, answer.json()["error"]) == (400, '"texts" has 4 texts; at most 3 are allowed')
        assert (await client.post("/embed", json={"texts": ["a"] * 3})).status_code == 200

    with_service(test, max_queue=3)


@pytest.mark.nightly
def test_long_texts_are_tokenised_in_a_thread_and_short_ones_on_the_loop() -> None:
    async def test(client: Any, service: Service) -> None:
        threads: list[str] = []
        tokenise = service._model.tokenise

        def spied(texts: Any) -> Any:
            threads.append(threading.current_thread().name)
            return tokenise(texts)

        service._model.tokenise = spied  # type: ignore[method-assign]
        for texts in (["a dog"], ["a dog " * 600], ["a dog"] * 64, ["a dog " * 600] * 64):
            answer = await client.post("/embed", json={"texts": texts})
            np.testing.assert_array_equal(
                np.array(answer.json()["embeddings"], np.float32), await service._model.encode(tokenise(texts))
            )
        here = threading.current_thread().name
        assert [name == here for name in threads] == [True, False, True, False]

    with_service(test)


@pytest.mark.nightly
def test_metrics_statistics_and_the_page_are_served() -> None:
    async def test(client: Any, service: Service) -> None:
        await client.post("/embed", json={"texts": ["a"]})
        metrics = await client.get("/metrics")
        assert 'oxide_batcher_requests_total{batcher="embed",outcome="answered"} 1' in metrics.text
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = (await client.get("/statistics")).json()
        assert found["statistics"]["answered"] == 1
        assert found["captured"] == [1]
        [batch] = found["batches"]
        assert batch["size"] == 1
        assert batch["ended"] <= found["now"]
        assert "<input" in (await client.get("/")).text
        assert (await client.get("/none")).status_code == 404
        assert (await client.get("/embed")).status_code == 405

    with_service(test)


def test_a_service_that_drains_finishes_what_it_accepted_and_refuses_the_rest() -> None:
    async def test(client: Any, service: Service) -> None:
        service._batcher._max_in_flight = 0  # no batch begins
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await client.post("/embed", json={"texts": ["a"]}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            assert "connection" not in (await client.get("/readyz")).headers
            service.drain()
            late = await client.post("/embed", json={"texts": ["a"]})
            assert (late.status_code, late.json()) == (503, {"error": "the service is shutting down"})
            assert (late.headers["connection"], late.headers["retry-after"]) == ("close", "5")
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.headers["connection"]) == (503, "close")
            assert (await client.get("/healthz")).status_code == 200
            assert not service.drained.is_set()
            service._batcher._max_in_flight = 2
            service._batcher._pump()
        assert (answers[0].status_code, answers[0].headers["connection"]) == (200, "close")
        assert service.drained.is_set()

    with_service(test)


def test_http_2_has_no_header_for_the_end_of_a_connection() -> None:
    heads = []

    async def send(message: Any) -> None:
        heads.append(message.get("headers"))

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def main() -> None:
        service = Service(HashingEmbedder(), LINES)
        service.drain()
        for version in ("1.0", "1.1", "2"):
            scope = {"type": "http", "http_version": version, "method": "GET", "path": "/healthz", "headers": []}
            await service.app(scope, receive, send)

    trio.run(main)
    assert [(b"connection", b"close") in head for head in heads[::2]] == [True, True, False]


# The process


@contextmanager
def server(*options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that serves on a free port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.service", "--model", "hashing", "--port", "0", *options],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("serving"), line
        yield process, int(line.rpartition(":")[2])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def post(port: int, path: str, body: object) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def statistics(port: int) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/statistics")
    found: dict[str, Any] = json.loads(connection.getresponse().read())["statistics"]
    connection.close()
    return found


def test_requests_whose_clients_hang_up_are_dropped_and_others_answered() -> None:
    with server() as (_, port):
        body = json.dumps({"texts": ["word " * 700] * 64}).encode()
        request = b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
        for number in range(20):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(request + (body if number % 2 else body[:1000]))
        assert post(port, "/embed", {"texts": ["still here"]})[0] == 200
        while (found := statistics(port))["running"] or found["queued"]:
            pass
        assert found["accepted"] == found["answered"] + found["cancelled"]


def sent(port: int, data: bytes) -> tuple[str, bytes]:
    """Sends the start of a request. Returns the status line and the body of the answer, until the connection closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(data)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode().partition("\r\n")[0].strip(), body


def test_a_body_that_is_announced_too_large_is_refused_before_it_arrives() -> None:
    with server() as (_, port):
        status, body = sent(port, b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n{")
        assert (status, json.loads(body)) == ("HTTP/1.1 413", {"error": "the body has more than 262144 bytes"})


@pytest.mark.slow
@pytest.mark.parametrize("framing", [b"Content-Length: 50\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n4\r\n{"])
def test_a_body_that_never_ends_is_408_and_its_connection_is_closed(framing: bytes) -> None:
    with server("--timeout", "0.5") as (_, port):
        status, body = sent(port, b"POST /embed HTTP/1.1\r\nHost: a\r\n" + framing)
        assert (status, json.loads(body)) == ("HTTP/1.1 408", {"error": "the body did not arrive within 0.5 s"})
        assert post(port, "/embed", {"texts": ["still here"]})[0] == 200


def test_a_second_sigterm_does_not_cut_off_what_the_first_one_finishes() -> None:
    with server() as (process, port):
        body = json.dumps({"texts": ["a dog"]}).encode()
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:5])
            assert post(port, "/embed", {"texts": ["the rest is accepted"]})[0] == 200
            for _ in range(2):
                process.send_signal(signal.SIGTERM)
                while is_ready(port):
                    pass
            client.sendall(body[5:])
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        assert process.wait(60) == 0


def test_while_the_service_drains_it_listens_and_ends_the_connections_of_its_clients() -> None:
    body = json.dumps({"texts": ["a dog"]}).encode()
    head = b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    with (
        server() as (process, port),
        socket.create_connection(("127.0.0.1", port), timeout=60) as uploading,
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as kept,
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as silent,
    ):
        uploading.sendall(head + body[:5])
        for client in (kept, silent):
            client.request("POST", "/embed", body)
            answer = client.getresponse()
            answer.read()
            assert (answer.status, answer.headers["connection"]) == (200, None)
        process.send_signal(signal.SIGTERM)
        while is_ready(port):
            pass
        assert kept.sock is not None
        kept.request("POST", "/embed", body)  # on the connection of its first request
        answer = kept.getresponse()
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert json.loads(answer.read()) == {"error": "the service is shutting down"}
        assert process.poll() is None
        uploading.sendall(body[5:])
        received = uploading.recv(65536)
        assert received.startswith(b"HTTP/1.1 200")
        assert b"\r\nconnection: close\r\n" in received
        assert process.wait(20) == 0


def test_clients_that_ask_again_and_again_on_their_connections_do_not_hold_up_the_end() -> None:
    body = json.dumps({"texts": ["word " * 200 + str(number) for number in range(64)]})
    statuses: list[int] = []
    with server() as (process, port):

        def ask() -> None:
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(client):
                while True:
                    client.request("POST", "/embed", body)
                    answer = client.getresponse()
                    answer.read()
                    statuses.append(answer.status)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        while len(statuses) < 40:
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        for thread in threads:
            thread.join()
    assert set(statuses) <= {200, 503}


def test_a_second_ctrl_c_ends_the_service_at_once() -> None:
    with server() as (process, port), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n{")
        assert post(port, "/embed", {"texts": ["the upload is accepted"]})[0] == 200
        process.send_signal(signal.SIGINT)
        while is_ready(port):
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT


def is_ready(port: int) -> bool:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200


def test_every_accepted_request_is_answered_after_sigterm() -> None:
    with server("--max-queue", "100000") as (process, port):
        statuses: list[int] = []
        refused: list[OSError | http.client.HTTPException] = []

        def ask() -> None:
            while True:
                try:
                    statuses.append(post(port, "/embed", {"texts": ["a b c"] * 64})[0])
                except (OSError, http.client.HTTPException) as error:
                    refused.append(error)
                    return

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        while len(statuses) < 40:
            pass
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert process.wait(60) == 0
        assert process.stdout is not None
        assert process.stdout.read().splitlines() == ["finished"]
        assert set(statuses) <= {200, 503}
        assert len(refused) == len(threads)
        # A connection that was never accepted, or on which nothing was answered because nothing was read.
        assert all(isinstance(error, (ConnectionError, http.client.RemoteDisconnected)) for error in refused)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--corpus", "none.txt"], "none.txt cannot be read: No such file or directory"),
        (["--corpus", "/dev/null"], "/dev/null has no lines"),
        (["--port", "99999"], "--port: '99999' is not a number from 0 to 65535"),
        (["--max-queue", "0"], "--max-queue: '0' is not a number of 1 or more"),
        (["--max-queue", "many"], "--max-queue: 'many' is not a number of 1 or more"),
        (["--timeout", "nan"], "--timeout: 'nan' is not a number of 0.001 or more"),
        (["--host", "256.0.0.1"], "cannot listen on 256.0.0.1, port 8000: "),
    ],
)
def test_a_wrong_option_ends_the_program_with_a_reason(options: list[str], words: str) -> None:
    require_end(options, words)


def test_a_port_that_is_taken_ends_the_program_with_a_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        require_end(
            ["--port", port],
            f"cannot listen on 127.0.0.1, port {port}: Address already in use: --port takes another one",
        )


def require_end(options: list[str], words: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "examples.service", "--model", "hashing", *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert found.returncode in (1, 2)
    assert words in found.stderr
    assert "Traceback" not in found.stderr


CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.mark.skipif(
    not CHROMIUM or not DRIVER or importlib.util.find_spec("selenium") is None,
    reason="needs chromium, chromedriver and selenium",
)
def test_the_page_shows_results_as_one_types() -> None:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    with tempfile.TemporaryDirectory() as folder, server() as (_, port):
        for argument in (
            *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync"),
            *("disable-background-networking", "disable-component-update", "window-size=1000,760"),
            f"user-data-dir={folder}",
        ):
            options.add_argument(f"--{argument}")
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        try:
            browser.get(f"http://127.0.0.1:{port}/")
            query = browser.find_element(By.ID, "query")
            wait = WebDriverWait(browser, 30)

            def first_is(words: str) -> Callable[[Any], bool]:
                return lambda page: words in page.find_element(By.ID, "results").text.partition("\n0")[0]

            query.send_keys("cat sleeps on the windowsill in the sun")
            wait.until(first_is("The cat sleeps on the windowsill in the sun."))
            query.clear()
            query.send_keys("central bank raised interest rates")
            wait.until(first_is("The central bank raised interest rates again."))
            query.clear()
            query.send_keys("\N{SPACE}")
            wait.until(lambda page: not page.find_elements(By.CSS_SELECTOR, "#results li"))
            wait.until(lambda page: "answered" in page.find_element(By.ID, "numbers").text)
            wait.until(lambda page: page.find_elements(By.CSS_SELECTOR, "#timeline rect"))
            assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        finally:
            browser.quit()
