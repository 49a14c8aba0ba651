"""numba typing and lowering for ``oxide.language.tensor``, under the same file names."""
