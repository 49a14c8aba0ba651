"""The IR of a fused kernel.

The thread at position ``p`` computes four elements, from element ``4 * p`` on. If all four exist and the slices are
aligned, the thread loads and stores them as vectors. Otherwise a loop computes the elements that exist. For each
element a thread runs the stages' own functions, one after the other. Each function finds the elements of its slices in
variables on the stack. LLVM promotes the variables to registers once it has inlined the stages.

The results are those of the stages' own launches, bit for bit. The front end has chosen the roundings of each stage
(``contraction.py``), and no back end contracts on its own. The exception is ``fastmath``: LLVM may combine the
operations of two stages that both have it. Which NaN an operation on NaNs gives is not specified, as in any kernel.

A failed check ends its stage for this element, as it ends a thread of the stage's own launch. The variables are
initialised, so that a later stage reads a defined number even then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, final

from oxide.compiler.bounds.hoist import simplified
from oxide.compiler.bounds.prove import words_of
from oxide.compiler.elementwise import ITEMS
from oxide.compiler.elementwise.proof import addresses_in, element_form, guards_of
from oxide.compiler.ir.module import Function, Module
from oxide.compiler.ir.parser import parse
from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.recognise import fails_an_assert, is_alignment_check, is_bounds_check
from oxide.compiler.ir.values import (
    FALSE,
    TRUE,
    Binary,
    Call,
    Value,
    number,
)
from oxide.compiler.signature.signature import Closed
from oxide.compiler.source.faults import FaultSite

VECTOR_BYTES = 16


@final
@dataclass(frozen=True, slots=True)
class Part:
    """A stage as IR. ``arguments`` has, for each parameter, the index of its value among the fused kernel's values
    (``Words``). ``own`` has the names of the slices that each thread accesses only at its own element, and ``axes`` is
    the number of their axes."""

    portable: PortableKernel
    parameters: tuple[Closed, ...]
    arguments: tuple[int, ...]
    own: frozenset[str]
    axes: int


@final
@dataclass(frozen=True, slots=True)
class Words:
    """A value of the fused kernel. A launch passes it as *words*: the arguments of the IR function that carry it, such
    as a slice's address and lengths. ``types`` are the types of the words; a value that stays in registers has none.
    ``element`` is the element type of a slice that each thread accesses only at its own element, else "". All such
    slices have the same number of elements, and those with two axes have the same shape. ``read`` says whether the
    elements are loaded before the stages, and ``written`` whether they are stored after the stages."""

    types: tuple[str, ...]
    element: str = ""
    read: bool = False
    written: bool = False


def compose(name: str, symbol: str, parts: Sequence[Part], values: Sequence[Words]) -> PortableKernel:
    """Returns the fused kernel. Its function takes the words of the values, in the order of ``values``. If a stage has
    two axes, at least one slice of two axes must have words."""
    module, sites, calls = Module(), list[FaultSite](), list[str]()
    for stage, part in enumerate(parts):
        function = adopt(module, part, f"oxide.stage.{stage}", len(sites))
        sites += part.portable.sites
        calls.append(call_of(part, function, values))
    module.adopt(parse(_fused(symbol, calls, values)))
    first = parts[0].portable
    return replace(first, module=simplified(module, symbol), symbol=symbol, sites=tuple(sites), name=name)


def adopt(module: Module, part: Part, symbol: str, first_site: int) -> Function:
    """Adds a stage's function to the module, in a form for one element, under the name ``symbol``. Its fault sites are
    numbered from ``first_site``."""
    form, function, position = element_form(part.portable, part.axes)
    _inline_attributes(form)
    replaced: dict[Value, Value] = {}
    own_words = [words for parameter, words in words_of(part.parameters, function) if parameter.name in part.own]
    for address, *_ in own_words:
        replaced |= dict.fromkeys(addresses_in(function, address), address)
    lengths = [{words[1 + axis] for words in own_words} for axis in range(part.axes)]
    for test, (_, holds) in guards_of(function, position, lengths).items():
        replaced[test] = TRUE if holds else FALSE
    function.supersede(replaced)
    for place, call in enumerate(function.calls):
        _shift_site(call, first_site, f"%oxide.site.{place}")
    form.rename(function.symbol, symbol)
    function.head = f"internal {function.head}"
    module.adopt(form)
    return function


def _inline_attributes(module: Module) -> None:
    """Replaces references to groups of attributes by the attributes themselves: another module numbers its groups
    differently."""
    groups = {}
    for line in module.attributes:
        number_of, _, words = line.removeprefix("attributes ").partition(" = ")
        groups[number_of] = words.strip("{ }")

    def inlined(text: str) -> str:
        return " ".join(groups.get(word, word) for word in text.split(" "))

    for function in module.functions.values():
        function.after = inlined(function.after)
        for call in function.calls:
            call.after = inlined(call.after)
    module.attributes = []


def _shift_site(call: Call, first: int, name: str) -> None:
    """Adds ``first`` to the number of the fault site that a call reports. ``name`` is new in the function."""
    place = 4 if is_bounds_check(call) else 3 if is_alignment_check(call) else 2 if fails_an_assert(call) else 0
    if not place or not first:
        return
    site = call.operands[place]
    if site.integer is not None:
        call.operands[place] = number(site.integer + first, "i32")
        return
    shifted = Binary(name, "add", site, number(first, "i32"))
    call.block.replace(call, (shifted, call))
    call.operands[place] = shifted


_LENGTHS = {1: ["%n"], 2: ["%rows", "%columns"]}
_POSITIONS = {1: ["%element"], 2: ["%row", "%column"]}


def call_of(part: Part, function: Function, values: Sequence[Words]) -> str:
    """Returns the call of a stage for one element, in the function ``oxide.element``."""
    passed = ["%context"]
    own = {parameter.name for parameter in part.parameters} & part.own
    for parameter, place in zip(part.parameters, part.arguments, strict=True):
        passed += [f"%v{place}", *_LENGTHS[part.axes]] if parameter.name in own else names_of(place, values[place])
    types = [argument.type for argument in function.arguments]
    listed = ", ".join(f"{kind} {word}" for kind, word in zip(types, [*passed, *_POSITIONS[part.axes]], strict=True))
    return f'  call void @"{function.symbol}"({listed})'


def names_of(place: int, value: Words) -> list[str]:
    return [f"%w{place}.{word}" for word in range(len(value.types))]


def passed_words(values: Sequence[Words]) -> str:
    """Returns the context and the words of all values, with their types, as parameters and arguments are written."""
    words = [
        f"{kind} {name}"
        for place, value in enumerate(values)
        for kind, name in zip(value.types, names_of(place, value), strict=True)
    ]
    return ", ".join(["ptr %context", *words])


def _fused(symbol: str, calls: Sequence[str], values: Sequence[Words]) -> str:
    """Returns the IR of two functions: ``oxide.element``, which runs the stages for one element, and the fused kernel's
    function, which a thread runs."""
    own = [(place, value) for place, value in enumerate(values) if value.element]
    shapes = sorted((names_of(place, value)[1:] for place, value in own if value.types), key=len)
    # Without a slice of two axes, row and column are not used, and LLVM removes their computation.
    rows, columns = shapes[-1] if len(shapes[-1]) == 2 else ("1", *shapes[-1])
    passed = passed_words(values)
    axis = "\n".join(
        f"  %{name} = call i32 @oxide.register.{name}.x(ptr %context)\n  %{name}.wide = zext i32 %{name} to i64"
        for name in _REGISTERS
    )
    allocas = "\n".join(f"  %v{place}.{k} = alloca {value.element}" for place, value in own for k in range(ITEMS))
    declared = "\n".join(f"declare i32 @oxide.register.{name}.x(ptr)" for name in _REGISTERS)
    return f"""
{declared}
declare i64 @llvm.smin.i64(i64, i64)

