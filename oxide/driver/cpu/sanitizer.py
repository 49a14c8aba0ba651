"""The sanitizer's runtime on the CPU device: shadow memory, sanitized launches, and reports.

A sanitized launch runs all its blocks one after the other on one worker. The kernel gets the address of the launch's
state in place of the address of its fault record. Each allocation has a flag for each of its bytes: 1 once the byte was
written. The last accesses to each element are kept for one launch only, because launches that use the same box are
ordered.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, final

import numpy as np

from oxide.driver import sanitizing
from oxide.driver.base import Dim3
from oxide.driver.cpu.streams import CooperativeRun
from oxide.driver.records import (
    FAULT,
    MAX_COPIES,
    SANITIZED_CELL,
    SANITIZED_COPY,
    SANITIZED_REPORT,
    SANITIZED_STATE,
    SANITIZED_VIEW,
)
from oxide.driver.sanitizing import ATOMIC, BLOCK_SCOPE, STATE_BYTES, WRITE, PointerWord, Sanitized
from oxide.errors import SanitizedAccess, SanitizerError

Records = np.ndarray[Any, np.dtype[Any]]
Tracked = Callable[[int, int], tuple[int, bytearray] | None]
"""Finds the allocation around a range. Returns the allocation's start and its flags, one for each byte, 1 once the byte
was written. Returns None for untracked memory, such as another library's."""


