"""Lowers tile IR to LLVM IR, in the dialect that ``ir.portable`` translates.

``state.py`` says how values become code. On a GPU the threads of a block compute a program together, and a ``Plan``
(``compiler/tile/layouts.py``) says where each tile lives; on the CPU one thread computes the program, in loops that
LLVM vectorises. Code that accesses tensors has two versions: one without checks for tiles wholly inside the tensor, and
one with checks for tiles at an edge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from oxide.compiler.ir.known_functions import FAST
from oxide.compiler.ir.module import Function, Module
from oxide.compiler.ir.parameters import word_types
from oxide.compiler.ir.portable import LoweredKernel
from oxide.compiler.signature.signature import Parameter
from oxide.compiler.source.faults import FaultSite
from oxide.compiler.tile.frontend import Program
from oxide.compiler.tile.ir import Region
from oxide.compiler.tile.layouts import LANES, PRODUCER_THREADS, Plan, TooLarge
from oxide.errors import cell_of

from . import emission, pipelines, registers, tensors
from .ir_text import ROLLED
from .registers import prelude
from .state import Lowering, Parts

__all__ = ["keep_rolled", "lower"]

_GROUP_ROWS = 2048
"""In kernels with products on tensor cores, consecutive programs go down a column of tiles that has this many rows of
elements, and then go on to the next column. Programs that run at the same time then read few different rows and columns
of the operands."""
_MOST_THREADS = 256
"""If this many threads of a block compute beside a producer, a multiprocessor holds only one block, because their sums
fill its registers."""
_PRODUCER_REGISTERS, _REGISTERS = 56, 224
"""The registers of a thread of the producer and of each of ``_MOST_THREADS`` threads. The producer releases most of its
own to the others."""


def lower(
    program: Program,
    function: Callable[..., Any],
    parameters: Sequence[Parameter],
    threads: int,
    plan: Plan,
    most: int,
    *,
    fastmath: bool,
    located: bool,
) -> LoweredKernel:
    """Returns a program as LLVM IR. ``threads`` is the size of a GPU's block, or 1 for the CPU. ``most`` is the number
    of bytes that the program's buffers may take. With ``located``, instructions carry their lines. Raises
    ``TooLarge``."""
    scalars: dict[str, str] = {}
    words: list[str] = []
    for each in parameters:
        if each.kind == "scalar":
            scalars[each.name] = "i1" if each.scalar.kind == "b" else word_types((each,))[0]
            words.append(f"{scalars[each.name]} %{each.name}")
        else:
            words += [f"ptr %{each.name}.0", *(f"i64 %{each.name}.{axis + 1}" for axis in range(each.ndim))]
    parts = Parts(tensors.loaded, tensors.gathered, registers.spill, registers.places)
    low = Lowering(program, scalars, threads, FAST if fastmath else "", plan, parts, located=located)
    _find_uses(low, program.body)
    code = low.code
    linear, thread = _begin(low)
    if plan.producer:
        _run_with_producer(low, linear)
    else:
        _leave_out(low, linear, thread)
        pipelines.make_rings(low)
        emission.run(low, program.body)
    code.jump("done")
    code.label("done")
    code.emit("ret void")
    name, file = function.__name__, function.__code__.co_filename
    if low.bytes > most:
        raise TooLarge(
            f"{cell_of(file) or file}: kernel {name}: its tiles take {low.bytes} bytes of a block's memory at once, "
            f"and there are {most}; use smaller tiles"
        )
    symbol = f"oxide.tile.{name}"
    head = f"define void @{symbol}({', '.join(words)}) {{\nentry:"
    lines = code.places(file, name, function.__code__.co_firstlineno)
    text = "\n".join([*code.texts, *code.declared.values(), head, *code.entry, *code.lines, "}", *lines])
    sites = []
    for site in program.sites:
        if site.tensor is None:
            sites.append(FaultSite("", file, site.line, site.what))
        else:
            ndim = program.tensor(site.tensor).ndim
            sites.append(FaultSite(site.tensor, file, site.line, None, site.axis if ndim > 1 else None, ndim))
    sites.append(FaultSite("", file, 0))  # the barriers' site is last, so that both devices number the others alike
    places = dict.fromkeys(range(low.arrays), (file, 1, None))
    persistent = threads + PRODUCER_THREADS if plan.producer else 0
    return LoweredKernel((text,), symbol, tuple(sites), places, most_shared=most, persistent=persistent)


def keep_rolled(module: Module, function: Function) -> None:
    """Keeps LLVM from unrolling the loops that ``Code.counted`` marks by the names of their blocks."""
    headers = {}
    loop = ""
    for block in function.blocks.values():
        if block.name.startswith(f"%{ROLLED}."):
            headers[block] = True
        if any(target in headers for target in block.successors):
            if not loop:
                loop = module.add_metadata(lambda place: f"distinct !{{!{place}, !{place + 1}}}")
                module.add_metadata('!{!"llvm.loop.unroll.disable"}')
            block.terminator.metadata["!llvm.loop"] = loop


def _begin(low: Lowering) -> tuple[str, str]:
    """Emits code that computes the lengths of the grid. Returns the numbers of the block and of the thread."""
    code = low.code
    code.declare("i32", "llvm.nvvm.read.ptx.sreg.tid.x", ())
    code.declare("i32", "llvm.nvvm.read.ptx.sreg.ctaid.x", ())
    thread = prelude(low, "call i32 @llvm.nvvm.read.ptx.sreg.tid.x()")
    block = prelude(low, "call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()")
    linear = code.new(f"zext i32 {block} to i64")
    grid = low.program.grid
    assert grid.tile is not None
    for axis, size in enumerate(grid.tile):
        more = code.new(f"add i64 %{grid.name}.{axis + 1}, {size - 1}")
        low.counts.append(code.new(f"udiv i64 {more}, {size}"))
    if low.threads > 1:
        low.tid = prelude(low, f"zext i32 {thread} to i64")
    return linear, thread


def _place(low: Lowering, linear: str) -> None:
    """Emits code that computes the place in the grid of the program with the number ``linear``."""
    if low.plan.products and len(low.counts) == 2:
        low.programs = _grouped(low, linear)
        return
    low.programs, left = [], linear
    for count in reversed(low.counts):
        low.programs.insert(0, _divided(low, "urem", left, count))
        left = _divided(low, "udiv", left, count)


def _total(low: Lowering) -> str:
    """Emits code that computes the number of programs, and returns the number."""
    total = "1"
    for count in low.counts:
        total = low.code.times(count, total)
    return total


def _leave_out(low: Lowering, linear: str, thread: str) -> None:
    """Emits code that computes the place of the block's program, and ends the threads without work: all but the first
    on the CPU, and the threads of blocks past the last tile."""
    code = low.code
    _place(low, linear)
    inside = code.new(f"icmp ult i64 {linear}, {_total(low)}")
    if low.threads == 1:
        first = code.new(f"icmp eq i32 {thread}, 0")
        inside = code.new(f"and i1 {inside}, {first}")
    code.branch(inside, "start", "done")
    code.label("start")


def _run_with_producer(low: Lowering, first: str) -> None:
    """Emits the code of a program with a producer, the block's last warpgroup. Each block computes the programs with
    the numbers ``first``, ``first`` plus the number of blocks, and so on. One thread of the producer computes the
    places of all tiles that the pipelines load, waits at a buffer's ``empty`` barrier, and begins the copies."""
    code, total = low.code, _total(low)
    pipelines.make_rings(low)
    code.declare("i32", "llvm.nvvm.read.ptx.sreg.nctaid.x", ())
    blocks = prelude(low, f"zext i32 {prelude(low, 'call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()')} to i64")

    produces, computes = code.labels("produces", "computes")
    code.branch(code.new(f"icmp uge i64 {low.tid}, {low.threads}"), produces, computes)
    code.label(produces)
    moves = low.threads == _MOST_THREADS
    if moves:
        code.call("void", f"oxide.tensor.registers.dec.{_PRODUCER_REGISTERS}", low.barrier_site)
    first_warp = code.new(f"icmp ult i64 {low.tid}, {low.threads + LANES}")
    with code.when(first_warp):
        elected = code.call("i1", "oxide.warp.elect", ("i32", "-1"), low.barrier_site)
        with code.when(elected), code.counted(total, first, blocks, rolled=True) as number, low.inside():
            _place(low, number)
            for loop in low.plan.pipelines:
                low.rings[loop].feed()
    code.jump("done")

    code.label(computes)
    if moves:
        code.call("void", f"oxide.tensor.registers.inc.{_REGISTERS}", low.barrier_site)
    beginning, code.prelude = len(code.lines), []
    with code.counted(total, first, blocks, rolled=True) as number, low.inside():
        _place(low, number)
        emission.run(low, low.program.body)
        if low.has_met:  # the next program writes to shared memory that other warps may still read
            low.barrier()
    code.lines[beginning:beginning] = code.prelude


