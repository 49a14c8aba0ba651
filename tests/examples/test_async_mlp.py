"""The example as its user sees it: what it prints, what it refuses, and that a wrong result cannot pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trio

import oxide
from examples.async_mlp import digits, pipeline, synthetic
from examples.async_mlp.__main__ import main

ROOT = Path(__file__).parents[2]

EXPECTED = """\

=== Async MLP Pipeline ===

Allocating model weights...
  W0: 64x64 on device (Arc refcount=1)
  W1: 64 on device (Arc refcount=1)

Launched 4 batches concurrently, awaiting results...

Batch 0: 64 elements, first 8 = [0.00208, 0.0, 0.0, 0.0, 0.0, 0.00108, 0.00244, 0.0025] [ReLU OK]
Batch 1: 64 elements, first 8 = [0.0, 0.0, 0.0, 0.00108, 0.00244, 0.0025, 0.00035, 0.0] [ReLU OK]
Batch 2: 64 elements, first 8 = [0.0, 0.00108, 0.00244, 0.0025, 0.00035, 0.0, 0.0, 0.0] [ReLU OK]
Batch 3: 64 elements, first 8 = [0.00244, 0.0025, 0.00035, 0.0, 0.0, 0.0, 0.0015, 0.00208] [ReLU OK]

SUCCESS: All batches completed.
"""


@pytest.fixture
def default_runtime() -> Iterator[None]:
    """For tests that set a runtime up through the example: the default one is back afterwards."""
    yield
    oxide.init_device_contexts()


def test_the_program_prints_the_device_and_four_right_batches(device: str) -> None:
    ran = example("--device", device)
    assert ran.returncode == 0, ran.stderr
    first, rest = ran.stdout.split("\n", 1)
    assert re.fullmatch(rf"Device: {device}:0 \(.+\)", first)
    assert rest == EXPECTED
    assert ran.stderr == ""


@pytest.mark.parametrize("dim", [1, 5, 17, 35, 64, 70, 100])
def test_any_size_is_right(dim: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert trio.run(synthetic.run, dim, 3)
    printed = capsys.readouterr().out
    assert printed.count("[ReLU OK]") == 3
    assert f"Batch 2: {dim} elements, first {min(dim, 8)} = [" in printed


def test_the_results_are_within_a_millionth_of_float64_numpy() -> None:
    model = synthetic.Model.of(64)
    w0, w1 = oxide.h2d(model.w0).arc().sync(), oxide.h2d(model.w1).arc().sync()
    for number in range(4):
        batch = synthetic.input_batch(64, number)
        result = pipeline.mlp(batch, w0.clone(), w1.clone()).sync()
        expected = np.maximum(0, batch.astype(float) @ model.w0.astype(float) @ model.w1.astype(float))
        assert result.dtype == np.float32
        assert np.linalg.norm(result - expected) < 1e-6 * np.linalg.norm(expected)


def test_a_pipeline_takes_batches_of_any_number_of_rows() -> None:
    model = synthetic.Model.of(48)
    w0, w1 = oxide.h2d(model.w0).arc().sync(), oxide.h2d(model.w1).arc().sync()
    for rows in (1, 15, 16, 17, 200):
        batch = np.random.default_rng(rows).standard_normal((rows, 48), dtype=np.float32)
        expected = np.maximum(0, batch.astype(float) @ model.w0.astype(float) @ model.w1.astype(float))
        result = pipeline.mlp(batch, w0.clone(), w1.clone()).sync()
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda right: -right, "ReLU FAILED"),
        (lambda right: right * np.float32("nan"), "ReLU FAILED"),
        (lambda right: right + np.float32("inf"), "ReLU FAILED"),
        (lambda right: right * np.float32(1.00001), "MISMATCH relative error "),
        (lambda right: np.roll(right, 1), "MISMATCH relative error 0.855"),
        (lambda right: right * np.float32(0), "MISMATCH relative error 1"),
    ],
    ids=["negative", "nan", "infinite", "slightly off", "shifted", "all zero"],
)
def test_a_wrong_result_is_named_and_ends_with_exit_code_1(
    spoil, complaint: str, device: str, monkeypatch, capsys, default_runtime
) -> None:
    model, batches = synthetic.Model.of(64), iter(range(4))

    def wrong_in_batch_two(batch, w0, w1):
        right = np.maximum(0, batch @ model.w0 @ model.w1)
        return oxide.value(spoil(right) if next(batches) == 2 else right)

    monkeypatch.setattr(pipeline, "mlp", wrong_in_batch_two)
    assert main(["--device", device]) == 1
    lines = capsys.readouterr().out.splitlines()
    judged = {line.partition(":")[0]: line.partition("] ")[2] for line in lines if line.startswith("Batch ")}
    assert judged.pop("Batch 2").startswith(f"[{complaint}")
    assert set(judged.values()) == {"[ReLU OK]"}
    assert lines[-1].startswith("FAILED")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--dim", "0"], "--dim"),
        (["--dim", "sixty"], "--dim"),
        (["--batches", "0"], "--batches"),
        (["--batches", "-1"], "--batches"),
        (["--streams", "0"], "--streams"),
        (["--device", "tpu"], "--device"),
        (["--data", "letters"], "--data"),
        (["--data", "digits", "--dim", "8"], "--dim"),
        (["--kernels", "fast"], "--kernels"),
        (["--dtype", "f64"], "--dtype"),
        (["--dtype", "bf16"], "--kernels library"),
        (["--nonsense"], "--nonsense"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_option_is_one_line_and_exit_code_2(options: list[str], named: str, capsys) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(options)
    assert exit_info.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert named in printed.err
    assert printed.err.count("\n") == 1


def test_help_names_every_option() -> None:
    ran = example("--help")
    assert ran.returncode == 0
    for option in ("--device", "--dim", "--batches", "--streams", "--data"):
        assert option in ran.stdout


def test_asking_for_a_gpu_where_there_is_none_is_one_line_and_exit_code_2() -> None:
    ran = example("--device", "cuda", CUDA_VISIBLE_DEVICES="")
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == 1
    assert "CUDA" in ran.stderr


def test_digits_held_out_are_recognised_and_the_last_batch_is_short(device: str) -> None:
    pytest.importorskip("sklearn")
    ran = example("--device", device, "--data", "digits")
    assert ran.returncode == 0, ran.stderr
    batches = re.findall(r"^Batch (\d+): (\d+) images, (\d+) right, accuracy ([\d.]+)%$", ran.stdout, re.MULTILINE)
    assert [int(size) for _, size, _, _ in batches] == [64] * 7 + [2]
    overall = re.search(r"^Held-out accuracy: ([\d.]+)% \((\d+) of 450\)$", ran.stdout, re.MULTILINE)
    assert overall is not None
    assert float(overall[1]) >= 97.0
    assert sum(int(right) for _, _, right, _ in batches) == int(overall[2])
    assert ran.stdout.endswith("SUCCESS: Every prediction equals the NumPy reference's.\n")


def test_no_digit_is_so_close_that_rounding_could_decide_it() -> None:
    pytest.importorskip("sklearn")
    w0, w1 = digits.load_weights()
    w0_arc, w1_arc = oxide.h2d(w0).arc().sync(), oxide.h2d(w1).arc().sync()
    for images in digits.load_images():
        reference = digits.reference_scores(images.pixels, w0, w1)
        scores = pipeline.classifier(images.pixels, w0_arc.clone(), w1_arc.clone()).sync()
        best_two = np.sort(reference, axis=1)[:, -2:]
        margin = (best_two[:, 1] - best_two[:, 0]).min()
        assert np.abs(scores - reference).max() < margin / 100


@pytest.mark.nightly
def test_the_training_script_makes_weights_as_good_as_the_shipped_ones_from_the_training_images_alone() -> None:
    pytest.importorskip("sklearn")
    from examples.async_mlp import train_digits

    training, held_out = digits.load_images()
    assert (len(training), len(held_out)) == (1347, 450)
    seen = {image.tobytes() for image in training.pixels}
    assert not any(image.tobytes() in seen for image in held_out.pixels)
    w0, w1 = train_digits.train(training)
    shipped = digits.load_weights()
    assert [w0.shape, w1.shape] == [weights.shape for weights in shipped]
    assert train_digits.accuracy(held_out, w0, w1) >= 0.97
    assert train_digits.accuracy(held_out, *shipped) >= 0.97


def test_digits_without_scikit_learn_say_how_to_install_it(device: str) -> None:
    program = (
        "import sys; sys.modules['sklearn'] = None\n"
        "from examples.async_mlp.__main__ import main\n"
        f"main(['--device', {device!r}, '--data', 'digits'])\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 2
    assert "pip install 'oxide-gpu[digits]'" in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 31, 33, 100])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_the_library_in_every_dtype(dtype: str, dim: int, device: str, capsys, default_runtime) -> None:
    options = ["--kernels", "library", "--dtype", dtype, "--dim", str(dim), "--batches", "2"]
    assert main(["--device", device, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"Kernels: library, {dtype}"
    assert sum("[ReLU OK]" in line for line in lines) == 2


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_the_librarys_check_finds_an_error_beyond_rounding(dtype: str) -> None:
    kernels = pipeline.Kernels(True, dtype)
    model = synthetic.Model.of(64, kernels.element)
    batch = synthetic.input_batch(64, 2).astype(kernels.element)
    wide = [each.astype(np.float64) for each in (batch, model.w0, model.w1)]
    right = np.maximum(0, wide[0] @ wide[1] @ wide[2])
    assert synthetic.verdict(model, batch, right.astype(np.float32), kernels) == "ReLU OK"
    off = right + 2 * np.linalg.norm(np.abs(wide[0]) @ np.abs(wide[1]) @ np.abs(wide[2])) * 2.0**-7
    assert synthetic.verdict(model, batch, off.astype(np.float32), kernels).startswith("MISMATCH")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_digits_by_the_library(dtype: str, device: str, capsys, default_runtime) -> None:
    pytest.importorskip("sklearn")
    assert main(["--device", device, "--data", "digits", "--kernels", "library", "--dtype", dtype]) == 0
    accuracy = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Held-out"))
    assert 99 <= float(accuracy.split()[2].rstrip("%")) <= 100


@pytest.mark.gpu
@pytest.mark.parametrize("options", [[], ["--data", "digits"]], ids=" ".join)
def test_the_gpu_and_the_cpu_device_print_the_same(options: list[str]) -> None:
    on_gpu, on_cpu = example("--device", "cuda", *options), example("--device", "cpu", *options)
    assert on_gpu.returncode == on_cpu.returncode == 0, on_gpu.stderr + on_cpu.stderr
    assert on_gpu.stdout.splitlines()[0].startswith("Device: cuda:0 ")
    assert on_gpu.stdout.splitlines()[1:] == on_cpu.stdout.splitlines()[1:]


def example(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the example as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "examples.async_mlp", *options],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
