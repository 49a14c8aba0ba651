"""A kernel as it is declared: the options of ``@kernel``, their checks, and the description with what else is known
before any compilation.

To add an option, give it a field of ``Options``, with its default and, if it needs one, a check, and a parameter and a
sentence in ``kernel`` (``runtime/launching/decorator.py``). A check raises ``CompileError`` at the kernel's first line
for an impossible value. ``requires`` and ``configs`` are no fields: ``contracts`` checks the first, ``tuning`` the
second.

The kernel, its specializations, their fingerprint, the cache and the report of the checks all read one
``KernelDescription``. It is frozen: two specializations of a kernel cannot see different options.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, final

from oxide.compiler.signature.signature import Closed, Declared
from oxide.compiler.signature.untyped_arguments import ArgumentType
from oxide.compiler.source.source import located
from oxide.driver import sanitizing, tools
from oxide.driver.base import MAX_BLOCK, MAX_BLOCKS_PER_CLUSTER, MAX_THREADS_PER_BLOCK, Dim3
from oxide.errors import CompileError
from oxide.host.messages import written

if TYPE_CHECKING:
    from oxide.compiler.bounds.hoist import Placement
    from oxide.compiler.ir.portable import PortableKernel
    from oxide.compiler.signature.contracts import Contract
    from oxide.compiler.tile.tile_source import TileSource

_MOST_ITEMS = 2**31 - 1


_Refuse: TypeAlias = Callable[[str], CompileError]
"""Makes the error for an impossible value of an option. Its argument follows the option and its value in the text."""


def _block(block: int | tuple[int, ...] | None, refuse: _Refuse) -> Dim3 | None:
    """Returns ``block`` as three sizes, or None. Refuses a block that no GPU can run."""
    if block is None:
        return None
    sizes = _sizes(block)
    if sizes is None:
        raise refuse("; give one to three sizes of at least 1")
    x, y, z = sizes
    # Along x and y, a size is limited only by the number of threads in the block.
    if x * y * z > MAX_THREADS_PER_BLOCK or z > MAX_BLOCK[2]:
        most = f"a block has at most {MAX_THREADS_PER_BLOCK}, and at most {MAX_BLOCK[2]} along z"
        raise refuse(f", {written(x * y * z)} threads; {most}")
    return x, y, z


def _cluster(cluster: int | tuple[int, ...] | None, refuse: _Refuse) -> Dim3 | None:
    """Returns ``cluster`` as three numbers of blocks, or None. Refuses one that some GPU cannot run."""
    if cluster is None:
        return None
    sizes = _sizes(cluster)
    if sizes is None or math.prod(sizes) > MAX_BLOCKS_PER_CLUSTER:
        found = f", {written(math.prod(sizes))} blocks" if sizes else ""
        most = f"of blocks of at least 1, whose product is at most {MAX_BLOCKS_PER_CLUSTER}"
        raise refuse(f"{found}; give one to three numbers {most}")
    return sizes


def _items(items: int | tuple[int, ...], refuse: _Refuse) -> Dim3:
    """Returns ``items_per_thread`` as three numbers. Refuses numbers outside 1 to ``_MOST_ITEMS``."""
    sizes = _sizes(items)
    if sizes is None or max(sizes) > _MOST_ITEMS:
        raise refuse(f"; give one to three numbers from 1 to {_MOST_ITEMS}")
    return sizes


def _max_registers(max_registers: int | None, refuse: _Refuse) -> int | None:
    """Refuses a register limit outside 1 to 255, the registers that a GPU's thread can have. None means no limit."""
    if max_registers is not None and not (_is_whole(max_registers) and 1 <= max_registers <= 255):
        raise refuse("; a thread has 1 to 255")
    return max_registers


def _lineinfo(lineinfo: bool | None, refuse: _Refuse) -> bool:
    """Returns whether a kernel gets line tables: ``lineinfo``, or for None the environment's setting."""
    if lineinfo is not None and not isinstance(lineinfo, bool):
        raise refuse("; give True, False or None")
    return tools.lines_are_wanted() if lineinfo is None else lineinfo


def _sizes(given: object) -> Dim3 | None:
    """Returns the given one to three sizes, each at least 1, as three; None if anything else was given."""
    sizes = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if not 1 <= len(sizes) <= 3 or not all(_is_whole(size) and size >= 1 for size in sizes):
        return None
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z


def _is_whole(number: object) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


APART: Final[Mapping[str, bool]] = {"apart": True}
"""Metadata of a field that the fingerprint hashes in a special way, or not at all. It hashes all other fields."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options:
    """The options of a kernel, as ``checked`` returns them. ``kernel`` documents them."""

    default_block: Dim3 | None = None
    items_per_thread: Dim3 = (1, 1, 1)
    fastmath: bool = False
    fma: bool = True
    unchecked: bool = False
    deny_checks: bool = False
    max_registers: int | None = None
    cluster: Dim3 | None = None
    lineinfo: bool = False
    partial: bool = False
    sanitize: frozenset[str] = field(default=frozenset(), metadata=APART)  # no sanitized code is in the cache


_CHECKS: Final[Mapping[str, Callable[..., Any]]] = {
    "block": _block,
    "items_per_thread": _items,
    "max_registers": _max_registers,
    "cluster": _cluster,
    "lineinfo": _lineinfo,
}


def checked(function: Callable[..., Any], name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of ``Options`` for what a program gives, ``default_block`` for ``block``. Raises
    ``CompileError``."""

    def one(option: str, value: Any) -> Any:
        def refuse(problem: str) -> CompileError:
            return located(function, f"kernel {name}: {option} is {written(value)}{problem}")

        return _CHECKS[option](value, refuse) if option in _CHECKS else value

    found = {option: one(option, value) for option, value in given.items()}
    if "sanitize" in found:
        found["sanitize"] = sanitizing.kinds_of(found["sanitize"], name)
    if "block" in found:
        found["default_block"] = found.pop("block")
    if found.get("unchecked") and found.get("deny_checks"):
        # the first leaves out all bounds checks; the second requires that no check is left inside a loop
        raise located(function, f"kernel {name}: unchecked and deny_checks contradict each other: pick one")
    return found


@final
@dataclass(frozen=True, slots=True)
class LaunchNeeds:
    """The requirements of a kernel's code on its launches."""

    index_1d: bool = False
    """True if the kernel calls ``thread.index_1d()``: a launch must then have one axis."""
    index_2d: bool = False
    """True if the kernel calls ``thread.index_2d()``: a launch must then have at most two axes."""
    index_3d: bool = False
    """True if the kernel calls ``thread.index_3d()``."""
    own_elements: bool = False
    """True if the kernel uses neither ``scatter`` nor ``unchecked_mut``: a thread then writes only its own element or
    tile of a ``DisjointSlice``, and a launch needs as many threads as an output has elements or tiles."""
    unchecked: bool = False
    """True if some accesses are not checked: a wrong index may then end the process."""
    width: int | str | None = None
    """The argument of ``index_2d``: a number, or the name of the parameter or of the slice's length that is passed.
    None if no ``index_2d`` has a width."""
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
    numba_style: bool
    """True for a kernel with numba-cuda's semantics: it is adopted, or its parameters have no annotations."""
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
