"""``Array``: a numba-cuda array as a kernel's parameter.

A kernel may use an array as in numba-cuda: indices of any kind, slices, ``shape``, ``size``, ``strides``, iteration,
``cuda.atomic``. As in numba-cuda, nothing is checked: an index outside reads or writes other memory, and a negative
index counts from the end. ``Slice`` and ``DisjointSlice`` are checked.

The class is a declaration: a type checker reads it, and on the host it has no instances.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, TypeVarTuple, final, get_args, get_origin

import numpy as np

from . import primitives
from .types import as_dtype

T = TypeVar("T")
Axes = TypeVarTuple("Axes")


@final
class ArrayAnnotation:
    """The runtime value of ``Array[T, ndim]``: the elements' dtype and the number of axes."""

    __slots__ = ("dtype", "ndim")

    def __init__(self, dtype: np.dtype[Any], ndim: int) -> None:
        self.dtype = dtype
        self.ndim = ndim

    def __repr__(self) -> str:
        return f"Array[{self.dtype}, {self.ndim}]"


@primitives.passed_to_kernels
@final
class Array(Generic[T, *Axes]):
    """An array of ``T`` with ``ndim`` axes: ``Array[f32, 2]``. ``Array[f32]`` has one axis. A type checker accepts the
    number only as ``Literal[2]``. ``T`` is a scalar type or a NumPy dtype, including structured and complex ones.

    For an ``Array``, a launch takes a ``DeviceBox`` of this dtype and number of axes. The box may be a strided view.
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, parameters: Any) -> ArrayAnnotation:
            kind, ndim, *more = (*(parameters if isinstance(parameters, tuple) else (parameters,)), 1)
            if get_origin(ndim) is Literal:
                (ndim,) = get_args(ndim)
            if isinstance(ndim, bool) or not isinstance(ndim, int) or ndim < 0 or len(more) > 1:
                raise TypeError(f"Array[T, ndim]: ndim is {ndim!r}; give the number of axes, as in Array[f32, 2]")
            return ArrayAnnotation(as_dtype(kind, "Array[T, ndim]"), ndim)

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the length of each axis."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Returns the distance between neighbours along each axis, in bytes."""

    @property
    def size(self) -> int:
        """Returns the number of elements."""

    @property
    def ndim(self) -> int:
        """Returns the number of axes."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any) -> Any: ...

    def __setitem__(self, index: Any, value: Any) -> None: ...

    def __iter__(self) -> Iterator[Any]: ...
