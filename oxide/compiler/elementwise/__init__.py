"""Elementwise kernels: each thread computes its own element of the outputs from its own element of the inputs.

``proof.py`` proves that a kernel is elementwise, and ``accesses.py`` defines the proof's result. ``compiler/fusion``
writes the IR of kernels that compute several elementwise kernels.
"""
