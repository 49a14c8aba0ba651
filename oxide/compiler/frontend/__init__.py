"""Translates Python to LLVM IR through numba-cuda's typing and lowering. The only package that imports numba."""
