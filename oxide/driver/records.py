"""Every record that machine code and Python share, declared once: the ABI of compiler, driver and runtime.

Python takes a record's description for NumPy or ctypes from its layout. IR takes the offsets. In ``.ll`` files
``<fault.site>`` stands for the offset of the field ``site`` of the record ``fault``, ``<launch.block[1]>`` for the
offset of an element, and ``<copy_row.sizeof>`` for the size of a record (``compiler/ir/llvm.py``).
``compiler/cache/fingerprint.py`` hashes this module, because kernels in the cache depend on it.

A layout follows the rules of C: each field is aligned to its type, and the size is a multiple of the largest alignment.
"""

from __future__ import annotations

import ctypes
import functools
import re
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

_TYPES: dict[str, Any] = {
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "i64": ctypes.c_int64,
    "address": ctypes.c_void_p,
    "bytes": ctypes.c_char_p,  # an address too; a ctypes structure keeps the bytes object alive
}
_FIELD = re.compile(r"(\w+)(?:\[(\d+)\])?(?:@(\d+))?")
_PLACE = re.compile(r"([\w.]+?)(?:\[(\d+)\])?")


@final
@dataclass(frozen=True, slots=True)
class Field:
    """A field: an array of ``count`` elements, or a single value if ``count`` is None. ``offset`` is in bytes."""

    type: str
    count: int | None
    offset: int

    @property
    def ctype(self) -> Any:
        """Returns the field's type for ctypes."""
        return _TYPES[self.type] if self.count is None else _TYPES[self.type] * self.count

    @property
    def format(self) -> Any:
        """Returns the field's type for NumPy, which sees an address as a number."""
        kind = np.dtype(np.uintp if self.type in ("address", "bytes") else _TYPES[self.type])
        return kind if self.count is None else (kind, (self.count,))


