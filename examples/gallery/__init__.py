"""Programs from the example galleries of numba-cuda, Warp and Taichi, written as typed kernels.

Each module has functions to import and a ``main()`` that prints a line: ``python -m examples.gallery.nbody``. Its
docstring names the original and its lines of code, without comments, docstrings and blank lines. Of numba-cuda's
documentation only the lines shown there are counted. The lines of Taichi's and Warp's programs include windows and
renderers, which these programs do not have.
"""
