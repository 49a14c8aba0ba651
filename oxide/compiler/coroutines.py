"""Blocks whose threads wait for one another, on the CPU: each thread is an LLVM coroutine.

A block is run by one worker. It resumes the threads in turn, warp by warp; a thread runs until it comes to a barrier
or to a warp operation, says so in the block's state, and suspends. When all lanes that a warp operation names have
come, their values are published, and they go on; when every thread that has not returned is at the barrier, a new
round begins. A switch is a call through a pointer. Frames lie one beside the other in memory that serves block after
block; nothing is allocated for a thread.

**Semantics.** As on GPUs since Volta: threads that have returned are not waited for, by barriers or by warp operations;
a warp operation waits for the lanes in its mask and no others. Where the threads of a block wait at different barriers,
or in a ring, none can ever go on: the block is given up, and the fault record gets ``claimed`` 2 and two places in
the source. A thread that spins until another one writes is not seen, and hangs: nothing takes the worker from it.

**How a call becomes a suspension.** ``@oxide.suspend`` is inlined as a call and a branch on its result, so that it ends
a basic block. Once everything is inlined into the coroutine, each such pair becomes ``llvm.coro.suspend`` and a switch
with the same target: no block is split and no phi changes. LLVM's pipeline then splits the coroutine, after it has
simplified it, and only what lives across a suspension goes to the frame.

What a thread publishes is copied when a group is released, since the first one to go on may publish its next value
before the last has read this one. Only one warp at a time is between its rounds, so a block has one set of exchange
slots. All the state is the worker's own; none of it is atomic.
"""

from __future__ import annotations

import re
from typing import Any

import llvmlite.binding as llvm

from . import native_primitives, parameters, reductions
from .divergence import DIVERGENT
from .ir import PortableKernel, link
from .native_primitives import BLOCK_FIELD, CONTEXT
from .primitives import declared_once
from .signature import Parameter

_FIELDS = {
    "ctaid": "[3 x i32]",
    "ntid": "[3 x i32]",
    "nctaid": "[3 x i32]",
    "record": "ptr",
    "shared": "ptr",
    "dynamic": "i64",
    "params": "ptr",
    "frames": "ptr",  # one frame for each thread, null before the first thread ever
    "stride": "i64",
    "live": "i32",  # threads that have not returned
    "arrived": "i32",  # threads at the barrier, and the least and the greatest of their places in the source
    "least": "i32",
    "greatest": "i32",
    "count": "i32",  # of true conditions at the barrier
    "passed.arrived": "i32",  # the same two of the barrier that was passed last
    "passed.count": "i32",
    "waiting": "i32",  # lanes of the warp that runs that are at a warp operation, and those of them at active_mask
    "converging": "i32",
    "bits": "i32",  # conditions of the lanes that wait; and those published
    "published.bits": "i32",
    "alive": "[32 x i32]",  # for each warp, the lanes that have not returned
    "value": "[32 x i64]",  # for each lane: its value, and the one published
    "published": "[32 x i64]",
    "mask": "[32 x i32]",  # the lanes it waits for, and the place in the source
    "site": "[32 x i32]",
    "group": "[32 x i32]",  # the lanes it was released with
}
_BLOCK = "{ " + ", ".join(_FIELDS.values()) + " }"
_NUMBER = {name: number for number, name in enumerate(_FIELDS)}

_SUSPENSION = re.compile(
    r"  (?P<how>%\S+) = call i1 @oxide\.suspension\(\)\n  br i1 (?P=how), label (?P<target>%\S+), label %\S+\n"
)
_FIELD = re.compile(r"\{\{(?P<name>[\w.]+)(?:\[(?P<index>[^\]]+)\])?\}\}")


def split_points(text: str) -> str:
    """Turns each suspension in the coroutine, where all is inlined, into a suspend point."""
    start = text.index("define internal ptr @oxide.thread(")
    end = text.index("\n}\n", start)
    coroutine = _SUSPENSION.sub(
        r"  \g<how> = call i8 @llvm.coro.suspend(token none, i1 false)\n"
        r"  switch i8 \g<how>, label %suspended [ i8 0, label \g<target> i8 1, label %suspended ]\n",
        text[start:end],
    )
    return text[:start] + coroutine + text[end:]


def inline_all(module: Any, machine: Any) -> Any:
    """The module with every function inlined into the coroutine, and its suspensions turned into suspend points."""
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    for function in list(module.functions):
        if function.name.startswith("oxide.block.") or function.name.startswith("oxide.warp."):
            function.linkage = "internal"
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3)))
    return link([split_points(str(module))])


