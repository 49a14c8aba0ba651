"""Tensor maps: descriptions of matrices that a GPU's copy engine reads, made at each launch that copies tiles.

PTX with ``tensor.load_tile`` lists its maps in comments (``compiler/ptx/tensor/tiles.py``). A launch's parameters have
the address and the lengths of each matrix; the maps follow them. A launch with the same matrices as the last one finds
its maps made.

The maps are aligned to 64 bytes in the GPU's constant memory, where the parameters begin at no multiple of 64. So their
offsets are the driver's: on an H100 the first map after 80 bytes of parameters is at 112.
"""

from __future__ import annotations

import ctypes
import re
import struct
from typing import Any, Final, final

from cuda.bindings import driver

from oxide.driver.cuda.errors import check
from oxide.errors import LaunchError

_LINE: Final = re.compile(r"^// oxide\.tensor_map (\d+) (\d) (\w+) (\d+) (\d+) (\S+)$", re.MULTILINE)
MAP_BYTES: Final = 128
_ROW_ALIGNMENT: Final = 16
_MOST_STRIDE: Final = 1 << 40
_MOST_LENGTH: Final = 1 << 32

_TYPES: Final[dict[str, tuple[Any, int]]] = {
    "f16": (driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2),
    "bf16": (driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2),
    "f32": (driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4),
    "tf32": (driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 4),
    **dict.fromkeys(("i8", "u8", "f8e4m3", "f8e5m2"), (driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8, 1)),
}


@final
class TensorMaps:
    """The maps of one kernel."""

    __slots__ = ("_entry", "_first", "_kept", "_specs")

    def __init__(self, entry: str, specs: list[tuple[int, int, str, int, int, str]], first: int) -> None:
        """Makes the maps of a kernel, whose first map is at offset ``first`` of the parameters."""
        self._entry = entry
        self._specs = specs
        self._first = first
        # The addresses and shapes of the last launch's matrices, and their maps: a launch often repeats the last one.
        self._kept: tuple[bytes, bytes] = (b"", b"")

    @property
    def places(self) -> tuple[int, ...]:
        """The offsets of the maps in the parameters."""
        return tuple(self._first + MAP_BYTES * number for number in range(len(self._specs)))

    def appended(self, params: bytes) -> bytes:
        """Returns a launch's parameters with the maps after them. Raises ``LaunchError`` for a matrix whose rows the
        engine cannot read."""
        words = b"".join(params[offset : offset + 8 * (1 + axes)] for offset, axes, *_ in self._specs)
        kept, maps = self._kept
        if kept != words:
            maps = b"".join([self._made(params, *spec) for spec in self._specs])
            self._kept = words, maps
        return params + bytes(self._first - len(params)) + maps

    def _made(self, params: bytes, offset: int, axes: int, dtype: str, rows: int, columns: int, name: str) -> bytes:
        kind, itemsize = _TYPES[dtype]
        words: tuple[int, ...] = struct.unpack_from(f"={1 + axes}Q", params, offset)
        address, lengths = words[0], list(words[1:])
        height, width = lengths[-2], lengths[-1]
        pitch = width * itemsize
        if address % _ROW_ALIGNMENT or pitch % _ROW_ALIGNMENT or not all(lengths):
            raise LaunchError(
                f"kernel {self._entry}: tensor.load_tile copies from parameter {name}, which has {height} rows of "
                f"{width} {dtype} from address {address:#x}: there are rows, and each begins at a multiple of "
                f"{_ROW_ALIGNMENT} bytes"
            )
        strides, sides = [pitch, pitch * height][: axes - 1], [columns, rows, 1][:axes]
        if max(lengths) > _MOST_LENGTH or max(strides) >= _MOST_STRIDE:
            raise LaunchError(
                f"kernel {self._entry}: parameter {name} has shape {tuple(lengths)}, and tensor.load_tile copies from "
                "slices of lengths of at most 2**32, with less than 2**40 bytes from one row or matrix to the next"
            )
        error, made = driver.cuTensorMapEncodeTiled(
            kind,
            axes,
            address,
            [driver.cuuint64_t(length) for length in lengths[::-1]],
            [driver.cuuint64_t(stride) for stride in strides],
            [driver.cuuint32_t(side) for side in sides],
            [driver.cuuint32_t(1)] * axes,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        check(error, f"cuTensorMapEncodeTiled({self._entry}, {name})")
        return ctypes.string_at(int(made.getPtr()), MAP_BYTES)


def tensor_maps(ptx: str, entry: str, handle: Any, parameters: int) -> TensorMaps | None:
    """Returns the maps that a kernel's PTX asks for, the last of its ``parameters``, or None if it copies no tiles."""
    found = [
        (int(at), int(axes), kind, int(rows), int(columns), name)
        for at, axes, kind, rows, columns, name in _LINE.findall(ptx)
    ]
    if not found:
        return None
    error, first, _ = driver.cuFuncGetParamInfo(handle, parameters - len(found))
    check(error, f"cuFuncGetParamInfo({entry})")
    return TensorMaps(entry, found, int(first))
