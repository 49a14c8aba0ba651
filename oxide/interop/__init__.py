"""Other libraries and compilers on oxide's runtime: programs of numba.cuda, torch's operators, and foreign kernels."""
