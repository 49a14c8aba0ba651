"""What the compiler and the CPU device agree on about sanitized kernels: what is looked for, and what a kernel touches.

``OXIDE_SANITIZE=memory,race`` asks for it in every kernel, ``@kernel(sanitize=…)`` in one. The compiler puts a call in
front of each access (``compiler/sanitizer/instrument.py``) and hands over a ``Sanitized`` beside the machine code; the
driver keeps the shadow memory and makes errors of the reports (``cpu/sanitizer.py``). Both lay out the state as it is
here.
"""

from __future__ import annotations

import itertools
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from oxide.errors import DeviceError, SanitizerError

KINDS = ("memory", "race")

VARIABLE = "OXIDE_SANITIZE"


@dataclass(frozen=True, slots=True)
class Access:
    """A place in the source that touches memory: ``what`` is the parameter or the array, as the author knows it."""

    what: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class PointerWord:
    """A parameter's memory: where its address and its length are in the packed parameters, and an element's bytes.
    A record is one element, and nothing says so there. Of a strided view, the sizes of its ``axes`` are there too, and
    the strides behind them. All accesses are to whole multiples of ``granule`` bytes."""

    name: str
    address_at: int
    length_at: int | None
    itemsize: int
    axes: int = 0
    axes_at: int = 0
    granule: int = 1


@dataclass(frozen=True, slots=True)
class Sanitized:
    """What the driver needs to know to run a sanitized kernel. ``shared_bytes`` is the static part, and one cell of
    shadow is ``1 << shared_shift`` bytes of shared memory."""

    kernel: str
    kernel_id: int
    kinds: frozenset[str]
    pointers: tuple[PointerWord, ...]
    accesses: tuple[Access, ...]
    shared_bytes: int
    shared_shift: int


def parse_kinds(given: str | Iterable[str], where: str) -> frozenset[str]:
    """The kinds named, in a tuple or separated by commas; ``where`` is who named them. Raises ``ValueError``."""
    names = given.split(",") if isinstance(given, str) else list(given)
    kinds = frozenset(name.strip() for name in names if name.strip())
    wrong = sorted(kinds.difference(KINDS))
    if wrong:
        raise ValueError(f"{where}: the sanitizer looks for {' and '.join(KINDS)}, and {wrong[0]!r} is neither")
    return kinds


def requested() -> frozenset[str]:
    """The kinds that ``OXIDE_SANITIZE`` asks for in every kernel. Raises ``DeviceError`` for others."""
    text = os.environ.get(VARIABLE, "")
    try:
        return parse_kinds(text, f"{VARIABLE}={text!r}") if text else frozenset()
    except ValueError as error:
        raise DeviceError(str(error)) from None


def kinds_of(given: str | Iterable[str], kernel: str) -> frozenset[str]:
    """The kinds that a kernel's decorator names. From then on memory is tracked, if it names any. Raises ``TypeError``
    for what names none, ``ValueError`` for other names."""
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
    """Says once that a kernel goes to a GPU as it is."""
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
    """Whether memory is tracked from its allocation on: once any kernel is to be sanitized."""

    wanted = False


# The state of one launch: 64-bit words, of which the first eight are a fault record.

MAX_REPORTS = 32
REPORT_WORDS = 5  # the kind, who, the address, who else, and where the array begins, if that is known
CELL_WORDS = 13  # time and who of a write, two reads, an atomic read, two atomic writes; what acquiring makes known
VIEW_WORDS = 7
"""First and last address of a parameter; address, shadow of values, cells and cell size of its memory; of a strided
view, where a byte for each of its bytes says whether it is an element's, else 0."""
THREADS = 1024

_FIELDS = {
    "record": 8,
    "now": 1,  # counts accesses; 0 is before the first
    "block": 1,  # the block that runs, and -1 before the first
    "barrier": 1,  # when the block passed a barrier last, or began
    "phase": 1,  # how many barriers it has passed
    "block_known": 1,  # everything up to this time is known to the whole block, through atomics and a barrier
    "pending_known": 1,  # and will be from the next barrier on
    "grid_known": 1,  # when all blocks met at the grid's barrier last
    "reports": 1,
    "leaves": 1,  # whether the thread that runs is to leave the kernel, where it may
    "views": 1,
    "view_count": 1,
    "shared_cells": 1,
    "shared_init": 1,
    "shared_inits": 1,  # of a cooperative launch, those of all blocks one after the other; else 0
    "shared_bytes": 1,
    "report": MAX_REPORTS * REPORT_WORDS,
    "scratch": 64,  # where an access goes that must not be made
    # Of each thread: barriers passed; the time of its last release; what acquiring would make known; what is known;
    # when it came to a synchronisation of its warp; and for each lane of its warp, up to when that lane is ordered.
    "passed": THREADS,
    "released": THREADS,
    "acquired": THREADS,
    "known": THREADS,
    "arrived": THREADS,
    "seen": THREADS * 32,
}
OFFSETS = dict(zip(_FIELDS, itertools.accumulate(_FIELDS.values(), initial=0), strict=False))
STATE_WORDS = sum(_FIELDS.values())

SANITIZED = 3
"""A fault record's ``claimed`` where the sanitizer has reports; ``index`` is their number."""

WRITE, ATOMIC, BLOCK_SCOPE, ALSO_READS = 1, 2, 4, 8
"""What an access does: the low bits of ``who``. Above are the access's number from bit 4, the thread from bit 20 and
the block from bit 32."""

REPORT_KINDS = ("out-of-bounds", "misaligned", "uninitialized", "race")
OUT_OF_BOUNDS, MISALIGNED, UNINITIALIZED, RACE = range(4)


# Reports on their way from the launch to whoever waits for it. A fault that nobody asks about is forgotten in the end.

_KEPT = 256
_numbers = itertools.count(1)
_lock = threading.Lock()
_waiting: OrderedDict[int, tuple[SanitizerError, ...]] = OrderedDict()


def publish(errors: tuple[SanitizerError, ...]) -> int:
    """Keeps a launch's errors; the number to ask for them with."""
    with _lock:
        number = next(_numbers)
        _waiting[number] = errors
        while len(_waiting) > _KEPT:
            _waiting.popitem(last=False)
    return number


def published(number: int) -> SanitizerError | None:
    """The first of a launch's errors, the others as notes on it."""
    with _lock:
        errors = _waiting.get(number)
    if not errors:
        return None
    first, *others = errors
    if others and not getattr(first, "__notes__", None):
        for other in others:
            first.add_note(f"also: {other}")
    return first
