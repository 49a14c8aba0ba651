"""Arc: one value held by several owners, counted, as in Rust.

Python counts references anyway; an ``Arc`` makes the count of *owners* part of the program, as it is in cuda-async's
examples: weights uploaded once and cloned into each batch.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any, Generic, TypeVar, final

from oxide.dropping import calls_drop

T = TypeVar("T")

_serials = count()


@final
class Arc(Generic[T]):
    """An owner of ``value``. ``clone()`` makes another owner. The value lives until its last owner is dropped."""

    __slots__ = ("_drop", "_owners", "value")

    def __init__(self, value: T, owners: set[int] | None = None) -> None:
        self.value = value
        serial = next(_serials)
        # Adding to and discarding from a set are atomic under the GIL, so no finaliser needs a lock.
        self._owners: set[int] = set() if owners is None else owners
        self._drop: Any = partial(self._owners.discard, serial)
        self._owners.add(serial)

    def clone(self) -> Arc[T]:
        """Returns another owner of the same value."""
        return Arc(self.value, self._owners)

    @staticmethod
    def strong_count(arc: Arc[T]) -> int:
        """Returns the number of owners that the value has now."""
        return len(arc._owners)

    def __del__(self) -> None:
        self._drop()

    def __repr__(self) -> str:
        return f"Arc({self.value!r})"


calls_drop(Arc)
