"""The operations that apply ``partition``, ``unpartition`` and ``reshape`` to the result of another operation."""

from __future__ import annotations

import math
from typing import Any, final

from oxide.runtime.memory.memory import Arc, DeviceBox, Partition
from oxide.runtime.memory.strides import parse_tile_shape
from oxide.runtime.operations.operation import BoxSpec, Depiction, DeviceOperation, Spec
from oxide.runtime.operations.transfers import OfBox, require_box
from oxide.runtime.submission.submission import ExecutionContext


@final
class Partitioned(OfBox[Partition]):
    """The operation that ``op.partition(tile_shape)`` returns. ``source`` yields the box."""

    def __init__(self, source: DeviceOperation[Any], tile_shape: Any) -> None:
        known = source.spec()
        self.source = source
        self.tile_shape = parse_tile_shape(tile_shape, known.shape if isinstance(known, BoxSpec) else None)
        super().__init__(source)

    def submit(self, context: ExecutionContext, *arguments: Any) -> Partition:
        return Partition(require_box(arguments[0], "partition"), self.tile_shape)

    def depict(self) -> Depiction:
        return "", f"in tiles of {'x'.join(map(str, self.tile_shape))}", (), (("", self._box),)


@final
class Unpartitioned(OfBox[DeviceBox]):
    def submit(self, context: ExecutionContext, *arguments: Any) -> DeviceBox:
        found = arguments[0].value if isinstance(arguments[0], Arc) else arguments[0]
        if not isinstance(found, Partition):
            raise TypeError(f"unpartition takes an operation that yields a Partition, and this yields {found!r}")
        return found.box

    def depict(self) -> Depiction:
        return "", "unpartition", (), (("", self._box),)


@final
class Reshaped(OfBox[DeviceBox]):
    def __init__(self, source: DeviceOperation[Any], shape: tuple[Any, ...]) -> None:
        self._shape = shape
        self._source = source
        super().__init__(source)

    def submit(self, context: ExecutionContext, *arguments: Any) -> DeviceBox:
        return require_box(arguments[0], "reshape").reshape(*self._shape)

    def spec(self) -> Spec:
        known = self._source.spec()
        sizes = self._shape[0] if len(self._shape) == 1 and isinstance(self._shape[0], tuple) else self._shape
        if not isinstance(known, BoxSpec) or not all(type(size) is int and size >= 0 for size in sizes):
            return None
        return BoxSpec(tuple(sizes), known.dtype) if math.prod(sizes) == math.prod(known.shape) else None

    def depict(self) -> Depiction:
        return "", "reshape", (), (("", self._box),)
