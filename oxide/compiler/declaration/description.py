"""The description of a kernel: the checked arguments of ``@kernel``, without the results of compilation.

The kernel, its specializations, their fingerprint, the cache and the report of the checks all read this one object. It
is frozen: two specializations of a kernel cannot see different options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, final

from oxide.compiler.signature.annotations import Declared
from oxide.compiler.signature.signature import Closed
from oxide.compiler.signature.untyped_arguments import ArgumentType

from .options import APART, Options

if TYPE_CHECKING:
    from oxide.compiler.bounds.hoist import Placement
    from oxide.compiler.ir.portable import PortableKernel
    from oxide.compiler.signature.contracts import Contract
    from oxide.compiler.tile.tile_source import TileSource


@final
@dataclass(frozen=True, slots=True)
class LaunchNeeds:
    """The requirements of a kernel's code on its launches."""

    index_1d: bool = False
    """True if the kernel calls ``thread.index_1d()``: a launch must then have one axis."""
    index_2d: bool = False
    """True if the kernel calls ``thread.index_2d(width)``: a launch must then have at most two axes."""
    own_elements: bool = False
    """True if the kernel uses neither ``scatter`` nor ``unchecked_mut``: a thread then writes only its own element or
    tile of a ``DisjointSlice``, and a launch needs as many threads as an output has elements or tiles."""
    unchecked: bool = False
    """True if some accesses are not checked: a wrong index may then end the process."""
    width: int | str | None = None
    """The argument of ``index_2d``: a number, or the name of the parameter or of the slice's length that is passed.
    None if the kernel does not use ``index_2d``."""
    dynamic_shared: bool = False
    """True if the kernel uses dynamic shared memory: a launch must then give its size."""
    tiled: tuple[int, ...] = ()
    """The positions of the parameters that ``tensor.load_tile`` reads or ``tensor.store_tile`` writes. Their rows must
    begin at multiples of 16 bytes."""


class FusedSource(Protocol):
    """The stages that a fused kernel is composed of. ``fusion.py`` has the implementations."""

    @property
    def parameters(self) -> tuple[Closed, ...]: ...

    @property
    def needs(self) -> LaunchNeeds: ...

    @property
    def sources(self) -> tuple[Any, ...]:
        """Returns the specializations of the stages."""

    @property
    def bindings(self) -> tuple[str, ...]:
        """Returns texts that say which values the stages share."""

    def portable(self) -> tuple[PortableKernel, tuple[Placement, ...]]:
        """Composes the kernel. Raises ``CompileError``."""


class BuiltSource(Protocol):
    """The code of a kernel that was built ahead of time. ``built.py`` has the implementation."""

    def entry(self, kernel: KernelDescription, parameters: tuple[Closed, ...]) -> Any: ...


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelDescription(Options):
    """A kernel's function, parameters and options. A new option is part of the fingerprint unless its field has the
    metadata ``APART``."""

    name: str
    function: Callable[..., Any] = field(metadata=APART)  # hashed with all that it reaches
    parameters: tuple[Declared, ...] = field(metadata=APART)  # hashed once their types are known
    adopted: bool
    """True for a kernel of numba-cuda that ``kernel(dispatcher)`` turned into an oxide kernel."""
    signatures: tuple[tuple[ArgumentType, ...], ...] = field(metadata=APART)  # hashed as parameter types
    """The explicit signatures of an adopted kernel, if it has any. A launch converts its arguments to the types of one
    signature."""
    contracts: tuple[Contract, ...] = field(metadata=APART)  # hashed by their texts
    sanitizable: bool
    """False for oxide's own kernels that copy elements. These may copy elements that were never written, which the
    sanitizer would report."""
    interpreted: bool = field(default=False, metadata=APART)  # nothing interpreted is in the cache
    """True for the form of a kernel whose launches are interpreted."""
    tile: TileSource | None = field(default=None, metadata=APART)  # hashed by ``tile_key`` and the function
    """The source of a tile kernel; None for a thread kernel."""
    tile_key: tuple[Any, ...] = ()
    """The values besides the function that the source of a tile kernel depends on: the shapes of tiles, the constants,
    the number of threads, the number of stages, and the compute capability that the CPU simulates."""
    fusion: FusedSource | None = field(default=None, metadata=APART)  # hashed by its stages
    """The source of a fused kernel: its stages; None for any other kernel."""
    prebuilt: BuiltSource | None = field(default=None, metadata=APART)  # it has a key of its own
    """The code of a kernel that was built ahead of time; None for a kernel that is compiled."""