@final
class SanitizedLaunch:
    """A sanitized launch, called on a worker. Each launch of a graph calls it again. ``bind`` returns the launch with
    other parameters, as a function that runs a range of blocks. ``order`` returns the ranges to run."""

    __slots__ = ("_bind", "_block", "_grid", "_order", "_params", "_sanitized", "_shared", "_tracked")

    def __init__(
        self,
        sanitized: Sanitized,
        bind: Callable[[bytes], Callable[[int, int], None]],
        order: Callable[[int], list[tuple[int, int]]],
        tracked: Tracked,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        params: bytes,
    ) -> None:
        self._sanitized = sanitized
        self._bind = bind
        self._order = order
        self._tracked = tracked
        self._grid = grid
        self._block = block
        self._shared = sanitized.shared_bytes + shared_bytes
        self._params = params

    def __call__(self) -> None:
        count = self._sanitized.blocks  # the blocks of a cluster, each with a state
        memory = np.zeros(count * STATE_BYTES + 64, np.uint8)
        start = -memory.ctypes.data % 64  # aligned to 64 bytes, for vector accesses to the scratch
        places = range(start, start + count * STATE_BYTES, STATE_BYTES)
        states = [memory[place : place + SANITIZED_STATE.size].view(SANITIZED_STATE.dtype)[0] for place in places]
        views, kept = self._views()
        written = self._begin_outputs(views, kept)
        run = self._bind(self._params[:-8] + (memory.ctypes.data + start).to_bytes(8, "little"))
        blocks = math.prod(self._grid)
        together = isinstance(run, CooperativeRun)
        for state in states:
            kept += self._prepare(state, views, blocks if together else 1, together)
        for first, end in self._order(blocks):
            run(first, end)
        while isinstance(run, CooperativeRun) and run.goes_on():
            # The grid's barrier: all blocks are ordered after all accesses before it, and each block begins anew.
            (state,) = states
            state["grid_known"], state["running"] = state["now"], -1
            for first, end in self._order(blocks):
                run(first, end)
        self._report(states, views, self._end_outputs(written))

    def _prepare(self, state: Any, views: Records, blocks: int, together: bool) -> list[Any]:
        """Fills in a state, with shadow memory for the shared memory of ``blocks`` blocks. If ``together`` is True,
        these are all blocks of a cooperative launch. Returns the objects that must live as long as the launch."""
        kept: list[Any] = []
        state["running"] = -1
        state["views"], state["view_count"] = views.ctypes.data, len(views)
        state["shared_bytes"] = self._shared
        if self._shared and "memory" in self._sanitized.kinds:
            kept.append(np.zeros(self._shared * blocks, np.uint8))
            state["shared_init"] = kept[-1].ctypes.data
            if together:
                state["shared_inits"] = kept[-1].ctypes.data
        if self._shared and "race" in self._sanitized.kinds:
            kept.append(_cells(self._shared, self._sanitized.shared_shift))
            state["shared_cells"] = kept[-1].ctypes.data
            kept.append(np.zeros(MAX_COPIES * math.prod(self._block), SANITIZED_COPY.dtype))  # lazily zeroed
            state["copies"] = kept[-1].ctypes.data
        return kept

    def _views(self) -> tuple[Records, list[Any]]:
        """Returns a ``SANITIZED_VIEW`` for the memory of each parameter, and objects that must live as long as the
        launch."""
        sanitized, params = self._sanitized, self._params
        views = np.zeros(len(sanitized.pointers), SANITIZED_VIEW.dtype)
        sizes: dict[int, tuple[int, int]] = {}  # by an allocation's start: its size, and the least shift
        kept: list[Any] = []
        for row, pointer in zip(views, sanitized.pointers, strict=True):
            address = _word(params, pointer.address_at)
            length = 1 if pointer.length_at is None else _count(params, pointer.length_at, pointer.lengths)
            nbytes = length * pointer.itemsize
            if pointer.axes and length:
                below, elements = _elements(params, pointer)
                address, nbytes = address - below, len(elements)
                kept.append(elements)
                row["elements"] = elements.ctypes.data
            found = self._tracked(address, nbytes) if nbytes else None
            start = found[0] if found else address
            row["lo"], row["hi"], row["start"] = address, address + nbytes, start
            size, shift = (len(found[1]) if found else nbytes), pointer.granule.bit_length() - 1
            before = sizes.get(start, (size, shift))
            sizes[start] = max(size, before[0]), min(shift, before[1])
            if found:
                values = np.frombuffer(found[1], np.uint8)
                kept.append(values)
                row["init"] = values.ctypes.data
        if "race" in sanitized.kinds:
            cells = {start: _cells(size, shift) for start, (size, shift) in sizes.items()}
            kept.append(cells)
            for row in views:
                start = int(row["start"])
                row["cells"], row["shift"] = cells[start].ctypes.data, sizes[start][1]
        return views, kept

    def _begin_outputs(self, views: Records, kept: list[Any]) -> dict[int, Records]:
        """Returns, for each output that the launch has to write in full, the flags of its bytes, by the output's index.
        Until ``_end_outputs`` the flag of a byte that was written before is 2, and the launch's writes make it 1."""
        found: dict[int, Records] = {}
        for number, (row, pointer) in enumerate(zip(views, self._sanitized.pointers, strict=True)):
            nbytes = int(row["hi"]) - int(row["lo"])
            if nbytes == 0 or pointer.name not in self._sanitized.whole or "memory" not in self._sanitized.kinds:
                continue
            if not row["init"]:  # memory that is not tracked, which begins at the view
                kept.append(np.ones(nbytes, np.uint8))
                row["init"] = kept[-1].ctypes.data
            at = int(row["init"]) + int(row["lo"]) - int(row["start"])
            found[number] = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(at))
            found[number][...] = 2 * (found[number] != 0)
        return found

    def _end_outputs(self, outputs: dict[int, Records]) -> list[SanitizerError]:
        """Restores the flags of the outputs, and returns an error for each output that was not written in full."""
        errors = []
        for number, flags in outputs.items():
            written = (flags == 1).reshape(-1, self._sanitized.pointers[number].itemsize).any(1)
            flags[...] = flags != 0
            if not written.all():
                errors.append(self._unwritten(self._sanitized.pointers[number], written))
        return errors

    def _unwritten(self, pointer: PointerWord, written: Records) -> SanitizerError:
        lengths = [_word(self._params, (pointer.length_at or 0) + 8 * axis) for axis in range(pointer.lengths)]
        missing = np.flatnonzero(~written)
        first = tuple(map(int, np.unravel_index(missing[0], lengths)))
        known = [each for each in self._sanitized.accesses if each.what == pointer.name]
        file, line = (known[0].file, known[0].line) if known else ("", 0)
        problem = (
            f"leaves out element {first if len(first) > 1 else first[0]}: no thread writes {len(missing)} of its "
            f"{len(written)} elements. Write every element, or declare @kernel(partial=True) if that is meant"
        )
        access = SanitizedAccess("missing write", pointer.name, None, None, file, line)
        offset = int(missing[0]) * pointer.itemsize
        return SanitizerError(sanitizing.UNWRITTEN, self._sanitized.kernel, pointer.name, offset, problem, access)

    def _report(self, states: list[Any], views: Records, unwritten: list[SanitizerError]) -> None:
        """Fills the launch's fault record, unless there is none or it is claimed. The record gets the kernel's own
        fault, or, if there is none, the number under which the findings are published. ``unwritten`` are findings only
        if there are no others, which may be the reason."""
        record_address = _word(self._params, len(self._params) - 8)
        if not record_address:
            return
        state = next((each for each in states if each["claimed"]), states[0])
        found: dict[tuple[int, ...], tuple[int, ...]] = {}  # one for each pair of places, in any block
        for each in states:
            for words in each["report"].view(SANITIZED_REPORT.dtype)[: int(each["reports"])].tolist():
                kind, who, _, other, _ = words
                found.setdefault((kind, who >> 4 & 0xFFFF, other >> 4 & 0xFFFF), words)
        if (found or unwritten) and not state["claimed"]:
            reports = sorted(found.values(), key=lambda words: _GRAVITY[words[0]])
            number = sanitizing.publish(tuple(self._error(words, views) for words in reports) or tuple(unwritten))
            state["claimed"], state["site"] = sanitizing.SANITIZED, 0
            state["kernel_id"], state["index"] = self._sanitized.kernel_id, number
        if state["claimed"]:
            there = np.ctypeslib.as_array((ctypes.c_uint8 * FAULT.size).from_address(record_address)).view(FAULT.dtype)
            if not there[0]["claimed"]:
                for field in FAULT.fields:
                    there[field] = state[field]

    def _error(self, words: tuple[int, ...], views: Records) -> SanitizerError:
        kind, who, address, other, start = words
        access = self._access(who)
        place = self._sanitized.accesses[who >> 4 & 0xFFFF]
        offset, inside, element = None, "", ""
        if (number := self._pointer(place.what, address, start, views)) is not None:
            lo, hi, pointer = int(views[number]["lo"]), int(views[number]["hi"]), self._sanitized.pointers[number]
            offset = address - lo
            if pointer.axes:
                inside = f"{pointer.name} is a strided view, whose elements lie among {hi - lo} bytes; "
                inside += f"this is byte {offset}, and no element's"
                element = f" (byte {offset})"
            else:
                inside = f"{pointer.name} has {(hi - lo) // pointer.itemsize} elements of {pointer.itemsize} bytes; "
                inside += f"this is byte {offset}, element {offset // pointer.itemsize}"
                element = f" (element {offset // pointer.itemsize})"
        elif start:
            inside = f"this is byte {address - start}"
        problem = {
            sanitizing.OUT_OF_BOUNDS: f"is outside it: {inside}" if inside else "is outside it",
            sanitizing.MISALIGNED: f"is at an address, {address:#x}, that is no multiple of what its type needs",
            sanitizing.UNINITIALIZED: "finds memory that nothing has written" + (f": {inside}" if inside else ""),
            sanitizing.RACE: f"is in a race: no {self._orders(other)} orders it" + element,
            sanitizing.MISSING_LANES: self._missing(address, start, who) if kind == sanitizing.MISSING_LANES else "",
            sanitizing.UNFINISHED_STORE: "may still read it after the thread, and with it the block, has ended: call "
            "tensor.commit_stores() and tensor.wait_stores(read=True) first",
        }[kind]
        name = sanitizing.REPORT_KINDS[kind]
        earlier = self._access(other) if kind == sanitizing.RACE else None
        if kind == sanitizing.MISSING_LANES:
            access.access, offset = "warp operation", None
        return SanitizerError(name, self._sanitized.kernel, place.what, offset, problem, access, earlier)

    def _missing(self, lanes: int, mask: int, who: int) -> str:
        """Returns, in words, why a warp operation lacks ``lanes``. ``mask`` names those that should take part."""
        threads = math.prod(self._block)
        there = min(32, threads - (who >> 20 & 0x7E0))
        if lanes >> there:
            lanes = lanes >> there << there
            why = f"which the {there} threads of its warp, in a block of {threads}, do not include"
            cure = "Launch whole warps, or leave these lanes out"
        elif lanes & ~mask:
            why, cure = "which its mask does not name", "Name the lane, and let it make the call"
        else:
            why, cure = "which had returned", "Let every lane of the mask reach it, and test whose result counts later"
        return f"needs {_lanes(lanes)} of its warp, {why}: the result is undefined on a GPU. {cure}"

    def _pointer(self, name: str, address: int, start: int, views: Records) -> int | None:
        """Returns the index of the memory that an access through parameter ``name`` was meant for. It is the memory
        that begins at ``start``, else the memory that contains ``address``, else the parameter's first memory. Returns
        None if no parameter has the name."""
        named = [n for n, pointer in enumerate(self._sanitized.pointers) if pointer.name == name]
        should = [n for n in named if start == int(views[n]["lo"])]
        found = [n for n in named if int(views[n]["lo"]) <= address < int(views[n]["hi"])]
        return next(iter(should or found or named), None)

    def _orders(self, other: int) -> str:
        """Returns the name of the operation that would order an access after the earlier access ``other``."""
        if not _is_copy(other):
            return "barrier or atomic"
        if not other & WRITE:
            return "tensor.wait_stores"
        what = self._sanitized.accesses[other >> 4 & 0xFFFF].what
        if what in _FRAGMENTS:
            return "tensor.wait_wgmma of it"
        return "tensor.wait_stores" if any(what == each.name for each in self._sanitized.pointers) else "tensor.wait"

    def _access(self, who: int) -> SanitizedAccess:
        place = self._sanitized.accesses[who >> 4 & 0xFFFF]
        done = "atomic" if who & ATOMIC else "write" if who & WRITE else "read"
        if _is_copy(who):
            done = "product" if place.what in _FRAGMENTS else "copy" if who & WRITE else "store"
        block = _coordinates((who >> 32) & 0xFFFFFFFF, self._grid)
        return SanitizedAccess(
            done, place.what, block, _coordinates(who >> 20 & 0x7FF, self._block), place.file, place.line
        )


