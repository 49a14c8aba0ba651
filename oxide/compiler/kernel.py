"""``@kernel``: the decorator, the ``Kernel`` it makes, and its ``Specialization``.

Decorating reads annotations and no more. The first launch, or ``specialize()``, types and lowers the body, once, for no
particular device; ``Specialization.code`` makes machine code for one. This package does not know how to launch:
the runtime puts that in ``Kernel.launcher``.
"""

from __future__ import annotations

import functools
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, final, overload

from ..driver.base import Code, Dim3, KernelResources, Target
from ..errors import ArgumentError
from .faults import FaultSite
from .function import DeviceFunction, device
from .signature import Parameter, parse_parameters
from .source import located

if TYPE_CHECKING:
    from ..runtime.operation import DeviceOperation  # for the type alone: what a launch returns is the runtime's
    from .cache import Facts
    from .contracts import Contract
    from .hoist import Placement
    from .ir import PortableKernel
    from .report import Check

__all__ = ["ConfiguredKernel", "DeviceFunction", "Kernel", "Specialization", "device", "kernel"]

ResourceReader = Callable[["Kernel", "int | tuple[int, ...] | None", int], KernelResources]
Launcher = Callable[["Kernel", object, tuple[Any, ...]], "DeviceOperation[tuple[Any, ...]]"]


