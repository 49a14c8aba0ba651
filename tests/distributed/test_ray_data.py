"""Callable classes that use oxide, as Ray Data's ``map_batches`` takes them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'oxide-gpu[ray]'")
data = pytest.importorskip(
    "ray.data", reason="Ray Data is not installed: pip install 'ray[data]'", exc_type=ImportError
)

from oxide import h2d  # noqa: E402
from tests.distributed.ray_models import Affine, affine  # noqa: E402

pytestmark = pytest.mark.skipif(os.environ.get("OXIDE_DEVICE") != "cpu", reason="the actors use the CPU device")
Y = np.full(100, 7, np.float32)  # batches have at most 100 rows


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


class OnDevice:
    """Runs each batch and waits for it."""

    def __init__(self, y: Any) -> None:
        self._model = Affine(h2d(y).sync())

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"], "out": self._model(batch["id"].astype(np.float32)).sync()}


class OnDeviceAsync:
    """Runs several batches at a time."""

    def __init__(self, y: Any) -> None:
        self._model = Affine(h2d(y).sync())

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        yield {"id": batch["id"], "out": await self._model(batch["id"].astype(np.float32))}


@pytest.mark.parametrize("kind", [OnDevice, OnDeviceAsync])
def test_a_class_with_a_device_maps_the_batches_of_a_data_set(kind: type) -> None:
    mapped = data.range(2000).map_batches(
        kind,
        fn_constructor_kwargs={"y": Y},
        batch_size=100,
        compute=data.ActorPoolStrategy(size=2),
        runtime_env={"env_vars": {"OXIDE_CPU_THREADS": "1"}},
    )
    rows = sorted(mapped.take_all(), key=lambda row: int(row["id"]))
    assert [row["id"] for row in rows] == list(range(2000))
    np.testing.assert_allclose([row["out"] for row in rows], affine(np.arange(2000), np.full(2000, 7)), rtol=1e-6)
