"""The sanitizer's instrumentation: a call in front of each access of a kernel, with the bounds of the array accessed.

It works on the portable IR, before a back end's definitions are linked. The kernel's own functions are inlined and its
variables leave the stack, so that the remaining loads and stores touch arrays. Each is followed back to the array that
it belongs to (``origins.py``): a parameter, a shared or a local array (``regions.py``). compute-sanitizer does not know
the array: it accepts an access one past the end of a buffer if another buffer begins there.

Atomics, fences and local arrays are calls during this pass, so that no optimisation splits them. ``runtime.py`` has the
checks themselves.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any

from oxide.compiler.bounds.leaving import threads_may_wait
from oxide.compiler.cpu import native, primitives
from oxide.compiler.ir import clearing
from oxide.compiler.ir.llvm import host_machine, portable_module, run_passes
from oxide.compiler.ir.parser import parse
from oxide.compiler.ir.patterns import CHECK_RESULT, fails_an_assert
from oxide.compiler.ir.portable import PortableKernel, link
from oxide.compiler.ir.ssa import LABEL, WORD
from oxide.compiler.signature.signature import Closed
from oxide.driver.base import Code, Target
from oxide.driver.sanitizing import ALSO_READS, ATOMIC, BLOCK_SCOPE, WRITE, Access, PointerWord, Sanitized
from oxide.errors import CompileError

from . import runtime
from .origins import NAME, Origins
from .regions import HELD_LOCAL, REGION_KINDS, UNKNOWN, Region, Regions, pointers_of
from .types import TYPE, size_of

_MAX_ACCESSES = 1 << 16


def compile_sanitized(
    name: str,
    kernel: PortableKernel,
    signature: tuple[Closed, ...],
    kernel_id: int,
    target: Target,
    kinds: frozenset[str],
    *,
    unchecked: bool,
) -> Code:
    """Returns a host object file with checked accesses, and the driver's data for it. Raises ``CompileError``."""
    pointers, views = pointers_of(signature)
    uncleared = parse(kernel.text)
    clearing.leave_out(uncleared)
    text = _HOLDABLE.sub("@oxide.held.", _local_arrays_held(str(uncleared)))
    module = portable_module("\n".join([_restored_definitions(text), *_held_declarations(kernel.text)]))
    head, body, tail = _split(_simplified(module, host_machine(target)), kernel.symbol)
    instrumenter = _Instrumenter(name, kernel, pointers, views, head, body, tail)
    lines = [
        line for line in (*head, *instrumenter.lines, *tail) if not line.startswith("declare ") or "held" not in line
    ]
    instrumented = "\n".join(lines).replace("@oxide.held.", "@oxide.")
    whole = link(["\n".join([instrumented, _declarations(instrumented)]), runtime.definitions(kinds)])
    code = native.compile_native(
        dataclasses.replace(kernel, module=parse(str(whole))), signature, kernel_id, target, unchecked=unchecked
    )
    static = primitives.static_bytes(kernel.shared) if kernel.shared.used else 0
    accesses = tuple(instrumenter.accesses)
    return dataclasses.replace(
        code,
        sanitized=Sanitized(name, kernel_id, kinds, instrumenter.pointers, accesses, static, instrumenter.shared_shift),
    )


# Atomics, fences and local arrays, held back as calls

_HOLDABLE = re.compile(r"@oxide\.(?=(?:atomic|fence)\.)")
_DEFINED = re.compile(
    r"^define (?P<type>[^@\n]*)@oxide\.(?P<name>(?:atomic|fence)\.[\w.]+)\((?P<rest>[^\n]*?)\) ", re.M
)
_LOCAL = re.compile(r"^(  %\S*local_array\S* = )alloca (\[\d+ x [^\n]+\]), align (\d+)$", re.M)


def _restored_definitions(text: str) -> str:
    """Returns the text with the original names of definitions: only calls are held."""
    return re.sub(r"^(define [^@\n]*@oxide\.)held\.", r"\1", text, flags=re.M)


def _held_declarations(text: str) -> list[str]:
    declarations = ["declare ptr @oxide.held.local(i64, i64)"]
    for match in _DEFINED.finditer(text):
        types = ", ".join(part.split(" ")[0] for part in match["rest"].split(", ") if part)
        declarations.append(f"declare {match['type']}@oxide.held.{match['name']}({types})")
    return declarations


