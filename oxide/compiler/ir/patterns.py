"""Regular expressions over LLVM's text for the instructions that analyses of a kernel recognise.

The patterns of arithmetic match an instruction's text after its ``=``, as ``ssa.parse`` gives it. The patterns of
checks and calls match whole lines.
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
"""A read of a thread's coordinate or of a size of the launch."""

CHECK_RESULT = re.compile(rf"^  (?P<name>{NAME}) = (?:tail )?call i1 @oxide\.(?:in_bounds|aligned)\(")
"""A bounds check or an alignment check."""

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
"""Each predicate's negation."""

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
"""Each predicate with its operands exchanged."""

_CALLED = re.compile(r"\bcall\b[^@]*@(?P<name>\"[^\"]+\"|[-\w$.]+)\(")


def called_by(line: str) -> str | None:
    """Returns the name of the function that a line calls, "" for inline assembly and the like, or None for no call."""
    if match := _CALLED.search(line):
        return match["name"].strip('"')
    return "" if re.search(r"\bcall\b", line) else None


def fails_an_assert(line: str) -> bool:
    """Returns whether a line reports a failed ``assert``."""
    return "call void @oxide.assertion_failed(" in line


def conditions_of(text: str, truth: bool) -> list[tuple[str, bool]]:
    """Returns the truth values that an instruction's operands must have for its result to be ``truth``: of an ``and``
    that is true, an ``or`` that is false, and a ``not``. Returns [] for any other instruction."""
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