@final
class Kernel:
    """A GPU function: called, it gives an operation that launches it.

    ``kernel[config](…)`` launches with a ``LaunchConfig``, ``kernel[grid, block](…)`` with two shapes, ``kernel(…)``
    with the kernel's own block. Arguments may be given by name.
    """

    launcher: ClassVar[Launcher | None] = None
    """What a call does with a kernel, the brackets' content or None, and the arguments in order. Set by the runtime."""

    resource_reader: ClassVar[ResourceReader | None] = None
    """What answers ``resources``, from the kernel, the block and its dynamic shared memory. Set by the runtime."""

    __wrapped__: Callable[..., Any]

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        block: int | tuple[int, ...] | None = None,
        fastmath: bool = False,
        unchecked: bool = False,
        deny_checks: bool = False,
        requires: Iterable[str] = (),
        max_registers: int | None = None,
        names: Mapping[str, Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name: str = function.__name__
        self.parameters: tuple[Parameter, ...] = parse_parameters(function, self.name, names or {})
        self.default_block: Dim3 | None = None if block is None else _dim3(function, self.name, block)
        self.fastmath = fastmath
        self.unchecked = unchecked
        self.deny_checks = deny_checks
        if unchecked and deny_checks:
            raise located(function, f"kernel {self.name}: unchecked and deny_checks contradict each other: pick one")
        self.contracts: tuple[Contract, ...] = ()
        if requires:
            from .contracts import parse_contracts

            self.contracts = parse_contracts(function, self.name, self.parameters, requires)
        if max_registers is not None and not 1 <= max_registers <= 255:
            raise located(function, f"kernel {self.name}: max_registers is {max_registers}; a thread has 1 to 255")
        self.max_registers = max_registers
        self._lock = threading.Lock()
        self._specialization: Specialization | None = None

    def __getitem__(self, config: object) -> ConfiguredKernel:
        """The kernel with a launch configuration: a ``LaunchConfig``, or grid and block."""
        return ConfiguredKernel(self, config)

    def __call__(self, *args: Any, **kwargs: Any) -> DeviceOperation[tuple[Any, ...]]:
        """An operation that launches the kernel with its own block and yields the arguments.

        Raises ``ArgumentError``, ``LaunchError`` or ``CompileError``, before anything is submitted.
        """
        return self._launch(None, args, kwargs)

    def __repr__(self) -> str:
        return f"<kernel {self.name}({', '.join(f'{p.name}: {p.annotation}' for p in self.parameters)})>"

    def specialize(self) -> Specialization:
        """Types and lowers the body, the first time; from any thread. Raises ``CompileError``."""
        if self._specialization is not None:
            return self._specialization
        with self._lock:
            if self._specialization is None:
                self._specialization = Specialization(self)
            return self._specialization

    def ptx(self, cc: tuple[int, int] = (9, 0)) -> str:
        """The PTX for a compute capability, a pair such as ``(9, 0)``. Needs no GPU.

        Raises ``TypeError`` for anything else, and ``CompileError`` for a pair that the compiler does not know.
        """
        from .ptx import target_of

        if not (isinstance(cc, tuple) and len(cc) == 2 and all(type(part) is int for part in cc)):
            raise TypeError(f"cc is {cc!r}; give a pair, as (9, 0) for compute capability 9.0")

        return self.specialize().code(target_of(self.name, cc)).image.decode()

    def llvm_ir(self) -> str:
        """The IR that both back ends start from."""
        return self.specialize().portable.text

    def native_asm(self) -> str:
        """The assembly for this machine's CPU."""
        from .native import host_target, native_assembly

        special = self.specialize()
        return native_assembly(
            special.portable, self.parameters, special.kernel_id, host_target(), unchecked=self.unchecked
        )

    def resources(self, block: int | tuple[int, ...] | None = None, *, shared_mem_bytes: int = 0) -> KernelResources:
        """Registers, memory, spills and occupancy on the GPU that operations run on, as its driver says.

        ``block`` is the block's shape in threads, by default the kernel's own, else 256 threads; ``shared_mem_bytes``
        its dynamic shared memory. Raises ``DeviceError`` on the CPU device, which has none of these.
        """
        reader = Kernel.resource_reader
        if reader is None:
            raise RuntimeError(f"kernel {self.name} has no device to ask: import oxide, which brings the runtime")
        return reader(self, block, shared_mem_bytes)

    def checks(self) -> tuple[Check, ...]:
        """Where each access's bounds check is: proved, hoisted out of a loop, or at the access; none if unchecked."""
        from .report import checks_of

        return checks_of(self.specialize())

    def _launch(
        self, config: object | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> DeviceOperation[tuple[Any, ...]]:
        launcher = Kernel.launcher
        if launcher is None:
            raise RuntimeError(f"kernel {self.name} cannot be launched: import oxide, which brings the runtime")
        return launcher(self, config, self._positional(args, kwargs) if kwargs else args)

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
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
class ConfiguredKernel:
    """A kernel and the content of the brackets; calling it makes the launch operation."""

    __slots__ = ("config", "kernel")

    def __init__(self, kernel: Kernel, config: object) -> None:
        self.kernel = kernel
        self.config = config

    def __call__(self, *args: Any, **kwargs: Any) -> DeviceOperation[tuple[Any, ...]]:
        """An operation that launches the kernel with this configuration and yields the arguments.

        Raises ``ArgumentError``, ``LaunchError`` or ``CompileError``, before anything is submitted.
        """
        launcher = Kernel.launcher
        if kwargs or launcher is None:
            return self.kernel._launch(self.config, args, kwargs)
        return launcher(self.kernel, self.config, args)


@final
class Specialization:
    """A kernel, typed and lowered, and its machine code for each target so far: from the cache, or compiled."""

    def __init__(self, kernel: Kernel) -> None:
        from .cache import entry_of

        self.kernel = kernel
        self._entry = entry_of(kernel, kernel.parameters)
        kept = self._entry.facts() if self._entry is not None else None
        self._facts: Facts = kept if kept is not None else _front_end(kernel)
        self.uses_index_1d: bool = self._facts.uses_index_1d
        self.uses_index_2d: bool = self._facts.uses_index_2d
        self.kernel_id: int = _stable_hash(kernel)
        self._struct = struct.Struct("@" + "".join(p.struct_format for p in kernel.parameters) + "Q")
        self.reference = weakref.ref(self)  # one for all who look something up by it
        self._lock = threading.Lock()
        self._codes: dict[Target, Code] = {}
        self.announced = False  # whether the runtime knows that a launch of it was built
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

    @property
    def sites(self) -> tuple[FaultSite, ...]:
        """The accesses that are checked; a fault record's ``site`` is a place in it."""
        return self._facts.sites

    def code(self, target: Target) -> Code:
        """Machine code for a target, made the first time; from any thread."""
        with self._lock:
            code = self._codes.get(target)
            if code is None and self._entry is not None:
                code = self._entry.code(target)
            if code is None:
                code = self._compile(target)
                if self._entry is not None:
                    self._entry.keep_code(code)
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

    def _compile(self, target: Target) -> Code:
        kernel = self.kernel
        if target.kind == "native":
            from .native import compile_native

            return compile_native(self.portable, kernel.parameters, self.kernel_id, target, unchecked=kernel.unchecked)
        from .ptx import compile_ptx

        return compile_ptx(
            self.portable,
            kernel.name,
            kernel.parameters,
            self.kernel_id,
            target,
            unchecked=kernel.unchecked,
            max_registers=kernel.max_registers,
        )


def _front_end(kernel: Kernel) -> Facts:
    """Types and lowers a kernel. Raises ``CompileError``."""
    from .cache import Facts
    from .check import check
    from .contiguous import version_contiguous_loops
    from .frontend import lower
    from .hoist import hoist_checks, leave_checks_out
    from .ir import translate

    uses = check(kernel.function, kernel.name, kernel.parameters)
    lowered = lower(kernel.name, kernel.function, kernel.parameters, kernel.fastmath)
    portable = translate(kernel.function, lowered, kernel.fastmath)
    placements: tuple[Placement, ...] = ()
    if kernel.unchecked:
        portable = leave_checks_out(portable)
    else:
        portable, placements = hoist_checks(portable, kernel.parameters, kernel.contracts)
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
    fastmath: bool = False,
    unchecked: bool = False,
    deny_checks: bool = False,
    requires: Iterable[str] = (),
    max_registers: int | None = None,
) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(
    function: Callable[..., Any] | None = None,
    /,
    *,
    block: int | tuple[int, ...] | None = None,
    fastmath: bool = False,
    unchecked: bool = False,
    deny_checks: bool = False,
    requires: Iterable[str] = (),
    max_registers: int | None = None,
) -> Kernel | Callable[[Callable[..., Any]], Kernel]:
    """Makes a kernel of a typed Python function. Raises ``CompileError`` for annotations it cannot use.

    ``block`` is the block's shape in threads for launches that name none. ``fastmath`` allows floating point
    reassociation and approximate division. ``unchecked`` leaves the bounds checks out: an index outside a slice then
    touches other memory. ``deny_checks`` makes a check that would stay inside a loop a ``CompileError`` at the first
    use. ``requires`` are contracts, comparisons such as ``"len(a) >= m * k"``: each launch is checked against them on
    the host, and accesses that follow from them are not checked in the kernel.
    ``max_registers`` bounds a thread's registers on a GPU.
    """
    options: dict[str, Any] = {
        "block": block,
        "fastmath": fastmath,
        "unchecked": unchecked,
        "deny_checks": deny_checks,
        "requires": requires,
        "max_registers": max_registers,
        # Annotations are strings mostly, and may name a local of the function that defines the kernel.
        "names": dict(sys._getframe(1).f_locals),
    }
    if function is None:
        return lambda decorated: Kernel(decorated, **options)
    return Kernel(function, **options)


def _dim3(function: Callable[..., Any], name: str, block: int | tuple[int, ...]) -> Dim3:
    sizes = (block,) if isinstance(block, int) else tuple(block)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise located(function, f"kernel {name}: block is {block!r}; give one to three sizes of at least 1")
    x, y, z = (*sizes, 1, 1)[:3]
    if x * y * z > _MAX_THREADS or z > _MAX_Z:
        raise located(
            function,
            f"kernel {name}: block is {block!r}, {x * y * z} threads; a block has at most {_MAX_THREADS}, and at most "
            f"{_MAX_Z} along z",
        )
    return x, y, z


# CUDA's limits, the same for every compute capability; along x and y the limit is that of the block.
_MAX_THREADS = 1024
_MAX_Z = 64


def _stable_hash(kernel: Kernel) -> int:
    """The same number for the same kernel in every process."""
    import hashlib  # here, since it takes a thirtieth of `import oxide`

    function = kernel.function
    identity = f"{function.__module__}:{function.__qualname__}:{function.__code__.co_firstlineno}:{kernel!r}"
    return int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "little")