def _local_arrays_held(text: str) -> str:
    return _LOCAL.sub(lambda m: f"{m[1]}call ptr @oxide.held.local(i64 {size_of(m[2])}, i64 {m[3]})", text)


def _simplified(module: Any, machine: Any) -> str:
    """Returns the module's text with calls inlined where possible and variables promoted from the stack."""
    run_passes(module, machine, ("always_inliner", "sroa"))
    return str(module)


def _split(text: str, symbol: str) -> tuple[list[str], list[str], list[str]]:
    """Returns the lines before the kernel, of the kernel, and after it."""
    lines = text.split("\n")
    start = next(
        number
        for number, line in enumerate(lines)
        if line.startswith("define ") and f"@{symbol}(" in line.replace('"', "")
    )
    end = lines.index("}", start) + 1
    return lines[:start], lines[start:end], lines[end:]


_PLACE = re.compile(r'^(!\d+) = !\{!"(.*)", i32 (\d+)\}$')


def _places(lines: list[str]) -> dict[str, tuple[str, int]]:
    found = {}
    for line in lines:
        if match := _PLACE.match(line):
            file = re.sub(r"\\([0-9A-Fa-f]{2})", lambda escape: chr(int(escape[1], 16)), match[2])
            found[match[1]] = file.encode("latin-1").decode("utf-8", "replace"), int(match[3])
    return found


# The kernel's accesses

_LOAD = re.compile(
    rf"^(?P<head>  {NAME} = load (?:volatile )?)(?P<type>{TYPE}), ptr (?P<pointer>{NAME}), align "
    r"(?P<align>\d+)(?P<rest>.*)$"
)
_STORE = re.compile(
    rf"^(?P<head>  store (?:volatile )?)(?P<type>{TYPE}) (?P<value>.*), "
    rf"ptr (?P<pointer>{NAME}), align (?P<align>\d+)(?P<rest>.*)$"
)
_ATOMIC = re.compile(
    rf"^(?P<head>  (?:{NAME} = )?call [^@]*@oxide\.held\.atomic\.(?P<operation>\w+)\.\w(?P<bits>\d+)\.(?P<scope>\w+)\."
    rf"(?P<ordering>\d)\(ptr )(?P<pointer>{NAME})(?P<rest>.*)$"
)
_RAW_ATOMIC = re.compile(  # numba-cuda's own, which are relaxed
    rf"^(?P<head>  {NAME} = (?:atomicrmw|cmpxchg) (?:volatile |weak )*(?:\w+ )?ptr )(?P<pointer>{NAME})"
    r"(?P<rest>, (?P<type>\w+) .*)$"
)
_FENCE = re.compile(r"^  call void @oxide\.held\.fence\.\w+\.(?P<ordering>\d)\(")
_BARRIER = re.compile(rf"^  (?:{NAME} = )?call \w+ @oxide\.block\.barrier")
_WARP_SYNC = re.compile(r"^  call void @oxide\.warp\.sync\(ptr (?P<context>\S+), i32 (?P<mask>[^,]+), ")
_FROM = re.compile(rf", (?P<block>%{WORD}) \]")
_LEAVING = "%oxide.leaves"
_PLACED = re.compile(r", !oxide\.place (!\d+)")

_RELEASING, _ACQUIRING = (2, 3, 4), (1, 3, 4)


