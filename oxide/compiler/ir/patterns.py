"""The instructions that analyses of a kernel know, as regular expressions over LLVM's text: one for each.

Arithmetic is matched by an instruction's text after its ``=``, as ``ssa.parse`` gives it; what a thread's indices are
checked by, and calls, by whole lines.
"""

from __future__ import annotations

import re

from .ssa import NAME

BINARY = re.compile(
    r"(?P<operation>add|sub|mul|shl|or disjoint|and|or|xor|lshr|ashr)(?: (?:nuw|nsw|exact))* "
    r"(?P<type>i\d+) (?P<left>[^,]+), (?P<right>[^,]+)$"
)
CAST = re.compile(
    r"(?P<operation>zext|sext|trunc)(?: (?:nneg|nuw|nsw))* (?P<source>i\d+) (?P<value>\S+) to (?P<type>i\d+)$"
)
COMPARE = re.compile(r"icmp (?:samesign )?(?P<predicate>\w+) (?P<type>i\d+) (?P<left>[^,]+), (?P<right>[^,]+)$")
SELECT = re.compile(r"select i1 (?P<condition>[^,]+), (?P<type>i\d+) (?P<left>[^,]+), i\d+ (?P<right>[^,]+)$")
INTRINSIC = re.compile(
    r"(?:tail )?call i\d+ (?P<function>@llvm\.(?P<operation>smin|smax|umin|umax|ssub\.sat|usub\.sat)\.(?P<type>i\d+))"
    r"\(i\d+ (?P<left>[^,]+), i\d+ (?P<right>[^,]+)\)$"
)
BRANCH = re.compile(rf"br i1 (?P<condition>{NAME}), label (?P<yes>{NAME}), label (?P<no>{NAME})")
REGISTER = re.compile(r"(?:tail )?call i32 @oxide\.register\.(?P<name>[\w.]+)\([^)]*\)")
"""A thread's coordinate, or a size of the launch."""

CHECK_RESULT = re.compile(rf"^  (?P<name>{NAME}) = (?:tail )?call i1 @oxide\.(?:in_bounds|aligned)\(")
"""A check of either kind."""

BOUNDS_CHECK = re.compile(
    rf"^  (?P<name>{NAME}) = (?:tail )?call i1 @oxide\.in_bounds\(ptr [^,]+, i64 (?P<index>[^,]+), "
    r"i64 (?P<length>[^,]+), i32 (?P<site>[^)]+)\)"
)
ALIGNMENT_CHECK = re.compile(
    rf"^  (?P<name>{NAME}) = (?:tail )?call i1 @oxide\.aligned\(ptr [^,]+, i64 (?P<bits>[^,]+), i32 [^)]+\)"
)

INVERSE = {
    "slt": "sge",
    "sle": "sgt",
    "sgt": "sle",
    "sge": "slt",
    "ult": "uge",
    "ule": "ugt",
    "ugt": "ule",
    "uge": "ult",
}
"""The predicate that holds where another does not."""

MIRROR = {
    "slt": "sgt",
    "sle": "sge",
    "sgt": "slt",
    "sge": "sle",
    "ult": "ugt",
    "ule": "uge",
    "ugt": "ult",
    "uge": "ule",
}
"""The predicate of the same comparison with its sides exchanged."""

_CALLED = re.compile(r"\bcall\b[^@]*@(?P<name>\"[^\"]+\"|[-\w$.]+)\(")


def called_by(line: str) -> str | None:
    """The name of the function that a line calls: "" for one without a name, as inline assembly; None for no call."""
    if match := _CALLED.search(line):
        return match["name"].strip('"')
    return "" if re.search(r"\bcall\b", line) else None


def fails_an_assert(line: str) -> bool:
    """Whether a line is what an ``assert`` that fails comes to."""
    return "call void @oxide.assertion_failed(" in line


def conditions_of(text: str, truth: bool) -> list[tuple[str, bool]]:
    """What an instruction's operands must be, each for itself, for its result to be ``truth``: those of an ``and`` that
    is true, an ``or`` that is not, and a ``not``. None of any other instruction."""
    if match := SELECT.match(text):
        # `a and b` is select(a, b, false), `a or b` is select(a, true, b).
        if truth and match["right"] == "false":
            return [(match["condition"], True), (match["left"], True)]
        if not truth and match["left"] == "true":
            return [(match["condition"], False), (match["right"], False)]
    elif match := BINARY.match(text):
        if match["operation"] == ("and" if truth else "or"):
            return [(match["left"], truth), (match["right"], truth)]
        if (match["operation"], match["right"]) == ("xor", "true"):
            return [(match["left"], not truth)]
    return []
