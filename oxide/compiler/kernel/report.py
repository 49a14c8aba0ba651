"""A kernel's report for notebooks: its name, its parameters, its options and its docstring."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oxide.errors import place_name
from oxide.pictures.drawing import preformatted, table

if TYPE_CHECKING:
    from oxide.compiler.declaration.description import KernelDescription


def described(options: KernelDescription, defaults: Mapping[str, Any]) -> str:
    """Returns the report of a kernel as HTML. Compiles nothing."""
    rows = [
        (each.name, f"{each.annotation} = {defaults[each.name]!r}" if each.name in defaults else str(each.annotation))
        for each in options.parameters
    ]
    shown = {
        "block": options.default_block,
        "items per thread": options.items_per_thread if options.items_per_thread != (1, 1, 1) else None,
        "requires": ", ".join(contract.text for contract in options.contracts),
        "max registers": options.max_registers,
        "cluster": options.cluster,
        "options": ", ".join(
            name for name in ("unchecked", "deny_checks", "fastmath", "partial") if getattr(options, name)
        ),
    }
    rows += [(name, str(value)) for name, value in shown.items() if value]
    return report("kernel", options.name, options.function, rows)


def report(kind: str, name: str, function: Any, rows: list[tuple[str, str]]) -> str:
    """Returns the report of a kernel: its name and place, a table, and its docstring."""
    code = function.__code__
    caption = f"{kind} {name}, {place_name(code.co_filename, code.co_firstlineno)}"
    doc = inspect.getdoc(function)
    return table(rows, caption) + (preformatted(doc) if doc else "")
