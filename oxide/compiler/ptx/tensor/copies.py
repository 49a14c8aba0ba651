"""``ldmatrix``, ``stmatrix`` and the asynchronous copies: one instruction each.

The addresses are generic. LLVM finds that the addresses are in shared memory, and removes the casts.
"""

from __future__ import annotations

from collections.abc import Collection

_PREFIX = "oxide.tensor."


def definitions(symbols: Collection[str]) -> str:
    """Returns the definitions of the moves and copies among ``symbols``."""
    texts: list[str] = []
    for symbol in sorted(symbols):
        match symbol.removeprefix(_PREFIX).split("."):
            case "ldmatrix" | "stmatrix" as name, how, *transposed:
                texts.append(_blocks(symbol, name, int(how[1:]), bool(transposed)))
            case "copy_async", size:
                texts.append(_copy(symbol, int(size)))
            case ["commit"]:
                texts.append(_COMMIT)
            case "wait", groups if symbol.startswith(_PREFIX):
                texts.append(_WAIT.replace("<groups>", groups))
    return "\n".join(texts)


def _blocks(symbol: str, name: str, count: int, transposed: bool) -> str:
    """Defines a move of 1, 2 or 4 matrices of 8 rows of 16 bytes between shared memory and the words of a fragment."""
    words = ["i32"] * count
    structure = f"{{ {', '.join(words)} }}" if count > 1 else "i32"
    intrinsic = f"@llvm.nvvm.{name}.sync.aligned.m8n8.x{count}{'.trans' * transposed}.b16.p3"
    lines = [
        f"define void @{symbol}(ptr %context, ptr %row, ptr %words, i32 %site) alwaysinline convergent {{",
        "  %shared = addrspacecast ptr %row to ptr addrspace(3)",
        *(f"  %at.{i} = getelementptr i32, ptr %words, i64 {i}" for i in range(count)),
    ]
    if name == "ldmatrix":
        head = f"declare {structure} {intrinsic}(ptr addrspace(3)) convergent"
        lines.append(f"  %loaded = call {structure} {intrinsic}(ptr addrspace(3) %shared) convergent")
        for i in range(count):
            word = f"%word.{i}" if count > 1 else "%loaded"
            lines += [f"  {word} = extractvalue {structure} %loaded, {i}"] * (count > 1)
            lines.append(f"  store i32 {word}, ptr %at.{i}")
    else:
        head = f"declare void {intrinsic}(ptr addrspace(3), {', '.join(words)}) convergent"
        lines += [f"  %word.{i} = load i32, ptr %at.{i}" for i in range(count)]
        given = ", ".join(f"i32 %word.{i}" for i in range(count))
        lines.append(f"  call void {intrinsic}(ptr addrspace(3) %shared, {given}) convergent")
    return "\n".join([head, *lines, "  ret void", "}"])


def _copy(symbol: str, size: int) -> str:
    """Defines a copy. A copy of 16 bytes bypasses the L1 cache, because other threads of the block rarely need the
    data."""
    intrinsic = f"@llvm.nvvm.cp.async.{'cg' if size == 16 else 'ca'}.shared.global.{size}.s"
    return f"""declare void {intrinsic}(ptr addrspace(3), ptr addrspace(1), i32)
define void @{symbol}(ptr %context, ptr %target, ptr %source, i32 %taken, i32 %site) alwaysinline {{
  %shared = addrspacecast ptr %target to ptr addrspace(3)
  %global = addrspacecast ptr %source to ptr addrspace(1)
  call void {intrinsic}(ptr addrspace(3) %shared, ptr addrspace(1) %global, i32 %taken)
  ret void
}}"""


_COMMIT = """declare void @llvm.nvvm.cp.async.commit.group()
define void @oxide.tensor.commit(ptr %context, i32 %site) alwaysinline {
  call void @llvm.nvvm.cp.async.commit.group()
  ret void
}"""

_WAIT = """declare void @llvm.nvvm.cp.async.wait.group(i32)
define void @oxide.tensor.wait.<groups>(ptr %context, i32 %site) alwaysinline {
  call void @llvm.nvvm.cp.async.wait.group(i32 <groups>)
  ret void
}"""
