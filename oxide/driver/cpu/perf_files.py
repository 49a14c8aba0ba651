"""Names the CPU device's code for Linux's perf, in one of perf's two formats for code that no file contains.

``OXIDE_PERF=map`` writes ``/tmp/perf-PID.map``, with a line of address, size and name for each function. perf reads the
file without further steps, and shows kernels by name.

``OXIDE_PERF=jitdump`` writes ``jit-PID.dump`` to the folder in ``JITDUMPDIR``, or else to the system's folder for
temporary files. The file has the code itself and its lines. ``perf inject --jit`` makes object files from it, from
which perf shows lines and assembly. perf finds the file because this process maps it as executable.

Neither file is removed when the process ends, because perf reads it later. The code that the files name stays mapped
until the process ends: perf could not tell it from code that is loaded later to the same addresses.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable
from typing import Any, BinaryIO, final

from oxide.driver.cpu import line_programs
from oxide.driver.object import MappedFunction, MappedObject
from oxide.driver.tools import perf_format
from oxide.locks import new_lock, unheld

__all__ = ["announce"]

_lock = new_lock()
_kept: list[Any] = []
_failed: set[str] = set()


def announce(loaded: MappedObject, memory: Any) -> None:
    """Writes the names of a loaded object's functions to the file that ``OXIDE_PERF`` requests, and keeps the object's
    memory mapped. If that fails, warns with a ``RuntimeWarning``, once for each kind of file."""
    kind = perf_format()
    if kind is None:
        return
    with unheld(_lock):
        _kept.append(memory)
        if kind in _failed:
            return
        try:
            if kind == "map":
                _add_to_map(loaded)
            else:
                JitDump.of_process().add(loaded)
        except (OSError, ValueError) as error:
            _failed.add(kind)
            warnings.warn(f"oxide: OXIDE_PERF={kind}: {error}; perf gets no names", RuntimeWarning, stacklevel=2)


def name_of(loaded: MappedObject, function: MappedFunction) -> str:
    """Returns the name of a function: its kernel's name, followed by the symbol unless the function is the kernel's
    entry. The name begins with the word "kernel", because perf skips lines of a map with names of one or two letters.
    Returns the symbol alone if the object does not name a kernel."""
    if not loaded.file:
        return function.symbol
    kernel = f"kernel {loaded.file}"
    return kernel if function.symbol.startswith("oxide_run_") else f"{kernel} [{function.symbol}]"


def _add_to_map(loaded: MappedObject) -> None:
    lines = [f"{each.address:x} {each.size:x} {name_of(loaded, each)}\n" for each in loaded.functions]
    # perf looks in this folder only. A symbolic link of that name, perhaps by another user, is not followed.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(f"/tmp/perf-{os.getpid()}.map", flags, 0o600), "a", encoding="utf-8") as file:
        file.writelines(lines)


_MAGIC, _VERSION = 0x4A695444, 1
_HEADER = struct.Struct("<IIIIIIQQ")
_PREFIX = struct.Struct("<IIQ")
_LOAD = struct.Struct("<IIQQQQ")
_LINES = struct.Struct("<QQ")
_LINE = struct.Struct("<QII")
_CODE_LOAD, _CODE_DEBUG_INFO = 0, 2
_MACHINES = {"x86_64": 62, "aarch64": 183}


@final
class JitDump:
    """A file in perf's jitdump format. Times are of ``CLOCK_MONOTONIC``, as in ``perf record -k mono``."""

    _current: JitDump | None = None

    def __init__(self, folder: str) -> None:
        self.process = os.getpid()
        self.path = os.path.join(folder, f"jit-{self.process}.dump")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file: BinaryIO = open(os.open(self.path, flags, 0o600), "w+b")  # noqa: SIM115 - open as long as the process
        self._count = 0
        machine = _MACHINES.get(platform.machine(), 0)
        self._file.write(_HEADER.pack(_MAGIC, _VERSION, _HEADER.size, machine, 0, self.process, _now(), 0))
        self._file.flush()
        # perf records this mapping, and so learns the file's path.
        self._mark = mmap.mmap(self._file.fileno(), _HEADER.size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)

    @classmethod
    def of_process(cls) -> JitDump:
        """Returns the file of this process, which the first call creates. A child after ``os.fork`` gets another file,
        with the code that it loads itself."""
        if cls._current is None or cls._current.process != os.getpid():
            cls._current = cls(os.environ.get("JITDUMPDIR") or tempfile.gettempdir())
        return cls._current

    def add(self, loaded: MappedObject) -> None:
        """Adds the functions of an object, each with its lines, name and code."""
        table = list(line_programs.rows(loaded.line_table))
        for function in loaded.functions:
            lines = list(_lines_of(function, table))
            if lines:
                body = b"".join(
                    _LINE.pack(row.address, row.line, 0) + row.file.encode("utf-8", "replace") + b"\0" for row in lines
                )
                self._record(_CODE_DEBUG_INFO, _LINES.pack(function.address, len(lines)) + body)
            code = ctypes.string_at(function.address, function.size)
            place = _LOAD.pack(
                self.process, threading.get_native_id(), function.address, function.address, function.size, self._count
            )
            self._record(_CODE_LOAD, place + name_of(loaded, function).encode() + b"\0" + code)
            self._count += 1
        self._file.flush()

    def _record(self, kind: int, body: bytes) -> None:
        self._file.write(_PREFIX.pack(kind, _PREFIX.size + len(body), _now()) + body)


def _lines_of(function: MappedFunction, table: Iterable[line_programs.Row]) -> Iterable[line_programs.Row]:
    """Yields the rows of a function that have a line. The format cannot express that code comes from no line."""
    end = function.address + function.size
    return (row for row in table if function.address <= row.address < end and row.line and not row.ends)


def _now() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
