"""The scalar types of kernels: ``i8`` … ``u64``, ``f16``, ``bf16``, ``f32``, ``f64``, ``c64``, ``c128``, ``bool_``.

Each is one object with three uses: an annotation (``m: u32``, ``Slice[f32]``), a conversion (``f32(0.0)``, on the host
and in kernels) and a dtype (``np.dtype(f32)``). For a static type checker each is an alias of the Python type that
behaves like it, ``int``, ``float``, ``complex`` or ``bool``, so kernels type-check as ordinary Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from oxide.messages import written


@final
@dataclass(frozen=True, slots=True)
class ScalarType:
    """A scalar type: its ``name`` and its NumPy ``dtype``.

    NumPy has no bfloat16: ``bf16.dtype`` is ``uint16``, the type of its storage.
    """

    name: str
    dtype: np.dtype[Any]

    def __call__(self, value: Any, *imag: Any) -> Any:
        """Converts a number, as a C cast would: ``u8(300)`` is 44. On the host the result is a NumPy scalar.

        ``c64`` and ``c128`` take one number, or the real and the imaginary part.
        """
        if self.name == "bf16":
            raise TypeError("bf16(...) needs a kernel: NumPy has no bfloat16 scalar")
        if imag:
            if self.dtype.kind != "c" or len(imag) > 1:
                raise TypeError(
                    f"{self.name}(...) takes {'one or two numbers' if self.dtype.kind == 'c' else 'one number'}"
                )
            value = complex(value, *imag)
        return np.asarray(value).astype(self.dtype)[()]

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
    f16 = ScalarType("f16", np.dtype(np.float16))
    bf16 = ScalarType("bf16", np.dtype(np.uint16))
    f32 = ScalarType("f32", np.dtype(np.float32))
    f64 = ScalarType("f64", np.dtype(np.float64))
    c64 = ScalarType("c64", np.dtype(np.complex64))
    c128 = ScalarType("c128", np.dtype(np.complex128))
    bool_ = ScalarType("bool_", np.dtype(np.bool_))


def of_dtype(dtype: np.dtype[Any]) -> ScalarType | None:
    """Returns the scalar type of a NumPy dtype, or None. ``uint16`` is ``u16``, not the storage of a ``bf16``."""
    name = {"b": "bool_"}.get(dtype.kind, f"{dtype.kind}{8 * dtype.itemsize}")
    found = globals().get(name) if dtype.isnative else None
    return found if isinstance(found, ScalarType) else None


def as_dtype(dtype: Any, what: str = "dtype") -> np.dtype[Any]:
    """Returns the NumPy dtype of a ``ScalarType``, or of anything that NumPy accepts as a dtype. ``what`` begins the
    messages.

    Raises ``TypeError`` for ``bf16``, which NumPy cannot hold, and for a value that is not a dtype.
    """
    if isinstance(dtype, ScalarType):
        if dtype.name == "bf16":
            raise TypeError(f"{what}: bf16 has no NumPy dtype; use f32, or u16 for its storage")
        return dtype.dtype
    try:
        converted: np.dtype[Any] = np.dtype(dtype)
    except Exception:  # of any class, even the object's own; NumPy's messages do not mention oxide.f32
        raise TypeError(
            f"{what}: {written(dtype)} is no dtype; give one of oxide's types, as oxide.f32, or what NumPy takes for a "
            f"dtype, as 'float32'"
        ) from None
    return converted
