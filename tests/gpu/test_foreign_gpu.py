"""Foreign kernels on a real GPU: CUDA C++ by NVRTC and another compiler's cubin, fatbin and PTX, as operations."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import (
    ArgumentError,
    CompileError,
    In,
    InOut,
    LaunchConfig,
    LaunchError,
    Out,
    d2h,
    h2d,
    i32,
    zeros,
)
from oxide.driver.cuda.driver import CudaDriver
from oxide.testing import use_driver
from tests.interop.test_foreign import scaled

pytestmark = pytest.mark.gpu
RANDOM = np.random.default_rng(26)

SOURCE = r"""
extern "C" __global__ void axpy(const float *x, float factor, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += factor * x[i];
}

extern "C" __global__ void reversed(const float *x, float *y, int n) {
    extern __shared__ float block[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) block[threadIdx.x] = x[i];
    __syncthreads();
    int last = min(n - blockIdx.x * blockDim.x, blockDim.x) - 1;
    if (i < n) y[i] = block[last - threadIdx.x];
}

__device__ int counter;
__global__ void count(int by) { counter += by; }
__global__ void counted(int *to) { *to = counter; }

struct Pair { int a; double b; };
extern "C" __global__ void spread(Pair pair, double *y) { y[0] = pair.a; y[1] = pair.b; }

