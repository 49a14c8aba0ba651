"""Decides where the checks of accesses go: proofs, range checks before loops, contiguous loads."""
