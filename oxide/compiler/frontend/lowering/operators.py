"""Python's operators, as the rules of types name them. An operator in place, ``+=``, has the types and the code of the
plain one."""

from __future__ import annotations

import operator
from typing import Any

ARITHMETIC = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
)  # fmt: skip
COMPARISONS = {
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.eq: "==",
    operator.ne: "!=",
}
_BITWISE = (operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor)
_IN_PLACE = {each: getattr(operator, f"i{each.__name__.rstrip('_')}") for each in (*ARITHMETIC, *_BITWISE)}
_PLAIN = {in_place: plain for plain, in_place in _IN_PLACE.items()}


def operation_of(function: Any) -> Any:
    """Returns the operation of a function or an operator of numba's typing, in its plain form. Returns None for an
    object of numba's that has no hash."""
    key = getattr(function, "typing_key", function)
    try:
        return _PLAIN.get(key, key)
    except TypeError:
        return None


def forms_of(function: Any) -> tuple[Any, ...]:
    """Returns an operator and its form in place. Returns any other function alone."""
    return (function, _IN_PLACE[function]) if function in _IN_PLACE else (function,)
