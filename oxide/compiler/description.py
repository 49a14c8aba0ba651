"""The description of a kernel: the arguments of ``@kernel``, checked, and nothing that compilation finds out later.

The kernel, its specializations, their fingerprint, the cache and the report of the checks all read this one object. It
is frozen: two specializations of a kernel cannot see different options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

from oxide.compiler.signature.signature import Declared
from oxide.compiler.signature.untyped_arguments import ArgumentType
from oxide.driver.base import Dim3

if TYPE_CHECKING:
    from oxide.compiler.signature.contracts import Contract

APART: Final[Mapping[str, bool]] = {"apart": True}
"""The metadata of a field that is hashed in another way, or not at all. A fingerprint hashes all other fields."""


@final
@dataclass(frozen=True, slots=True)
class LaunchNeeds:
    """The demands of a kernel's text on its launches."""

    index_1d: bool
    """It calls ``thread.index_1d()``, so a launch has one axis."""
    index_2d: bool
    """It calls ``thread.index_2d(width)``, so a launch has at most two axes."""
    own_elements: bool
    """A thread writes no other element or tile of a ``DisjointSlice`` than its index's, as it uses neither
    ``scatter`` nor ``unchecked_mut``. So an output needs as many threads as it has elements or tiles."""
    unchecked: bool
    """Not all of its accesses are checked, so a launch may end the process."""
    dynamic_shared: bool
    """It uses dynamic shared memory, so a launch says how much."""
    tiled: tuple[int, ...]
    """The places of the parameters that ``tensor.load_tile`` copies from. Their rows begin at multiples of 16
    bytes."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class KernelDescription:
    """A kernel's function, parameters and options. A new option is part of the fingerprint unless it is ``APART``."""

    name: str
    function: Callable[..., Any] = field(metadata=APART)  # hashed with all that it reaches
    parameters: tuple[Declared, ...] = field(metadata=APART)  # hashed once their types are known
    adopted: bool
    """True for a numba-cuda kernel, made by ``kernel(dispatcher)``."""
    signatures: tuple[tuple[ArgumentType, ...], ...] = field(metadata=APART)  # the parameters' types follow from them
    """The explicit signatures of an adopted kernel, or none. Arguments are converted to the types of one signature."""
    default_block: Dim3 | None
    items_per_thread: Dim3
    fastmath: bool
    fma: bool
    unchecked: bool
    deny_checks: bool
    contracts: tuple[Contract, ...] = field(metadata=APART)  # hashed by their texts
    max_registers: int | None
    partial: bool = field(metadata=APART)  # about launches, and no part of the code
    """True if a launch may leave a part of an output unwritten."""
    sanitize: frozenset[str] = field(metadata=APART)  # no sanitized code is in the cache
    sanitizable: bool
    """False for a kernel of oxide's own that may copy what nothing has written, as any copy may."""
    interpreted: bool = field(default=False, metadata=APART)  # nothing interpreted is in the cache
    """True for the form of a kernel whose launches are interpreted."""
