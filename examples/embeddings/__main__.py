"""``python -m examples.embeddings``: how near texts are to one another, or the lines of a file to a query."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import numpy as np
import trio

import oxide

from .embedder import Embedder, Vectors
from .options import add_model_options

BATCH = 64
"""The largest number of texts that one operation encodes."""


async def embed(embedder: Embedder, texts: list[str]) -> Vectors:
    """Returns a row for each text. Texts of similar length share an operation, so that short texts do not wait for long
    texts."""
    tokens = embedder.tokenise(texts)
    order = sorted(range(len(texts)), key=lambda number: len(tokens[number]))
    vectors = np.empty((len(texts), embedder.dimension), np.float32)
    for first in range(0, len(order), BATCH):
        some = order[first : first + BATCH]
        batch = [tokens[number] for number in some]
        await oxide.prepare(partial(embedder.encode, batch))  # compiles new kernels in a thread
        vectors[some] = await embedder.encode(batch)
    return vectors


async def compare(embedder: Embedder, texts: list[str]) -> None:
    """Prints the similarity of each pair of texts."""
    vectors = await embed(embedder, texts)
    for number, (text, row) in enumerate(zip(texts, vectors @ vectors.T, strict=True)):
        print(f"{number:3} ", *(f"{score:6.3f}" for score in row), f" {text}")


async def search(embedder: Embedder, lines: list[str], query: str, count: int) -> None:
    """Prints the lines that are nearest to the query."""
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    vectors = await embed(embedder, [*(line for _, line in numbered), query])
    scores = vectors[:-1] @ vectors[-1]
    for place in np.argsort(-scores, kind="stable")[:count]:
        number, line = numbered[place]
        print(f"{scores[place]:6.3f}  line {number}: {line}")


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.embeddings", description=__doc__)
    parser.add_argument("texts", nargs="+", help="texts to compare, or with --search the query")
    parser.add_argument("--search", metavar="FILE", type=Path, help="find the lines of this file nearest to the query")
    parser.add_argument("--count", type=int, default=5, help="the number of lines to show (5)")
    add_model_options(parser)
    options = parser.parse_args(arguments)
    if options.count < 1:
        parser.error(f"--count {options.count}: at least 1")
    try:
        if options.search is None:
            trio.run(compare, Embedder.load(options.weights, options.precision), options.texts)
        else:
            if len(options.texts) != 1:
                parser.error("with --search give one query, in quotes")
            lines = options.search.read_text(encoding="utf-8").splitlines()
            if not any(line.strip() for line in lines):
                parser.error(f"{options.search} has no lines")
            embedder = Embedder.load(options.weights, options.precision)
            trio.run(search, embedder, lines, options.texts[0], options.count)
    except OSError as error:
        sys.exit(str(error) if error.strerror is None else f"{error.filename} cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        sys.exit(f"{options.search} is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}")
    except (ModuleNotFoundError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
