"""``numba.cuda`` on oxide: with ``from oxide import numba_cuda as cuda``, a program written for numba.cuda runs on GPUs
and on the CPU device.

``jit`` makes kernels that oxide compiles, and whose launches are submitted at once. Arrays, streams, events and devices
have numba.cuda's names and behave as its documentation says. The names that kernels use are numba-cuda's own objects.
``install()`` puts this module in the place of ``numba.cuda``, for programs whose imports cannot be changed.
"""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from oxide.errors import ArgumentError
from oxide.host.messages import written
from oxide.interop.numba_cuda.arguments import In, InOut, Out
from oxide.interop.numba_cuda.device_arrays import (
    as_cuda_array,
    device_array,
    device_array_like,
    from_cuda_array_interface,
    is_cuda_array,
    managed_array,
    mapped_array,
    mapped_array_like,
    pinned,
    pinned_array,
    pinned_array_like,
    to_device,
)
from oxide.interop.numba_cuda.devices import (
    close,
    cuda_error,
    current_context,
    defer_cleanup,
    detect,
    get_current_device,
    gpus,
    is_available,
    is_fp8_supported,
    is_supported_version,
    list_devices,
    require_context,
    runtime,
    select_device,
)
from oxide.interop.numba_cuda.dispatcher import jit
from oxide.interop.numba_cuda.streams import (
    default_stream,
    event,
    event_elapsed_time,
    external_stream,
    stream,
    synchronize,
)
from oxide.interop.numba_cuda.substitutes import (
    UNSERVED,
    Reduce,
    attribute_of,
    cudadrv,
    guvectorize,
    install,
    served,
    uninstall,
    unserved,
    vectorize,
)
from oxide.runtime.operations.transfers import h2d

if TYPE_CHECKING:
    from oxide.runtime.memory.memory import DeviceBox
    from oxide.runtime.operations.operation import DeviceOperation

__all__ = [
    "In",
    "InOut",
    "Out",
    "Reduce",
    "as_cuda_array",
    "close",
    "create_xoroshiro128p_states",
    "cuda_error",
    "cudadrv",
    "current_context",
    "default_stream",
    "defer_cleanup",
    "detect",
    "device_array",
    "device_array_like",
    "event",
    "event_elapsed_time",
    "external_stream",
    "from_cuda_array_interface",
    "get_current_device",
    "gpus",
    "guvectorize",
    "install",
    "is_available",
    "is_bfloat16_supported",
    "is_cuda_array",
    "is_float16_supported",
    "is_fp8_supported",
    "is_supported_version",
    "jit",
    "legacy_default_stream",
    "list_devices",
    "managed_array",
    "mapped_array",
    "mapped_array_like",
    "per_thread_default_stream",
    "pinned",
    "pinned_array",
    "pinned_array_like",
    "profile_start",
    "profile_stop",
    "profiling",
    "reduce",
    "require_context",
    "runtime",
    "select_device",
    "stream",
    "synchronize",
    "to_device",
    "uninstall",
    "vectorize",
    "without_gpu",
]

served.append(sys.modules[__name__])

reduce = Reduce
legacy_default_stream = per_thread_default_stream = default_stream
is_float16_supported = is_bfloat16_supported = is_available


def profile_start() -> None:
    """Does nothing. ``with oxide.trace("out.json"):`` records a timeline, and NVIDIA's profilers record the launches
    without it."""


def profile_stop() -> None:
    """Does nothing; see ``profile_start``."""


def profiling() -> AbstractContextManager[None]:
    """Returns a context manager that does nothing; see ``profile_start``."""
    return contextlib.nullcontext()


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in UNSERVED:
            return unserved(name)
        if name == "random":
            import oxide.numba_cuda.random as found

            return found
        if name in ("devicearray", "devices", "driver"):
            return getattr(cudadrv, name)
        return attribute_of("", name)


def create_xoroshiro128p_states(n: int, seed: int, subsequence_start: int = 0) -> DeviceOperation[DeviceBox]:
    """Returns an operation that yields a box with the states of ``n`` random number generators, for the functions of
    ``numba.cuda.random``. They are the states that ``numba.cuda.random.create_xoroshiro128p_states`` makes.

    The states are made on the host and copied; each run of the operation copies these initial states again. Generators
    are ``2**64`` numbers apart, and ``subsequence_start`` is the number of generators to skip at the beginning. Raises
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

    Outside the context, numba-cuda compiles such a function when it is decorated. Inside the context, it does not. So
    numba-cuda cannot launch the function later: only ``oxide.kernel`` can use it. This also applies to functions of
    modules that are imported inside the context. The context applies to all threads.
    """
    from oxide.compiler.frontend.lowering.numba_programs import without_gpu

    return without_gpu()
