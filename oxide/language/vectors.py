"""``Vec2``, ``Vec3`` and ``Vec4``: small vectors of numbers, as values on the host and in kernels.

    origin: Vec3[f32] = rays[i]
    light = (Vec3(0.0, 4.0, 0.0) - origin).normalize()

An operator computes each component by the rules of numbers, and a scalar operand is one for all components. A vector of
Python numbers is a literal: ``Vec3(0.0, 4.0, 0.0)`` takes the type of the vector that it meets. A vector does not
change: another one is made in its place.

In memory the components of a vector follow each other, so a box of vectors is a box of their scalars with one more
axis: a ``Slice[Vec3[f32]]`` takes an f32 box of shape (n, 3), and a ``DisjointSlice2[Vec3[u8]]`` an (H, W, 3) image.

The functions below the classes are both the host's methods and what kernels are compiled with, and so written in
Python's own operators on components.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, final

import numpy as np

from . import types
from .types import ScalarType

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class VectorType:
    """``Vec3[f32]``: the type of vectors with components of one scalar type. Calling it makes such a vector."""

    made_of: type[Vector[Any]]
    scalar: Any
    """The scalar type of the components; a type variable, in an annotation that has one."""

    @property
    def name(self) -> str:
        """Returns the type as it is written."""
        return f"{self.made_of.__name__}[{getattr(self.scalar, '__name__', self.scalar)}]"

    @property
    def count(self) -> int:
        """Returns the number of components."""
        return len(self.made_of._fields)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the NumPy dtype of a vector in memory: a subarray of its components."""
        return np.dtype((self.scalar.dtype, (self.count,)))

    def __call__(self, *components: Any) -> Any:
        """Makes a vector. Each component is converted as a C cast does."""
        return self.made_of(*map(self.scalar, components))

    def __repr__(self) -> str:
        return self.name


