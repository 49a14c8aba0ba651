"""Blocks whose threads wait for one another, on the CPU: each thread is an LLVM coroutine.

One worker runs a block. It resumes the threads in turn, warp by warp. A thread runs until it reaches a barrier or a
warp operation, records that in the block's state, and suspends. When all lanes that a warp operation names have
arrived, their values are published and the lanes continue. When every thread that has not returned is at the barrier, a
new round begins. Switching to a thread is a call through a pointer. The frames are contiguous in memory that serves one
block after another; no memory is allocated for a thread.

**Semantics.** As on GPUs since Volta, neither barriers nor warp operations wait for threads that have returned, and a
warp operation waits only for the lanes in its mask. If the threads of a block wait at different barriers, or in a
cycle, none can ever continue: the block is abandoned, and the fault record gets ``claimed`` 2 and two places in the
source. A thread that spins until another thread writes is not detected, and hangs: nothing preempts it.

**Barriers.** A thread that must wait at a ``tensor.Barrier`` polls: it suspends and is resumed in the next round of
polls, once the other warps have run. If lanes of its warp wait at a warp operation meanwhile, the warp is parked: its
exchange slots are kept until it runs again. If no polling thread of a round continues, no thread ever can, since all
other threads wait for the polling threads: the block is abandoned with a report. ``tensor_barriers.ll`` implements
Barriers. Only kernels that use Barriers have rounds of polls.

At the grid's barrier a block's threads suspend as they do at the block's barrier, and ``oxide.run_block`` returns.
``grid.ll`` runs a launch in which all blocks stay live until all of them have reached the grid's barrier.
``cluster.ll`` runs the blocks of a cluster in the same way, on one worker. For a block of a cluster,
``oxide.run_block`` also returns if the block's threads can only poll Barriers.

**How a call becomes a suspension.** ``@oxide.suspend`` is inlined as a call and a branch on the call's result, which
ends a basic block. Once everything is inlined into the coroutine, each call with its branch becomes
``llvm.coro.suspend`` and a switch with the branch's target: no block is split and no phi changes. LLVM's pipeline
simplifies the coroutine and then splits it. Only values that are live across a suspension go to the frame.

The values that the lanes of a warp operation publish are copied when the lanes are released: the first lane may publish
its next value before the last lane has read the present values. From one barrier to the next, the warps run one after
the other, so a block has one set of exchange slots. All state belongs to the worker; none of it is atomic.
"""

from __future__ import annotations

import math
from typing import Any

from oxide.compiler.cpu import primitives
from oxide.compiler.cpu.primitives import BLOCK_FIELD, CONTEXT
from oxide.compiler.ir import parameters
from oxide.compiler.ir.llvm import header, ir_file, link, run_passes, with_addresses
from oxide.compiler.ir.module import Module
from oxide.compiler.ir.parser import parse
from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.values import FALSE, Branch, Call, Constant, Switch, number
from oxide.compiler.primitives import threads, warps
from oxide.compiler.primitives.effects import WAITING
from oxide.compiler.signature.signature import Closed
from oxide.compiler.source.faults import DIVERGENT
from oxide.driver.base import Dim3
from oxide.driver.sanitizing import STATE_BYTES

from . import tensor_primitives

