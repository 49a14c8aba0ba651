"""The reports of a kernel: its bounds checks, for ``Kernel.checks()`` and ``deny_checks=True``, and its description for
notebooks."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, final

from oxide.compiler.source.faults import Conversion, FaultSite, NarrowIndex, Narrowing, Widening
from oxide.compiler.source.source import Remark, lines_in, listing, located_in, parsed
from oxide.errors import CompileError, place_name
from oxide.pictures.drawing import preformatted, table

if TYPE_CHECKING:
    from oxide.compiler.bounds.hoist import Placement
    from oxide.compiler.declaration.description import KernelDescription
    from oxide.compiler.ir.portable import PortableKernel
    from oxide.compiler.signature.signature import Closed


@final
@dataclass(frozen=True, slots=True)
class Check:
    """The bounds check of one slice's accesses in one line of a kernel.

    ``place`` says where the check is done: nowhere if it is ``"proved"``, before a loop if it is ``"hoisted"``, or at
    the ``"access"``. ``detail`` names the proof of the access, the loop out of which the check was hoisted, or the
    reason why the check stays. ``in_loop`` says whether the access is inside a loop. If the slice has several axes,
    each axis has a check of its own, and ``axis`` is the axis of this check; otherwise it is None. If a line has
    several accesses to one slice, or is in a device function that is called in several places, the object describes the
    costliest of the checks. ``narrow`` is the type of 8 to 32 bits in which an index of this line is computed, such as
    "u32"; the check is made on the number that the index would be without wrapping. It is "" for other indices.
    """

    parameter: str
    file: str
    line: int
    place: Literal["proved", "hoisted", "access"]
    detail: str
    in_loop: bool
    axis: int | None = None
    narrow: str = ""

    def __str__(self) -> str:
        what = {"proved": "proved", "hoisted": "hoisted", "access": "at the access"}[self.place]
        slice_ = self.parameter if self.axis is None else f"{self.parameter}, axis {self.axis}"
        narrow = f"; the index is computed in {self.narrow}" if self.narrow else ""
        return f"line {self.line}: {slice_}: {what}, {self.detail}{narrow}"


@final
class Checks(tuple["Check | Widening | Narrowing", ...]):
    """The result of ``Kernel.checks()``: a tuple that notebooks show as the kernel's source with the checks marked."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Returns the source of the kernel and of its device functions. The costliest check of a line decides its
        colour: green for a proved check, blue for a check before a loop, orange for a check at the access. Widened
        arithmetic and narrowed integers are listed as remarks."""
        remarks = [_remark(item) for item in self]
        if not remarks:
            return preformatted("no bounds checks")
        at_access = sum(mark == "bad" for _, _, mark, _ in remarks)
        checks = sum(isinstance(item, Check) for item in self)
        return listing(remarks, f"{checks} bounds checks, {at_access} of them at every access")


def checks_with(checks: Iterable[Check], conversions: Sequence[Conversion]) -> Checks:
    """Returns checks, with the narrow indices marked, and after them the widenings and narrowings."""
    narrow = {
        (each.file, each.line, each.parameter): each.narrow for each in conversions if isinstance(each, NarrowIndex)
    }
    marked = [replace(each, narrow=narrow.get((each.file, each.line, each.parameter), "")) for each in checks]
    return Checks((*marked, *(each for each in conversions if not isinstance(each, NarrowIndex))))


def _remark(item: Check | Widening | Narrowing) -> Remark:
    text = str(item).removeprefix(f"line {item.line}: ")
    mark = {"proved": "good", "hoisted": "fair", "access": "bad"}[item.place] if isinstance(item, Check) else "note"
    return item.file, item.line, mark, text


def checks_of(
    kernel: KernelDescription,
    portable: PortableKernel,
    parameters: tuple[Closed, ...],
    sites: Sequence[FaultSite],
    placements: Sequence[Placement],
) -> tuple[Check, ...]:
    """Returns the checks of a kernel in the order of its lines. Runs LLVM's optimiser, which proves that further
    accesses are in bounds."""
    from oxide.compiler.ptx.ptx import sites_left

    if kernel.unchecked:
        return ()
    left = sites_left(portable, kernel.name, parameters)
    by_site: dict[int, Check] = {}
    for number, site in enumerate(sites):
        # Site -1 is an access to one of several slices. Its placement counts for each site without its own placement.
        found = [p for p in placements if p.site == number] or [p for p in placements if p.site == -1]
        checks = [_check(site, placement, placement.site in left or placement.site == -1) for placement in found]
        if checks:
            by_site[number] = max(checks, key=lambda check: _COST[check.place])
    return tuple(sorted(by_site.values(), key=lambda check: (check.file, check.line, check.parameter, check.axis or 0)))


def deny_checks_in_loops(kernel: str, checks: Iterable[Check]) -> None:
    """Raises ``CompileError`` for the first check that stays inside a loop."""
    for check in checks:
        if check.place == "access" and check.in_loop:
            raise _denied(kernel, check)


_COST = {"proved": 0, "hoisted": 1, "access": 2}


def _denied(kernel: str, check: Check) -> CompileError:
    return located_in(
        check.file,
        check.line,
        f"kernel {kernel} denies checks inside loops, but {check.parameter}[…] is checked at every access: "
        f"{check.detail}; rewrite the loop, add a contract to requires=, or read {check.parameter}.unchecked[…]",
    )


def _check(site: FaultSite, placement: Placement, left: bool) -> Check:
    place: Literal["proved", "hoisted", "access"]
    if placement.place == "proved":
        place, detail = "proved", "by contracts, or by the loops and tests around it"
    elif placement.place == "hoisted":
        place, detail = "hoisted", f"one check before the loop{_loop_line(site, placement.depth)}"
    elif left:
        place, detail = "access", placement.reason
    else:
        place, detail = "proved", "by a test or a check before it"
    return Check(site.parameter, site.file, site.line, place, detail, placement.in_loop, site.axis)


def _loop_line(site: FaultSite, depth: int) -> str:
    """Returns text that names a loop by its first line: the loop ``depth`` levels outside the innermost loop around an
    access."""
    around = [loop for loop in _loops("".join(lines_in(site.file))) if loop[0] <= site.line <= loop[1]]
    around.sort(reverse=True)
    return f" in line {around[depth][0]}" if depth < len(around) else " of a caller"


@functools.lru_cache(maxsize=32)
def _loops(source: str) -> tuple[tuple[int, int], ...]:
    """Returns the first and the last line of each loop in the text of a file."""
    loops: Iterable[ast.For | ast.While] = (n for n in ast.walk(parsed(source)) if isinstance(n, ast.For | ast.While))
    return tuple((loop.lineno, loop.end_lineno or loop.lineno) for loop in loops)


# The description


def described(options: KernelDescription, defaults: Mapping[str, Any]) -> str:
    """Returns the report of a kernel as HTML. Compiles nothing."""
    rows = [
        (each.name, f"{each.annotation} = {defaults[each.name]!r}" if each.name in defaults else str(each.annotation))
        for each in options.parameters
    ]
    shown = {
        "block": options.default_block,
        "items per thread": options.items_per_thread if options.items_per_thread != (1, 1, 1) else None,
        "requires": ", ".join(contract.text for contract in options.contracts),
        "max registers": options.max_registers,
        "cluster": options.cluster,
        "options": ", ".join(
            name for name in ("unchecked", "deny_checks", "fastmath", "partial") if getattr(options, name)
        ),
    }
    rows += [(name, str(value)) for name, value in shown.items() if value]
    return report("kernel", options.name, options.function, rows)


def report(kind: str, name: str, function: Any, rows: list[tuple[str, str]]) -> str:
    """Returns the report of a kernel: its name and place, a table, and its docstring."""
    code = function.__code__
    caption = f"{kind} {name}, {place_name(code.co_filename, code.co_firstlineno)}"
    doc = inspect.getdoc(function)
    return table(rows, caption) + (preformatted(doc) if doc else "")
