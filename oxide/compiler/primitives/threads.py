"""The entries of ``oxide.thread``: barriers for a block and for the grid, and waits for other kernels and blocks.

In the CPU's texts ``{{name}}`` stands for a field of the block's state, as in ``warps.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oxide.compiler.source.typings import Signature
from oxide.language import thread

from .numbers import INTEGERS
from .table import NONE, Lanes, Primitive, condition, returning

GRID_BARRIER = "oxide.block.grid_barrier"


def _counting(
    function: Any, how: str, reduction: str, result: str, cpu: str, combined: Callable[[Lanes], Any]
) -> Primitive:
    """Returns the entry of a barrier that takes a condition from each thread, and gives each thread one result computed
    from all conditions. ``reduction`` is the end of the name of LLVM's intrinsic."""
    bit = "  %bit = icmp ne i32 %result, 0\n  ret i1 %bit" if result == "bool_" else "  ret i32 %result"
    return Primitive(
        function,
        condition(result),
        f"oxide.block.barrier.{how}",
        ptx=f"""
declare i32 @llvm.nvvm.barrier0.{reduction}(i32) convergent
  %wide = zext i1 %condition to i32
  %result = call i32 @llvm.nvvm.barrier0.{reduction}(i32 %wide) convergent
{bit}
""",
        cpu=cpu,
        meeting="block",
        combined=lambda kind, brought: combined(brought),
    )


# The algorithm of cooperative groups, on the workspace that the driver gives each cooperative launch, also in graphs.
# The workspace's address is in %envreg1 and 2, and the barrier is its second word. The threads of a block first meet.
# The first thread adds 1 to the word; in the first block it adds the number that makes the total 2**31. When the word's
# highest bit has changed, all blocks have arrived. The word is then ready for the next barrier without clearing. The
# fences extend the order that the block's barriers establish to the other blocks.
_GRID_BARRIER = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.tid.y()
declare i32 @llvm.nvvm.read.ptx.sreg.tid.z()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.z()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.y()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.z()
declare i32 @llvm.nvvm.read.ptx.sreg.envreg1()
declare i32 @llvm.nvvm.read.ptx.sreg.envreg2()
entry:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0) convergent
  %x = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %y = call i32 @llvm.nvvm.read.ptx.sreg.tid.y()
  %z = call i32 @llvm.nvvm.read.ptx.sreg.tid.z()
  %xy = or i32 %x, %y
  %xyz = or i32 %xy, %z
  %first = icmp eq i32 %xyz, 0
  br i1 %first, label %arrive, label %meet
arrive:
  %high = call i32 @llvm.nvvm.read.ptx.sreg.envreg1()
  %low = call i32 @llvm.nvvm.read.ptx.sreg.envreg2()
  %high.wide = zext i32 %high to i64
  %high.placed = shl i64 %high.wide, 32
  %low.wide = zext i32 %low to i64
  %address = or i64 %high.placed, %low.wide
  %workspace = inttoptr i64 %address to ptr addrspace(1)
  %word = getelementptr i8, ptr addrspace(1) %workspace, i64 4
  %bx = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %by = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()
  %bz = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.z()
  %gx = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
  %gy = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.y()
  %gz = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.z()
  %plane = mul i32 %gx, %gy
  %blocks = mul i32 %plane, %gz
  %rest = sub i32 -2147483647, %blocks
  %bxy = or i32 %bx, %by
  %bxyz = or i32 %bxy, %bz
  %leads = icmp eq i32 %bxyz, 0
  %share = select i1 %leads, i32 %rest, i32 1
  fence syncscope("device") acq_rel
  %before = atomicrmw add ptr addrspace(1) %word, i32 %share syncscope("device") monotonic
  br label %poll
poll:
  %now = load atomic i32, ptr addrspace(1) %word syncscope("device") monotonic, align 4
  %changed = xor i32 %before, %now
  %same = icmp sge i32 %changed, 0
  br i1 %same, label %poll, label %passed
