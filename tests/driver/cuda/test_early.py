"""Opening a GPU's context beside the imports: what is called, in which order, and that no failure gets out."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from oxide.driver.cuda import probe as cuda_probe


class Library:
    """A libcuda whose calls are recorded, and of which one may fail or wait."""

    def __init__(self, failing: str | None = None, gate: threading.Event | None = None) -> None:
        self.failing, self.gate = failing, gate
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if self.gate is not None:
                self.gate.wait()
            numbers = [getattr(argument, "value", argument) for argument in arguments]
            self.calls.append((name, *(number for number in numbers if isinstance(number, int))))
            return 100 if name == self.failing else 0

        return call


def started(monkeypatch: pytest.MonkeyPatch, library: Library, device: int) -> threading.Thread:
    monkeypatch.setattr(cuda_probe, "libcuda", lambda: library)
    thread = cuda_probe.start_early(device)
    assert thread is not None
    return thread


def test_the_context_of_the_device_that_is_asked_for_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    started(monkeypatch, library, 3).join()
    assert library.calls == [("cuInit", 0), ("cuDeviceGet", 3), ("cuDevicePrimaryCtxRetain", 0)]


def test_nobody_waits_for_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    library = Library(gate=gate)
    thread = started(monkeypatch, library, 0)
    assert thread.is_alive()
    assert not thread.daemon  # the end of the process does: ending while the driver starts is a crash
    assert library.calls == []
    gate.set()
    thread.join()


@pytest.mark.parametrize("failing", ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"])
def test_after_a_failure_nothing_more_is_asked(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    library = Library(failing)
    started(monkeypatch, library, 0).join()
    assert library.calls[-1][0] == failing


def test_without_the_drivers_library_nothing_is_started_or_imported() -> None:
    program = (
        "import sys, threading\n"
        "from oxide.driver.cuda import probe as cuda_probe\n"
        "cuda_probe.LIBRARY = 'libcuda-that-nobody-has.so.1'\n"
        "assert cuda_probe.start_early(0) is None\n"
        "assert threading.active_count() == 1\n"
        "print([name for name in sys.modules if name == 'cuda' or name.startswith('cuda.')])\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_process_without_room_for_a_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    library = Library()
    monkeypatch.setattr(cuda_probe, "libcuda", lambda: library)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert cuda_probe.start_early(0) is None
    assert library.calls == []
