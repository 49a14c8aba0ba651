"""A kernel as one self-contained HTML page: its source with its bounds checks, and every form of its code."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from oxide.commands.inspect import text_of
from oxide.commands.listing import notes_of, source_lines
from oxide.errors import OxideError

if TYPE_CHECKING:
    from oxide.compiler.specialization import Specialization

_FORMS = {
    "ptx": "PTX",
    "sass": "SASS, the GPU's instructions",
    "asm": "Assembly for this machine's CPU",
    "llvm": "LLVM IR, which both back ends start from",
}

_STYLE = """
:root { color-scheme: light dark; --rule: #8884; --note: #06c; --call: #8882; }
@media (prefers-color-scheme: dark) { :root { --note: #7bf; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font: 13px/1.5 ui-monospace, monospace; }
td { padding: 0 .6rem; vertical-align: top; white-space: pre-wrap; border-bottom: 1px solid var(--rule); }
td.number { text-align: right; opacity: .6; user-select: none; }
td.note { color: var(--note); width: 40%; }
pre { font: 12px/1.45 ui-monospace, monospace; overflow-x: auto; background: var(--call); padding: .8rem; }
summary { cursor: pointer; font-weight: 600; margin: .8rem 0; }
"""


def page(special: Specialization, cc: tuple[int, int]) -> str:
    """Returns the page as HTML. If the PTX, SASS, assembly or LLVM IR cannot be made, the page shows the reason
    in its place, such as a missing tool."""
    kernel = special.description
    title = escape(f"{kernel.name}, compute capability {cc[0]}.{cc[1]}")
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>",
        *_table(special, "checks", cc),
    ]
    if kernel.tile is not None:
        parts.append(_folded("Plan", text_of(special, "checks", cc)))
    for form, heading in _FORMS.items():
        try:
            text = text_of(special, form, cc)
        except (OxideError, LookupError) as error:
            parts.append(f"<p>{escape(heading)}: {escape(str(error.args[0]))}</p>")
            continue
        parts.append(_folded(heading, text))
        if form in ("ptx", "sass", "asm"):
            parts += _by_line(special, form, heading, cc)
    return "\n".join([*parts, "</body></html>"])


def _by_line(special: Specialization, form: str, heading: str, cc: tuple[int, int]) -> list[str]:
    try:
        return [
            f"<details><summary>{escape(heading)}, line by line</summary>",
            *_table(special, form, cc),
            "</details>",
        ]
    except LookupError:  # no line tables
        return []


def _table(special: Specialization, form: str, cc: tuple[int, int]) -> list[str]:
    notes = notes_of(special, form, cc)
    parts = []
    for file, lines in source_lines(special, notes).items():
        parts.append(f"<p>{escape(file)}</p><table>")
        for number, text in lines:
            note = escape("\n".join(notes.get((file, number), ())))
            parts.append(
                f'<tr><td class="number">{number}</td><td>{escape(text)}</td><td class="note">{note}</td></tr>'
            )
        parts.append("</table>")
    return parts


def _folded(heading: str, text: str) -> str:
    return f"<details><summary>{escape(heading)}</summary><pre>{escape(text)}</pre></details>"
