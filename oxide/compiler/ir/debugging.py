"""Defines ``print`` and ``oxide.debug`` in LLVM IR for each device.

The front end calls three functions:

- ``i32 oxide.print.<letters>(ptr format, items…)``, with a letter for each item (i for an i64, d for a double, s for a
  string), or ``none`` if there is no item
- ``i64 oxide.clock64()``
- ``i1 oxide.stop.<trap|breakpoint>(ptr context, i32 site)``, which returns whether the thread must end
"""

from __future__ import annotations

from collections.abc import Collection

_TYPES = {"i": "i64", "d": "double", "s": "ptr"}


def native_definitions(symbols: Collection[str]) -> str:
    """Returns the CPU's definitions. A line is printed by one ``dprintf`` to standard output, so that lines do not
    interleave."""
    texts = []
    for name, items in _prints(symbols):
        listed = "".join(f", {item}" for item in items)
        texts.append(
            f"define i32 @{name}(ptr %format{listed}) alwaysinline {{\n"
            f"  %written = call i32 (i32, ptr, ...) @dprintf(i32 1, ptr %format{listed})\n  ret i32 %written\n}}"
        )
    if texts:
        texts.append("declare i32 @dprintf(i32, ptr, ...)")
    if "oxide.clock64" in symbols:
        texts.append(_clock("llvm.readcyclecounter"))
    texts += [
        f"define i1 @oxide.stop.{how}(ptr %context, i32 %site) alwaysinline {{\n"
        "  call void @oxide.assertion_failed(ptr %context, i32 %site)\n  ret i1 true\n}"
        for how in _stops(symbols)
    ]
    if _stops(symbols):
        texts.append("declare void @oxide.assertion_failed(ptr, i32)")
    return "\n".join(texts)


def ptx_definitions(symbols: Collection[str]) -> str:
    """Returns a GPU's definitions. A line is printed by one ``vprintf``, which takes the items as a structure in
    memory."""
    texts = []
    for name, items in _prints(symbols):
        structure = "{ " + ", ".join(item.split()[0] for item in items) + " }" if items else "{ i64 }"
        stores = "\n".join(
            f"  %at.{number} = getelementptr {structure}, ptr %items, i32 0, i32 {number}\n"
            f"  store {item}, ptr %at.{number}"
            for number, item in enumerate(items)
        )
        texts.append(
            f"define i32 @{name}(ptr %format{''.join(f', {item}' for item in items)}) alwaysinline {{\n"
            f"  %items = alloca {structure}, align 8\n{stores}\n"
            "  %written = call i32 @vprintf(ptr %format, ptr %items)\n  ret i32 %written\n}"
        )
    if texts:
        texts.append("declare i32 @vprintf(ptr, ptr)")
    if "oxide.clock64" in symbols:
        texts.append(_clock("llvm.nvvm.read.ptx.sreg.clock64"))
    texts += [
        f"define i1 @oxide.stop.{how}(ptr %context, i32 %site) alwaysinline {{\n"
        f'  call void asm sideeffect "{"trap" if how == "trap" else "brkpt"};", "~{{memory}}"()\n  ret i1 false\n}}'
        for how in _stops(symbols)
    ]
    return "\n".join(texts)


def _prints(symbols: Collection[str]) -> list[tuple[str, list[str]]]:
    """Returns the printing functions among symbols, each with its items as typed operands, such as ``i64 %item.0``."""
    names = sorted(symbol for symbol in symbols if symbol.startswith("oxide.print."))
    return [(name, _items(name.removeprefix("oxide.print."))) for name in names]


def _items(kinds: str) -> list[str]:
    return [] if kinds == "none" else [f"{_TYPES[kind]} %item.{number}" for number, kind in enumerate(kinds)]


def _stops(symbols: Collection[str]) -> list[str]:
    return [how for how in ("breakpoint", "trap") if f"oxide.stop.{how}" in symbols]


def _clock(intrinsic: str) -> str:
    return (
        f"declare i64 @{intrinsic}()\n"
        f"define i64 @oxide.clock64() alwaysinline {{\n  %now = call i64 @{intrinsic}()\n  ret i64 %now\n}}"
    )
