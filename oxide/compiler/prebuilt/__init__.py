"""The directory of kernels that were built ahead of time: its files and manifest, and the CPUs that can run its code.

``compiler/built.py`` has the specializations of such a directory. ``runtime/launching/building.py`` writes a directory,
and ``runtime/launching/prebuilt.py`` makes kernels from it.
"""
