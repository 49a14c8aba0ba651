"""A kernel for certain types: the front end's results, and machine code for each target.

Both come from the cache if it has them. Otherwise the first use of the kernel with these types compiles them. The
modules that load numba or LLVM are imported where they are used: a program whose kernels are all in the cache loads
neither.
"""

from __future__ import annotations

import gc
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, final

from oxide.compiler.signature.signature import Closed, NumbaParameter
from oxide.compiler.signature.untyped_arguments import ArrayType, RecordType, TupleType
from oxide.compiler.source.faults import FaultSite
from oxide.compiler.source.widening import Widening
from oxide.driver import sanitizing
from oxide.driver.base import Code, KernelResources, Target, capability_of
from oxide.errors import CompileError, LaunchError, cell_of
from oxide.host import disk
from oxide.host.locks import new_lock, unheld
from oxide.host.messages import written
from oxide.host.uninterrupted import uninterrupted

from .installed import missing_package, not_installed

if TYPE_CHECKING:
    from oxide.compiler.bounds.hoist import Placement
    from oxide.compiler.cache.built import BuiltEntry
    from oxide.compiler.cache.entries import Entry, Facts
    from oxide.compiler.check.check import Uses
    from oxide.compiler.declaration.description import FusedSource, KernelDescription, LaunchNeeds
    from oxide.compiler.elementwise import Elementwise
    from oxide.compiler.frontend.frontend import Style
    from oxide.compiler.interpreter.run import TypedKernel
    from oxide.compiler.ir.portable import LoweredKernel, PortableKernel
    from oxide.compiler.signature.captured import Captured
    from oxide.compiler.tile.tile_source import TileSource

    from .checks_report import Check

__all__ = ["Specialization", "SpecializedKernel"]


class SpecializedKernel(Protocol):
    """A kernel, as its specializations and fused kernels know it. ``Kernel`` is the implementation."""

    name: str
    function: Callable[..., Any]
    description: KernelDescription
    is_generic: bool
    compiling: Callable[[], Callable[[str, tuple[Closed, ...]], None]] | None
    compiled: Callable[[str, float], None] | None

    @property
    def launches(self) -> Any: ...

    @property
    def each(self) -> SpecializedKernel | None: ...

    @property
    def followed_by(self) -> Callable[[Any], Any] | None: ...

    def specialize(self, **types: Any) -> Specialization: ...

    def specialization(self, parameters: tuple[Closed, ...]) -> Specialization: ...

    def note_compiled(self, seconds: float) -> None: ...


