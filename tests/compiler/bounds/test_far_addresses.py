"""Code for addresses that are half of all apart is compiled, for both back ends, whether or not it is ever run."""

from __future__ import annotations

import numpy as np

from oxide import DisjointSlice, SharedArray, Slice, Tiles, d2h, h2d, i16, i64, kernel, thread, zeros


@kernel(block=32, unchecked=True)
def far(v: i64, w: i64, x: Slice[i16], y: DisjointSlice[i16, Tiles(4)]) -> None:
    shared = SharedArray(32, i16)
    shared[thread.thread_idx.x] = i16(1)  # so that threads are run one by one on a CPU
    tile = y.get_mut(thread.index_1d())
    if tile is not None:
        if w < 0:  # never, so that no address is made
            i = v + 4611686018427387904
            first, second, third, fourth = x[v], x[v - 4611686018427387905], x[i], x[i - 1]
            tile[0] = first
            tile[1] = second
            tile[2] = third
            tile[3] = fourth
        else:
            tile[0] = x[v]


def test_such_a_kernel_is_compiled_and_run() -> None:
    x = np.arange(32, dtype=np.int16)
    y = far(3, 0, h2d(x), zeros(32, i16)).last().and_then(d2h).sync()
    np.testing.assert_array_equal(y, np.where(x % 4 == 0, 3, 0))
    assert ".entry far" in far.ptx(cc=(9, 0))
