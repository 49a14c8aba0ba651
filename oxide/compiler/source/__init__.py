"""Reads kernels' source, and points into it: places in files, and the faults that name them."""