class _Instrumenter:
    """Rewrites a kernel's body. ``lines`` is the result, and ``accesses`` the places that its checks name by number.

    A shadow cell covers ``1 << shared_shift`` bytes of shared memory, the granule of the kernel's accesses to it.
    Where no thread can wait for another, a thread leaves the kernel as soon as it would continue with a meaningless
    value: behind a failed check, an access out of bounds or a read of uninitialized memory. A loop with such a bound
    might never end.
    """

    def __init__(
        self,
        name: str,
        kernel: PortableKernel,
        pointers: tuple[PointerWord, ...],
        views: dict[int, int],
        head: list[str],
        body: list[str],
        tail: list[str],
    ) -> None:
        self._name = name
        self._places = _places(tail)
        self._numbers = itertools.count()
        self._known: dict[Access, int] = {}
        header = body[0]
        arguments = re.findall(rf"({NAME})(?=[,)])", header[header.index("(") :])
        self._context = arguments[0]
        by_name = {argument: views[word] for word, argument in enumerate(arguments[1:]) if word in views}
        self._origins = Origins(body, by_name)
        self._regions = Regions(head, body, by_name, [each.name for each in pointers], kernel.shared, self._origins)
        self._place = ("", 0)
        self.shared_shift, self.pointers = self._granules(body, pointers)
        self._leaves = not threads_may_wait(kernel, parse("\n".join([*head, *body, *tail])).defined)
        self._block = ""
        self._ends: dict[str, str] = {}  # for each block that was split, its last part
        allocas: list[str] = []
        lines: list[str] = []
        for line in body:
            self._rewrite(line, lines, allocas)
        lines = self._origins.with_choices(lines)
        lines[2:2] = allocas  # behind the header and the entry's label
        if self._ends:
            lines = [self._from_the_last_part(line) if " = phi " in line else line for line in lines]
            lines[-1:] = [f"{_LEAVING[1:]}:", "  ret void", lines[-1]]
        self.lines = lines

    def _granules(self, body: list[str], pointers: tuple[PointerWord, ...]) -> tuple[int, tuple[PointerWord, ...]]:
        """Returns the shift of the granule of accesses to shared memory, and the pointers with their granules."""
        shared, granules = 8, [min(8, _power(pointer.itemsize)) for pointer in pointers]
        for line in body:
            if match := _LOAD.match(line) or _STORE.match(line):
                granule = min(_power(size_of(match["type"])), int(match["align"]))
            elif match := _ATOMIC.match(line):
                granule = int(match["bits"]) // 8
            elif match := _RAW_ATOMIC.match(line):
                granule = size_of(match["type"])
            else:
                continue
            regions = list(self._regions.reached(match["pointer"]).values()) or [UNKNOWN]
            if any(region.kind == "shared" for region in regions):
                shared = min(shared, granule)
            known = {region.view for region in regions if region.kind == "device"}
            for number in range(len(pointers)) if UNKNOWN in regions else known:
                granules[number] = min(granules[number], granule)
        return shared.bit_length() - 1, tuple(
            dataclasses.replace(pointer, granule=granule) for pointer, granule in zip(pointers, granules, strict=True)
        )

    @property
    def accesses(self) -> list[Access]:
        return list(self._known)

    def _rewrite(self, line: str, lines: list[str], allocas: list[str]) -> None:
        if label := LABEL.match(line):
            self._block = f"%{label['name']}"
        if placed := _PLACED.search(line):
            self._place = self._places[placed[1]]
        if match := _LOAD.match(line):
            pointer = self._checked(lines, match["pointer"], size_of(match["type"]), int(match["align"]), 0)
            lines.append(f"{match['head']}{match['type']}, ptr {pointer}, align 1{match['rest']}")
        elif "!oxide.place" not in line and (match := _STORE.match(line)) and self._regions.is_local(match["pointer"]):
            lines.append(line)  # numba-cuda's own zeros, on which a kernel must not rely
        elif match := _STORE.match(line):
            pointer = self._checked(lines, match["pointer"], size_of(match["type"]), int(match["align"]), WRITE)
            lines.append(f"{match['head']}{match['type']} {match['value']}, ptr {pointer}, align 1{match['rest']}")
        elif match := _ATOMIC.match(line):
            ordering, operation = int(match["ordering"]), match["operation"]
            what = {"load": 0, "store": WRITE}.get(operation, WRITE | ALSO_READS)
            what |= ATOMIC | (BLOCK_SCOPE if match["scope"] == "block" else 0)
            self._fence(lines, "release", ordering in _RELEASING)
            size = int(match["bits"]) // 8
            pointer = self._checked(lines, match["pointer"], size, size, what)
            lines.append(f"{match['head']}{pointer}{match['rest']}")
            self._fence(lines, "acquire", ordering in _ACQUIRING)
        elif match := _RAW_ATOMIC.match(line):
            size = size_of(match["type"])
            pointer = self._checked(lines, match["pointer"], size, size, WRITE | ALSO_READS | ATOMIC)
            lines.append(f"{match['head']}{pointer}{match['rest']}")
        elif match := CHECK_RESULT.match(line):
            lines.append(line)
            self._go_on(lines, match["name"])
        elif fails_an_assert(line):
            lines.append(line)
            self._go_on(lines, "false")
        elif match := _FENCE.match(line):
            ordering = int(match["ordering"])
            self._fence(lines, "release", ordering in _RELEASING)
            lines.append(line)
            self._fence(lines, "acquire", ordering in _ACQUIRING)
        elif _BARRIER.match(line):
            lines.append(line)
            self._call(lines, "passed")
        elif match := _WARP_SYNC.match(line):
            self._call(lines, "arrive")
            lines.append(line)
            self._call(lines, "join", f", i32 {match['mask']}")
            lines.append(line)
        elif match := HELD_LOCAL.match(line):
            size = int(match["bytes"])
            allocas.append(f"  {match['name']} = alloca [{2 * size} x i8], align {max(16, int(match['align']))}")
            shadow = self._fresh()
            lines.append(f"  {shadow} = getelementptr i8, ptr {match['name']}, i64 {size}")
            lines.append(f"  call void @llvm.memset.p0.i64(ptr {shadow}, i8 0, i64 {size}, i1 false)")
        else:
            lines.append(line)

    def _checked(self, lines: list[str], pointer: str, size: int, align: int, what: int) -> str:
        """Appends the check of an access. Returns the address to access: the pointer itself for a stack variable."""
        head = f"ptr {self._context}, ptr {pointer}, i64 {size}, i64 {align}, i64 "
        regions = self._regions.reached(pointer)
        if len(regions) > 1:
            call = self._check_of_several(lines, head, pointer, what, regions)
        else:
            region = next(iter(regions.values()), UNKNOWN)
            if region.kind == "stack":
                return pointer
            number = self._number(region.what) | what
            words = self._words_of(lines, region) if region is not UNKNOWN else [self._anywhere(lines, pointer, "-1")]
            call = f"{region.kind}({head}{number}, {', '.join(words)})"
        result = self._fresh()
        lines.append(f"  {result} = call ptr @oxide.sanitize.{call}")
        if self._leaves:
            goes_on = self._fresh()
            lines.append(f"  {goes_on} = call i1 @oxide.sanitize.goes_on(ptr {self._context})")
            self._go_on(lines, goes_on)
        return result

    def _check_of_several(
        self, lines: list[str], head: str, pointer: str, what: int, regions: dict[int, Region]
    ) -> str:
        """Returns the check of an access to one of several regions, which the pointer's origin selects."""
        chosen = self._origins.chosen(pointer)
        whats = {region.what for region in regions.values()}
        number = str(self._number(min(whats) if len(whats) == 1 else UNKNOWN.what) | what)
        words = ["i64 0", "ptr null", "i64 0", "i64 0", "i64 0"]
        for origin, region in regions.items():
            it_is = self._fresh()
            lines.append(f"  {it_is} = icmp eq i64 {chosen}, {origin}")
            if len(whats) > 1:
                number = self._selected(lines, it_is, f"i64 {self._number(region.what) | what}", f"i64 {number}")[4:]
            if region.kind != "device":
                place = self._words_of(lines, region)
                own = [f"i64 {REGION_KINDS.index(region.kind)}", *place, *words[len(place) + 1 :]]
                words = [self._selected(lines, it_is, new, old) for new, old in zip(own, words, strict=True)]
        if all(region.kind == "device" and region is not UNKNOWN for region in regions.values()):
            return f"device({head}{number}, i64 {chosen})"
        view = self._anywhere(lines, pointer, chosen)  # an array loaded from a variable in memory may be any of several
        return f"chosen({head}{number}, {view}, {', '.join(words)})"

    def _anywhere(self, lines: list[str], pointer: str, view: str) -> str:
        """Returns the view, or -2 where it is -1 (unknown) and the address is in an array that is no parameter."""
        address, elsewhere = self._fresh(), "true" if self._regions.others is None else "false"
        lines.append(f"  {address} = ptrtoint ptr {pointer} to i64")
        for region in self._regions.others or ():
            array, length, *_ = self._words_of(lines, region)
            start, offset, inside, either = (self._fresh() for _ in range(4))
            lines += [
                f"  {start} = ptrtoint {array} to i64",
                f"  {offset} = sub i64 {address}, {start}",
                f"  {inside} = icmp ult i64 {offset}, {length.removeprefix('i64 ')}",
                f"  {either} = or i1 {elsewhere}, {inside}",
            ]
            elsewhere = either
        unknown, known, result = (self._fresh() for _ in range(3))
        lines += [
            f"  {unknown} = icmp eq i64 {view}, -1",
            f"  {known} = and i1 {unknown}, {elsewhere}",
            f"  {result} = select i1 {known}, i64 -2, i64 {view}",
        ]
        return f"i64 {result}"

    def _selected(self, lines: list[str], condition: str, new: str, old: str) -> str:
        if new == old:
            return old
        result = self._fresh()
        lines.append(f"  {result} = select i1 {condition}, {new}, {old}")
        return f"{new.split(' ')[0]} {result}"

    def _words_of(self, lines: list[str], region: Region) -> list[str]:
        """Returns a check's arguments for a region: a view's number, or an array's address and length."""
        array, length = region.array, region.bytes
        match region.kind:
            case "device":
                return [f"i64 {region.view}"]
            case "shared":
                array = self._fresh()  # computed again: its first definition may lie on another path
                lines.append(f"  {array} = {region.array}")
                if not length:
                    length = self._fresh()
                    lines.append(f"  {length} = call i64 @oxide.shared.dynamic.bytes(ptr {self._context})")
                return [f"ptr {array}", f"i64 {length}", f"i64 {region.offset}", f"i64 {self.shared_shift}"]
            case _:
                return [f"ptr {array}", f"i64 {length}"] if array else []

    def _fresh(self) -> str:
        return f"%sanitize.{next(self._numbers)}"

    def _go_on(self, lines: list[str], condition: str) -> None:
        """Splits the block: a thread continues only if the condition holds, and else leaves the kernel."""
        if self._leaves:
            rest = f"sanitize.{next(self._numbers)}"
            lines += [f"  br i1 {condition}, label %{rest}, label {_LEAVING}", f"{rest}:"]
            self._ends[self._block] = f"%{rest}"

    def _from_the_last_part(self, phi: str) -> str:
        return _FROM.sub(lambda match: f", {self._ends.get(match['block'], match['block'])} ]", phi)

    def _number(self, what: str) -> int:
        """Returns the access's number, shifted to its place. Raises ``CompileError`` for too many accesses."""
        access = Access(what, *self._place)
        number = self._known.setdefault(access, len(self._known))
        if number >= _MAX_ACCESSES:
            raise CompileError(f"kernel {self._name}: the sanitizer can tell {_MAX_ACCESSES} accesses apart, no more")
        return number << 4

    def _fence(self, lines: list[str], what: str, wanted: bool) -> None:
        if wanted:
            self._call(lines, what)

    def _call(self, lines: list[str], what: str, arguments: str = "") -> None:
        lines.append(f"  call void @oxide.sanitize.{what}(ptr {self._context}{arguments})")


