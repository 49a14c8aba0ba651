"""``numba.cuda.random``: the functions for kernels are numba-cuda's own, and states are made without a CUDA context."""

from __future__ import annotations

from typing import Any

from oxide.interop.numba_cuda.substitutes import create_xoroshiro128p_states, init_xoroshiro128p_states

__all__ = ["create_xoroshiro128p_states", "init_xoroshiro128p_states"]


def __getattr__(name: str) -> Any:
    from oxide.interop.numba_cuda.substitutes import attribute_of

    return attribute_of("random", name)
