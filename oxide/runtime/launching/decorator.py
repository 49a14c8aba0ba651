"""``@kernel``: makes a kernel that the runtime launches.

The compiler's ``Kernel`` does not know the runtime: this module gives it the object that plans its launches.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast, final, get_overloads, overload

from oxide.compiler.kernel.kernel import Kernel
from oxide.errors import CompileError
from oxide.host.environment import drop_frames, without_frames, word
from oxide.runtime.awaiting.loading import note_compiled, note_compiling
from oxide.runtime.launching.launch import KernelLaunches

if TYPE_CHECKING:
    from oxide.runtime.launching.tuning import Tuned
    from oxide.runtime.operations.operation import DeviceOperation

    @final
    class LaunchableKernel(Kernel[DeviceOperation[tuple[Any, ...]], Tuned]):
        """``Kernel`` for a type checker: with the types of the runtime, which the compiler does not know."""

else:
    LaunchableKernel = Kernel


@overload
def kernel(function: Callable[..., Any], /) -> LaunchableKernel: ...
@overload
def kernel(
    function: None = None,
    /,
    *,
    block: int | tuple[int, ...] | None = None,
    items_per_thread: int | tuple[int, ...] = 1,
    fastmath: bool = False,
    fma: bool = True,
    unchecked: bool = False,
    deny_checks: bool = False,
    requires: Iterable[str] = (),
    max_registers: int | None = None,
    cluster: int | tuple[int, ...] | None = None,
    lineinfo: bool | None = None,
    partial: bool = False,
    sanitize: str | Iterable[str] = (),
    configs: Any = (),
) -> Callable[[Callable[..., Any]], LaunchableKernel]: ...
def kernel(
    function: Callable[..., Any] | None = None, /, **options: Any
) -> LaunchableKernel | Callable[[Callable[..., Any]], LaunchableKernel]:
    """Makes a kernel of a Python function. Raises ``CompileError`` for annotations that a kernel cannot have.

    A kernel annotates every parameter, or none. Without annotations, parameters take their types from the arguments of
    each launch, as in ``numba.cuda.jit``, and the kernel has numba-cuda's semantics. ``kernel(dispatcher)`` makes a
    kernel of a function that ``numba.cuda.jit`` decorated, with its explicit signatures, if it has any.

    ``block`` is the block's shape in threads for launches without a configuration. ``items_per_thread``, CUB's term, is
    the number of output elements that a thread of such a launch computes, along each axis. The grid follows from both.
    ``fastmath`` allows floating point reassociation and approximate division. By default a product that is written as
    an operand of a sum is fused with it, as C's ``FP_CONTRACT`` allows; ``fma=False`` rounds every product, and
    ``fastmath`` leaves the choice to the compiler. ``unchecked`` omits the bounds checks: an index outside a slice then
    accesses other memory. With ``deny_checks``, the first use raises ``CompileError`` if a bounds check would stay
    inside a loop. ``requires`` are contracts, comparisons such as ``"len(a) >= m * k"``: each launch is checked against
    them on the host, and the kernel omits the bounds checks that the contracts make needless. ``max_registers`` limits
    a thread's registers on a GPU. ``cluster`` is the size of a cluster in blocks, along x or along each axis, at most 8
    in all. The blocks of a cluster run together and reach one another through ``tensor.cluster``. Along each axis, the
    grid's number of blocks must be a multiple of the cluster's. ``lineinfo=True`` adds line tables for profilers and
    debuggers, which then show lines of the source: see docs/profilers.md. By default, the environment decides.
    ``partial=True`` says that a launch may leave elements of an output unwritten. Otherwise the first launch of each
    specialization with fewer threads than an output has elements or tiles causes a ``RuntimeWarning``, a width of
    ``index_2d`` that is not the output's is refused, and the sanitizer reports what a ``scatter`` leaves out.
    ``sanitize`` names what the CPU device checks at every access, ``"memory"``, ``"race"`` or both: see
    docs/sanitizer.md. ``configs`` are candidates for ``k.tune``: dicts of ``block``, ``items_per_thread`` and
    ``max_registers``. Launches use the first candidate until ``k.tune`` has run.
    """
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(f"kernel() got an unexpected keyword argument {name!r}")
    # Annotations are mostly strings, and may name a local of the function that defines the kernel.
    options["names"] = dict(sys._getframe(1).f_locals)
    if function is None:
        return functools.partial(_made, options)
    try:
        return _made(options, function)
    except CompileError as error:
        drop_frames(error)
        raise


# The options are listed once, in the second overload.
_own = inspect.signature(kernel)
_, *_listed = inspect.signature(get_overloads(kernel)[1]).parameters.values()
_OPTIONS = frozenset(option.name for option in _listed)
kernel.__signature__ = _own.replace(parameters=[_own.parameters["function"], *_listed])  # type: ignore[attr-defined]


@without_frames
def _made(options: dict[str, Any], function: Callable[..., Any]) -> LaunchableKernel:
    launches = KernelLaunches(interprets=word("OXIDE_INTERPRET", ("1",)) is not None)
    made = Kernel(function, launches=launches, compiling=note_compiling, compiled=note_compiled, **options)
    return cast("LaunchableKernel", made)
