"""The sanitizer's interface between the compiler and the CPU device: kinds of checks, accesses, reports.

``OXIDE_SANITIZE=memory,race`` sanitizes every kernel, ``@kernel(sanitize=…)`` a single kernel. The compiler puts a call
in front of each access (``compiler/sanitizer/instrument.py``) and adds a ``Sanitized`` to the machine code. The driver
keeps the shadow memory and turns the reports into errors (``cpu/sanitizer.py``). ``records.py`` declares the state of a
launch.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from oxide.driver.records import SANITIZED_STATE
from oxide.errors import DeviceError, SanitizerError
from oxide.host.locks import DRIVER_LOCK

KINDS = ("memory", "race")

VARIABLE = "OXIDE_SANITIZE"

STATE_BYTES = -(-SANITIZED_STATE.size // 64) * 64
"""The distance in bytes between the states of neighbouring blocks of a cluster."""


@dataclass(frozen=True, slots=True)
class Access:
    """A place in the source that accesses memory. ``what`` is the parameter's or array's name in the source."""

    what: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class PointerWord:
    """A parameter's memory: the offsets of its address and length in the packed parameters, and its element size.

    The packed parameters hold ``lengths`` words from ``length_at`` on, whose product is the number of elements.
    ``length_at`` is None for a record, which is one element. For a strided view the packed parameters also hold the
    sizes of its ``axes`` axes at ``axes_at``, followed by the strides of these axes. ``granule`` is the greatest power
    of two, up to 8, that divides the element size and the size and alignment of every access to the memory.
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

    ``shared_bytes`` is the size of the static shared memory. One shadow cell covers ``1 << shared_shift`` bytes of
    shared memory. A cluster has ``blocks`` blocks, each with a state of its own. The states of neighbouring blocks are
    ``STATE_BYTES`` apart. A launch has to write all elements of the parameters in ``whole``.
    """

    kernel: str
    kernel_id: int
    kinds: frozenset[str]
    pointers: tuple[PointerWord, ...]
    accesses: tuple[Access, ...]
    shared_bytes: int
    shared_shift: int
    blocks: int = 1
    whole: frozenset[str] = frozenset()


def parse_kinds(given: str | Iterable[str], where: str) -> frozenset[str]:
    """Returns the kinds of checks that ``given`` names: an iterable of names, or a string of names separated by commas.

    ``where`` is the source of the names, for error messages. Raises ``ValueError`` for unknown names.
    """
    names = given.split(",") if isinstance(given, str) else list(given)
    kinds = frozenset(name.strip() for name in names if name.strip())
    wrong = sorted(kinds.difference(KINDS))
    if wrong:
        raise ValueError(f"{where}: the sanitizer looks for {' and '.join(KINDS)}, and {wrong[0]!r} is neither")
    return kinds


def requested() -> frozenset[str]:
    """Returns the kinds of checks that ``OXIDE_SANITIZE`` names. Raises ``DeviceError`` for unknown names."""
    text = os.environ.get(VARIABLE, "")
    try:
        return parse_kinds(text, f"{VARIABLE}={text!r}") if text else frozenset()
    except ValueError as error:
        raise DeviceError(str(error)) from None


def kinds_of(given: str | Iterable[str], kernel: str) -> frozenset[str]:
    """Returns the kinds of checks that a kernel's decorator names. Turns memory tracking on if there are any.

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
    """Warns that a GPU runs a kernel without the checks that were requested for it."""
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
    """A flag of the process. If ``wanted`` is True, the CPU device tracks which bytes of memory were written. The flag
    is set as soon as any kernel is to be sanitized. Memory that was allocated earlier is not tracked."""

    wanted = False


SANITIZED = 3
"""The value of a fault record's ``claimed`` if the sanitizer has reports. The record's ``index`` is then the argument
for ``published``."""

WRITE, ATOMIC, BLOCK_SCOPE, ALSO_READS = 1, 2, 4, 8
ASYNCHRONOUS = WRITE | BLOCK_SCOPE
ASYNCHRONOUS_READ = BLOCK_SCOPE
"""Flags of an access, in the low bits of its number ``who``. ``BLOCK_SCOPE`` on a read or write that is not atomic
marks an asynchronous copy that its thread has not waited for. The higher bits of ``who`` hold the access's index in
``Sanitized.accesses`` from bit 4 on, the thread from bit 20 on and the block from bit 32 on."""

ACCUMULATOR, LEFT_OPERAND = "an Accumulator", "a FragmentA"
"""The names of the fragments that an asynchronous product uses until its wait."""

UNWRITTEN = "unwritten"
"""The kind of report that the driver makes, after a launch. The kernel's code makes all others."""

REPORT_KINDS = ("out-of-bounds", "misaligned", "uninitialized", "race", "missing-lanes", "unfinished-store")
OUT_OF_BOUNDS, MISALIGNED, UNINITIALIZED, RACE, MISSING_LANES, UNFINISHED_STORE = range(6)


# Reports on their way from a launch to its waiter. A fault may have no waiter, so only the last _KEPT are kept.

_KEPT = 256
_numbers = itertools.count(1)
_waiting: OrderedDict[int, tuple[SanitizerError, ...]] = OrderedDict()
_observers: list[Callable[[tuple[SanitizerError, ...]], None]] = []


def observe(observer: Callable[[tuple[SanitizerError, ...]], None]) -> None:
    """Registers ``observer``, to be called with the errors of each launch that has errors, on the worker that ran the
    launch. So ``oxide sanitize`` reports errors even if the program drops or handles them."""
    _observers.append(observer)


def publish(errors: tuple[SanitizerError, ...]) -> int:
    """Stores a launch's errors and returns the number under which ``published`` finds them."""
    for observer in _observers:
        observer(errors)
    with DRIVER_LOCK:
        number = next(_numbers)
        _waiting[number] = errors
        while len(_waiting) > _KEPT:
            _waiting.popitem(last=False)
    return number


def published(number: int) -> SanitizerError | None:
    """Returns the first error stored under ``number``, with the other errors as notes; None if they were dropped."""
    with DRIVER_LOCK:
        errors = _waiting.get(number)
    if not errors:
        return None
    first, *others = errors
    if others and not getattr(first, "__notes__", None):
        for other in others:
            first.add_note(f"also: {other}")
    return first
