"""Vectors: ``load2``, ``load4``, ``store2`` and ``store4``, which load or store several neighbouring elements at once.

On a GPU, one instruction loads or stores up to 16 bytes a thread, and a memory-bound kernel needs such instructions to
reach the memory's bandwidth. The hardware requires an address that is a multiple of the vector's size, so the address
is checked as well as the bounds. CUDA's ``float4`` has the same requirement, but there a violation is undefined
behaviour::

    x0, x1, x2, x3 = a.load4(4 * i)

A vector is a tuple of elements. If its elements take more than 16 bytes, the address must be a multiple of 16. These
are declarations: the compiler gives them their meaning inside a kernel.
"""

from __future__ import annotations

from typing import Generic, TypeVar, final

from . import primitives

T = TypeVar("T")
Index = TypeVar("Index")


@primitives.made_in_kernels
class VectorReads(Generic[T, Index]):
    """Reads of 2 or 4 neighbouring elements. A read outside the bounds is a fault: the launch fails with a
    ``BoundsError``. A read at an address that is not a multiple of the vector's size is a fault with a
    ``KernelAssertionError``. With several axes the index is a tuple, and the neighbours are along the last axis: a
    vector lies within one row."""

    def load2(self, index: Index) -> tuple[T, T]:
        """Reads the elements ``index`` and ``index + 1``."""

    def load4(self, index: Index) -> tuple[T, T, T, T]:
        """Reads the elements ``index`` to ``index + 3``."""


@primitives.made_in_kernels
class VectorWrites(Generic[T, Index]):
    """Writes of 2 or 4 neighbouring elements, checked as the reads are. A write that is a fault writes nothing."""

    def store2(self, index: Index, a: T, b: T) -> None:
        """Writes the elements ``index`` and ``index + 1``."""

    def store4(self, index: Index, a: T, b: T, c: T, d: T) -> None:
        """Writes the elements ``index`` to ``index + 3``."""


@primitives.made_in_kernels
class Alignment:
    """A query that a kernel makes before it uses vectors."""

    def is_aligned(self, count: int) -> bool:
        """Returns whether vectors of ``count`` elements, 2 or 4, may begin at every index that is a multiple of
        ``count``: the first element's address must be a multiple of the vector's size. This is true for every box,
        except for views that begin in the middle of a vector. With several axes, the index is that of the last axis,
        and every row must begin at a multiple of the vector's size: returns False unless the last axis's length is a
        multiple of ``count``."""


@final
class Streaming(VectorReads[T, Index], VectorWrites[T, Index]):
    """The type of ``a.unchecked.streaming`` and ``c.unchecked_mut.streaming``: reads and writes of vectors that are not
    needed again soon.

    On a GPU such vectors are the first to be evicted from the caches, as with CUDA's ``__ldcs`` and ``__stcs``. This
    leaves room for other data in the caches. Use ``streaming`` in a kernel that reads and writes each element only
    once, for both the reads and the writes: for only one of them it may be slower. On the CPU device these are ordinary
    reads and writes. A ``Slice`` has only the reads.
    """


@primitives.made_in_kernels
class UncheckedReads(VectorReads[T, Index]):
    """The type of ``a.unchecked``: a view that reads without bounds checks. An index outside the slice reads other
    memory, or destroys the whole device context. Only the alignment of vectors is checked."""

    def __getitem__(self, index: Index) -> T: ...

    @property
    def streaming(self) -> Streaming[T, Index]:
        """Returns a view whose vectors are for elements that are not needed again soon: see ``Streaming``."""


@primitives.made_in_kernels
@final
class UncheckedWrites(UncheckedReads[T, Index], VectorWrites[T, Index]):
    """The type of ``c.unchecked_mut``: a view of an output without any of the output's rules, with which any thread
    reads and writes any element.

    Nothing checks the bounds, or that no two threads write the same element: the kernel's author must prove both. Only
    a vector's address is checked, because a misaligned vector destroys the GPU's context. This is for access patterns
    that no ``ThreadIndex`` can express, such as the 64 elements of a thread in a tiled matrix product. It is
    cuda-oxide's ``get_unchecked_mut``.
    """

    def __setitem__(self, index: Index, value: T) -> None: ...
