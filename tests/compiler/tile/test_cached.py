"""A process that finds its tile kernels in the cache loads no LLVM, and the cache tells different kernels apart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
import numpy as np
from oxide import h2d, zeros
from examples.tiles import gemm, softmax
x = h2d(np.ones((8, 64), np.float32)).sync()
y = softmax.softmax(zeros((8, 64)).partition(({rows}, 64)), x).first().unpartition().to_host().sync()
assert np.allclose(y, 1 / 64)
a = h2d(np.ones((64, 64), np.float32)).sync()
c = gemm.matmul_f32(zeros((64, 64)).partition((64, 64)), a, a, {bk}).first().unpartition().to_host().sync()
assert (c == 64).all()
print([name for name in ("numba", "llvmlite") if name in sys.modules])
"""


def run(cache: Path, rows: int = 4, bk: int = 64) -> str:
    environment = os.environ | {"OXIDE_CACHE_DIR": str(cache), "OXIDE_DEVICE": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(rows=rows, bk=bk)], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(os.environ.get("OXIDE_DEVICE") == "cuda", reason="the program runs on the CPU device")
def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    assert run(tmp_path / "cache") == "['llvmlite']"
    assert run(tmp_path / "cache") == "[]"
    assert run(tmp_path / "cache", rows=8) == "['llvmlite']", "another tile shape is another kernel"
    assert run(tmp_path / "cache", bk=128) == "['llvmlite']", "another constant is another kernel"
    assert run(tmp_path / "cache", rows=8, bk=128) == "[]"
