"""Layouts of memory that machine code and Python share: named fields at fixed offsets.

A layout follows the rules of C: each field is aligned to its type, and the size is a multiple of the largest alignment.
``records.py`` declares every layout. A layout gives offsets to IR, a dtype to NumPy and a structure to ctypes.
"""

from __future__ import annotations

import ctypes
import functools
import re
from dataclasses import dataclass
from typing import Any, final

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
