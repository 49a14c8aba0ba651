"""Arc: one value held by several owners, which are counted, as in Rust.

Python counts references anyway. An ``Arc`` makes the number of *owners* a part of the program, as in the examples of
cuda-async: they upload weights once and clone the owner for each batch.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any, Generic, NoReturn, TypeVar, final

from oxide.host.core import Dropping, setup

T = TypeVar("T")

_serials = count()


@final
class Arc(Dropping, Generic[T]):
    """An owner of ``value``. ``clone()`` makes another owner. The value lives until its last owner is dropped."""

    __slots__ = ("_owners", "value")

    def __init__(self, value: T, owners: set[int] | None = None) -> None:
        self.value = value
        serial = next(_serials)
        # Adding to and discarding from a set are atomic under the GIL, so no finaliser needs a lock.
        self._owners: set[int] = set() if owners is None else owners
        self._drop = partial(self._owners.discard, serial)
        self._owners.add(serial)

    def clone(self) -> Arc[T]:
        """Returns another owner of the same value."""
        return Arc(self.value, self._owners)

    def partition(self, tile_shape: int | tuple[int, ...]) -> Arc[Any]:
        """Returns another owner, whose value is the box divided into tiles of one shape, for a ``Partition`` parameter
        of a tile kernel. Raises ``TypeError`` if the value is no box."""
        return Arc(self._method("partition", "a box")(tile_shape), self._owners)

    def unpartition(self) -> Arc[Any]:
        """Returns another owner, whose value is the box of the partition. Raises ``TypeError`` if the value is no
        partition."""
        return Arc(self._method("unpartition", "a partition")(), self._owners)

    def _method(self, name: str, kind: str) -> Any:
        found = getattr(self.value, name, None)
        if found is None:
            raise TypeError(f"{name} takes an Arc of {kind}, not one of {type(self.value).__name__}")
        return found

    @staticmethod
    def strong_count(arc: Arc[T]) -> int:
        """Returns the number of owners that the value has now."""
        return len(arc._owners)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Arc cannot be pickled or copied; clone() makes another owner")

    def __repr__(self) -> str:
        return f"Arc({self.value!r})"


setup(Arc=Arc)
