"""LaunchConfig: the configuration in a kernel's brackets, checked when it is made."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, final

import numpy as np

from oxide.driver.base import MAX_BLOCK, MAX_GRID, MAX_SHARED_BYTES, MAX_THREADS_PER_BLOCK, Dim3
from oxide.errors import LaunchError
from oxide.host import core
from oxide.host.messages import written


@final
class LaunchConfig(core.LaunchConfig):
    """The size of a launch: ``grid`` blocks of ``block`` threads, each an int or a tuple of up to three (x, y, z).

    ``shared_mem_bytes`` is the size of a block's dynamic shared memory, which holds its ``DynamicSharedArray``s. Above
    48 KiB the kernel opts in automatically, up to the device's limit.

    Raises ``LaunchError`` for sizes that no device can launch. The name is cuda-oxide's.
    """

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ("grid", "block", "shared_mem_bytes")

    def __init__(
        self,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        shared_mem_bytes: int = 0,
    ) -> None:
        blocks, threads = _dim3(grid, "grid", MAX_GRID), _dim3(block, "block", MAX_BLOCK)
        x, y, z = threads
        if x * y * z > MAX_THREADS_PER_BLOCK:
            raise LaunchError(
                f"block {threads} has {x * y * z} threads; a block has at most {MAX_THREADS_PER_BLOCK}: use a "
                f"smaller block and a larger grid"
            )
        if type(shared_mem_bytes) is not int and (
            isinstance(shared_mem_bytes, bool) or not isinstance(shared_mem_bytes, (int, np.integer))
        ):
            raise LaunchError(f"shared_mem_bytes is {written(shared_mem_bytes)}, which is no integer")
        if not 0 <= shared_mem_bytes <= MAX_SHARED_BYTES:
            raise LaunchError(
                f"shared_mem_bytes is {written(shared_mem_bytes)}; no device gives a block more than "
                f"{MAX_SHARED_BYTES} bytes"
            )
        self._set(blocks, threads, int(shared_mem_bytes))

    @property
    def grid(self) -> Dim3:
        """Returns the numbers of blocks along x, y and z."""
        return self._grid

    @property
    def block(self) -> Dim3:
        """Returns the numbers of a block's threads along x, y and z."""
        return self._block

    @property
    def shared_mem_bytes(self) -> int:
        """Returns the size of a block's dynamic shared memory in bytes."""
        return self._shared_mem_bytes

    @classmethod
    def for_num_elems(cls, n: int, block: int = 256) -> LaunchConfig:
        """Returns a configuration of one thread for each of ``n`` elements: along x, at least one block of ``block``
        threads. Raises ``LaunchError`` unless ``n`` is an integer of 0 or more."""
        if type(n) is int and n > 0 and type(block) is int and 0 < block <= MAX_THREADS_PER_BLOCK:
            return _shared(-(-n // block), block)
        if not _is_count(n):
            raise LaunchError(f"for_num_elems({written(n)}): the number of elements must be an integer of 0 or more")
        threads, _, _ = _dim3(block, "block", MAX_BLOCK)
        blocks = -(-int(n) // threads)
        return _shared(max(1, blocks), threads)

    @classmethod
    def for_shape(cls, shape: tuple[int, ...], block: int | tuple[int, ...] = (16, 16)) -> LaunchConfig:
        """Returns a configuration of one thread for each element of a matrix, or of an array of three axes. ``shape``
        is (rows, columns) or (planes, rows, columns), and ``block`` is (x, y) or (x, y, z): columns go along x, rows
        along y and planes along z. The grid has at least one block, even for an empty matrix."""
        if not isinstance(shape, tuple) or len(shape) not in (2, 3) or not all(map(_is_count, shape)):
            raise LaunchError(
                f"for_shape({written(shape)}): the shape is (rows, columns) or (planes, rows, columns), integers of 0 "
                "or more"
            )
        threads = _dim3(block, "block", MAX_BLOCK)
        grid = [max(1, -(-int(length) // each)) for length, each in zip(reversed(shape), threads, strict=False)]
        return _shared(tuple(grid), threads)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LaunchConfig):
            return NotImplemented
        return self.equals(other)

    def __hash__(self) -> int:
        return hash(self._parts())

    def __reduce__(self) -> tuple[Any, ...]:
        return LaunchConfig, self._parts()

    def __replace__(self, **changes: Any) -> LaunchConfig:
        """Returns a changed copy, for ``copy.replace`` from Python 3.13 on."""
        parts: dict[str, Any] = {"grid": self._grid, "block": self._block, "shared_mem_bytes": self._shared_mem_bytes}
        return LaunchConfig(**(parts | changes))

    def __repr__(self) -> str:
        return f"LaunchConfig(grid={self._grid}, block={self._block}, shared_mem_bytes={self._shared_mem_bytes})"

    def _parts(self) -> tuple[Dim3, Dim3, int]:
        return self._grid, self._block, self._shared_mem_bytes


def bracketed(kernel: str, config: object) -> LaunchConfig:
    """Returns the configuration in a kernel's brackets, a ``LaunchConfig`` or a grid and a block. Raises
    ``LaunchError`` with the kernel's name."""
    if isinstance(config, tuple) and len(config) == 2:
        try:
            return LaunchConfig(*config)
        except LaunchError as error:
            raise LaunchError(f"kernel {kernel}: {error}") from None
    if not isinstance(config, LaunchConfig):
        raise LaunchError(
            f"kernel {kernel}: the brackets take a LaunchConfig or grid, block; got {written(config)}. "
            f"A policy or sync_on picks the stream"
        )
    return config


def threads_of(config: LaunchConfig) -> Dim3:
    """Returns the numbers of a launch's threads along x, y and z."""
    (grid_x, grid_y, grid_z), (block_x, block_y, block_z) = config.grid, config.block
    return grid_x * block_x, grid_y * block_y, grid_z * block_z


@lru_cache(maxsize=512)
def _shared(grid: int | tuple[int, ...], block: int | Dim3) -> LaunchConfig:
    """Returns a configuration from a cache. Launches can share it, because configurations are immutable."""
    return LaunchConfig(grid, block)


def _is_count(number: object) -> bool:
    if type(number) is int:
        return number >= 0
    return isinstance(number, np.integer) and int(number) >= 0


def _dim3(size: object, what: str, limits: Dim3) -> Dim3:
    if type(size) is int and 0 < size <= limits[0]:
        return (size, 1, 1)
    sizes = size if isinstance(size, tuple) else (size,)
    if not 1 <= len(sizes) <= 3:
        raise LaunchError(f"{what} {written(size)} must be an int or a tuple of one to three ints")
    x = sizes[0]
    y = sizes[1] if len(sizes) > 1 else 1
    z = sizes[2] if len(sizes) > 2 else 1
    # The common case. The code below converts NumPy's integers, and raises the errors.
    if type(x) is type(y) is type(z) is int and 0 < x <= limits[0] and 0 < y <= limits[1] and 0 < z <= limits[2]:
        return (x, y, z)
    result = []
    for axis, number, limit in zip("xyz", (*sizes, 1, 1), limits, strict=False):
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
            raise LaunchError(f"{what} {written(size)}: {axis} is {written(number)}, which is no integer")
        if not 1 <= number <= limit:
            raise LaunchError(f"{what} {written(size)}: {axis} is {written(number)}, but must be from 1 to {limit}")
        result.append(int(number))
    return (result[0], result[1], result[2])


core.setup(Config=LaunchConfig)
