"""Vectors: ``load2``, ``load4``, ``store2`` and ``store4``, which load or store several neighbouring elements at once.

On a GPU, one instruction loads or stores up to 16 bytes a thread, and a memory-bound kernel needs such instructions to
reach the memory's bandwidth. The hardware requires an address that is a multiple of the vector's size, so the address
is checked like the bounds. CUDA's ``float4`` has the same requirement, and leaves a violation undefined::

    x0, x1, x2, x3 = a.load4(4 * i)

A vector is a tuple of elements. If its elements take more than 16 bytes, the address must be a multiple of 16. These
are declarations: the compiler gives them their meaning inside a kernel.
"""

from __future__ import annotations

from typing import Generic, NoReturn, TypeVar, final

T = TypeVar("T")
Index = TypeVar("Index")


class VectorReads(Generic[T, Index]):
    """Reads of 2 and 4 neighbours. A read outside the bounds, or at an address that is not a multiple of the vector's
    size, is a fault: the launch fails, with a ``BoundsError`` or a ``KernelAssertionError``. With several axes the
    index is a tuple, and the neighbours are along the last axis: a vector lies within one row."""

    def load2(self, index: Index) -> tuple[T, T]:
        """Reads the elements ``index`` and ``index + 1``."""
        _only_in_a_kernel("load2")

    def load4(self, index: Index) -> tuple[T, T, T, T]:
        """Reads the elements ``index`` to ``index + 3``."""
        _only_in_a_kernel("load4")


class VectorWrites(Generic[T, Index]):
    """Writes of 2 and 4 neighbours, checked as the reads are; a faulting write writes nothing."""

    def store2(self, index: Index, a: T, b: T) -> None:
        """Writes the elements ``index`` and ``index + 1``."""
        _only_in_a_kernel("store2")

    def store4(self, index: Index, a: T, b: T, c: T, d: T) -> None:
        """Writes the elements ``index`` to ``index + 3``."""
        _only_in_a_kernel("store4")


class Alignment:
    """A query that a kernel makes before it uses vectors."""

    def is_aligned(self, count: int) -> bool:
        """Returns whether vectors of ``count`` elements, 2 or 4, may begin at every index that is a multiple of
        ``count``: the first element's address is a multiple of the vector's size. True for every box, except for views
        that begin in the middle of a vector. With several axes, this is about indices of the last axis, and False
        unless its length is a multiple of ``count``: every row must begin at a multiple of the vector's size."""
        _only_in_a_kernel("is_aligned")


@final
class Streaming(VectorReads[T, Index], VectorWrites[T, Index]):
    """The type of ``a.unchecked.streaming`` and ``c.unchecked_mut.streaming``: vectors that are not needed again soon.

    On a GPU they are the first to leave the caches, CUDA's ``__ldcs`` and ``__stcs``. This is for a kernel that reads
    each element once and writes each once: it leaves room for other data in the caches. Use it for reads and writes
    together: one without the other may be slower. On the CPU device they are ordinary vectors. A ``Slice`` has the
    reads only.
    """

    def __init__(self) -> None:
        _only_in_a_kernel("Streaming")


@final
class UncheckedMutSlice(VectorReads[T, int], VectorWrites[T, int]):
    """The type of ``c.unchecked_mut`` of a ``DisjointSlice``: the output without any of its rules.

    Nothing checks the bounds, nor that no two threads write the same element: the kernel's author must prove both. Only
    a vector's address is checked, as a misaligned one ends a GPU's context. This is for access patterns that no
    ``ThreadIndex`` can express, such as the 64 elements of a thread in a tiled matrix product. It is cuda-oxide's
    ``get_unchecked_mut``.
    """

    def __init__(self) -> None:
        _only_in_a_kernel("UncheckedMutSlice")

    def __getitem__(self, index: int) -> T:
        _only_in_a_kernel("UncheckedMutSlice")

    def __setitem__(self, index: int, value: T) -> None:
        _only_in_a_kernel("UncheckedMutSlice")

    @property
    def streaming(self) -> Streaming[T, int]:
        """Returns the output's vectors, for elements that are not needed again soon."""
        _only_in_a_kernel("UncheckedMutSlice")


def _only_in_a_kernel(name: str) -> NoReturn:
    raise TypeError(f"{name} has a meaning only inside a @kernel, where the compiler gives it one")
