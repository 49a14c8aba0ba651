"""``Driver.report``: a claimed record goes to where the cursor points, and the cursor goes on. On both devices."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator

import pytest

from oxide.driver.base import Driver
from oxide.driver.cpu import CpuDriver
from oxide.errors import DriverError

NBYTES = 64
CLAIMED = struct.pack("@IIQ", 1, 7, 2**63 + 5) + bytes(range(48))
UNCLAIMED = struct.pack("@IIQ", 0, 7, 9) + bytes(range(48))  # only the first word says whether it is one


@pytest.fixture
def driver(device: str) -> Iterator[Driver]:
    if device == "cuda":
        from oxide.driver.cuda.driver import CudaDriver

        driver: Driver = CudaDriver()
    else:
        driver = CpuDriver(threads=2)
    yield driver
    driver.close()


class Reporting:
    """A record with its cursor behind it in device memory, as graphs have them, and a page of records on the host."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.stream = driver.create_stream(0)
        self.record = driver.allocate(NBYTES + 8, self.stream)
        self.cursor = self.record + NBYTES
        self.page = driver.allocate_host(4 * NBYTES)
        self.staging = driver.allocate_host(NBYTES)
        ctypes.memset(self.page, 0xEE, 4 * NBYTES)
        self.point_at(self.page)

    def point_at(self, address: int) -> None:
        self.driver.fill(self.cursor, struct.pack("@Q", address), 1, self.stream)

    def write(self, record: bytes) -> None:
        ctypes.memmove(self.staging, record, NBYTES)
        self.driver.copy_to_device(self.record, self.staging, NBYTES, self.stream)
        self.driver.synchronize_stream(self.stream)

    def report(self) -> None:
        self.driver.report(self.record, self.cursor, NBYTES, self.stream)

    def read(self, address: int, nbytes: int) -> bytes:
        self.driver.copy_to_host(self.staging, address, nbytes, self.stream)
        self.driver.synchronize_stream(self.stream)
        return ctypes.string_at(self.staging, nbytes)

    def pointed_at(self) -> int:
        return int.from_bytes(self.read(self.cursor, 8), "little") - self.page

    def reported(self) -> list[bytes]:
        self.driver.synchronize_stream(self.stream)
        return [ctypes.string_at(self.page + NBYTES * number, NBYTES) for number in range(4)]


UNTOUCHED = b"\xee" * NBYTES


def test_a_claimed_record_goes_to_where_the_cursor_points_and_is_zero_afterwards(driver: Driver) -> None:
    one = Reporting(driver)
    one.write(CLAIMED)
    one.report()
    assert one.reported() == [CLAIMED, UNTOUCHED, UNTOUCHED, UNTOUCHED]
    assert one.read(one.record, NBYTES) == bytes(NBYTES)
    assert one.pointed_at() == NBYTES


def test_a_record_that_nobody_claimed_stays_and_the_cursor_goes_on(driver: Driver) -> None:
    one = Reporting(driver)
    one.write(UNCLAIMED)
    one.report()
    assert one.reported() == [UNTOUCHED] * 4
    assert one.read(one.record, NBYTES) == UNCLAIMED
    assert one.pointed_at() == NBYTES


def test_a_captured_report_reports_at_each_launch_into_the_next_place(driver: Driver) -> None:
    one = Reporting(driver)
    driver.begin_capture(one.stream)
    one.report()
    graph = driver.end_capture(one.stream)
    assert one.pointed_at() == 0
    other = CLAIMED[:48] + b"another record.."
    for record in (CLAIMED, bytes(NBYTES), other):
        one.write(record)
        driver.launch_graph(graph, one.stream)
    assert one.reported() == [CLAIMED, UNTOUCHED, other, UNTOUCHED]
    one.point_at(one.page + NBYTES)
    one.write(other)
    driver.launch_graph(graph, one.stream)
    assert one.reported() == [CLAIMED, other, other, UNTOUCHED]
    driver.synchronize_stream(one.stream)
    driver.destroy_graph(graph)


cpu_only = pytest.mark.skipif(os.environ.get("OXIDE_DEVICE") == "cuda", reason="a GPU is not told in time")


@cpu_only
def test_wrong_addresses_are_refused_at_submission() -> None:
    one = Reporting(CpuDriver(step=True))
    for record, cursor, nbytes, message in (
        (one.record, one.cursor, 12, "a report of 12 bytes .* multiples of 8"),
        (one.record + 4, one.cursor, 8, "multiples of 8"),
        (one.record, one.cursor + 4, 8, "multiples of 8"),
        (one.record, one.cursor, NBYTES + 16, "the record of a report, .* does not lie in one live allocation"),
        (one.record, one.cursor + 8, NBYTES, "the cursor of a report, .* does not lie in one live allocation"),
        (one.page, one.cursor, NBYTES, "the record of a report,"),
    ):
        with pytest.raises(DriverError, match=message):
            one.driver.report(record, cursor, nbytes, one.stream)


@cpu_only
def test_a_cursor_that_points_nowhere_ends_the_device_if_there_is_something_to_report() -> None:
    one = Reporting(CpuDriver(step=True))
    one.point_at(one.page + 4 * NBYTES)
    one.write(UNCLAIMED)
    one.report()
    one.driver.synchronize_stream(one.stream)
    one.write(CLAIMED)
    one.report()
    with pytest.raises(DriverError) as caught:
        one.driver.synchronize_stream(one.stream)
    told = f"{caught.value}, {caught.value.__cause__}"
    assert "the destination of a report" in told
    assert "pinned host memory" in told


@cpu_only
def test_the_sanitizer_knows_what_a_report_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    from oxide.driver.sanitizing import Tracking

    monkeypatch.setattr(Tracking, "wanted", True)
    driver = CpuDriver(step=True)
    stream = driver.create_stream(0)
    memory, page = driver.allocate(NBYTES + 16, stream), driver.allocate_host(NBYTES)
    ctypes.memmove(memory, CLAIMED + struct.pack("@Q", page), NBYTES + 8)
    driver.report(memory, memory + NBYTES, NBYTES, stream)
    driver.synchronize_stream(stream)
    found = driver._heaps[0].tracked(memory, NBYTES + 16)
    assert found is not None
    assert bytes(found[1]) == b"\1" * (NBYTES + 8) + bytes(8)
