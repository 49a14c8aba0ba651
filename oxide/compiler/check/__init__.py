"""Checks a kernel's syntax tree before typing, and turns numba's typing errors into messages for the kernel's
author."""
