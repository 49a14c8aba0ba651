"""What the CUDA driver asks of ``cuda.bindings`` for graphs and peer access, without a GPU: the calls are recorded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from oxide.driver.cuda import contexts
from oxide.driver.cuda import graph as cuda_graph
from oxide.driver.cuda.contexts import open_peer_access
from oxide.driver.cuda.graph import abandon_capture, instantiate
from oxide.errors import DriverError

codes = contexts.driver.CUresult
STREAM: Any = SimpleNamespace(device=3, handle="stream")
OWNER: Any = SimpleNamespace(handle="owner's context", pool="owner's pool")


class Calls:
    """Stands for the driver's functions: notes the calls, answers success or what the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: Any) -> None:
        self.made: list[tuple[Any, ...]] = []
        for name, answer in answers.items():
            monkeypatch.setattr(cuda_graph.driver, name, self._function(name, answer))

    def _function(self, name: str, answer: Any) -> Any:
        def function(*arguments: Any) -> Any:
            self.made.append((name, *arguments))
            return answer

        return function


EXECUTABLE = 0x5EED  # a handle of the driver's is a number
OK = (codes.CUDA_SUCCESS,)
REFUSED = (codes.CUDA_ERROR_INVALID_VALUE,)


def graph_calls(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> Calls:
    defaults = {
        "cuGraphInstantiate": (codes.CUDA_SUCCESS, EXECUTABLE),
        "cuGraphDestroy": OK,
        "cuGraphUpload": OK,
        "cuGraphExecDestroy": OK,
    }
    return Calls(monkeypatch, **{**defaults, **answers})


def test_a_captured_graph_is_instantiated_uploaded_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = graph_calls(monkeypatch)
    graph = instantiate("graph", STREAM)
    assert (graph.device, graph.handle, graph.address) == (3, EXECUTABLE, EXECUTABLE)
    assert calls.made == [
        ("cuGraphInstantiate", "graph", 0),
        ("cuGraphDestroy", "graph"),
        ("cuGraphUpload", EXECUTABLE, "stream"),
    ]


def test_a_graph_that_cannot_be_instantiated_or_uploaded_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oxide.driver.cuda.errors._text", lambda code: "no")
    calls = graph_calls(monkeypatch, cuGraphInstantiate=(codes.CUDA_ERROR_INVALID_VALUE, None))
    with pytest.raises(DriverError, match="cuGraphInstantiate"):
        instantiate("graph", STREAM)
    assert ("cuGraphDestroy", "graph") in calls.made
    calls = graph_calls(monkeypatch, cuGraphUpload=REFUSED)
    with pytest.raises(DriverError, match="cuGraphUpload"):
        instantiate("graph", STREAM)
    assert calls.made[-1] == ("cuGraphExecDestroy", EXECUTABLE)
    calls = graph_calls(monkeypatch)
    abandon_capture(None)
    assert calls.made == []
    abandon_capture(7)
    assert calls.made == [("cuGraphDestroy", 7)]


def peer_calls(monkeypatch: pytest.MonkeyPatch, can: int, enable: Any = OK) -> Calls:
    return Calls(
        monkeypatch,
        cuDeviceCanAccessPeer=(codes.CUDA_SUCCESS, can),
        cuCtxEnablePeerAccess=enable,
        cuMemPoolSetAccess=OK,
    )


@pytest.mark.parametrize("enable", [OK, (codes.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,)])
def test_peer_access_is_granted_for_the_context_and_for_the_pool(monkeypatch: pytest.MonkeyPatch, enable: Any) -> None:
    calls = peer_calls(monkeypatch, 1, enable)
    assert open_peer_access(1, 0, OWNER)
    assert calls.made[:2] == [("cuDeviceCanAccessPeer", 1, 0), ("cuCtxEnablePeerAccess", "owner's context", 0)]
    name, pool, (access,), count = calls.made[2]
    assert (name, pool, count) == ("cuMemPoolSetAccess", "owner's pool", 1)
    assert access.location.id == 1
    assert access.location.type == contexts.driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    assert access.flags == contexts.driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


def test_devices_that_cannot_reach_each_other_are_left_to_staging(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = peer_calls(monkeypatch, 0)
    assert not open_peer_access(1, 0, OWNER)
    assert calls.made == [("cuDeviceCanAccessPeer", 1, 0)]
    calls = peer_calls(monkeypatch, 1, (codes.CUDA_ERROR_TOO_MANY_PEERS,))
    assert not open_peer_access(1, 0, OWNER)
    assert [call[0] for call in calls.made] == ["cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess"]


def test_any_other_refusal_of_access_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oxide.driver.cuda.errors._text", lambda code: "no")
    peer_calls(monkeypatch, 1, (codes.CUDA_ERROR_INVALID_CONTEXT,))
    with pytest.raises(DriverError, match=r"cuCtxEnablePeerAccess\(cuda:1 to cuda:0\)"):
        open_peer_access(1, 0, OWNER)
