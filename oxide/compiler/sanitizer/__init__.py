"""Instruments kernels so that each memory access is checked and recorded."""
