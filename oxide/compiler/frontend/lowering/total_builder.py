"""The builder of total arithmetic, and contraction. With the builder, each operation on integers, and each conversion
to an integer, is defined for every input.

LLVM may assume that an undefined operation does not happen. It could then remove the bounds check of an index that such
an operation computes. So sums wrap here, and a shift by too many bits, a division by zero and a conversion out of range
have defined results. For shifts and divisions, the builder calls functions that ``compiler/ir/known_functions.py``
defines, unless the right operand is a constant for which LLVM's own instruction is defined.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.core import ir as numba_ir

from oxide.compiler.ir.known_functions import FAST, total_function

from .composites import components, packed
from .registry import session
from .types import ComponentsType, operation_of

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


# Contraction: which products are fused into sums. The decision is made once, on the front end's IR, before any
# optimisation. The rule is C's ``FP_CONTRACT ON``. A product of floats and the sum or difference of which it is an
# operand become one fused multiply-add, which rounds once, if these conditions hold:
#
# - The product is written with ``*`` and the sum with ``+``, ``-``, ``+=`` or ``-=``. Both are in one expression and
#   have the same type, f32 or f64.
# - The product is itself the operand of the sum. A product that is first assigned to a variable or an element,
#   converted, negated or passed to a call is rounded.
# - No ``if … else``, ``and`` or ``or`` is evaluated between the product and the sum.
#
# If both operands of a sum are products, the left one is fused and the right one is rounded. LLVM and ptxas must not
# contract on their own, so the kernel has the same roundings on every device.


def lower_fused(lower: Any, result: Any, expression: Any, function: Any) -> Any:
    """Returns the fused multiply-add for a sum or difference that contains a product. Returns None for any other
    expression.

    ``lower`` is numba's lowering of the function that contains ``expression``.
    """
    operation = operation_of(function)
    subtracts = operation is operator.sub
    part = result.dtype if isinstance(result, ComponentsType) else result
    if not (subtracts or operation is operator.add) or part not in (types.float32, types.float64):
        return None
    signature = lower.fndesc.calltypes[expression]
    if signature.return_type != result or any(kind not in (result, part) for kind in signature.args):
        return None
    left, right = expression.lhs.name, expression.rhs.name
    builder = lower.builder
    fused = []
    if (products := _products(lower, left, result)) is not None:
        for product, addend in zip(products, _values(lower, right, result, signature.args[1]), strict=True):
            fused.append(builder.fma(*product.operands, builder.fneg(addend) if subtracts else addend))
    elif (products := _products(lower, right, result)) is not None:
        for product, addend in zip(products, _values(lower, left, result, signature.args[0]), strict=True):
            first, second = product.operands
            fused.append(builder.fma(builder.fneg(first) if subtracts else first, second, addend))
    if not fused:
        return None
    return packed(builder, result, fused, lower.context) if isinstance(result, ComponentsType) else fused[0]


def _products(lower: Any, name: str, kind: Any) -> list[Any] | None:
    """Returns the ``fmul`` instructions that compute a temporary of the block being lowered: one, or one for each
    component of a vector. Returns None if ``name`` is a variable of the kernel, or if no multiplication computes it."""
    if not name.startswith("$") or lower.typeof(name) != kind or name not in lower._blk_local_varmap:
        return None
    definitions = lower.func_ir._definitions[name]
    if len(definitions) != 1 or not isinstance(definitions[0], numba_ir.Expr):
        return None
    (definition,) = definitions
    if definition.op != "binop" or definition.fn is not operator.mul:
        return None
    value = lower.loadvar(name)
    parts = [value]
    if isinstance(kind, ComponentsType):
        parts = []
        while isinstance(value, ir.instructions.InsertValue):
            value, part = value.operands
            parts.insert(0, part)
    return parts if all(getattr(part, "opname", None) == "fmul" for part in parts) else None


def _values(lower: Any, name: str, result: Any, kind: Any) -> list[Any]:
    """Returns the addends of a sum: one, or one for each component of a vector."""
    value = lower.context.cast(lower.builder, lower.loadvar(name), lower.typeof(name), kind)
    if not isinstance(result, ComponentsType):
        return [value]
    return components(lower.builder, kind, value) if isinstance(kind, ComponentsType) else [value] * result.count
