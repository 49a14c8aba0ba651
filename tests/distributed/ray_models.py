"""Models of the tests of ``oxide.ray``. The actors import them from here."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.embeddings import Embedder
from examples.embeddings.encoder import Encoder
from oxide import (
    DeviceBox,
    DeviceLostError,
    DeviceOperation,
    DisjointSlice,
    Slice,
    d2h,
    f32,
    h2d,
    kernel,
    thread,
    zeros,
)
from oxide_kernels import matmul
from tests.examples.test_embeddings import random_weights

Array = NDArray[Any]


@kernel(block=64)
def scale_and_add(x: Slice[f32], s: f32, y: Slice[f32], out: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        element.value = s * x[index.get()] + y[index.get()]


@kernel(block=64)
def reach_too_far(x: Slice[f32], out: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        element.value = x[index.get() + 1000]


class Affine:
    """Computes ``s * x + y``."""

    def __init__(self, y: DeviceBox, s: float = 3.0) -> None:
        self._y = y
        self._s = s

    def __call__(self, batch: Array) -> DeviceOperation[Array]:
        return scale_and_add(h2d(batch), self._s, self._y, zeros(batch.shape)).last().and_then(d2h)


def affine(batch: Array, y: Array, s: float = 3.0) -> Array:
    """What ``Affine`` computes, in float64."""
    expected: Array = s * batch.astype(np.float64) + y.astype(np.float64)
    return expected


class Product:
    """Computes ``x @ w``."""

    def __init__(self, w: DeviceBox) -> None:
        self._w = w

    def __call__(self, batch: Array) -> DeviceOperation[Array]:
        out = zeros((batch.shape[0], self._w.shape[1]))
        return matmul(h2d(batch), self._w, out, precision="high").last().and_then(d2h)


class Faulty:
    """Raises for some batches, which are numbers."""

    def __call__(self, batch: int) -> Any:
        if batch == 5:
            raise ValueError("five is too many")
        if batch == 7:
            return reach_too_far(h2d(np.zeros(8, np.float32)), zeros(8)).last().and_then(d2h)
        if batch == 9:
            return h2d(np.zeros(8, np.float32))
        return batch


class Unmade:
    """Cannot be made."""

    def __init__(self, reason: str) -> None:
        raise LookupError(reason)

    def __call__(self, batch: int) -> int:
        return batch


class Quits:
    """Raises what would end an event loop: in its constructor, or for a batch."""

    def __init__(self, at_once: bool) -> None:
        if at_once:
            sys.exit(3)

    def __call__(self, batch: str) -> str:
        if batch == "interrupt":
            raise KeyboardInterrupt
        if batch == "exit":
            sys.exit(3)
        return batch


class Mortal:
    """Ends its process at some batches, which are numbers: at each of ``fatal``."""

    def __init__(self, fatal: tuple[int, ...]) -> None:
        self._fatal = fatal

    def __call__(self, batch: int) -> int:
        if batch in self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return batch


class LosesDevice:
    """Loses its device at the batch 3, the first time that any actor has it."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def __call__(self, batch: int) -> int:
        if batch == 3 and not os.path.exists(self._mark):
            open(self._mark, "w").close()
            raise DeviceLostError("cuda:0 was lost: CUDA_ERROR_LAUNCH_FAILED")
        return batch


class Pairs:
    """Has a result for a batch only once it has another batch at the same time."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Event] = []

    async def __call__(self, batch: int) -> int:
        if self._waiting:
            self._waiting.pop().set()
        else:
            other = asyncio.Event()
            self._waiting.append(other)
            await other.wait()
        return batch


class Endless:
    """Never has a result for a negative batch. Tells ``log``, an actor, what begins and what is cancelled."""

    def __init__(self, log: Any) -> None:
        self._log = log

    async def __call__(self, batch: int) -> int:
        if batch >= 0:
            return batch
        await self._log.add.remote("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.shield(self._log.add.remote("cancelled"))
            raise
        return batch


class Log:
    """Counts words, as an actor, and tells when there are enough."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._changed = asyncio.Event()

    async def add(self, word: str) -> None:
        self._words.append(word)
        self._changed.set()

    async def wait(self, word: str, count: int) -> int:
        """Returns once ``word`` was added ``count`` times."""
        while self._words.count(word) < count:
            self._changed.clear()
            await self._changed.wait()
        return self._words.count(word)


class Large:
    """Returns an array of a size in bytes, and whether the batch was a view of the object store."""

    def __call__(self, batch: Array) -> tuple[Array, bool]:
        return np.full(1 << 20, batch[0], np.uint8), not batch.flags.writeable


class Echo:
    """Returns the batch, after the pool had time to read more."""

    async def __call__(self, batch: Any) -> Any:
        await asyncio.sleep(0.05)
        return batch


class Shape:
    """Returns the shape of its weight."""

    def __init__(self, weight: Any) -> None:
        self._shape = weight.shape

    def __call__(self, batch: int) -> Any:
        return self._shape


FATAL = "7 7 7"


class WordTokenizer:
    """Makes a token of each word, a number. Ends its process at the text ``FATAL``, unless the file ``mark`` exists."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def enable_truncation(self, most: int) -> None: ...

    def no_padding(self) -> None: ...

    def encode_batch(self, texts: list[str]) -> list[Any]:
        if FATAL in texts and not os.path.exists(self._mark):
            open(self._mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return [SimpleNamespace(ids=[int(word) for word in text.split()]) for text in texts]


def small_embedder(mark: str) -> Embedder:
    """An encoder of the layout of all-MiniLM-L6-v2, with small random weights."""
    return Embedder(Encoder(random_weights(0)), WordTokenizer(mark))  # type: ignore[arg-type]
