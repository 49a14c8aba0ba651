"""Vectors: ``load2``, ``load4``, ``store2`` and ``store4``, which move several neighbouring elements at once.

A GPU moves up to 16 bytes a thread in one instruction, and a kernel that does little else needs it to reach the
memory's bandwidth. The hardware asks that the address be a multiple of the vector's size, so that is checked like the
bounds; CUDA's ``float4`` asks the same, and leaves what happens otherwise undefined::

    x0, x1, x2, x3 = a.load4(4 * i)

A vector is a tuple of elements. Of elements so large that the vector is longer than 16 bytes, 16 is what the address
is a multiple of. These are declarations: the compiler gives them their meaning inside a kernel.
"""

from __future__ import annotations

from typing import Generic, NoReturn, TypeAlias, TypeVar, final

T = TypeVar("T")
Index: TypeAlias = int | tuple[int, ...]


class VectorReads(Generic[T]):
    """Reads of 2 and 4 neighbours. Outside the bounds, or at an address that is no multiple of the vector's size, a
    read is a fault: the launch fails, with a ``BoundsError`` or a ``KernelAssertionError``. In an array of several axes
    the neighbours are along the last."""

    def load2(self, index: Index) -> tuple[T, T]:
        """The elements ``index`` and ``index + 1``."""
        _only_in_a_kernel("load2")

    def load4(self, index: Index) -> tuple[T, T, T, T]:
        """The elements ``index`` to ``index + 3``."""
        _only_in_a_kernel("load4")


class VectorWrites(Generic[T]):
    """Writes of 2 and 4 neighbours, checked as the reads are: where one is a fault, nothing is written."""

    def store2(self, index: Index, a: T, b: T) -> None:
        """Writes the elements ``index`` and ``index + 1``."""
        _only_in_a_kernel("store2")

    def store4(self, index: Index, a: T, b: T, c: T, d: T) -> None:
        """Writes the elements ``index`` to ``index + 3``."""
        _only_in_a_kernel("store4")


class Alignment:
    """What a kernel asks before it goes by vectors."""

    def is_aligned(self, count: int) -> bool:
        """Whether vectors of ``count`` elements, 2 or 4, may begin at every index that is a multiple of ``count``: the
        first element's address is a multiple of the vector's size. So for every box, except pieces of one that begin
        in the middle of a vector."""
        _only_in_a_kernel("is_aligned")


@final
class Streaming(VectorReads[T], VectorWrites[T]):
    """What ``a.unchecked.streaming`` and ``c.unchecked_mut.streaming`` are: vectors that nobody needs again soon.

    On a GPU they are the first to leave the caches, CUDA's ``__ldcs`` and ``__stcs``: for a kernel that reads each
    element once and writes each once, and so leaves room for what others keep there. It asks for both: the one without
    the other may be slower. On the CPU device they are ordinary vectors. Of a ``Slice``, it has the reads alone.
    """

    def __init__(self) -> None:
        _only_in_a_kernel("Streaming")


@final
class UncheckedMutSlice(VectorReads[T], VectorWrites[T]):
    """What ``c.unchecked_mut`` of a ``DisjointSlice`` is: the output without any of its rules.

    Nothing checks the bounds, nor that no two threads write the same element: the kernel's author shows both. Only the
    address of a vector is checked, as a misaligned one ends a GPU's context. For what no ``ThreadIndex`` can say, as
    the 64 elements of a thread in a tiled matrix product. It is cuda-oxide's ``get_unchecked_mut``.
    """

    def __init__(self) -> None:
        _only_in_a_kernel("UncheckedMutSlice")

    def __getitem__(self, index: int) -> T:
        _only_in_a_kernel("UncheckedMutSlice")

    def __setitem__(self, index: int, value: T) -> None:
        _only_in_a_kernel("UncheckedMutSlice")

    @property
    def streaming(self) -> Streaming[T]:
        """Its vectors, of elements that nobody needs again soon."""
        _only_in_a_kernel("UncheckedMutSlice")


def _only_in_a_kernel(name: str) -> NoReturn:
    raise TypeError(f"{name} has a meaning only inside a @kernel, where the compiler gives it one")
