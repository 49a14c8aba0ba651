"""State shared by the lowering modules: registries, the place in the source being lowered, notes for error messages.

All of it is used under numba's global compiler lock, so plain module state is safe here.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numba.cuda import cgutils
from numba.cuda.core.imputils import Registry as LoweringRegistry
from numba.cuda.typing.templates import Registry as TypingRegistry

from oxide.compiler.check.numba_errors import Failure
from oxide.compiler.source.faults import FaultSite
from oxide.compiler.source.source import SourcePlace, Span
from oxide.compiler.source.widening import Widening

typing_registry = TypingRegistry()
lowering_registry = LoweringRegistry("oxide")


@dataclass(slots=True)
class Session:
    """The state of one run of the front end: its options, the place being lowered, and the notes and failures of the
    typing. With ``located``, each memory access carries its place in the source, for the sanitizer."""

    file: str = ""
    line: int = 0
    span: Span | None = None
    fastmath: bool = False
    fma: bool = True
    """True if products are fused into sums by the rules of ``contraction``."""
    numba_style: bool = False
    """True for numba-cuda's semantics, False for those of oxide's typed vocabulary."""
    overloads: bool = False
    """True if numba-cuda's Python implementations of functions may be used."""
    located: bool = False
    notes: list[str] = field(default_factory=list)
    constants: Mapping[int, str] = field(default_factory=dict)
    """The kernel's name for each array outside it, by the array's ``id``."""
    typings: Any = None
    """The ``Typings`` that records types for the interpreter, or None."""
    dispatchers: dict[int, Any] = field(default_factory=dict)
    """The dispatchers of device functions while types are recorded. Each kernel then has its own dispatchers."""
    failures: list[Failure] = field(default_factory=list)
    """Failures to compile functions, the innermost first."""
    widenings: list[Widening] = field(default_factory=list)
    """The arithmetic wider than its operands in the function that is being compiled."""


session = Session()

sites: list[FaultSite] = []
"""Every access and assert that was ever lowered. Its index is its site number, until ``compiler.ir`` renumbers the
sites of a kernel."""

array_places: dict[int, SourcePlace] = {}
"""The source place of each static shared and each local array that was ever lowered, by the number in its name."""

_numbers: dict[FaultSite, int] = {}


def site_number(parameter: str, assertion: str | None = None, axis: int | None = None, axes: int = 1) -> int:
    """Returns the site number of the access to ``parameter``, or of the ``assert``, that is being lowered. For an
    access of several ``axes``, ``axis`` is the axis that is checked."""
    site = FaultSite(parameter, session.file, session.line, assertion, axis, axes)
    if site not in _numbers:
        _numbers[site] = len(sites)
        sites.append(site)
    return _numbers[site]


def note(message: str) -> None:
    """Records why typing is about to fail. If it fails, the last note becomes the text of the ``CompileError``."""
    session.notes.append(message)


def note_first(message: str) -> None:
    """Records why typing is about to fail, unless there is a note already."""
    if not session.notes:
        note(message)


def first_parameters(function: Any, count: int) -> inspect.Signature:
    """Returns the first parameters of a function of the language, without defaults and annotations."""
    parameters = list(inspect.signature(function).parameters.values())[:count]
    return inspect.Signature([each.replace(default=each.empty, annotation=each.empty) for each in parameters])


def proxy(context: Any, builder: Any, kind: Any, value: Any = None) -> Any:
    """Returns an object whose attributes are the members of a structure: of ``value``, or of a new structure if
    ``value`` is None."""
    return cgutils.create_struct_proxy(kind)(context, builder, value)
