"""The kernel language: typed declarations of what a kernel may say, one file a topic. Nothing here imports numba."""
