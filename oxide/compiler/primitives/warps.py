"""The entries of ``oxide.warp``: operations at which the lanes of a warp meet.

On a GPU each is one or a few instructions. On the CPU a lane publishes its value (``oxide.exchange``), suspends, and
reads the other lanes' values. In the CPU's texts ``{{name}}`` stands for a field of the block's state:
``cpu/coroutines/coroutines.py`` lists the fields and replaces each name by the field's address.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable
from typing import Any

from oxide.compiler.source.typings import Signature
from oxide.language import warp

from . import reductions
from .numbers import BITS, FLOATS, INTEGERS, ROUND, WRAP, bits_of, greatest, least
from .table import NONE, OPEN, Lanes, Primitive, Rule, condition, llvm_type, parameters_of, returning, shown

# Rules


def _value(result: str | None = None, integer: bool = False) -> Rule:
    """Returns the rule of an operation that takes a value. The result has the type ``result``, or that of the value."""

    def rule(name: str, kinds: tuple[str, ...]) -> Signature | str:
        return _problem(name, kinds[0], integer) or Signature(kinds, result or kinds[0])

    return rule


def _shuffled(name: str, kinds: tuple[str, ...]) -> Signature | str:
    value, lane = kinds
    if lane not in INTEGERS:
        return _problem(name, value) or f"{name} takes an integer for the lane, not {shown([lane])}"
    return _problem(name, value) or Signature((value, "i32"), value)


def _problem(name: str, kind: str, integer: bool = False) -> str:
    """Returns why lanes cannot exchange values of a type, or "" if they can."""
    if (kind in INTEGERS and BITS[kind] >= 32) or (not integer and kind in ("f32", "f64", OPEN)):
        return ""
    wanted = "a 32- or 64-bit integer" if integer else "a 32- or 64-bit integer or float"
    instead = "call it for each of z.real and z.imag" if kind in ("c64", "c128") else "convert it, as in i32(x)"
    return f"{name} takes {wanted}, not {shown([kind])}; {instead}"


# The interpreter's implementations


def _all_of(result: Callable[[str, Lanes], Any]) -> Callable[[str, Lanes], Lanes]:
    """Returns the function that gives one result, computed from the values of all lanes, to each lane."""
    return lambda kind, brought: dict.fromkeys(brought, result(kind, brought))


def _mask_of(lanes: Iterable[int]) -> int:
    return sum(1 << lane for lane in lanes)


def _match_any(kind: str, brought: Lanes) -> Lanes:
    bits = {lane: bits_of(kind, value) for lane, value in brought.items()}
    return {lane: _mask_of(other for other in bits if bits[other] == own) for lane, own in bits.items()}


def _match_all(kind: str, brought: Lanes) -> int:
    return _mask_of(brought) if len({bits_of(kind, value) for value in brought.values()}) == 1 else 0


def _up(lane: int, by: int) -> int:
    return lane - by if 0 <= by <= lane else lane


def _down(lane: int, by: int) -> int:
    return lane + by if by >= 0 and lane + by < warp.SIZE else lane


# Shuffles

_PTX_SHUFFLE = """
declare i32 @llvm.nvvm.shfl.sync.{how}.i32(i32, i32, i32, i32) convergent
define i32 @oxide.warp.shuffle.{how}.i32(ptr %context, i32 %mask, i32 %value, i32 %lane, i32 %site)
    alwaysinline convergent {
  %moved = call i32 @llvm.nvvm.shfl.sync.{how}.i32(i32 %mask, i32 %value, i32 %lane, i32 {clamp}) convergent
  ret i32 %moved
}
define i64 @oxide.warp.shuffle.{how}.i64(ptr %context, i32 %mask, i64 %value, i32 %lane, i32 %site)
    alwaysinline convergent {
  %low = trunc i64 %value to i32
  %shifted = lshr i64 %value, 32
  %high = trunc i64 %shifted to i32
  %low.moved = call i32 @llvm.nvvm.shfl.sync.{how}.i32(i32 %mask, i32 %low, i32 %lane, i32 {clamp}) convergent
  %high.moved = call i32 @llvm.nvvm.shfl.sync.{how}.i32(i32 %mask, i32 %high, i32 %lane, i32 {clamp}) convergent
  %low.wide = zext i32 %low.moved to i64
  %high.wide = zext i32 %high.moved to i64
  %high.placed = shl i64 %high.wide, 32
  %moved = or i64 %high.placed, %low.wide
  ret i64 %moved
}
"""

_CPU_SHUFFLE = """
  %wide = {widened}
  call void @oxide.exchange(ptr %context, i32 %mask, i64 %wide, i1 false, i32 %site)
  %block = call ptr @oxide.block(ptr %context)
  %own = call i32 @oxide.register.laneid(ptr %context)
  %distance = and i32 %by, 31
{source}
  %group = load i32, {{group[i32 %own]}}
  %shifted = lshr i32 %group, %from
  %named = trunc i32 %shifted to i1
  %other = load i64, {{published[i32 %from]}}
  %narrow = {narrowed}
  %moved = select i1 %named, {kind} %narrow, {kind} %value
  ret {kind} %moved
