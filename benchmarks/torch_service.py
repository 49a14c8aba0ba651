"""The service example's ``POST /embed`` around torch in threads, as services around sentence-transformers are.

Each request is one call of the model in a thread: its texts are tokenised, padded to the longest and computed eagerly.
Server, checks and answers are those of ``examples.service``. ``python -m benchmarks.service_peer`` starts it.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import hypercorn.trio
import trio
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tokenizers import Tokenizer

from benchmarks.encoder_gpu import TorchEncoder, read
from benchmarks.harness import peer
from examples.embeddings.embedder import MAX_TOKENS, model_folder
from examples.service.app import body_of, embeddings, texts_of


class TorchModel:
    """The model on a device: f16 on a GPU, f32 on a CPU."""

    def __init__(self, folder: Path | None) -> None:
        self._torch = torch = peer("torch")
        found = model_folder(folder)
        self._place = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.float16 if self._place == "cuda" else torch.float32
        self._encoder = TorchEncoder(torch, read(found), dtype, self._place)
        self._tokenizer = Tokenizer.from_file(str(found / "tokenizer.json"))
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.enable_padding()

    def encode(self, texts: list[str]) -> Any:
        """Returns a row for each text, on the host."""
        torch = self._torch
        found = self._tokenizer.encode_batch(texts)
        ids = torch.tensor([each.ids for each in found]).to(self._place)
        lengths = [sum(each.attention_mask) for each in found]
        same = min(lengths) == max(lengths)
        mask = None if same else torch.tensor([each.attention_mask for each in found]).to(self._place)
        with torch.no_grad():
            return self._encoder(ids, mask).cpu().numpy()


async def serve(options: argparse.Namespace) -> None:
    """Runs the service. Prints its address when it is ready."""
    model = TorchModel(options.weights)
    model.encode(["warm", "up the model"])
    limiter = trio.CapacityLimiter(options.threads)

    async def embed(request: Request) -> Response:
        texts = texts_of(await body_of(request))
        return embeddings(await trio.to_thread.run_sync(model.encode, texts, limiter=limiter))

    app: Any = Starlette(routes=[Route("/embed", embed, methods=["POST"])])
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.loglevel = "WARNING"
    async with trio.open_nursery() as nursery:
        binds = await nursery.start(partial(hypercorn.trio.serve, app, config))
        print(f"serving on {binds[0]}", flush=True)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", metavar="FOLDER", type=Path)
    parser.add_argument("--threads", type=int, default=8)
    trio.run(serve, parser.parse_args())


if __name__ == "__main__":
    main()
