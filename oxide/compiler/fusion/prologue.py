"""The IR of a kernel that computes the elements of a slice where it reads them.

Each load of the slice becomes a call of a function that runs the stages for the loaded elements. The kernel itself is
unchanged: its loops, its checks, its shared memory and barriers. A vector load becomes vector loads of the stages'
inputs, so that the kernel reads memory as fast as before.

An element that the kernel reads twice is computed twice. ``Reads`` has the data that decide whether this pays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import final

from oxide.compiler.bounds.hoist import simplified
from oxide.compiler.bounds.prove import words_of
from oxide.compiler.ir.module import Function, Module, reached
from oxide.compiler.ir.parameters import element_type
from oxide.compiler.ir.parser import parse
from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.recognise import fails_an_assert, is_check, register_of
from oxide.compiler.ir.values import (
    Argument,
    Binary,
    Block,
    Call,
    Cast,
    Constant,
    GetElementPtr,
    Instruction,
    Load,
    Operation,
    Phi,
    Select,
    Value,
    number,
)
from oxide.compiler.signature.signature import Closed, Parameter

from .composition import (
    BYTES,
    Own,
    Part,
    Words,
    adopt,
    call_of,
    collected,
    computed,
    element_function,
    loaded,
    passed_words,
    shape_of,
    variables,
    vector_alignment,
    vector_of,
)

MOST_LOADS = 8
"""The most loads of a slice in a kernel's code. Each load gets a copy of the stages."""

_MOST_INSTRUCTIONS = 4000
"""The most instructions that the copies of the stages add to a kernel."""


class Refused(Exception):
    """Raised for stages that a kernel cannot compute at its reads. The message is the reason."""


@final
@dataclass(frozen=True, slots=True)
class Reads:
    """How a kernel reads a slice. ``loads`` is the number of loads in its code. ``registers`` has the thread
    coordinates, such as ``tid.x``, that the index of every load depends on. If a coordinate is missing, threads that
    differ only in this coordinate may read the same elements: in a matrix product, for example, all rows read the same
    vector. Such a kernel would compute each element many times. Computing an element a few times costs no more than
    reading it from memory."""

    loads: int
    registers: frozenset[str]


def reads_of(kernel: PortableKernel, parameters: Sequence[Closed], name: str) -> Reads | str:
    """Returns how a kernel reads a slice, or why the elements of the slice cannot be computed where it reads them."""
    try:
        address, _, kind = _slice(kernel.function, parameters, name)
        loads = _loads(kernel.function, address, kind)
    except Refused as error:
        return str(error)
    if len(loads) > MOST_LOADS:
        return f"it reads {name} at {len(loads)} places, and each would have a copy of the stages"
    registers = [_registers(load.pointer) for load in loads]
    return Reads(len(loads), frozenset.intersection(*registers) if registers else frozenset())


def _slice(function: Function, parameters: Sequence[Closed], name: str) -> tuple[Argument, list[Argument], str]:
    """Returns the address, the lengths and the type of the elements of a slice. Raises ``Refused``."""
    for parameter, words in words_of(parameters, function):
        if parameter.name == name and isinstance(parameter, Parameter) and parameter.kind == "slice":
            kind = element_type(parameter)
            if kind is not None:
                return words[0], words[1:], kind
    raise Refused(f"its parameter {name} is no slice of real numbers")


def _loads(function: Function, address: Argument, kind: str) -> list[Load]:
    """Returns the loads of a slice's elements. Raises ``Refused`` if the kernel uses the slice's address for anything
    but loads."""
    name = address.name.lstrip("%").partition(".")[0]
    derived: dict[Value, None] = {address: None}
    loads: list[Load] = []
    pending: list[Value] = [address]
    users = function.users()
    while pending:
        base = pending.pop()
        for user in users.get(base, ()):
            match user:
                case GetElementPtr(pointer=pointer) if pointer is base:
                    pass
                case Phi() | Select() | Operation(opcode="freeze"):
                    pass
                case Load(type=type_, before="") if type_ == kind or type_.endswith(f" x {kind}>"):
                    loads.append(user)
                    continue
                case Cast(opcode="ptrtoint"):
                    continue  # a test of the slice's alignment
                case Call(called="llvm.assume"):
                    continue
                case _:
                    raise Refused(f"it accesses {name} in other ways than by loads of its elements")
            if user not in derived:
                derived[user] = None
                pending.append(user)
    for each in derived:
        match each:
            case Phi(incoming=incoming):
                sources = [value for value, _ in incoming]
            case Select(left=left, right=right):
                sources = [left, right]
            case _:
                continue
        if not all(source in derived for source in sources):
            raise Refused(f"a load reads either {name} or other memory")
    return loads


def _registers(pointer: Value) -> frozenset[str]:
    """Returns the thread coordinates that a value is computed from."""

    def sources(value: Value) -> list[Value]:
        match value:
            case Select(left=left, right=right):
                return [left, right]
            case Instruction() if not isinstance(value, Load) and not register_of(value):
                return [operand for operand in value.operands if not isinstance(operand, Block)]
        return []

    return frozenset(filter(None, map(register_of, reached(pointer, sources))))


