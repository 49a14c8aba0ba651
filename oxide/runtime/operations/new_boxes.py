"""Operations that make boxes: empty, zeros, ones and full; and arange and randn, whose numbers the host generates.

NumPy generates the numbers, so they are equal on every device and machine, and a program can generate them without
oxide: ``randn`` is ``default_rng(seed).normal``. Generating 64 MiB takes one core 25 ms for ``arange`` and 0.5 s for
``randn``. Each operation generates its numbers once, at its first run, in the thread that submits the run. But if a
task awaits an operation that contains an ``arange`` or ``randn`` of more than ``staging.SMALL_BYTES``, another thread
generates the numbers before the submission (``awaiting/loading.py``), so the event loop is not blocked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from oxide.host import core
from oxide.host.core import new_box
from oxide.host.messages import byte_count, dtype_name, written
from oxide.language.structures import dtype_of, is_named_tuple
from oxide.language.types import as_dtype, converted, f32, is_float, of_dtype, of_narrow_scalar
from oxide.runtime.awaiting.loading import HostNumbers, announce_numbers
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.memory.memory import DeviceBox, number_of_elements, parse_shape, require_data, require_number
from oxide.runtime.operations.operation import BoxSpec, Depiction, DeviceOperation, Spec
from oxide.runtime.submission import staging
from oxide.runtime.submission.submission import ExecutionContext

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oxide.language.types import ScalarType

    DType = ScalarType | np.dtype[Any] | type | str
    Shape = int | tuple[int, ...]

_F32: Final = f32
_FLOAT32: Final = np.dtype(np.float32)


def _new_box(context: ExecutionContext, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceBox:
    """Does what ``new_box`` does, in a recording or with memory that is lent, too."""
    if context.recording is not None:
        context.recording.require_allocation(f"a box of {describe(shape, dtype)}")
    return DeviceBox(context.allocated(number_of_elements(shape) * dtype.itemsize, shape, dtype), shape, dtype)


class NewBox(DeviceOperation[DeviceBox]):
    """An operation that yields a new box, whose shape and dtype are known before the run."""

    _may_download = False
    _from_host = False  # whether a run copies from the host

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._shape = shape
        self._dtype = dtype
        super().__init__()

    def execute(self, context: ExecutionContext) -> DeviceBox:
        return new_box(context, self._shape, self._dtype)

    def spec(self) -> Spec:
        return BoxSpec(self._shape, self._dtype)

    def depict(self) -> Depiction:
        size = byte_count(number_of_elements(self._shape) * self._dtype.itemsize)
        if self._from_host:
            return "copy", self._called, ("host to device", size), ()
        return "memory", self._called, (size,), ()

    def __repr__(self) -> str:
        return f"<oxide operation {self._called} of {describe(self._shape, self._dtype)}>"


@final
class Full(NewBox):
    _called = "full"

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], element: bytes) -> None:
        # Every driver fills bytes fastest, and zero is all zero bytes in every dtype.
        self._pattern = element if any(element) else b"\0"
        super().__init__(shape, dtype)

    def execute(self, context: ExecutionContext) -> DeviceBox:
        box = new_box(context, self._shape, self._dtype)
        if box.nbytes:
            count = box.nbytes // len(self._pattern)
            with context.submission_lock, context.ordered([], [box._allocation]):
                context.driver.fill(box.ptr, self._pattern, count, context.timeline.handle)
        return box

    def depict(self) -> Depiction:
        kind, title, lines, inputs = super().depict()
        return kind, title if any(self._pattern) else "zeros", lines, inputs


@final
class Empty(NewBox):
    _called = "empty"


def pinned_empty(shape: Shape, dtype: DType = f32) -> NDArray[Any]:
    """Returns an uninitialised NumPy array in page-locked memory, which ``h2d`` copies from without staging.

    Its memory returns to the pool when the last array on it is dropped and no copy in flight needs it.
    Raises ``OutOfMemoryError`` beyond ``OXIDE_PINNED_LIMIT``, ``TypeError`` or ``ValueError`` for a bad shape or dtype.
    """
    sizes, resolved = parse_shape(shape, "pinned_empty"), _numpys(dtype, "pinned_empty")
    if resolved.hasobject:
        raise TypeError(f"pinned_empty: dtype {resolved} holds Python objects; numbers are supported")
    nbytes = number_of_elements(sizes) * resolved.itemsize
    if not nbytes:
        return np.empty(sizes, resolved)
    return current_runtime().pinned.acquire(nbytes).array(sizes, resolved)


def empty(shape: Shape, dtype: DType = f32) -> DeviceOperation[DeviceBox]:
    """Makes a box with uninitialised elements, for an output that a kernel writes in full."""
    return Empty(parse_shape(shape, "empty"), data_dtype(dtype, "empty"))


def full(shape: Shape, x: complex, dtype: DType = f32) -> DeviceOperation[DeviceBox]:
    """Makes a box of ``shape`` with every element ``x``. Raises ``OverflowError`` or ``TypeError`` if ``x`` does not
    fit."""
    resolved = as_dtype(dtype, "full")
    require_number(resolved, "full")
    if of_narrow_scalar(x) is not None:
        x = float(x.real)
    if not isinstance(x, (int, float, complex, np.number, np.bool_)):
        raise TypeError(f"full: one number fills the box, not {type(x).__name__}; h2d copies an array")
    if resolved.itemsize > 16:
        raise TypeError(f"full: {resolved} elements are wider than 16 bytes; use h2d(numpy.full(…))")
    return Full(parse_shape(shape, "full"), resolved, _element(x, resolved))


def _element(x: Any, dtype: np.dtype[Any]) -> bytes:
    """Returns the bytes of a number as an element of ``dtype``. Raises ``OverflowError`` or ``TypeError``."""
    real = dtype.kind in "iu" or is_float(dtype)
    if real and x.imag != 0:
        raise TypeError(f"full: {x!r} is no {dtype}; give a real number, or a complex dtype")
    number: Any = x.real if real else x
    finite = not isinstance(number, (float, complex, np.inexact)) or bool(np.isfinite(number))
    if dtype.kind in "iu":
        if number != number or (finite and int(number) != number):
            raise TypeError(f"full: {x!r} is no {dtype}; give a whole number, or a dtype of floating point")
        limits = np.iinfo(dtype)
        if not finite or not limits.min <= int(number) <= limits.max:
            raise OverflowError(
                f"full: {written(x)} does not fit {dtype}, which holds {limits.min} to {limits.max}; give one of "
                "these, or another dtype"
            )
        return np.array(int(number), dtype).tobytes()
    try:
        if dtype.isbuiltin != 1 and (scalar := of_dtype(dtype)) is not None:
            return _narrow_element(scalar, float(number))
        with np.errstate(over="ignore"):
            element = np.array(number, dtype)
        held = not finite or bool(np.isfinite(element))
    except OverflowError:  # an integer beyond every float
        held = False
    if not held:
        raise OverflowError(f"full: {written(x)} is too large for {dtype}; give a smaller one, or a wider dtype")
    return element.tobytes()


def _narrow_element(scalar: ScalarType, number: float) -> bytes:
    """Returns the bytes of a number as a type of ``ml_dtypes``. Raises ``OverflowError``."""
    from oxide.language import narrow  # imported here: few programs need it

    bits = narrow.encoded(scalar.name, number)
    if bits is None:
        raise OverflowError
    return bits.to_bytes(scalar.bits // 8, "little")


def zeros(shape: Shape, dtype: DType = f32) -> DeviceOperation[DeviceBox]:
    """Makes a box of zeros; ``shape`` is an int or a tuple."""
    return Full(parse_shape(shape, "zeros"), data_dtype(dtype, "zeros"), b"\0")


def ones(shape: Shape, dtype: DType = f32) -> DeviceOperation[DeviceBox]:
    """Makes a box of ones; ``shape`` is an int or a tuple."""
    return full(parse_shape(shape, "ones"), 1, as_dtype(dtype, "ones"))


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
    return Generated("arange", (count,), resolved, lambda: _whole_numbers(count, resolved))


def _whole_numbers(count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
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


def describe(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    """Returns a text with the shape and dtype of an array, for messages."""
    return f"{'x'.join(map(written, shape)) or 'a scalar'} {dtype_name(dtype)}"


def _numpys(dtype: DType, what: str) -> np.dtype[Any]:
    """Returns the NumPy dtype of numbers or of structures."""
    return dtype_of(dtype) if is_named_tuple(dtype) else as_dtype(dtype, what)


def data_dtype(dtype: DType, what: str) -> np.dtype[Any]:
    """Returns the NumPy dtype of a box. Raises ``TypeError`` for a dtype that a box cannot have."""
    resolved = _FLOAT32 if dtype is _F32 else _numpys(dtype, what)
    require_data(resolved, what)
    return resolved


core.setup(new_box=_new_box)