@final
class Specialization:
    """A kernel for certain types, typed and lowered, with its machine code for each target used so far. The IR and the
    machine code come from the cache or are compiled."""

    def __init__(
        self,
        kernel: SpecializedKernel,
        parameters: tuple[Closed, ...],
        refuse: Callable[[str, tuple[Closed, ...]], None] | None,
    ) -> None:
        from oxide.compiler.cache.built import provided_entry
        from oxide.compiler.cache.entries import Entry, Unknown, entry_of, warn_of_unknown

        self.kernel = kernel
        described = self.description = kernel.description
        self.parameters = parameters
        unknown: Unknown | None = None
        self.typed: TypedKernel | None = None
        """The typed kernel that the interpreter runs; None unless the kernel is an interpreted form."""
        self.interpreted: Any = None
        """The ``InterpretedKernel``; None before the first interpreted launch."""
        self.fusions: dict[Any, Any] = {}
        """The fused kernels that begin with this one, by their stages; see ``fusion.fused``."""
        self.chains: dict[Any, Any] = {}
        """Results of ``fusion.py`` for this kernel and for chains that begin with it, kept so that they are computed
        only once."""
        self.cooperative = False
        """True for an interpreted form whose threads synchronise across the grid."""
        self.typing_seconds = 0.0
        """The time that typing and lowering took; 0 if the cache had the results."""
        self._entry: Entry | BuiltEntry | None = None
        try:
            if described.prebuilt is not None:
                self._entry = described.prebuilt.entry(described, parameters)
            elif not described.interpreted:
                self._entry = entry_of(described, parameters)
        except Unknown as error:
            unknown = error
        kept = self._entry.facts() if self._entry is not None else None
        if kept is None and (package := missing_package(described)) is not None:
            self._entry = provided_entry(described, parameters)  # only if it is one of oxide's own kernels
            if self._entry is None:
                raise not_installed(described, package)
            kept = self._entry.facts()
        if kept is None:
            if refuse is not None:
                refuse(kernel.name, parameters)
            begun = perf_counter()
            self._facts: Facts = self._found_facts()
            self.typing_seconds = perf_counter() - begun
        else:
            self._facts = kept
        self.needs: LaunchNeeds = self._facts.needs
        self.captured = self._facts.captured
        """The device arrays from outside that the kernel names."""
        if self.captured:
            self._entry = None  # the facts, and the arrays that they hold, belong to this specialization alone
        self.captured_boxes: Any = None
        """A box for each captured array; None before the first launch."""
        self.captured_words: tuple[Any, ...] = ()
        """The words of these boxes, as launches pass them."""
        self.signature = _signature(described, parameters, self.captured)
        """The parameters of the machine code: the kernel's own, and a hidden one for each captured array."""
        self.kernel_id: int = _stable_hash(described, parameters)
        self._struct = struct.Struct("@" + "".join(p.struct_format for p in self.signature) + "Q")
        self.reference = weakref.ref(self)  # one object, shared by all tables that have weak keys
        self._lock = new_lock()
        self._codes: dict[Target, Code] = {}
        self._sanitized_sites: tuple[FaultSite, ...] = ()
        if kept is None:
            if described.deny_checks and not described.interpreted:
                from .checks_report import deny_checks_in_loops

                deny_checks_in_loops(described.name, self._checks())
            if isinstance(self._entry, Entry):
                self._entry.keep_facts(self._facts)
            if unknown is not None:
                warn_of_unknown(described, unknown)

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.kernel.is_generic:
            return _specialized, (self.kernel,)
        raise TypeError(
            f"the specialization of kernel {self.kernel.name} for certain types cannot be pickled; pickle the kernel, "
            "and specialize it in the other process"
        )

    def __copy__(self) -> Specialization:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Specialization:
        return self

    @property
    def portable(self) -> PortableKernel:
        """Returns the kernel's IR, which both back ends start from."""
        return self._facts.portable

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Returns, for each access, where its bounds check is done. Empty if the kernel is ``unchecked``."""
        return self._facts.placements

    @property
    def widenings(self) -> tuple[Widening, ...]:
        """Returns the float operations that compute in a wider type than that of an operand."""
        return self._facts.widenings

    @property
    def elementwise(self) -> Elementwise | str:
        """Returns the accesses of an elementwise kernel, which can be fused with others, or the reason why the kernel
        is not proved to be elementwise."""
        return self._facts.elementwise

    def ptx(self, cc: tuple[int, int] = (9, 0)) -> str:
        """Returns the PTX for a compute capability, a pair such as ``(9, 0)``. Needs no GPU.

        Raises ``TypeError`` if ``cc`` is not such a pair, and ``CompileError`` for a pair that the compiler does not
        know.
        """
        from oxide.compiler.ptx.ptx import target_of

        if not (isinstance(cc, tuple) and len(cc) == 2 and all(type(part) is int for part in cc)):
            raise TypeError(f"cc is {written(cc)}; give a pair, as (9, 0) for compute capability 9.0")
        return self.code(target_of(self.description.name, cc)).image.decode()

    def llvm_ir(self) -> str:
        """Returns the text of the IR that both back ends start from."""
        return self.portable.text

    def native_asm(self) -> str:
        """Returns the assembly for this machine's CPU."""
        from oxide.compiler.check.numba_errors import placed_errors
        from oxide.compiler.cpu.object_code import native_assembly
        from oxide.compiler.ir.llvm import host_target

        kernel = self.description
        with placed_errors(kernel.name, kernel.function):
            return native_assembly(
                self.portable, self.signature, self.kernel_id, host_target(), unchecked=kernel.unchecked
            )

    def resources(self, block: int | tuple[int, ...] | None = None, *, shared_mem_bytes: int = 0) -> KernelResources:
        """Returns registers, memory, spills and occupancy on the GPU; see ``Kernel.resources``."""
        launches = self.kernel.launches
        if launches is None:
            raise RuntimeError(
                f"kernel {self.kernel.name} has no device to ask: import oxide, which brings the runtime"
            )
        found: KernelResources = launches.resources(self, block, shared_mem_bytes)
        return found

    def checks(self) -> tuple[Check | Widening, ...]:
        """Returns the bounds checks of the accesses, and after them the float operations that compute in a wider type
        than that of an operand. An unchecked kernel has no bounds checks."""
        from .checks_report import Checks

        return Checks(self._checks() + self._facts.widenings)

    def _checks(self) -> tuple[Check, ...]:
        from .checks_report import checks_of

        return checks_of(self.description, self.portable, self.parameters, self.sites, self.placements)

    @property
    def sites(self) -> tuple[FaultSite, ...]:
        """Returns the kernel's fault sites: checked accesses, asserts, and calls that may fault. A fault record's
        ``site`` is an index into them."""
        return self._sanitized_sites or self._facts.sites

    def has_code(self, target: Target) -> bool:
        """Returns whether ``code(target)`` neither compiles nor reads the cache."""
        return target in self._codes

    def code(self, target: Target) -> Code:
        """Returns machine code for a target, loaded from the cache or compiled at first use. Any thread may call it."""
        code = self._codes.get(target)
        if code is None:
            refuse = None if self.kernel.compiling is None else self.kernel.compiling()
            code, seconds = uninterrupted(partial(self._find_code, target, refuse))
            if seconds:
                self.kernel.note_compiled(seconds)
        return code

    def _find_code(
        self, target: Target, refuse: Callable[[str, tuple[Closed, ...]], None] | None
    ) -> tuple[Code, float]:
        """Returns machine code for a target, and the time that its compilation took, 0 if the code was there."""
        seconds = 0.0
        with unheld(self._lock):
            code = self._codes.get(target)
            kinds = self.description.sanitize | sanitizing.requested() if self.description.sanitizable else frozenset()
            # Sanitized code is not cached: it has sites of its own, which the cache does not store.
            entry = self._entry if target.kind == "ptx" or not kinds else None
            if code is None and target.kind == "ptx" and kinds:
                sanitizing.warn_of_gpu(self.description.name, kinds)
            if code is None and entry is not None:
                code = entry.code(target)
            if code is None:
                self._require_compiler(kinds)
                from oxide.compiler.cache.entries import Entry

                if refuse is not None:
                    refuse(self.kernel.name, self.parameters)
                begun = perf_counter()
                code = self._compiled(target, kinds)
                seconds = perf_counter() - begun
                if isinstance(entry, Entry):
                    entry.keep_code(code)
            self._codes[target] = code
            return code, seconds

    def _require_compiler(self, kinds: frozenset[str]) -> None:
        """Raises ``CompileError`` if the kernel cannot be compiled here."""
        described = self.description
        if described.prebuilt is not None:
            raise CompileError(
                f"kernel {described.name} was built ahead of time, and the sanitizer compiles a kernel again from its "
                "source: sanitize the kernel that it was built from"
            )
        # Sanitized code is made by typing the kernel again. Other code is made from the IR.
        package = missing_package(described, types=bool(kinds))
        if package is not None:
            raise not_installed(described, package)

    @cached_property
    def pointers(self) -> tuple[int, ...] | None:
        """Returns the offsets of the boxes' addresses in the bytes of ``pack``. None for a kernel with numba-cuda's
        semantics that takes tuples, because a tuple may hold boxes."""
        found: list[int] = []
        formats = "@"
        for parameter in self.parameters:
            if isinstance(parameter, NumbaParameter) and isinstance(parameter.type, TupleType):
                return None
            word = _address_word(parameter)
            if word is not None:  # all words of a box have eight bytes
                found.append(-(-struct.calcsize(formats) // 8) * 8 + 8 * word)
            formats += parameter.struct_format
        return tuple(found)

    def pack(self, values: Sequence[Any], fault_address: int) -> bytes:
        """Packs the parameters as a C structure, each naturally aligned.

        ``values`` are in the order of the parameters: a converted scalar, or for a slice a tuple of its address and
        lengths. ``fault_address`` is the fault record's address, or 0 for none.
        """
        words: list[Any] = []
        for value in values:
            if type(value) is tuple:
                words += value
            else:
                words.append(value)
        return self.pack_words(words, fault_address)

    def pack_words(self, words: Sequence[Any], fault_address: int) -> bytes:
        """Packs the parameters' words, given one after the other: the value of a scalar, the address and the lengths of
        a slice."""
        return self._struct.pack(*words, *self.captured_words, fault_address)

    def values_of(self, params: bytes) -> tuple[Any, ...]:
        """Returns the values that ``pack`` has packed."""
        values: list[Any] = []
        formats, before = "@", 0
        for parameter in self.parameters:
            formats += parameter.struct_format
            words = struct.unpack_from(formats, params)[before:]
            before += len(words)
            values.append(words[0] if parameter.kind == "scalar" and parameter.lifted is None else words)
        return tuple(values)

    def _found_facts(self) -> Facts:
        described = self.description
        with _rare_collections():  # numba's modules are imported here
            from oxide.compiler.check.numba_errors import placed_errors

            with placed_errors(described.name, described.function):
                return self._typed_facts() if described.interpreted else _front_end(described, self.parameters)

    def _typed_facts(self) -> Facts:
        """Types a kernel for the interpreter. Raises ``CompileError``, and ``NotTyped`` if the kernel has numba-cuda's
        semantics."""
        from oxide.compiler.bounds.exits import threads_may_wait
        from oxide.compiler.check.breakpoints import debugged
        from oxide.compiler.interpreter.run import TypedKernel

        kernel = self.description
        with debugged():
            uses, style = _style(kernel, self.parameters)
            if style != "oxide":
                raise not_typed(kernel.name)
            try:
                lowered, portable = _lowered(kernel, self.parameters, uses, style, keeps_types=True)
            except CompileError:
                _front_end(kernel, self.parameters)  # raises the error with the file's line, not a node's number
                raise
        assert lowered.typed is not None, "the front end was asked for the types"
        self.cooperative = portable.cooperative
        self.typed = TypedKernel(
            name=kernel.name,
            function=lowered.typed,
            parameters=self.parameters,
            fma=kernel.fma and not kernel.fastmath,
            goes_on=threads_may_wait(portable, portable.module.defined),
            suspends=portable.suspends,
            cooperative=portable.cooperative,
        )
        return _facts_of(kernel, uses, style, portable, (), lowered.widenings, self.parameters)

    def _compiled(self, target: Target, kinds: frozenset[str]) -> Code:
        from oxide.compiler.check.numba_errors import placed_errors

        with _rare_collections(), placed_errors(self.description.name, self.description.function):
            return self._compile(target, kinds)

    def _compile(self, target: Target, kinds: frozenset[str]) -> Code:
        kernel = self.description
        if target.kind == "native":
            if kinds:
                return self._compile_sanitized(target, kinds)
            from oxide.compiler.cpu.object_code import compile_native

            return compile_native(self.portable, self.signature, self.kernel_id, target, unchecked=kernel.unchecked)
        from oxide.compiler.ptx.ptx import compile_ptx

        return compile_ptx(
            self.portable
            if kernel.tile is None
            else kernel.tile.portable(capability_of(target.arch), lines=kernel.lineinfo),
            kernel.name,
            self.signature,
            self.kernel_id,
            target,
            unchecked=kernel.unchecked,
            max_registers=kernel.max_registers,
            block=kernel.default_block,
            only_block=kernel.tile is not None,
        )

    def _compile_sanitized(self, target: Target, kinds: frozenset[str]) -> Code:
        """Lowers the kernel again, with a source location and a check at every access, and compiles the result."""
        from oxide.compiler.bounds.hoist import leave_assertions_out
        from oxide.compiler.sanitizer.instrument import compile_sanitized

        kernel = self.description
        whole: frozenset[str] = frozenset()  # the outputs that a launch has to write in full
        if kernel.tile is not None:
            from oxide.compiler.tile import tile_source as source

            portable = kernel.tile.portable(source.simulated, located=True)
        else:
            uses, style = _style(kernel, self.parameters)
            _, portable = _lowered(kernel, self.parameters, uses, style, located=True)
            if not kernel.partial:
                whole = frozenset(uses.scattered)
        if kernel.unchecked:
            portable = leave_assertions_out(portable)
        self._sanitized_sites = portable.sites
        return compile_sanitized(
            kernel.name, portable, self.signature, self.kernel_id, target, kinds, whole, unchecked=kernel.unchecked
        )


def _specialized(kernel: SpecializedKernel) -> Specialization:
    """Returns the only specialization of a kernel that is not generic. Unpickling calls this function."""
    return kernel.specialize()


_frozen = False


def _holds_frozen() -> bool:
    """Returns whether the program has frozen objects (``gc.freeze``). Asks no more once it had some: Python counts them
    one by one, which took twice the time of a small kernel's compilation."""
    global _frozen
    _frozen = _frozen or gc.get_freeze_count() > 0
    return _frozen


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Makes Python collect garbage less often, and in short steps.

    A compilation makes hundreds of thousands of objects that live until it ends. With the usual thresholds, the
    collector goes through all of them and all of numba's again and again: that took a quarter of the time for a kernel
    of 400 statements. The collector also holds the GIL: it stopped the event loop beside which a thread compiled, for a
    quarter of a second where it went through all objects of a compilation at once. So it goes through new objects
    only, ``_OBJECTS_BETWEEN_COLLECTIONS`` at a time, and at the end the objects become old ones without a collection.
    Collection does not stop, because other threads of the program may rely on it. The program's threshold stays
    unchanged if it is 0, which disables collection, or at least ``_OBJECTS_BETWEEN_COLLECTIONS``. A threshold that the
    program sets during the compilation stays too.
    """
    outer = gc.get_threshold()
    ours = (_OBJECTS_BETWEEN_COLLECTIONS, _NEVER, _NEVER)
    if not 0 < outer[0] < _OBJECTS_BETWEEN_COLLECTIONS:
        yield
        return
    try:
        gc.set_threshold(*ours)
        yield
    finally:
        if gc.get_threshold() == ours:
            if not _holds_frozen():  # they would be collected from now on
                gc.freeze()
                gc.unfreeze()
            gc.set_threshold(*outer)


_OBJECTS_BETWEEN_COLLECTIONS = 25_000
_NEVER = 1 << 30


def _style(kernel: KernelDescription, parameters: tuple[Closed, ...]) -> tuple[Uses, Style]:
    """Returns the features that a kernel uses, and the style of its semantics. Raises ``CompileError``."""
    from oxide.compiler.check.check import check

    numba_style = kernel.adopted or any(isinstance(parameter, NumbaParameter) for parameter in parameters)
    uses = check(kernel.function, kernel.name, parameters, numba_style=numba_style)
    if uses.unwritten is not None and not kernel.partial:
        raise uses.unwritten
    return uses, "numba" if numba_style else "mixed" if uses.numba_cuda else "oxide"


def _lowered(
    kernel: KernelDescription,
    parameters: tuple[Closed, ...],
    uses: Uses,
    style: Style,
    *,
    located: bool = False,
    keeps_types: bool = False,
) -> tuple[LoweredKernel, PortableKernel]:
    """Types and lowers a checked kernel. Returns the front end's result, and its translation to portable IR.
    ``located`` and ``keeps_types`` are options of ``lower``. Raises ``CompileError``."""
    from oxide.compiler.frontend.frontend import lower
    from oxide.compiler.ir.dependencies import check_dependencies
    from oxide.compiler.ir.portable import translate

    lowered = lower(
        kernel.name,
        kernel.function,
        parameters,
        kernel.fastmath,
        style,
        fma=kernel.fma,
        located=located or kernel.lineinfo,
        constants=uses.constants,
        keeps_types=keeps_types,
    )
    # The sanitizer compiles its checks without line tables: its reports have lines of their own.
    lowered = replace(lowered, lines=kernel.lineinfo and not located and not keeps_types)
    portable = translate(kernel.function, lowered, kernel.cluster)
    check_dependencies(portable)
    return lowered, portable


def _front_end(kernel: KernelDescription, parameters: tuple[Closed, ...]) -> Facts:
    """Types and lowers a kernel. Raises ``CompileError``."""
    if kernel.tile is not None:
        return _tile_facts(kernel.tile, lines=kernel.lineinfo)
    if kernel.fusion is not None:
        return _fusion_facts(kernel.fusion)
    from oxide.compiler.bounds.contiguous import version_contiguous_loops
    from oxide.compiler.bounds.hoist import hoist_checks, leave_checks_out

    uses, style = _style(kernel, parameters)
    lowered, portable = _lowered(kernel, parameters, uses, style)
    captured = tuple(lowered.captured[number] for number in portable.captured)
    parameters = _signature(kernel, parameters, captured)
    placements: tuple[Placement, ...] = ()
    if kernel.unchecked:
        portable = leave_checks_out(portable)
    else:
        portable, placements = hoist_checks(portable, parameters, kernel.contracts)
    portable = version_contiguous_loops(portable)
    return _facts_of(kernel, uses, style, portable, placements, lowered.widenings, parameters, captured)


def _signature(
    kernel: KernelDescription, parameters: tuple[Closed, ...], captured: tuple[Captured, ...]
) -> tuple[Closed, ...]:
    """Returns the parameters of the machine code, the hidden ones last."""
    return (*parameters, *(NumbaParameter(kernel.name, each.name, each.type) for each in captured))


def _tile_facts(source: TileSource, *, lines: bool) -> Facts:
    """Lowers a tile kernel for the CPU. Raises ``CompileError``."""
    from oxide.compiler.cache.entries import Facts
    from oxide.compiler.declaration.description import LaunchNeeds
    from oxide.compiler.tile.tile_source import simulated

    portable = source.portable(simulated, lines=lines)
    return Facts(
        needs=LaunchNeeds(),
        sites=portable.sites,
        widenings=(),
        elementwise=lambda: "it is a tile kernel",
        portable=lambda: portable,
        placements=tuple,
    )


def _fusion_facts(fusion: FusedSource) -> Facts:
    """Composes a fused kernel. Raises ``CompileError``."""
    from oxide.compiler.cache.entries import Facts

    portable, placements = fusion.portable()
    return Facts(
        needs=fusion.needs,
        sites=portable.sites,
        widenings=(),
        elementwise=lambda: "it is a fused kernel",
        portable=lambda: portable,
        placements=lambda: placements,
    )


def _address_word(parameter: Closed) -> int | None:
    """Returns the index of a box's address among the words of a parameter. None for a parameter that takes no box."""
    if isinstance(parameter, NumbaParameter):
        if isinstance(parameter.type, ArrayType):
            return ArrayType.ADDRESS
        return 0 if isinstance(parameter.type, RecordType) else None
    return 0 if parameter.kind in ("slice", "disjoint", "tiles", "atomic") else None


class NotTyped(LaunchError):
    """Raised for an attempt to interpret a kernel with numba-cuda's semantics."""


NotTyped.__name__ = NotTyped.__qualname__ = LaunchError.__name__
NotTyped.__module__ = LaunchError.__module__


def not_typed(kernel: str) -> NotTyped:
    """Returns the error for the interpretation of a kernel with numba-cuda's semantics."""
    return NotTyped(
        f"kernel {kernel} has numba-cuda's semantics, and only typed kernels are interpreted: annotate all of its "
        "parameters with oxide's types and use oxide's functions, or launch it compiled"
    )


def _facts_of(
    kernel: KernelDescription,
    uses: Uses,
    style: Style,
    portable: PortableKernel,
    placements: tuple[Placement, ...],
    widenings: tuple[Widening, ...],
    parameters: tuple[Closed, ...],
    captured: tuple[Captured, ...] = (),
) -> Facts:
    from oxide.compiler.cache.entries import Facts
    from oxide.compiler.declaration.description import LaunchNeeds
    from oxide.compiler.ir.portable import tiled_parameters

    _, width = uses.width or ("", None)
    needs = LaunchNeeds(
        index_1d=uses.index_1d,
        index_2d=uses.index_2d,
        own_elements=(uses.index_1d or uses.index_2d) and not uses.other_elements,
        unchecked=kernel.unchecked or style != "oxide" or uses.unchecked,
        width=width if isinstance(width, int | str) else None,
        dynamic_shared=portable.shared.dynamic,
        tiled=() if kernel.interpreted else tiled_parameters(portable, parameters),
    )
    # Computed before the lambda is made: a lambda that refers to the kernel would keep it alive. The cache holds the
    # facts, and drops them only when the kernel's function is gone.
    accesses = _elementwise(kernel, needs, portable, parameters)
    return Facts(
        needs=needs,
        sites=portable.sites,
        widenings=widenings,
        elementwise=lambda: accesses,
        portable=lambda: portable,
        placements=lambda: placements,
        captured=captured,
    )


def _elementwise(
    kernel: KernelDescription, needs: LaunchNeeds, portable: PortableKernel, parameters: Sequence[Closed]
) -> Elementwise | str:
    """Returns the accesses of an elementwise kernel, or the reason why the kernel cannot be fused with others."""
    # here, as it loads LLVM, which a cached kernel does not need
    from oxide.compiler.elementwise.proof import elementwise

    reasons = {
        "it has numba-cuda's semantics": any(isinstance(each, NumbaParameter) for each in parameters),
        "it has clusters of blocks": kernel.cluster is not None,
        "it uses shared memory": needs.dynamic_shared,
        "its threads have no index: it uses neither thread.index_1d() nor thread.index_2d()": not (
            needs.index_1d or needs.index_2d
        ),
        "it uses both thread.index_1d() and thread.index_2d()": needs.index_1d and needs.index_2d,
        "its threads have several elements each": kernel.items_per_thread != (1, 1, 1),
        "it limits its registers": kernel.max_registers is not None,
        "it has line tables": kernel.lineinfo,
        "it is interpreted": kernel.interpreted,
    }
    return next((reason for reason, holds in reasons.items() if holds), "") or elementwise(
        portable, parameters, 2 if needs.index_2d else 1
    )


def _stable_hash(kernel: KernelDescription, parameters: tuple[Closed, ...]) -> int:
    """Returns a number that is the same for the same kernel and types in every process."""
    function = kernel.function
    types = ", ".join(f"{parameter.name}: {parameter.identity}" for parameter in parameters)
    place = f"{function.__module__}:{function.__qualname__}:{function.__code__.co_firstlineno}"
    identity = f"{place}:{kernel.name}({types})"
    if kernel.fusion is not None:
        stages = (_stable_hash(special.description, special.parameters) for special in kernel.fusion.sources)
        identity += f"{kernel.fusion.bindings}{[*stages]}"
    if cell_of(function.__code__.co_filename) is not None:  # another cell may have a kernel of this name at this line
        from oxide.compiler.cache.fingerprint import source_text

        identity += source_text(function)
    return int.from_bytes(disk.blake2b(identity.encode(), digest_size=8).digest(), "little")
