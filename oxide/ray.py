"""Runs batches on actors of a Ray cluster, each of which has a device. ``oxide/distributed/ray_pool.py`` implements it.

    async with oxide.ray.ActorPool(Model, actors=4, weights=weights) as pool:
        async for result in pool.map_batches(batches):
            ...

Needs ray: ``pip install 'oxide-gpu[ray]'``.
"""

from oxide.distributed.ray_pool import ActorPool, ActorState
from oxide.errors import ActorLostError

__all__ = ["ActorLostError", "ActorPool", "ActorState"]
