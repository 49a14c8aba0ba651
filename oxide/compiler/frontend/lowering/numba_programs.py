"""Host-side steps of numba-cuda programs, without the GPU that numba-cuda needs for them: see ``oxide.numba_cuda``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba.cuda.core import sigutils
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.random import init_xoroshiro128p_states_cpu, xoroshiro128p_dtype
from numba.cuda.typing.templates import Signature

from oxide.errors import LaunchError


class _Uncompiled:
    """A placeholder for the machine code of an explicit signature, with the attributes that numba-cuda expects."""

    objectmode = False

    def __init__(self, signature: Any) -> None:
        self.signature = signature
        self.entry_point = self  # the key by which numba-cuda removes it when it drops the function

    def launch(self, *_: Any) -> None:
        """Raises ``LaunchError``. numba-cuda calls this to launch a kernel."""
        raise LaunchError(
            "numba-cuda compiled nothing for a kernel that was decorated in oxide.numba_cuda.without_gpu(): make a "
            "kernel of it, oxide.kernel(f), and launch that"
        )


@contextmanager
def without_gpu() -> Iterator[None]:
    """Makes numba-cuda keep the explicit signatures of decorated functions without compiling anything for them."""

    def keep(dispatcher: Any, arguments: Any, returns: Any = None) -> Any:
        arguments, said = sigutils.normalize_signature(arguments)
        kept = _Uncompiled(Signature(returns or said, arguments, None))
        return dispatcher.overloads.setdefault(arguments, kept)

    originals = CUDADispatcher.compile, CUDADispatcher.compile_device
    CUDADispatcher.compile = CUDADispatcher.compile_device = keep
    try:
        yield
    finally:
        CUDADispatcher.compile, CUDADispatcher.compile_device = originals


def random_states(n: int, seed: int, subsequence_start: int) -> np.ndarray[Any, Any]:
    """Returns the states that numba-cuda creates for ``n`` generators."""
    states = np.empty(n, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(states, np.uint64(seed % 2**64), np.uint64(subsequence_start))
    return states