class Vector(Generic[T]):
    """What ``Vec2``, ``Vec3`` and ``Vec4`` have in common."""

    __slots__ = ()
    __array_ufunc__ = None  # an operator with a NumPy scalar on its left is the vector's
    _fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *components: T, **named: T) -> None:
        """Makes a vector of numbers. They are converted to their common type: NumPy's, for which Python numbers do not
        count."""
        rest = self._fields[len(components) :]
        if len(components) > len(self._fields) or set(named) != set(rest):
            raise TypeError(f"{type(self).__name__}(…) takes {len(self._fields)} numbers, {', '.join(self._fields)}")
        components = (*components, *[named[name] for name in rest])
        for name, component in zip(self._fields, _of_one_type(components), strict=True):
            object.__setattr__(self, name, component)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} does not change: make another one")

    def __reduce__(self) -> Any:
        return type(self), tuple(self)

    def __len__(self) -> int:
        return len(self._fields)

    def __iter__(self) -> Iterator[T]:
        return iter([getattr(self, name) for name in self._fields])

    def __getitem__(self, index: int) -> T:
        found: T = getattr(self, self._fields[index])
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(str(component) for component in self)})"

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __bool__(self) -> bool:
        raise TypeError("a vector is neither true nor false: write any() or all() of a comparison")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(a == b for a, b in zip(self, other, strict=True))

    # Operators on each component

    def __add__(self, other: Self | T | float) -> Self:
        return self._each(operator.add, self, other)

    def __radd__(self, other: T | float) -> Self:
        return self._each(operator.add, other, self)

    def __sub__(self, other: Self | T | float) -> Self:
        return self._each(operator.sub, self, other)

    def __rsub__(self, other: T | float) -> Self:
        return self._each(operator.sub, other, self)

    def __mul__(self, other: Self | T | float) -> Self:
        return self._each(operator.mul, self, other)

    def __rmul__(self, other: T | float) -> Self:
        return self._each(operator.mul, other, self)

    def __truediv__(self, other: Self | T | float) -> Self:
        return self._each(operator.truediv, self, other)

    def __rtruediv__(self, other: T | float) -> Self:
        return self._each(operator.truediv, other, self)

    def __floordiv__(self, other: Self | T | float) -> Self:
        return self._each(operator.floordiv, self, other)

    def __rfloordiv__(self, other: T | float) -> Self:
        return self._each(operator.floordiv, other, self)

    def __mod__(self, other: Self | T | float) -> Self:
        return self._each(operator.mod, self, other)

    def __rmod__(self, other: T | float) -> Self:
        return self._each(operator.mod, other, self)

    def __pow__(self, other: Self | T | float) -> Self:
        return self._each(operator.pow, self, other)

    def __rpow__(self, other: T | float) -> Self:
        return self._each(operator.pow, other, self)

    def __and__(self, other: Self | T | float) -> Self:
        return self._each(operator.and_, self, other)

    def __rand__(self, other: T | float) -> Self:
        return self._each(operator.and_, other, self)

    def __or__(self, other: Self | T | float) -> Self:
        return self._each(operator.or_, self, other)

    def __ror__(self, other: T | float) -> Self:
        return self._each(operator.or_, other, self)

    def __xor__(self, other: Self | T | float) -> Self:
        return self._each(operator.xor, self, other)

    def __rxor__(self, other: T | float) -> Self:
        return self._each(operator.xor, other, self)

    def __lshift__(self, other: Self | T | float) -> Self:
        return self._each(operator.lshift, self, other)

    def __rshift__(self, other: Self | T | float) -> Self:
        return self._each(operator.rshift, self, other)

    def __neg__(self) -> Self:
        return self._each(operator.neg, self)

    def __pos__(self) -> Self:
        return self

    def __invert__(self) -> Self:
        return self._each(operator.invert, self)

    def __abs__(self) -> Self:
        return self._each(abs, self)

    @classmethod
    def _each(cls, function: Callable[..., Any], *operands: Any) -> Self:
        """Returns the vector of a function's results for each component. An operand that is no vector is one for all
        components. Returns NotImplemented for a vector of another length, and for anything that is no number."""
        columns: list[list[Any]] = []
        for operand in operands:
            if isinstance(operand, cls):
                columns.append(list(operand))
            elif isinstance(operand, _NUMBERS):
                columns.append([operand] * len(cls._fields))
            else:
                return NotImplemented  # type: ignore[no-any-return]
        with np.errstate(all="ignore"):
            return cls(*[function(*each) for each in zip(*columns, strict=True)])

    def _called(self, name: str, function: Callable[..., Any], *operands: Any) -> Self:
        """Returns the result of a method for each component. Raises ``TypeError`` for other operands."""
        found = self._each(function, self, *operands)
        if found is NotImplemented:
            given = ", ".join(type(operand).__name__ for operand in operands)
            raise TypeError(f"{type(self).__name__}.{name} takes vectors of its length and numbers, not {given}")
        return found

    # Methods

    def dot(self, other: Self) -> T:
        """Returns the sum of the products of the components."""
        return dot(self, other)  # type: ignore[no-any-return]

    def length(self) -> T:
        """Returns the Euclidean length: an f64 for integers."""
        return length(self)  # type: ignore[no-any-return]

    def normalize(self) -> Self:
        """Returns the vector divided by its length. The result of a vector of length 0 is NaN."""
        return normalize(self)  # type: ignore[no-any-return]

    def min(self, other: Self | T | float) -> Self:
        """Returns the lesser of each two components, as Python's ``min``."""
        return self._called("min", min, other)

    def max(self, other: Self | T | float) -> Self:
        """Returns the greater of each two components, as Python's ``max``."""
        return self._called("max", max, other)

    def abs(self) -> Self:
        """Returns the absolute value of each component."""
        return self._each(abs, self)

    def fma(self, factor: Self | T | float, addend: Self | T | float) -> Self:
        """Returns ``self * factor + addend`` for each component of f32 or f64, rounded once."""
        return self._called("fma", _fused, factor, addend)

    def any(self) -> bool:
        """Returns whether a component of a vector of bools is true."""
        return any(self)

    def all(self) -> bool:
        """Returns whether all components of a vector of bools are true."""
        return all(self)


