"""Interprets typed kernels: runs them as plain Python, thread by thread, for a debugger."""
