"""numba.cuda's host side on oxide's runtime; ``oxide.numba_cuda`` has the public names."""
