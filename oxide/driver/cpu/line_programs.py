"""Reads the line tables of an object file: DWARF's line-number programs, of which LLVM writes version 4 for kernels.

A program is a sequence of opcodes for a small machine, whose registers are an address, a file and a line. The machine
emits rows. A row states that the code from its address on comes from its line.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

__all__ = ["Row", "rows"]

_COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE, _CONST_ADD_PC, _FIXED_ADVANCE_PC = 1, 2, 3, 4, 8, 9
_END_SEQUENCE, _SET_ADDRESS, _DEFINE_FILE = 1, 2, 3
_VERSIONS = (2, 3, 4)


@final
@dataclass(frozen=True, slots=True)
class Row:
    """A row of a line table: the code from ``address`` on comes from ``line`` of ``file``. The line is 0 if LLVM has
    merged several lines. If ``ends`` is True, the code ends before ``address``."""

    address: int
    file: str
    line: int
    ends: bool = False


def rows(table: bytes) -> Iterator[Row]:
    """Yields the rows of all programs of a section ``.debug_line``, whose addresses must be relocated. Raises
    ``ValueError`` for versions of DWARF other than 2 to 4, and for a table that ends too early."""
    at = 0
    while at < len(table):
        end = at + 4 + int.from_bytes(table[at : at + 4], "little")
        if end > len(table):
            raise ValueError("a line table that ends too early")
        try:
            yield from _Program(table, at + 4, end).rows()
        except (IndexError, struct.error) as error:
            raise ValueError("a line table that ends too early") from error
        at = end


@final
class _Program:
    def __init__(self, table: bytes, at: int, end: int) -> None:
        self._table, self._at, self._end = table, at, end
        version, length = struct.unpack_from("<HI", table, at)
        if version not in _VERSIONS:
            raise ValueError(f"a line table of DWARF {version}")
        start = at + 6 + length
        self._at = at + 6
        self._least = self._byte()
        if version == 4:
            self._byte()  # operations in an instruction: 1, except on VLIW processors
        self._byte()
        self._base, self._range, self._first_special = struct.unpack_from("<bBB", table, self._at)
        self._at += 3
        self._operands = [0, *(self._byte() for _ in range(self._first_special - 1))]
        folders = [""]
        while folder := self._text():
            folders.append(folder)
        self._files = [""]
        while name := self._text():
            number = self._unsigned()
            self._unsigned(), self._unsigned()  # the time and the length, both 0
            folder = folders[number]
            self._files.append(f"{folder.removesuffix('/')}/{name}" if folder else name)
        self._at = start

    def rows(self) -> Iterator[Row]:
        address, file, line = 0, 1, 1
        while self._at < self._end:
            opcode = self._byte()
            if opcode >= self._first_special:
                steps, more = divmod(opcode - self._first_special, self._range)
                address += steps * self._least
                line += self._base + more
                yield Row(address, self._files[file], line)
            elif opcode == 0:
                length = self._unsigned()
                following = self._at + length
                extended = self._byte()
                if extended == _SET_ADDRESS:
                    (address,) = struct.unpack_from("<Q", self._table, self._at)
                elif extended == _END_SEQUENCE:
                    yield Row(address, self._files[file], line, ends=True)
                    address, file, line = 0, 1, 1
                elif extended == _DEFINE_FILE:
                    raise ValueError("a line table that defines a file in its program")
                self._at = following
            elif opcode == _COPY:
                yield Row(address, self._files[file], line)
            elif opcode == _ADVANCE_PC:
                address += self._unsigned() * self._least
            elif opcode == _ADVANCE_LINE:
                line += self._signed()
            elif opcode == _SET_FILE:
                file = self._unsigned()
            elif opcode == _CONST_ADD_PC:
                address += (255 - self._first_special) // self._range * self._least
            elif opcode == _FIXED_ADVANCE_PC:
                address += struct.unpack_from("<H", self._table, self._at)[0]
                self._at += 2
            else:  # columns and flags
                for _ in range(self._operands[opcode]):
                    self._unsigned()

    def _byte(self) -> int:
        self._at += 1
        return self._table[self._at - 1]

    def _text(self) -> str:
        end = self._table.index(b"\0", self._at)
        text = self._table[self._at : end].decode("utf-8", "replace")
        self._at = end + 1
        return text

    def _unsigned(self) -> int:
        return self._number()[0]

    def _signed(self) -> int:
        value, bits = self._number()
        return value - (1 << bits) if value >> (bits - 1) else value

    def _number(self) -> tuple[int, int]:
        """Reads a LEB128 number: seven bits a byte, the lowest first. Returns the number and the number of its bits."""
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value, shift
