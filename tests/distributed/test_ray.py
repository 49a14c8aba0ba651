"""``oxide.ray``: pools of actors on a local cluster of Ray, whose processes are killed under load."""

from __future__ import annotations

import asyncio
import os
import random
import re
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'oxide-gpu[ray]'")

from oxide import BoundsError, OperationCancelledError  # noqa: E402
from oxide.distributed import ray_actors  # noqa: E402
from oxide.distributed import ray_pool as ray_pools  # noqa: E402
from oxide.distributed.ray_actors import DeviceActor, RestartedError, Settings  # noqa: E402
from oxide.distributed.ray_batches import is_large  # noqa: E402
from oxide.ray import ActorLostError, ActorPool  # noqa: E402
from tests.distributed.ray_models import (  # noqa: E402
    Affine,
    Echo,
    Endless,
    Faulty,
    Large,
    Log,
    LosesDevice,
    Mortal,
    Pairs,
    Product,
    Quits,
    Shape,
    Unmade,
    affine,
)

pytestmark = pytest.mark.skipif(os.environ.get("OXIDE_DEVICE") != "cpu", reason="the actors use the CPU device")
Y = np.arange(1000, dtype=np.float32)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=8, include_dashboard=False, object_store_memory=400 << 20, log_to_driver=False)
    yield
    ray.shutdown()


def run(function: Any, *args: Any) -> Any:
    """Runs a test's tasks. A pool that hangs fails."""

    async def main() -> Any:
        with trio.fail_after(100):
            return await function(*args)

    return trio.run(main)


def batches(count: int, seed: int = 0) -> Iterator[Any]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield rng.standard_normal(1000).astype(np.float32)


async def collect(results: AsyncIterator[Any], found: list[Any]) -> None:
    """Adds the results to ``found``, those before an error too."""
    async for each in results:
        found.append(each)  # noqa: PERF401


