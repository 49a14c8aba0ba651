"""Kernels that are fused into one."""