def _divided(low: Lowering, op: str, one: str, two: str) -> str:
    return low.code.call("i64", f"oxide.{op}.i64", ("i64", one), ("i64", two))


def _grouped(low: Lowering, linear: str) -> list[str]:
    """Returns the place of a program in a grid that is numbered in groups of rows, so that programs that run at the
    same time share rows and columns of the operands in the cache."""
    code, (down, across) = low.code, low.counts
    assert low.program.grid.tile is not None
    height = max(1, _GROUP_ROWS // low.program.grid.tile[0])
    group_size = code.times(across, height)
    group = _divided(low, "udiv", linear, group_size)
    within = _divided(low, "urem", linear, group_size)
    first = code.times(group, height)
    left = code.new(f"sub i64 {down}, {first}")
    fewer = code.new(f"icmp slt i64 {left}, {height}")
    rows = code.new(f"select i1 {fewer}, i64 {left}, i64 {height}")
    return [code.add(first, _divided(low, "urem", within, rows)), _divided(low, "udiv", within, rows)]


def _find_uses(low: Lowering, region: Region) -> None:
    """Finds, for each node, the last node in program order that uses it."""
    for node in region.nodes:
        for each in node.inputs:
            low.last_use[each] = node.index
        if node.op in ("for", "while"):
            body, cells, last = node.detail
            condition = last if node.op == "while" else None
            _find_uses(low, body)
            for cell in cells:
                low.last_use[cell.ends[0]] = node.index
            if condition is not None and condition not in low.last_use:
                low.last_use[condition] = node.index
        elif node.op == "if":
            regions, cells = node.detail
            for number, part in enumerate(regions):
                _find_uses(low, part)
                for cell in cells:
                    low.last_use[cell.ends[number]] = node.index