{element_function("oxide.element", passed, own, calls)}

define void @"{symbol}"({passed}) alwaysinline {{
entry:
{allocas}
{axis}
  %before = mul nuw i64 %ctaid.wide, %ntid.wide
  %position = add i64 %before, %tid.wide
  %first = mul i64 %position, {ITEMS}
  %end = add i64 %first, {ITEMS}
  %rows = add i64 {rows}, 0
  %columns = add i64 {columns}, 0
  %n = mul i64 %rows, %columns
  %whole.exists = icmp sle i64 %end, %n
  br i1 %whole.exists, label %aligned.0, label %some
{_alignments([(place, value) for place, value in own if value.read or value.written])}
whole:
{_whole(own, passed)}
  ret void
some:
  %least = call i64 @llvm.smin.i64(i64 %n, i64 %end)
  %any = icmp slt i64 %first, %least
  br i1 %any, label %next, label %done
next:
  %i = phi i64 [ %first, %some ], [ %following, %next ]
{_one(own, passed)}
  %following = add nuw nsw i64 %i, 1
  %more = icmp slt i64 %following, %least
  br i1 %more, label %next, label %done, !llvm.loop !0
done:
  ret void
}}

!0 = distinct !{{!0, !1}}
!1 = !{{!"llvm.loop.unroll.disable"}}
"""


def element_function(symbol: str, passed: str, own: Sequence[Own], calls: Sequence[str]) -> str:
    """Returns the function that runs the stages for one element. ``calls`` are results of ``call_of``."""
    variables = "".join(f", ptr %v{place}" for place, _ in own)
    stages = "\n".join(calls)
    parameters = f"{passed}{variables}, {SHAPE}, i64 %element, i64 %row, i64 %column"
    return f"""define internal void @{symbol}({parameters}) alwaysinline {{
{stages}
  ret void
}}"""


_REGISTERS = ("ctaid", "ntid", "tid")
SHAPE = "i64 %n, i64 %rows, i64 %columns"
BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "float": 4, "double": 8}
Own: TypeAlias = tuple[int, Words]
"""The index of a value, and the value. Each thread accesses only its own elements of the value."""


def alignment_of(value: Words) -> int:
    """Returns the alignment of a vector of a slice's elements, in bytes."""
    return min(VECTOR_BYTES, ITEMS * BYTES[value.element])