@final
class Layout:
    """A structure: its ``name``, its ``fields`` by name, its ``size`` and its ``alignment`` in bytes.

    A field is given as a type, such as ``"u32"``, or as an array, such as ``"u32[3]"``. It may have an alignment of its
    own, as in ``"u32@64"``. ``start`` is a layout whose fields come first.
    """

    def __init__(self, name: str, start: Layout | None = None, /, **fields: str) -> None:
        self.name = name
        self.fields: dict[str, Field] = dict(start.fields) if start is not None else {}
        end: int = start.size if start is not None else 0
        self.alignment: int = start.alignment if start is not None else 1
        for field, written in fields.items():
            found = _FIELD.fullmatch(written)
            if found is None or found[1] not in _TYPES or field in self.fields:
                raise ValueError(f"{name}.{field}: {written!r} is no new field of a type among {', '.join(_TYPES)}")
            kind, count, own = _TYPES[found[1]], int(found[2]) if found[2] else None, int(found[3] or 1)
            alignment = max(ctypes.alignment(kind), own)
            offset = -(-end // alignment) * alignment
            self.fields[field] = Field(found[1], count, offset)
            end = offset + ctypes.sizeof(kind) * (1 if count is None else count)
            self.alignment = max(self.alignment, alignment)
        self.size: int = -(-end // self.alignment) * self.alignment

    def offset(self, place: str) -> int:
        """Returns the offset of a field, or of an element of an array, such as ``"block[1]"``.

        Raises ``LookupError`` if there is no such field or element.
        """
        found = _PLACE.fullmatch(place)
        field = self.fields.get(found[1]) if found is not None else None
        if found is None or field is None:
            raise LookupError(f"record {self.name} has no field {place}; its fields are {', '.join(self.fields)}")
        element = int(found[2] or 0)
        if found[2] is not None and (field.count is None or element >= field.count):
            raise LookupError(f"record {self.name} has no {place}: {found[1]} has {field.count or 'no'} elements")
        size: int = ctypes.sizeof(_TYPES[field.type])
        return field.offset + element * size

    @functools.cached_property
    def dtype(self) -> np.dtype[Any]:
        """Returns the layout as a NumPy dtype."""
        description: Any = {
            "names": list(self.fields),
            "formats": [field.format for field in self.fields.values()],
            "offsets": [field.offset for field in self.fields.values()],
            "itemsize": self.size,
        }
        dtype: np.dtype[Any] = np.dtype(description)
        return dtype

    @functools.cached_property
    def structure(self) -> Any:
        """Returns the layout as a subclass of ctypes' ``Structure``. Gaps between the fields are fields too."""
        members: list[tuple[str, Any]] = []
        end = 0
        for name, field in self.fields.items():
            if field.offset > end:
                members.append((f"_before_{name}", ctypes.c_char * (field.offset - end)))
            members.append((name, field.ctype))
            end = field.offset + ctypes.sizeof(field.ctype)
        if self.size > end:
            members.append(("_end", ctypes.c_char * (self.size - end)))
        return type(self.name, (ctypes.Structure,), {"_fields_": members})


FAULT: Final = Layout(
    "fault",
    claimed="u32",
    site="u32",
    kernel_id="u64",
    index="i64",
    length="u64",
    block="u32[3]",
    thread="u32[3]",
    other_indices="i64[2]",
    other_lengths="u64[2]",
)
"""A launch's fault. The host zeroes it, and a kernel's first failed check fills it (``bounds/in_bounds.py``). On the
CPU a deadlock (``coroutines/schedule.ll``) and the sanitizer (``driver/cpu/sanitizer.py``) fill it too.
``source/faults.py`` reads it. ``index`` and ``length`` belong to the axis that was checked, ``other_indices`` and
``other_lengths`` to the other axes in order. ``claimed`` comes first: ``Driver.report`` tests the first four bytes."""

LAUNCH: Final = Layout(
    "launch",
    grid="u32[3]",
    block="u32[3]",
    shared_bytes="u32",
    seed="u32",
    params="bytes",
)
"""A launch on the CPU device. The driver writes it (``driver/cpu/code.py``); a native kernel's entry reads it.
``params`` are the packed parameters, which end with the fault record's address. ``seed``, unless it is 0, selects the
order of threads."""

COOPERATIVE: Final = Layout(
    "cooperative",
    LAUNCH,
    blocks="address",
    waiting="u32",
    finished="u32",
    least="u32",
    greatest="u32",
    abandon="u32",
)
"""A cooperative launch on the CPU device. The driver (``driver/cpu/streams.py``) and the kernel's entry
(``coroutines/grid.ll``) both write and read it. ``blocks`` is the address of an array with a pointer to the state of
each block, null before the block begins and after it ends. ``waiting`` counts the blocks that have reached a barrier of
the grid in this pass. ``finished`` counts the blocks that have ended. Each barrier in the source has a number;
``least`` and ``greatest`` are the least and the greatest number of the barriers reached in this pass. A call with
``abandon`` set ends all blocks."""

TENSOR_BARRIER: Final = Layout("tensor_barrier", phase="u32", expected="u32", pending="u32", bytes="u32")
"""A ``tensor.Barrier`` in a block's shared memory on the CPU device (``coroutines/tensor_barriers.ll``). ``phase`` is
the number of the present phase, and ``expected`` the number of arrivals that each phase takes. ``pending`` and
``bytes`` are the arrivals and the bytes of copies that the present phase still waits for."""

# The sanitizer

SANITIZED_REPORT: Final = Layout("sanitized_report", kind="i64", who="i64", address="i64", other="i64", start="i64")
"""A finding: its kind, the access (``who``), the accessed address, the earlier access of a race (``other``), and the
start of the array that the access should be in, 0 if unknown. Sanitized code writes it (``sanitizer/accesses.ll``), and
``driver/cpu/sanitizer.py`` reads it."""

SANITIZED_VIEW: Final = Layout(
    "sanitized_view",
    lo="i64",
    hi="i64",
    start="i64",
    init="address",
    cells="address",
    shift="i64",
    elements="address",
)
"""A parameter's memory. ``lo`` is its first address, ``hi`` the address after its last byte, ``start`` the address of
its allocation. ``init`` is the address of the allocation's flags: one for each byte, 1 once the byte was written.
``cells`` is the address of the allocation's shadow cells, one for each ``1 << shift`` bytes. For a strided view,
``elements`` is the address of flags, one for each byte from ``lo`` to ``hi``: 1 if the byte belongs to an element. For
other memory ``elements`` is null. ``driver/cpu/sanitizer.py`` writes the record, and sanitized code reads it."""

SANITIZED_ACCESS: Final = Layout("sanitized_access", time="i64", who="i64")
"""An access in a shadow cell. Only sanitized code writes and reads it (``sanitizer/races.ll``)."""

SANITIZED_CELL: Final = Layout(
    "sanitized_cell",
    write="i64[2]",
    read="i64[2]",
    other_read="i64[2]",
    load="i64[2]",
    atomic="i64[2]",
    other_atomic="i64[2]",
    known="i64",
)
"""The shadow of an element: a write, two reads, an atomic read and two atomic writes, each a ``sanitized_access``.
``known`` is a time: a thread that acquires from the element knows all accesses up to that time. The driver allocates
zeroed cells; sanitized code writes and reads them."""

SANITIZED_COPY: Final = Layout(
    "sanitized_copy",
    cell="address",
    cells="i64",
    rows="i64",
    pitch="i64",
    kind="i64",
    group="i64",
    who="i64",
)
"""An asynchronous copy that its thread has not waited for. Its shadow cells are ``rows`` rows of ``cells`` cells each:
the first row begins at ``cell``, and rows are ``pitch`` bytes apart. ``kind`` is 0 for ``copy_async``, 1 for the reads
of ``store_tile`` and 2 for its writes. ``group`` is the copy's group, and ``who`` the access."""

PRODUCTS: Final = Layout("products", begun="i64", ended="i64", tiles="i64")
"""The head of a thread's record of its ``wgmma`` products (``sanitizer/products.ll``): the numbers of products that
have begun and ended, and the number of tiles that were ever in its list. Fragments and the list of tiles follow. Only
sanitized code writes and reads it."""

PRODUCT_FRAGMENT: Final = Layout("product_fragment", last="i64", who="i64")
"""A fragment in a thread's record of its products: the number of the last product that uses the fragment, 0 if there
is none, and the access (``who``)."""

PRODUCT_TILE: Final = Layout(
    "product_tile",
    number="i64",
    pointer="address",
    size="i64",
    what="i64",
    array="address",
    bytes="i64",
    offset="i64",
    shift="i64",
)
"""An entry in the list of tiles of a thread's record of its products: the number of the product that reads the tile,
and the arguments for the check of that read."""

MAX_REPORTS: Final = 32
MAX_COPIES: Final = 256
THREADS: Final = 1024

SANITIZED_STATE: Final = Layout(
    "sanitized_state",
    FAULT,
    now="i64",  # counts accesses; 0 is before the first
    running="i64",  # the running block; -1 before the first
    begun="i64",  # when the running block began
    met="i64",  # when the blocks of the running cluster began or last met; 0 without clusters
    barrier="i64",  # when the block last passed a barrier, or began
    phase="i64",  # barriers that the block has passed
    block_known="i64",  # the whole block knows everything up to this time, through atomics and a barrier
    pending_known="i64",  # the value that block_known takes at the next barrier
    grid_known="i64",  # when all blocks last met at the grid's barrier
    reports="i64",
    leaves="i64",  # 1 if the last access gave no meaningful value: a thread that may leave the kernel then leaves
    views="address",
    view_count="i64",
    shared_cells="address",
    shared_init="address",
    shared_inits="address",  # in a cooperative launch, the flags of all blocks, one after another; else null
    shared_bytes="i64",
    copies="address",  # MAX_COPIES of ``sanitized_copy`` for each thread of a block
    report=f"i64[{MAX_REPORTS * SANITIZED_REPORT.size // 8}]",
    scratch="i64[64]@64",  # accesses that must not be made go here instead; aligned for vectors
    # Per thread: barriers passed; time of its last release; time that acquiring would make known; time known;
    # time of its arrival at a synchronisation of its warp; for each lane of its warp, the time up to which the lane's
    # accesses are ordered; the number of asynchronous copies that it has not waited for; the number of closed groups.
    passed=f"i64[{THREADS}]",
    released=f"i64[{THREADS}]",
    acquired=f"i64[{THREADS}]",
    known=f"i64[{THREADS}]",
    arrived=f"i64[{THREADS}]",
    seen=f"i64[{THREADS * 32}]",
    pending=f"i64[{THREADS}]",
    groups=f"i64[{THREADS}]",
    stores=f"i64[{THREADS}]",  # the number of closed groups of copies by ``store_tile``
)
"""The state of a sanitized launch. The kernel gets the address of the state in place of the address of its fault
record. The driver prepares the state and reads the findings (``driver/cpu/sanitizer.py``); sanitized code writes and
reads the state (``sanitizer/accesses.ll``)."""

RECORDS: Final = {
    layout.name: layout
    for layout in (
        FAULT,
        LAUNCH,
        COOPERATIVE,
        TENSOR_BARRIER,
        SANITIZED_REPORT,
        SANITIZED_VIEW,
        SANITIZED_ACCESS,
        SANITIZED_CELL,
        SANITIZED_COPY,
        PRODUCTS,
        PRODUCT_FRAGMENT,
        PRODUCT_TILE,
        SANITIZED_STATE,
    )
}
"""The records by name, for placeholders in IR."""
