"""The sanitizer's interface between the compiler and the CPU device: kinds of checks, accesses, reports.

``OXIDE_SANITIZE=memory,race`` sanitizes every kernel, ``@kernel(sanitize=…)`` one. The compiler puts a call in front of
each access (``compiler/sanitizer/instrument.py``) and adds a ``Sanitized`` to the machine code. The driver keeps the
shadow memory and turns the reports into errors (``cpu/sanitizer.py``). ``records.py`` has the state of a launch.
"""

from __future__ import annotations

import itertools
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from oxide.driver.records import SANITIZED_STATE
from oxide.errors import DeviceError, SanitizerError

KINDS = ("memory", "race")

VARIABLE = "OXIDE_SANITIZE"

STATE_BYTES = -(-SANITIZED_STATE.size // 64) * 64
"""The bytes from one block's state to the next block's, in a cluster."""


@dataclass(frozen=True, slots=True)
class Access:
    """A place in the source that accesses memory. ``what`` is the parameter's or array's name in the source."""

    what: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class PointerWord:
    """A parameter's memory: the offsets of its address and length in the packed parameters, and its element size.

    At ``length_at`` are ``lengths`` words, whose product is the number of elements. ``length_at`` is None for a record,
    which is one element. For a strided view the packed parameters also hold the sizes of its ``axes`` axes at
    ``axes_at``, followed by their strides. All accesses are to whole multiples of ``granule`` bytes.
    """

    name: str
    address_at: int
    length_at: int | None
    itemsize: int
    axes: int = 0
    axes_at: int = 0
    granule: int = 1
    lengths: int = 1


@dataclass(frozen=True, slots=True)
class Sanitized:
    """The driver's description of a sanitized kernel.

    ``shared_bytes`` is the static shared memory. One shadow cell covers ``1 << shared_shift`` bytes of shared memory.
    Each of the ``blocks`` of a cluster has a state of its own, ``STATE_BYTES`` after the one before.
    """

    kernel: str
    kernel_id: int
    kinds: frozenset[str]
    pointers: tuple[PointerWord, ...]
    accesses: tuple[Access, ...]
    shared_bytes: int
    shared_shift: int
    blocks: int = 1


def parse_kinds(given: str | Iterable[str], where: str) -> frozenset[str]:
    """Returns the named kinds, given as names or as a string separated by commas.

    ``where`` says in errors where the names come from. Raises ``ValueError`` for unknown names.
    """
    names = given.split(",") if isinstance(given, str) else list(given)
    kinds = frozenset(name.strip() for name in names if name.strip())
    wrong = sorted(kinds.difference(KINDS))
    if wrong:
        raise ValueError(f"{where}: the sanitizer looks for {' and '.join(KINDS)}, and {wrong[0]!r} is neither")
    return kinds


def requested() -> frozenset[str]:
    """Returns the kinds that ``OXIDE_SANITIZE`` names. Raises ``DeviceError`` for unknown names."""
    text = os.environ.get(VARIABLE, "")
    try:
        return parse_kinds(text, f"{VARIABLE}={text!r}") if text else frozenset()
    except ValueError as error:
        raise DeviceError(str(error)) from None


def kinds_of(given: str | Iterable[str], kernel: str) -> frozenset[str]:
    """Returns the kinds that a kernel's decorator names, and turns memory tracking on if there are any.

    Raises ``TypeError`` if ``given`` is neither a string nor an iterable of strings, ``ValueError`` for unknown names.
    """
    if not given:
        return frozenset()
    where = f"kernel {kernel}, sanitize={given!r}"
    names: str | tuple[str, ...] | None = None
    if isinstance(given, str):
        names = given
    elif isinstance(given, Iterable):
        names = tuple(given)
    if names is None or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{where}: what to look for is named, as in sanitize={KINDS!r} or sanitize={KINDS[0]!r}")
    kinds = parse_kinds(names, where)
    Tracking.wanted = Tracking.wanted or bool(kinds)
    return kinds


def warn_of_gpu(kernel: str, kinds: frozenset[str]) -> None:
    """Warns that a GPU runs the kernel unsanitized."""
    tools = " and ".join(
        f"`compute-sanitizer --tool {tool}`"
        for kind, tool in (("memory", "memcheck"), ("race", "racecheck"))
        if kind in kinds
    )
    warnings.warn(
        f"kernel {kernel} is to be sanitized, which the CPU device does and a GPU does not: run the program under "
        f"{tools}, or set OXIDE_DEVICE=cpu",
        RuntimeWarning,
        stacklevel=2,
    )


class Tracking:
    """A flag for the process: the CPU device tracks which bytes of memory were written. Set once any kernel is to be
    sanitized. Memory allocated before is not tracked."""

    wanted = False


SANITIZED = 3
"""The value of a fault record's ``claimed`` if the sanitizer has reports. The record's ``index`` is then the argument
for ``published``."""

WRITE, ATOMIC, BLOCK_SCOPE, ALSO_READS = 1, 2, 4, 8
ASYNCHRONOUS = WRITE | BLOCK_SCOPE
ASYNCHRONOUS_READ = BLOCK_SCOPE
"""Flags of an access: the low bits of ``who``. The scope's flag on a read or write that is no atomic means an
asynchronous copy that its thread has not waited for. The access's index in ``Sanitized.accesses`` starts at bit 4, the
thread at bit 20 and the block at bit 32."""

ACCUMULATOR, LEFT_OPERAND = "an Accumulator", "a FragmentA"
"""The names of the fragments that an asynchronous product uses until its wait."""

REPORT_KINDS = ("out-of-bounds", "misaligned", "uninitialized", "race", "missing-lanes", "unfinished-store")
OUT_OF_BOUNDS, MISALIGNED, UNINITIALIZED, RACE, MISSING_LANES, UNFINISHED_STORE = range(6)


# Reports on their way from a launch to its waiter. The oldest are dropped, as a fault may have no waiter.

_KEPT = 256
_numbers = itertools.count(1)
_lock = threading.Lock()
_waiting: OrderedDict[int, tuple[SanitizerError, ...]] = OrderedDict()
_observers: list[Callable[[tuple[SanitizerError, ...]], None]] = []


def observe(observer: Callable[[tuple[SanitizerError, ...]], None]) -> None:
    """Calls ``observer`` with the errors of each launch that has any, on the worker that ran it. ``oxide sanitize``
    reports them also if the program drops or handles them."""
    _observers.append(observer)


def publish(errors: tuple[SanitizerError, ...]) -> int:
    """Stores a launch's errors and returns the number under which ``published`` finds them."""
    for observer in _observers:
        observer(errors)
    with _lock:
        number = next(_numbers)
        _waiting[number] = errors
        while len(_waiting) > _KEPT:
            _waiting.popitem(last=False)
    return number


def published(number: int) -> SanitizerError | None:
    """Returns the first of the errors stored under ``number``, with the others as notes; None if they were dropped."""
    with _lock:
        errors = _waiting.get(number)
    if not errors:
        return None
    first, *others = errors
    if others and not getattr(first, "__notes__", None):
        for other in others:
            first.add_note(f"also: {other}")
    return first
