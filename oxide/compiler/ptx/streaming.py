"""Streaming vector accesses on a GPU: turns the front end's marks of loads and stores into instructions with a cache
hint.

LLVM's NVPTX back end ignores LLVM's own mark, ``!nontemporal``, so the hint requires inline assembly. This pass comes
last, so that the bounds checks see ordinary loads and stores. On a CPU, streaming accesses stay ordinary loads and
stores.
"""

from __future__ import annotations

from oxide.compiler.ir.module import Module
from oxide.compiler.ir.values import Call, Load, Store, Value

_BITS = {"float": 32, "double": 64}
_WIDEST = 4
"""The most 32-bit words that one instruction loads or stores."""


def hint(module: Module) -> list[str]:
    """Replaces a kernel's streaming vector accesses by calls. Returns the definitions of the called functions. Vectors
    whose size is not a multiple of 32 bits are unchanged."""
    definitions: dict[str, str] = {}
    for function in module.defined:
        for access in function.instructions:
            if "!oxide.streaming" not in access.metadata:
                continue
            match access:
                case Load(type=vector) | Store(value=Value(type=vector)) if vector.startswith("<"):
                    count, _, element = vector.strip("<>").partition(" x ")
                    bits = int(count) * (_BITS.get(element) or int(element[1:]))
                    if bits % 32 == 0:
                        name = f"oxide.streaming.{access.opcode}.v{count}{element}"
                        make = _load if isinstance(access, Load) else _store
                        definitions[name] = make(name, vector, bits // 32)
                        called = module.declare(access.type, name, [operand.type for operand in access.operands])
                        function.substitute(access, Call(access.name, access.type, called, access.operands))
    return list(definitions.values())


def _load(name: str, vector: str, words: int) -> str:
    lines = [f"define {vector} @{name}(ptr %pointer) alwaysinline {{", *_GLOBAL]
    parts, made = _parts(words), "poison"
    for place, count in parts:
        kind = "i32" if count == 1 else f"{{ {', '.join(['i32'] * count)} }}"
        lines.append(
            f"  %part.{place} = call {kind} asm sideeffect "
            f'"ld.global.cs{_suffix(count)} {_operands(0, count)}, [${count}{_offset(place)}];", '
            f'"{",".join(["=r"] * count)},l,~{{memory}}"(ptr addrspace(1) %global)'
        )
        for word in range(count):
            number = place + word
            if count > 1:
                lines.append(f"  %word.{number} = extractvalue {kind} %part.{place}, {word}")
            source = f"%word.{number}" if count > 1 else f"%part.{place}"
            lines.append(f"  %made.{number} = insertelement <{words} x i32> {made}, i32 {source}, i32 {number}")
            made = f"%made.{number}"
    return "\n".join(
        [*lines, f"  %vector = bitcast <{words} x i32> {made} to {vector}", f"  ret {vector} %vector", "}"]
    )


def _store(name: str, vector: str, words: int) -> str:
    lines = [f"define void @{name}({vector} %vector, ptr %pointer) alwaysinline {{", *_GLOBAL]
    lines.append(f"  %words = bitcast {vector} %vector to <{words} x i32>")
    lines += [f"  %word.{number} = extractelement <{words} x i32> %words, i32 {number}" for number in range(words)]
    for place, count in _parts(words):
        listed = ", ".join(f"i32 %word.{place + word}" for word in range(count))
        lines.append(
            f'  call void asm sideeffect "st.global.cs{_suffix(count)} [$0{_offset(place)}], {_operands(1, count)};", '
            f'"l,{",".join(["r"] * count)},~{{memory}}"(ptr addrspace(1) %global, {listed})'
        )
    return "\n".join([*lines, "  ret void", "}"])


_GLOBAL = ("  %global = addrspacecast ptr %pointer to ptr addrspace(1)",)


def _parts(words: int) -> list[tuple[int, int]]:
    """Splits a vector into parts for single loads or stores. Returns, for each part, the index of its first word and
    the number of its words."""
    return [(place, min(words, _WIDEST)) for place in range(0, words, _WIDEST)]


def _suffix(count: int) -> str:
    return ".b32" if count == 1 else f".v{count}.b32"


def _operands(first: int, count: int) -> str:
    listed = ", ".join(f"${first + number}" for number in range(count))
    return listed if count == 1 else f"{{{listed}}}"


def _offset(place: int) -> str:
    return f"+{4 * place}" if place else ""
