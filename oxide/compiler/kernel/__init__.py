"""Kernels as users hold them: options, specializations, reports."""