def definitions(
    kernel: PortableKernel, module: Any, signature: tuple[Parameter, ...], kernel_id: int, entry: str
) -> str:
    """The primitives, the coroutine around the kernel, and ``entry``, which runs a range of blocks."""
    words = parameters.word_types(signature)
    values = {
        "entry": entry,
        "block": _BLOCK,
        "params": "{ " + ", ".join([*words, "ptr"]) + " }",
        "last": str(len(words)),
        "static": str(native_primitives.static_bytes(kernel.shared)),
        "divergent": str(DIVERGENT),
        "kernel_id": str(kernel_id),
    }
    texts = [_PRIMITIVES, _RELEASE, _RUN_BLOCK, _ENTRY]
    if "@oxide.warp." in kernel.text:
        texts += [_WARP, *(_reduction(*found) for found in reductions.used(kernel.text))]
    for name, value in values.items():
        texts = [text.replace(f"<{name}>", value) for text in texts]
    return declared_once("\n".join([*map(_render, texts), _thread(kernel, module, signature)]))


def _render(text: str) -> str:
    """``{{name}}`` and ``{{name[index]}}`` are fields of ``%block``, as constant-offset addresses."""
    lines: list[str] = []
    for line in text.split("\n"):
        match = _FIELD.search(line)
        while match is not None:
            address = f"%field.{len(lines)}"
            index = f", {match['index']}" if match["index"] is not None else ""
            lines.append(
                f"  {address} = getelementptr {_BLOCK}, ptr %block, i32 0, i32 {_NUMBER[match['name']]}{index}"
            )
            line = line[: match.start()] + f"ptr {address}" + line[match.end() :]
            match = _FIELD.search(line)
        lines.append(line)
    return "\n".join(lines)


def _thread(kernel: PortableKernel, module: Any, signature: tuple[Parameter, ...]) -> str:
    """The coroutine: it fills in a context and calls the kernel."""
    types = parameters.word_types(signature)
    words = [f"%word.{number}" for number in range(len(types))]
    declaration, call = parameters.call(kernel, module, "%context", words, types)
    structure = "{ " + ", ".join([*types, "ptr"]) + " }"
    loads = "\n".join(
        f"  %word.at.{number} = getelementptr {structure}, ptr %params, i32 0, i32 {number}\n"
        f"  %word.{number} = load {kind}, ptr %word.at.{number}"
        for number, kind in enumerate(types)
    )

    def put(field: int, kind: str, value: str, name: str, axis: str = "") -> str:
        return (
            f"  %put.{name} = getelementptr {CONTEXT}, ptr %context, i32 0, i32 {field}{axis}\n"
            f"  store {kind} {value}, ptr %put.{name}"
        )

    lines = [put(0, "i32", f"%{axis}", f"tid.{axis}", f", i32 {place}") for place, axis in enumerate("xyz")]
    copied = [("ctaid", 1), ("ntid", 2), ("nctaid", 3)]
    for name, field in copied:
        for place, axis in enumerate("xyz"):
            lines.append(f"  %{name}.{axis} = load i32, {{{{{name}[i32 {place}]}}}}")
            lines.append(put(field, "i32", f"%{name}.{axis}", f"{name}.{axis}", f", i32 {place}"))
    for name, kind, field in (
        ("record", "ptr", native_primitives.RECORD_FIELD),
        ("shared", "ptr", native_primitives.SHARED_FIELD),
        ("dynamic", "i64", native_primitives.DYNAMIC_FIELD),
    ):
        lines.append(f"  %{name} = load {kind}, {{{{{name}}}}}")
        lines.append(put(field, kind, f"%{name}", name))
    lines.append(put(BLOCK_FIELD, "ptr", "%block", "block"))
    return declaration + _render(
        _THREAD.replace("<context>", CONTEXT)
        .replace("<fill>", "\n".join(lines))
        .replace("<loads>", loads)
        .replace("<call>", call)
    )


