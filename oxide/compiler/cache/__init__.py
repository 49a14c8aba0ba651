"""Compiled kernels on disk, and kernels that were built ahead of time."""
