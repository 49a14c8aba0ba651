"""Reads kernels' source, and refers to it: places in files, and the faults that name them."""
