"""Kernels that were built ahead of time: they launch, fail and compose as the kernels that they were built from."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from oxide import (
    ArgumentError,
    BoundsError,
    CompileError,
    LaunchConfig,
    LaunchError,
    __version__,
    d2h,
    h2d,
    load,
    planned,
    zeros,
)
from oxide.compiler.cache import built
from oxide.driver.base import Target
from oxide.driver.cpu.code import target_without_llvm
from tests.runtime.launching import prebuilt_kernels as source

ROOT = Path(__file__).parents[3]
FILE = "tests/runtime/launching/prebuilt_kernels.py"
KERNELS = [
    *(
        f"{FILE}:{name}"
        for name in ("shifted", "by_fours", "in_rows", "transpose", "total", "rotated", "shifted_points")
    ),
    *(f"{FILE}:scale", "T=f32", f"{FILE}:scale", "T=f64"),
    *(f"{FILE}:add", "x=Array[f32,1]", "y=Array[f32,1]", "out=Array[f32,1]"),
    *(f"{FILE}:softmax", "y=(4, 64)"),
    *("oxide_kernels:relu", "T=f32"),
]
RANDOM = np.random.default_rng(5)


def build(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "oxide", "build", *arguments],
        cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("prebuilt") / "built"
    ran = build(*KERNELS, "--cpu", "--cc", "8.0", "--cc", "9.0", "-o", str(found))
    assert ran.returncode == 0, ran.stderr
    assert "code of 11 kernels in 36 files" in " ".join(ran.stdout.split())
    return found


@pytest.fixture(autouse=True)
def _nothing_stays_provided() -> Iterator[None]:
    before = dict(built._provided)
    yield
    built._provided.clear()
    built._provided.update(before)


@pytest.fixture
def kernels(directory: Path) -> Any:
    return load(directory)


def test_a_typed_kernel_has_its_block_its_default_and_its_results(kernels: Any) -> None:
    x = RANDOM.standard_normal(1003).astype(np.float32)
    found = kernels["shifted"](zeros(999), h2d(x), a=2.5).first().and_then(d2h).sync()
    np.testing.assert_allclose(found, 2.5 * x.astype(np.float64)[4:], rtol=1e-6)
    assert kernels["shifted"].default_block == (128, 1, 1)
    assert kernels["shifted"].__doc__ == source.shifted.__doc__


def test_arguments_are_given_by_name_and_a_thread_has_a_row(kernels: Any) -> None:
    x = np.array([[1, -2], [4, -4]], np.float32)
    results = kernels["in_rows"](h2d(x), shift=1.0).sync()
    np.testing.assert_array_equal(d2h(results[0]).sync(), np.where(x > 0, x, x / 2) * 2 + 1)
    assert results[1:] == (2.0, 1.0)
    assert repr(kernels["in_rows"]) == repr(source.in_rows)
    assert "*, scale: f32, shift: f32)" in repr(source.in_rows)
    with pytest.raises(ArgumentError, match="takes 1 arguments by position, got 2: give scale by name"):
        kernels["in_rows"](h2d(x), 1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_arguments_choose_among_the_types_that_were_built(kernels: Any, dtype: Any) -> None:
    x = RANDOM.standard_normal(333).astype(dtype)
    launch = kernels["scale"][LaunchConfig.for_num_elems(333)](zeros(333, dtype), h2d(x), 3.0)
    np.testing.assert_allclose(launch.first().and_then(d2h).sync(), 3 * x.astype(np.float64), rtol=1e-6)


def test_an_untyped_kernel_a_layout_a_matrix_an_atomic_and_complex_numbers(kernels: Any) -> None:
    x = RANDOM.standard_normal(333).astype(np.float32)
    found = kernels["add"][3, 128](h2d(x), h2d(x[::-1].copy()), zeros(333)).last().and_then(d2h).sync()
    np.testing.assert_allclose(found, x.astype(np.float64) + x[::-1], rtol=1e-5, atol=1e-6)
    found = kernels["by_fours"](zeros(332), h2d(x[:332])).first().and_then(d2h).sync()
    np.testing.assert_array_equal(found, 2 * x[:332])
    points = RANDOM.standard_normal((65, 3)).astype(np.float32)
    found = kernels["shifted_points"](zeros((65, 3)), h2d(points), 0.5).first().and_then(d2h).sync()
    np.testing.assert_array_equal(found, points + np.float32(0.5))
    matrix = RANDOM.standard_normal((37, 61))
    found = kernels["transpose"](zeros((61, 37), np.float64), h2d(matrix)).first().and_then(d2h).sync()
    np.testing.assert_array_equal(found, matrix.T)
    numbers = RANDOM.integers(-1000, 1000, 777).astype(np.int32)
    found = kernels["total"][7, 128](h2d(numbers), zeros(1, np.int32)).last().and_then(d2h).sync()
    assert found[0] == numbers.sum()
    turned = (RANDOM.standard_normal(65) + 1j * RANDOM.standard_normal(65)).astype(np.complex64)
    found = kernels["rotated"](zeros(65, np.complex64), h2d(turned), 1j).first().and_then(d2h).sync()
    np.testing.assert_allclose(found, 1j * turned.astype(np.complex128), rtol=1e-6)


def test_a_tile_kernel(kernels: Any) -> None:
    x = RANDOM.standard_normal((9, 57)).astype(np.float32)
    wide = np.exp(x.astype(np.float64))
    found = kernels["softmax"](zeros(x.shape).partition((4, 64)), h2d(x)).first().unpartition().to_host().sync()
    np.testing.assert_allclose(found, wide / wide.sum(1, keepdims=True), rtol=1e-5)
    with pytest.raises(CompileError, match=r"softmax.* was built for .*with y=\(4, 64\), scale=1.0, warps=4, not for"):
        kernels["softmax"](zeros(x.shape).partition((2, 64)), h2d(x))


def test_errors_are_those_of_the_kernel_with_its_name_and_place(kernels: Any) -> None:
    x = RANDOM.standard_normal(100).astype(np.float32)
    with pytest.raises(BoundsError) as built:
        kernels["shifted"](zeros(100), h2d(x), 1.0).sync()
    with pytest.raises(BoundsError) as compiled:
        source.shifted(zeros(100), h2d(x), 1.0).sync()
    assert str(built.value) == str(compiled.value)
    assert "prebuilt_kernels.py:" in str(built.value)
    for error, launch in (
        (LaunchError, lambda kernel: kernel(zeros(100), h2d(x[:2]), 1.0)),
        (ArgumentError, lambda kernel: kernel(zeros(100), h2d(x), "a")),
        (ArgumentError, lambda kernel: kernel(zeros(100), h2d(x.astype(np.float64)), 1.0)),
        (LaunchError, lambda kernel: kernel[1, 2, 3]),
    ):
        with pytest.raises(error) as built:
            launch(kernels["shifted"])
        with pytest.raises(error) as compiled:
            launch(source.shifted)
        assert str(built.value) == str(compiled.value)


def test_graphs_plans_fusion_and_await_take_it_as_any_kernel(kernels: Any) -> None:
    x = RANDOM.standard_normal(1003).astype(np.float32)

    def work() -> Any:
        first = kernels["shifted"](zeros(999), h2d(x), 2.0).first()
        return kernels["scale"][8, 128](zeros(999), first, 2.0).first().and_then(d2h)

    expected = 4 * x[4:]
    np.testing.assert_array_equal(planned(work()).sync(), expected)
    np.testing.assert_array_equal(work().fused().sync(), expected)
    np.testing.assert_array_equal(trio.run(lambda: awaited(work())), expected)
    out = zeros(999).sync()
    graph = kernels["shifted"](out, h2d(x).sync(), 4.0).graph()
    np.testing.assert_array_equal(graph.launch().and_then(lambda _: d2h(out)).sync(), expected)


async def awaited(operation: Any) -> Any:
    return await operation


def test_what_needs_the_source_says_so(kernels: Any) -> None:
    shifted = kernels["shifted"]
    with pytest.raises(CompileError, match="built ahead of time, without its IR"):
        shifted.llvm_ir()
    with pytest.raises(LaunchError, match="built ahead of time, without its source"):
        shifted.interpret(zeros(1), zeros(1), 1.0)
    with pytest.raises(
        CompileError, match=r"add .* was built for \(x: Array\[float32, 1\], .*not for \(x: Array\[float64"
    ):
        kernels["add"][1, 1](zeros(1, np.float64), zeros(1, np.float64), zeros(1, np.float64))
    with pytest.raises(KeyError, match="has no kernel nothing; it has shifted, by_fours"):
        kernels["nothing"]


def test_code_is_chosen_for_the_device(kernels: Any, directory: Path) -> None:
    special = kernels["shifted"].specialize()
    assert special.code(Target("ptx", "sm_86", "+ptx84")).target.arch == "sm_80"
    assert special.code(Target("ptx", "sm_90", "+ptx84")).target.arch == "sm_90"
    assert special.code(Target("ptx", "sm_120", "+ptx84")).target.arch == "sm_90"
    with pytest.raises(CompileError, match=r"was built for compute capability 8.0, compute capability 9.0, the CPU"):
        special.code(Target("ptx", "sm_75", "+ptx84"))
    with pytest.raises(CompileError, match=r"not for this processor, which has no .*avx2"):
        special.code(Target("native", "other", "+sse2"))
    with pytest.raises(CompileError, match="with a seed"):
        special.code(Target("native", "other", seeded=True))
    assert special.code(target_without_llvm()).image, "Linux and LLVM name the same instruction sets"


def test_levels_of_x86_64_run_where_the_processor_has_their_instructions() -> None:
    needed = built.needed_features(Target("native", "x86-64-v3"))
    assert {"avx2", "fma"} <= set(needed)
    modern = Target("native", "znver4", ",".join(f"+{name}" for name in needed))
    old = Target("native", "nehalem", "+sse3,-avx2")
    if os.uname().machine == "x86_64":
        assert not built.without_features(modern, "x86-64-v3", needed)
        assert "avx2" in built.without_features(old, "x86-64-v3", needed)
    assert built.without_features(modern, "other:cpu", []) == {"other"}


@pytest.fixture
def copy(directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(directory, tmp_path / "copy"))


def test_a_damaged_directory_is_refused(copy: Path) -> None:
    code = next(copy.glob("shifted-0-x86_64*.o" if os.uname().machine == "x86_64" else "shifted-0-*.o"))
    code.write_bytes(code.read_bytes()[:-1] + b"?")
    with pytest.raises(ArgumentError, match=r"shifted-0-.*\.o is damaged"):
        load(copy)["shifted"].specialize().code(target_without_llvm())
    code.unlink()
    with pytest.raises(ArgumentError, match=r"shifted-0-.*\.o cannot be read: No such file"):
        load(copy)["shifted"].specialize().code(target_without_llvm())
    manifest = copy / "manifest.json"
    text = manifest.read_text()
    for damage in (
        text.replace("sm_80", "sm_81", 1),
        text[:-9],
        "[]",
        "[" * 200_000,
        "{}",
        "\ud800".encode("utf-16", "surrogatepass"),
    ):
        manifest.write_bytes(damage if isinstance(damage, bytes) else damage.encode())
        with pytest.raises(ArgumentError, match="damaged"):
            load(copy)
    manifest.unlink()
    with pytest.raises(ArgumentError, match=r"has no manifest\.json that can be read"):
        load(copy)


def test_a_directory_of_another_version_is_refused(copy: Path) -> None:
    manifest = copy / "manifest.json"
    found = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(found | {"oxide": "9.9"}))
    with pytest.raises(ArgumentError, match=rf"built by oxide 9\.9 \(format 1\), and this is oxide {__version__}"):
        load(copy)
    manifest.write_text(json.dumps(found | {"format": 99}))
    with pytest.raises(ArgumentError, match="format 99"):
        load(copy)


def test_the_manifest_says_what_was_built(directory: Path) -> None:
    found = json.loads((directory / "manifest.json").read_text())
    (shifted,) = found["kernels"]["shifted"]["built"]
    assert shifted["types"] == {"out": "DisjointSlice[f32]", "x": "Slice[f32]", "a": "f32", "n": "i32"}
    assert found["kernels"]["shifted"]["options"]["requires"] == "('len(x) >= n',)"
    assert [site["FaultSite"]["parameter"] for site in shifted["sites"]].count("x") == 1
    assert len(found["kernels"]["scale"]["built"]) == 2


def test_a_kernel_that_is_named_twice_with_the_same_types_is_built_once(tmp_path: Path) -> None:
    scale = (f"{FILE}:scale", "T=f32")
    ran = build(*scale, *scale, "--cpu", "-o", str(tmp_path / "built"))
    assert "code of 1 kernel in 1 file" in " ".join(ran.stdout.split()), ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([f"{FILE}:scale", "--cpu"], "kernel scale is generic in T"),
        ([f"{FILE}:add", "--cpu"], "x=Array"),
        ([f"{FILE}:softmax", "--cpu"], "give the tile shape of y"),
        ([f"{FILE}:with_a_tuple", "--cpu"], "parameter pair is tuple"),
        ([f"{FILE}:with_structures", "--cpu"], "parameter bodies is DisjointSlice[Body]; a kernel with structures"),
        ([f"{FILE}:shifted"], "--cc 9.0"),
        ([f"{FILE}:nothing", "--cpu"], "has no kernel nothing"),
        ([f"{FILE}:shifted", "--cc", "9"], "--cc 9: give a compute capability"),
        ([f"{FILE}:shifted", "--cc", "1.0"], "there is no PTX for compute capability 1.0"),
        ([f"{FILE}:shifted", "--processor", "x87"], "there is no processor x87"),
        (["T=f32", f"{FILE}:scale", "--cpu"], "follows no kernel"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], says: str, tmp_path: Path) -> None:
    ran = build(*arguments, "-o", str(tmp_path / "built"))
    assert ran.returncode == 2
    assert says in " ".join(ran.stderr.split())
    assert not (tmp_path / "built").exists()


WITHOUT_COMPILER = """
import sys
sys.path.insert(0, {root!r})
from tests.hiding import COMPILERS, hide
hide(COMPILERS)
import asyncio
import numpy as np
import oxide, oxide_kernels
import trio

