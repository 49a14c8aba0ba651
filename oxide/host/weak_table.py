"""A dictionary that removes an entry when its key is freed. Unlike the weak dictionaries of ``weakref``, it needs no
callback written in Python, where Ctrl-C would be lost."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar, final

K = TypeVar("K")
V = TypeVar("V")


@final
class WeakTable(Generic[K, V]):
    """A table with weak references to objects as keys. The objects must hash by identity. An entry lives as long as its
    object."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[weakref.ref[K], V] = {}
        """Keyed by weak references: every reference to a live object finds its entry."""

    def get(self, key: K) -> V | None:
        """Returns the value, or None if there is none."""
        return self.entries.get(weakref.ref(key))

    def objects(self) -> list[K]:
        """Returns the live keys."""
        return [key for reference in list(self.entries) if (key := reference()) is not None]

    def set(self, key: K, value: V) -> V:
        """Sets the value and returns it."""
        # An entry keeps the weak reference with which it was first set. The reference's callback removes the entry.
        self.entries[weakref.ref(key, self.entries.pop)] = value
        return value

    def setdefault(self, key: K, value: V) -> V:
        """Returns the existing value; if there is none, sets ``value`` and returns it."""
        found = self.get(key)
        return self.set(key, value) if found is None else found
