"""numba typing and lowering of ``oxide.language.tensor``, under the same file names."""
