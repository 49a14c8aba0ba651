"""Translates numba-cuda's LLVM 7 dialect to IR that both back ends take.

The parser replaces typed pointers by opaque ones. Then:

- The modules of the kernel and of its device functions become one. Functions that the kernel does not reach are
  removed, and so are parts that only libNVVM reads.
- Each function that the module defines gets a hidden first parameter, the context: the fault record's address, and on
  the CPU the thread's coordinates too. The back ends' checks, registers and primitives take it too. Reads of special
  registers become calls that take the context.
- Fault sites, shared arrays and local arrays are renumbered from 0 in each kernel.

Each back end defines the functions that are still only declared:

- checks and faults: ``oxide.in_bounds``, ``oxide.aligned``, ``oxide.assertion_failed``, ``oxide.fault_record``;
- special registers: ``oxide.register.*``;
- shared memory, barriers and warp operations, which ``primitives.py`` lists;
- libdevice's functions, ``__nv_*`` (``ptx/libdevice.py``, ``cpu/libdevice/libm.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from oxide.compiler.primitives import scalars
from oxide.compiler.primitives.effects import WAITING, Effect, having
from oxide.compiler.primitives.threads import GRID_BARRIER
from oxide.compiler.signature.signature import Closed, Parameter
from oxide.compiler.signature.untyped_arguments import Captured
from oxide.compiler.source.faults import Conversion, FaultSite
from oxide.compiler.source.source import SourcePlace, located, located_in
from oxide.compiler.source.typings import TypedFunction
from oxide.driver.base import MAX_SHARED_BYTES, Dim3

from . import atomics, half, known_functions, lines, verifier
from .module import Function, Module
from .parameters import take_captured, word_types
from .parser import parse
from .primitives import (
    STORE_TILE,
    TILE_COPIES,
    SharedMemory,
    place_local_memory,
    place_shared_memory,
    reaches_cluster,
)
from .recognise import PLACE
from .values import Argument, Atomic, Block, Call, Constant, Load, Store, number, quoted


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """A kernel in numba-cuda's dialect.

    ``modules`` has the modules of the kernel and its device functions. ``symbol`` names the kernel's function.
    ``sites`` has all known fault sites, and ``array_places`` the source places of all shared and local arrays. Both are
    numbered as in the modules. ``conversions`` has the reports of the types of operations and values.
    """

    modules: tuple[str, ...]
    symbol: str
    sites: tuple[FaultSite, ...]
    array_places: Mapping[int, SourcePlace]
    conversions: tuple[Conversion, ...] = ()
    typed: TypedFunction | None = None
    """The types of the kernel's expressions, or None if the front end did not keep them."""
    captured: Mapping[int, Captured] = field(default_factory=dict)
    """The device arrays from outside of the kernel, by their numbers in the modules."""
    lines: bool = False
    """True if the instructions' places become line tables."""
    most_shared: int = MAX_SHARED_BYTES
    """The most bytes that the shared arrays may take together."""
    persistent: int = 0
    """The number of threads of a block if the kernel has persistent blocks, or else 0."""


@dataclass(frozen=True, slots=True)
class PortableKernel:
    """A kernel for either back end: its IR, the symbol of the function to call for each thread, its sites, its shared
    memory and its name. ``suspends`` says whether a thread may wait for another thread of its block, and
    ``cooperative`` whether it may wait for the whole grid. ``cluster`` is the shape of a cluster of blocks, or None for
    a kernel without clusters.

    Thread, tile and fused kernels are of this form, also those that come from the cache or from a built directory.
    Nobody changes its module: a pass and a back end edit a copy. ``cache.encoded`` prints it, and ``cache.decoded``
    reads it back."""

    module: Module
    symbol: str
    sites: tuple[FaultSite, ...]
    shared: SharedMemory
    suspends: bool
    name: str
    cooperative: bool = False
    cluster: Dim3 | None = None
    persistent: int = 0
    """The same as ``Code.persistent``: the number of threads of a persistent block, or 0."""
    captured: tuple[int, ...] = ()
    """The numbers of the arrays from outside that are hidden parameters, in the order of these parameters."""

    def __hash__(self) -> int:
        return hash((self.symbol, self.text))

    @property
    def text(self) -> str:
        """Returns the IR as text for LLVM's parser."""
        return str(self.module)

    @property
    def function(self) -> Function:
        """Returns the kernel's own function."""
        return self.module.functions[self.symbol]


