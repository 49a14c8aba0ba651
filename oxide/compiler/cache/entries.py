"""The cache of compiled kernels on disk. With it, the next process starts with machine code and loads neither numba nor
LLVM.

Each specialization has one file for the front end's results, ``Facts``, and one file of code for each target. Both hold
plain data: JSON text, and the image as bytes. Nothing is unpickled. ``disk`` says where the files are and why they can
be trusted; ``fingerprint`` computes their names.

In memory, each Python function has a table of its entries, so that two equal kernels of one function are compiled only
once.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

from oxide.compiler.declaration.description import LaunchNeeds
from oxide.compiler.signature.signature import Closed
from oxide.compiler.source.faults import Conversion, FaultSite
from oxide.driver.base import Code, Target
from oxide.host import disk
from oxide.host.locks import new_lock, unheld
from oxide.host.weak_table import WeakTable

from .fingerprint import Fingerprint, Unknown, cell_label, fingerprint

if TYPE_CHECKING:
    from oxide.compiler.bounds.hoist import Placement
    from oxide.compiler.declaration.description import KernelDescription
    from oxide.compiler.elementwise import Elementwise
    from oxide.compiler.ir.portable import PortableKernel
    from oxide.compiler.signature.untyped_arguments import Captured

__all__ = ["Entry", "Facts", "Unknown", "decoded", "decoded_needs", "encoded", "entry_of", "warn_of_unknown"]


@final
class Facts:
    """The front end's results for one specialization: all that a launch has to know, and the IR that both back ends
    start from.

    ``captured`` has the device arrays from outside of the kernel; facts with such arrays are not kept in the cache.
    ``elementwise``, ``portable`` and ``placements`` are decoded on first use: decoding imports Python modules, some of
    which load LLVM.
    """

    def __init__(
        self,
        *,
        needs: LaunchNeeds,
        sites: tuple[FaultSite, ...],
        conversions: tuple[Conversion, ...],
        elementwise: Callable[[], Elementwise | str],
        portable: Callable[[], PortableKernel],
        placements: Callable[[], tuple[Placement, ...]],
        captured: tuple[Captured, ...] = (),
    ) -> None:
        self.needs = needs
        self.captured = captured
        self.sites = sites
        self.conversions = conversions
        self._elementwise = elementwise
        self._portable = portable
        self._placements = placements

    @functools.cached_property
    def elementwise(self) -> Elementwise | str:
        """Returns the accesses of an elementwise kernel, or the reason why the kernel is not fused with others."""
        return self._elementwise()

    @functools.cached_property
    def portable(self) -> PortableKernel:
        """Returns the kernel's IR."""
        return self._portable()

    @functools.cached_property
    def placements(self) -> tuple[Placement, ...]:
        """Returns, for each access, where its bounds check is done."""
        return self._placements()


@final
class Entry:
    """A specialization's entry in the cache. A read returns None if the file is missing or damaged. A write that fails
    on disk is ignored."""

    def __init__(self, found: Fingerprint) -> None:
        self.name = found.text
        self._labels = {file: cell_label(number) for number, file in enumerate(found.cells)}
        self._files = {label: file for file, label in self._labels.items()}
        self._facts: Facts | None = None
        self._codes: dict[Target, Code] = {}

    def facts(self) -> Facts | None:
        """Returns the facts that ``keep_facts`` stored, in this process or an earlier one. None if there are none."""
        if self._facts is None:
            self._facts = self._facts_on_disk()
        return self._facts

    def keep_facts(self, facts: Facts) -> None:
        """Stores the front end's results in memory and, if the cache is enabled, on disk."""
        self._facts = facts
        if not disk.enabled():
            return
        content = {
            "needs": dataclasses.asdict(facts.needs),
            "sites": encoded(facts.sites, self._labels),
            "conversions": encoded(facts.conversions, self._labels),
            "elementwise": encoded(facts.elementwise, self._labels),
            "portable": encoded(facts.portable, self._labels),
            "placements": encoded(facts.placements, self._labels),
        }
        disk.write(f"{self.name}.facts", json.dumps(content).encode())

    def code(self, target: Target) -> Code | None:
        """Returns the machine code that ``keep_code`` stored for a target, in this process or an earlier one. None if
        there is none."""
        found = self._codes.get(target)
        if found is None:
            content = disk.read(self._code_name(target))
            if content is None:
                return None
            head, _, image = content.partition(b"\n")
            entry, array_bytes, persistent = head.decode().split()
            found = self._codes[target] = Code(target, entry, image, int(array_bytes), persistent=int(persistent))
        return found

    def keep_code(self, code: Code) -> None:
        """Stores the machine code for its target."""
        self._codes[code.target] = code
        head = f"{code.entry} {code.array_bytes} {code.persistent}\n"
        disk.write(self._code_name(code.target), head.encode() + code.image)

    def _facts_on_disk(self) -> Facts | None:
        text = disk.read(f"{self.name}.facts")
        if text is None:
            return None
        found = json.loads(text)
        return Facts(
            needs=decoded_needs(found["needs"]),
            sites=decoded(found["sites"], self._files),
            conversions=decoded(found["conversions"], self._files),
            elementwise=lambda: decoded(found["elementwise"], self._files),
            portable=lambda: decoded(found["portable"], self._files),
            placements=lambda: decoded(found["placements"], self._files),
        )

    def _code_name(self, target: Target) -> str:
        return f"{self.name}.{disk.digest((target.kind, target.arch, target.features, str(target.seeded)))[:16]}.code"