def _compared(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: self._each(compare, self, other)


if not TYPE_CHECKING:
    for _compare in (operator.lt, operator.le, operator.gt, operator.ge):
        setattr(Vector, f"__{_compare.__name__}__", _compared(_compare))


def _typed(cls: type[Vector[Any]], scalar: Any) -> VectorType:
    if not isinstance(scalar, ScalarType | TypeVar):
        raise TypeError(f"{cls.__name__}[…] takes one of {types.SCALAR_NAMES}, not {scalar!r}")
    return VectorType(cls, scalar)


@final
class Vec2(Vector[T]):
    """Two numbers, ``x`` and ``y``."""

    __slots__ = _fields = ("x", "y")

    if TYPE_CHECKING:

        @property
        def x(self) -> T: ...
        @property
        def y(self) -> T: ...
        def __init__(self, x: T, y: T) -> None: ...
        def __lt__(self, other: Vec2[T] | T | float) -> Vec2[bool]: ...
        def __le__(self, other: Vec2[T] | T | float) -> Vec2[bool]: ...
        def __gt__(self, other: Vec2[T] | T | float) -> Vec2[bool]: ...
        def __ge__(self, other: Vec2[T] | T | float) -> Vec2[bool]: ...
    else:
        __class_getitem__ = classmethod(_typed)


@final
class Vec3(Vector[T]):
    """Three numbers, ``x``, ``y`` and ``z``."""

    __slots__ = _fields = ("x", "y", "z")

    if TYPE_CHECKING:

        @property
        def x(self) -> T: ...
        @property
        def y(self) -> T: ...
        @property
        def z(self) -> T: ...
        def __init__(self, x: T, y: T, z: T) -> None: ...
        def __lt__(self, other: Vec3[T] | T | float) -> Vec3[bool]: ...
        def __le__(self, other: Vec3[T] | T | float) -> Vec3[bool]: ...
        def __gt__(self, other: Vec3[T] | T | float) -> Vec3[bool]: ...
        def __ge__(self, other: Vec3[T] | T | float) -> Vec3[bool]: ...
    else:
        __class_getitem__ = classmethod(_typed)

    def cross(self, other: Vec3[T]) -> Vec3[T]:
        """Returns the vector product."""
        return cross(self, other)  # type: ignore[no-any-return]


@final
class Vec4(Vector[T]):
    """Four numbers, ``x``, ``y``, ``z`` and ``w``."""

    __slots__ = _fields = ("x", "y", "z", "w")

    if TYPE_CHECKING:

        @property
        def x(self) -> T: ...
        @property
        def y(self) -> T: ...
        @property
        def z(self) -> T: ...
        @property
        def w(self) -> T: ...
        def __init__(self, x: T, y: T, z: T, w: T) -> None: ...
        def __lt__(self, other: Vec4[T] | T | float) -> Vec4[bool]: ...
        def __le__(self, other: Vec4[T] | T | float) -> Vec4[bool]: ...
        def __gt__(self, other: Vec4[T] | T | float) -> Vec4[bool]: ...
        def __ge__(self, other: Vec4[T] | T | float) -> Vec4[bool]: ...
    else:
        __class_getitem__ = classmethod(_typed)


VECTORS: dict[int, type[Vector[Any]]] = {2: Vec2, 3: Vec3, 4: Vec4}
"""The vectors by their number of components."""

_NUMBERS = (int, float, complex, np.generic)


def _of_one_type(components: tuple[Any, ...]) -> tuple[Any, ...]:
    """Converts numbers to their common type. Python numbers take the type of NumPy's; among themselves, they become
    floats if one of them is."""
    typed = {component.dtype for component in components if isinstance(component, np.generic)}
    if typed:
        common = np.result_type(*components)
        if typed == {common} and all(isinstance(component, np.generic) for component in components):
            return components
        return tuple([types.converted(component, common)[()] for component in components])
    for component in components:
        if not isinstance(component, int | float | complex):
            raise TypeError(f"the components of a vector are numbers, not {component!r}")
    kinds = {type(component) for component in components}
    if len(kinds) == 1:
        return components
    found = next(kind for kind in (complex, float, int) if any(issubclass(each, kind) for each in kinds))
    return tuple([found(component) for component in components])


def _fused(a: Any, b: Any, c: Any) -> Any:
    from fractions import Fraction

    kind = np.result_type(a, b, c)
    kind = np.dtype(np.float64) if kind.kind != "f" else kind
    numbers = [float(each) for each in (a, b, c)]
    if not all(map(np.isfinite, numbers)) or 0.0 in numbers[:2]:
        return kind.type(numbers[0] * numbers[1] + numbers[2])
    first, second, third = map(Fraction, numbers)
    exact = first * second + third
    try:
        near = np.float64(float(exact))
    except OverflowError:
        return kind.type(np.inf if exact > 0 else -np.inf)
    if kind.itemsize < 8 and Fraction(float(near)) != exact:
        # Rounded to odd, so that the second rounding is that of the exact number.
        even = not int(near.view(np.int64)) & 1
        near = np.nextafter(near, np.inf if exact > Fraction(float(near)) else -np.inf) if even else near
    return kind.type(near)


# The methods, for the host and for kernels


def dot2(a: Any, b: Any) -> Any:
    return a.x * b.x + a.y * b.y


def dot3(a: Any, b: Any) -> Any:
    return a.x * b.x + a.y * b.y + a.z * b.z


def dot4(a: Any, b: Any) -> Any:
    return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w


def cross(a: Any, b: Any) -> Any:
    return Vec3(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x)


def length(v: Any) -> Any:
    return np.sqrt(v.dot(v))


def normalize(v: Any) -> Any:
    return v / v.length()


def any2(v: Any) -> Any:
    return v.x or v.y


def any3(v: Any) -> Any:
    return v.x or v.y or v.z


def any4(v: Any) -> Any:
    return v.x or v.y or v.z or v.w


def all2(v: Any) -> Any:
    return v.x and v.y


def all3(v: Any) -> Any:
    return v.x and v.y and v.z


def all4(v: Any) -> Any:
    return v.x and v.y and v.z and v.w


_DOTS = {2: dot2, 3: dot3, 4: dot4}


def dot(a: Any, b: Any) -> Any:
    with np.errstate(all="ignore"):
        return _DOTS[len(a)](a, b)


METHODS: dict[str, dict[int, Callable[..., Any]]] = {
    "dot": _DOTS,
    "cross": {3: cross},
    "length": dict.fromkeys(VECTORS, length),
    "normalize": dict.fromkeys(VECTORS, normalize),
    "any": {2: any2, 3: any3, 4: any4},
    "all": {2: all2, 3: all3, 4: all4},
}
"""The functions that kernels call for methods, by the number of components."""
