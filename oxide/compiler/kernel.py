"""``@kernel``: the decorator, the ``Kernel`` it makes, and its ``Specialization``.

Decorating reads annotations and no more. The first launch, or ``specialize()``, types and lowers the body, for no
particular device, once, or once for each choice of types that a generic kernel is used with; ``Specialization.code``
makes machine code for a device. This package does not know how to launch:
the runtime puts that in ``Kernel.configured``.
"""

from __future__ import annotations

import functools
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, cast, final, overload

from ..driver import sanitizing
from ..driver.base import Code, Dim3, KernelResources, Target
from ..errors import ArgumentError
from ..messages import written
from .arguments import ArgumentType
from .faults import FaultSite
from .function import DeviceFunction, device
from .signature import Closed, Declared, NumbaParameter, parse_parameters
from .source import located

if TYPE_CHECKING:
    from ..runtime.operation import DeviceOperation  # for the type alone: what a launch returns is the runtime's
    from .cache import Facts
    from .check import Uses
    from .contracts import Contract
    from .frontend import Style
    from .hoist import Placement
    from .ir import PortableKernel
    from .report import Check

__all__ = ["DeviceFunction", "Kernel", "Specialization", "device", "kernel"]

ResourceReader = Callable[["Specialization", "int | tuple[int, ...] | None", int], KernelResources]
Launcher = Callable[..., "DeviceOperation[tuple[Any, ...]]"]