_FIELDS = {
    "ctaid": "[3 x i32]",
    "ntid": "[3 x i32]",
    "nctaid": "[3 x i32]",
    "record": "ptr",
    "shared": "ptr",
    "dynamic": "i64",
    "params": "ptr",
    "frames": "ptr",  # one frame for each thread; null before the first thread runs
    "room": "ptr",  # the stack buffer for small frames, or null
    "stride": "i64",
    "seed": "i32",  # the seed of the random order of warps and threads; 0: their natural order
    "live": "i32",  # threads that have not returned
    "arrived": "i32",  # threads at the barrier, and their least and greatest place in the source
    "least": "i32",
    "greatest": "i32",
    "count": "i32",  # true conditions at the barrier
    "grid": "i32",  # the arrived threads that are at the grid's or the cluster's barrier, and the barrier's place
    "grid.site": "i32",
    "rank": "i32",  # in a cluster: the block's number, and the addresses of the states of its blocks
    "peers": "ptr",
    "passed.arrived": "i32",  # ``arrived`` and ``count`` of the last barrier that was passed
    "passed.count": "i32",
    "passes": "i32",  # waits at Barriers that ended after the thread had polled, and the number before this round
    "passes.before": "i32",
    "polling.warps": "i32",  # the warps with threads that poll Barriers; per warp: the lanes that poll
    "polling": "[32 x i32]",
    "polling.thread": "i32",  # the first thread that polls in this round, its place, its Barrier and what it waits for
    "polling.site": "i32",
    "polling.phase": "i32",
    "polling.barrier": "ptr",
    "warpgroups": "[8 x [4 x i32]]",  # per warpgroup: the Barrier of its threads (``tensor_barriers.ll``)
    "alive": "[32 x i32]",  # per warp: the lanes that have not returned
    "waiting": "i32",  # the lanes of the running warp at a warp operation, and those of them at active_mask
    "converging": "i32",
    "bits": "i32",  # conditions of the waiting lanes; published conditions
    "published.bits": "i32",
    "value": "[32 x i64]",  # per lane: its value, and its published value
    "published": "[32 x i64]",
    "mask": "[32 x i32]",  # per lane: the lanes that it waits for, and the place in the source
    "site": "[32 x i32]",
    "group": "[32 x i32]",  # per lane: the lanes that it was released with
}
_EXCHANGE = "{ " + ", ".join(list(_FIELDS.values())[list(_FIELDS).index("waiting") :]) + " }"
"""The state of the running warp's operations: the fields from ``waiting`` on."""
_FIELDS["parked"] = f"[32 x {_EXCHANGE}]"
"""Per warp: a copy of the state in ``_EXCHANGE`` while some lanes poll Barriers and the other lanes wait for the
polling lanes. It comes last, since only kernels with Barriers touch it."""
_BLOCK = "{ " + ", ".join(_FIELDS.values()) + " }"
_NUMBER = {name: number for number, name in enumerate(_FIELDS)}

SUSPENSION = "oxide.suspension"
COROUTINE = "oxide.thread"
"""The function that runs a thread. All of the kernel is inlined into it."""


def split_points(module: Module) -> None:
    """Turns each suspension in the coroutine into a suspend point. All calls must be inlined."""
    coroutine = module.functions[COROUTINE]
    end = coroutine.blocks["%suspended"]
    for block in coroutine.blocks.values():
        match block.instructions[-2:]:
            case [Call(called="oxide.suspension") as call, Branch(condition=how, yes=resumed)] if how is call:
                point = Call(call.name, "i8", Constant("@llvm.coro.suspend", "ptr"), (Constant("none", "token"), FALSE))
                del block.instructions[-2:]
                block.extend((point, Switch((point, end, number(0, "i8"), resumed, number(1, "i8"), end))))


def inline_all(module: Any, machine: Any) -> Any:
    """Returns the module with every function inlined into the coroutine, and each suspension turned into a suspend
    point."""
    for function in list(module.functions):
        if function.name.startswith(WAITING):
            function.linkage = "internal"
    run_passes(module, machine, ("always_inliner",))
    inlined = parse(str(module))
    split_points(inlined)
    return link([f'source_filename = "{module.source_file}"\n{header(machine)}{inlined}'])


