"""The scalar types of kernels: ``i8`` … ``u64``, ``f8e4m3`` … ``f64``, ``c64``, ``c128``, ``bool_``.

Each type is one object with three uses: an annotation (``m: u32``, ``Slice[f32]``), a conversion (``f32(0.0)``, on the
host and in kernels) and a dtype (``np.dtype(f32)``). For a static type checker each type is an alias of the Python type
that behaves like it: ``int``, ``float``, ``complex`` or ``bool``. So kernels type-check as ordinary Python.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from oxide.messages import written

if TYPE_CHECKING:
    from numpy.typing import NDArray


_ML_DTYPES = {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
"""The scalar types that NumPy does not have, and their names in ``ml_dtypes``."""


@functools.cache
def _of_ml_dtypes(name: str) -> np.dtype[Any]:
    import ml_dtypes  # imported here: few programs need it

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
    return found


@final
@dataclass(frozen=True, slots=True)
class ScalarType:
    """A scalar type: its ``name`` and its NumPy ``dtype``. For ``bf16``, ``f8e4m3`` and ``f8e5m2`` the dtype comes from
    ``ml_dtypes``."""

    name: str
    numpys: np.dtype[Any] | None = None
    """The dtype if NumPy itself has it, or None if it comes from ``ml_dtypes``."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the NumPy dtype. A dtype that NumPy itself does not have comes from ``ml_dtypes``, which is imported
        at the first use."""
        return _of_ml_dtypes(self.name) if self.numpys is None else self.numpys

    @property
    def kind(self) -> str:
        """Returns the kind of number as a letter of NumPy: b, i, u, f or c. It is f for all floats, also those of
        ``ml_dtypes``."""
        return "f" if self.numpys is None else self.numpys.kind

    def takes(self, dtype: np.dtype[Any]) -> bool:
        """Returns whether a box of ``dtype`` can hold elements of this type. ``dtype`` must be the type's own dtype.
        For a type of ``ml_dtypes`` it may also be the unsigned integer of the same size, which then holds the elements'
        bits."""
        return dtype == self.dtype or (self.numpys is None and dtype == self.bits)

    @property
    def bits(self) -> np.dtype[Any]:
        """Returns the dtype of unsigned integers of the type's size."""
        return np.dtype(f"u{self.dtype.itemsize}")

    def __call__(self, value: Any, *imag: Any) -> Any:
        """Converts a number as a C cast does: ``u8(300)`` is 44. On the host the result is a NumPy scalar.

        ``c64`` and ``c128`` take one number, or the real and the imaginary part.
        """
        if imag:
            if self.kind != "c" or len(imag) > 1:
                raise TypeError(f"{self.name}(...) takes {'one or two numbers' if self.kind == 'c' else 'one number'}")
            value = complex(value, *imag)
        return converted(value, self.dtype)[()]

    def __reduce__(self) -> str:
        return self.name  # there is one object of each type

    def __repr__(self) -> str:
        return self.name


if TYPE_CHECKING:
    i8: TypeAlias = int
    i16: TypeAlias = int
    i32: TypeAlias = int
    i64: TypeAlias = int
    u8: TypeAlias = int
    u16: TypeAlias = int
    u32: TypeAlias = int
    u64: TypeAlias = int
    f8e4m3: TypeAlias = float
    f8e5m2: TypeAlias = float
    f16: TypeAlias = float
    bf16: TypeAlias = float
    f32: TypeAlias = float
    f64: TypeAlias = float
    c64: TypeAlias = complex
    c128: TypeAlias = complex
    bool_: TypeAlias = bool
else:
    i8 = ScalarType("i8", np.dtype(np.int8))
    i16 = ScalarType("i16", np.dtype(np.int16))
    i32 = ScalarType("i32", np.dtype(np.int32))
    i64 = ScalarType("i64", np.dtype(np.int64))
    u8 = ScalarType("u8", np.dtype(np.uint8))
    u16 = ScalarType("u16", np.dtype(np.uint16))
    u32 = ScalarType("u32", np.dtype(np.uint32))
    u64 = ScalarType("u64", np.dtype(np.uint64))
    f8e4m3 = ScalarType("f8e4m3")
    f8e5m2 = ScalarType("f8e5m2")
    f16 = ScalarType("f16", np.dtype(np.float16))
    bf16 = ScalarType("bf16")
    f32 = ScalarType("f32", np.dtype(np.float32))
    f64 = ScalarType("f64", np.dtype(np.float64))
    c64 = ScalarType("c64", np.dtype(np.complex64))
    c128 = ScalarType("c128", np.dtype(np.complex128))
    bool_ = ScalarType("bool_", np.dtype(np.bool_))


def of_dtype(dtype: np.dtype[Any]) -> ScalarType | None:
    """Returns the scalar type of a NumPy dtype, or None if there is none. For ``uint16`` it is ``u16``, although a box
    of ``uint16`` may also hold the bits of ``bf16``."""
    if dtype.isbuiltin == _REGISTERED:
        return next((known for known in _NARROW if known.dtype == dtype), None)
    name = {"b": "bool_"}.get(dtype.kind, f"{dtype.kind}{8 * dtype.itemsize}")
    found = globals().get(name) if dtype.isnative else None
    return found if isinstance(found, ScalarType) else None


_NARROW: list[ScalarType] = [globals()[name] for name in _ML_DTYPES]
_REGISTERED = 2
"""The value of ``np.dtype.isbuiltin`` for a dtype that another library has registered."""


def of_narrow_scalar(value: Any) -> ScalarType | None:
    """Returns the scalar type of a scalar of ``ml_dtypes``, or None for any other value. These scalars are not
    instances of NumPy's number classes, such as ``np.floating``."""
    if isinstance(value, np.generic) and value.dtype.isbuiltin == _REGISTERED:
        return of_dtype(value.dtype)
    return None


def is_float(dtype: np.dtype[Any]) -> bool:
    """Returns whether ``dtype`` is a dtype of real floats: one of NumPy's, or one from ``ml_dtypes`` that has a scalar
    type."""
    if dtype.isbuiltin == _REGISTERED:
        return of_dtype(dtype) is not None
    return dtype.kind == "f"


def converted(values: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Converts numbers to an array of ``dtype``. Each result is that of the same conversion in a kernel."""
    if dtype.isbuiltin == _REGISTERED and (scalar := of_dtype(dtype)) is not None:
        from .narrow import narrowed  # imported here: few programs need it

        return narrowed(values, scalar.name, dtype)
    return np.asarray(values).astype(dtype)


def as_dtype(dtype: Any, what: str = "dtype") -> np.dtype[Any]:
    """Returns the NumPy dtype of a ``ScalarType``, or of anything that NumPy accepts as a dtype. Raises ``TypeError``
    for a value that is not a dtype, with a message that begins with ``what``."""
    if isinstance(dtype, ScalarType):
        return dtype.dtype
    try:
        resolved: np.dtype[Any] = np.dtype(dtype)
    except Exception:  # np.dtype raises several types, even an object's own; its messages do not mention oxide.f32
        raise TypeError(
            f"{what}: {written(dtype)} is no dtype; give one of oxide's types, as oxide.f32, or what NumPy takes for a "
            f"dtype, as 'float32'"
        ) from None
    return resolved
