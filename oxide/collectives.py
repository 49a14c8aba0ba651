"""Collectives: operations that several devices run together. ``oxide/distributed/groups.py`` implements them.

with oxide.collectives.local_group() as group:      # or join_group(), in each of several processes
    group.all_reduce(x0, x1).sync()
"""

from oxide.distributed.groups import Group, join_group, local_group
from oxide.errors import CollectiveError

__all__ = ["CollectiveError", "Group", "join_group", "local_group"]