def translate(function: Callable[..., Any], lowered: LoweredKernel, cluster: Dim3 | None = None) -> PortableKernel:
    """Returns the kernel for either back end, with its callees in one module. Raises ``CompileError`` for a call of a
    function that no back end defines, for a call that the kernel's ``cluster`` does not allow, and for local or shared
    arrays that are too large."""
    module = Module()
    for text in lowered.modules:
        _adopt_front_end(module, parse(text), lowered.lines)
    for defined in module.defined:
        _unroll_marked_loops(module, defined)
    module.keep_reachable(lowered.symbol)
    captured = take_captured(module, lowered.symbol, lowered.captured)
    place_local_memory(function, module, lowered.symbol, lowered.array_places)
    shared = place_shared_memory(function, module, lowered.array_places, lowered.most_shared)
    sites = _number_sites(module)
    _take_context(module)
    half.hide_integers(module)
    _define_known_functions(function, module)
    waits = any(symbol.startswith(WAITING) for symbol in module.functions)
    for symbol, each in module.functions.items():
        if not each.is_declaration:
            # Without `convergent`, LLVM may move a call across a branch at which the threads of a warp diverge.
            each.add_attributes("alwaysinline", *(("convergent",) if waits else ()))
        elif symbol.startswith("__nv_"):
            # Libdevice's functions always return, and access only memory that an argument points to.
            memory = "argmem: readwrite" if any(each.type == "ptr" for each in each.arguments) else "none"
            each.add_attributes("nounwind", "willreturn", f"memory({memory})")
    if lowered.lines:
        lines.attach_lines(module)
    if verifier.is_enabled():
        verifier.verify(module)
    kernel = PortableKernel(
        module,
        lowered.symbol,
        tuple(lowered.sites[site] for site in sites),
        shared,
        waits,
        function.__name__,
        GRID_BARRIER in module.functions,
        cluster,
        lowered.persistent,
        captured,
    )
    _check_cluster(kernel)
    return kernel


def _check_cluster(kernel: PortableKernel) -> None:
    """Raises ``CompileError`` for a call that reaches other blocks of a cluster in a kernel without clusters, and for a
    wait for the whole grid in a kernel with clusters."""
    for call in kernel.module.calls:
        refused = call.called == GRID_BARRIER if kernel.cluster else reaches_cluster(call.called)
        if not refused:
            continue
        place = kernel.sites[call.arguments[-1].integer or 0]
        problem = (
            "thread.sync_grid() needs all blocks at once, which a kernel with clusters does not have; end the kernel "
            "and launch another, or leave the cluster out"
            if kernel.cluster
            else f"{place.parameter} reaches other blocks of a cluster, and the kernel has none: declare "
            "@kernel(cluster=2), the number of its blocks"
        )
        raise located_in(place.file, place.line, f"kernel {kernel.name}: {problem}")


# Copies of tiles


def copied_parameters(kernel: PortableKernel, module: Module, signature: tuple[Closed, ...]) -> list[tuple[Call, int]]:
    """Returns the copies of tiles in ``module``, each with the number of the parameter that it copies from or to.
    ``module`` is the kernel's module or an edited copy of it.

    Raises ``CompileError`` for a copy from or to a slice that is not a parameter of the kernel.
    """
    if not any(symbol.startswith(TILE_COPIES) for symbol in module.functions):
        return []
    slices: dict[int, int] = {}
    count = 1  # the first argument is the context
    for place, parameter in enumerate(signature):
        if isinstance(parameter, Parameter) and parameter.kind in ("slice", "disjoint"):
            slices[count] = place
        count += len(word_types((parameter,)))
    function = module.functions[kernel.symbol]
    found = []
    for call in [call for each in module.defined for call in each.calls if call.called.startswith(TILE_COPIES)]:
        data, site = call.arguments[2], call.arguments[-1]
        place = function.arguments.index(data) if data in function.arguments else -1
        if place not in slices:
            where = kernel.sites[site.integer or 0]
            raise located_in(
                where.file,
                where.line,
                f"kernel {kernel.name}: {where.parameter.removesuffix('()')} copies "
                f"{'to' if call.called.startswith(STORE_TILE) else 'from'} a slice that is a parameter of the kernel "
                "itself; this one is chosen while the kernel runs",
            )
        found.append((call, slices[place]))
    return found


def tiled_parameters(kernel: PortableKernel, signature: tuple[Closed, ...]) -> tuple[int, ...]:
    """Returns the numbers of the parameters that a kernel copies tiles from or to."""
    return tuple(sorted({number for _, number in copied_parameters(kernel, kernel.module, signature)}))


# The front end's modules

_ENVIRONMENT = "_ZN08NumbaEnv"


