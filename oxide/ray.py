"""Batches on actors of a Ray cluster, each with a device. ``oxide/distributed/ray_pool.py`` has the pool.

    async with oxide.ray.ActorPool(Model, actors=4, weights=weights) as pool:
        async for result in pool.map_batches(batches):
            ...

Needs ray: ``pip install 'oxide-gpu[ray]'``.
"""

from oxide.distributed.ray_pool import ActorPool, ActorState
from oxide.errors import ActorLostError

__all__ = ["ActorLostError", "ActorPool", "ActorState"]
