"""The builder of total arithmetic: each operation on integers, and each conversion to an integer, is defined for every
input.

LLVM may assume that an undefined operation does not happen. It could then remove the bounds check of an index that such
an operation computes. So sums wrap here, and a shift by too many bits, a division by zero and a conversion out of range
have defined results. For shifts and divisions, the builder calls functions that ``compiler/ir/known_functions.py``
defines, unless the right operand is a constant for which LLVM's own instruction is defined.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from oxide.compiler.ir.known_functions import FAST, total_function

from .registry import session

_SUFFIXES = {"half": "f16", "float": "f32", "double": "f64"}


def _wrapping(operation: str) -> Any:
    """Returns a builder's method that drops the flags under which an overflow would be undefined."""
    plain = getattr(ir.IRBuilder, operation)

    def build(self: Any, lhs: Any, rhs: Any, name: str = "", flags: Any = ()) -> Any:
        return plain(self, lhs, rhs, name)

    return build


def _total(operation: str) -> Any:
    plain = getattr(ir.IRBuilder, operation)

    def build(self: Any, lhs: Any, rhs: Any, name: str = "", flags: Any = ()) -> Any:
        if _is_harmless(operation, rhs):
            return plain(self, lhs, rhs, name)
        kind = ir.FunctionType(lhs.type, (lhs.type, lhs.type))
        function = cgutils.get_or_insert_function(self.module, kind, total_function(operation, str(lhs.type)))
        return self.call(function, (lhs, rhs), name)

    return build


def _is_harmless(operation: str, right: Any) -> bool:
    """Returns whether the right operand of an operation is a constant with which the operation is defined for every
    left operand."""
    if not isinstance(right, ir.Constant) or not isinstance(right.constant, int):
        return False
    bits = right.type.width
    number = right.constant % (1 << bits)
    if operation in ("shl", "lshr", "ashr"):
        return bool(number < bits)
    return number != 0 and not (operation in ("sdiv", "srem") and number == (1 << bits) - 1)


def _saturating(operation: str) -> Any:
    def build(self: Any, value: Any, typ: Any, name: str = "") -> Any:
        intrinsic = f"llvm.{operation}.sat.{typ}.{_SUFFIXES[str(value.type)]}"
        function = cgutils.get_or_insert_function(self.module, ir.FunctionType(typ, (value.type,)), intrinsic)
        return self.call(function, (value,), name)

    return build


def _floating(operation: str) -> Any:
    """Returns a builder's method that adds the flags ``FAST`` to the instruction under ``fastmath``."""
    plain = getattr(ir.IRBuilder, operation)

    def build(self: Any, lhs: Any, rhs: Any, name: str = "", flags: Any = ()) -> Any:
        fast = session().fastmath and str(lhs.type) in ("float", "double")
        return plain(self, lhs, rhs, name, tuple(FAST.split()) if fast else flags)

    return build


class TotalBuilder(ir.IRBuilder):  # type: ignore[misc]
    """A builder whose integer arithmetic is total, and whose float arithmetic follows ``fastmath``."""

    add, sub, mul = map(_wrapping, ("add", "sub", "mul"))
    shl, lshr, ashr = map(_total, ("shl", "lshr", "ashr"))
    sdiv, udiv, srem, urem = map(_total, ("sdiv", "udiv", "srem", "urem"))
    fptosi, fptoui = map(_saturating, ("fptosi", "fptoui"))
    fadd, fsub, fmul, fdiv = map(_floating, ("fadd", "fsub", "fmul", "fdiv"))
