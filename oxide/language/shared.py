"""Memory of a block, ``SharedArray`` and ``DynamicSharedArray``, and memory of a thread, ``LocalArray``.

All threads of a block see the same shared array, and exchange values through it: they write, synchronize at
``thread.sync_threads()``, then read the values that other threads wrote. Without the barrier a thread may read before
another thread has written. The contents are undefined at first. A static shape is part of the kernel, so an index is
checked against a constant. The size of a ``DynamicSharedArray`` is set by the launch. The terms are CUDA's.

These are declarations: the compiler gives them their meaning inside a kernel, and a type checker reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeAlias, TypeVar, final

from . import primitives
from .atomic import AtomicAccess
from .slices import VectorReads, VectorWrites

T = TypeVar("T")
Index: TypeAlias = int | tuple[int, ...]


@primitives.made_in_kernels
class _Elements(Generic[T]):
    """The base of the arrays: checked access to elements.

    An access outside the array is a fault: it reads zero or writes nothing, and the launch fails with a
    ``BoundsError``. If threads of the kernel may wait for one another, as at a barrier, the thread continues. Otherwise
    it leaves the kernel.
    """

    def __getitem__(self, index: Index) -> T: ...

    def __setitem__(self, index: Index, value: T) -> None: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the length of each axis, an ``i64``."""

    def __len__(self) -> int:
        """Returns the length of the first axis, an ``i64``."""

    def __iter__(self) -> Iterator[T]:
        """Yields the elements of an array of one axis."""


@primitives.made_in_kernels
@final
class SharedArray(_Elements[T], AtomicAccess[T], VectorReads[T, Index], VectorWrites[T, Index]):
    """An array that the threads of a block share: ``tile = SharedArray((16, 17), f32)``, then ``tile[row, col]``.

    ``shape`` is a constant or a tuple of up to three constants; ``dtype`` is one of oxide's scalar types. All calls at
    one place in the source return the same array. ``alignment`` is a constant power of two from 16, the default, to
    1024: the first element's address is a multiple of it. All shared arrays of a kernel together take at most 227 KiB;
    for more, the compiler raises ``CompileError``. Every GPU provides 48 KiB. A launch raises ``DeviceError`` if the
    GPU provides less than the kernel needs. Elements of 32 and 64 bits also have the atomic methods:
    ``bins.fetch_add(i, 1)``.
    """

    def __init__(self, shape: int | tuple[int, ...], dtype: type[T], alignment: int = 16) -> None: ...


@primitives.made_in_kernels
@final
class DynamicSharedArray(_Elements[T], AtomicAccess[T], VectorReads[T, Index], VectorWrites[T, Index]):
    """The block's dynamic shared memory as an array of one axis, whose length is set by the launch.

    With ``LaunchConfig(…, shared_mem_bytes=n)`` the array has as many elements as fit into n bytes. ``len()`` returns
    this number. Every ``DynamicSharedArray`` of a kernel starts at the same address, like ``extern __shared__`` arrays
    in CUDA C++. No ``DynamicSharedArray`` overlaps a ``SharedArray``.
    """

    def __init__(self, dtype: type[T]) -> None: ...


@primitives.made_in_kernels
@final
class LocalArray(_Elements[T]):
    """An array that belongs to one thread: ``LocalArray(8, f32)``. It is in registers if the compiler knows every
    index. Otherwise it is in memory, where all arrays of a thread together may take up to 512 KiB. ``shape`` and
    ``dtype`` are those of ``SharedArray``."""

    def __init__(self, shape: int | tuple[int, ...], dtype: type[T]) -> None: ...
