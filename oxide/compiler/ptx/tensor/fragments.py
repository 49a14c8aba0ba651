"""Products of fragments, their moves, and asynchronous copies of elements: one instruction each.

Products are inline PTX on the words of the fragments. Once a product is inlined, its fragments are variables on the
stack, which LLVM turns into registers. The addresses of the other instructions are generic. LLVM finds that the
addresses are in shared memory, and removes the casts.
"""

from __future__ import annotations

from collections.abc import Collection

from oxide.language.types import SCALARS

_PREFIX = "oxide.tensor."


def definitions(symbols: Collection[str]) -> list[str]:
    """Returns the definitions of the products, moves and copies among ``symbols``."""
    texts: list[str] = []
    for symbol in sorted(symbols):
        match symbol.removeprefix(_PREFIX).split("."):
            case "mma", *_:
                texts.append(_product(symbol))
            case "ldmatrix" | "stmatrix" as name, how, *transposed:
                texts.append(_blocks(symbol, name, int(how[1:]), bool(transposed)))
            case "copy_async", size:
                texts.append(_copy(symbol, int(size)))
            case ["commit"]:
                texts.append(_COMMIT)
            case "wait", groups if symbol.startswith(_PREFIX):
                texts.append(_WAIT.replace("<groups>", groups))
    return texts


_OPERANDS = {
    # For each shape, the numbers of registers of a, b and c. If c is of f16, it has half as many.
    "m16n8k16": (4, 2, 4),
    "m16n8k8": (4, 2, 4),
    "m16n8k32": (4, 2, 4),
    "m8n8k4": (1, 1, 2),
}


def _product(symbol: str) -> str:
    shape, _, a, b, c = symbol.removeprefix(f"{_PREFIX}mma.").split(".")
    a_count, b_count, c_count = _OPERANDS[shape]
    if c == "f16":
        c_count //= 2
    operand, constraint = ("double", "d") if a == "f64" else ("i32", "r")
    result, result_constraint = {"f32": ("float", "f"), "f64": ("double", "d")}.get(c, ("i32", "r"))
    types = [SCALARS[each].ptx_type for each in (c, a, b, c)]
    if a == "f32":
        types[1:3] = ["tf32", "tf32"]
    lines = [
        f"define void @{symbol}(ptr %context, ptr %c, ptr %a, ptr %b, i32 %site) alwaysinline convergent {{",
        *_loads("a", operand, a_count),
        *_loads("b", operand, b_count),
        *_loads("c", result, c_count),
    ]
    given = [f"{operand} %a.{i}" for i in range(a_count)] + [f"{operand} %b.{i}" for i in range(b_count)]
    given += [f"{result} %c.{i}" for i in range(c_count)]
    text = f"mma.sync.aligned.{shape}.row.col.{'.'.join(types)} "
    text += ", ".join(_registers(first, count) for first, count in _places(c_count, a_count, b_count, c_count))
    constraints = [f"={result_constraint}"] * c_count + [constraint] * (a_count + b_count)
    constraints += [result_constraint] * c_count
    structure = "{ " + ", ".join([result] * c_count) + " }"
    lines.append(
        f'  %d = call {structure} asm "{text};", "{",".join(constraints)}"({", ".join(given)}) convergent nounwind'
    )
    for i in range(c_count):
        lines.append(f"  %d.{i} = extractvalue {structure} %d, {i}")
        lines.append(f"  store {result} %d.{i}, ptr %c.{i}.at")
    return "\n".join([*lines, "  ret void", "}"])


def _loads(name: str, kind: str, count: int) -> list[str]:
    lines: list[str] = []
    for i in range(count):
        lines.append(f"  %{name}.{i}.at = getelementptr {kind}, ptr %{name}, i64 {i}")
        lines.append(f"  %{name}.{i} = load {kind}, ptr %{name}.{i}.at")
    return lines


def _places(*counts: int) -> list[tuple[int, int]]:
    return [(sum(counts[:number]), count) for number, count in enumerate(counts)]


def _registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"${first + i}" for i in range(count)) + "}"


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
