"""Tile kernels, each with the same computation in NumPy.

Each module has a kernel to import and a ``main()`` that runs it on random numbers and prints a line:
``python -m examples.tiles.softmax``. The book's chapter on tile kernels shows them.
"""
