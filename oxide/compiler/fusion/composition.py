"""The IR of a fused kernel.

The thread at position ``p`` computes four elements, from element ``4 * p`` on. If all four exist and the slices are
aligned, the thread loads and stores them as vectors. Otherwise a loop computes the elements that exist. For each
element a thread runs the stages' own functions, one after the other. Each function finds the elements of its slices in
variables on the stack. LLVM promotes the variables to registers once it has inlined the stages.

The results are those of the stages' own launches, bit for bit. The front end has chosen the roundings of each stage
(``total_builder.py``), and no back end contracts on its own. The exception is ``fastmath``: LLVM may combine the
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


def shape_of(own: Sequence[Own], elements: str) -> tuple[str, str]:
    """Returns the operands for the rows and the columns of the own values. ``elements`` is the operand for their number
    if no value has two axes: the elements are then one row."""
    shapes = [names_of(place, value)[1:] for place, value in own if len(value.types) == 3]
    return (shapes[-1][0], shapes[-1][1]) if shapes else ("1", elements)


def _fused(symbol: str, calls: Sequence[str], values: Sequence[Words]) -> str:
    """Returns the IR of the function that a thread runs, and of those that it calls: ``oxide.element``, which runs the
    stages for one element, and ``oxide.elements.<count>``, which computes neighbouring elements."""
    own = [(place, value) for place, value in enumerate(values) if value.element]
    # Without a slice of two axes, row and column are not used, and LLVM removes their computation.
    rows, columns = shape_of(own, next(names_of(place, value)[1] for place, value in own if value.types))
    passed = passed_words(values)
    given = f"{passed}, {SHAPE}"
    axis = "\n".join(
        f"  %{name} = call i32 @oxide.register.{name}.x(ptr %context)\n  %{name}.wide = zext i32 %{name} to i64"
        for name in _REGISTERS
    )
    declared = "\n".join(f"declare i32 @oxide.register.{name}.x(ptr)" for name in _REGISTERS)
    return f"""
{declared}
declare i64 @llvm.smin.i64(i64, i64)

{element_function(passed, own, calls)}

{_elements(ITEMS, own, passed)}

{_elements(1, own, passed)}

define void @"{symbol}"({passed}) alwaysinline {{
entry:
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
  call void @oxide.elements.{ITEMS}({given}, i64 %first)
  ret void
some:
  %least = call i64 @llvm.smin.i64(i64 %n, i64 %end)
  %any = icmp slt i64 %first, %least
  br i1 %any, label %next, label %done
next:
  %i = phi i64 [ %first, %some ], [ %following, %next ]
  call void @oxide.elements.1({given}, i64 %i)
  %following = add nuw nsw i64 %i, 1
  %more = icmp slt i64 %following, %least
  br i1 %more, label %next, label %done, !llvm.loop !0
done:
  ret void
}}