_THREAD = """
declare token @llvm.coro.id(i32, ptr, ptr, ptr)
declare i64 @llvm.coro.size.i64()
declare ptr @llvm.coro.begin(token, ptr)
declare i8 @llvm.coro.suspend(token, i1)
declare void @llvm.coro.end(ptr, i1, token)
declare void @llvm.coro.resume(ptr)

define internal ptr @oxide.thread(ptr %block, i32 %thread, i32 %x, i32 %y, i32 %z) presplitcoroutine noinline {
entry:
  %context = alloca <context>
  %id = call token @llvm.coro.id(i32 64, ptr null, ptr null, ptr null)
  %size = call i64 @llvm.coro.size.i64()
  %padded = add i64 %size, 63
  %stride = and i64 %padded, -64
  %frames = call ptr @oxide.frames(ptr %block, i64 %stride)
  %wide = zext i32 %thread to i64
  %offset = mul i64 %wide, %stride
  %memory = getelementptr i8, ptr %frames, i64 %offset
  %handle = call ptr @llvm.coro.begin(token %id, ptr %memory)
<fill>
  %params = load ptr, {{params}}
<loads>
<call>
  %live = load i32, {{live}}
  %fewer = sub i32 %live, 1
  store i32 %fewer, {{live}}
  %warp = lshr i32 %thread, 5
  %lane = and i32 %thread, 31
  %bit = shl i32 1, %lane
  %others = xor i32 %bit, -1
  %alive = load i32, {{alive[i32 %warp]}}
  %left = and i32 %alive, %others
  store i32 %left, {{alive[i32 %warp]}}
  %last = call i8 @llvm.coro.suspend(token none, i1 true)
  switch i8 %last, label %suspended [ i8 1, label %suspended ]
suspended:
  call void @llvm.coro.end(ptr %handle, i1 false, token none)
  ret ptr %handle
}

define internal ptr @oxide.frames(ptr %block, i64 %stride) alwaysinline {
  %old = load ptr, {{frames}}
  %none = icmp eq ptr %old, null
  br i1 %none, label %first, label %done
first:
  %new = call ptr @oxide.make_frames(ptr %block, i64 %stride)
  br label %done
done:
  %frames = phi ptr [ %old, %0 ], [ %new, %first ]
  ret ptr %frames
}

define internal ptr @oxide.make_frames(ptr %block, i64 %stride) noinline cold {
  %nx = load i32, {{ntid[i32 0]}}
  %ny = load i32, {{ntid[i32 1]}}
  %nz = load i32, {{ntid[i32 2]}}
  %plane = mul i32 %nx, %ny
  %threads = mul i32 %plane, %nz
  %wide = zext i32 %threads to i64
  %bytes = mul i64 %wide, %stride
  %frames = call ptr @oxide.allocate(i64 %bytes)
  store ptr %frames, {{frames}}
  store i64 %stride, {{stride}}
  ret ptr %frames
}
"""

_PRIMITIVES = (
    f"""
declare i1 @oxide.suspension()
declare void @oxide.never()
declare i32 @llvm.umin.i32(i32, i32)
declare i32 @llvm.umax.i32(i32, i32)
declare i32 @llvm.cttz.i32(i32, i1)

define internal void @oxide.suspend() alwaysinline {{
  %how = call i1 @oxide.suspension()
  br i1 %how, label %resumed, label %never
never:
  call void @oxide.never()
  br label %resumed
resumed:
  ret void
}}

define internal ptr @oxide.block(ptr %context) alwaysinline {{
  %at = getelementptr {CONTEXT}, ptr %context, i32 0, i32 {BLOCK_FIELD}
  %block = load ptr, ptr %at
  ret ptr %block
}}
"""
    + """
define void @oxide.block.barrier(ptr %context, i32 %site) alwaysinline {
  %block = call ptr @oxide.block(ptr %context)
  %arrived = load i32, {{arrived}}
  %more = add i32 %arrived, 1
  store i32 %more, {{arrived}}
  %least = load i32, {{least}}
  %lesser = call i32 @llvm.umin.i32(i32 %least, i32 %site)
  store i32 %lesser, {{least}}
  %greatest = load i32, {{greatest}}
  %greater = call i32 @llvm.umax.i32(i32 %greatest, i32 %site)
  store i32 %greater, {{greatest}}
  call void @oxide.suspend()
  ret void
}

define i32 @oxide.block.barrier.count(ptr %context, i1 %condition, i32 %site) alwaysinline {
  %block = call ptr @oxide.block(ptr %context)
  %one = zext i1 %condition to i32
  %count = load i32, {{count}}
  %more = add i32 %count, %one
  store i32 %more, {{count}}
  call void @oxide.block.barrier(ptr %context, i32 %site)
  %result = load i32, {{passed.count}}
  ret i32 %result
}

define i1 @oxide.block.barrier.and(ptr %context, i1 %condition, i32 %site) alwaysinline {
  %count = call i32 @oxide.block.barrier.count(ptr %context, i1 %condition, i32 %site)
  %block = call ptr @oxide.block(ptr %context)
  %all = load i32, {{passed.arrived}}
  %result = icmp eq i32 %count, %all
  ret i1 %result
}

define i1 @oxide.block.barrier.or(ptr %context, i1 %condition, i32 %site) alwaysinline {
  %count = call i32 @oxide.block.barrier.count(ptr %context, i1 %condition, i32 %site)
  %result = icmp ne i32 %count, 0
  ret i1 %result
}
"""
)