def _adopt_front_end(module: Module, part: Module, everywhere: bool) -> None:
    """Adds a module of the front end. Variables of equal names have equal contents, because the front end derives the
    names from the contents. Accesses and calls keep their places in the source. With ``everywhere``, all instructions
    keep them."""
    part.globals = {
        name: line for name, line in part.globals.items() if name != "llvm.used" and not name.startswith(_ENVIRONMENT)
    }
    for function in part.defined:
        for instruction in function.instructions:
            # An instruction's source place gets a metadata name that LLVM does not interpret.
            place = instruction.metadata.pop("!dbg", None)
            if place is not None and (everywhere or isinstance(instruction, Load | Store | Call | Atomic)):
                instruction.metadata[PLACE] = place
            if isinstance(instruction, Call) and instruction.is_assembly and " sideeffect " in instruction.callee.name:
                # The assembly may be a barrier, and LLVM would otherwise duplicate it into two paths.
                instruction.after += " convergent"
    module.adopt(part)


def _unroll_marked_loops(module: Module, function: Function) -> None:
    """Adds LLVM's metadata that unrolls a function's marked loops in full.

    The front end calls ``oxide.unroll`` before a loop. Control then reaches the loop's header through blocks that numba
    adds to count the iterations. The header is the first block on this path whose name is that of a bytecode block. A
    branch to the header from a block that is not on the path is a back edge."""
    for mark in [call for call in function.calls if call.called == "oxide.unroll"]:
        header, before = _header(mark.block)
        mark.block.instructions.remove(mark)
        loop = module.add_metadata(lambda place: f"distinct !{{!{place}, !{place + 1}}}")
        module.add_metadata('!{!"llvm.loop.unroll.full"}')
        for block in function.blocks.values():
            if block not in before and block.successors == [header]:
                block.terminator.metadata["!llvm.loop"] = loop


def _header(mark: Block) -> tuple[Block, set[Block]]:
    """Returns the header of the loop after a mark, and the blocks from the mark's block up to the header."""
    before = {mark}
    pending = [mark]
    while pending:
        for target in pending.pop().successors:
            if target.name[1] == "B" and target.name[2:].isdigit():
                return target, before
            if target not in before:
                before.add(target)
                pending.append(target)
    raise AssertionError("no loop follows a mark")


# Sites, contexts and registers

_SITE = "oxide.site."


def _number_sites(module: Module) -> list[int]:
    """Replaces the calls that stand for fault sites by numbers from 0. Returns the front end's number of each site, in
    the order of the new numbers."""
    sites = sorted(int(symbol.removeprefix(_SITE)) for symbol in module.functions if symbol.startswith(_SITE))
    dense = {f"{_SITE}{site}": number(place, "i32") for place, site in enumerate(sites)}
    for function in module.defined:
        function.supersede({call: dense[call.called] for call in function.calls if call.called in dense})
    for symbol in dense:
        del module.functions[symbol]
    return sites


_CONTEXT = "%.context"
_REGISTER = "llvm.nvvm.read.ptx.sreg."
_TAKING = having(Effect.CONTEXT)


def _take_context(module: Module) -> None:
    """Adds the context as the first parameter of each defined function and of the back ends' checks, registers and
    primitives, and as the first argument of each call of these. A read of a special register becomes a call of
    ``oxide.register.*``."""
    taking: dict[str, Constant] = {}
    functions: dict[str, Function] = {}
    for symbol, function in module.functions.items():
        register = symbol.startswith(_REGISTER)
        if register:
            function.symbol = f"oxide.register.{symbol.removeprefix(_REGISTER)}"
        if register or not function.is_declaration or symbol.startswith(_TAKING):
            function.arguments.insert(0, Argument("" if function.is_declaration else _CONTEXT, "ptr"))
            taking[symbol] = Constant(f"@{quoted(function.symbol)}", "ptr")
        functions[function.symbol] = function
    module.functions = functions
    for function in module.defined:
        context = function.arguments[0]
        for call in function.calls:
            callee = taking.get(call.called)
            if callee is not None:
                call.operands[:1] = [callee, context]
                call.attributes = {place + 1: words for place, words in call.attributes.items()}


# Functions defined once for both back ends


def _define_known_functions(kernel: Callable[..., Any], module: Module) -> None:
    """Adds the definitions that are the same for both back ends. Raises ``CompileError`` for a function that belongs
    neither to libdevice nor to LLVM nor to oxide."""
    for symbol in [symbol for symbol, function in module.functions.items() if function.is_declaration]:
        definition = scalars.definition(symbol) or atomics.definition(symbol) or known_functions.definition(symbol)
        if definition is not None:
            module.adopt(parse(definition))
        elif not symbol.startswith(("__nv_", "llvm.", "oxide.")):
            raise located(kernel, f"kernel {kernel.__name__}: {symbol} is not supported in kernels")
