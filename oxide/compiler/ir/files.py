"""Reads templates of IR from ``.ll`` files of the package.

``<record.field>`` in a file stands for a field's offset in a record of ``driver/records.py``, and ``<record.sizeof>``
for the record's size. ``{{field}}`` and ``{{field[index]}}`` stand for addresses. Other names in angle brackets or
braces are for a back end to fill in.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

from oxide.driver.records import RECORDS

_OFFSET = re.compile(r"<(\w+)\.([\w.]+(?:\[\d+\])?)>")


@functools.cache
def ir_file(module: str, name: str) -> str:
    """Returns the text of ``name``, a file in the directory of the module whose ``__file__`` is ``module``.

    The records' offsets are filled in. Raises ``LookupError`` for a record or a field that does not exist."""
    return with_offsets(Path(module).with_name(name).read_text(encoding="utf-8"), name)


def with_offsets(text: str, name: str) -> str:
    """Returns IR with the records' offsets filled in. Raises ``LookupError`` for a record or a field that does not
    exist. ``name`` is the IR's file, for the error."""

    def offset(found: re.Match[str]) -> str:
        record, field = found.groups()
        if record not in RECORDS:
            raise LookupError(f"{name}: {found[0]} names no record; the records are {', '.join(RECORDS)}")
        layout = RECORDS[record]
        try:
            return str(layout.size if field == "sizeof" else layout.offset(field))
        except LookupError as error:
            raise LookupError(f"{name}: {found[0]}: {error}") from None

    return _OFFSET.sub(offset, text)


def with_addresses(text: str, address: Callable[[str, str, str], str]) -> str:
    """Returns IR with the addresses of fields filled in. ``address`` takes the name of a result, a field and an index,
    which may be "", and returns the line that computes the result."""
    lines: list[str] = []
    for line in text.split("\n"):
        while "{{" in line:
            before, _, rest = line.partition("{{")
            field, _, after = rest.partition("}}")
            name, _, index = field.removesuffix("]").partition("[")
            result = f"%field.{len(lines)}"
            lines.append(address(result, name, index))
            line = f"{before}ptr {result}{after}"
        lines.append(line)
    return "\n".join(lines)
