"""Launches whose threads wait for one another: each thread is an LLVM coroutine."""
