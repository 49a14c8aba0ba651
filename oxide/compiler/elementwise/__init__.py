"""Elementwise kernels: each thread computes its own element of the outputs from its own element of the inputs.

``proof.py`` proves that a kernel is elementwise, and ``accesses.py`` defines the proof's result. ``composition.py``
writes the IR of a fused kernel, in which a thread runs several elementwise kernels one after the other
(``compiler/fusion.py``). ``prologue.py`` writes the IR of a kernel that runs elementwise kernels where it reads their
results.
"""