extern "C" __global__ void wild(float *x) { x[1LL << 40] = 1.0f; }
"""


@pytest.fixture(scope="module", autouse=True)
def driver() -> Any:
    driver = CudaDriver()
    with use_driver(driver):
        yield driver
    driver.close()


def arch() -> str:
    found: str = oxide.devices()[0].info.target.arch
    return found


def by_nvrtc(_: Path) -> Any:
    return oxide.module(SOURCE)


def by_nvcc(kind: str) -> Callable[[Path], Any]:
    def made(folder: Path) -> Any:
        if shutil.which("nvcc") is None:
            pytest.skip("nvcc is not in PATH")
        source, target = folder / "kernels.cu", folder / f"kernels.{kind}"
        source.write_text(SOURCE)
        subprocess.run(["nvcc", f"-arch={arch()}", f"-{kind}", "-o", target, source], check=True)
        return oxide.module(target)

    return made


KINDS = {"nvrtc": by_nvrtc, "cubin": by_nvcc("cubin"), "fatbin": by_nvcc("fatbin"), "ptx": by_nvcc("ptx")}


@pytest.fixture(params=KINDS)
def code(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return KINDS[request.param](tmp_path)


@pytest.mark.parametrize("how", ["sync", "await", "graph", "fused graph", "planned", "fused"])
def test_foreign_kernels_between_two_kernels_of_oxide(code: Any, how: str) -> None:
    n = 100_003
    data = RANDOM.standard_normal(n).astype(np.float32)
    config = LaunchConfig.for_num_elems(n)
    backwards = LaunchConfig(config.grid, config.block, shared_mem_bytes=4 * 256)

    def chain() -> Any:
        first = h2d(data).and_then(lambda box: scaled[config](box, 2.0, zeros(n)).last())
        added = first.and_then(lambda box: code["axpy"][config](In(box), 3.0, InOut(zeros(n)), i32(n))).map(
            lambda r: r[2]
        )
        turned = added.and_then(lambda box: code["reversed"][backwards](In(box), Out(zeros(n)), n)).map(lambda r: r[1])
        return turned.and_then(lambda box: scaled[config](box, -1.0, zeros(n)).last()).and_then(d2h)

    def expected() -> Any:
        parts = [-6 * data[i : i + 256].astype(float)[::-1] for i in range(0, n, 256)]
        return np.concatenate(parts)

    if how == "await":

        async def main() -> Any:
            return await chain()

        result = trio.run(main)
    elif "graph" in how:
        with chain().graph(fuse="fused" in how) as graph:
            for _ in range(3):
                data[:] = RANDOM.standard_normal(n)
                graph.launch().sync()
            result = graph.take_output()
    else:
        result = {"sync": lambda op: op, "planned": oxide.planned, "fused": lambda op: op.fused()}[how](chain()).sync()
    assert np.linalg.norm(result - expected()) < 1e-6 * np.linalg.norm(expected())


def test_many_streams_are_ordered_by_what_launches_declare(code: Any) -> None:
    n = 1 << 20
    x, y = oxide.ones(n).sync(), zeros(n).sync()
    streams = [oxide.devices()[0].new_stream() for _ in range(4)]
    for number in range(40):
        operation = code["axpy"][LaunchConfig.for_num_elems(n)](In(x), 1.0, InOut(y), n)
        operation.async_on(streams[number % 4])
    assert (d2h(y).sync() == 40).all()


def test_kernels_of_one_module_share_its_variables(code: Any) -> None:
    count, counted = code["count"], code["counted"]
    stream = oxide.devices()[0].new_stream()
    for by in (3, 4):
        count[1, 1](by).sync_on(stream)
    (box,) = counted[1, 1](Out(zeros(1, i32))).sync_on(stream)
    assert d2h(box).sync_on(stream).tolist() == [7]


def test_structures_are_passed_as_structured_scalars(code: Any) -> None:
    pair = np.array((5, 2.5), np.dtype([("a", "i4"), ("b", "f8")], align=True))[()]
    _, box = code["spread"][1, 1](pair, Out(zeros(2, np.float64))).sync()
    assert d2h(box).sync().tolist() == [5.0, 2.5]


def test_a_wrong_number_or_size_of_arguments_is_refused_before_the_launch(code: Any) -> None:
    x = zeros(4).sync()
    with pytest.raises(ArgumentError, match="kernel axpy takes 4 arguments, got 2"):
        code["axpy"][1, 32](In(x), 1.0).sync()
    with pytest.raises(ArgumentError, match=r"kernel axpy, argument 2 .* of type float64"):
        code["axpy"][1, 32](In(x), np.float64(1.0), InOut(x), 4).sync()
    with pytest.raises(ArgumentError, match=r"kernel axpy, argument 4 is In"):
        code["axpy"][1, 32](In(x), 1.0, InOut(x), In(x)).sync()
    with pytest.raises((KeyError, LaunchError), match=r"no kernel 'axpi'; there are: .*axpy"):
        code["axpi"][1, 32](In(x), 1.0, InOut(x), 4).sync()


def test_shared_memory_beyond_48_kib_is_opted_in(code: Any) -> None:
    n = 1000
    data = RANDOM.standard_normal(n).astype(np.float32)
    config = LaunchConfig(1, 1024, shared_mem_bytes=100 << 10)
    _, box, _ = code["reversed"][config](In(h2d(data)), Out(zeros(n)), n).sync()
    np.testing.assert_array_equal(d2h(box).sync(), data[::-1])


def test_ptx_that_the_assembler_refuses_comes_with_its_log() -> None:
    broken = (
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u64 x)\n{ no.such.op %r1; ret; }\n"
    )
    with pytest.raises(oxide.DriverError, match=r"(?s)cuModuleLoadDataEx.*no.such.op|ptxas"):
        oxide.module(broken)["k"][1, 1](InOut(zeros(1))).sync()


def test_cuda_cpp_that_nvrtc_refuses_comes_with_its_log() -> None:
    with pytest.raises(CompileError, match=r"(?s)refused by NVRTC.*undefined_name"):
        oxide.module('extern "C" __global__ void k() { undefined_name(); }')["k"]


def test_a_cubin_of_another_architecture_is_refused(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not in PATH")
    other = "sm_80" if arch() != "sm_80" else "sm_90"
    source, target = tmp_path / "kernels.cu", tmp_path / "kernels.cubin"
    source.write_text(SOURCE)
    subprocess.run(["nvcc", f"-arch={other}", "-cubin", "-o", target, source], check=True)
    with pytest.raises(oxide.DriverError, match="holds no code for this device, sm_"):
        oxide.module(target)["count"][1, 1](1).sync()


FAULT = """
import oxide
from tests.gpu.test_foreign_gpu import SOURCE

kernel = oxide.module(SOURCE)["wild"]
box = oxide.zeros(4).sync()
for _ in range(2):
    try:
        kernel[1, 1](oxide.InOut(box)).sync()
    except oxide.DeviceLostError as error:
        print("lost")
"""


def test_a_kernel_that_leaves_its_memory_loses_the_device() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FAULT],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OXIDE_DEVICE": "cuda"},
    )
    assert ran.stdout.split() == ["lost", "lost"], ran.stderr
