"""Launches whose threads wait for nobody: one loop over the threads' positions, for LLVM to vectorise."""
