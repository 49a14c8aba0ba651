"""Atomics: ``AtomicSlice``, the same methods on shared arrays, and ``fence``.

Elements that several threads change are reached only through atomic methods. A method that changes an element returns
the old value, except for ``store``. With ordinary reads and writes, counts are lost::

    counts[i] = counts[i] + 1      # two threads read 5, both write 6: refused, an AtomicSlice has no [...]
    counts.fetch_add(i, 1)         # of two such calls one returns 5 and the other 6, and the element becomes 7

The default ``ordering`` is ``RELAXED``: the operation on the element is atomic, but the order of accesses to other
memory is undefined. ``RELEASE`` makes this thread's earlier writes visible to a thread that reads the new value with
``ACQUIRE``. The default ``scope`` is ``DEVICE``: all threads on the device. ``BLOCK`` is enough if only threads of one
block use the element, and may be faster. ``SYSTEM`` includes other devices and the host. ``ordering`` and ``scope``
must be constants. The terms are those of C++ and CUDA.
"""

from __future__ import annotations

from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, final

from . import primitives

T = TypeVar("T")
Index: TypeAlias = int | tuple[int, ...]


# Plain classes, not dataclasses: a dataclass would add a millisecond to `import oxide`.


@final
class Ordering:
    """The memory ordering of an atomic operation: one of ``RELAXED`` … ``SEQUENTIAL``."""

    __slots__ = ("name", "number")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number

    def __repr__(self) -> str:
        return f"atomic.{self.name.upper()}"


@final
class Scope:
    """The scope of an atomic operation: the threads for which it is atomic and ordered. One of ``BLOCK``, ``DEVICE``,
    ``SYSTEM``."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"atomic.{self.name.upper()}"


RELAXED = Ordering("relaxed", 0)
ACQUIRE = Ordering("acquire", 1)
RELEASE = Ordering("release", 2)
ACQUIRE_RELEASE = Ordering("acquire_release", 3)
SEQUENTIAL = Ordering("sequential", 4)

BLOCK = Scope("block")
DEVICE = Scope("device")
SYSTEM = Scope("system")


@primitives.made_in_kernels
class AtomicAccess(Generic[T]):
    """The atomic methods. ``index`` is checked as in a slice: if it is outside, nothing changes, the result is 0, and
    the launch fails with a ``BoundsError``. Elements are ``i32``, ``u32``, ``i64``, ``u64``, ``f32`` or ``f64``; the
    bitwise methods are for integers only. ``f16`` and ``bf16`` have ``fetch_add``, ``exchange``, ``compare_exchange``,
    ``load`` and ``store``.
    """

    def fetch_add(self, index: Index, value: T, ordering: Ordering = RELAXED, scope: Scope = DEVICE) -> T:
        """Adds ``value``; returns the old value."""

    def fetch_sub(self, index: Index, value: T, ordering: Ordering = RELAXED, scope: Scope = DEVICE) -> T:
        """Subtracts ``value``; returns the old value."""

    def fetch_min(self, index: Index, value: T, ordering: Ordering = RELAXED, scope: Scope = DEVICE) -> T:
        """Stores the lesser of the element and ``value``; returns the old value. If one of them is a NaN, the other is
        stored."""

    def fetch_max(self, index: Index, value: T, ordering: Ordering = RELAXED, scope: Scope = DEVICE) -> T:
        """Stores the greater of the element and ``value``; returns the old value. If one of them is a NaN, the other is
        stored."""

    def fetch_and(self, index: Index, value: T, ordering: Ordering = RELAXED, scope: Scope = DEVICE) -> T:
        """Clears the bits that are not set in ``value``; returns the old value."""

    def fetch_or(self, index: Index, value: T, ordering: Ordering = RELAXED, scope: Scope = DEVICE) -> T:
        """Sets the bits of ``value``; returns the old value."""

    def fetch_xor(self, index: Index, value: T, ordering: Ordering = RELAXED, scope: Scope = DEVICE) -> T:
        """Flips the bits of ``value``; returns the old value."""

    def exchange(self, index: Index, value: T, ordering: Ordering = RELAXED, scope: Scope = DEVICE) -> T:
        """Writes ``value``; returns the old value."""

    def compare_exchange(
        self, index: Index, expected: T, value: T, ordering: Ordering = RELAXED, scope: Scope = DEVICE
    ) -> T:
        """Writes ``value`` if the element is ``expected``. Returns the old value, which equals ``expected`` if and only
        if ``value`` was written. Floats are compared by their bits."""

    def load(self, index: Index, ordering: Ordering = RELAXED, scope: Scope = DEVICE) -> T:
        """Returns the element."""

    def store(self, index: Index, value: T, ordering: Ordering = RELAXED, scope: Scope = DEVICE) -> None:
        """Writes ``value``."""


@primitives.passed_to_kernels
@final
class AtomicSlice(AtomicAccess[T]):
    """An array in device memory whose elements all threads may change, but only through atomic methods. ``len(a)`` is
    the number of elements, an ``i64``. A launch takes a ``DeviceBox`` for it, as for a ``DisjointSlice``."""

    if not TYPE_CHECKING:

        def __class_getitem__(cls, parameters: Any) -> GenericAlias:
            return GenericAlias(cls, parameters)  # as for a Slice

    def __len__(self) -> int: ...


@primitives.function
def fence(ordering: Ordering = SEQUENTIAL, scope: Scope = DEVICE) -> None:
    """Orders the memory accesses that this thread made before the fence ahead of those that it makes after the fence,
    as seen by the threads of ``scope``."""