"""

_MISSING_SOURCE = """
; The lane that a shuffle takes its value from, as a bit, if it took no part: it does not exist, it has returned, or the
; mask does not name it.
define i32 @oxide.warp.missing_source.{how}(ptr %context, i32 %by) alwaysinline {
  %block = call ptr @oxide.block(ptr %context)
  %own = call i32 @oxide.register.laneid(ptr %context)
  %distance = and i32 %by, 31
{source}
  %group = load i32, {{group[i32 %own]}}
  %bit = shl i32 1, %from
  %apart = xor i32 %group, -1
  %result = and i32 %bit, %apart
  ret i32 %result
}
"""


_SOURCES = {
    "idx": "  %from = add i32 %distance, 0",
    "up": """  %there = icmp uge i32 %own, %distance
  %below = sub i32 %own, %distance
  %from = select i1 %there, i32 %below, i32 %own""",
    "down": """  %above = add i32 %own, %distance
  %there = icmp ult i32 %above, 32
  %from = select i1 %there, i32 %above, i32 %own""",
    "bfly": "  %from = xor i32 %own, %distance",
}
"""The CPU's code that computes the lane to read, by PTX's name of the shuffle."""


def _shuffle(function: Any, how: str, clamp: int, read: Callable[[int, int], int]) -> Primitive:
    """Returns the entry of a shuffle. ``clamp`` is the last argument of PTX's instruction. ``read`` computes the
    lane to read in the interpreter, from this lane and the second argument."""

    by = parameters_of(function)[1].name

    def combined(kind: str, brought: Lanes) -> Lanes:
        return {lane: (brought.get(read(lane, by)) or brought[lane])[0] for lane, (_, by) in brought.items()}

    return Primitive(
        function,
        _shuffled,
        f"oxide.warp.shuffle.{how}.{{kind}}",
        as_bits=True,
        ptx=_PTX_SHUFFLE.replace("{how}", how).replace("{clamp}", str(clamp)),
        cpu=_CPU_SHUFFLE.replace("{source}", _SOURCES[how]).replace("%by", f"%{by}"),
        meeting="warp",
        combined=combined,
    )


# Votes, matches and reductions


def _vote(function: Any, result: str, cpu: str, combined: Callable[[Lanes], Any]) -> Primitive:
    how, llvm_result = function.__name__, llvm_type(result)
    return Primitive(
        function,
        condition(result),
        ptx=f"""
declare {llvm_result} @llvm.nvvm.vote.{how}.sync(i32, i1) convergent
  %result = call {llvm_result} @llvm.nvvm.vote.{how}.sync(i32 %mask, i1 %condition) convergent
  ret {llvm_result} %result
""",
        cpu=cpu,
        meeting="warp",
        combined=_all_of(lambda kind, brought: combined(brought)),
    )


def _reduction(function: Any, how: str, operation: Callable[[Any, Any], Any]) -> Primitive:
    """Returns the entry of a reduction, whose definitions are in ``reductions.py``. The interpreter combines the values
    in the order of the lanes, from the lowest, as the CPU device does."""

    def symbol(signature: Signature) -> str:
        kind = signature.arguments[0]
        unsigned = "u" if kind[0] == "u" and how in ("min", "max") else ""
        return f"oxide.warp.reduce.{unsigned}{how}.{kind.replace('u', 'i')}"

    def combined(kind: str, brought: Lanes) -> Any:
        rounded = ROUND[kind] if kind in FLOATS else WRAP[kind]
        first, *others = [brought[lane] for lane in sorted(brought)]
        for each in others:
            first = rounded(operation(first, each))
        return first

    rule = _value(integer=how in ("and", "or", "xor"))
    return Primitive(function, rule, symbol, meeting="warp", combined=_all_of(combined))


ENTRIES = (
    _shuffle(warp.shuffle, "idx", 31, lambda lane, by: by % warp.SIZE),
    _shuffle(warp.shuffle_up, "up", 0, _up),
    _shuffle(warp.shuffle_down, "down", 31, _down),
    _shuffle(warp.shuffle_xor, "bfly", 31, lambda lane, by: lane ^ by),
    _vote(
        warp.ballot,
        "u32",
        """
  call void @oxide.exchange(ptr %context, i32 %mask, i64 0, i1 %condition, i32 %site)
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %group = load i32, {{group[i32 %lane]}}
  %bits = load i32, {{published.bits}}
  %result = and i32 %bits, %group
  ret i32 %result
