"""Products of fragments as ``mma.sync``: inline PTX on the words of the fragments.

Once a product is inlined, its fragments are variables on the stack, which LLVM turns into registers.
"""

from __future__ import annotations

from collections.abc import Collection

from oxide.language.types import SCALARS

_PREFIX = "oxide.tensor.mma."

_OPERANDS = {
    # For each shape, the numbers of registers of a, b and c. If c is of f16, it has half as many.
    "m16n8k16": (4, 2, 4),
    "m16n8k8": (4, 2, 4),
    "m16n8k32": (4, 2, 4),
    "m8n8k4": (1, 1, 2),
}


def definitions(symbols: Collection[str]) -> str:
    """Returns the definitions of the products among ``symbols``."""
    return "\n".join(_product(symbol) for symbol in sorted(symbols) if symbol.startswith(_PREFIX))


def _product(symbol: str) -> str:
    shape, _, a, b, c = symbol.removeprefix(_PREFIX).split(".")
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
