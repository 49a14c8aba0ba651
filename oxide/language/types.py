"""The scalar types of kernels: ``i8`` … ``u64``, ``f8e4m3`` … ``f64``, ``c64``, ``c128``, ``bool_``.

Each type is one object with three uses: an annotation (``m: u32``, ``Slice[f32]``), a conversion (``f32(0.0)``, on the
host and in kernels) and a dtype (``np.dtype(f32)``). For a static type checker each type is an alias of the Python type
that behaves like it: ``int``, ``float``, ``complex`` or ``bool``. So kernels type-check as ordinary Python.

This is the one table of types: whatever else depends on the type of a number reads it from the entries at the end of
``ScalarType``. A new type is one entry here, and its name in ``oxide``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from oxide.host.messages import written

if TYPE_CHECKING:
    from numpy.typing import NDArray


@functools.cache
def _of_ml_dtypes(name: str) -> np.dtype[Any]:
    import ml_dtypes  # imported here: few programs need it

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


_NO_GPU = 1000
"""The compute capability from which an instruction exists that no GPU has."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class ScalarType:
    """A scalar type: its ``name``, its NumPy ``dtype``, and what the compiler and the runtime know about it."""

    name: str
    kind: str = ""
    """The kind of number as a letter of NumPy: b, i, u, f or c. It is f for all floats, also those of ``ml_dtypes``."""
    bits: int = 0
    """The size in memory."""
    numpys: np.dtype[Any] | None = None
    """The dtype if NumPy itself has it, or None if it comes from ``ml_dtypes``."""
    ml_dtypes: str = ""
    """The name in ``ml_dtypes`` of a type that NumPy does not have."""
    part: str = ""
    """For a complex type, the type of its real and its imaginary part."""

    precision: int = 0
    """For a *narrow* float, its precision in bits. A narrow float is passed and stored as its bits, and computed as an
    f32 that is rounded after each operation (``oxide/language/narrow.py``, ``oxide/compiler/ir/half.py``)."""
    least: int = 0
    """For a narrow float, the exponent of its least positive number."""
    greatest: float = 0.0
    """For a narrow float, its greatest number."""
    has_infinity: bool = True
    converts: int = _NO_GPU
    """For a narrow float, the least compute capability whose instructions convert it, such as 89."""
    converts_pairs: int = _NO_GPU
    """For a narrow float of 16 bits, the least compute capability with an instruction that rounds two f32."""

    atomics: tuple[str, ...] = ()
    """The families of atomic operations that hardware has for the type, besides loads, stores and exchanges: ``add``;
    ``order``, which are subtraction, minimum and maximum; ``bits``, which are and, or, xor."""
    depth: int = 0
    """The extent along k of one product on tensor cores, or 0 for a type that they do not multiply."""
    sums: tuple[str, ...] = ()
    """The types that tensor cores sum products in. Types of one depth and the same sums may be multiplied by each
    other."""
    nccl: int | None = None
    """The number in ``ncclDataType_t``, or None if NCCL does not reduce the type."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the NumPy dtype. A dtype that NumPy itself does not have comes from ``ml_dtypes``, which is imported
        at the first use."""
        return _of_ml_dtypes(self.ml_dtypes) if self.numpys is None else self.numpys

    @property
    def dtype_name(self) -> str:
        """Returns the dtype's name, such as ``float16``, without an import of ``ml_dtypes``. Other libraries have the
        type under the same name."""
        return self.ml_dtypes if self.numpys is None else self.numpys.name

    @property
    def bits_dtype(self) -> np.dtype[Any]:
        """Returns the dtype of unsigned integers of the type's size."""
        return np.dtype(f"u{self.bits // 8}")

    @property
    def limits(self) -> tuple[int, int]:
        """Returns the least and the greatest number of an integer type."""
        half = 1 << (self.bits - 1)
        return (0, 2 * half - 1) if self.kind == "u" else (-half, half - 1)

    @property
    def saturates(self) -> bool:
        """Returns whether a conversion to a narrow float turns numbers beyond the greatest into the greatest, as on a
        GPU for floats of 8 bits. If not, it turns them into infinity."""
        return self.bits == 8

    @property
    def memory_type(self) -> str:
        """Returns the LLVM type of an element in memory, which is also that of a parameter. A complex number is two of
        its part."""
        return self.register_type if self.kind == "f" and not self.precision else f"i{self.bits}"

    @property
    def register_type(self) -> str:
        """Returns the LLVM type of a value in registers: an f32 for a narrow float."""
        if self.kind == "f":
            return "double" if self.bits == 64 else "float"
        return "i1" if self.kind == "b" else f"i{self.bits}"

    @property
    def ptx_type(self) -> str:
        """Returns the type's name in PTX's instructions."""
        return self.name.replace("i", "s").removeprefix("f8")

    @property
    def struct_format(self) -> str:
        """Returns the format for ``struct`` of the words by which a launch passes a number of the type."""
        if self.part:
            return 2 * SCALARS[self.part].struct_format
        kind = "u" if self.precision else self.kind
        return {"b": "?", "i": "bhiq", "u": "BHIQ", "f": "  fd"}[kind][(self.bits // 8).bit_length() - 1]

    def takes(self, dtype: np.dtype[Any]) -> bool:
        """Returns whether a box of ``dtype`` can hold elements of this type. ``dtype`` must be the type's own dtype.
        For a type of ``ml_dtypes`` it may also be the unsigned integer of the same size, which then holds the elements'
        bits."""
        return dtype == self.dtype or (self.numpys is None and dtype == self.bits_dtype)

    def __call__(self, value: Any, *imag: Any) -> Any:
        """Converts a number as a C cast does: ``u8(300)`` is 44. On the host the result is a NumPy scalar.

        ``c64`` and ``c128`` take one number, or the real and the imaginary part.
        """
        if imag:
            if self.kind != "c" or len(imag) > 1:
                raise TypeError(f"{self.name}(...) takes {'one or two numbers' if self.kind == 'c' else 'one number'}")
            value = complex(value, *imag)
        return converted(value, self.dtype)[()]

    def __eq__(self, other: object) -> bool:
        return self.name == other.name if isinstance(other, ScalarType) else NotImplemented  # NumPy compares its dtypes

    def __hash__(self) -> int:
        return hash(self.name)

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
    _ORDERED = ("add", "order")
    _WHOLE = ("add", "order", "bits")

    i8 = ScalarType("i8", "i", 8, np.dtype(np.int8), depth=32, sums=("i32",), nccl=0)
    i16 = ScalarType("i16", "i", 16, np.dtype(np.int16))
    i32 = ScalarType("i32", "i", 32, np.dtype(np.int32), atomics=_WHOLE, nccl=2)
    i64 = ScalarType("i64", "i", 64, np.dtype(np.int64), atomics=_WHOLE, nccl=4)
    u8 = ScalarType("u8", "u", 8, np.dtype(np.uint8), depth=32, sums=("i32",), nccl=1)
    u16 = ScalarType("u16", "u", 16, np.dtype(np.uint16))
    u32 = ScalarType("u32", "u", 32, np.dtype(np.uint32), atomics=_WHOLE, nccl=3)
    u64 = ScalarType("u64", "u", 64, np.dtype(np.uint64), atomics=_WHOLE, nccl=5)
    f8e4m3 = ScalarType(
        "f8e4m3", "f", 8, ml_dtypes="float8_e4m3fn", precision=4, least=-9, greatest=448.0, has_infinity=False,
        converts=89, depth=32, sums=("f32",), nccl=10,
    )  # fmt: skip
    f8e5m2 = ScalarType(
        "f8e5m2", "f", 8, ml_dtypes="float8_e5m2", precision=3, least=-16, greatest=57344.0,
        converts=89, depth=32, sums=("f32",), nccl=11,
    )  # fmt: skip
    f16 = ScalarType(
        "f16", "f", 16, np.dtype(np.float16), precision=11, least=-24, greatest=65504.0,
        converts=0, converts_pairs=80, atomics=("add",), depth=16, sums=("f32", "f16"), nccl=6,
    )  # fmt: skip
    bf16 = ScalarType(
        "bf16", "f", 16, ml_dtypes="bfloat16", precision=8, least=-133, greatest=255 * 2.0**120,
        converts=90, converts_pairs=90, atomics=("add",), depth=16, sums=("f32",), nccl=9,
    )  # fmt: skip
    f32 = ScalarType("f32", "f", 32, np.dtype(np.float32), atomics=_ORDERED, depth=8, sums=("f32",), nccl=7)
    f64 = ScalarType("f64", "f", 64, np.dtype(np.float64), atomics=_ORDERED, depth=4, sums=("f64",), nccl=8)
    c64 = ScalarType("c64", "c", 64, np.dtype(np.complex64), part="f32")
    c128 = ScalarType("c128", "c", 128, np.dtype(np.complex128), part="f64")
    bool_ = ScalarType("bool_", "b", 8, np.dtype(np.bool_))

SCALARS: dict[str, ScalarType] = {name: value for name, value in globals().items() if isinstance(value, ScalarType)}
"""The scalar types by name."""
SCALAR_NAMES = " ".join(SCALARS)
NARROW = {name: scalar for name, scalar in SCALARS.items() if scalar.precision}
"""The narrow floats by name."""
_BY_SIZE = sorted(SCALARS.items(), key=lambda item: (item[1].kind == "f", item[1].bits))
ATOMIC = {name: scalar for name, scalar in _BY_SIZE if scalar.atomics}
"""The types that have atomic operations, by name."""
OF_PYTHON = {bool: SCALARS["bool_"], int: SCALARS["i64"], float: SCALARS["f64"], complex: SCALARS["c128"]}
"""The types of Python's numbers that meet no number of another type."""


SCALAR_TYPES: dict[type, ScalarType] = {each.numpys.type: each for each in SCALARS.values() if each.numpys is not None}
"""The types by the scalar type of NumPy that has the same numbers."""


def of_dtype(dtype: np.dtype[Any]) -> ScalarType | None:
    """Returns the scalar type of a NumPy dtype, or None if there is none. For ``uint16`` it is ``u16``, although a box
    of ``uint16`` may also hold the bits of ``bf16``."""
    if dtype.isbuiltin == REGISTERED:
        return next((known for known in NARROW.values() if known.ml_dtypes and known.dtype == dtype), None)
    name = {"b": "bool_"}.get(dtype.kind, f"{dtype.kind}{8 * dtype.itemsize}")
    return SCALARS.get(name) if dtype.isnative else None


REGISTERED = 2
"""The value of ``np.dtype.isbuiltin`` for a dtype that another library has registered."""


def of_narrow_scalar(value: Any) -> ScalarType | None:
    """Returns the scalar type of a scalar of ``ml_dtypes``, or None for any other value. These scalars are not
    instances of NumPy's number classes, such as ``np.floating``."""
    if isinstance(value, np.generic) and value.dtype.isbuiltin == REGISTERED:
        return of_dtype(value.dtype)
    return None


def is_float(dtype: np.dtype[Any]) -> bool:
    """Returns whether ``dtype`` is a dtype of real floats: one of NumPy's, or one from ``ml_dtypes`` that has a scalar
    type."""
    if dtype.isbuiltin == REGISTERED:
        return of_dtype(dtype) is not None
    return dtype.kind == "f"


def converted(values: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Converts numbers to an array of ``dtype``. Each result is that of the same conversion in a kernel."""
    if dtype.isbuiltin == REGISTERED and (scalar := of_dtype(dtype)) is not None:
        return _narrowed(values, scalar, dtype)
    return np.asarray(values).astype(dtype)


NAN = 0x7F
"""The bits of the NaN to which a conversion to 8 bits turns any NaN."""


def _narrowed(values: Any, form: ScalarType, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Converts numbers to an array of ``dtype``, the dtype of the narrow float ``form``. Each number is rounded once,
    as
    in kernels; ``ml_dtypes`` converts a float64 through float32, which rounds twice."""
    given = np.asarray(values)
    if given.dtype == dtype:
        return given
    with np.errstate(over="ignore", invalid="ignore"):
        singles = _singles(given)
        if not form.saturates:
            return singles.astype(dtype)
        found: NDArray[Any] = np.asarray(np.clip(singles, -form.greatest, form.greatest).astype(dtype))
        found[np.isnan(singles)] = np.uint8(NAN).view(dtype)
        return found


def _singles(given: NDArray[Any]) -> NDArray[Any]:
    """Converts numbers to f32, rounded to odd: rounding them again to a narrower format then gives the same result as
    rounding the given numbers once."""
    if given.dtype.kind in "iu" and given.dtype.itemsize == 8:
        kept = given & given.dtype.type(-2048 if given.dtype.kind == "i" else 2**64 - 2048)
        odd = np.where(given == kept, kept, kept | given.dtype.type(2048))
        small = (given < 2**53) & (given > -(2**53)) if given.dtype.kind == "i" else given < 2**53
        given = np.where(small, given, odd)
    wide = given.astype(np.float64)
    near = wide.astype(np.float32)
    back = near.astype(np.float64)
    inexact = (back != wide) & ~np.isnan(wide)
    bits = near.view(np.uint32)
    odd_bits = (bits - (np.abs(back) > np.abs(wide))) | np.uint32(1)
    chosen: NDArray[Any] = np.where(inexact, odd_bits, bits).astype(np.uint32).view(np.float32)
    return chosen


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