@final
class Kernel:
    """A GPU function: called, it gives an operation that launches it.

    ``kernel[config](…)`` launches with a ``LaunchConfig``, ``kernel[grid, block](…)`` with two shapes, ``kernel(…)``
    with the kernel's own block. Arguments may be given by name.
    """

    configured: ClassVar[Callable[[Kernel, object | None], Launcher] | None] = None
    """What the runtime makes of a kernel and the brackets' content or None, to be called with the arguments."""

    resource_reader: ClassVar[ResourceReader | None] = None
    """What answers ``resources``, from the block and its dynamic shared memory too. Set by the runtime."""

    __wrapped__: Callable[..., Any]

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        block: int | tuple[int, ...] | None = None,
        items_per_thread: int | tuple[int, ...] = 1,
        fastmath: bool = False,
        unchecked: bool = False,
        deny_checks: bool = False,
        requires: Iterable[str] = (),
        max_registers: int | None = None,
        sanitize: str | Iterable[str] = (),
        names: Mapping[str, Any] | None = None,
    ) -> None:
        dispatcher, function = function, getattr(function, "py_func", function)
        self.adopted = dispatcher is not function
        """Whether it is a numba-cuda kernel, made by ``kernel(dispatcher)``."""
        if not hasattr(function, "__code__"):
            from .misuse import no_function

            raise no_function(function)
        functools.update_wrapper(self, function)
        self.function = function
        self.name: str = function.__name__
        self.parameters: tuple[Declared, ...] = parse_parameters(function, self.name, names or {}, self.adopted)
        self.signatures: tuple[tuple[ArgumentType, ...], ...] = ()
        """The explicit signatures of an adopted kernel: its arguments are converted to those of one. Else none."""
        if self.adopted:
            from .frontend import adopted_signatures

            options = dispatcher.targetoptions  # type: ignore[attr-defined]
            self.signatures = adopted_signatures(dispatcher)
            fastmath = fastmath or bool(options.get("fastmath"))
            max_registers = max_registers or options.get("max_registers")
        self.default_block: Dim3 | None = None if block is None else _dim3(function, self.name, block)
        self.items_per_thread: Dim3 = _items(function, self.name, items_per_thread)
        self.fastmath = fastmath
        self.unchecked = unchecked
        self.deny_checks = deny_checks
        if unchecked and deny_checks:
            raise located(function, f"kernel {self.name}: unchecked and deny_checks contradict each other: pick one")
        self.contracts: tuple[Contract, ...] = ()
        if requires:
            from .contracts import parse_contracts

            self.contracts = parse_contracts(function, self.name, self.parameters, requires)
        if max_registers is not None and not (_is_whole(max_registers) and 1 <= max_registers <= 255):
            raise located(
                function, f"kernel {self.name}: max_registers is {written(max_registers)}; a thread has 1 to 255"
            )
        self.max_registers = max_registers
        self.sanitize = sanitizing.kinds_of(sanitize, self.name)
        self.open_places = tuple(place for place, p in enumerate(self.parameters) if not isinstance(p, Closed))
        """The places of the parameters whose types the arguments decide."""
        self.is_generic = bool(self.open_places)
        self.by_arguments: dict[Hashable, Specialization] = {}
        """What the kinds of a launch's arguments lead to, as the runtime found it: a shortcut, not the truth."""
        self._lock = threading.Lock()
        self._specializations: dict[tuple[Closed, ...], Specialization] = {}
        self.only: Specialization | None = None
        """The one specialization of a kernel that is not generic, once there is one."""
        self.only_plan: Any = None
        """What the runtime made of ``only``, its ``plan``: a launch asks for nothing else."""
        self._unconfigured: Launcher | None = None

    def __getitem__(self, config: object) -> Launcher:
        """The kernel with a launch configuration: a ``LaunchConfig``, or grid and block. Called with the arguments, it
        is the operation that launches the kernel.

        Raises ``LaunchError`` for anything else, and for sizes that no device can launch.
        """
        configured = Kernel.configured
        if configured is None:
            raise RuntimeError(f"kernel {self.name} cannot be launched: import oxide, which brings the runtime")
        return configured(self, config)

    def __call__(self, *args: Any, **kwargs: Any) -> DeviceOperation[tuple[Any, ...]]:
        """An operation that launches the kernel with its own block and yields the arguments.

        Raises ``ArgumentError``, ``LaunchError`` or ``CompileError``, before anything is submitted.
        """
        launcher = self._unconfigured
        if launcher is None:
            launcher = self._unconfigured = self[None]
        return launcher(*args, **kwargs)

    if not TYPE_CHECKING:  # a type checker is to know what there is not

        def __getattr__(self, name: str) -> Any:
            from .misuse import no_attribute

            raise no_attribute(self.__dict__.get("name", "?"), name)

    def __repr__(self) -> str:
        return f"<kernel {self.name}({', '.join(f'{p.name}: {p.annotation}' for p in self.parameters)})>"

    def specialize(self, **types: Any) -> Specialization:
        """The kernel for certain types: typed and lowered, the first time; from any thread.

        A generic kernel needs a type for each of its type variables, ``scale.specialize(T=f32)``, a function for each
        parameter that takes one, by the parameter's name, and a type for each parameter without an annotation,
        ``add.specialize(x=Array[f32, 1], n=i64)``; any other kernel needs nothing. Raises ``ArgumentError`` for what is
        missing or cannot be, and ``CompileError``.
        """
        if self.only is not None and not types:
            return self.only
        if not self.is_generic and not types:
            self.only = self.specialization(cast(tuple[Closed, ...], self.parameters))
            return self.only
        from .generic import close_by_name  # here, as few programs need it

        parameters = close_by_name(self.name, self.parameters, types)
        return self.specialization(parameters)

    def example(self, **types: Any) -> Specialization:
        """``specialize``, where what is not said is chosen: a type variable is ``f32`` if it may be, else the first of
        its constraints. It is what a kernel shows when it is asked without types.

        A function, or the type of a parameter without an annotation, is not chosen: ``ArgumentError`` asks for it.
        """
        if not self.is_generic:
            return self.specialize(**types)
        from .generic import example_types

        return self.specialize(**(example_types(self.parameters) | types))

    def specialization(self, parameters: tuple[Closed, ...]) -> Specialization:
        """``specialize``, where the type of each parameter is known. Raises ``CompileError``."""
        special = self._specializations.get(parameters)
        if special is None:
            with self._lock:
                special = self._specializations.get(parameters)
                if special is None:
                    special = self._specializations[parameters] = Specialization(self, parameters)
        return special

    def ptx(self, cc: tuple[int, int] = (9, 0)) -> str:
        """``Specialization.ptx``, of a generic kernel for the types of ``example``; ``k.specialize(T=f64).ptx()`` is
        that for others."""
        return self.example().ptx(cc)

    def llvm_ir(self) -> str:
        """``Specialization.llvm_ir``, of a generic kernel for the types of ``example``."""
        return self.example().llvm_ir()

    def native_asm(self) -> str:
        """``Specialization.native_asm``, of a generic kernel for the types of ``example``."""
        return self.example().native_asm()

    def resources(self, block: int | tuple[int, ...] | None = None, *, shared_mem_bytes: int = 0) -> KernelResources:
        """Registers, memory, spills and occupancy on the GPU that operations run on, as its driver says.

        ``block`` is the block's shape in threads, by default the kernel's own, else 256 threads; ``shared_mem_bytes``
        its dynamic shared memory. A generic kernel has the types of ``example``. Raises ``DeviceError`` on the CPU
        device, which has none of these.
        """
        return self.example().resources(block, shared_mem_bytes=shared_mem_bytes)

    def checks(self) -> tuple[Check, ...]:
        """``Specialization.checks``, of a generic kernel for the types of ``example``."""
        return self.example().checks()

    def positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments of a call in order. Raises ``ArgumentError`` for names that do not fit."""
        names = [parameter.name for parameter in self.parameters]
        unknown = [name for name in kwargs if name not in names]
        if unknown:
            raise ArgumentError(f"kernel {self.name} has no parameter {unknown[0]}; it takes {', '.join(names)}")
        twice = [name for name in names[: len(args)] if name in kwargs]
        if twice:
            raise ArgumentError(f"kernel {self.name}: parameter {twice[0]} is given twice, by position and by name")
        missing = [name for name in names[len(args) :] if name not in kwargs]
        if missing:
            raise ArgumentError(f"kernel {self.name}: parameter {missing[0]} is missing; it takes {', '.join(names)}")
        return args + tuple(kwargs[name] for name in names[len(args) :])


@final
class Specialization:
    """A kernel for certain types, typed and lowered, and its machine code for each target so far: from the cache, or
    compiled."""

    def __init__(self, kernel: Kernel, parameters: tuple[Closed, ...]) -> None:
        from .cache import entry_of

        self.kernel = kernel
        self.parameters = parameters
        self._entry = entry_of(kernel, parameters)
        kept = self._entry.facts() if self._entry is not None else None
        if kept is None:
            from .diagnostics import placed_errors

            with placed_errors(kernel.name, kernel.function):
                self._facts: Facts = _front_end(kernel, parameters)
        else:
            self._facts = kept
        self.uses_index_1d: bool = self._facts.uses_index_1d
        self.uses_index_2d: bool = self._facts.uses_index_2d
        self.kernel_id: int = _stable_hash(kernel, parameters)
        self._struct = struct.Struct("@" + "".join(p.struct_format for p in parameters) + "Q")
        self.reference = weakref.ref(self)  # one for all who look something up by it
        self._lock = threading.Lock()
        self._codes: dict[Target, Code] = {}
        self._sanitized_sites: tuple[FaultSite, ...] = ()
        self.plan: object = None  # what the runtime made of it when the first launch was built
        if kept is None:
            if kernel.deny_checks:
                from .report import deny_checks_in_loops

                deny_checks_in_loops(self)
            if self._entry is not None:
                self._entry.keep_facts(self._facts)

    @property
    def portable(self) -> PortableKernel:
        """The kernel's IR, which both back ends start from."""
        return self._facts.portable

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Where the check of each access went; none if they are left out."""
        return self._facts.placements

    def ptx(self, cc: tuple[int, int] = (9, 0)) -> str:
        """The PTX for a compute capability, a pair such as ``(9, 0)``. Needs no GPU.

        Raises ``TypeError`` for anything else, and ``CompileError`` for a pair that the compiler does not know.
        """
        from .ptx import target_of

        if not (isinstance(cc, tuple) and len(cc) == 2 and all(type(part) is int for part in cc)):
            raise TypeError(f"cc is {written(cc)}; give a pair, as (9, 0) for compute capability 9.0")
        return self.code(target_of(self.kernel.name, cc)).image.decode()

    def llvm_ir(self) -> str:
        """The IR that both back ends start from."""
        return self.portable.text

    def native_asm(self) -> str:
        """The assembly for this machine's CPU."""
        from .diagnostics import placed_errors
        from .native import host_target, native_assembly

        kernel = self.kernel
        with placed_errors(kernel.name, kernel.function):
            return native_assembly(
                self.portable, self.parameters, self.kernel_id, host_target(), unchecked=kernel.unchecked
            )

    def resources(self, block: int | tuple[int, ...] | None = None, *, shared_mem_bytes: int = 0) -> KernelResources:
        """Registers, memory, spills and occupancy on the GPU that operations run on; see ``Kernel.resources``."""
        reader = Kernel.resource_reader
        if reader is None:
            raise RuntimeError(
                f"kernel {self.kernel.name} has no device to ask: import oxide, which brings the runtime"
            )
        return reader(self, block, shared_mem_bytes)

    def checks(self) -> tuple[Check, ...]:
        """Where each access's bounds check is: proved, hoisted out of a loop, or at the access; none if unchecked."""
        from .report import checks_of

        return checks_of(self)

    @property
    def sites(self) -> tuple[FaultSite, ...]:
        """The accesses that are checked; a fault record's ``site`` is a place in it."""
        return self._sanitized_sites or self._facts.sites

    def code(self, target: Target) -> Code:
        """Machine code for a target, made the first time; from any thread."""
        with self._lock:
            code = self._codes.get(target)
            kinds = self.kernel.sanitize | sanitizing.requested()
            # What is sanitized is for this run, and no file of the cache takes what comes with it.
            entry = self._entry if target.kind == "ptx" or not kinds else None
            if code is None and target.kind == "ptx" and kinds:
                sanitizing.warn_of_gpu(self.kernel.name, kinds)
            if code is None and entry is not None:
                code = entry.code(target)
            if code is None:
                from .diagnostics import placed_errors

                with placed_errors(self.kernel.name, self.kernel.function):
                    code = self._compile(target, kinds)
                if entry is not None:
                    entry.keep_code(code)
            self._codes[target] = code
            return code

    def pack(self, values: Sequence[Any], fault_address: int) -> bytes:
        """The parameters as a C structure, each naturally aligned.

        ``values`` are in the order of the parameters: a converted scalar, or an (address, length) pair for a slice.
        ``fault_address`` is the fault record's address, or 0 for none.
        """
        words: list[Any] = []
        for value in values:
            if type(value) is tuple:
                words += value
            else:
                words.append(value)
        return self.pack_words(words, fault_address)

    def pack_words(self, words: Sequence[Any], fault_address: int) -> bytes:
        """``pack`` of the words one after the other: a scalar, or an address and then a length for a slice."""
        return self._struct.pack(*words, fault_address)

    def _compile(self, target: Target, kinds: frozenset[str]) -> Code:
        kernel = self.kernel
        if target.kind == "native":
            if kinds:
                return self._compile_sanitized(target, kinds)
            from .native import compile_native

            return compile_native(self.portable, self.parameters, self.kernel_id, target, unchecked=kernel.unchecked)
        from .ptx import compile_ptx

        return compile_ptx(
            self.portable,
            kernel.name,
            self.parameters,
            self.kernel_id,
            target,
            unchecked=kernel.unchecked,
            max_registers=kernel.max_registers,
        )

    def _compile_sanitized(self, target: Target, kinds: frozenset[str]) -> Code:
        """Lowered a second time, for accesses that know their places in the source; no check leaves its access."""
        from .frontend import lower
        from .hoist import leave_assertions_out
        from .ir import translate
        from .sanitizer import compile_sanitized

        kernel = self.kernel
        uses, style = _style(kernel, self.parameters)
        lowered = lower(
            kernel.name,
            kernel.function,
            self.parameters,
            kernel.fastmath,
            style,
            located=True,
            constants=uses.constants,
        )
        portable = translate(kernel.function, lowered, kernel.fastmath)
        if kernel.unchecked:
            portable = leave_assertions_out(portable)
        self._sanitized_sites = portable.sites
        return compile_sanitized(
            kernel.name, portable, self.parameters, self.kernel_id, target, kinds, unchecked=kernel.unchecked
        )


