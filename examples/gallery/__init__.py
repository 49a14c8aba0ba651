"""Programs from the example galleries of numba-cuda, Warp and Taichi, written as typed kernels.

Each module has functions to import and a ``main()`` that prints a line: ``python -m examples.gallery.nbody``. The
docstring of a module names the original and its number of lines of code, without comments, docstrings and blank lines.
For an example of numba-cuda's documentation, only the lines that the documentation shows are counted. The lines of
Taichi's and Warp's programs include windows and renderers, which these programs do not have.
"""
