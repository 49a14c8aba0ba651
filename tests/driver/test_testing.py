"""The drivers that oxide.testing gives to tests."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import cast

import numpy as np
import pytest

import oxide
from oxide import d2h, zeros
from oxide.driver.base import CAPABILITIES, Driver
from oxide.driver.cpu import CpuDriver
from oxide.errors import DeviceError, DeviceLostError, OutOfMemoryError
from oxide.testing import SUBMISSIONS, DelegatingDriver, FailingDriver, RecordingDriver, step_driver, use_driver


@pytest.fixture
def recording() -> Iterator[RecordingDriver]:
    driver = RecordingDriver(step_driver(2))
    yield driver
    driver.inner.close()


def test_every_method_of_the_protocol_is_delegated_with_its_signature() -> None:
    protocol = {
        name: value
        for part in (Driver, *CAPABILITIES.values())
        for name, value in vars(part).items()
        if inspect.isfunction(value) and name[0] != "_"
    }
    assert len(protocol) > 20
    assert protocol.keys() >= SUBMISSIONS
    for wrapper in (DelegatingDriver, CpuDriver):
        for name, method in protocol.items():
            expected, found = inspect.signature(method), inspect.signature(getattr(wrapper, name))
            assert list(found.parameters.values()) == [
                parameter.replace(annotation=found.parameters[parameter.name].annotation)
                for parameter in expected.parameters.values()
            ]
    for name in protocol:
        assert hasattr(DelegatingDriver, "__getattr__")
        assert name in vars(DelegatingDriver)
    as_protocol: Driver = DelegatingDriver(step_driver())
    assert as_protocol.name == "cpu"


def test_calls_are_recorded_with_arguments_results_and_exceptions(recording: RecordingDriver) -> None:
    stream = recording.create_stream(1)
    address = recording.allocate(64, stream)
    recording.fill(address, b"\0", 64, stream)
    with pytest.raises(Exception, match="not a live allocation"):
        recording.free(1, stream)
    assert [(call.method, call.arguments, call.result) for call in recording.calls] == [
        ("create_stream", (1, "normal"), stream),
        ("allocate", (64, stream), address),
        ("fill", (address, b"\0", 64, stream), None),
        ("free", (1, stream), None),
    ]
    assert "not a live allocation" in str(recording.calls[-1].exception)
    assert [call.method for call in recording.submissions] == ["allocate", "fill", "free"]
    assert (recording.count("fill"), recording.count("launch")) == (1, 0)
    recording.clear()
    assert recording.calls == []


def test_a_method_that_the_protocol_has_not_is_an_error_and_not_a_count_of_0(recording: RecordingDriver) -> None:
    with pytest.raises(ValueError, match="'lanch' is no method of the Driver protocol"):
        recording.count("lanch")
    with pytest.raises(ValueError, match="'lanch'"):
        FailingDriver(recording).fail("lanch", ValueError())


def test_what_is_outstanding_is_what_was_created_and_not_given_back(recording: RecordingDriver) -> None:
    stream, event = recording.create_stream(0), recording.create_event(0, timing=False)
    address, host = recording.allocate(64, stream), recording.allocate_host(64)
    recording.allocate_host(64)
    recording.begin_capture(stream)
    graph = recording.end_capture(stream)
    assert recording.outstanding() == {"streams": 1, "events": 1, "allocations": 1, "host_allocations": 2, "graphs": 1}
    with pytest.raises(Exception, match="not a live allocation"):
        recording.free(1, stream)
    recording.free(address, stream)
    recording.free_host(host)
    recording.destroy_graph(graph)
    recording.destroy_event(event)
    recording.destroy_stream(stream)
    recording.clear()
    assert recording.outstanding() == {"streams": 0, "events": 0, "allocations": 0, "host_allocations": 1, "graphs": 0}


def test_what_is_not_in_the_protocol_passes_through(recording: RecordingDriver) -> None:
    ran: list[int] = []
    recording.launch_host_function(partial(ran.append, 1), recording.create_stream(0))
    assert FailingDriver(recording).step()
    assert ran == [1]
    with pytest.raises(AttributeError):
        recording.no_such_thing  # noqa: B018


def test_calls_of_many_threads_are_all_recorded(recording: RecordingDriver) -> None:
    def allocate_and_free() -> None:
        for _ in range(200):
            recording.free_host(recording.allocate_host(8))

    threads = [threading.Thread(target=allocate_and_free) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recording.count("allocate_host") == recording.count("free_host") == 800
    assert recording.outstanding()["host_allocations"] == 0


def test_the_call_asked_for_fails_once_and_never_reaches_the_driver(recording: RecordingDriver) -> None:
    driver = FailingDriver(recording)
    stream = driver.create_stream(0)
    driver.fail("allocate", OutOfMemoryError("full"), at=2)
    driver.allocate(16, stream)
    driver.query_stream(stream)
    with pytest.raises(OutOfMemoryError, match="full"):
        driver.allocate(16, stream)
    driver.allocate(16, stream)
    assert recording.count("allocate") == 2


def test_the_nth_call_of_any_kind_fails(recording: RecordingDriver) -> None:
    driver = FailingDriver(recording)
    driver.fail_call(3, DeviceLostError("gone"))
    stream = driver.create_stream(0)
    driver.query_stream(stream)
    with pytest.raises(DeviceLostError):
        driver.synchronize_stream(stream)
    driver.synchronize_stream(stream)
    assert recording.count("synchronize_stream") == 1
    with pytest.raises(ValueError, match="counted from 1"):
        driver.fail_call(0, DeviceLostError("gone"))


def test_the_runtime_uses_the_driver_inside_the_with_and_goes_back_after_it(recording: RecordingDriver) -> None:
    from oxide.runtime.devices import runtime as context

    with use_driver(CpuDriver()) as outer:
        with use_driver(recording, default_device=1) as driver:
            assert driver is recording
            assert context.current_runtime().driver is recording
            assert context.current_runtime().default_device.id == 1
        assert context.current_runtime().driver is outer
    assert set(recording.outstanding().values()) == {0}
    outer.close()


def test_importing_oxide_loads_no_testing() -> None:
    subprocess.run([sys.executable, "-c", "import oxide, sys; assert 'oxide.testing' not in sys.modules"], check=True)


@pytest.mark.parametrize("taker", [use_driver, RecordingDriver, FailingDriver, DelegatingDriver])
def test_what_is_no_driver_is_refused(taker: Callable[[object], object]) -> None:
    def take(thing: object) -> None:
        taken = taker(thing)
        if taker is use_driver:
            with cast("AbstractContextManager[object]", taken):
                pass

    name = taker.__name__
    with pytest.raises(TypeError, match=rf"{name} takes a driver, as step_driver\(\) makes one, not NoneType None"):
        take(None)
    with pytest.raises(TypeError, match=rf"{name} takes a driver, not the class CpuDriver; make one, as CpuDriver\("):
        take(CpuDriver)


class Plain(DelegatingDriver):
    """A driver that has the core of the protocol alone."""

    graphs = peers = runs = sharing = sanitizer = timing = None


def test_a_wrapper_has_the_capabilities_of_its_driver() -> None:
    for capable in (step_driver(), RecordingDriver(step_driver())):
        wrapper = FailingDriver(capable)
        assert all(getattr(wrapper, name) is wrapper for name in CAPABILITIES)
    plain = RecordingDriver(Plain(step_driver()))
    assert all(getattr(plain, name) is None for name in CAPABILITIES)


def test_without_capabilities_operations_run_and_what_needs_one_is_refused() -> None:
    with use_driver(Plain(step_driver())):
        operation = zeros(4).and_then(d2h)
        np.testing.assert_array_equal(operation.sync(), np.zeros(4))
        with pytest.raises(DeviceError, match="needs graphs, which the device's driver does not have"):
            zeros(4).graph()
        first, second = (oxide.devices()[0].new_stream().record_event() for _ in range(2))
        with pytest.raises(DeviceError, match="needs timing"):
            first.elapsed_ms(second)
