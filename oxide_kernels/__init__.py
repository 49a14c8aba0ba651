"""Kernels people use, written only with oxide's public names."""

from __future__ import annotations

from .activations import relu
from .linalg import matvec_naive, sgemm_naive

__all__ = ["matvec_naive", "relu", "sgemm_naive"]