def require_all(found: list[Any], expected: list[Any]) -> None:
    """Fails unless each expected result is there once, in any order."""
    assert len(found) == len(expected)
    found = sorted(found, key=lambda each: float(each[0]))
    for one, other in zip(found, sorted(expected, key=lambda each: float(each[0])), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


# Results


@pytest.mark.parametrize("ordered", [True, False])
def test_each_batch_has_its_result(ordered: bool) -> None:
    async def main() -> None:
        async with ActorPool[Any, Any](Affine, actors=2, weights={"y": Y}, arguments={"s": 2.0}) as pool:
            found = [each async for each in pool.map_batches(batches(50), ordered=ordered)]
            assert [each async for each in pool.map_batches([])] == []
        expected = [affine(each, Y, 2.0) for each in batches(50)]
        if ordered:
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        require_all(found, expected)

    run(main)


def test_batches_come_from_an_async_iterator_and_under_asyncio() -> None:
    async def given() -> AsyncIterator[Any]:
        for each in batches(20):
            await asyncio.sleep(0)
            yield each

    async def main() -> list[Any]:
        async with ActorPool[Any, Any](Affine, weights={"y": Y}) as pool:
            return [each async for each in pool.map_batches(given())]

    found = asyncio.run(asyncio.wait_for(main(), 100))
    np.testing.assert_allclose(found, [affine(each, Y) for each in batches(20)], rtol=1e-5, atol=1e-5)


def test_a_result_comes_while_the_next_batch_is_not_there_yet() -> None:
    async def main() -> None:
        send, receive = trio.open_memory_channel[int](0)
        async with ActorPool[int, int](Faulty) as pool:
            results = pool.map_batches(receive)
            for number in range(3):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(send.send, number)
                    assert await anext(results) == number
            await results.aclose()

    run(main)


def test_an_actor_has_several_batches_at_a_time() -> None:
    async def main() -> list[int]:
        async with ActorPool[int, int](Pairs, in_flight=2) as pool:
            return [each async for each in pool.map_batches(range(10))]

    assert run(main) == list(range(10))


def test_a_batch_is_read_only_when_the_window_has_room() -> None:
    read = handed = most = 0

    def given() -> Iterator[int]:
        nonlocal read, most
        for number in range(40):
            read += 1
            most = max(most, read - handed)
            yield 10 + number

    async def main() -> None:
        nonlocal handed, most, read
        async with ActorPool[int, int](Faulty, actors=2, in_flight=2) as pool:
            async for _ in pool.map_batches(given()):
                handed += 1
                await trio.testing.wait_all_tasks_blocked()
            assert (read, handed) == (40, 40)
            assert most == 4
            handed = read = most = 0
            async for _ in pool.map_batches(given(), window=7):
                handed += 1
                await trio.testing.wait_all_tasks_blocked()
            assert most == 7

    run(main)


@pytest.mark.parametrize("nbytes", [1000, 200_000, 5_000_000])
def test_large_batches_and_results_are_views_of_the_object_store(nbytes: int) -> None:
    async def main() -> None:
        async with ActorPool[Any, Any](Large) as pool:
            numbers = iter(range(6))
            async for result, is_view in pool.map_batches(np.full(nbytes, number, np.uint8) for number in range(6)):
                assert is_view
                assert not result.flags.writeable
                assert (result == next(numbers)).all()
            assert next(numbers, None) is None

    run(main)


def test_a_batch_may_be_a_reference_of_ray() -> None:
    async def main() -> None:
        async with ActorPool[Any, Any](Affine, weights={"y": Y}) as pool:
            given = [ray.put(each) for each in batches(5)]
            found = [each async for each in pool.map_batches(given)]
            np.testing.assert_allclose(found, [affine(each, Y) for each in batches(5)], rtol=1e-5, atol=1e-5)

    run(main)


def test_the_callers_memory_does_not_grow_with_the_results() -> None:
    async def main() -> None:
        async with ActorPool[Any, Any](Large, actors=2) as pool:
            sizes = []
            number = 0
            async for _ in pool.map_batches(np.full(1 << 20, number % 7, np.uint8) for number in range(400)):
                number += 1
                if number in (100, 399):
                    sizes.append(own_memory())
            assert sizes[1] - sizes[0] < 20 << 20  # of the 300 MiB that came meanwhile

    run(main)


def own_memory() -> int:
    """The bytes of this process that no other shares: none of the object store's."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", text).group(1))  # type: ignore[union-attr]


# The device


def test_the_weights_are_uploaded_from_the_object_store_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded: list[Any] = []

    def spy(array: Any) -> Any:
        uploaded.append(array)
        return h2d(array)

    h2d = ray_actors.h2d
    monkeypatch.setattr(ray_actors, "h2d", spy)
    monkeypatch.setenv("OXIDE_CPU_THREADS", "2")
    weights = np.arange(1 << 20, dtype=np.float32)
    model = ray.cloudpickle.dumps((Affine, {}))
    actor = DeviceActor(Settings(model=model, name="Affine", on_gpu=False, threads=None, neighbours=1))

    async def main() -> Any:
        with pytest.raises(RestartedError):
            await actor.run(weights)
        await actor.ready((("y", ray.put(weights)),))
        return await actor.run(weights)

    np.testing.assert_array_equal(asyncio.run(main()), affine(weights, weights))
    assert uploaded[0] is not weights
    assert not uploaded[0].flags.writeable
    assert not uploaded[0].flags.owndata


def test_actors_share_the_cores_of_their_machine() -> None:
    async def main() -> None:
        cores = len(os.sched_getaffinity(0))
        async with ActorPool[int, int](Faulty, actors=2) as pool:
            assert [each.threads for each in pool.actors] == [max(1, cores // 2)] * 2
            assert {each.device for each in pool.actors} == {"cpu:0"}
            assert len({each.pid for each in pool.actors} | {os.getpid()}) == 3
        async with ActorPool[int, int](Faulty, num_cpus=3) as pool:
            assert [each.threads for each in pool.actors] == [3]

    run(main)


def test_a_product_in_an_actor_is_numpys() -> None:
    async def main() -> None:
        rng = np.random.default_rng(4)
        w = rng.standard_normal((200, 60)).astype(np.float32)
        given = [rng.standard_normal((rows, 200)).astype(np.float32) for rows in (1, 33, 64, 7)]
        async with ActorPool[Any, Any](Product, weights={"w": w}) as pool:
            found = [each async for each in pool.map_batches(given)]
        for one, batch in zip(found, given, strict=True):
            np.testing.assert_allclose(one, batch.astype(np.float64) @ w.astype(np.float64), rtol=1e-3, atol=1e-4)

    run(main)


# Actors that die


@pytest.mark.parametrize(("ordered", "seed"), [(True, 1), (False, 2)])
def test_actors_are_killed_under_load_and_each_batch_has_its_result_once(ordered: bool, seed: int) -> None:
    count, chosen = 600, random.Random(seed)
    moments = sorted(chosen.sample(range(20, count - 100), 3))

    async def main() -> None:
        async with ActorPool[Any, Any](Affine, actors=4, weights={"y": Y}) as pool:
            found: list[Any] = []
            killed: set[int] = set()
            async for result in pool.map_batches(batches(count, seed), ordered=ordered):
                found.append(result)
                if moments and len(found) == moments[0]:
                    moments.pop(0)
                    pid = chosen.choice([each.pid for each in pool.actors if each.pid and each.pid not in killed])
                    killed.add(pid)
                    os.kill(pid, signal.SIGKILL)
            assert len(killed) == 3
            expected = [affine(each, Y) for each in batches(count, seed)]
            if ordered:
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
            require_all(found, expected)

    run(main)


def test_all_actors_are_killed_at_once_and_restarted() -> None:
    async def main() -> None:
        async with ActorPool[Any, Any](Affine, actors=2, weights={"y": Y}, max_retries=2) as pool:
            before = {each.pid for each in pool.actors}
            results = pool.map_batches(batches(100))
            found = [await anext(results)]
            for pid in before:
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
            found += [each async for each in results]
            np.testing.assert_allclose(found, [affine(each, Y) for each in batches(100)], rtol=1e-5, atol=1e-5)
            assert pool.retried >= 1
            assert any(each.restarts == 1 and each.pid not in before for each in pool.actors)

    run(main)


def test_a_batch_that_kills_its_actors_is_given_up_and_named() -> None:
    async def main() -> None:
        async with ActorPool[int, int](Mortal, actors=2, arguments={"fatal": (6,)}, max_retries=1) as pool:
            found = []
            with pytest.raises(
                ActorLostError, match=r"batch 6 has no result: its actors died, 2 in a row, the last of"
            ) as raised:
                await collect(pool.map_batches(range(100)), found)
            assert found == list(range(6))
            error = raised.value
            assert (error.batch, error.attempts) == (6, 2)
            assert re.fullmatch(r"actor \d \(process \d+ on [\d.]+\)", error.actor)
            assert [each async for each in pool.map_batches(range(7, 20))] == list(range(7, 20))

    run(main)


def test_without_an_actor_left_the_batches_fail() -> None:
    async def main() -> None:
        async with ActorPool[int, int](Mortal, arguments={"fatal": (2,)}, max_restarts=0) as pool:
            with pytest.raises(ActorLostError, match=r"batch 2 has no result: all 1 actors are dead") as raised:
                async for _ in pool.map_batches(range(9)):
                    pass
            assert raised.value.batch == 2
            assert pool.actors[0].state == "dead"
            with pytest.raises(ActorLostError, match="batch 0 has no result"):
                await anext(pool.map_batches([1]))

    run(main)


def test_an_actor_that_loses_its_device_is_restarted(tmp_path: Path) -> None:
    async def main() -> None:
        async with ActorPool[int, int](LosesDevice, arguments={"mark": str(tmp_path / "lost")}) as pool:
            assert [each async for each in pool.map_batches(range(6))] == list(range(6))
            assert pool.actors[0].restarts == 1
            assert pool.retried >= 1

    run(main)


# Errors


@pytest.mark.parametrize("ordered", [True, False])
def test_the_error_of_a_model_arrives_as_itself_and_names_the_batch(ordered: bool) -> None:
    async def main() -> None:
        async with ActorPool[int, int](Faulty, actors=2) as pool:
            found = []
            with pytest.raises(ValueError, match="five is too many") as raised:
                await collect(pool.map_batches([0, 1, 5, 3, 4], ordered=ordered), found)
            assert type(raised.value) is ValueError
            assert re.fullmatch(r"when actor \d \(process \d+ on [\d.]+\) ran batch 2", raised.value.__notes__[-1])
            assert "in __call__" in str(raised.value.__cause__)
            if ordered:
                assert found == [0, 1]
            assert pool.retried == 0

    run(main)


def test_a_fault_of_a_kernel_keeps_its_fields() -> None:
    async def main() -> None:
        async with ActorPool[int, int](Faulty) as pool:
            with pytest.raises(BoundsError) as raised:
                await anext(pool.map_batches([7]))
            error = raised.value
            assert (error.kernel, error.parameter, error.index, error.length) == ("reach_too_far", "x", 1000, 8)
            assert error.file.endswith("ray_models.py")
            with pytest.raises(TypeError, match="Faulty returned a DeviceBox, which only the actor's process can use"):
                await anext(pool.map_batches([9]))

    run(main)


def test_the_error_of_a_constructor_is_raised_by_the_block() -> None:
    async def main() -> None:
        with pytest.raises(LookupError, match="no such model") as raised:
            async with ActorPool[int, int](Unmade, arguments={"reason": "no such model"}):
                pytest.fail("the block began")
        assert raised.value.__notes__ == ["when actor 0 of an oxide.ray.ActorPool made its model"]

    run(main)


@pytest.mark.parametrize("batch", ["interrupt", "exit"])
def test_what_ends_an_event_loop_is_an_error_of_its_batch(batch: str) -> None:
    async def main() -> None:
        async with ActorPool[str, str](Quits, arguments={"at_once": False}) as pool:
            with pytest.raises(RuntimeError, match=r"the model raised (KeyboardInterrupt|SystemExit)"):
                [result async for result in pool.map_batches([batch])]
            assert [result async for result in pool.map_batches(["a", "b"])] == ["a", "b"]

    run(main)


def test_a_constructor_that_exits_is_an_error_of_the_block() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"the model's constructor raised SystemExit\(3\)"):
            async with ActorPool[str, str](Quits, arguments={"at_once": True}):
                pytest.fail("the block began")

    run(main)


def test_an_error_of_the_batches_comes_after_the_results_before_it() -> None:
    def given() -> Iterator[int]:
        yield 0
        yield 1
        raise OSError("the file ends here")

    async def main() -> None:
        async with ActorPool[int, int](Faulty) as pool:
            found = []
            with pytest.raises(OSError, match="the file ends here") as raised:
                await collect(pool.map_batches(given()), found)
            assert found == [0, 1]
            assert raised.value.__notes__ == ["when map_batches read batch 2"]

    run(main)


def test_a_batch_that_cannot_be_pickled_is_named() -> None:
    async def main() -> None:
        async with ActorPool[Any, int](Faulty) as pool:
            with pytest.raises(TypeError) as raised:
                await anext(pool.map_batches([(each for each in ())]))
            assert "when batch 0 was sent to actor 0" in raised.value.__notes__[-1]

    run(main)


class Uncallable:
    pass


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"model": Faulty()}, TypeError, "takes a class, which each actor makes an object of"),
        ({"model": Uncallable}, TypeError, r"the class has no method __call__\(batch\)"),
        ({"actors": 0}, ValueError, r"ActorPool\(actors=0\): it must be an integer of 1 or more"),
        ({"in_flight": 0}, ValueError, r"in_flight=0\): it must be an integer of 1 or more"),
        ({"max_retries": -1}, ValueError, "max_retries=-1"),
        ({"max_restarts": -2}, ValueError, "max_restarts=-2"),
        ({"num_gpus": -0.5}, ValueError, "num_gpus=-0.5"),
        ({"num_gpus": 1}, ValueError, "OXIDE_DEVICE=cpu says that the CPU device is used"),
        ({"num_cpus": "2"}, ValueError, "num_cpus='2'"),
        ({"weights": [1]}, TypeError, "takes a dict of arrays by name, not list"),
        ({"weights": {"w": [1.0]}}, TypeError, "w is list, and weights are NumPy arrays"),
        ({"weights": {"w": np.array([{}])}}, TypeError, "w"),
        ({"weights": {"w": np.zeros(3)}}, TypeError, "got an unexpected keyword argument 'w'"),
        ({"model": Affine}, TypeError, "missing a required argument: 'y'.*these are none"),
        ({"arguments": 3}, TypeError, "takes a dict of arguments by name, not int"),
        ({"ray_options": {"num_gpus": 1}}, ValueError, "num_gpus is not passed to Ray"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_submitted(
    options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        ActorPool(**{"model": Faulty, **options})


def test_wrong_calls_are_refused() -> None:
    async def main() -> None:
        pool = ActorPool[int, int](Faulty)
        with pytest.raises(RuntimeError, match="the pool is not open"):
            pool.map_batches([1])
        async with pool:
            with pytest.raises(TypeError, match="takes an iterable or an async iterable, not int"):
                pool.map_batches(3)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match=r"map_batches\(window=0\)"):
                pool.map_batches([1], window=0)
        with pytest.raises(RuntimeError, match="the pool is not open"):
            pool.map_batches([1])
        with pytest.raises(RuntimeError, match="entered once"):
            async with pool:
                pass

    run(main)


def test_an_actor_gets_one_gpu_or_a_share_if_there_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OXIDE_DEVICE")
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 3.0})
    assert ray_pools._share_of_gpus(3, None) == 1
    assert ray_pools._share_of_gpus(4, None) == 1 / 2
    assert ray_pools._share_of_gpus(7, None) == 1 / 3
    assert ray_pools._share_of_gpus(3, 0) == 0
    with pytest.warns(RuntimeWarning, match="the cluster has 3 GPUs, and the pool waits for more"):
        assert ray_pools._share_of_gpus(4, 1) == 1
    monkeypatch.setenv("OXIDE_DEVICE", "cpu")
    assert ray_pools._share_of_gpus(3, None) == 0


def test_arrays_in_collections_count_as_a_batchs_bytes() -> None:
    one = np.zeros(60, np.uint8)
    assert is_large(one, 59)
    assert not is_large(one, 60)
    assert is_large((one, one), 119)
    assert is_large({"x": one, "y": 3}, 59)
    assert not is_large("a text", 1)


def test_a_source_may_refill_its_arrays() -> None:
    """Batches wait, and are sent again, after the source has written its next batch."""

    def refilled() -> Iterator[Any]:
        x = np.zeros(3)
        for number in range(8):
            x[:] = number
            yield {"x": [x, (x,)], "n": number}

    async def main() -> list[Any]:
        async with ActorPool[Any, Any](Echo, actors=1) as pool:
            return [result async for result in pool.map_batches(refilled(), window=6)]

    for number, result in enumerate(trio.run(main)):
        assert result["n"] == number
        assert (result["x"][0] == number).all()
        assert (result["x"][1][0] == number).all()


def test_a_scalar_weight_has_no_axes() -> None:
    async def main() -> Any:
        async with ActorPool[int, Any](Shape, weights={"weight": np.array(3.0)}) as pool:
            return [each async for each in pool.map_batches([0])]

    assert trio.run(main) == [()]


# Cancellation and ends


def test_a_cancelled_scope_cancels_the_tasks_in_ray() -> None:
    async def main() -> None:
        log = ray.remote(Log).remote()
        async with ActorPool[int, int](Endless, actors=2, in_flight=2, arguments={"log": log}) as pool:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    async def cancel_once_all_are_in_flight() -> None:
                        await trio.to_thread.run_sync(ray.get, log.wait.remote("begun", 4))
                        scope.cancel()

                    nursery.start_soon(cancel_once_all_are_in_flight)
                    async for _ in pool.map_batches([-1] * 10):
                        pytest.fail("an endless batch has a result")
            assert scope.cancelled_caught
            assert await trio.to_thread.run_sync(ray.get, log.wait.remote("cancelled", 4)) == 4
            # The actors are free for others.
            assert [each async for each in pool.map_batches(range(20))] == list(range(20))

    run(main)


def test_leaving_the_iterator_cancels_the_tasks() -> None:
    async def main() -> None:
        log = ray.remote(Log).remote()
        async with ActorPool[int, int](Endless, arguments={"log": log}) as pool:
            results = pool.map_batches([1, -1, -1, -1])
            assert await anext(results) == 1
            await trio.to_thread.run_sync(ray.get, log.wait.remote("begun", 2))
            await results.aclose()
            assert await trio.to_thread.run_sync(ray.get, log.wait.remote("cancelled", 2)) == 2

    run(main)


def test_leaving_the_block_ends_the_actors_processes() -> None:
    async def main() -> list[int]:
        async with ActorPool[int, int](Faulty, actors=2) as pool:
            return [os.pidfd_open(each.pid) for each in pool.actors if each.pid is not None]

    for process in run(main):
        assert select.select([process], [], [], 60)[0]  # readable once the process has ended
        os.close(process)


def test_an_error_in_the_block_ends_it_at_once() -> None:
    async def main() -> None:
        log = ray.remote(Log).remote()
        with pytest.raises(KeyError, match="mine"):
            async with ActorPool[int, int](Endless, arguments={"log": log}) as pool:
                results = pool.map_batches([1, -1, -1])
                assert await anext(results) == 1
                raise KeyError("mine")

    run(main)


def test_who_still_waits_for_a_result_at_the_end_of_the_block_is_told() -> None:
    async def main() -> None:
        log = ray.remote(Log).remote()

        async def iterate(pool: ActorPool[int, int]) -> None:
            with pytest.raises(OperationCancelledError, match="the pool's block has ended"):
                async for _ in pool.map_batches([-1]):
                    pass

        async with trio.open_nursery() as nursery, ActorPool[int, int](Endless, arguments={"log": log}) as pool:
            nursery.start_soon(iterate, pool)
            await trio.to_thread.run_sync(ray.get, log.wait.remote("begun", 1))

    run(main)


# Kernels of a script


def test_kernels_of_a_script_arrive_in_another_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    sent = subprocess.run([sys.executable, script], capture_output=True, check=True).stdout
    script.unlink()  # another machine does not have it
    program = (
        "import pickle, sys\n"
        "import numpy as np\n"
        "model = pickle.loads(sys.stdin.buffer.read())()\n"
        "print(model(np.arange(8, dtype=np.float32)).sync().tolist())\n"
        "try:\n"
        "    model.reach().sync()\n"
        "except IndexError as error:\n"
        "    print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    numbers, fault = ran.stdout.decode().splitlines()
    assert numbers == str([6.0 * number + 1 for number in range(8)])
    assert (
        f"kernel reach: x[9] is outside x, which has 8 elements; block (0, 0, 0), thread (0, 0, 0), at {script}:3"
        in fault
    )


SCRIPT = """
from __future__ import annotations

import sys

import numpy as np

import oxide
from oxide import DisjointSlice, Slice, d2h, device, f32, h2d, kernel, thread, tile, zeros

FACTOR = 3.0


@device
def twice(x: f32) -> f32:
    return x + x


@kernel(block=64)
def scale(x: Slice[f32], out: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        element.value = twice(x[index.get()]) * FACTOR


@kernel(block=1)
def reach(x: Slice[f32], out: DisjointSlice[f32]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = x[9]


@tile.kernel
def add_one(out: tile.Partition[f32, 1], x: tile.Tensor[f32, 1]):
    out.store(tile.load_like(x, out) + 1.0)


class Model:
    def __call__(self, batch):
        scaled = scale(h2d(batch), zeros(batch.shape)).last()
        return add_one(zeros(batch.shape).partition((4,)), scaled).first().unpartition().and_then(d2h)

    def reach(self):
        return reach(h2d(np.zeros(8, np.float32)), zeros(1)).last()


oxide.ray
import ray.cloudpickle

sys.stdout.buffer.write(ray.cloudpickle.dumps(Model))
"""


# The book


@pytest.mark.parametrize("number", [0, 1])
def test_a_program_of_the_book_runs(number: int, tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "ray.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^``` \{ \.python \.ray \}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    if number:
        pytest.importorskip(
            "ray.data", reason="Ray Data is not installed: pip install 'ray[data]'", exc_type=ImportError
        )
    script = tmp_path / "program.py"
    script.write_text(blocks[number], encoding="utf-8")
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=110, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith(["100 results\n", "3.333e+11\n"][number])
