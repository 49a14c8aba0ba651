"""Launches whose threads do not wait: one loop over the threads' positions, which LLVM vectorises."""