_REMEMBERED = 8
"""The most entries that are kept in memory for one function; the least recently used is dropped. A limit is needed
because a kernel that takes a function has an entry for each function that it is given."""

_lock = new_lock()
_entries: WeakTable[Callable[..., Any], dict[str, Entry]] = WeakTable()
_told: WeakTable[Callable[..., Any], bool] = WeakTable()  # the functions that a warning named


def entry_of(kernel: KernelDescription, parameters: tuple[Closed, ...]) -> Entry | None:
    """Returns the cache entry of a kernel for some parameter types, or None if the compiler's source cannot be read.

    Raises ``Unknown`` if the kernel reaches a value that has no fingerprint.
    """
    try:
        key = fingerprint(kernel, parameters)
    except OSError:
        return None
    with unheld(_lock):
        entries = _entries.setdefault(kernel.function, {})
        found = entries.pop(key.text, None)
        entry = entries[key.text] = found or Entry(key)
        if len(entries) > _REMEMBERED:
            del entries[next(iter(entries))]
    return entry


def warn_of_unknown(kernel: KernelDescription, unknown: Unknown) -> None:
    """Warns that a kernel is not cached, but compiled in every process. Warns only once for each function."""
    if not disk.enabled() or _told.get(kernel.function):
        return
    _told.set(kernel.function, True)
    code = kernel.function.__code__
    problem = (
        f"kernel {kernel.name} is compiled in every process: it reaches {unknown}, which the cache cannot compare with "
        "that of another process; a number, a string, an array or a function in its place could be"
    )
    warnings.warn_explicit(f"oxide: {problem}", RuntimeWarning, code.co_filename, code.co_firstlineno)


# Dataclasses as JSON

_CLASSES = {
    "Elementwise": "oxide.compiler.elementwise",
    "FaultSite": "oxide.compiler.source.faults",
    "OwnAccess": "oxide.compiler.elementwise",
    "Placement": "oxide.compiler.bounds.hoist",
    "PortableKernel": "oxide.compiler.ir.portable",
    "SharedMemory": "oxide.compiler.ir.primitives",
    "NarrowIndex": "oxide.compiler.source.faults",
    "Narrowing": "oxide.compiler.source.faults",
    "Widening": "oxide.compiler.source.faults",
}
"""The dataclasses that the cache can encode, with the module of each."""


def encoded(value: Any, labels: Mapping[str, str]) -> Any:
    """Converts a value to JSON's types: a tuple to a list, a dataclass to ``{class name: {field name: value}}``.
    ``labels`` maps the file names of notebook cells to labels. A string that is such a file name is replaced by its
    label."""
    if isinstance(value, str):
        return labels.get(value, value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, tuple):
        return [encoded(item, labels) for item in value]
    name = type(value).__name__
    if name == "Module":
        return {name: str(value)}
    if name not in _CLASSES:
        raise TypeError(f"a {name} cannot be kept in the cache: list it in compiler.cache.entries")
    return {name: {field.name: encoded(getattr(value, field.name), labels) for field in dataclasses.fields(value)}}


def decoded(value: Any, files: Mapping[str, str]) -> Any:
    """Returns the value that ``encoded`` has encoded. ``files`` maps the labels of cells back to file names."""
    if isinstance(value, str):
        return files.get(value, value)
    if isinstance(value, list):
        return tuple(decoded(item, files) for item in value)
    if not isinstance(value, dict):
        return value
    ((name, fields),) = value.items()
    if name == "Module":
        from oxide.compiler.ir.parser import parse

        return parse(fields)
    found = getattr(importlib.import_module(_CLASSES[name]), name)
    return found(**{field: decoded(item, files) for field, item in fields.items()})


def decoded_needs(needs: dict[str, Any]) -> LaunchNeeds:
    """Rebuilds a ``LaunchNeeds`` from the dict that ``dataclasses.asdict`` made of it. JSON has no tuples."""
    return LaunchNeeds(**(needs | {"tiled": tuple(needs["tiled"])}))
