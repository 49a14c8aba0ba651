"""The service example on a device whose batches take a fixed time: what the batcher, the service and HTTP add to it.

On the CPU device batches share the cores with the event loop and with the clients of a benchmark, so their times vary
with these. Here a batch sleeps on its stream, one batch at a time. ``python -m benchmarks.service_load --batch-ms 50``
starts it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import trio

from examples.service.__main__ import CORPUS, listening, serve
from examples.service.app import Service
from examples.service.hashing import HashingEmbedder, Tokens, Vectors
from oxide import DeviceOperation, SingleStream, init_device_contexts
from oxide.serving import Bucket, Buckets


class TimedModel:
    """The hashing model, whose batches take so many seconds."""

    dimension = HashingEmbedder.dimension

    def __init__(self, seconds: float) -> None:
        self._model = HashingEmbedder()
        self._seconds = seconds

    def tokenise(self, texts: Sequence[str]) -> list[Tokens]:
        """Returns the tokens of each text."""
        return self._model.tokenise(texts)

    def encode(self, texts: Sequence[Tokens]) -> DeviceOperation[Vectors]:
        """Returns the operation that yields a row for each text, at once."""
        return self._model.encode(texts)

    def buckets_up_to(self, max_texts: int, max_tokens: int) -> Buckets[Tokens, Vectors]:
        """Returns one bucket for all batches."""

        def make(texts: int) -> Bucket[Tokens, Vectors]:
            bucket = self._model.bucket(texts)
            return Bucket(
                bucket.operation, bucket.fill, lambda rows, given: Late(bucket.finish(rows, given), self._seconds)
            )

        return Buckets(lambda texts: max_texts, make)


class Late(DeviceOperation[Any]):
    """An operation after a time in which its stream does nothing."""

    def __init__(self, operation: DeviceOperation[Any], seconds: float) -> None:
        super().__init__(operation)
        self._operation = operation
        self._seconds = seconds

    def execute(self, context: Any) -> Any:
        context.stream.launch_host_function(lambda: time.sleep(self._seconds))
        return self._operation.run(context)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-ms", type=float, required=True)
    parser.add_argument("--max-queue", type=int, default=256)
    options = parser.parse_args()
    init_device_contexts(policy=SingleStream())
    lines = CORPUS.read_text(encoding="utf-8").splitlines()
    service = Service(TimedModel(options.batch_ms / 1e3), lines, max_queue=options.max_queue)
    trio.run(serve, service, *listening("127.0.0.1", 0))


if __name__ == "__main__":
    main()
