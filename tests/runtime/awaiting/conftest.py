"""Both event loops, for tests that take ``run``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

Runner = Callable[[Callable[[], Awaitable[Any]]], Any]


def run_asyncio(main: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(main())  # type: ignore[arg-type]


@pytest.fixture(params=[trio.run, run_asyncio], ids=["trio", "asyncio"])
def run(request: pytest.FixtureRequest) -> Runner:
    runner: Runner = request.param
    return runner
