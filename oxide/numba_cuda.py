"""Replacements for the host functions of numba-cuda that need a GPU, for programs written for numba-cuda.

Use: ``from oxide import numba_cuda``. Kernels do not need this module: ``oxide.kernel`` takes them as they are.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from oxide.errors import ArgumentError
from oxide.messages import written
from oxide.runtime.operations.transfers import h2d

if TYPE_CHECKING:
    from oxide.runtime.device.memory import DeviceBox
    from oxide.runtime.operations.operation import DeviceOperation

__all__ = ["create_xoroshiro128p_states", "without_gpu"]


def create_xoroshiro128p_states(n: int, seed: int, subsequence_start: int = 0) -> DeviceOperation[DeviceBox]:
    """Returns an operation that yields a box with the states of ``n`` random number generators: the states that
    ``numba.cuda.random.create_xoroshiro128p_states`` makes, for the functions of ``numba.cuda.random``.

    The states are made on the host and copied; each run of the operation starts from them again. Generators are
    ``2**64`` numbers apart, and ``subsequence_start`` is the number of generators to skip at the beginning. Raises
    ``ArgumentError`` for a value that is not a number of 64 bits.
    """
    for name, number, least in (
        ("n", n, 0),
        ("seed", seed, -(2**63)),
        ("subsequence_start", subsequence_start, 0),
    ):
        if isinstance(number, bool) or not hasattr(number, "__index__") or not least <= number < 2**64:
            raise ArgumentError(
                f"create_xoroshiro128p_states: {name} is {written(number):.80}; "
                f"give an integer from {least} to 2**64 - 1"
            )
    from oxide.compiler.frontend.lowering.numba_programs import random_states  # loads numba

    return h2d(random_states(n, seed, subsequence_start))


def without_gpu() -> AbstractContextManager[None]:
    """Returns a context in which ``@numba.cuda.jit`` with explicit signatures, as in ``@cuda.jit("void(float32[:])")``,
    needs no GPU: it keeps the signatures, and compiles nothing.

    Outside of it numba-cuda compiles when the function is decorated. Inside it does not, and so it cannot launch the
    function later: only ``oxide.kernel`` can use it. Functions of modules that are imported inside count too. The
    context holds for all threads.
    """
    from oxide.compiler.frontend.lowering.numba_programs import without_gpu

    return without_gpu()
