"""The tile compiler: ``@tile.kernel`` functions to IR, without numba."""