def compute_at_reads(
    name: str,
    kernel: PortableKernel,
    parameters: Sequence[Closed],
    kernel_name: str,
    parts: Sequence[Part],
    values: Sequence[Words],
    computed: Mapping[str, int],
    aligned: AbstractSet[int],
) -> PortableKernel:
    """Returns the kernel with the words of the stages' ``values`` as its last parameters. ``kernel_name`` is the
    kernel's name in its faults. ``computed`` maps each parameter whose elements are computed to the index of the value
    that has these elements. ``aligned`` has the indices of the values that may be loaded as vectors. Raises
    ``Refused``."""
    module = kernel.module.copy()
    function = module.functions[kernel.symbol]
    for count, each in enumerate(function.instructions):
        if each.name:  # LLVM gave these names; its passes below would give them again
            each.name = f"%oxide.kept.{count}"
    context = function.arguments[0]
    stages, calls, size = Module(), list[str](), 0
    for stage, part in enumerate(parts):
        adopted = adopt(stages, part, f"oxide.stage.{stage}", 0)
        if any(is_check(call) or fails_an_assert(call) for call in adopted.calls):
            raise Refused(f"{part.portable.name} has checks, which would be done only for the elements that are read")
        size += sum(1 for _ in adopted.instructions)
        calls.append(call_of(part, adopted, values))
    arguments = [
        Argument(f"%oxide.prologue.{place}.{word}", kind)
        for place, value in enumerate(values)
        for word, kind in enumerate(value.types)
    ]
    function.arguments += arguments
    own = [(place, value) for place, value in enumerate(values) if value.element]
    passed = passed_words(values)
    module.adopt(stages)
    texts = {"oxide.element": element_function(passed, own, calls)}
    fresh = (f"%oxide.fused.at.{count}" for count in range(10**9))
    added = 0
    for parameter, place in computed.items():
        address, lengths, kind = _slice(function, parameters, parameter)
        size_of = BYTES[kind]
        for load in _loads(function, address, kind):
            lanes = int(load.type[1:].split()[0]) if load.type.startswith("<") else 1
            added += size * lanes
            streams = "!oxide.streaming" in load.metadata
            # A vector of two doubles may begin at every second element. A vector of floats that begins there may not be
            # aligned.
            multiple = load.align // size_of
            symbol = f"oxide.prologue.{place}.{lanes}.{multiple}{'.streaming' * streams}"
            if symbol not in texts:
                texts[symbol] = _loaded(symbol, place, lanes, multiple, streams, passed, own, values, aligned)
            code = list(_offset(load.pointer, address, fresh))
            offset = code[-1] if code else number(0)
            index: Value = offset
            if size_of > 1:
                index = Binary(next(fresh), "ashr", offset, number(size_of.bit_length() - 1), "exact")
                code.append(index)
            size_in_all: Value = lengths[0]
            for length in lengths[1:]:
                size_in_all = Binary(next(fresh), "mul", size_in_all, length)
                code.append(size_in_all)
            call = Call(load.name, load.type, Constant(f"@{symbol}", "ptr"), [context, *arguments, size_in_all, index])
            function.substitute(load, *code, call)
    if added > _MOST_INSTRUCTIONS:
        raise Refused(f"copies of the stages at its loads would be {added} instructions")
    module.adopt(parse("\n".join([*texts.values(), "!0 = !{}"])))
    sites = tuple(replace(site, kernel=site.kernel or kernel_name) for site in kernel.sites)
    return replace(kernel, module=simplified(module, kernel.symbol), sites=sites, name=name)


def _offset(pointer: Value, address: Argument, fresh: Iterator[str]) -> Iterator[Instruction]:
    """Yields the instructions that compute the distance of a pointer from the slice's address, in bytes. The last
    instruction is the result. Yields nothing if the distance is 0."""
    steps: list[GetElementPtr] = []
    base = pointer
    while isinstance(base, GetElementPtr):
        match base:
            case GetElementPtr(source=source, indices=[Value(type="i64")]) if source in BYTES:
                steps.append(base)
                base = base.pointer
            case _:
                break
    total: Instruction | None = None
    if base is not address:
        high, low = Cast(next(fresh), "ptrtoint", base, "i64"), Cast(next(fresh), "ptrtoint", address, "i64")
        total = Binary(next(fresh), "sub", high, low)
        yield from (high, low, total)
    for step in reversed(steps):
        scaled = Binary(next(fresh), "mul", step.indices[0], number(BYTES[step.source]))
        yield scaled
        if total is None:
            total = scaled
        else:
            total = Binary(next(fresh), "add", total, scaled)
            yield total


def _loaded(
    symbol: str,
    result: int,
    lanes: int,
    multiple: int,
    streams: bool,
    passed: str,
    own: Sequence[Own],
    values: Sequence[Words],
    aligned: AbstractSet[int],
) -> str:
    """Returns the function that computes ``lanes`` neighbouring elements of the value number ``result``. The function's
    last parameters are the value's number of elements and the index of the first element to compute. The first
    element's index is a multiple of ``multiple`` if the value begins at a multiple of 16 bytes."""
    rows, columns = shape_of(own, "%n")
    lines = [f"  %rows = add i64 {rows}, 0", f"  %columns = add i64 {columns}, 0", *variables(own, lanes)]
    for place, value in own:
        if value.read:
            size, natural = BYTES[value.element], vector_alignment(value.element, lanes)
            width = min(natural, max(1, multiple) * size) if place in aligned else size
            hint = ", !oxide.streaming !0" if streams and lanes > 1 and width == natural else ""
            lines += loaded(place, value, lanes, width, hint)
    lines += computed(own, passed, lanes)
    lines += collected(result, values[result], lanes)
    type_ = vector_of(values[result].element, lanes)
    body = "\n".join([*lines, f"  ret {type_} %result.{result}"])
    return f"define internal {type_} @{symbol}({passed}, i64 %n, i64 %first) alwaysinline {{\n{body}\n}}\n"
