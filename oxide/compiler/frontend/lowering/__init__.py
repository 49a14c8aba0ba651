"""numba typing and lowering for each topic of ``oxide.language``, mostly under the same file names.

Importing a module here registers it with the registries of ``registry.py``. These belong to oxide's own typing and
target contexts, so other users of numba-cuda in the process are not affected.
"""
