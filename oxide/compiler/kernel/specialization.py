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
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, final

from oxide.compiler.signature.signature import Closed, NumbaParameter, with_captured
from oxide.compiler.signature.untyped_arguments import ArrayType, RecordType, TupleType
from oxide.compiler.source.faults import Conversion, FaultSite, Narrowing, Widening
from oxide.compiler.source.source import located
from oxide.driver import sanitizing
from oxide.driver.base import Code, KernelResources, Target, capability_of
from oxide.errors import CompileError, LaunchError, cell_of
from oxide.host import disk
from oxide.host.environment import is_installed
from oxide.host.locks import new_lock, unheld
from oxide.host.messages import written
from oxide.host.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from oxide.compiler.bounds.hoist import Placement
    from oxide.compiler.cache.built import BuiltEntry
    from oxide.compiler.cache.entries import Entry, Facts
    from oxide.compiler.declaration.description import KernelDescription, LaunchNeeds
    from oxide.compiler.elementwise import Elementwise
    from oxide.compiler.interpreter.run import TypedKernel
    from oxide.compiler.ir.portable import PortableKernel

    from .reports import Check

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
        if kept is None and (package := _missing_package(described)) is not None:
            self._entry = provided_entry(described, parameters)  # only if it is one of oxide's own kernels
            if self._entry is None:
                raise _not_installed(described, package)
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
        self.signature = with_captured(described.name, parameters, self.captured)
        """The parameters of the machine code: the kernel's own, and a hidden one for each captured array."""
        self.kernel_id: int = _stable_hash(described, parameters)
        self._struct = struct.Struct("@" + "".join(p.struct_format for p in self.signature) + "Q")
        self.reference = weakref.ref(self)  # one object, shared by all tables that have weak keys
        self._lock = new_lock()
        self._codes: dict[Target, Code] = {}
        self._sanitized_sites: tuple[FaultSite, ...] = ()
        if kept is None:
            if described.deny_checks and not described.interpreted:
                from .reports import deny_checks_in_loops

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
    def conversions(self) -> tuple[Conversion, ...]:
        """Returns the float operations that compute in a wider type than that of an operand."""
        return self._facts.conversions

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

    def checks(self) -> tuple[Check | Widening | Narrowing, ...]:
        """Returns the bounds checks of the accesses, and after them the float operations that compute in a wider type
        than that of an operand, and the integers that become narrower where no conversion is written. An unchecked
        kernel has no bounds checks."""
        from .reports import checks_with

        return checks_with(self._checks(), self._facts.conversions)

    def _checks(self) -> tuple[Check, ...]:
        from .reports import checks_of

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
        package = _missing_package(described, types=bool(kinds))
        if package is not None:
            raise _not_installed(described, package)

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
                if not described.interpreted:
                    return _front_end(described, self.parameters)
                from .front_end import typed_facts_of

                found = typed_facts_of(described, self.parameters)
                if found is None:
                    raise not_typed(described.name)
                self.typed, facts = found
                self.cooperative = self.typed.cooperative
                return facts

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
            from .front_end import located_ir

            portable, whole = located_ir(kernel, self.parameters)
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


def _front_end(kernel: KernelDescription, parameters: tuple[Closed, ...]) -> Facts:
    """Types and lowers a thread kernel, lowers a tile kernel for the CPU, or composes a fused kernel. Raises
    ``CompileError``."""
    from oxide.compiler.cache.entries import Facts
    from oxide.compiler.declaration.description import LaunchNeeds

    needs = LaunchNeeds()
    placements: tuple[Placement, ...] = ()
    if kernel.tile is not None:
        from oxide.compiler.tile.tile_source import simulated

        portable, kind = kernel.tile.portable(simulated, lines=kernel.lineinfo), "tile"
    elif kernel.fusion is not None:
        portable, placements = kernel.fusion.portable()
        needs, kind = kernel.fusion.needs, "fused"
    else:
        from .front_end import facts_of

        return facts_of(kernel, parameters)
    return Facts(
        needs=needs,
        sites=portable.sites,
        conversions=(),
        elementwise=lambda: f"it is a {kind} kernel",
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


# The packages that compile kernels. A program whose kernels were all built ahead of time needs none of them. Compiling
# a tile kernel, or fusing kernels that are already in IR, needs only llvmlite. The parameters and the body of any other
# kernel are typed by numba-cuda, which imports CUDA's bindings.
_FOR_CODE = {"llvmlite": "llvmlite"}
_FOR_TYPES = {
    "numba": "numba",
    "numba_cuda": "numba-cuda",
    **_FOR_CODE,
    "cuda.bindings": "cuda-bindings",
    "cuda.core": "cuda-core",
}
"""Maps each module that types kernels to the package to install for it. ``_FOR_CODE`` does so for the modules that
compile IR."""


def _missing_package(kernel: KernelDescription, *, types: bool = True) -> str | None:
    """Returns the first package that is needed to compile a kernel and not installed, or None. If ``types`` is False,
    the kernel is already in IR, and the packages that type kernels are not needed."""
    typed = types and kernel.tile is None and kernel.fusion is None
    needed = _FOR_TYPES if typed else _FOR_CODE
    return next((package for module, package in needed.items() if not is_installed(module)), None)


def _not_installed(kernel: KernelDescription, package: str) -> CompileError:
    """Returns the error for a kernel that cannot be compiled without a package."""
    kind = "tile kernels" if kernel.tile is not None else "typed kernels"
    return located(
        kernel.function,
        f"kernel {kernel.name} must be compiled, and {package}, which compiles {kind}, is not installed: python -m pip "
        f"install {package}, or build the kernel ahead of time with `oxide build` and load it with oxide.load",
    )


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
