"""Futures, the completion of awaited work, and the preloading of kernels."""
