"""The sanitizer's instrumentation: a call before each access of a kernel, with the bounds of the accessed array.

The instrumentation works on the portable IR, before a back end's definitions are linked. The kernel's own functions are
inlined and its variables become registers, so that the remaining loads and stores access arrays. Each access is traced
back to its array (``regions.py``): a parameter, a shared or a local array. NVIDIA's compute-sanitizer
does not know the accessed array, so it accepts an access one past the end of a buffer if another buffer begins there.

During this pass atomics, fences and local arrays are calls, so that no optimisation splits them.
``check_functions.py`` has the checks themselves.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import final

from oxide.compiler.bounds.exits import threads_may_wait
from oxide.compiler.cpu import object_code, primitives
from oxide.compiler.cpu.coroutines.tensor_primitives import ROW_BYTES
from oxide.compiler.ir.llvm import host_machine, link, portable_module, run_passes
from oxide.compiler.ir.module import Module
from oxide.compiler.ir.parser import parse
from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.primitives import MOST_AXES, STORE_TILE, TileCopy
from oxide.compiler.ir.recognise import called, place_of
from oxide.compiler.ir.values import (
    FALSE,
    TRUE,
    Alloca,
    Atomic,
    Binary,
    Block,
    Branch,
    Call,
    Cast,
    Compare,
    Constant,
    GetElementPtr,
    Instruction,
    Load,
    Return,
    Select,
    Store,
    Value,
    number,
)
from oxide.compiler.signature.signature import Closed
from oxide.driver.base import Code, Target
from oxide.driver.sanitizing import (
    ACCUMULATOR,
    ALSO_READS,
    ASYNCHRONOUS,
    ASYNCHRONOUS_READ,
    ATOMIC,
    BLOCK_SCOPE,
    LEFT_OPERAND,
    WRITE,
    Access,
    PointerWord,
    Sanitized,
)
from oxide.errors import CompileError

from . import check_functions
from .check_functions import WGMMA, Products
from .regions import HELD_LOCAL, REGION_KINDS, UNKNOWN, Origins, Region, Regions, pointers_of, size_of

_MAX_ACCESSES = 1 << 16


def compile_sanitized(
    name: str,
    kernel: PortableKernel,
    signature: tuple[Closed, ...],
    kernel_id: int,
    target: Target,
    kinds: frozenset[str],
    whole: frozenset[str],
    *,
    unchecked: bool,
) -> Code:
    """Returns a host object file with checked accesses, and the driver's data for it. ``whole`` has the names of the
    outputs that a launch has to write in full. Raises ``CompileError``."""
    pointers, views = pointers_of(signature)
    simplified = portable_module(str(_held(kernel.module)))
    run_passes(simplified, host_machine(target), ("always_inliner", "sroa"))
    module = parse(str(simplified))
    instrumenter = _Instrumenter(name, kernel, module, pointers, views, kinds)
    instrumenter.instrument()
    _let_go(module)
    linked = link([str(module), check_functions.definitions(kinds, kernel.cluster is not None)])
    code = object_code.compile_native(
        dataclasses.replace(kernel, module=parse(str(linked))), signature, kernel_id, target, unchecked=unchecked
    )
    static = primitives.static_bytes(kernel.shared) if kernel.shared.used else 0
    accesses = tuple(instrumenter.accesses)
    # Without calls that wait, the blocks of a cluster run one by one.
    blocks = math.prod(kernel.cluster) if kernel.cluster and (kernel.suspends or target.seeded) else 1
    shift = instrumenter.shared_shift
    sanitized = Sanitized(name, kernel_id, kinds, instrumenter.pointers, accesses, static, shift, blocks, whole)
    return dataclasses.replace(code, sanitized=sanitized)


# Atomics, fences and local arrays, kept as calls

_HELD = "oxide.held."


def _held(module: Module) -> Module:
    """Returns a copy in which atomics, fences and local arrays are calls of functions without definitions. Local arrays
    are not cleared, so that reads of uninitialised elements are found."""
    module = module.copy()
    for function in module.defined:
        for instruction in function.instructions:
            symbol = called(instruction)
            if symbol.startswith("oxide.clear."):
                instruction.block.replace(instruction, ())
            elif symbol.startswith(("oxide.atomic.", "oxide.fence.")):
                types = [operand.type for operand in instruction.operands[1:]]
                instruction.operands[0] = module.declare(instruction.type, _HELD + symbol.removeprefix("oxide."), types)
            elif (
                isinstance(instruction, Alloca)
                and instruction.name.startswith("%local_array")
                and instruction.allocated.startswith("[")
            ):
                callee = module.declare("ptr", HELD_LOCAL, ("i64", "i64"))
                given = number(size_of(instruction.allocated)), number(instruction.align)
                function.substitute(instruction, Call(instruction.name, "ptr", callee, given))
    return module


def _let_go(module: Module) -> None:
    """Turns the calls that stand for atomics and fences back into calls of their definitions, and the calls that stand
    for local arrays into variables on the stack."""
    for function in module.defined:
        arrays: dict[Value, Alloca] = {}
        for call in function.calls:
            if call.called == HELD_LOCAL:
                size, align = call.arguments
                arrays[call] = Alloca(call.name, f"[{size.name} x i8]", after=f", align {align.name}")
            elif call.called.startswith(_HELD):
                call.operands[0] = Constant(f"@oxide.{call.called.removeprefix(_HELD)}", "ptr")
        function.entry.insert(0, arrays.values())
        function.supersede(arrays)
    module.functions = {symbol: each for symbol, each in module.functions.items() if not symbol.startswith(_HELD)}


# The kernel's accesses

_RELEASE = 2
_COPIES, _TILE_READS, _TILE_WRITES = 1, 2, 4
"""A bit for each kind of ``sanitized_copy``."""
_ORDERINGS = {"release": (2, 3, 4), "acquire": (1, 3, 4)}


@dataclasses.dataclass(frozen=True, slots=True)
class _Touch:
    """An instruction's access to memory: the index of its pointer among its operands, the size in bytes, the alignment,
    the access's kind as flags of ``sanitizing``, and an atomic's ordering. ``counted`` is the index of an operand with
    the number of bytes, at most ``size``. Only the first ``lanes`` lanes of the warp make the access. If ``blocks`` is
    not empty, the access goes to other blocks of the cluster, at the pointer's place in their memory. ``blocks`` then
    names the operand that selects the blocks: a rank, which is the operand after the pointer, or a mask, which is the
    third operand from the end."""

    place: int
    size: int
    align: int
    what: int
    ordering: int = 0
    counted: int | None = None
    lanes: int = 32
    blocks: str = ""


def _touches_of(instruction: Instruction) -> list[_Touch]:
    """Returns an instruction's accesses to memory, except accesses to constant addresses."""
    found: list[_Touch] = []
    match instruction:
        case Load(before="" | "volatile"):
            found = [_Touch(0, size_of(instruction.type), instruction.align, 0)]
        case Store(before="" | "volatile", value=value):
            found = [_Touch(1, size_of(value.type), instruction.align, WRITE)]
        case Atomic(opcode="atomicrmw" | "cmpxchg"):  # atomics of numba-cuda, which are relaxed
            size = size_of(instruction.operands[1].type)
            found = [_Touch(0, size, size, WRITE | ALSO_READS | ATOMIC)]
        case _:
            match called(instruction).split("."):
                case "oxide", "held", "atomic", operation, kind, scope, ordering:
                    what = {"load": 0, "store": WRITE}.get(operation, WRITE | ALSO_READS)
                    what |= ATOMIC | (BLOCK_SCOPE if scope == "block" else 0)
                    size = int(kind.lstrip("bfi")) // 8
                    found = [_Touch(1, size, size, what, int(ordering))]
                case "oxide", "tensor", "ldmatrix" | "stmatrix" as way, count, *_:
                    # Each lane gives the address of one row of a block.
                    what = WRITE if way == "stmatrix" else 0
                    found = [_Touch(2, 16, 16, what, lanes=8 * int(count.removeprefix("x")))]
                case "oxide", "tensor", "copy_async", moved:
                    size = int(moved)
                    found = [_Touch(2, size, size, ASYNCHRONOUS), _Touch(3, size, size, 0, counted=4)]
                case "oxide", "tensor", "barrier", "arrive" | "expect":
                    found = [_Touch(2, 8, 8, WRITE | ATOMIC, _RELEASE)]
                case "oxide", "cluster", "arrive":
                    found = [_Touch(2, 8, 8, WRITE | ATOMIC, _RELEASE, blocks="rank")]
                case "oxide", "tensor", "load_tile", *_, last:
                    size, barrier = TileCopy.of(called(instruction)).bytes, len(instruction.operands) - 2
                    blocks = "mask" if last == "multicast" else ""
                    found = [_Touch(2, size, 16, WRITE, blocks=blocks)]
                    found.append(_Touch(barrier, 8, 8, WRITE | ATOMIC, _RELEASE, blocks=blocks))
                case "oxide", "tensor", "store_tile", *_:
                    found = [_Touch(2, TileCopy.of(called(instruction)).bytes, 16, ASYNCHRONOUS_READ)]
                case "oxide", "tensor", "wgmma", n, _, _, a_order, b_order, steps, panel, _:
                    # Each thread counts as a reader of the warpgroup's rows: all read them together.
                    a_rows = 16 * int(steps) if a_order == "mn" else 64
                    b_bytes = -(-int(n) // 64) * int(panel) if b_order == "mn" else int(n) * ROW_BYTES
                    found = [_Touch(4, b_bytes, 16, 0)]
                    if a_order != "r":
                        found.append(_Touch(3, a_rows * ROW_BYTES, 16, 0))
    pointers = [instruction.operands[each.place] for each in found]
    touched = [each.type == "ptr" and (each.symbol or not isinstance(each, Constant)) for each in pointers]
    return list(itertools.compress(found, touched))


@final
class _Instrumenter:
    """Instruments one kernel: rewrites its body within its module. ``accesses`` has the source place of each access. A
    check refers to an access by its index.

    A shadow cell covers ``1 << shared_shift`` bytes of shared memory, the granule of the kernel's accesses to it. If no
    thread can wait for another, a thread leaves the kernel as soon as it would continue with a meaningless value: after
    a failed check of the kernel, after an access out of bounds, and after a read of uninitialised memory. A loop
    bounded by such a value might never end.
    """

    def __init__(
        self,
        name: str,
        kernel: PortableKernel,
        module: Module,
        pointers: tuple[PointerWord, ...],
        views: Mapping[int, int],
        kinds: frozenset[str],
    ) -> None:
        self._name = name
        self._module = module
        self._function = module.functions[kernel.symbol]
        self._numbers = itertools.count()
        self._known: dict[Access, int] = {}
        self._context, *words = self._function.arguments
        by_value: dict[Value, int] = {argument: views[word] for word, argument in enumerate(words) if word in views}
        self._origins = Origins(self._function, by_value)
        names = [pointer.name for pointer in pointers]
        self._regions = Regions(module, self._function, by_value, names, kernel.shared, self._origins)
        self._products = Products(self._function, self._origins)
        self._place = ("", 0)
        self.shared_shift, self.pointers = self._granules(pointers)
        self._leaves = not threads_may_wait(kernel, module.defined)
        self._finds_races = "race" in kinds
        self._stores = any(called(each).startswith(STORE_TILE) for each in self._function.instructions)
        self._leaving = Block("%oxide.leaves", [Return()])
        self._block = self._function.entry

    @property
    def accesses(self) -> list[Access]:
        return list(self._known)

    def instrument(self) -> None:
        """Rewrites the body, block by block. Each instruction is appended again, with the calls before and after it
        that its checks need."""
        function, last_parts = self._function, dict[Value, Value]()
        blocks, function.blocks = list(function.blocks.values()), {}
        for block in blocks:
            instructions, block.instructions = block.instructions, []
            self._block = function.add(block)
            for instruction in instructions:
                self._rewrite(instruction)
            last_parts[block] = self._block
        if self._products.used:
            clear = self._module.declare("void", "llvm.memset.p0.i64", ("ptr", "i8", "i64", "i1"))
            record, size = self._products.record, number(self._products.bytes)
            function.entry.insert(0, [record, Call("", "void", clear, (record, number(0, "i8"), size, FALSE))])
        self._origins.add_choices()
        for block in function.blocks.values():
            for phi in block.phis:
                phi.replace_operands(last_parts)
        if len(function.blocks) > len(blocks):
            function.add(self._leaving)

    def _granules(self, pointers: tuple[PointerWord, ...]) -> tuple[int, tuple[PointerWord, ...]]:
        """Returns the base-2 logarithm of the granule of shared memory, and the pointers with the granules of their
        memory. A granule is the greatest power of two that divides the size and the alignment of each access."""
        shared, granules = 8, [min(8, _power(pointer.itemsize)) for pointer in pointers]
        for instruction in self._function.instructions:
            for touch in _touches_of(instruction):
                granule = min(_power(touch.size), touch.align)
                regions = list(self._regions.reached(instruction.operands[touch.place]).values()) or [UNKNOWN]
                if any(region.kind in ("shared", "remote") for region in regions):
                    shared = min(shared, granule)
                known = {region.view for region in regions if region.kind == "device"}
                for view in range(len(pointers)) if UNKNOWN in regions else known:
                    granules[view] = min(granules[view], granule)
        return shared.bit_length() - 1, tuple(
            dataclasses.replace(pointer, granule=granule) for pointer, granule in zip(pointers, granules, strict=True)
        )

    def _rewrite(self, instruction: Instruction) -> None:
        place = place_of(self._module, instruction)
        if place is not None:
            self._place = place.file, place.line
        touches = _touches_of(instruction)
        match called(instruction).split("."):
            case _ if touches and not self._is_initial_zero(instruction):
                ordering = max(touch.ordering for touch in touches)
                multiplies = called(instruction).startswith(WGMMA)
                for each in touches:
                    self._order("release", each.ordering)  # a copy's arrival releases the copy's own writes
                    pointer, given = instruction.operands[each.place], self._size_of(instruction, each)
                    if each.blocks:
                        self._check_peers(instruction, each)
                        continue
                    instruction.operands[each.place] = self._checked(pointer, each, given)
                    if multiplies:
                        self._note_tile(pointer, each)
                if multiplies:
                    self._note_product(instruction)
                if called(instruction).startswith(STORE_TILE):
                    self._check_stored(instruction)
                if isinstance(instruction, Load | Store):
                    instruction.after = ", align 1"
                self._block.append(instruction)
                self._order("acquire", ordering)
            case "oxide", "in_bounds" | "aligned", *_:
                self._block.append(instruction)
                self._go_on(instruction)
            case "oxide", "assertion_failed":
                self._block.append(instruction)
                self._go_on(FALSE)
            case "oxide", "held", "fence", _, ordering:
                self._order("release", int(ordering))
                self._block.append(instruction)
                self._order("acquire", int(ordering))
            case "oxide", "tensor", "barrier", "wait":
                self._block.append(instruction)
                touch = _Touch(2, 8, 8, WRITE | ATOMIC)
                self._checked(instruction.operands[2], touch, number(8))
                self._call("void", "oxide.sanitize.acquire", self._context)
            case "oxide", "block", "barrier", *_:
                self._block.append(instruction)
                self._call("void", "oxide.sanitize.passed", self._context, FALSE)
            case "oxide", "cluster", "barrier" | "meeting" as way:
                # Records that this block has begun, before another block can write the block's memory.
                self._call("ptr", "oxide.sanitize.enter", self._context)
                self._block.append(instruction)
                if way == "barrier":  # a meeting makes nothing visible
                    self._call("void", "oxide.sanitize.passed", self._context, TRUE)
            case "oxide", "warp", "sync":
                self._call("void", "oxide.sanitize.arrive", self._context)
                self._block.append(instruction)
                self._call("void", "oxide.sanitize.join", self._context, instruction.operands[2])
                self._block.append(instruction.copy({}, ""))
            case "oxide", "warp", operation, *_ if operation != "active_mask":
                self._block.append(instruction)
                mask = instruction.operands[2]
                if operation == "shuffle":  # only the lane whose value is read matters
                    how, by = called(instruction).split(".")[3], instruction.operands[4]
                    missing = self._call("i32", f"oxide.warp.missing_source.{how}", self._context, by)
                else:
                    missing = self._call("i32", "oxide.warp.missing", self._context, mask)
                what = self._number("a warp operation", 0)
                self._call("void", "oxide.sanitize.lanes", self._context, missing, mask, what)
            case "oxide", "tensor", "wgmma_wait", *_, pending:
                slot = self._products.slot(instruction.operands[2])
                if slot is not None:
                    words = number(slot), number(int(pending)), number(self._products.tiles)
                    self._call("void", "oxide.sanitize.products", self._context, self._products.record, *words)
                self._block.append(instruction)  # all threads meet here, after recording their reads
            case "oxide", "tensor", "commit" | "commit_stores" as way:
                self._block.append(instruction)
                stores = TRUE if way == "commit_stores" else FALSE
                self._call("void", "oxide.sanitize.committed", self._context, stores)
            case "oxide", "tensor", "wait" | "wait_stores" as way, groups, *how:
                self._block.append(instruction)
                ended = _COPIES if way == "wait" else _TILE_READS if how == ["read"] else _TILE_READS | _TILE_WRITES
                self._call("void", "oxide.sanitize.waited", self._context, number(int(groups)), number(ended))
            case _ if isinstance(instruction, Return) and self._stores and self._finds_races:
                self._call("void", "oxide.sanitize.stores_left", self._context)
                self._block.append(instruction)
            case "oxide", "held", "local":
                size, align = (operand.integer or 0 for operand in instruction.operands[1:])
                instruction.operands[1:] = number(2 * size), number(max(16, align))
                self._block.append(instruction)
                shadow = self._emit(GetElementPtr(self._fresh(), "i8", instruction, [number(size)]))
                self._call("void", "llvm.memset.p0.i64", shadow, number(0, "i8"), number(size), FALSE)
            case _:
                self._block.append(instruction)

    def _is_initial_zero(self, instruction: Instruction) -> bool:
        """Returns whether a store is numba-cuda's zero initialisation of a local array. A kernel must not rely on these
        zeros."""
        return (
            isinstance(instruction, Store)
            and "!oxide.place" not in instruction.metadata
            and called(instruction.pointer) == HELD_LOCAL
        )

    def _size_of(self, instruction: Instruction, touch: _Touch) -> Value:
        """Returns the number of bytes of an access, which is 0 if the thread does not make the access."""
        if touch.counted is not None:
            return self._emit(Cast(self._fresh(), "zext", instruction.operands[touch.counted], "i64"))
        if touch.lanes == 32:
            return number(touch.size)
        lane = self._call("i32", "oxide.register.laneid", self._context)
        among = self._emit(Compare(self._fresh(), "ult", lane, number(touch.lanes, "i32")))
        return self._emit(Select(self._fresh(), among, number(touch.size), number(0)))

    def _checked(self, pointer: Value, touch: _Touch, size: Value) -> Value:
        """Appends the check of an access of ``size`` bytes. Returns the address to access, which for a stack variable
        is the pointer itself."""
        regions = self._regions.reached(pointer)
        if len(regions) > 1:
            kind, what, words = self._of_several(pointer, touch.what, regions)
        else:
            region = next(iter(regions.values()), UNKNOWN)
            if region.kind == "stack":
                self._check_fragment(pointer, touch)
                return pointer
            if region.kind == "remote":
                return self._checked_remote(pointer, touch, size, region)
            kind, what = region.kind, self._number(region.what, touch.what)
            words = self._words_of(region) if region is not UNKNOWN else [self._anywhere(pointer, number(-1))]
        access = pointer, size, number(touch.align), what
        result = self._call("ptr", f"oxide.sanitize.{kind}", self._context, *access, *words)
        if self._leaves:
            self._go_on(self._call("i1", "oxide.sanitize.goes_on", self._context))
        return result

    def _checked_remote(self, pointer: Value, touch: _Touch, size: Value, region: Region) -> Value:
        """Appends the check of an access to another block's array. Returns the address to access."""
        assert isinstance(region.array, Call)
        _, local, rank, _ = region.array.arguments
        words = self._shared_words(local)
        if words is None:
            return pointer
        access = pointer, size, number(touch.align), self._number(region.what, touch.what)
        place = rank, region.array, local
        return self._call("ptr", "oxide.sanitize.remote", self._context, *access, *place, *words)

    def _check_peers(self, instruction: Instruction, touch: _Touch) -> None:
        """Appends the check of an access to the memory of one or several other blocks of the cluster."""
        pointer = instruction.operands[touch.place]
        words = self._shared_words(pointer)
        if words is None:
            return
        blocks = instruction.operands[touch.place + 1 if touch.blocks == "rank" else -3]
        what = self._number(next(iter(self._regions.reached(pointer).values())).what, touch.what)
        access = blocks, pointer, number(touch.size), number(touch.align), what
        if touch.blocks == "rank":
            self._call("ptr", "oxide.sanitize.peer", self._context, *access, *words)
        else:
            self._call("void", "oxide.sanitize.peers", self._context, *access, *words)

    def _shared_words(self, pointer: Value) -> list[Value] | None:
        """Returns a check's arguments for the shared array that a pointer leads to, None if the pointer may lead to
        several arrays."""
        region = self._only_region(pointer)
        return self._words_of(region) if region.kind == "shared" else None

    def _only_region(self, pointer: Value) -> Region:
        """Returns the region that a pointer leads to, or ``UNKNOWN`` if there may be several."""
        regions = list(self._regions.reached(pointer).values())
        return regions[0] if len(regions) == 1 else UNKNOWN

    def _check_stored(self, instruction: Instruction) -> None:
        """Appends the check of ``store_tile``'s writes to an output."""
        copy, (data, *words) = TileCopy.of(called(instruction)), instruction.operands[3:-1]
        region = self._only_region(data)
        region = region if region.view >= 0 else UNKNOWN
        missing = MOST_AXES - copy.axes
        lengths = [number(1)] * missing + words[: copy.axes]
        places = [number(0)] * missing + words[copy.axes :]
        sides = [number(1)] * missing + [number(side) for side in copy.sides]
        access = data, number(region.view), self._number(region.what, ASYNCHRONOUS), number(copy.itemsize)
        self._call("void", "oxide.sanitize.stored", self._context, *access, *lengths, *places, *sides)

    def _note_tile(self, pointer: Value, touch: _Touch) -> None:
        """Emits a call that adds the tile at ``pointer``, which a product reads, to the thread's record of its
        products."""
        region = self._only_region(pointer)
        if region.kind == "shared":
            what = self._number(region.what, touch.what)
            words = pointer, number(touch.size), what, *self._words_of(region)
            record, first = self._products.record, number(self._products.tiles)
            self._call("void", "oxide.sanitize.tile", record, first, *words)

    def _note_product(self, instruction: Instruction) -> None:
        """Emits calls that add a product's fragments to the thread's record of its products, and that count the
        product."""
        record = self._products.record
        for place, what in ((2, ACCUMULATOR), (3, LEFT_OPERAND)):
            slot = self._products.slot(instruction.operands[place])
            if slot is not None:
                access = number(slot), self._number(what, ASYNCHRONOUS)
                self._call("void", "oxide.sanitize.product", self._context, record, *access)
        self._call("void", "oxide.sanitize.begun", record)

    def _check_fragment(self, pointer: Value, touch: _Touch) -> None:
        """Appends the check that no product still uses a fragment. The check precedes each access to an accumulator,
        and each write to an operand."""
        slot = self._products.slot(pointer)
        held = self._products.is_accumulator(pointer)
        if slot is not None and (held or touch.what & WRITE):
            what = self._number(ACCUMULATOR if held else LEFT_OPERAND, touch.what)
            words = number(slot), FALSE if held else TRUE, what
            self._call("void", "oxide.sanitize.fragment", self._context, self._products.record, *words)

    def _of_several(self, pointer: Value, what: int, regions: Mapping[int, Region]) -> tuple[str, Value, list[Value]]:
        """Returns the check of an access to one of several regions: its kind, the access's number, and the words of the
        region. At run time, the pointer's origin selects the region."""
        chosen = self._origins.chosen(pointer)
        whats = {region.what for region in regions.values()}
        access: Value = self._number(min(whats) if len(whats) == 1 else UNKNOWN.what, what)
        words: list[Value] = [number(0), Constant("null", "ptr"), number(0), number(0), number(0)]
        for origin, region in regions.items():
            it_is = self._emit(Compare(self._fresh(), "eq", chosen, number(origin)))
            access = self._selected(it_is, self._number(region.what, what), access)
            if region.kind != "device":
                own = [number(REGION_KINDS.index(region.kind)), *self._words_of(region)]
                own += words[len(own) :]
                words = [self._selected(it_is, new, old) for new, old in zip(own, words, strict=True)]
        if all(region.kind == "device" and region is not UNKNOWN for region in regions.values()):
            return "device", access, [chosen]
        # An array loaded from a variable in memory may be any of several.
        return "chosen", access, [self._anywhere(pointer, chosen), *words]

    def _anywhere(self, pointer: Value, view: Value) -> Value:
        """Returns a run-time value: the number of the view that an access is in. If ``view`` is not -1, the value is
        ``view``. If it is -1, the view is not known. Then the value is -2 if the address is, or may be, in an array
        that is no parameter, else -1."""
        elsewhere: Value = TRUE if self._regions.others is None else FALSE
        address = self._emit(Cast(self._fresh(), "ptrtoint", pointer, "i64"))
        for region in self._regions.others or ():
            array, length, *_ = self._words_of(region)
            start = self._emit(Cast(self._fresh(), "ptrtoint", array, "i64"))
            offset = self._emit(Binary(self._fresh(), "sub", address, start))
            inside = self._emit(Compare(self._fresh(), "ult", offset, length))
            elsewhere = self._emit(Binary(self._fresh(), "or", elsewhere, inside))
        unknown = self._emit(Compare(self._fresh(), "eq", view, number(-1)))
        known = self._emit(Binary(self._fresh(), "and", unknown, elsewhere))
        return self._emit(Select(self._fresh(), known, number(-2), view))

    def _selected(self, condition: Value, new: Value, old: Value) -> Value:
        return old if new == old else self._emit(Select(self._fresh(), condition, new, old))

    def _words_of(self, region: Region) -> list[Value]:
        """Returns a check's arguments for a region: a view's number, or an array's address and length."""
        if region.kind == "device":
            return [number(region.view)]
        if region.array is None:
            return []
        array = region.array
        if region.kind == "shared":
            array = self._call("ptr", array.symbol, self._context)  # the first call may be on another path
        if region.bytes is None:
            length = self._call("i64", "oxide.shared.dynamic.bytes", self._context)
        else:
            length = number(region.bytes)
        place = [number(region.offset), number(self.shared_shift)] if region.kind == "shared" else []
        return [array, length, *place]

    def _number(self, what: str, bits: int) -> Constant:
        """Returns the number of the access at the current place, with the flags ``bits`` in its lowest four bits.
        Raises ``CompileError`` for too many accesses."""
        access = Access(what, *self._place)
        place = self._known.setdefault(access, len(self._known))
        if place >= _MAX_ACCESSES:
            raise CompileError(f"kernel {self._name}: the sanitizer can tell {_MAX_ACCESSES} accesses apart, no more")
        return number(place << 4 | bits)

    # New instructions

    def _fresh(self) -> str:
        return f"%sanitize.{next(self._numbers)}"

    def _emit(self, instruction: Instruction) -> Value:
        self._block.append(instruction)
        return instruction

    def _call(self, type_: str, symbol: str, *arguments: Value) -> Value:
        callee = self._module.declare(type_, symbol, [argument.type for argument in arguments])
        return self._emit(Call(self._fresh() if type_ != "void" else "", type_, callee, arguments))

    def _order(self, what: str, ordering: int) -> None:
        """Emits the call of ``what``, "release" or "acquire", if the ordering includes it."""
        if ordering in _ORDERINGS[what]:
            self._call("void", f"oxide.sanitize.{what}", self._context)

    def _go_on(self, condition: Value) -> None:
        """Splits the block at a condition. A thread for which the condition is false leaves the kernel there."""
        if self._leaves:
            rest = Block(self._fresh())
            self._block.append(Branch(rest, self._leaving, condition))
            self._block = self._function.add(rest)


def _power(size: int) -> int:
    """Returns the greatest power of two that divides ``size``."""
    return size & -size or 1