kernels = oxide.load({directory!r})
x = np.arange(1003, dtype=np.float32)
work = lambda: kernels["shifted"](oxide.zeros(999), oxide.h2d(x), 2.0).first().and_then(oxide.d2h)
async def awaited():
    return await work()
ways = work().sync(), trio.run(awaited), asyncio.run(awaited()), oxide.planned(work()).sync(), work().fused().sync()
for found in ways:
    assert (found == 2 * x[4:]).all()
y = kernels["softmax"](oxide.zeros((9, 60)).partition((4, 64)), oxide.full((9, 60), 1.0))
np.testing.assert_allclose(y.first().unpartition().to_host().sync(), 1 / 60, rtol=1e-6)
strided = oxide.dup(oxide.h2d(x.reshape(17, 59)).sync()[:, ::2])
assert (strided.and_then(oxide.d2h).sync() == x.reshape(17, 59)[:, ::2]).all()
large = np.arange(5_000_000, dtype=np.float32)
assert (oxide.h2d(large).and_then(oxide.d2h).sync() == large).all()
assert abs(oxide.randn(0, 1, (999,)).and_then(oxide.d2h).sync().mean()) < 0.5
assert oxide.arange(7).and_then(oxide.d2h).sync()[-1] == 6
relu = oxide_kernels.relu(oxide.h2d(-x), oxide.zeros(1003)).last().and_then(oxide.d2h).sync()
assert not relu.any()
try:
    kernels["shifted"](oxide.zeros(1003), oxide.h2d(x), 1.0).sync()
