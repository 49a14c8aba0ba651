"""Converts names, strings and lists to and from the form in which LLVM prints them."""

from __future__ import annotations

import re


def spaced(words: str) -> str:
    return f"{words} " if words else ""


def alignment(text: str) -> int:
    """Returns the alignment at the end of an access's text, or 1 if the text has none."""
    _, found, align = text.rpartition("align ")
    return int(align.partition(",")[0]) if found else 1


_PLAIN = re.compile(r"[-\w$.]+", re.ASCII)  # LLVM takes other letters only in quotes


def identifier(name: str) -> str:
    """Returns a name that PTX takes, with an underscore for each other letter."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def quoted(symbol: str) -> str:
    return symbol if _PLAIN.fullmatch(symbol) else f'"{symbol}"'


def unquoted(name: str) -> str:
    return name[1:-1] if name.startswith('"') else name


_ESCAPE = re.compile(r"\\(\\|[0-9A-Fa-f]{2})")


def unescaped(text: str) -> str:
    """Returns a string as it was before LLVM printed it. LLVM escapes bytes that are not printable ASCII."""
    plain = _ESCAPE.sub(lambda match: "\\" if match[1] == "\\" else chr(int(match[1], 16)), text)
    return plain.encode("latin-1").decode("utf-8", "replace")


def split_list(text: str) -> list[str]:
    """Splits a list at its commas, except those in brackets. Returns [] for blank text."""
    found, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth == 0:
            found.append(text[start:place].strip())
            start = place + 1
    return [*found, text[start:].strip()] if text.strip() else []
