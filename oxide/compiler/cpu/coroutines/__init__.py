"""Blocks whose threads wait for one another. Each thread is an LLVM coroutine."""
