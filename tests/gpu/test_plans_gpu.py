"""Random recipes on a GPU, planned, fused and captured, mean what they mean in NumPy. Canaries guard device memory."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from oxide.driver.cuda.driver import CudaDriver
from tests.runtime.plan.test_random_plans import (
    COUNT,
    RECIPES,
    Canaries,
    Recipe,
    agrees_on,
    captured,
    captured_and_fused,
    fused,
    planned,
    uncaptured,
)

pytestmark = pytest.mark.gpu


class CudaCanaries(Canaries):
    """Canaries that a stream writes, after the allocation that they surround."""

    def stamp(self, place: int, stream: Any) -> None:
        self.inner.fill(place, self.BYTES[:1], self.AROUND, stream)

    def read(self, place: int, streams: list[Any]) -> bytes:
        host = self.inner.allocate_host(self.AROUND)
        try:
            self.inner.copy_to_host(host, place, self.AROUND, streams[0])
            self.inner.synchronize_stream(streams[0])
            return ctypes.string_at(host, self.AROUND)
        finally:
            self.inner.free_host(host)

    def left(self) -> int:
        return len(self._sizes)


@pytest.mark.parametrize("prepare", [captured, planned, uncaptured, fused, captured_and_fused])
def test_a_recipe_equals_its_sequential_meaning(prepare: Any) -> None:
    driver = CudaDriver()

    @settings(max_examples=COUNT or 20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(recipe=RECIPES)
    def agree(recipe: Recipe) -> None:
        assert agrees_on(CudaCanaries(driver), recipe, prepare)

    try:
        agree()
    finally:
        driver.close()


def test_the_canaries_see_a_write_beside_a_box() -> None:
    driver = CudaDriver()
    canaries = CudaCanaries(driver)
    stream = canaries.create_stream(0)
    address = canaries.allocate(48, stream)
    canaries.fill(address, b"\0", 48, stream)
    canaries.synchronize_stream(stream)
    assert canaries.are_intact()
    canaries.fill(address + 48, b"\0", 8, stream)
    canaries.synchronize_stream(stream)
    assert not canaries.are_intact()
    canaries.free(address, stream)
    canaries.are_intact()
    canaries.destroy_stream(stream)
    driver.close()