_CALLED = {
    "device": "ptr @oxide.sanitize.device(ptr, ptr, i64, i64, i64, i64)",
    "shared": "ptr @oxide.sanitize.shared(ptr, ptr, i64, i64, i64, ptr, i64, i64, i64)",
    "local": "ptr @oxide.sanitize.local(ptr, ptr, i64, i64, i64, ptr, i64)",
    "constant": "ptr @oxide.sanitize.constant(ptr, ptr, i64, i64, i64, ptr, i64)",
    "chosen": "ptr @oxide.sanitize.chosen(ptr, ptr, i64, i64, i64, i64, i64, ptr, i64, i64, i64)",
    "join": "void @oxide.sanitize.join(ptr, i32)",
    "goes_on": "i1 @oxide.sanitize.goes_on(ptr)",
    **{name: f"void @oxide.sanitize.{name}(ptr)" for name in ("passed", "release", "acquire", "arrive")},
}


def _declarations(text: str) -> str:
    lines = [f"declare {declaration}" for declaration in _CALLED.values()]
    lines.append("declare i64 @oxide.shared.dynamic.bytes(ptr)")
    lines.append("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    return "\n".join(
        line for line in lines if not re.search(rf"^(?:declare|define) [^\n]*{_symbol(line)}\(", text, re.M)
    )


def _symbol(declaration: str) -> str:
    return re.escape(declaration[declaration.index("@") : declaration.index("(")])


def _power(size: int) -> int:
    """Returns the greatest power of two that divides ``size``."""
    return size & -size or 1
