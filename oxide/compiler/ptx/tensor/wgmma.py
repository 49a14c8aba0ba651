"""``tensor.wgmma`` as PTX's ``wgmma.mma_async``.

An operand in shared memory is passed as a descriptor. It has the address and two strides, all in units of 16 bytes, and
the 128-byte swizzle. The memory consists of panels, whose rows have 128 bytes. If neighbours in a row are neighbours
along k (order ``k``), one stride is the distance between groups of 8 rows, and the next instruction's operand begins 32
bytes further. If each row is one position along k (order ``mn``), the strides are the distance between groups of 8 rows
and the distance between panels of 64 elements. The next instruction's operand then begins 16 rows further.

A left operand in registers (order ``r``) is four words for each instruction, in the order of ``mma``. The fence takes
and returns these words in tied registers, so that nothing writes them between the fence and the products.

The instructions take and return the accumulators in tied registers, so that ptxas sees no other use of them before the
wait.
"""

from __future__ import annotations

from collections.abc import Collection

from oxide.compiler.source.fragment_layouts import BITS, DEPTHS, PRODUCTS
from oxide.language.types import SCALARS

_WGMMA = "oxide.tensor.wgmma."
_WAIT = "oxide.tensor.wgmma_wait."
_REGISTERS = "oxide.tensor.registers."

_SWIZZLE_128 = 1 << 62
_GROUP = 1024 >> 4
"""The size of a group of 8 rows of 128 bytes, in units of 16 bytes."""


def moves_registers(symbols: Collection[str]) -> bool:
    """Returns whether some warps of a kernel release registers for other warps to take."""
    return any(symbol.startswith(_REGISTERS) for symbol in symbols)


def definitions(symbols: Collection[str]) -> list[str]:
    """Returns the definitions of the primitives among ``symbols``."""
    texts = []
    for symbol in sorted(symbols):
        if symbol.startswith(_WGMMA):
            texts.append(_product(symbol))
        elif symbol.startswith(_WAIT):
            texts.append(_wait(symbol))
        elif symbol.startswith(_REGISTERS):
            how, count = symbol.removeprefix(_REGISTERS).split(".")
            texts.append(
                f"define void @{symbol}(ptr %context, i32 %site) alwaysinline convergent {{\n"
                f'  call void asm sideeffect "setmaxnreg.{how}.sync.aligned.u32 {count};", "~{{memory}}"() convergent\n'
                "  ret void\n}"
            )
    return texts


_WORDS = {"f32": ("float", "=f"), "i32": ("i32", "=r")}
"""The LLVM type and the constraint of an accumulator's register."""


def _registers(count: int, kind: str) -> tuple[str, list[str], list[str]]:
    """Returns the structure of ``count`` accumulators of an LLVM type, and the lines that load and store them."""
    structure = "{ " + ", ".join([kind] * count) + " }"
    loads, stores = [], []
    for i in range(count):
        loads.append(f"  %at.{i} = getelementptr {kind}, ptr %c, i64 {i}")
        loads.append(f"  %c.{i} = load {kind}, ptr %at.{i}")
        stores.append(f"  %d.{i} = extractvalue {structure} %d, {i}")
        stores.append(f"  store {kind} %d.{i}, ptr %at.{i}")
    return structure, loads, stores


def _descriptor(name: str, order: str, panel_bytes: int) -> list[str]:
    """Returns the lines that make the descriptor ``%<name>.0`` of the operand at the address ``%<name>``."""
    leading = 1 if order == "k" else panel_bytes >> 4
    fixed = _SWIZZLE_128 | _GROUP << 32 | leading << 16
    return [
        f"  %{name}.address = call i32 @oxide.tensor.shared_address(ptr %{name})",
        f"  %{name}.units = lshr i32 %{name}.address, 4",
        f"  %{name}.low = and i32 %{name}.units, 16383",
        f"  %{name}.wide = zext i32 %{name}.low to i64",
        f"  %{name}.0 = or i64 %{name}.wide, {fixed}",
    ]


