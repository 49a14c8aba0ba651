"""Loads an object file into memory without a linker and without LLVM, so that a cached kernel starts at once.

LLVM's own loader does the same, but importing llvmlite and making an engine takes 0.1 s, most of a small program's
time. A kernel's object file needs little from a loader: a few sections, a table of addresses (the global offset table)
and some ten kinds of relocations of the System V ABI for x86-64. The runtime's host functions need no relocations, so
they are loaded on AArch64 too. Anything else (thread-local storage, initialisers, another processor) raises
``Unloadable``, and the callers fall back to LLVM.

The memory is written first. Then code and constants are made read-only and executable, so no page is ever writable and
executable at the same time. Linux makes the caches of AArch64 coherent when it makes the pages executable.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import platform
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

__all__ = ["EXTERNAL_FUNCTIONS", "MappedFunction", "MappedObject", "MissingFunction", "Unloadable", "load_object"]

EXTERNAL_FUNCTIONS: dict[str, int] = {}
"""The addresses of functions that kernels call but no library of the process exports, by the function's name. A name in
this table takes precedence over the same name in the C library or libm."""


class Unloadable(Exception):
    """Raised if the image is not an object file for this machine, or needs more than this loader supports."""


class MissingFunction(Unloadable):
    """Raised if the code calls a function that is in no library of this process, nor in ``EXTERNAL_FUNCTIONS``."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is in no library of this process")
        self.name = name


@final
@dataclass(frozen=True, slots=True)
class MappedFunction:
    """A function of a mapped object file: its symbol, its address and its size in bytes."""

    symbol: str
    address: int
    size: int


@final
@dataclass(frozen=True, slots=True)
class MappedObject:
    """The functions of a mapped object file, for profilers. ``file`` is the symbol that names the source, "" if there
    is none."""

    file: str
    functions: tuple[MappedFunction, ...]


def load_object(image: bytes, entry: str, mapped: Callable[[MappedObject, Any], None] | None = None) -> tuple[Any, int]:
    """Maps an object file. Returns the object that keeps it mapped, and the address of ``entry``, 0 if not found. If
    ``entry`` is found and ``mapped`` is not None, calls ``mapped`` with the file's functions and that object.

    Raises ``Unloadable`` for an image that this loader cannot load.
    """
    machine = _MACHINES.get(platform.machine()) if sys.platform == "linux" else None
    if machine is None:
        raise Unloadable(f"there is no loader for {sys.platform} on {platform.machine()}")
    try:
        loader = _Loader(image, machine)
        memory, address = loader.load(entry)
        content = loader.content() if mapped is not None and address else None
    except (struct.error, IndexError, ValueError, OverflowError, OSError) as error:
        raise Unloadable(f"a damaged object file: {error}") from error
    if mapped is not None and content is not None:
        mapped(content, memory)
    return memory, address


_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")

_IDENTITY = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian
_RELOCATABLE = 1
_X86_64, _AARCH64 = 62, 183
_MACHINES = {"x86_64": _X86_64, "aarch64": _AARCH64}
_PROGBITS, _SYMTAB, _RELA, _NOTE, _NOBITS, _UNWIND = 1, 2, 4, 7, 8, 0x70000001
_REL = 9
_INITIALISERS = (b".init", b".ctors", b".fini", b".dtors")
_WRITE, _ALLOC, _TLS = 0x1, 0x2, 0x400
_UNDEFINED, _FIRST_RESERVED, _ABSOLUTE = 0, 0xFF00, 0xFFF1
_FUNCTION_SYMBOL, _FILE_SYMBOL, _TLS_SYMBOL, _INDIRECT_SYMBOL = 2, 4, 6, 10

# Relocations by their numbers in the ABI, without the prefix R_X86_64_. "Table" is the global offset table. "Jump" is
# an entry of the procedure linkage table, through which code reaches addresses that may be more than 2 GiB away.
_64, _PC32, _PLT32, _GOTPCREL, _GOTOFF64, _GOTPC32 = 1, 2, 4, 9, 25, 26
_PC64, _GOT64, _GOTPCREL64, _GOTPC64, _PLTOFF64, _GOTPCRELX, _REX_GOTPCRELX = 24, 27, 28, 29, 31, 41, 42
_32_BITS = {_PC32, _PLT32, _GOTPCREL, _GOTPC32, _GOTPCRELX, _REX_GOTPCRELX}
_THROUGH_TABLE = {_GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX, _GOT64, _GOTPCREL64}
_THROUGH_JUMP = {_PLT32, _PLTOFF64}
_FROM_TABLE = {_GOT64, _GOTOFF64, _PLTOFF64}
_KNOWN = _32_BITS | _THROUGH_TABLE | _THROUGH_JUMP | _FROM_TABLE | {_64, _PC64, _GOTPC64}

