"""Ctrl-C during the import of oxide, or during a first compilation, and then the same again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from oxide.host.uninterrupted import import_whole, uninterrupted
from tests.host.interrupted_first_use import after_an_interrupt, places_of, wrong_after

QUICK = [("modules", 14), ("modules", 120), ("import", 13_000), ("compile", 800), ("compile", 2600)]
CHUNKS = 10


@pytest.mark.parametrize(("mode", "number"), QUICK)
def test_after_an_interrupt_in_the_first_use_the_same_works(mode: str, number: int) -> None:
    _, wrong = after_an_interrupt(mode, number)
    assert not wrong


@pytest.mark.nightly
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_after_an_interrupt_at_any_module_the_same_works(chunk: int) -> None:
    assert not wrong_after("modules", range(1 + chunk, places_of("modules") + 1, CHUNKS))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["import", "compile", "moments"])
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_after_an_interrupt_at_fifty_places_the_same_works(mode: str, chunk: int) -> None:
    last, draw = places_of(mode), random.Random(chunk)
    assert not wrong_after(mode, [draw.randint(1, last) for _ in range(50 // CHUNKS)])


def test_an_interrupt_ends_the_wait_and_not_the_call() -> None:
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        os.kill(os.getpid(), signal.SIGINT)  # the main thread waits: its handler raises there
        goes_on.wait(60)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(call)
    assert begun.is_set()
    assert not ended.is_set()
    goes_on.set()
    assert ended.wait(60)


def test_a_call_gives_its_result_or_its_error() -> None:
    def fail() -> None:
        raise KeyError("of the call")

    names: list[str] = []
    assert uninterrupted(lambda: (names.append(threading.current_thread().name), 5)[1]) == 5
    assert names == ["oxide compiler"]
    with pytest.raises(KeyError, match="of the call"):
        uninterrupted(fail)


def test_another_thread_makes_its_calls_itself() -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(uninterrupted(threading.get_ident)))
    thread.start()
    thread.join()
    assert found == [thread.ident]


def test_without_another_thread_the_main_thread_makes_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert uninterrupted(threading.get_ident) == threading.get_ident()


def test_an_import_lock_that_an_interrupt_left_held_is_released() -> None:
    """It is reentrant: its own thread imports on, and any other waits for ever."""
    program = """
import _imp, oxide, threading
_imp.acquire_lock()
_imp.acquire_lock()
oxide.host.uninterrupted.import_whole("wave")
print(_imp.lock_held())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_a_package_is_imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Callable[[], object]] = []
    monkeypatch.setattr("oxide.host.uninterrupted.uninterrupted", calls.append)
    import_whole("json")
    import_whole("no_such_package")
    assert len(calls) == 1
