"""One rank of a group, as a process of its own: ``python rank.py scenario``, with the variables of ``oxide launch``.

Prints one line of JSON at its end: what it saw.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import trio

import oxide
from oxide import collectives, d2h, h2d
from oxide.collectives import CollectiveError, Group, join_group

TIMEOUT = 3.0
"""The timeout of the scenarios in which a rank is late."""
LONG = 60.0
SIZES = (0, 1, 31, 33, 1000003)


def drawn(n: int, rank: int) -> Any:
    return np.random.default_rng([n, rank]).random(n, dtype=np.float32)


def host(operation: Any) -> Any:
    return operation.and_then(d2h).sync()


def assert_near(found: Any, expected: Any) -> None:
    assert np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)


def results() -> dict[str, Any]:
    """Every collective at every size, beside NumPy in float64."""
    with join_group(timeout=LONG) as group:
        rank, size = group.rank, group.size
        for n in SIZES:
            arrays = [drawn(n, each) for each in range(size)]
            wide = [array.astype(np.float64) for array in arrays]
            assert_near(host(h2d(arrays[rank]).and_then(group.all_reduce)), sum(wide))
            assert_near(
                host(h2d(arrays[rank]).and_then(lambda box: group.all_reduce(box, op="max"))), np.max(wide, axis=0)
            )
            assert np.array_equal(host(h2d(arrays[rank]).and_then(group.all_gather)), np.concatenate(arrays))
            root = size - 1
            assert np.array_equal(
                host(h2d(arrays[rank]).and_then(lambda box, root=root: group.broadcast(box, root=root))), arrays[root]
            )
            wholes = [drawn(n * size, each) for each in range(size)]
            found = host(h2d(wholes[rank]).and_then(group.reduce_scatter))
            assert_near(found, sum(w.astype(np.float64) for w in wholes)[rank * n : (rank + 1) * n])
            mine, other = h2d(arrays[rank]).sync(), oxide.zeros(n).sync()
            after, before = (rank + 1) % size, (rank - 1) % size
            assert np.array_equal(host(group.send_recv(mine, after, other, before)), arrays[before])
            both = h2d(np.concatenate((arrays[rank], arrays[rank]))).sync()  # parts of one box
            assert np.array_equal(host(group.send_recv(both[:n], after, both[n:], before)), arrays[before])
            if rank == 0:
                assert group.send(mine, to=root).sync() is mine
            elif rank == root:
                assert np.array_equal(host(group.recv(other, source=0)), arrays[0])

        async def awaited() -> None:
            box = await h2d(np.full(5, float(rank)))
            assert (await d2h(await group.all_reduce(box)) == sum(range(size))).all()

        trio.run(awaited)
    return {"rank": rank}


def captured() -> dict[str, Any]:
    """A graph of a collective between two kernels, launched while other collectives run."""
    with join_group(timeout=LONG) as group:
        other = oxide.ones(1000).sync()
        x = oxide.input(1000)
        operation = x.and_then(oxide.dup).and_then(group.all_reduce).and_then(oxide.dup)
        graph = operation.graph()
        output = graph.take_output()
        for turn in range(10):
            graph.launch(np.full(1000, group.rank + turn, np.float32)).async_on(graph.stream)
            group.all_reduce(other, op="avg").sync()
            graph.stream.synchronize()
            assert (d2h(output).sync() == sum(rank + turn for rank in range(group.size))).all()
        assert (d2h(other).sync() == 1).all()
    return {"rank": group.rank}


def failing(act: Callable[[Group], Any], timeout: float = LONG) -> dict[str, Any]:
    """All ranks complete a collective; then rank 1 does something, and the others ask for the next one. ``timeout`` is
    that of the collectives: the processes may take long to start."""
    group = join_group(timeout=LONG)
    plane: Any = group._plane
    (plane._peers if group.devices[0].kind == "cpu" else plane._watch._peers).timeout = timeout
    box = oxide.ones(1000).sync()
    group.all_reduce(box).sync()
    began = time.monotonic()
    try:
        if group.rank == 1:
            act(group)
        else:
            trio.run(_await, group.all_reduce(box)) if group.rank == 0 else group.all_reduce(box).sync()
    except CollectiveError as error:
        seen = {"rank": error.rank, "collective": error.collective, "message": str(error)}
        seen["seconds"] = time.monotonic() - began
        try:
            group.all_reduce(box).sync()
        except CollectiveError as again:
            seen["again"] = str(again)
        group.close()
        seen["here"] = group.rank
        return seen
    return {"here": group.rank}


async def _await(operation: Any) -> None:
    await operation


def killed() -> dict[str, Any]:
    return failing(lambda _: os.kill(os.getpid(), signal.SIGKILL))


def in_the_middle() -> dict[str, Any]:
    """Rank 1 ends while its share of a large collective is under way."""

    def act(group: Group) -> None:
        box = oxide.ones(1 << 26).sync()
        group.all_reduce(box).async_on(oxide.devices()[0].new_stream())
        os.kill(os.getpid(), signal.SIGKILL)

    group = join_group(timeout=LONG)
    if group.rank == 1:
        act(group)
    box = oxide.ones(1 << 26).sync()
    began = time.monotonic()
    try:
        while True:
            group.all_reduce(box).sync()
    except CollectiveError as error:
        return {"rank": error.rank, "here": group.rank, "message": str(error), "seconds": time.monotonic() - began}


def absent() -> dict[str, Any]:
    """Rank 1 does not ask for the collective until the others have told that they have given up."""

    def act(group: Group) -> None:
        box = oxide.ones(1000).sync()
        sys.stdin.read(1)  # the test closes it when the other ranks have ended
        group.all_reduce(box).sync()

    return failing(act, TIMEOUT)


def left() -> dict[str, Any]:
    return failing(lambda group: group.close())


def mismatched() -> dict[str, Any]:
    return failing(lambda group: group.all_reduce(oxide.ones(7).sync()).sync())


def other_kind() -> dict[str, Any]:
    return failing(lambda group: group.broadcast(oxide.ones(1000).sync()).sync())


def raised() -> dict[str, Any]:
    """Rank 1 leaves the block of its group by an exception, while its collective waits for the others."""
    began = time.monotonic()
    try:
        with join_group(timeout=LONG) as group:
            here = group.rank
            box = oxide.ones(1000).sync()
            group.all_reduce(box).sync()
            if group.rank == 1:
                group.all_reduce(box).async_on(oxide.devices()[0].new_stream())
                raise ValueError("a mistake")
            time.sleep(0.5)  # so that rank 1's collective waits; without it the test would still pass
            group.broadcast(box).sync()
    except (CollectiveError, ValueError) as error:
        return {"here": here, "message": str(error), "seconds": time.monotonic() - began}


def forked() -> dict[str, Any]:
    """Rank 1 ends, and a child that it had forked goes on."""

    def act(_: Group) -> None:
        if os.fork() == 0:
            sys.stdin.read(1)  # until the test has seen the others
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    return failing(act)


def records() -> dict[str, Any]:
    """Rank 1 gives as many records of the same size, with other fields."""
    fields = [("a", "i4")] if os.environ["RANK"] == "1" else [("a", "f4")]
    with join_group(timeout=LONG) as group:
        try:
            group.broadcast(h2d(np.zeros(3, fields)).sync()).sync()
        except CollectiveError as error:
            return {"rank": error.rank, "here": group.rank, "message": str(error), "seconds": 0.0}
    return {}


def shapes() -> dict[str, Any]:
    """Rank 1 gives as many elements in another shape."""
    return failing(lambda group: group.all_reduce(oxide.ones((10, 100)).sync()).sync())


def closed() -> dict[str, Any]:
    """Launches a captured graph after its group was closed. The graph is there until the process ends."""
    global kept
    with join_group(timeout=LONG) as group:
        group.all_reduce(oxide.ones(9).sync()).graph().launch().sync()  # a graph that is dropped before
        kept = group.all_reduce(oxide.ones(9).sync()).graph()
        kept.launch().sync()
    try:
        kept.launch().sync()
    except oxide.DeviceError as error:
        return {"here": group.rank, "message": str(error)}
    return {}


def launched_graph() -> dict[str, Any]:
    """A graph that was captured before rank 1 ended, launched after. It and the group are there until the process
    ends."""
    global kept
    group = join_group(timeout=LONG)
    box = oxide.ones(1000).sync()
    kept = group.all_reduce(box).graph()
    kept.launch().sync()
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            kept.launch().sync()
    except CollectiveError as error:
        return {"rank": error.rank, "here": group.rank, "message": str(error), "seconds": 0.0}


def unfinished() -> dict[str, Any]:
    """Rank 1 ends. The others end without waiting for the collective that they have submitted, or closing the group."""
    global kept
    kept = group = join_group(timeout=LONG)
    box = oxide.ones(1000).sync()
    group.all_reduce(box).sync()
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.all_reduce(box).async_on(oxide.devices()[0].new_stream())
    return {"here": group.rank}


def never_joins() -> dict[str, Any]:
    """Joins a group whose rank 1 never comes."""
    if os.environ["RANK"] == "1":
        return {"here": 1}
    began = time.monotonic()
    try:
        join_group(timeout=TIMEOUT)
    except CollectiveError as error:
        return {"rank": error.rank, "here": int(os.environ["RANK"]), "message": str(error),
                "seconds": time.monotonic() - began}  # fmt: skip
    return {}


def other_size() -> dict[str, Any]:
    """Rank 1 says that the group is larger."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        collectives.join_group(rank, size + (rank == 1), timeout=TIMEOUT)
    except (oxide.DeviceError, CollectiveError) as error:
        return {"here": rank, "kind": type(error).__name__, "message": str(error)}
    return {}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