_SHUFFLE = """
define {kind} @oxide.warp.shuffle.{how}.{kind}(ptr %context, i32 %mask, {kind} %value, i32 %by, i32 %site)
    alwaysinline {
  %wide = {widen} {kind} %value to i64
  call void @oxide.exchange(ptr %context, i32 %mask, i64 %wide, i1 false, i32 %site)
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %distance = and i32 %by, 31
{source}
  %group = load i32, {{group[i32 %lane]}}
  %shifted = lshr i32 %group, %from
  %named = trunc i32 %shifted to i1
  %other = load i64, {{published[i32 %from]}}
  %narrow = {narrow} i64 %other to {kind}
  %moved = select i1 %named, {kind} %narrow, {kind} %value
  ret {kind} %moved
}
"""

_SOURCES = {
    "idx": "  %from = add i32 %distance, 0",
    "up": """  %there = icmp uge i32 %lane, %distance
  %below = sub i32 %lane, %distance
  %from = select i1 %there, i32 %below, i32 %lane""",
    "down": """  %above = add i32 %lane, %distance
  %there = icmp ult i32 %above, 32
  %from = select i1 %there, i32 %above, i32 %lane""",
    "bfly": "  %from = xor i32 %lane, %distance",
}


def _shuffle(how: str, kind: str) -> str:
    text = _SHUFFLE.replace("{kind}", kind).replace("{how}", how).replace("{source}", _SOURCES[how])
    if kind == "i64":
        return text.replace("{widen} i64 %value to i64", "add i64 %value, 0").replace(
            "{narrow} i64 %other to i64", "add i64 %other, 0"
        )
    return text.replace("{widen}", "zext").replace("{narrow}", "trunc")


_MATCH = """
define i32 @oxide.warp.match.any.{kind}(ptr %context, i32 %mask, {kind} %value, i32 %site) alwaysinline {
  %wide = {widen}
  call void @oxide.exchange(ptr %context, i32 %mask, i64 %wide, i1 false, i32 %site)
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %group = load i32, {{group[i32 %lane]}}
  %lanes = call i32 @oxide.matching(ptr %block, i32 %group, i64 %wide)
  ret i32 %lanes
}
define i32 @oxide.warp.match.all.{kind}(ptr %context, i32 %mask, {kind} %value, i32 %site) alwaysinline {
  %lanes = call i32 @oxide.warp.match.any.{kind}(ptr %context, i32 %mask, {kind} %value, i32 %site)
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %group = load i32, {{group[i32 %lane]}}
  %same = icmp eq i32 %lanes, %group
  %result = select i1 %same, i32 %group, i32 0
  ret i32 %result
}
"""


def _match(kind: str) -> str:
    widen = "zext i32 %value to i64" if kind == "i32" else "add i64 %value, 0"
    return _MATCH.replace("{widen}", widen).replace("{kind}", kind)


