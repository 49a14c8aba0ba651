"""Bounds checks: proofs that remove them, range checks hoisted out of loops, and contiguous loads."""
