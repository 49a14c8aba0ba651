"""``copy``, ``deepcopy`` and ``pickle`` of what users hold: a right copy, or a ``TypeError`` that says what to do."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import Arc, collectives, f32, h2d, i32, serving, thread, value, zeros
from oxide.interop import foreign

WAYS = [copy.copy, copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))]
IDS = ["copy", "deepcopy", "pickle"]


@oxide.kernel(block=32)
def double(x: oxide.Slice[f32], y: oxide.DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        element.value = x[i.get()] * f32(2.0)


def box() -> oxide.DeviceBox:
    return h2d(np.ones(4, np.float32)).sync()


def run_once(operation: Any) -> Any:
    operation.sync()
    return operation


def failed(operation: Any) -> Any:
    with pytest.raises(ZeroDivisionError):
        operation.sync()
    return operation


OPERATIONS: dict[str, Callable[[], Any]] = {
    "value": lambda: value(5),
    "upload": lambda: h2d(np.arange(3.0)),
    "download": lambda: oxide.d2h(box()),
    "zeros": lambda: zeros(3),
    "arange": lambda: oxide.arange(3),
    "launch": lambda: double(box(), zeros(4)),
    "map": lambda: value(1).map(abs),
    "and_then": lambda: value(1).and_then(value),
    "zip": lambda: oxide.zip(value(1), value(2)),
    "unzip": lambda: oxide.zip(h2d(np.zeros(2)), value(1)).unzip()[1],
    "shared": lambda: h2d(np.arange(3.0)).shared(),
    "shared that ran": lambda: run_once(value(5).shared()),
    "shared that failed": lambda: failed(value(0).map(lambda x: 1 // x).shared()),
    "with_context": lambda: oxide.with_context(lambda context: value(1)),
    "on a device": lambda: value(1).on(0),
    "input": lambda: oxide.input(3, f32),
    "cond": lambda: oxide.cond(oxide.full((), 1, i32), zeros(1), zeros(1)),
    "planned": lambda: oxide.planned(zeros(1)),
    "fused": lambda: zeros(1).fused(),
    "partition": lambda: zeros(4).partition(2),
    "launch of a graph": lambda: double(box(), zeros(4)).graph().launch(),
}


@pytest.mark.parametrize("way", WAYS, ids=IDS)
@pytest.mark.parametrize("kind", OPERATIONS)
def test_an_operation_refuses_to_be_copied_and_is_as_it_was(kind: str, way: Callable[[Any], Any]) -> None:
    """A copy would share a part of its state: the second of a ``shared`` and its copy found no result."""
    operation = OPERATIONS[kind]()
    with pytest.raises(TypeError, match=r"cannot be pickled or copied: it may be run again, and shared\(\)"):
        way(operation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operations that are not run here
        if kind == "shared that failed":
            failed(operation)
        elif kind not in ("input", "partition"):
            operation.sync()
        del operation


def consumed(future: Any) -> Any:
    future.consume()  # so that its drop does not warn
    return future


async def in_a_loop() -> dict[str, Any]:
    """Makes what only an event loop has."""
    async with trio.open_nursery() as nursery:
        handle = oxide.spawn(nursery, value(3))
        assert await handle == 3
    async with serving.Batcher(value, max_batch=2) as batcher:
        assert await batcher(1) == 1
    return {"JoinHandle": handle, "Batcher": batcher}


def context_of_a_run() -> oxide.ExecutionContext:
    found: list[oxide.ExecutionContext] = []
    oxide.with_context(lambda context: value(found.append(context))).sync()
    return found[0]


@pytest.fixture(autouse=True)
def a_group_can_be_made(device: str) -> None:
    if device == "cuda" and find_spec("nccl") is None:
        pytest.skip("a group of GPUs needs NCCL")


def holders(folder: Path) -> dict[str, Any]:
    """An object of every public class that stands for something of this process."""
    device = oxide.devices()[0]
    stream = device.new_stream()
    graph = double(box(), zeros(4)).graph()
    return {
        "Arc": Arc(box()),
        "CudaGraph": graph,
        "GraphInstances": oxide.planned(zeros(2)).graph().instances(2),
        "GraphScope": oxide.CudaGraph.scope(stream),
        "Device": device,
        "DeviceBox": box(),
        "DeviceFuture": consumed(value(1).into_future()),
        "DevicePointer": oxide.with_context(lambda context: value(context.malloc_async(16))).sync(),
        "Event": stream.record_event(),
        "ExecutionContext": context_of_a_run(),
        "ForeignModule": foreign.ForeignModule(b"", "ptx", {}),
        "Group": collectives.local_group([0]),
        "Stream": stream,
        "Trace": oxide.trace(folder / "trace.json"),
        "Buckets": serving.Buckets(len, lambda key: None),  # type: ignore[arg-type, return-value]
        **trio.run(in_a_loop),
    }


@pytest.mark.parametrize("way", WAYS, ids=IDS)
def test_what_stands_for_something_of_the_process_refuses_and_says_what_to_do(
    way: Callable[[Any], Any], tmp_path: Path
) -> None:
    for name, thing in holders(tmp_path).items():
        with pytest.raises(TypeError, match=rf"{name} cannot be pickled or copied"):
            way(thing)


def test_an_arc_that_refused_counts_its_owners_as_before() -> None:
    first = Arc(box())
    for way in WAYS:
        with pytest.raises(TypeError, match=r"clone\(\) makes another owner"):
            way(first)
    second = first.clone()
    assert Arc.strong_count(first) == Arc.strong_count(second) == 2


VALUES: dict[str, Callable[[], Any]] = {
    "LaunchConfig": lambda: oxide.LaunchConfig(grid=2, block=32),
    "Kernel": lambda: double,
    "RowMajorTiles": lambda: oxide.RowMajorTiles(2, 4),
    "Statistics": oxide.statistics,
    "BatcherStatistics": lambda: serving.BatcherStatistics(*range(len(serving.BatcherStatistics._fields))),
    "ScalarType": lambda: f32,
    "Slice": lambda: oxide.Slice[f32],
}


@pytest.mark.parametrize("way", WAYS, ids=IDS)
@pytest.mark.parametrize("kind", VALUES)
def test_a_value_is_copied(kind: str, way: Callable[[Any], Any]) -> None:
    thing = VALUES[kind]()
    assert way(thing) == thing


def test_a_copy_of_a_policy_shares_its_streams_or_is_refused() -> None:
    for policy in (oxide.StreamPoolRoundRobin(2), oxide.SingleStream()):
        device = oxide.devices()[0]
        streams = {policy.next_stream(device) for _ in range(2)}
        same = copy.copy(policy)
        assert {same.next_stream(device) for _ in range(2)} == streams
        for way in WAYS[1:]:
            with pytest.raises(TypeError):
                way(policy)


def test_every_public_class_is_one_of_these(tmp_path: Path) -> None:
    known = {*holders(tmp_path), *VALUES, "StreamPoolRoundRobin", "SingleStream", "DeviceOperation", "KernelLaunch"}
    known |= {"In", "InOut", "Out", "Profile", "KernelResources", "StreamStatistics", "Tiles", "SchedulingPolicy"}
    known |= {"Bucket", "BatchReport"}  # named values, and what holds nothing of the process
    modules = (oxide, serving, collectives)
    public = {name: getattr(module, name) for module in modules for name in module.__all__}
    left = {
        name
        for name, found in public.items()
        if inspect.isclass(found)
        and not issubclass(found, BaseException)
        and not found.__module__.startswith("oxide.language")  # of kernels: the host has no objects of them
    }
    assert left <= known, left - known
