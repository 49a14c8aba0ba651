"""Translates Python to LLVM IR through numba-cuda's typing and lowering. Only this package imports numba."""