""",
        lambda brought: _mask_of(lane for lane, each in brought.items() if each),
    ),
    _vote(
        warp.any,
        "bool_",
        """
  %lanes = call i32 @oxide.warp.ballot(ptr %context, i32 %mask, i1 %condition, i32 %site)
  %result = icmp ne i32 %lanes, 0
  ret i1 %result
""",
        lambda brought: any(brought.values()),
    ),
    _vote(
        warp.all,
        "bool_",
        """
  %false = xor i1 %condition, true
  %lanes = call i32 @oxide.warp.ballot(ptr %context, i32 %mask, i1 %false, i32 %site)
  %result = icmp eq i32 %lanes, 0
  ret i1 %result
""",
        lambda brought: all(brought.values()),
    ),
    Primitive(
        warp.elect,
        returning("bool_"),
        ptx={
            0: """
  %lanes = call i32 @llvm.nvvm.vote.ballot.sync(i32 %mask, i1 true) convergent
  %first = call i32 @llvm.cttz.i32(i32 %lanes, i1 false)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %elected = icmp eq i32 %lane, %first
  ret i1 %elected
""",
            90: """
declare { i32, i1 } @llvm.nvvm.elect.sync(i32) convergent
  %both = call { i32, i1 } @llvm.nvvm.elect.sync(i32 %mask) convergent
  %elected = extractvalue { i32, i1 } %both, 1
  ret i1 %elected
""",
        },
        cpu="""
  %lanes = call i32 @oxide.warp.ballot(ptr %context, i32 %mask, i1 true, i32 %site)
  %first = call i32 @llvm.cttz.i32(i32 %lanes, i1 true)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %elected = icmp eq i32 %lane, %first
  ret i1 %elected
""",
        meeting="warp",
        combined=lambda kind, brought: {lane: lane == min(brought) for lane in brought},
    ),
    Primitive(
        warp.match_any,
        _value("u32"),
        "oxide.warp.match.any.{kind}",
        as_bits=True,
        ptx="""
declare i32 @llvm.nvvm.match.any.sync.{kind}(i32, {kind}) convergent
  %lanes = call i32 @llvm.nvvm.match.any.sync.{kind}(i32 %mask, {kind} %value) convergent
  ret i32 %lanes
""",
        cpu="""
  %wide = {widened}
  call void @oxide.exchange(ptr %context, i32 %mask, i64 %wide, i1 false, i32 %site)
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %group = load i32, {{group[i32 %lane]}}
  %lanes = call i32 @oxide.matching(ptr %block, i32 %group, i64 %wide)
  ret i32 %lanes
""",
        meeting="warp",
        combined=_match_any,
    ),
    Primitive(
        warp.match_all,
        _value("u32"),
        "oxide.warp.match.all.{kind}",
        as_bits=True,
        ptx="""
declare { i32, i1 } @llvm.nvvm.match.all.sync.{kind}p(i32, {kind}) convergent
  %both = call { i32, i1 } @llvm.nvvm.match.all.sync.{kind}p(i32 %mask, {kind} %value) convergent
  %lanes = extractvalue { i32, i1 } %both, 0
  ret i32 %lanes
""",
        cpu="""
  %lanes = call i32 @oxide.warp.match.any.{kind}(ptr %context, i32 %mask, {kind} %value, i32 %site)
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %group = load i32, {{group[i32 %lane]}}
  %same = icmp eq i32 %lanes, %group
  %result = select i1 %same, i32 %group, i32 0
  ret i32 %result
""",
        meeting="warp",
        combined=_all_of(_match_all),
    ),
    _reduction(warp.reduce_add, "add", operator.add),
    _reduction(warp.reduce_min, "min", least),
    _reduction(warp.reduce_max, "max", greatest),
    _reduction(warp.reduce_and, "and", operator.and_),
    _reduction(warp.reduce_or, "or", operator.or_),
    _reduction(warp.reduce_xor, "xor", operator.xor),
    Primitive(
        warp.sync,
        returning(NONE),
        ptx="""
declare void @llvm.nvvm.bar.warp.sync(i32) convergent
  call void @llvm.nvvm.bar.warp.sync(i32 %mask) convergent
  ret void
""",
        cpu="""
  call void @oxide.exchange(ptr %context, i32 %mask, i64 0, i1 false, i32 %site)
  ret void
""",
        meeting="warp",
        combined=_all_of(lambda kind, brought: None),
    ),
    Primitive(
        warp.active_mask,
        returning("u32"),
        ptx="""