passed:
  fence syncscope("device") acq_rel
  br label %meet
meet:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0) convergent
  ret void
"""


def _dependencies(function: Any, how: str, instruction: str) -> Primitive:
    """Returns the entry of a function of programmatic dependent launch. It does nothing before compute capability 9.0,
    where a kernel always begins after the previous kernel has ended, and on the CPU, where a stream's kernels run one
    after the other."""
    return Primitive(
        function,
        returning(NONE),
        f"oxide.dependencies.{how}",
        ptx={
            0: "  ret void",
            90: f'  call void asm sideeffect "griddepcontrol.{instruction};", "~{{memory}}"()\n  ret void',
        },
        cpu="  ret void",
        meeting="stream",
        interpreted=_nothing,
    )


def _nothing(signature: Signature) -> Callable[..., None]:
    return lambda *args: None


def _nanoseconds(name: str, kinds: tuple[str, ...]) -> Signature | str:
    return Signature(("u32",), NONE) if kinds[0] in INTEGERS else f"{name} takes an integer, the nanoseconds"


BARRIERS = (
    Primitive(
        thread.sync_threads,
        returning(NONE),
        "oxide.block.barrier",
        ptx="""
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32) convergent
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0) convergent
  ret void
""",
        cpu="""
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
""",
        meeting="block",
        combined=lambda kind, brought: None,
    ),
    _counting(
        thread.sync_threads_count,
        "count",
        "popc",
        "i32",
        """
  %block = call ptr @oxide.block(ptr %context)
  %one = zext i1 %condition to i32
  %count = load i32, {{count}}
  %more = add i32 %count, %one
  store i32 %more, {{count}}
  call void @oxide.block.barrier(ptr %context, i32 %site)
  %result = load i32, {{passed.count}}
  ret i32 %result
""",
        lambda brought: sum(brought.values()),
    ),
    _counting(
        thread.sync_threads_and,
        "and",
        "and",
        "bool_",
        """
  %count = call i32 @oxide.block.barrier.count(ptr %context, i1 %condition, i32 %site)
  %block = call ptr @oxide.block(ptr %context)
  %all = load i32, {{passed.arrived}}
  %result = icmp eq i32 %count, %all
  ret i1 %result
""",
        lambda brought: all(brought.values()),
    ),
    _counting(
        thread.sync_threads_or,
        "or",
        "or",
        "bool_",
        """
  %count = call i32 @oxide.block.barrier.count(ptr %context, i1 %condition, i32 %site)
  %result = icmp ne i32 %count, 0
  ret i1 %result
""",
        lambda brought: any(brought.values()),
    ),
    Primitive(
        thread.sync_grid,
        returning(NONE),
        GRID_BARRIER,
        ptx=_GRID_BARRIER,
        cpu="""
  %block = call ptr @oxide.block(ptr %context)
  %grid = load i32, {{grid}}
  %grid.more = add i32 %grid, 1
  store i32 %grid.more, {{grid}}
  call void @oxide.block.barrier(ptr %context, i32 %site)
  ret void
""",
        meeting="grid",
        combined=lambda kind, brought: None,
    ),
)
"""On the CPU, threads that meet at these are coroutines."""

WAITS = (
    Primitive(
        thread.nanosleep,
        _nanoseconds,
        "oxide.nanosleep",
        ptx={
            0: "  ret void",
            70: """
  call void asm sideeffect "nanosleep.u32 $0;", "r"(i32 %nanoseconds)
  ret void
""",
        },
        # Yields the processor instead of sleeping: a thread that calls nanosleep usually waits for a block on another
        # worker, which may need this processor.
        cpu="""
declare i32 @sched_yield()
  %ignored = call i32 @sched_yield()
  ret void
""",
        interpreted=_nothing,
    ),
    _dependencies(thread.wait_dependencies, "wait", "wait"),
    _dependencies(thread.launch_dependents, "launch", "launch_dependents"),
)

ENTRIES = (*BARRIERS, *WAITS)
