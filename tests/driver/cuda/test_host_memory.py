"""Large page-locked memory, with the driver's two calls answered by the test: what is mapped, given back, and when."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings")
from cuda.bindings import driver as cuda

from oxide.driver.cuda import memory_blocks
from oxide.driver.cuda.memory_blocks import RegisteredMemory
from oxide.errors import DriverError

MIB = 1 << 20
OK = (cuda.CUresult.CUDA_SUCCESS,)
REFUSED = (cuda.CUresult.CUDA_ERROR_NOT_SUPPORTED,)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """What the driver was told to lock, by address."""
    found: dict[int, int] = {}

    def register(address: int, nbytes: int, flags: int) -> tuple[cuda.CUresult]:
        assert flags == cuda.CU_MEMHOSTREGISTER_PORTABLE | cuda.CU_MEMHOSTREGISTER_DEVICEMAP
        found[address] = nbytes
        return OK

    def unregister(address: int) -> tuple[cuda.CUresult]:
        del found[address]
        return OK

    monkeypatch.setattr(memory_blocks.driver, "cuMemHostRegister", register)
    monkeypatch.setattr(memory_blocks.driver, "cuMemHostUnregister", unregister)
    return found


def resident() -> int:
    """Pages of this process that are in memory, in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def test_the_pages_are_there_before_the_driver_locks_them(
    registered: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, before = RegisteredMemory(), resident()
    at_registering: list[int] = []
    inner = memory_blocks.driver.cuMemHostRegister

    def register(address: int, nbytes: int, flags: int) -> object:
        at_registering.append(resident())
        return inner(address, nbytes, flags)

    monkeypatch.setattr(memory_blocks.driver, "cuMemHostRegister", register)
    address = memory.allocate(32 * MIB + 4096)
    assert address is not None
    assert at_registering[0] - before > 30 * MIB
    assert registered == {address: 32 * MIB + 4096}
    assert ctypes.string_at(address + 32 * MIB, 4096) == bytes(4096)
    ctypes.memset(address, 1, 32 * MIB)
    assert memory.free(address)
    assert registered == {}
    assert resident() - before < 8 * MIB


def test_memory_of_another_kind_is_left_alone(registered: dict[int, int]) -> None:
    assert not RegisteredMemory().free(4096)


def test_where_the_driver_locks_no_such_pages_none_are_kept(
    registered: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_blocks.driver, "cuMemHostRegister", lambda *_: REFUSED)
    before = resident()
    assert RegisteredMemory().allocate(32 * MIB) is None
    assert resident() - before < 8 * MIB


def test_pages_that_the_driver_does_not_let_go_stay_mapped(
    registered: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = RegisteredMemory()
    address = memory.allocate(4 * MIB)
    assert address is not None
    with monkeypatch.context() as refusing:
        refusing.setattr("oxide.driver.cuda.errors._text", lambda code: "no")
        refusing.setattr(memory_blocks.driver, "cuMemHostUnregister", lambda _: REFUSED)
        with pytest.raises(DriverError, match="cuMemHostUnregister"):
            memory.free(address)
    ctypes.memset(address, 1, 4 * MIB)
    assert memory.free(address)
