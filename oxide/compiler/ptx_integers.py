"""Integer instructions of PTX that ptxas takes for more than their specification says.

By PTX's specification ``abs`` and ``neg`` wrap for the least number. ptxas 13.0 assumes that the result of ``abs`` is
not negative, and that the result of ``neg.s16``, or of a subtraction from 0, fits in 16 bits before it is cut to them.
So ``abs(x) < 0`` is false for every x, and ``-x`` of the least ``i16`` is 32768 where it is widened. Before a maximum
of three 16-bit numbers ptxas even loses the negation of one.

This was seen on an H100 (2026-11-22, driver 580.159.04) in 565 combinations of an instruction and one that reads its
result, over every number of 16 bits, and the extremes and 3000 others of 32 and 64: 20 were wrong, all by ``abs`` in
three widths and ``neg.s16``. Other subtractions, ``add``, ``mul``, ``mad``, ``not``, ``xor``, shifts, ``min``, ``max``,
``div``, ``rem`` and a selection between x and its negation are as specified.

Both are written out as assembly after all optimisation, since LLVM makes its own instruction of every other form.
"""

from __future__ import annotations

import re
from typing import Any

import llvmlite.binding as llvm

from .optimise import run_passes

_ASSUMED = re.compile(
    r"\b(?P<abs>call [^@\n]*@llvm\.abs\.\w+\((?P<of>(?:<\d+ x )?i(?:16|32|64)>?) (?P<value>%[^,\n]+), i1 false\))"
    r"|\bsub (?:nsw |nuw )*(?P<short>i16|<\d+ x i16>) (?:0|zeroinitializer), (?P<negated>%[^,\n]+)"
)
_REGISTERS = {"i16": "h", "i32": "r", "i64": "l"}


def wrapping(module: Any, machine: Any) -> Any:
    """The optimised module with ``abs``, and ``-x`` of 16 bits, as assembly that wraps for the least number."""
    helpers: dict[str, str] = {}

    def call(match: re.Match[str]) -> str:
        what = "abs" if match["abs"] else "neg"
        kind, value = match["of"] or match["short"], match["value"] or match["negated"]
        name = f"oxide.wrapping.{what}.{re.sub(r'[^0-9i]', '', kind)}"
        helpers[name] = _wrapping_helper(name, what, kind)
        return f"call {kind} @{name}({kind} {value})"

    text = _ASSUMED.sub(call, str(module))
    if not helpers:
        return module
    module = llvm.parse_assembly("\n".join([text, *helpers.values()]))
    run_passes(module, machine, ("always_inliner",))
    return module


def _wrapping_helper(name: str, what: str, kind: str) -> str:
    """A function of one number, or of each of a vector's."""
    match = re.fullmatch(r"<(\d+) x (i\d+)>", kind)
    element = match[2] if match else kind
    bits, register = element[1:], _REGISTERS[element]
    code = f"{{ .reg .pred negative; .reg .b{bits} negated; not.b{bits} negated, $1; add.s{bits} negated, negated, 1; "
    if what == "abs":
        code += f"setp.lt.s{bits} negative, $1, 0; selp.b{bits} $0, negated, $1, negative; }}"
    else:
        code += f"mov.b{bits} $0, negated; }}"
    assembly = f'call {element} asm "{code}", "={register},{register}"'
    head = f"define internal {kind} @{name}({kind} %x) alwaysinline {{"
    if match is None:
        return f"{head}\n  %r = {assembly}({kind} %x)\n  ret {kind} %r\n}}"
    lines = [head]
    for lane in range(int(match[1])):
        before = f"%all.{lane - 1}" if lane else "poison"
        lines += [
            f"  %x.{lane} = extractelement {kind} %x, i32 {lane}",
            f"  %one.{lane} = {assembly}({element} %x.{lane})",
            f"  %all.{lane} = insertelement {kind} {before}, {element} %one.{lane}, i32 {lane}",
        ]
    return "\n".join([*lines, f"  ret {kind} %all.{lane}", "}"])
