"""How each topic of ``oxide.language`` becomes IR: the same file names, numba's typing and lowering.

Importing a module here registers it with the registries of ``registry.py``, which belong to oxide's own typing and
target contexts: other users of numba-cuda in the process see nothing of it.
"""
