"""Contraction: decides which products are fused into sums. The decision is made once, on the front end's IR, before any
optimisation.

The rule is C's ``FP_CONTRACT ON``. A product of floats and the sum or difference of which it is an operand become one
fused multiply-add, which rounds once, if these conditions hold:

- The product is written with ``*`` and the sum with ``+``, ``-``, ``+=`` or ``-=``. Both are in one expression and have
  the same type, f32 or f64.
- The product is itself the operand of the sum. A product that is first assigned to a variable or an element, converted,
  negated or passed to a call is rounded.
- No ``if … else``, ``and`` or ``or`` is evaluated between the product and the sum.

If both operands of a sum are products, the left one is fused and the right one is rounded. LLVM and ptxas must not
contract on their own, so the kernel has the same roundings on every device.
"""

from __future__ import annotations

import operator
from typing import Any

from numba.cuda import types
from numba.cuda.core import ir

from .types import operation_of


def lower_fused(lower: Any, result: Any, expression: Any, function: Any) -> Any:
    """Returns the fused multiply-add for a sum or difference that contains a product. Returns None for any other
    expression.

    ``lower`` is numba's lowering of the function that contains ``expression``.
    """
    operation = operation_of(function)
    subtracts = operation is operator.sub
    if not (subtracts or operation is operator.add) or result not in (types.float32, types.float64):
        return None
    signature = lower.fndesc.calltypes[expression]
    if signature.return_type != result or any(kind != result for kind in signature.args):
        return None
    left, right = expression.lhs.name, expression.rhs.name
    builder = lower.builder
    if (product := _product(lower, left, result)) is not None:
        addend = _value(lower, right, result)
        return builder.fma(*product.operands, builder.fneg(addend) if subtracts else addend)
    if (product := _product(lower, right, result)) is not None:
        first, second = product.operands
        return builder.fma(builder.fneg(first) if subtracts else first, second, _value(lower, left, result))
    return None


def _product(lower: Any, name: str, kind: Any) -> Any:
    """Returns the ``fmul`` instruction that computes a temporary of the block being lowered. Returns None if ``name``
    is a variable of the kernel, or if no multiplication computes it."""
    if not name.startswith("$") or lower.typeof(name) != kind or name not in lower._blk_local_varmap:
        return None
    definitions = lower.func_ir._definitions[name]
    if len(definitions) != 1 or not isinstance(definitions[0], ir.Expr):
        return None
    (definition,) = definitions
    if definition.op != "binop" or definition.fn is not operator.mul:
        return None
    value = lower.loadvar(name)
    return value if getattr(value, "opname", None) == "fmul" else None


def _value(lower: Any, name: str, kind: Any) -> Any:
    return lower.context.cast(lower.builder, lower.loadvar(name), lower.typeof(name), kind)