def _alignments(accessed: Sequence[Own]) -> str:
    """Returns the code that tests whether the slices are aligned for vectors. If all are, it continues at ``whole``."""
    return "\n".join(
        f"""aligned.{test}:
  %address.{place} = ptrtoint ptr %w{place}.0 to i64
  %low.{place} = and i64 %address.{place}, {alignment_of(value) - 1}
  %begins.{place} = icmp eq i64 %low.{place}, 0
  br i1 %begins.{place}, label %{f"aligned.{test + 1}" if test + 1 < len(accessed) else "whole"}, label %some"""
        for test, (place, value) in enumerate(accessed)
    )


def _call_of_element(
    symbol: str, own: Sequence[Own], passed: str, item: int, element: str, row: str, column: str
) -> str:
    variables = "".join(f", ptr %v{place}.{item}" for place, _ in own)
    return f"  call void @{symbol}({passed}{variables}, {SHAPE}, i64 {element}, i64 {row}, i64 {column})"


def _row_and_column(element: str, suffix: str) -> list[str]:
    return [
        f"  %row.{suffix} = udiv i64 {element}, %columns",
        f"  %before.row.{suffix} = mul i64 %row.{suffix}, %columns",
        f"  %column.{suffix} = sub i64 {element}, %before.row.{suffix}",
    ]


def _next_column(k: int) -> list[str]:
    """Returns the code that computes row and column of the element after element ``k``, without a division, which would
    take longer."""
    return [
        f"  %right.{k} = add i64 %column.{k}, 1",
        f"  %wraps.{k} = icmp eq i64 %right.{k}, %columns",
        f"  %column.{k + 1} = select i1 %wraps.{k}, i64 0, i64 %right.{k}",
        f"  %down.{k} = zext i1 %wraps.{k} to i64",
        f"  %row.{k + 1} = add i64 %row.{k}, %down.{k}",
    ]


def _cleared(own: Sequence[Own], item: int) -> Iterator[str]:
    """Yields the code that initialises the variables whose elements are not loaded."""
    for place, value in own:
        if not value.read:
            yield f"  store {value.element} zeroinitializer, ptr %v{place}.{item}"


def computed(symbol: str, own: Sequence[Own], passed: str, count: int) -> Iterator[str]:
    """Yields the code that runs the stages for ``count`` neighbouring elements, from element ``%first`` on, by calls of
    the function ``symbol`` (``element_function``)."""
    yield from _row_and_column("%first", "0")
    for k in range(count):
        yield from _cleared(own, k)
        yield f"  %element.{k} = add i64 %first, {k}"
        yield _call_of_element(symbol, own, passed, k, f"%element.{k}", f"%row.{k}", f"%column.{k}")
        yield from _next_column(k)


def _whole(own: Sequence[Own], passed: str) -> str:
    """Returns the code for four elements, which are loaded and stored as vectors."""
    lines = []
    for place, value in own:
        if value.read or value.written:
            lines.append(f"  %at.{place} = getelementptr {value.element}, ptr %w{place}.0, i64 %first")
        if value.read:
            vector = f"<{ITEMS} x {value.element}>"
            lines.append(f"  %loaded.{place} = load {vector}, ptr %at.{place}, align {alignment_of(value)}")
            for k in range(ITEMS):
                lines += [
                    f"  %in.{place}.{k} = extractelement {vector} %loaded.{place}, i64 {k}",
                    f"  store {value.element} %in.{place}.{k}, ptr %v{place}.{k}",
                ]
    lines += computed("oxide.element", own, passed, ITEMS)
    for place, value in own:
        if value.written:
            vector, built = f"<{ITEMS} x {value.element}>", "poison"
            for k in range(ITEMS):
                lines += [
                    f"  %out.{place}.{k} = load {value.element}, ptr %v{place}.{k}",
                    f"  %built.{place}.{k} = insertelement {vector} {built}, {value.element} %out.{place}.{k}, i64 {k}",
                ]
                built = f"%built.{place}.{k}"
            lines.append(f"  store {vector} {built}, ptr %at.{place}, align {alignment_of(value)}")
    return "\n".join(lines)


def _one(own: Sequence[Own], passed: str) -> str:
    """Returns the code for the element ``%i``."""
    before, after = [*_cleared(own, 0), *_row_and_column("%i", "i")], []
    for place, value in own:
        if value.read or value.written:
            before.append(f"  %at.i.{place} = getelementptr {value.element}, ptr %w{place}.0, i64 %i")
        if value.read:
            before += [
                f"  %in.{place} = load {value.element}, ptr %at.i.{place}, align {BYTES[value.element]}",
                f"  store {value.element} %in.{place}, ptr %v{place}.0",
            ]
        if value.written:
            after += [
                f"  %out.{place} = load {value.element}, ptr %v{place}.0",
                f"  store {value.element} %out.{place}, ptr %at.i.{place}, align {BYTES[value.element]}",
            ]
    called = _call_of_element("oxide.element", own, passed, 0, "%i", "%row.i", "%column.i")
    return "\n".join([*before, called, *after])