!0 = distinct !{{!0, !1}}
!1 = !{{!"llvm.loop.unroll.disable"}}
"""


def element_function(passed: str, own: Sequence[Own], calls: Sequence[str]) -> str:
    """Returns ``oxide.element``, which runs the stages for one element. ``calls`` are results of ``call_of``."""
    variables = "".join(f", ptr %v{place}" for place, _ in own)
    stages = "\n".join(calls)
    parameters = f"{passed}{variables}, {SHAPE}, i64 %element, i64 %row, i64 %column"
    return f"""define internal void @oxide.element({parameters}) alwaysinline {{
{stages}
  ret void
}}"""


_REGISTERS = ("ctaid", "ntid", "tid")
SHAPE = "i64 %n, i64 %rows, i64 %columns"
BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "float": 4, "double": 8}
Own: TypeAlias = tuple[int, Words]
"""The index of a value, and the value. Each thread accesses only its own elements of the value."""


def vector_alignment(kind: str, count: int) -> int:
    """Returns the alignment in bytes of a vector of ``count`` elements."""
    return min(VECTOR_BYTES, count * BYTES[kind])


def _alignments(accessed: Sequence[Own]) -> str:
    """Returns the code that tests whether the slices are aligned for vectors. If all are, it continues at ``whole``."""
    return "\n".join(
        f"""aligned.{test}:
  %address.{place} = ptrtoint ptr %w{place}.0 to i64
  %low.{place} = and i64 %address.{place}, {vector_alignment(value.element, ITEMS) - 1}
  %begins.{place} = icmp eq i64 %low.{place}, 0
  br i1 %begins.{place}, label %{f"aligned.{test + 1}" if test + 1 < len(accessed) else "whole"}, label %some"""
        for test, (place, value) in enumerate(accessed)
    )


def variables(own: Sequence[Own], count: int) -> Iterator[str]:
    """Yields the variables that hold ``count`` elements of each value."""
    for place, value in own:
        yield from (f"  %v{place}.{k} = alloca {value.element}" for k in range(count))


def loaded(place: int, value: Words, count: int, align: int, hint: str = "") -> Iterator[str]:
    """Yields the code that loads ``count`` neighbouring elements of a value, from element ``%first`` on, into the
    variables. Several elements are loaded as a vector."""
    kind, vector = value.element, vector_of(value.element, count)
    yield f"  %from.{place} = getelementptr {kind}, ptr %w{place}.0, i64 %first"
    yield f"  %loaded.{place} = load {vector}, ptr %from.{place}, align {align}{hint}"
    for k in range(count):
        if count > 1:
            yield f"  %in.{place}.{k} = extractelement {vector} %loaded.{place}, i64 {k}"
        yield f"  store {kind} {f'%in.{place}.{k}' if count > 1 else f'%loaded.{place}'}, ptr %v{place}.{k}"


def computed(own: Sequence[Own], passed: str, count: int) -> Iterator[str]:
    """Yields the code that runs the stages for ``count`` neighbouring elements, from element ``%first`` on. Variables
    whose elements are not loaded are initialised."""
    yield "  %row.0 = udiv i64 %first, %columns"
    yield "  %before.row = mul i64 %row.0, %columns"
    yield "  %column.0 = sub i64 %first, %before.row"
    for k in range(count):
        for place, value in own:
            if not value.read:
                yield f"  store {value.element} zeroinitializer, ptr %v{place}.{k}"
        addresses = "".join(f", ptr %v{place}.{k}" for place, _ in own)
        yield f"  %element.{k} = add i64 %first, {k}"
        places = f"i64 %element.{k}, i64 %row.{k}, i64 %column.{k}"
        yield f"  call void @oxide.element({passed}{addresses}, {SHAPE}, {places})"
        # Row and column of the next element, without a division, which would take longer.
        yield f"  %right.{k} = add i64 %column.{k}, 1"
        yield f"  %wraps.{k} = icmp eq i64 %right.{k}, %columns"
        yield f"  %column.{k + 1} = select i1 %wraps.{k}, i64 0, i64 %right.{k}"
        yield f"  %down.{k} = zext i1 %wraps.{k} to i64"
        yield f"  %row.{k + 1} = add i64 %row.{k}, %down.{k}"


def collected(place: int, value: Words, count: int) -> Iterator[str]:
    """Yields the code that reads the variables of a value as ``%result.<place>``, a vector if ``count`` is over 1."""
    kind, vector, built = value.element, vector_of(value.element, count), "poison"
    if count == 1:
        yield f"  %result.{place} = load {kind}, ptr %v{place}.0"
        return
    for k in range(count):
        result = f"%built.{place}.{k}" if k < count - 1 else f"%result.{place}"
        yield f"  %out.{place}.{k} = load {kind}, ptr %v{place}.{k}"
        yield f"  {result} = insertelement {vector} {built}, {kind} %out.{place}.{k}, i64 {k}"
        built = result


def vector_of(kind: str, count: int) -> str:
    return f"<{count} x {kind}>" if count > 1 else kind


def _elements(count: int, own: Sequence[Own], passed: str) -> str:
    """Returns the function that computes ``count`` elements, which are loaded and stored as vectors."""
    lines = [*variables(own, count)]
    for place, value in own:
        if value.read:
            lines += loaded(place, value, count, vector_alignment(value.element, count))
    lines += computed(own, passed, count)
    for place, value in own:
        if value.written:
            align = vector_alignment(value.element, count)
            lines += collected(place, value, count)
            lines += [
                f"  %to.{place} = getelementptr {value.element}, ptr %w{place}.0, i64 %first",
                f"  store {vector_of(value.element, count)} %result.{place}, ptr %to.{place}, align {align}",
            ]
    body = "\n".join(lines)
    return (
        f"define internal void @oxide.elements.{count}({passed}, {SHAPE}, i64 %first) alwaysinline {{\n{body}\n"
        "  ret void\n}"
    )
