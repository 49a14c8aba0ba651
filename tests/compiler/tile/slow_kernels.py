"""Kernels that are tuned in a child process, which imports them from here."""

from __future__ import annotations

from oxide import DisjointSlice, Slice, f32, kernel, thread, tile


@tile.kernel(configs=[{"factor": 2, "how": "run"}, {"factor": 2, "how": "run", "warps": 2}])
def scaled(
    z: tile.Partition[f32, 1], x: tile.Tensor[f32, 1], factor: tile.Constant[int], how: tile.Constant[str]
) -> None:
    if how == "loop":
        k = 0
        while k >= 0:
            k = k * 2
    z.store(tile.load_like(x, z) * factor)


@kernel(configs=[{"block": 64}, {"block": 256, "max_registers": 64}])
def doubled(x: Slice[f32], out: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        element.value = 2 * x[index.get()]


@kernel(block=128, partial=True)
def counted(out: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        width = thread.block_dim.x
        value = f32(1)
        while width == 32 and value > f32(0):
            thread.nanosleep(1)  # a loop without an effect may be removed
            value = value + f32(1)
        element.value = f32(width) if width == 96 else f32(1)