def definitions(kernel: PortableKernel, signature: tuple[Closed, ...], kernel_id: int, entry: str) -> str:
    """Returns the primitives, the coroutine around the kernel, and ``entry``, which runs a range of blocks."""
    words = parameters.word_types(signature)
    symbols = kernel.module.functions
    polls = tensor_primitives.polls(symbols)
    values = {
        "read_launch": ir_file(__file__, "read_launch.ll"),
        "entry": entry,
        "block": _BLOCK,
        "exchange": _EXCHANGE,
        "params": "{ " + ", ".join([*words, "ptr"]) + " }",
        "last": str(len(words)),
        "room": str(primitives.ROOM_BYTES),
        "static": str(primitives.static_bytes(kernel.shared)),
        "alignment": str(primitives.alignment(kernel.shared)),
        "divergent": str(DIVERGENT),
        "kernel_id": str(kernel_id),
        "polls": "true" if polls else "false",
    }
    texts = [_PRIMITIVES, *warps.cpu_definitions(symbols), *tensor_primitives.definitions(symbols)]
    texts += [ir_file(__file__, name) for name in ("schedule.ll", *_entry(kernel))]
    texts += [] if polls else [_NO_BARRIERS]
    sanitized = any(symbol.startswith("oxide.sanitize.") for symbol in symbols)
    if kernel.cluster is not None:
        texts.append(ir_file(__file__, "clocks.ll") if sanitized else _ONE_CLOCK)
    values |= _cluster_values(kernel.cluster, sanitized)
    for name, value in values.items():
        texts = [text.replace(f"<{name}>", value) for text in texts]
    return "\n".join([*(with_addresses(text, _address) for text in texts), _thread(kernel, signature)])


def _entry(kernel: PortableKernel) -> tuple[str, ...]:
    """Returns the names of the ``.ll`` files that define the kernel's entry."""
    if kernel.cooperative:
        return "live_block.ll", "grid.ll"
    return ("entry.ll",) if kernel.cluster is None else ("live_block.ll", "cluster.ll")


def _cluster_values(cluster: Dim3 | None, sanitized: bool) -> dict[str, str]:
    """Returns the values of those placeholders in the ``.ll`` files that depend on the shape of a cluster. In a
    sanitized kernel, each block has a record of its own."""
    if cluster is None:
        return {"cluster": "false"}
    blocks = math.prod(cluster)
    sizes = zip(("across", "down", "deep"), map(str, cluster), strict=True)
    return {
        "cluster": "true",
        "blocks": str(blocks),
        "blocks_less": str(blocks - 1),
        "places_bytes": str(4 * blocks),
        "record_bytes": str(STATE_BYTES if sanitized else 0),
        **dict(sizes),
    }


def _address(result: str, field: str, index: str) -> str:
    """Returns the IR that computes the address of a field of ``%block``, or of an element of the field."""
    place = ", ".join(filter(None, (str(_NUMBER[field]), index)))
    return f"  {result} = getelementptr {_BLOCK}, ptr %block, i32 0, i32 {place}"


def _thread(kernel: PortableKernel, signature: tuple[Closed, ...]) -> str:
    """Returns the coroutine, which fills in a context and calls the kernel."""
    types = parameters.word_types(signature)
    words = [f"%word.{number}" for number in range(len(types))]
    declaration, call = parameters.call(kernel.function, "%context", words, types)
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
        ("record", "ptr", primitives.RECORD_FIELD),
        ("shared", "ptr", primitives.SHARED_FIELD),
        ("dynamic", "i64", primitives.DYNAMIC_FIELD),
    ):
        lines.append(f"  %{name} = load {kind}, {{{{{name}}}}}")
        lines.append(put(field, kind, f"%{name}", name))
    lines.append(put(BLOCK_FIELD, "ptr", "%block", "block"))
    text = ir_file(__file__, "thread.ll").replace("<context>", CONTEXT).replace("<fill>", "\n".join(lines))
    return declaration + with_addresses(text.replace("<loads>", loads).replace("<call>", call), _address)


_ONE_CLOCK = """
define internal void @oxide.cluster.carry(ptr %blocks, ptr %block) alwaysinline {
  ret void
}
define internal void @oxide.cluster.meet(ptr %blocks) alwaysinline {
  ret void
}
"""
"""Replaces ``clocks.ll`` in a kernel that is not sanitized."""

_NO_BARRIERS = """
define internal void @oxide.report_polling(ptr %block) {
  ret void
}
"""
"""Replaces the report of ``tensor_barriers.ll`` in a kernel without Barriers, which never calls it."""

_PRIMITIVES = f"""
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
""" + "".join(entry.cpu_text for entry in threads.BARRIERS)
