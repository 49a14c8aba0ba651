"""The operations that apply ``partition``, ``unpartition`` and ``reshape`` to the result of another operation."""

from __future__ import annotations

import math
from typing import Any, final

from oxide.runtime.device.arc import Arc
from oxide.runtime.device.memory import DeviceBox
from oxide.runtime.device.partition import Partition, parse_tile_shape
from oxide.runtime.operations.operation import BoxSpec, Depiction, DeviceOperation, Spec
from oxide.runtime.operations.transfers import require_box
from oxide.runtime.submission.submission import ExecutionContext


@final
class Partitioned(DeviceOperation[Partition]):
    """The operation that ``op.partition(shape)`` returns."""

    _composed = True

    def __init__(self, source: DeviceOperation[Any], tile_shape: Any) -> None:
        known = source.spec()
        self._source = source
        self._parts = (source,)
        self._tile_shape = parse_tile_shape(tile_shape, known.shape if isinstance(known, BoxSpec) else None)
        super().__init__(source)
        self.place_as(source)

    @property
    def source(self) -> DeviceOperation[Any]:
        """Returns the operation that yields the box."""
        return self._source

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """Returns the shape of each tile."""
        return self._tile_shape

    def finish(self, context: ExecutionContext, results: list[Any]) -> Partition:
        return Partition(require_box(results[0], "partition"), self._tile_shape)

    def depict(self) -> Depiction:
        return "", f"in tiles of {'x'.join(map(str, self._tile_shape))}", (), (("", self._source),)


@final
class Unpartitioned(DeviceOperation[DeviceBox]):
    """The operation that ``op.unpartition()`` returns."""

    _composed = True

    def __init__(self, source: DeviceOperation[Any]) -> None:
        self._source = source
        self._parts = (source,)
        super().__init__(source)
        self.place_as(source)

    def finish(self, context: ExecutionContext, results: list[Any]) -> DeviceBox:
        found = results[0]
        if isinstance(found, Arc):
            found = found.value
        if not isinstance(found, Partition):
            raise TypeError(f"unpartition takes an operation that yields a Partition, and this yields {found!r}")
        return found.box

    def depict(self) -> Depiction:
        return "", "unpartition", (), (("", self._source),)


@final
class Reshaped(DeviceOperation[DeviceBox]):
    """The operation that ``op.reshape(shape)`` returns."""

    _composed = True

    def __init__(self, source: DeviceOperation[Any], shape: tuple[Any, ...]) -> None:
        self._source = source
        self._parts = (source,)
        self._shape = shape
        super().__init__(source)
        self.place_as(source)

    def finish(self, context: ExecutionContext, results: list[Any]) -> DeviceBox:
        found = results[0]
        box: DeviceBox = found.value if isinstance(found, Arc) else found
        return require_box(box, "reshape").reshape(*self._shape)

    def spec(self) -> Spec:
        known = self._source.spec()
        sizes = self._shape[0] if len(self._shape) == 1 and isinstance(self._shape[0], tuple) else self._shape
        if not isinstance(known, BoxSpec):
            return None
        for size in sizes:
            if type(size) is not int or size < 0:
                return None
        return BoxSpec(tuple(sizes), known.dtype) if math.prod(sizes) == math.prod(known.shape) else None

    def depict(self) -> Depiction:
        return "", "reshape", (), (("", self._source),)