def _style(kernel: Kernel, parameters: tuple[Closed, ...]) -> tuple[Uses, Style]:
    """What of the thread's indices a kernel uses, and whose semantics it has. Raises ``CompileError``."""
    from .check import check

    numba_style = kernel.adopted or any(isinstance(parameter, NumbaParameter) for parameter in parameters)
    uses = check(kernel.function, kernel.name, parameters, numba_style=numba_style)
    return uses, "numba" if numba_style else "mixed" if uses.numba_cuda else "oxide"


def _front_end(kernel: Kernel, parameters: tuple[Closed, ...]) -> Facts:
    """Types and lowers a kernel. Raises ``CompileError``."""
    from .cache import Facts
    from .contiguous import version_contiguous_loops
    from .frontend import lower
    from .hoist import hoist_checks, leave_checks_out
    from .ir import translate

    uses, style = _style(kernel, parameters)
    lowered = lower(kernel.name, kernel.function, parameters, kernel.fastmath, style, constants=uses.constants)
    portable = translate(kernel.function, lowered, kernel.fastmath)
    placements: tuple[Placement, ...] = ()
    if kernel.unchecked:
        portable = leave_checks_out(portable)
    else:
        portable, placements = hoist_checks(portable, parameters, kernel.contracts)
    portable = version_contiguous_loops(portable)
    return Facts(
        uses_index_1d=uses.index_1d,
        uses_index_2d=uses.index_2d,
        sites=portable.sites,
        portable=lambda: portable,
        placements=lambda: placements,
    )


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...
@overload
def kernel(
    function: None = None,
    /,
    *,
    block: int | tuple[int, ...] | None = None,
    items_per_thread: int | tuple[int, ...] = 1,
    fastmath: bool = False,
    unchecked: bool = False,
    deny_checks: bool = False,
    requires: Iterable[str] = (),
    max_registers: int | None = None,
    sanitize: str | Iterable[str] = (),
) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(
    function: Callable[..., Any] | None = None,
    /,
    *,
    block: int | tuple[int, ...] | None = None,
    items_per_thread: int | tuple[int, ...] = 1,
    fastmath: bool = False,
    unchecked: bool = False,
    deny_checks: bool = False,
    requires: Iterable[str] = (),
    max_registers: int | None = None,
    sanitize: str | Iterable[str] = (),
) -> Kernel | Callable[[Callable[..., Any]], Kernel]:
    """Makes a kernel of a Python function. Raises ``CompileError`` for annotations it cannot use.

    A parameter without an annotation takes its type from the argument of each launch, as in ``numba.cuda.jit``; a
    kernel that has such parameters, or ``Array`` ones, has numba-cuda's semantics. ``kernel(dispatcher)`` makes a
    kernel of a function that ``numba.cuda.jit`` decorated, with its explicit signatures, if it has any.

    ``block`` is the block's shape in threads for launches that name none, and ``items_per_thread``, CUB's term, how
    many elements of the output a thread of such a launch makes, along each axis: the grid follows from both.
    ``fastmath`` allows floating point reassociation and approximate division. ``unchecked`` leaves the bounds checks
    out: an index outside a slice then touches other memory. ``deny_checks`` makes a check that would stay inside a loop
    a ``CompileError`` at the first use. ``requires`` are contracts, comparisons such as ``"len(a) >= m * k"``: each
    launch is checked against them on the host, and accesses that follow from them are not checked in the kernel.
    ``max_registers`` bounds a thread's registers on a GPU. ``sanitize``, of ``"memory"`` and ``"race"``, makes the CPU
    device check every access: docs/sanitizer.md says for what.
    """
    options: dict[str, Any] = {
        "block": block,
        "items_per_thread": items_per_thread,
        "fastmath": fastmath,
        "unchecked": unchecked,
        "deny_checks": deny_checks,
        "requires": requires,
        "max_registers": max_registers,
        "sanitize": sanitize,
        # Annotations are strings mostly, and may name a local of the function that defines the kernel.
        "names": dict(sys._getframe(1).f_locals),
    }
    if function is None:
        return lambda decorated: Kernel(decorated, **options)
    return Kernel(function, **options)


