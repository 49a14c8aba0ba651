"""Numbers that the host generates for the device: ``arange`` and ``randn``.

NumPy generates the numbers, so they are equal on every device and machine, and a program can generate them without
oxide: ``randn`` is ``default_rng(seed).normal``. Generating 64 MiB takes one core 25 ms for ``arange`` and 0.5 s for
``randn``. Each operation generates its numbers once, at its first run, in the thread that submits the run. But if a
task awaits an operation that contains an ``arange`` or ``randn`` of more than ``staging.SMALL_BYTES``, another thread
generates the numbers before the submission (``awaiting/loading.py``), so the event loop is not blocked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import numpy as np

from oxide.host.core import new_box
from oxide.host.messages import written
from oxide.language.types import as_dtype, converted, f32, is_float
from oxide.runtime.awaiting.loading import HostNumbers, announce_numbers
from oxide.runtime.memory.memory import DeviceBox, parse_shape
from oxide.runtime.operations.operation import DeviceOperation
from oxide.runtime.operations.transfers import NewBox
from oxide.runtime.submission import staging

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oxide.runtime.operations.transfers import DType, Shape
    from oxide.runtime.submission.submission import ExecutionContext


def arange(n: int, dtype: DType = f32) -> DeviceOperation[DeviceBox]:
    """Yields the numbers 0 to n - 1 as a box of shape (n,), generated on the host once.

    Raises ``OverflowError`` if an integer dtype is too small for them, and ``TypeError`` or ``ValueError`` if ``n`` is
    not a whole number of 0 or more.
    """
    sizes = parse_shape(n, "arange")
    if len(sizes) != 1:
        raise TypeError(f"arange: the number of elements is one int, not {written(n)}")
    count = sizes[0]
    resolved = as_dtype(dtype, "arange")
    if resolved.kind in "iu" and count - 1 > np.iinfo(resolved).max:
        raise OverflowError(f"arange: {count - 1} is too large for {resolved}; its largest is {np.iinfo(resolved).max}")
    return Generated("arange", (count,), resolved, lambda: _counted(count, resolved))


def _counted(count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.arange(count, dtype=dtype) if dtype.isbuiltin == 1 else converted(np.arange(count), dtype)


def randn(
    mean: float, std: float, shape: Shape, dtype: DType = f32, *, seed: int | None = None
) -> DeviceOperation[DeviceBox]:
    """Yields normally distributed numbers: those of ``numpy.random.default_rng(seed).normal``, rounded to ``dtype``.

    The same seed gives the same numbers on every device, and one operation yields the same numbers at every run. The
    host generates them, in 0.5 s for 64 MiB. If the operation is awaited, a thread generates them before the
    submission. Raises ``TypeError`` if ``dtype`` is not of floating point, or ``mean`` or ``std`` is not a number.
    Raises ``ValueError`` if ``mean`` or ``std`` does not fit float64, and for a negative ``std`` or ``seed``.
    """
    resolved = as_dtype(dtype, "randn")
    if not is_float(resolved):
        raise TypeError(f"randn: {resolved} is no floating-point type")
    centre, deviation = _float64("mean", mean), _float64("standard deviation", std)
    if not deviation >= 0:
        raise ValueError(f"randn: the standard deviation is {written(std)}; it must not be negative")
    sizes = parse_shape(shape, "randn")
    try:
        generator = np.random.default_rng(seed)  # now, so that a wrong seed is refused at the call
    except (TypeError, ValueError) as refusal:
        wrong = f"randn: the seed is {written(seed)}; give a whole number of 0 or more, or None for another each time"
        raise type(refusal)(wrong) from refusal
    return Generated("randn", sizes, resolved, lambda: converted(generator.normal(centre, deviation, sizes), resolved))


def _float64(name: str, number: Any) -> float:
    """Returns ``number``, the ``mean`` or ``std`` of ``randn``, as a float. Raises ``TypeError`` unless it is one real
    number, of any type but bool, and ``ValueError`` if float64 cannot hold it."""
    wrong = f"randn: the {name} is {written(number)}; it must be one number that float64 holds"
    if isinstance(number, (bool, np.bool_, np.complexfloating, str, bytes)) or getattr(number, "ndim", False):
        raise TypeError(wrong)
    try:
        found = float(number)
    except OverflowError as error:
        raise ValueError(wrong) from error
    except (TypeError, ValueError) as error:
        raise TypeError(wrong) from error
    if math.isinf(found) and found != number:  # finite in its own type, which has a larger range
        raise ValueError(wrong)
    return found


@final
class Generated(NewBox):
    """An operation that yields a box of ``HostNumbers``: see ``arange`` and ``randn``."""

    _from_host = True

    def __init__(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], make: Callable[[], NDArray[Any]]
    ) -> None:
        self._numbers = HostNumbers(make)
        if math.prod(shape) * dtype.itemsize > staging.SMALL_BYTES:
            announce_numbers(self._numbers)
        self._called = name
        super().__init__(shape, dtype)

    def execute(self, context: ExecutionContext) -> DeviceBox:
        box = new_box(context, self._shape, self._dtype)
        if box.nbytes:
            array = self._numbers.array()
            context.at_launch(box, lambda now, to: staging.upload(now, to, array))
        return box