_JUMP = b"\xff\x25"  # jmp *[rip + offset]
_JUMP_BYTES = 8


@dataclass(slots=True)
class _Section:
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    address: int = 0
    """The section's address in memory; 0 if it is not loaded."""


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    section: int
    value: int
    kind: int
    size: int


@dataclass(frozen=True, slots=True)
class _Relocation:
    section: _Section
    offset: int
    kind: int
    symbol: int
    addend: int


@final
class _Loader:
    def __init__(self, image: bytes, machine: int) -> None:
        self.image = image
        self.known = _KNOWN if machine == _X86_64 else frozenset[int]()
        header = _HEADER.unpack_from(image)
        if not header[0].startswith(_IDENTITY) or header[1:3] != (_RELOCATABLE, machine):
            raise Unloadable(f"no object file for {platform.machine()}")
        start, size, count = header[6], header[11], header[12]
        if size != _SECTION.size:
            raise Unloadable("section headers of another size")
        names = _SECTION.unpack_from(image, start + header[13] * size)[4]
        self.sections: list[_Section] = []
        for number in range(count):
            name, kind, flags, _, offset, length, link, info, alignment, _ = _SECTION.unpack_from(
                image, start + number * size
            )
            if kind != _NOBITS and (offset > len(image) or length > len(image) - offset):
                raise Unloadable("a section beyond the end of the image")
            if image.startswith(_INITIALISERS, names + name):
                raise Unloadable("functions to be called before all others")
            self.sections.append(_Section(kind, flags, offset, length, link, info, max(alignment, 1)))
        self.loaded = [section for section in self.sections if self._is_loaded(section)]
        self.symbols = self._read_symbols()
        self.relocations = self._read_relocations()
        # By symbol number: the symbol's place in the table of addresses, and its place among the jumps.
        self.table: dict[int, int] = {}
        self.jumps: dict[int, int] = {}
        for relocation in self.relocations:
            kind, symbol = relocation.kind, relocation.symbol
            external = self.symbols[symbol].section == _UNDEFINED
            if kind in _THROUGH_TABLE or (kind in _THROUGH_JUMP and external):
                self.table.setdefault(symbol, len(self.table))
            if kind in _THROUGH_JUMP and external:
                self.jumps.setdefault(symbol, len(self.jumps))

    def load(self, entry: str) -> tuple[Any, int]:
        # Code, constants and the table first; writable sections from the next page on.
        offsets: dict[int, int] = {}
        end = _PAGE  # no symbol at offset 0: an address of 0 means not found
        for section in self._ordered(writable=False):
            end = _aligned(end, section.alignment)
            offsets[id(section)] = end
            end += section.size
        table = _aligned(end, 8)
        jumps = table + 8 * len(self.table)
        fixed = end = _aligned(jumps + _JUMP_BYTES * len(self.jumps), _PAGE)
        for section in self._ordered(writable=True):
            end = _aligned(end, section.alignment)
            offsets[id(section)] = end
            end += section.size
        memory = mmap.mmap(
            -1, _aligned(end, _PAGE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE
        )
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for section in self.loaded:
            offset = offsets[id(section)]
            section.address = self.base + offset
            if section.kind != _NOBITS:
                memory[offset : offset + section.size] = self.image[section.offset : section.offset + section.size]
        self.table_address, self.jump_address = self.base + table, self.base + jumps
        for symbol, place in self.table.items():
            struct.pack_into("<Q", memory, table + 8 * place, self._address(symbol))
        for symbol, place in self.jumps.items():
            at = jumps + _JUMP_BYTES * place
            target = table + 8 * self.table[symbol]
            memory[at : at + 6] = _JUMP + struct.pack("<i", target - (at + 6))
        self._relocate(memory)
        address = next((self._address(n) for n, s in enumerate(self.symbols) if s.name == entry and s.section), 0)
        if address and _mprotect(self.base, fixed, mmap.PROT_READ | mmap.PROT_EXEC):
            raise Unloadable("the system allows no executable memory")
        return memory, address

    def content(self) -> MappedObject:
        """Returns the functions of the object file. Call it once the object is mapped."""
        functions = tuple(
            MappedFunction(symbol.name, self._address(number), symbol.size)
            for number, symbol in enumerate(self.symbols)
            if symbol.kind == _FUNCTION_SYMBOL and symbol.section and symbol.size
        )
        file = next((symbol.name for symbol in self.symbols if symbol.kind == _FILE_SYMBOL), "")
        return MappedObject(file, functions)

    def _relocate(self, memory: mmap.mmap) -> None:
        for relocation in self.relocations:
            kind, symbol = relocation.kind, relocation.symbol
            place = relocation.section.address + relocation.offset
            if kind in _THROUGH_TABLE:
                value = self.table_address + 8 * self.table[symbol]
            elif kind in (_GOTPC32, _GOTPC64):
                value = self.table_address
            elif kind in _THROUGH_JUMP and symbol in self.jumps:
                value = self.jump_address + _JUMP_BYTES * self.jumps[symbol]
            else:
                value = self._address(symbol)
            value += relocation.addend
            if kind in _FROM_TABLE:
                value -= self.table_address
            elif kind != _64:
                value -= place
            offset = place - self.base
            if kind in _32_BITS:
                struct.pack_into("<i", memory, offset, value)
            else:
                struct.pack_into("<Q", memory, offset, value & 0xFFFFFFFFFFFFFFFF)

    def _is_loaded(self, section: _Section) -> bool:
        # Unwinding tables are not loaded: no exception passes through a kernel.
        if not section.flags & _ALLOC or section.kind in (_NOTE, _UNWIND):
            return False
        if section.flags & _TLS or section.kind not in (_PROGBITS, _NOBITS) or section.alignment > _PAGE:
            raise Unloadable(f"a section of type {section.kind} and flags {section.flags:#x}")
        return True

    def _ordered(self, *, writable: bool) -> list[_Section]:
        return [section for section in self.loaded if bool(section.flags & _WRITE) == writable]

    def _read_symbols(self) -> list[_Symbol]:
        tables = [section for section in self.sections if section.kind == _SYMTAB]
        if len(tables) != 1:
            raise Unloadable(f"{len(tables)} symbol tables")
        names = self.sections[tables[0].link]
        text = self.image[names.offset : names.offset + names.size]
        symbols = []
        for number in range(tables[0].size // _SYMBOL.size):
            name, info, _, section, value, size = _SYMBOL.unpack_from(
                self.image, tables[0].offset + number * _SYMBOL.size
            )
            symbols.append(_Symbol(text[name : text.index(b"\0", name)].decode(), section, value, info & 0xF, size))
        return symbols

    def _read_relocations(self) -> list[_Relocation]:
        found = []
        for section in self.sections:
            if section.kind not in (_RELA, _REL) or not self._is_loaded(self.sections[section.info]):
                continue
            if section.kind == _REL:
                raise Unloadable("relocations without addends")
            target = self.sections[section.info]
            for offset, kind, symbol, addend in self._entries(section):
                if kind not in self.known:
                    raise Unloadable(f"a relocation of type {kind}")
                if offset >= target.size or target.kind == _NOBITS:
                    raise Unloadable("a relocation outside its section")
                if self.symbols[symbol].kind in (_TLS_SYMBOL, _INDIRECT_SYMBOL):
                    raise Unloadable(f"{self.symbols[symbol].name} is thread-local or indirect")
                found.append(_Relocation(target, offset, kind, symbol, addend))
        return found

    def _entries(self, section: _Section) -> Iterator[tuple[int, int, int, int]]:
        """Yields the relocations of a section: offset, type, symbol and addend."""
        for number in range(section.size // _RELOCATION.size):
            offset, info, addend = _RELOCATION.unpack_from(self.image, section.offset + number * _RELOCATION.size)
            yield offset, info & 0xFFFFFFFF, info >> 32, addend

    def _address(self, number: int) -> int:
        symbol = self.symbols[number]
        if symbol.section == _UNDEFINED:
            return _external(symbol.name)
        if symbol.section == _ABSOLUTE:
            return symbol.value
        if symbol.section >= _FIRST_RESERVED or not self.sections[symbol.section].address:
            raise Unloadable(f"{symbol.name} is in no section that is loaded")
        return self.sections[symbol.section].address + symbol.value


def _external(name: str) -> int:
    known = EXTERNAL_FUNCTIONS.get(name)
    if known is not None:
        return known
    for library in _libraries():
        with contextlib.suppress(AttributeError):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    raise MissingFunction(name)


@functools.cache
def _libraries() -> list[ctypes.CDLL]:
    """Returns the handles in which functions are looked up: the program with its globally loaded libraries, the C
    library among them, then libm, which the program may not have loaded."""
    found = [ctypes.CDLL(None)]
    with contextlib.suppress(OSError):
        found.append(ctypes.CDLL("libm.so.6"))
    return found


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


_PAGE = mmap.PAGESIZE
_mprotect = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(
    ("mprotect", ctypes.CDLL(None))
)