def _dim3(function: Callable[..., Any], name: str, block: int | tuple[int, ...]) -> Dim3:
    sizes = _sizes(block)
    if not sizes:
        raise located(function, f"kernel {name}: block is {written(block)}; give one to three sizes of at least 1")
    x, y, z = (*sizes, 1, 1)[:3]
    if x * y * z > _MAX_THREADS or z > _MAX_Z:
        raise located(
            function,
            f"kernel {name}: block is {written(block)}, {written(x * y * z)} threads; a block has at most "
            f"{_MAX_THREADS}, and at most {_MAX_Z} along z",
        )
    return x, y, z


def _items(function: Callable[..., Any], name: str, items: int | tuple[int, ...]) -> Dim3:
    sizes = _sizes(items)
    if not sizes or max(sizes) > _MOST_ITEMS:
        raise located(
            function,
            f"kernel {name}: items_per_thread is {written(items)}; give one to three numbers from 1 to {_MOST_ITEMS}",
        )
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _sizes(given: object) -> tuple[int, ...]:
    """One to three sizes of at least 1; none where that is not what was given."""
    sizes = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if not 1 <= len(sizes) <= 3 or not all(_is_whole(size) and size >= 1 for size in sizes):
        return ()
    return tuple(map(int, sizes))


def _is_whole(number: object) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


# CUDA's limits, the same for every compute capability; along x and y the limit is that of the block.
_MAX_THREADS = 1024
_MAX_Z = 64

_MOST_ITEMS = 2**31 - 1


def _stable_hash(kernel: Kernel, parameters: tuple[Closed, ...]) -> int:
    """The same number for the same kernel and types in every process."""
    import hashlib  # here, since it takes a thirtieth of `import oxide`

    function = kernel.function
    types = ", ".join(f"{parameter.name}: {parameter.identity}" for parameter in parameters)
    place = f"{function.__module__}:{function.__qualname__}:{function.__code__.co_firstlineno}"
    identity = f"{place}:{kernel.name}({types})"
    return int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "little")
