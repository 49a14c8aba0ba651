"""Waiting, in a loop that goes on, for what another thread does."""

from __future__ import annotations

from collections.abc import Callable

import trio


async def until(condition: Callable[[], object]) -> None:
    """Returns once ``condition()`` holds; a run in which it never does is ended by pytest's own timeout."""
    while not condition():
        await trio.sleep(0.001)