_WARP = (
    """
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
define void @oxide.warp.sync(ptr %context, i32 %mask, i32 %site) alwaysinline {
  call void @oxide.exchange(ptr %context, i32 %mask, i64 0, i1 false, i32 %site)
  ret void
}
define i32 @oxide.warp.active_mask(ptr %context, i32 %site) alwaysinline {
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %bit = shl i32 1, %lane
  %converging = load i32, {{converging}}
  %more = or i32 %converging, %bit
  store i32 %more, {{converging}}
  call void @oxide.exchange(ptr %context, i32 0, i64 0, i1 false, i32 %site)
  %group = load i32, {{group[i32 %lane]}}
  ret i32 %group
}
define i32 @oxide.warp.ballot(ptr %context, i32 %mask, i1 %condition, i32 %site) alwaysinline {
  call void @oxide.exchange(ptr %context, i32 %mask, i64 0, i1 %condition, i32 %site)
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %group = load i32, {{group[i32 %lane]}}
  %bits = load i32, {{published.bits}}
  %result = and i32 %bits, %group
  ret i32 %result
}
define i1 @oxide.warp.any(ptr %context, i32 %mask, i1 %condition, i32 %site) alwaysinline {
  %lanes = call i32 @oxide.warp.ballot(ptr %context, i32 %mask, i1 %condition, i32 %site)
  %result = icmp ne i32 %lanes, 0
  ret i1 %result
}
define i1 @oxide.warp.all(ptr %context, i32 %mask, i1 %condition, i32 %site) alwaysinline {
  %false = xor i1 %condition, true
  %lanes = call i32 @oxide.warp.ballot(ptr %context, i32 %mask, i1 %false, i32 %site)
  %result = icmp eq i32 %lanes, 0
  ret i1 %result
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
    + "".join(_shuffle(how, kind) for how in _SOURCES for kind in ("i32", "i64"))
    + "".join(_match(kind) for kind in ("i32", "i64"))
)


def _reduction(symbol: str, operator: str, kind: str) -> str:
    """The lanes' values one after the other, the same order for each lane."""
    name, bits = reductions.llvm_type(kind), reductions.bits_type(kind)

    def value_of(result: str, lane: str) -> str:
        narrow = f"trunc i64 {result}.wide to i32" if bits == "i32" else f"add i64 {result}.wide, 0"
        return (
            f"  {result}.wide = load i64, {{{{published[i32 {lane}]}}}}\n"
            f"  {result}.bits = {narrow}\n  {result} = bitcast {bits} {result}.bits to {name}"
        )

    return f"""
{reductions.declaration(operator, kind)}
define {name} @{symbol}(ptr %context, i32 %mask, {name} %value, i32 %site) alwaysinline {{
  %bits = bitcast {name} %value to {bits}
  %wide = {"zext i32 %bits to i64" if bits == "i32" else "add i64 %bits, 0"}
  call void @oxide.exchange(ptr %context, i32 %mask, i64 %wide, i1 false, i32 %site)
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %group = load i32, {{{{group[i32 %lane]}}}}
  %result = call {name} @oxide.combined.{operator}.{kind}(ptr %block, i32 %group)
  ret {name} %result
}}
define internal {name} @oxide.combined.{operator}.{kind}(ptr %block, i32 %group) noinline {{
entry:
  %first = call i32 @llvm.cttz.i32(i32 %group, i1 true)
{value_of("%start", "%first")}
  %start.less = sub i32 %group, 1
  %start.rest = and i32 %group, %start.less
  br label %next
next:
  %left = phi i32 [ %start.rest, %entry ], [ %rest, %more ]
  %sum = phi {name} [ %start, %entry ], [ %sum.more, %more ]
  %done = icmp eq i32 %left, 0
  br i1 %done, label %finish, label %more
more:
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
{value_of("%value", "%lane")}
{reductions.combine(operator, kind, "%sum.more", "%sum", "%value")}
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  br label %next
finish:
  ret {name} %sum
}}
"""


_RELEASE = """
; The lanes of the warp that runs that may go on, their values published. None: nobody ever can.
define internal i32 @oxide.release_lanes(ptr %block, i32 %alive) noinline {
entry:
  %waiting = load i32, {{waiting}}
  %converging = load i32, {{converging}}
  %apart = xor i32 %converging, -1
  %asking = and i32 %waiting, %apart
  br label %next
next:
  %left = phi i32 [ %asking, %entry ], [ %left.refused, %refuse ], [ %left.released, %released ]
  %free = phi i32 [ 0, %entry ], [ %free, %refuse ], [ %free.more, %released ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %finish, label %look
look:
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %bit = shl i32 1, %lane
  %mask = load i32, {{mask[i32 %lane]}}
  %group = and i32 %mask, %alive
  %come = and i32 %group, %asking
  %complete = icmp eq i32 %come, %group
  %own = and i32 %group, %bit
  %member = icmp ne i32 %own, 0
  %candidate = and i1 %complete, %member
  br i1 %candidate, label %agree, label %refuse
agree:
  %unseen = phi i32 [ %group, %look ], [ %unseen.next, %same ]
  %all_seen = icmp eq i32 %unseen, 0
  br i1 %all_seen, label %publish, label %compare
compare:
  %other = call i32 @llvm.cttz.i32(i32 %unseen, i1 true)
  %other.mask = load i32, {{mask[i32 %other]}}
  %equal = icmp eq i32 %other.mask, %mask
  br i1 %equal, label %same, label %refuse
same:
  %unseen.less = sub i32 %unseen, 1
  %unseen.next = and i32 %unseen, %unseen.less
  br label %agree
refuse:
  %not_bit = xor i32 %bit, -1
  %left.refused = and i32 %left, %not_bit
  br label %next
publish:
  call void @oxide.publish(ptr %block, i32 %group)
  br label %released
released:
  %not_group = xor i32 %group, -1
  %left.released = and i32 %left, %not_group
  %free.more = or i32 %free, %group
  br label %next
finish:
  %nobody = icmp eq i32 %free, 0
  %some = icmp ne i32 %converging, 0
  %last_resort = and i1 %nobody, %some
  br i1 %last_resort, label %converge, label %done
converge:
  ; Nothing else can move, so the lanes at one active_mask() are as together as they can be.
  %first = call i32 @llvm.cttz.i32(i32 %converging, i1 true)
  %place = load i32, {{site[i32 %first]}}
  br label %gather
gather:
  %rest = phi i32 [ %converging, %converge ], [ %rest.next, %gather ]
  %together = phi i32 [ 0, %converge ], [ %together.more, %gather ]
  %each = call i32 @llvm.cttz.i32(i32 %rest, i1 true)
  %each.bit = shl i32 1, %each
  %each.place = load i32, {{site[i32 %each]}}
  %here = icmp eq i32 %each.place, %place
  %added = select i1 %here, i32 %each.bit, i32 0
  %together.more = or i32 %together, %added
  %rest.less = sub i32 %rest, 1
  %rest.next = and i32 %rest, %rest.less
  %more = icmp ne i32 %rest.next, 0
  br i1 %more, label %gather, label %gathered
gathered:
  call void @oxide.publish(ptr %block, i32 %together.more)
  br label %done
done:
  %result = phi i32 [ %free, %finish ], [ %together.more, %gathered ]
  %keep = xor i32 %result, -1
  %still = and i32 %waiting, %keep
  store i32 %still, {{waiting}}
  %still.converging = and i32 %converging, %keep
  store i32 %still.converging, {{converging}}
  ret i32 %result
}

define internal void @oxide.publish(ptr %block, i32 %group) {
entry:
  %not_group = xor i32 %group, -1
  %bits = load i32, {{bits}}
  %bits.new = and i32 %bits, %group
  %published = load i32, {{published.bits}}
  %bits.old = and i32 %published, %not_group
  %bits.all = or i32 %bits.old, %bits.new
  store i32 %bits.all, {{published.bits}}
  br label %next
next:
  %left = phi i32 [ %group, %entry ], [ %left.next, %next ]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %value = load i64, {{value[i32 %lane]}}
  store i64 %value, {{published[i32 %lane]}}
  store i32 %group, {{group[i32 %lane]}}
  %less = sub i32 %left, 1
  %left.next = and i32 %left, %less
  %more = icmp ne i32 %left.next, 0
  br i1 %more, label %next, label %done
done:
  ret void
}
"""

_RUN_BLOCK = """
define internal void @oxide.run_block(ptr %block, i32 %threads) noinline {
entry:
  store i32 %threads, {{live}}
  store i32 0, {{arrived}}
  store i32 -1, {{least}}
  store i32 0, {{greatest}}
  store i32 0, {{count}}
  store i32 0, {{waiting}}
  store i32 0, {{converging}}
  %nx = load i32, {{ntid[i32 0]}}
  %ny = load i32, {{ntid[i32 1]}}
  %rounded = add i32 %threads, 31
  %warps = lshr i32 %rounded, 5
  br label %count_lanes
count_lanes:
  %w = phi i32 [ 0, %entry ], [ %w.next, %count_lanes ]
  %w.first = shl i32 %w, 5
  %w.left = sub i32 %threads, %w.first
  %w.whole = icmp uge i32 %w.left, 32
  %w.shift = and i32 %w.left, 31
  %w.high = shl i32 -1, %w.shift
  %w.low = xor i32 %w.high, -1
  %w.lanes = select i1 %w.whole, i32 -1, i32 %w.low
  store i32 %w.lanes, {{alive[i32 %w]}}
  %w.next = add i32 %w, 1
  %w.more = icmp ult i32 %w.next, %warps
  br i1 %w.more, label %count_lanes, label %round
round:
  %starting = phi i1 [ true, %count_lanes ], [ false, %next_round ]
  br label %warp
warp:
  %number = phi i32 [ 0, %round ], [ %number.next, %warp_done ]
  %first = shl i32 %number, 5
  %lanes = load i32, {{alive[i32 %number]}}
  %empty = icmp eq i32 %lanes, 0
  br i1 %empty, label %warp_done, label %pass
pass:
  %fresh = phi i1 [ %starting, %warp ], [ false, %again ]
  %going = phi i32 [ %lanes, %warp ], [ %released, %again ]
  br i1 %fresh, label %start, label %resume
start:
  %start.left = phi i32 [ %going, %pass ], [ %start.left.next, %start ]
  %start.lane = call i32 @llvm.cttz.i32(i32 %start.left, i1 true)
  %start.thread = or i32 %first, %start.lane
  %x = urem i32 %start.thread, %nx
  %rows = udiv i32 %start.thread, %nx
  %y = urem i32 %rows, %ny
  %z = udiv i32 %rows, %ny
  %handle = call ptr @oxide.thread(ptr %block, i32 %start.thread, i32 %x, i32 %y, i32 %z)
  %start.less = sub i32 %start.left, 1
  %start.left.next = and i32 %start.left, %start.less
  %start.more = icmp ne i32 %start.left.next, 0
  br i1 %start.more, label %start, label %ran
resume:
  %frames = load ptr, {{frames}}
  %stride = load i64, {{stride}}
  br label %resume_lane
resume_lane:
  %left = phi i32 [ %going, %resume ], [ %left.next, %resume_lane ]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %thread = or i32 %first, %lane
  %thread.wide = zext i32 %thread to i64
  %offset = mul i64 %thread.wide, %stride
  %frame = getelementptr i8, ptr %frames, i64 %offset
  call void @llvm.coro.resume(ptr %frame)
  %less = sub i32 %left, 1
  %left.next = and i32 %left, %less
  %more = icmp ne i32 %left.next, 0
  br i1 %more, label %resume_lane, label %ran
ran:
  %waiting = load i32, {{waiting}}
  %nobody_waits = icmp eq i32 %waiting, 0
  br i1 %nobody_waits, label %warp_done, label %again
again:
  %alive = load i32, {{alive[i32 %number]}}
  %released = call i32 @oxide.release_lanes(ptr %block, i32 %alive)
  %stuck = icmp eq i32 %released, 0
  br i1 %stuck, label %deadlock, label %pass
warp_done:
  %number.next = add i32 %number, 1
  %warps.more = icmp ult i32 %number.next, %warps
  br i1 %warps.more, label %warp, label %round_done
round_done:
  %live = load i32, {{live}}
  %finished = icmp eq i32 %live, 0
  br i1 %finished, label %done, label %barrier
barrier:
  ; Whoever has not returned and is at no warp operation is at a barrier: all have arrived, if at one and the same.
  %least = load i32, {{least}}
  %greatest = load i32, {{greatest}}
  %one = icmp eq i32 %least, %greatest
  br i1 %one, label %next_round, label %divergent
next_round:
  %arrived = load i32, {{arrived}}
  store i32 %arrived, {{passed.arrived}}
  %count = load i32, {{count}}
  store i32 %count, {{passed.count}}
  store i32 0, {{arrived}}
  store i32 0, {{count}}
  store i32 -1, {{least}}
  store i32 0, {{greatest}}
  br label %round
divergent:
  call void @oxide.report_divergence(ptr %block, i32 %least, i32 %greatest, i32 0, i32 0)
  br label %done
deadlock:
  ; Somebody waits for lanes that are at the barrier, or that wait with another mask.
  %stuck.waiting = load i32, {{waiting}}
  %stuck.lane = call i32 @llvm.cttz.i32(i32 %stuck.waiting, i1 true)
  %stuck.site = load i32, {{site[i32 %stuck.lane]}}
  %stuck.thread = or i32 %first, %stuck.lane
  %at_barrier = load i32, {{arrived}}
  %barrier.empty = icmp eq i32 %at_barrier, 0
  br i1 %barrier.empty, label %other_lane, label %other_barrier
other_barrier:
  %barrier.site = load i32, {{least}}
  br label %report
other_lane:
  %stuck.less = sub i32 %stuck.waiting, 1
  %stuck.rest = and i32 %stuck.waiting, %stuck.less
  %alone = icmp eq i32 %stuck.rest, 0
  %stuck.other = select i1 %alone, i32 %stuck.waiting, i32 %stuck.rest
  %other.lane = call i32 @llvm.cttz.i32(i32 %stuck.other, i1 true)
  %other.site = load i32, {{site[i32 %other.lane]}}
  br label %report
report:
  %other = phi i32 [ %barrier.site, %other_barrier ], [ %other.site, %other_lane ]
  call void @oxide.report_divergence(ptr %block, i32 %stuck.site, i32 %other, i32 1, i32 %stuck.thread)
  br label %done
done:
  ret void
}

define internal void @oxide.report_divergence(ptr %block, i32 %site, i32 %other, i32 %kind, i32 %thread) noinline cold {
  %record = load ptr, {{record}}
  %none = icmp eq ptr %record, null
  br i1 %none, label %done, label %claim
claim:
  %exchange = cmpxchg ptr %record, i32 0, i32 <divergent> monotonic monotonic
  %claimed = extractvalue { i32, i1 } %exchange, 1
  br i1 %claimed, label %fill, label %done
fill:
  %site.at = getelementptr i8, ptr %record, i64 4
  store i32 %site, ptr %site.at
  %other.at = getelementptr i8, ptr %record, i64 16
  %other.wide = zext i32 %other to i64
  store i64 %other.wide, ptr %other.at
  %kind.at = getelementptr i8, ptr %record, i64 24
  %kind.wide = zext i32 %kind to i64
  store i64 %kind.wide, ptr %kind.at
  %id.at = getelementptr i8, ptr %record, i64 8
  store i64 <kernel_id>, ptr %id.at
  %cx = load i32, {{ctaid[i32 0]}}
  %cx.at = getelementptr i8, ptr %record, i64 32
  store i32 %cx, ptr %cx.at
  %cy = load i32, {{ctaid[i32 1]}}
  %cy.at = getelementptr i8, ptr %record, i64 36
  store i32 %cy, ptr %cy.at
  %cz = load i32, {{ctaid[i32 2]}}
  %cz.at = getelementptr i8, ptr %record, i64 40
  store i32 %cz, ptr %cz.at
  %nx = load i32, {{ntid[i32 0]}}
  %ny = load i32, {{ntid[i32 1]}}
  %x = urem i32 %thread, %nx
  %rows = udiv i32 %thread, %nx
  %y = urem i32 %rows, %ny
  %z = udiv i32 %rows, %ny
  %x.at = getelementptr i8, ptr %record, i64 44
  store i32 %x, ptr %x.at
  %y.at = getelementptr i8, ptr %record, i64 48
  store i32 %y, ptr %y.at
  %z.at = getelementptr i8, ptr %record, i64 52
  store i32 %z, ptr %z.at
  br label %done
done:
  ret void
}
"""

_ENTRY = """
define void @<entry>(ptr %launch, i64 %from, i64 %end) {
entry:
  %block = alloca <block>, align 64
  %gx.at = getelementptr i32, ptr %launch, i64 0
  %gx = load i32, ptr %gx.at
  store i32 %gx, {{nctaid[i32 0]}}
  %gy.at = getelementptr i32, ptr %launch, i64 1
  %gy = load i32, ptr %gy.at
  store i32 %gy, {{nctaid[i32 1]}}
  %gz.at = getelementptr i32, ptr %launch, i64 2
  %gz = load i32, ptr %gz.at
  store i32 %gz, {{nctaid[i32 2]}}
  %nx.at = getelementptr i32, ptr %launch, i64 3
  %nx = load i32, ptr %nx.at
  store i32 %nx, {{ntid[i32 0]}}
  %ny.at = getelementptr i32, ptr %launch, i64 4
  %ny = load i32, ptr %ny.at
  store i32 %ny, {{ntid[i32 1]}}
  %nz.at = getelementptr i32, ptr %launch, i64 5
  %nz = load i32, ptr %nz.at
  store i32 %nz, {{ntid[i32 2]}}
  %dynamic.at = getelementptr i32, ptr %launch, i64 6
  %dynamic.narrow = load i32, ptr %dynamic.at
  %dynamic = zext i32 %dynamic.narrow to i64
  store i64 %dynamic, {{dynamic}}
  %params.at = getelementptr i8, ptr %launch, i64 32
  %params = load ptr, ptr %params.at
  store ptr %params, {{params}}
  %record.at = getelementptr <params>, ptr %params, i32 0, i32 <last>
  %record = load ptr, ptr %record.at
  store ptr %record, {{record}}
  store ptr null, {{frames}}
  %bytes = add i64 %dynamic, <static>
  %shared = call ptr @oxide.allocate(i64 %bytes)
  store ptr %shared, {{shared}}
  %plane = mul i32 %nx, %ny
  %threads = mul i32 %plane, %nz
  %gx.wide = zext i32 %gx to i64
  %gy.wide = zext i32 %gy to i64
  %any = icmp slt i64 %from, %end
  br i1 %any, label %next, label %done
next:
  %linear = phi i64 [ %from, %entry ], [ %linear.next, %next ]
  %bx = urem i64 %linear, %gx.wide
  %rows = udiv i64 %linear, %gx.wide
  %by = urem i64 %rows, %gy.wide
  %bz = udiv i64 %rows, %gy.wide
  %bx.narrow = trunc i64 %bx to i32
  store i32 %bx.narrow, {{ctaid[i32 0]}}
  %by.narrow = trunc i64 %by to i32
  store i32 %by.narrow, {{ctaid[i32 1]}}
  %bz.narrow = trunc i64 %bz to i32
  store i32 %bz.narrow, {{ctaid[i32 2]}}
  call void @oxide.run_block(ptr %block, i32 %threads)
  %linear.next = add nuw nsw i64 %linear, 1
  %more = icmp slt i64 %linear.next, %end
  br i1 %more, label %next, label %done
done:
  %frames = load ptr, {{frames}}
  call void @oxide.release(ptr %frames)
  call void @oxide.release(ptr %shared)
  ret void
}
"""
