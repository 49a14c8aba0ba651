"""Kernels that are tuned in a child process, which imports them from here."""

from __future__ import annotations

from oxide import f32, tile


@tile.kernel(configs=[{"factor": 2, "how": "run"}, {"factor": 2, "how": "run", "warps": 2}])
def scaled(
    z: tile.Partition[f32, 1], x: tile.Tensor[f32, 1], factor: tile.Constant[int], how: tile.Constant[str]
) -> None:
    if how == "loop":
        k = 0
        while k >= 0:
            k = k * 2
    z.store(tile.load_like(x, z) * factor)
