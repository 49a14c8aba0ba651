"""numba typing and lowering for the functions and types of ``oxide.language``, mostly under the same file names.

Importing a module of this package adds its definitions to the registries of ``registry.py``. Only oxide's own typing
and target contexts use these registries, so other users of numba-cuda in the process are not affected.
"""