except oxide.BoundsError as error:
    assert "prebuilt_kernels.py:" in str(error)
else:
    raise SystemExit("no fault")

@oxide.kernel
def compiled(out: oxide.DisjointSlice[oxide.f32]) -> None:
    oxide.thread.index_1d()

@oxide.tile.kernel
def tiled(y: oxide.tile.Partition2[oxide.f32]) -> None:
    y.store(y.load())

for package, launch in (
    ("numba", lambda: compiled[1, 1](oxide.zeros(1))),
    ("llvmlite", lambda: tiled(oxide.zeros((4, 4)).partition((2, 2))).sync()),
):
    try:
        launch()
    except oxide.CompileError as error:
        assert f"{{package}}, which compiles" in str(error) and "is not installed" in str(error), error
    else:
        raise SystemExit("compiled?")
loaded = [name for name in sys.modules if name.partition(".")[0] in COMPILERS]
assert not loaded, loaded
print("done")
"""


def test_nothing_needs_a_compiler_when_everything_is_prebuilt(directory: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WITHOUT_COMPILER.format(root=str(ROOT), directory=str(directory)))
    ran = subprocess.run(
        [sys.executable, str(program)], env=os.environ | {"OXIDE_DEVICE": "cpu", "OXIDE_CACHE": "0"},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert ran.stdout == "done\n", ran.stderr


HIDDEN = """
import sys
sys.path.insert(0, {root!r})
from tests.hiding import hide
hide({hidden!r})
import oxide
from oxide import tile

@tile.kernel
def doubled(y: tile.Partition1[oxide.f32], x: tile.Tensor1[oxide.f32]) -> None:
    y.store(2.0 * tile.load_like(x, y))

@oxide.kernel
def typed(out: oxide.DisjointSlice[oxide.f32]) -> None:
    oxide.thread.index_1d()

y = doubled(oxide.zeros(99).partition((32,)), oxide.ones(99)).first().unpartition().to_host().sync()
assert (y == 2).all()
try:
    typed[1, 1](oxide.zeros(1))
except oxide.CompileError as error:
    print(str(error).split(",")[1].strip())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "package"),
    [(("cuda",), "cuda-bindings"), (("numba_cuda",), "numba-cuda"), (("numba", "numba_cuda", "cuda"), "numba")],
)
def test_a_typed_kernel_names_the_package_that_is_missing_and_a_tile_kernel_needs_none(
    hidden: tuple[str, ...], package: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(HIDDEN.format(root=str(ROOT), hidden=hidden))
    ran = subprocess.run(
        [sys.executable, str(program)], env=os.environ | {"OXIDE_DEVICE": "cpu", "OXIDE_CACHE": "0"},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert ran.stdout == f"and {package}\n", ran.stderr
