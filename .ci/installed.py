"""Runs what was installed: kernels on the CPU device. The argument is the form that its core must have, C or Python."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ["OXIDE_DEVICE"] = "cpu"

import numpy as np

import oxide
from oxide import DisjointSlice, Slice, f32, kernel, thread, tile
from oxide.host.core import FORM

assert ".ci" not in oxide.__file__, "the installed package is what is tested"


@kernel(block=128)
def doubled(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        element.value = 2.0 * x[i.get()]


@tile.kernel
def tripled(y: tile.Partition1[f32], x: tile.Tensor1[f32]) -> None:
    y.store(3.0 * tile.load_like(x, y))


def main() -> None:
    assert sys.argv[1:] == [FORM], f"the core is in {FORM}"
    x = np.arange(999, dtype=np.float32)
    assert (doubled(oxide.h2d(x), oxide.zeros(999)).last().to_host().sync() == 2 * x).all()
    found = tripled(oxide.zeros(999).partition((256,)), oxide.h2d(x)).first().unpartition().to_host().sync()
    assert (found == 3 * x).all()
    _prebuilt(x)
    print(f"oxide {oxide.__version__}, core in {FORM}: three kernels ran")


def _prebuilt(x: np.ndarray) -> None:  # type: ignore[type-arg]
    from oxide.runtime.launching.building import build

    with tempfile.TemporaryDirectory() as folder:
        build([(doubled, {})], Path(folder), oxide.__version__, processor="native")
        loaded = oxide.load(folder)["doubled"]
        assert (loaded(oxide.h2d(x), oxide.zeros(999)).last().to_host().sync() == 2 * x).all()


if __name__ == "__main__":
    main()
