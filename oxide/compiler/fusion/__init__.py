"""Fusion: several elementwise kernels, launched one after the other, become one kernel.

``elementwise.py`` proves that a kernel is elementwise: each thread computes its own element of the outputs from its own
element of the inputs. ``fusion.py`` chains such kernels, the *stages*. ``composition.py`` writes their IR: a thread
runs all stages on four elements, which it loads and stores as vectors. The elements that one stage writes and another
reads stay in registers.
"""