_FRAGMENTS = (sanitizing.ACCUMULATOR, sanitizing.LEFT_OPERAND)

# The order of reports: a race explains a missing value more often than the reverse.
_GRAVITY = {
    sanitizing.OUT_OF_BOUNDS: 0,
    sanitizing.MISALIGNED: 1,
    sanitizing.RACE: 2,
    sanitizing.MISSING_LANES: 3,
    sanitizing.UNFINISHED_STORE: 4,
    sanitizing.UNINITIALIZED: 5,
}


def _is_copy(who: int) -> bool:
    """Returns whether an access is an asynchronous copy that its thread has not waited for."""
    return who & (BLOCK_SCOPE | ATOMIC) == BLOCK_SCOPE


def _lanes(mask: int) -> str:
    """Returns the lanes of a mask in words: ``lane 3``, ``lanes 17 to 31`` or ``lanes 1, 3, 5``."""
    lanes = [lane for lane in range(32) if mask >> lane & 1]
    if len(lanes) == 1:
        return f"lane {lanes[0]}"
    if lanes[-1] - lanes[0] == len(lanes) - 1:
        return f"lanes {lanes[0]} to {lanes[-1]}"
    return f"lanes {', '.join(map(str, lanes))}"


def _cells(nbytes: int, shift: int) -> Records:
    """Returns shadow cells for ``nbytes`` bytes. Untouched cells take no memory."""
    return np.zeros((nbytes >> shift) + 1, SANITIZED_CELL.dtype)


