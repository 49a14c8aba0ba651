"""``Call``: one collective, with the boxes of all ranks of this process. A plane carries it out.

A *plane* moves the data of a group: ``shared_memory`` has the planes of CPU devices, ``nccl`` those of GPUs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

import numpy as np

from oxide.language.types import SCALARS

if TYPE_CHECKING:
    from typing import Any

    from oxide.driver.base import Ranges
    from oxide.errors import CollectiveError
    from oxide.runtime.devices.fault_records import HostReport
    from oxide.runtime.memory.allocation import Allocation
    from oxide.runtime.memory.memory import DeviceBox
    from oxide.runtime.submission.submission import ExecutionContext

Kind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send", "recv", "send_recv"]
Reduction: TypeAlias = Literal["sum", "prod", "min", "max", "avg"]
CLOSED: Final = "the group of a collective was closed"
REDUCTIONS: Final[tuple[Reduction, ...]] = ("sum", "prod", "min", "max", "avg")

REDUCED: Final = frozenset(
    scalar.dtype_name for scalar in SCALARS.values() if scalar.nccl is not None or scalar.kind == "c"
)
"""The dtypes that NCCL reduces; complex numbers are reduced as pairs of floats."""


@final
@dataclass(frozen=True, slots=True)
class Form:
    """What the checks and the planes must know of a kind of collective. ``reduces``: it combines elements, and takes
    ``op``. ``rooted``: one rank is its root. ``boxes`` names the boxes of a transfer between two ranks; all others take
    a box for each rank. ``result`` computes the shape of the new box that a rank gets from the shape of its own box and
    the number of ranks; without it, the result is in the given boxes."""

    reduces: bool = False
    rooted: bool = False
    boxes: tuple[str, ...] = ()
    result: Callable[[tuple[int, ...], int], tuple[int, ...]] | None = None


FORMS: Final[dict[Kind, Form]] = {
    "all_reduce": Form(reduces=True),
    "all_gather": Form(result=lambda shape, size: (size * (shape or (1,))[0], *shape[1:])),
    "reduce_scatter": Form(reduces=True, result=lambda shape, size: (shape[0] // size, *shape[1:])),
    "broadcast": Form(rooted=True),
    "send": Form(boxes=("box",)),
    "recv": Form(boxes=("box",)),
    "send_recv": Form(boxes=("box", "into")),
}


@final
@dataclass(slots=True, eq=False)
class Call:
    """One collective. ``inputs`` and ``outputs`` have a box for each rank of this process. ``count`` is the number of
    elements that one rank contributes, or gets from ``reduce_scatter``. ``root`` is the rank that broadcasts. ``to`` is
    the rank that a transfer sends to, -1 if it sends nothing. ``source`` is the rank that a transfer receives from, -1
    if it receives nothing. ``text`` describes the call in messages; it is the same on all ranks that take part, except
    for transfers.

    An operation on boxes makes its call once, and submits it each time that it runs. ``uses`` is the memory that the
    call reads and writes on each stream that does its work. ``submissions`` are the functions that submit the ranks'
    parts to NCCL. Both are computed at the first submission, and are None before; ``submissions`` stays None on CPU
    devices.
    """

    kind: Kind
    inputs: tuple[DeviceBox, ...]
    outputs: tuple[DeviceBox, ...]
    count: int
    reduction: Reduction = "sum"
    root: int = 0
    to: int = -1
    source: int = -1
    form: Form = field(init=False)
    dtype: np.dtype[Any] = field(init=False)
    text: str = field(init=False)
    uses: list[tuple[list[Allocation], list[Allocation]]] | None = field(init=False, default=None)
    submissions: list[Callable[[int], Ranges]] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        first = self.inputs[0]
        self.form, self.dtype = FORMS[self.kind], first.dtype
        self.text = _text_of(self.kind, first.shape, first.dtype, self.reduction, self.root)

    def transfer_text(self, source: int, destination: int) -> str:
        """Returns the text of one transfer, which both of its ranks send."""
        return f"transfer of {self.count} {name_of(self.dtype)} from rank {source} to rank {destination}"


@lru_cache
def _text_of(kind: Kind, shape: tuple[int, ...], dtype: np.dtype[Any], reduction: Reduction, root: int) -> str:
    form = FORMS[kind]
    ending = f", {reduction}" if form.reduces else f" from rank {root}" if form.rooted else ""
    return f"{kind} of {'x'.join(map(str, shape)) or 'scalar'} {name_of(dtype)}{ending}"


class Plane(ABC):
    """Moves the data of a group. ``failure`` is the error that has broken the group, None if it is not broken. Once the
    group was ``closed``, launches of captured graphs are refused."""

    def __init__(self) -> None:
        self.failure: CollectiveError | None = None
        self.closed = False

    @abstractmethod
    def submit(self, contexts: tuple[ExecutionContext, ...], call: Call, report: HostReport) -> None:
        """Submits a collective, rank by rank, to the streams of ``contexts``. Called with the submission lock held,
        between ``begin`` and ``end`` of the contexts. ``report`` gets the error if the collective fails."""

    @abstractmethod
    def record(self, context: ExecutionContext, call: Call) -> None:
        """Records a collective in the capture of ``context``, instead of submitting it."""

    def give_up(self, error: CollectiveError) -> None:  # noqa: B027
        """Tells the other processes, if any, that the group is broken."""

    def close(self) -> None:
        """Leaves the group."""
        self.closed = True


@cache
def name_of(dtype: np.dtype[Any]) -> str:
    """Returns the dtype's name for messages and comparisons. NumPy computes it anew each time, and gives all records of
    one size the same name."""
    return dtype.name if dtype.names is None else ascii(str(dtype))[1:-1]


@cache
def unfit(dtype: np.dtype[Any], reduction: Reduction) -> str:
    """Returns the reason why elements of ``dtype`` cannot be reduced by ``reduction``, "" if they can."""
    if dtype.name not in REDUCED:
        return f"boxes of {dtype.name} cannot be reduced; those of these can: {', '.join(sorted(REDUCED))}"
    if dtype.kind == "c" and reduction not in ("sum", "avg"):
        return f"op={reduction!r}: complex numbers have no order and no product here; use sum or avg"
    if dtype.kind in "iu" and reduction == "avg":
        return f"op='avg': an average of {dtype.name} would be rounded; use sum, and divide"
    return ""
