"""Instruments kernels so that each access of memory is checked and recorded."""
