"""Splits nested lists in text: LLVM's operands and types, numba's types."""

from __future__ import annotations


def split_list(text: str) -> list[str]:
    """Splits a list at its commas, except those in brackets. Returns [] for blank text."""
    found, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth == 0:
            found.append(text[start:place].strip())
            start = place + 1
    return [*found, text[start:].strip()] if text.strip() else []
