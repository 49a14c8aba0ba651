"""The kernel language: typed declarations for kernel bodies, one file a topic. Nothing here imports numba."""
