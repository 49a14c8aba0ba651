"""Makes tensor maps, which describe arrays to a GPU's copy engine, for launches of kernels that copy tiles.

The PTX of such a kernel lists its maps in comments (``compiler/ptx/tensor/shared_tiles.py``). A launch's parameters
have the address and the lengths of each array. The maps come after all other parameters. A launch with the same arrays
as the kernel's previous launch reuses the previous maps.

The maps are aligned to 64 bytes in the GPU's constant memory, where the parameters do not begin at a multiple of 64. So
the driver decides the maps' offsets: on an H100 the first map after 80 bytes of parameters is at 112.
"""

from __future__ import annotations

import ctypes
import re
import struct
from typing import Any, Final, final

from cuda.bindings import driver

from oxide.driver.cuda.errors import check
from oxide.errors import LaunchError
from oxide.language.types import SCALARS

_LINE: Final = re.compile(r"^// oxide\.tensor_map (\d+) (\w+) ([\dx]+) (swizzled|plain)(\??) (\S+)$", re.MULTILINE)
MAP_BYTES: Final = 128
_ROW_ALIGNMENT: Final = 16
_MOST_STRIDE: Final = 1 << 40
_MOST_LENGTH: Final = 1 << 32


def _type_of(dtype: str) -> tuple[Any, int]:
    """Returns the driver's type of elements, and their size in bytes. Numbers of 8 bits are copied as bytes."""
    scalar = SCALARS["f32" if dtype == "tf32" else dtype]
    name = "UINT8" if scalar.bits == 8 else "TFLOAT32" if dtype == "tf32" else scalar.dtype_name.upper()
    return getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{name}"), scalar.bits // 8


@final
class TensorMaps:
    """The maps of one kernel."""

    __slots__ = ("_entry", "_first", "_kept", "_specs")

    def __init__(self, entry: str, specs: list[tuple[int, str, tuple[int, ...], bool, bool, str]], first: int) -> None:
        """Takes a description of each map from the PTX. The first map is at offset ``first`` of the parameters."""
        self._entry = entry
        self._specs = specs
        self._first = first
        # The addresses and shapes of the last launch's arrays, and their maps. The next launch often has the same.
        self._kept: tuple[bytes, bytes] = (b"", b"")

    @property
    def places(self) -> tuple[int, ...]:
        """Returns the offset of each map in the parameters."""
        return tuple(self._first + MAP_BYTES * number for number in range(len(self._specs)))

    def appended(self, params: bytes) -> bytes:
        """Returns a launch's parameters with the maps after them. Raises ``LaunchError`` for an array that the copy
        engine cannot read: empty, too long, or with rows that are not aligned."""
        words = b"".join(params[offset : offset + 8 * (1 + len(sides))] for offset, _, sides, *_ in self._specs)
        kept, maps = self._kept
        if kept != words:
            maps = b"".join([self._made(params, *spec) for spec in self._specs])
            self._kept = words, maps
        return params + bytes(self._first - len(params)) + maps

    def _made(
        self,
        params: bytes,
        offset: int,
        dtype: str,
        sides: tuple[int, ...],
        swizzled: bool,
        optional: bool,
        name: str,
    ) -> bytes:
        kind, itemsize = _type_of(dtype)
        axes = len(sides)
        words: tuple[int, ...] = struct.unpack_from(f"={1 + axes}Q", params, offset)
        address, lengths = words[0], list(words[1:])
        strides = [lengths[-1] * itemsize]
        for length in lengths[-2:0:-1]:
            strides.append(strides[-1] * length)
        uneven = address % _ROW_ALIGNMENT or (axes > 1 and strides[0] % _ROW_ALIGNMENT)
        too_long = max(lengths) > _MOST_LENGTH or (axes > 1 and max(strides[: axes - 1]) >= _MOST_STRIDE)
        if optional and (uneven or not all(lengths) or too_long):
            return bytes(MAP_BYTES)
        if uneven or not all(lengths):
            raise LaunchError(
                f"kernel {self._entry}: it copies tiles of parameter {name}, which has shape {tuple(lengths)}, of "
                f"{dtype}, from address {address:#x}: there are elements, and each row begins at a multiple of "
                f"{_ROW_ALIGNMENT} bytes"
            )
        if too_long:
            raise LaunchError(
                f"kernel {self._entry}: parameter {name} has shape {tuple(lengths)}, and tiles are copied of "
                "slices of lengths of at most 2**32, with less than 2**40 bytes from one row or matrix to the next"
            )
        # The driver takes one stride fewer than there are axes. An empty list would be passed as a null pointer.
        strides = strides[: axes - 1] if axes > 1 else [_ROW_ALIGNMENT]
        swizzles = driver.CUtensorMapSwizzle
        error, made = driver.cuTensorMapEncodeTiled(
            kind,
            axes,
            address,
            [driver.cuuint64_t(length) for length in lengths[::-1]],
            [driver.cuuint64_t(stride) for stride in strides],
            [driver.cuuint32_t(side) for side in sides[::-1]],
            [driver.cuuint32_t(1)] * axes,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzles.CU_TENSOR_MAP_SWIZZLE_128B if swizzled else swizzles.CU_TENSOR_MAP_SWIZZLE_NONE,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        check(error, f"cuTensorMapEncodeTiled({self._entry}, {name})")
        return ctypes.string_at(int(made.getPtr()), MAP_BYTES)


def tensor_maps(ptx: str, entry: str, handle: Any, parameters: int) -> TensorMaps | None:
    """Returns the maps that a kernel's PTX lists, or None if the kernel copies no tiles. ``parameters`` is the number
    of the kernel's parameters, of which the maps are the last."""
    found = [
        (int(at), kind, tuple(map(int, sides.split("x"))), order == "swizzled", bool(optional), name)
        for at, kind, sides, order, optional, name in _LINE.findall(ptx)
    ]
    if not found:
        return None
    error, first, _ = driver.cuFuncGetParamInfo(handle, parameters - len(found))
    check(error, f"cuFuncGetParamInfo({entry})")
    return TensorMaps(entry, found, int(first))
