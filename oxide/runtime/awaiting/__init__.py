"""Futures, the completion of awaited work, the preloading of kernels, and warnings for unused objects."""