def _product(symbol: str) -> str:
    n, a_type, b_type, a_order, b_order, steps, b_panel, how = symbol.removeprefix(_WGMMA).split(".")
    count, in_registers = int(n) // 2, a_order == "r"
    total = next(iter(PRODUCTS[a_type, b_type]))
    kind, constraint = _WORDS[total]
    structure, loads, stores = _registers(count, kind)
    words = 4 * int(steps) if in_registers else 0
    a_count = 4 if in_registers else 1
    registers = ", ".join(f"${i}" for i in range(count))
    places = [f"${count + i}" for i in range(a_count + 1)]
    a_place = f"{{{', '.join(places[:-1])}}}" if in_registers else places[0]
    orders = [b_order] if in_registers else [a_order, b_order]
    # Products of floats take a factor of 1 for each operand. Operands of 16 bits, which may have either order, take
    # their orders.
    flags = ["1", "1"] if total == "f32" else []
    flags += ["1" if order == "mn" else "0" for order in orders] if BITS[a_type] == 16 else []
    text = f"wgmma.mma_async.sync.aligned.m64n{n}k{DEPTHS[a_type]}.{SCALARS[total].ptx_type}."
    text += ".".join("tf32" if each == "f32" else SCALARS[each].ptx_type for each in (a_type, b_type)) + " "
    text += f"{{{registers}}}, {', '.join([a_place, places[-1], '<adds>', *flags])};"
    a_constraints = ["r"] * 4 if in_registers else ["l"]
    constraints = ",".join([constraint] * count + [*a_constraints, "l"] + [str(i) for i in range(count)])
    lines = [
        f"define void @{symbol}(ptr %context, ptr %c, ptr %a, ptr %b, i32 %site) alwaysinline convergent {{",
        *(loads if how == "add" else [line for line in loads if "getelementptr" in line]),
        *([] if in_registers else _descriptor("a", a_order, 0)),
        *_descriptor("b", b_order, int(b_panel)),
        *_fence(words),
    ]
    values = [f"{kind} %c.{i}" if how == "add" else f"{kind} undef" for i in range(count)]
    # The next step begins 32 bytes or 16 rows of 128 bytes further, in units of 16 bytes.
    a_step, b_step = (2 if order == "k" else 16 * 128 >> 4 for order in (a_order, b_order))
    for step in range(int(steps)):
        last = step == int(steps) - 1
        result = "%d" if last else f"%step.{step}"
        if step:
            lines += [] if in_registers else [f"  %a.{step} = add i64 %a.0, {step * a_step}"]
            lines.append(f"  %b.{step} = add i64 %b.0, {step * b_step}")
        left = [f"i32 %word.{4 * step + i}" for i in range(4)] if in_registers else [f"i64 %a.{step}"]
        given = ", ".join([*left, f"i64 %b.{step}", *values])
        adds = text.replace("<adds>", "1" if step or how == "add" else "0")
        lines.append(f'  {result} = call {structure} asm sideeffect "{adds}", "{constraints}"({given}) convergent')
        if not last:
            lines += [f"  %step.{step}.{i} = extractvalue {structure} {result}, {i}" for i in range(count)]
            values = [f"{kind} %step.{step}.{i}" for i in range(count)]
    lines.append('  call void asm sideeffect "wgmma.commit_group.sync.aligned;", "~{memory}"() convergent')
    return "\n".join([*lines, *stores, "  ret void", "}"])


def _fence(words: int) -> list[str]:
    """Returns the fence before products. It reads the words of a left operand in registers from ``%a``, and defines
    them again as ``%word.0`` and so on."""
    text = "wgmma.fence.sync.aligned;"
    if not words:
        return [f'  call void asm sideeffect "{text}", "~{{memory}}"() convergent']
    structure = "{ " + ", ".join(["i32"] * words) + " }"
    lines = []
    for i in range(words):
        lines.append(f"  %from.{i} = getelementptr i32, ptr %a, i64 {i}")
        lines.append(f"  %given.{i} = load i32, ptr %from.{i}")
    constraints = ",".join(["=r"] * words + [str(i) for i in range(words)] + ["~{memory}"])
    given = ", ".join(f"i32 %given.{i}" for i in range(words))
    lines.append(f'  %fenced = call {structure} asm sideeffect "{text}", "{constraints}"({given}) convergent')
    return [*lines, *(f"  %word.{i} = extractvalue {structure} %fenced, {i}" for i in range(words))]


def _wait(symbol: str) -> str:
    length, total, pending = symbol.removeprefix(_WAIT).split(".")
    count, (kind, constraint) = int(length), _WORDS[total]
    structure, loads, stores = _registers(count, kind)
    constraints = ",".join([constraint] * count + [str(i) for i in range(count)]) + ",~{memory}"
    given = ", ".join(f"{kind} %c.{i}" for i in range(count))
    return "\n".join(
        [
            f"define void @{symbol}(ptr %context, ptr %c, i32 %site) alwaysinline convergent {{",
            *loads,
            f'  %d = call {structure} asm sideeffect "wgmma.wait_group.sync.aligned {pending};", "{constraints}"'
            f"({given}) convergent",
            *stores,
            "  ret void",
            "}",
        ]
    )