def _elements(params: bytes, pointer: PointerWord) -> tuple[int, np.ndarray[Any, np.dtype[np.uint8]]]:
    """Returns the number of bytes by which a strided view extends below the address of its first element. Also returns
    an array of flags for the bytes from the view's lowest to its highest: 1 if the byte belongs to an element, else 0.
    """
    axes = np.frombuffer(params, np.int64, 2 * pointer.axes, pointer.axes_at).reshape(2, pointer.axes)
    shape, strides = axes.tolist()
    reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    below = -sum(way for way in reach if way < 0)
    elements = np.zeros(below + sum(way for way in reach if way > 0) + pointer.itemsize, np.uint8)
    np.ndarray((*shape, pointer.itemsize), np.uint8, elements.data, below, (*strides, 1))[...] = 1
    return below, elements


def _count(params: bytes, at: int, lengths: int) -> int:
    """Returns the number of elements of an array: the product of the lengths of its axes, which are ``lengths`` words
    from offset ``at`` on."""
    return math.prod(_word(params, at + 8 * axis) for axis in range(lengths))


def _word(params: bytes, at: int) -> int:
    return int.from_bytes(params[at : at + 8], "little")


def _coordinates(linear: int, shape: Dim3) -> Dim3:
    return linear % shape[0], linear // shape[0] % shape[1], linear // (shape[0] * shape[1])