declare i32 @llvm.nvvm.activemask() convergent
  %lanes = call i32 @llvm.nvvm.activemask() convergent
  ret i32 %lanes
""",
        cpu="""
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %bit = shl i32 1, %lane
  %converging = load i32, {{converging}}
  %more = or i32 %converging, %bit
  store i32 %more, {{converging}}
  call void @oxide.exchange(ptr %context, i32 0, i64 0, i1 false, i32 %site)
  %group = load i32, {{group[i32 %lane]}}
  ret i32 %group
""",
        meeting="warp",
    ),
)

_CPU = """
define void @oxide.exchange(ptr %context, i32 %mask, i64 %value, i1 %condition, i32 %site) alwaysinline {
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %bit = shl i32 1, %lane
  store i64 %value, {{value[i32 %lane]}}
  store i32 %mask, {{mask[i32 %lane]}}
  store i32 %site, {{site[i32 %lane]}}
  %waiting = load i32, {{waiting}}
  %more = or i32 %waiting, %bit
  store i32 %more, {{waiting}}
  %bits = load i32, {{bits}}
  %not_bit = xor i32 %bit, -1
  %cleared = and i32 %bits, %not_bit
  %set = or i32 %bits, %bit
  %new = select i1 %condition, i32 %set, i32 %cleared
  store i32 %new, {{bits}}
  call void @oxide.suspend()
  ret void
}
; The lanes of the mask that took no part in this lane's last operation: they had returned, or do not exist. The full
; mask stands for all lanes that exist.
define i32 @oxide.warp.missing(ptr %context, i32 %mask) alwaysinline {
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %group = load i32, {{group[i32 %lane]}}
  %nx = load i32, {{ntid[i32 0]}}
  %ny = load i32, {{ntid[i32 1]}}
  %nz = load i32, {{ntid[i32 2]}}
  %plane = mul i32 %nx, %ny
  %threads = mul i32 %plane, %nz
  %thread = call i32 @oxide.linear_thread(ptr %context)
  %first = and i32 %thread, -32
  %left = sub i32 %threads, %first
  %whole = icmp uge i32 %left, 32
  %part = and i32 %left, 31
  %beyond = shl i32 -1, %part
  %within = xor i32 %beyond, -1
  %there = select i1 %whole, i32 -1, i32 %within
  %full = icmp eq i32 %mask, -1
  %named = select i1 %full, i32 %there, i32 %mask
  %apart = xor i32 %group, -1
  %missing = and i32 %named, %apart
  ret i32 %missing
}
define internal i32 @oxide.matching(ptr %block, i32 %group, i64 %value) noinline {
entry:
  br label %next
next:
  %left = phi i32 [ %group, %entry ], [ %rest, %next ]
  %lanes = phi i32 [ 0, %entry ], [ %lanes.more, %next ]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %bit = shl i32 1, %lane
  %other = load i64, {{published[i32 %lane]}}
  %same = icmp eq i64 %other, %value
  %added = select i1 %same, i32 %bit, i32 0
  %lanes.more = or i32 %lanes, %added
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %more = icmp ne i32 %rest, 0
  br i1 %more, label %next, label %done
done:
  ret i32 %lanes.more
}
"""
"""What the CPU's definitions call, and what the sanitizer asks."""


def ptx_definitions(symbols: Collection[str], capability: int) -> list[str]:
    """Returns a GPU's definitions for a kernel that calls the functions ``symbols``. Empty if it needs none."""
    if not any(symbol.startswith("oxide.warp.") for symbol in symbols):
        return []
    return [_on_gpu(capability), *(reductions.on_gpu(*each, capability) for each in reductions.used(symbols))]


@functools.cache
def _on_gpu(capability: int) -> str:
    texts = (entry.ptx_text(capability) for entry in ENTRIES)
    return "\n".join(["declare i32 @llvm.cttz.i32(i32, i1)", *texts])


def cpu_definitions(symbols: Collection[str]) -> list[str]:
    """Returns the CPU's definitions, as ``ptx_definitions`` does. The fields of the block's state are not replaced yet.
    The primitives of ``cpu/coroutines/tensor_primitives.py`` call warp operations too."""
    if not any(symbol.startswith(("oxide.warp.", "oxide.tensor.")) for symbol in symbols):
        return []
    return [_on_cpu(), *(reductions.on_cpu(*each) for each in reductions.used(symbols))]


@functools.cache
def _on_cpu() -> str:
    missing = (_MISSING_SOURCE.replace("{how}", how).replace("{source}", text) for how, text in _SOURCES.items())
    return "".join([_CPU, *missing, *(entry.cpu_text for entry in ENTRIES)])
