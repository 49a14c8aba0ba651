"""The kernel language: typed declarations for kernel bodies, with one file for each topic. Nothing here imports
numba."""
