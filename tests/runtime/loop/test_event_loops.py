"""What other threads may ask of an event loop, under trio and under asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio

from oxide.runtime.loop.event_loops import current_loop


@pytest.mark.parametrize("run", [trio.run, lambda function: asyncio.run(function())], ids=["trio", "asyncio"])
def test_another_thread_has_the_loop_call_a_function(run: Callable[[Any], Any]) -> None:
    called: list[int] = []

    async def main() -> Callable[[Callable[[], None]], None]:
        loop = current_loop()
        call_soon, sleeper = loop.from_threads(), loop.sleeper()

        def call() -> None:
            called.append(threading.get_ident())
            sleeper.wake()

        threading.Thread(target=call_soon, args=(call,)).start()
        await sleeper.sleep()
        return call_soon

    call_soon = run(main)
    assert called == [threading.get_ident()]
    call_soon(lambda: called.append(0))  # the loop has ended: the call is left out
    assert len(called) == 1
