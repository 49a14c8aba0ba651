"""Other libraries and other compilers on top of the runtime: programs of numba.cuda, and foreign kernels."""
