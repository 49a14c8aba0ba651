"""Reads the source of kernels, and defines the data that refers to it: places in files, and the faults that name these
places."""
