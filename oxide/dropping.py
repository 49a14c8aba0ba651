"""Finalisers that run no Python: what happens as an object is dropped is one call of a function in C.

Python looks for signals when it enters a function and behind each call. So Ctrl-C may arrive in a ``__del__``, and in
the callback of a weak reference, even in an empty one: there ``KeyboardInterrupt`` is printed ("Exception ignored in")
and lost, and the rest of the finaliser is not run. A function in C is not interrupted. The interrupt is raised behind
the statement that dropped the object, where the program can catch it.

So a finaliser of this package is of one of three kinds:

- ``calls_drop``: the object's attribute ``_drop`` is a function in C with its arguments (``functools.partial``), which
  puts a handle into a queue or takes an entry out of a table. ``nothing`` is for an object that has nothing to do.
- ``joins_when_dropped``: the object itself goes into a queue, for a finaliser that needs more than one step. Ordinary
  code does these steps when it next has time. Python finalises an object once, so that the object goes for good then.
- ``WeakTable``: a dictionary whose entries go with their keys, without the callback in Python that ``weakref`` has.

What has to be Python, as a warning, runs ``Soon`` after.

A class has a ``__del__`` of Python's as well, for the compiled form: compiled code looks for no signals. In the
interpreted form the two functions replace it. What they put in its place follows from the language: a special method
is looked up on the class and bound by its ``__get__``. ``property(attrgetter("_drop"))`` binds to the attribute's
value, and a wrapper of ``lru_cache`` binds as a function does.

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
"""A function in C that does nothing."""


def calls_drop(*classes: type) -> None:
    """Has an object of the classes call its ``_drop()`` when it is dropped; one without the attribute does nothing."""
    for kind in classes:
        if is_interpreted(kind):
            setattr(kind, "__del__", property(attrgetter("_drop")))  # noqa: B010 (no method to mypy)


def joins_when_dropped(kind: type, queue: deque[Any]) -> None:
    """Has an object of the class join the queue when it is dropped."""
    if is_interpreted(kind):
        setattr(kind, "__del__", method_in_c(queue.append))  # noqa: B010


def is_interpreted(kind: type) -> bool:
    """Whether the class has a finaliser of Python's."""
    return isinstance(vars(kind).get("__del__"), FunctionType)


def method_in_c(function: Callable[[Any], object]) -> Any:
    """A method that calls ``function(self)``: ``lru_cache`` keeps nothing here, and binds where a function in C does
    not."""
    return lru_cache(maxsize=0)(function)


def finalise_subclass(subclass: type, finalise: Callable[[Any], None]) -> None:
    """Gives a user's subclass of a compiled class a finaliser that calls the compiled function ``finalise``, in place
    of the compiled one that it inherits and that does the same.

    Python keeps the exception that is being raised around a finaliser of a class of Python's, and mypyc around that of
    a compiled class; in between, where a Python class inherits a compiled finaliser, nobody does.
    """
    if isinstance(getattr(subclass, "__del__", None), (FunctionType, property, _METHOD_IN_C)):
        return
    if any(isinstance(member, FunctionType) for member in vars(subclass).values()):  # a class of Python's
        setattr(subclass, "__del__", method_in_c(finalise))  # noqa: B010


_METHOD_IN_C: Final = type(method_in_c(bool))


def in_c(steps: Callable[[Iterator[Any]], Iterator[object]]) -> Callable[[Any], object]:
    """A function of one argument that is in C if ``steps`` are: iterators over the arguments, one value for each.

    The argument goes into a queue that holds one thing, which pushes out a marker, whose finaliser takes the step.
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
    atexit.register(setattr, Marker, "_drop", nothing)  # from the interpreter's end on the function does nothing
    arguments.append(Marker())
    return arguments.append


class Soon:
    """Has ``function`` called in the main thread before long, between two bytecodes, as a signal's handler is called:
    an interrupt there is raised in the program. Each of ``asking`` is a request, made by C alone."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self.asking: Iterator[object] = starmap(_add_pending_call, repeat((_is_true, self)))

    def __bool__(self) -> bool:
        self._function()
        return False  # no error


_add_pending_call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.py_object)(
    ("Py_AddPendingCall", ctypes.pythonapi)
)
_is_true = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p).value  # which calls ``__bool__``


@final
class WeakTable(Generic[K, V]):
    """Values by the identity of objects that are hashed by it, for as long as the object is there."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[weakref.ref[K], V] = {}
        """By weak references: every one to an object that is there finds its entry."""

    def get(self, key: K) -> V | None:
        """The value, None where there is none."""
        return self.entries.get(weakref.ref(key))

    def objects(self) -> list[K]:
        """The objects that are there."""
        return [key for reference in list(self.entries) if (key := reference()) is not None]

    def set(self, key: K, value: V) -> V:
        """Sets the value, and returns it."""
        # An entry keeps the reference that it was made with, whose callback takes it out.
        self.entries[weakref.ref(key, self.entries.pop)] = value
        return value

    def setdefault(self, key: K, value: V) -> V:
        """Returns the value that there is; where there is none, sets this one."""
        found = self.get(key)
        return self.set(key, value) if found is None else found
