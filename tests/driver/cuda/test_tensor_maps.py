"""Tensor maps of arrays that the copy engine cannot read."""

from __future__ import annotations

import struct

import pytest

pytest.importorskip("cuda.bindings.driver")
from oxide import LaunchError
from oxide.driver.cuda.tensor_maps import MAP_BYTES, TensorMaps

UNREADABLE = [
    (4096 + 2, 64, 64),  # begins between multiples of 16 bytes
    (4096, 64, 65),  # so do its rows
    (4096, 0, 64),
    (4096, 2**33, 64),
    (4096, 2, 2**40),
]


@pytest.mark.parametrize("words", UNREADABLE)
def test_an_optional_map_of_such_an_array_is_empty(words: tuple[int, int, int]) -> None:
    params = struct.pack("=3Q", *words)
    maps = TensorMaps("copies", [(0, "bf16", (64, 64), True, True, "a")], 64)
    assert maps.appended(params) == params + bytes(64 - len(params)) + bytes(MAP_BYTES)


@pytest.mark.parametrize("words", UNREADABLE)
def test_another_map_is_refused(words: tuple[int, int, int]) -> None:
    maps = TensorMaps("copies", [(0, "bf16", (64, 64), True, False, "a")], 64)
    with pytest.raises(LaunchError, match=r"kernel copies: .*parameter a"):
        maps.appended(struct.pack("=3Q", *words))
