"""The directory of kernels that were built ahead of time: its manifest, and which CPUs run its code.

``compiler/built.py`` has the specializations of such a directory. ``runtime/launching/building.py`` writes one,
``runtime/launching/prebuilt.py`` makes kernels of it.
"""
