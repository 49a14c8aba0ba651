"""Implements numba.cuda's host side with oxide's runtime. ``oxide.numba_cuda`` exports the public names."""
