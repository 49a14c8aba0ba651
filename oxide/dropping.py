"""Finalisers that run no Python: dropping an object makes one call of a C function.

Python checks for signals when it enters a function and after each call. So Ctrl-C may arrive in a ``__del__`` or in the
callback of a weak reference, even if that function is empty. A ``KeyboardInterrupt`` raised there is printed
("Exception ignored in") and lost, and the rest of the finaliser is not run. A C function is not interrupted: the
interrupt is raised after the statement that dropped the object, where the program can catch it.

So a finaliser of this package is of one of three kinds:

- ``calls_drop``: the object's attribute ``_drop`` is a C function with its arguments (``functools.partial``), which
  puts a handle into a queue or takes an entry out of a table. An object with nothing to finalise has ``nothing`` there.
- ``joins_when_dropped``: the object itself is appended to a queue, for a finaliser that needs more than one step.
  Ordinary code does these steps later. Python finalises an object only once, so the object is then freed for good.
- ``WeakTable``: a dictionary that removes an entry when its key is freed. Unlike the weak dictionaries of ``weakref``,
  it needs no callback written in Python.

Work that must be Python, such as a warning, runs later through ``Soon``.

Each such class also has a ``__del__`` in Python, for the compiled form: compiled code does not check for signals. In
the interpreted form ``calls_drop`` and ``joins_when_dropped`` replace it. The replacement relies on the language: a
special method is looked up on the class, and what is found there is bound by its own ``__get__``.
``property(attrgetter("_drop"))`` binds to the attribute's value, and a wrapper of ``lru_cache`` binds as a function
does.

This file itself is never compiled.
"""

from __future__ import annotations

import atexit
import ctypes
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import repeat, starmap
from operator import attrgetter
from types import FunctionType
from typing import Any, Final, Generic, TypeVar, final

K = TypeVar("K")
V = TypeVar("V")

nothing: Final[Callable[[], object]] = bool
"""A C function that does nothing."""


def calls_drop(*classes: type) -> None:
    """Makes objects of the classes call their ``_drop()`` when they are dropped. An object without a ``_drop`` is
    dropped silently."""
    for kind in classes:
        if is_interpreted(kind):
            setattr(kind, "__del__", property(attrgetter("_drop")))  # noqa: B010 (no method to mypy)


def joins_when_dropped(kind: type, queue: deque[Any]) -> None:
    """Makes objects of the class join the queue when dropped."""
    if is_interpreted(kind):
        setattr(kind, "__del__", method_in_c(queue.append))  # noqa: B010


def is_interpreted(kind: type) -> bool:
    """Returns whether the class has a finaliser in Python."""
    return isinstance(vars(kind).get("__del__"), FunctionType)


def method_in_c(function: Callable[[Any], object]) -> Any:
    """Returns a method that calls ``function(self)``: an ``lru_cache`` of size 0, which stores nothing. Unlike a bare C
    function, it is bound to ``self`` when it is looked up on an object."""
    return lru_cache(maxsize=0)(function)


def finalise_subclass(subclass: type, finalise: Callable[[Any], None]) -> None:
    """Gives a user's subclass of a compiled class a finaliser that calls the compiled function ``finalise``. The new
    finaliser replaces the inherited compiled one, which makes the same call.

    Something must preserve the current exception while a finaliser runs. For a Python class Python does so, and for a
    compiled class mypyc. If a Python class inherits a compiled finaliser, neither of them does.
    """
    if isinstance(getattr(subclass, "__del__", None), (FunctionType, property, _METHOD_IN_C)):
        return
    if any(isinstance(member, FunctionType) for member in vars(subclass).values()):  # a Python class
        setattr(subclass, "__del__", method_in_c(finalise))  # noqa: B010


_METHOD_IN_C: Final = type(method_in_c(bool))


def in_c(steps: Callable[[Iterator[Any]], Iterator[object]]) -> Callable[[Any], object]:
    """Returns a function of one argument that passes its argument through ``steps``. It runs in C if the iterators of
    ``steps`` do. ``steps`` is called once: it takes an iterator over the arguments of all calls, and returns an
    iterator with one value for each argument.

    A call appends the argument to a queue of length one, which drops the queue's marker. The marker's finaliser passes
    the argument through ``steps`` and appends the next marker.
    """
    arguments: deque[Any] = deque(maxlen=1)

    class Marker:
        __slots__ = ()

        def __del__(self) -> None: ...

    forget = deque[object](maxlen=0).append
    taken = map(forget, steps(starmap(arguments.pop, repeat(()))))
    step = partial(next, zip(taken, map(arguments.append, starmap(Marker, repeat(()))), strict=False))
    setattr(Marker, "_drop", staticmethod(step))  # noqa: B010
    calls_drop(Marker)
    atexit.register(setattr, Marker, "_drop", nothing)  # at the interpreter's end the function becomes a no-op
    arguments.append(Marker())
    return arguments.append


class Soon:
    """A function that is called soon in the main thread, between two bytecodes, as Python calls a signal handler. So an
    interrupt during the function reaches the program. ``next(asking)`` requests the call, and itself runs no Python."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self.asking: Iterator[object] = starmap(_add_pending_call, repeat((_is_true, self)))

    def __bool__(self) -> bool:
        self._function()
        return False  # no error


_add_pending_call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.py_object)(
    ("Py_AddPendingCall", ctypes.pythonapi)
)
_is_true = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p).value  # it calls ``__bool__``


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
