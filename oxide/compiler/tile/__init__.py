"""The tile compiler: translates ``@tile.kernel`` functions to IR, without numba."""
