"""``Nodes``: makes the nodes of the tile IR, with NumPy's types and shapes, and the errors of a kernel.

An error names the line and the column of ``Nodes.at``, the expression that is being evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, final

import numpy as np

from oxide.compiler.source.faults import Narrowing
from oxide.compiler.source.source import located
from oxide.compiler.tile.ir import BOOL, DTYPES, F64, I64, U64, Node, Region, Site
from oxide.errors import CompileError
from oxide.host.messages import written
from oxide.language import promotion
from oxide.language import tile as language
from oxide.language.promotion import Operand, Place, Refused
from oxide.language.types import OF_PYTHON, ScalarType, of_dtype

__all__ = ["Nodes", "TensorParameter"]

T = TypeVar("T")

_PLACES = ("counter", "length", "program_id", "num_programs")
"""The operations whose results are places."""
SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "and": "&",
    "or": "|", "xor": "^", "shl": "<<", "shr": ">>", "neg": "-", "pos": "+", "invert": "~",
}  # fmt: skip
"""The operators of elementwise operations, as ``promotion`` knows them."""
_MOST_ELEMENTS = 2**20


@final
@dataclass(frozen=True, slots=True)
class TensorParameter:
    """A parameter that is a tensor, a partition or a target, as the kernel's body sees it. ``tile`` is the tile shape
    of a partition."""

    name: str
    scalar: ScalarType
    ndim: int
    tile: tuple[int, ...] | None = None
    is_target: bool = False

    @property
    def kind(self) -> str:
        """Returns the kind of parameter, in words."""
        return "target" if self.is_target else "tensor" if self.tile is None else "partition"


@final
class Nodes:
    """Makes nodes in ``region``. ``at`` is the expression of ``function`` that is being evaluated. ``depth`` counts the
    loops and branches around this expression, except those that are decided at compile time."""

    def __init__(self, function: Callable[..., Any], shift: int) -> None:
        self.function = function
        self.shift = shift
        self.region = Region(None)
        self.sites: list[Site] = []
        self.narrowings: set[Narrowing] = set()
        self.at: Any = None
        self.depth = 0
        self._count = 0

    # Errors

    def error(self, problem: str) -> CompileError:
        """Returns an error at the present expression."""
        line = getattr(self.at, "lineno", None)
        column = getattr(self.at, "col_offset", None)
        if line is None:
            return located(self.function, problem)
        return located(self.function, problem, line + self.shift, column)

    def refuse(self, problem: str) -> NoReturn:
        """Raises ``error(problem)``."""
        raise self.error(problem)

    def shown(self, value: Any) -> str:
        """Returns a description of a value for error messages."""
        if isinstance(value, Node):
            if value.weak is not None:
                return "an int" if value.weak in (int, Place) else f"a {value.weak.__name__}"
            return f"a tile {value.shape} of {value.dtype.name}" if value.shape else f"a scalar of {value.dtype.name}"
        if isinstance(value, TensorParameter):
            return f"the {value.kind} {value.name}"
        if isinstance(value, language.Word):
            return f"the function tile.{value.__name__}"
        return written(value)

    def site(self, what: str, tensor: str | None = None, axis: int = 0) -> int:
        """Returns the number of a new place at which a launch can fail: an ``assert`` with its message, or an access of
        a tensor along one axis."""
        self.sites.append(Site(self.at.lineno + self.shift, what, tensor, axis))
        return len(self.sites) - 1

    # Nodes

    def node(
        self,
        op: str,
        inputs: Sequence[Node],
        dtype: ScalarType,
        shape: tuple[int, ...],
        detail: Any = None,
        weak: type | None = None,
    ) -> Node:
        """Adds a node to the current region, and returns it."""
        weak = Place if op in _PLACES else weak
        line = getattr(self.at, "lineno", 0) + self.shift
        made = Node(op, tuple(inputs), dtype, shape, self._count, line, self.region, detail, weak)
        self._count += 1
        self.region.nodes.append(made)
        for each in inputs:
            each.users.append(made)
        return made

    def within(self, region: Region, action: Callable[[], T]) -> T:
        """Runs an action that adds its nodes to the body of a loop or a branch. Returns the action's result."""
        outer, self.region = self.region, region
        self.depth += 1
        try:
            return action()
        finally:
            self.region = outer
            self.depth -= 1

    def constant(self, value: Any, dtype: ScalarType, weak: type | None = None) -> Node:
        """Adds a constant scalar."""
        return self.node("constant", (), dtype, (), value, weak)

    def filled(self, value: Any, dtype: ScalarType, shape: tuple[int, ...]) -> Node:
        """Adds a tile of equal elements."""
        return self.broadcast(self.constant(value, dtype), shape)

    def lifted(self, value: Any, what: str = "this operation") -> Node:
        """Returns a value as a node: a node unchanged, and a number as a scalar node. In an operation, the scalar of a
        Python number takes the type of the other operand. Raises ``CompileError`` for any other value."""
        if isinstance(value, Node):
            return value
        if isinstance(value, np.generic) and (scalar := of_dtype(value.dtype)) in DTYPES:
            return self.constant(value.item(), scalar)
        if isinstance(value, bool | int | float):
            kind = type(value) if type(value) in (bool, int, float) else int
            value = kind(value)
            if kind is int and not -(2**63) <= value < 2**64:
                self.refuse(f"{written(value)} does not fit 64 bits")
            return self.constant(value, U64 if kind is int and value >= 2**63 else OF_PYTHON[kind], kind)
        if isinstance(value, TensorParameter):
            hint = "gather reads its elements" if value.is_target else f"{value.name}.load(…) is one of its tiles"
            self.refuse(f"{what} takes tiles, and {value.name} is a whole {value.kind}; {hint}")
        if isinstance(value, tuple | list):
            self.refuse(f"{what} takes tiles and numbers, not a {type(value).__name__}; cat joins tiles")
        raise self.error(f"{what} takes tiles and numbers, not {self.shown(value)}")

    def cast(self, value: Node, dtype: ScalarType) -> Node:
        """Converts a tile to a type. A literal must fit the type."""
        if value.dtype is dtype and value.weak is None:
            return value
        if value.op == "constant" and value.weak is not None:
            if dtype.kind in "iu" and value.weak is not float and not promotion.fits(value.detail, dtype):
                low, high = dtype.limits
                self.refuse(f"{value.detail} does not fit in {dtype.name}, which holds {low} to {high}")
            return self.constant(value.detail, dtype)
        if value.dtype is dtype:
            return self.node("copy", (value,), dtype, value.shape)
        return self.node("cast", (value,), dtype, value.shape)

    def convert(self, value: Node, dtype: ScalarType) -> Node:
        """Converts a tile as ``astype`` does. An integer wraps, a literal too."""
        if value.op == "constant" and value.weak is not None and dtype.kind in "iu" and value.weak is not float:
            low, high = dtype.limits
            return self.constant((value.detail - low) % (high - low + 1) + low, dtype)
        return self.fitted(value, dtype)

    def fitted(self, value: Node, dtype: ScalarType) -> Node:
        """Converts a tile as ``convert`` does, but refuses an integer literal that does not fit."""
        if value.op == "constant" and value.weak is not None and dtype.kind != "f" and isinstance(value.detail, float):
            value = self.cast(value, F64)
        elif value.op == "constant" and value.weak is not None and dtype.kind == "b":
            value = self.constant(bool(value.detail), BOOL)
        return self.cast(value, dtype)

    def accepted(
        self, value: Any, dtype: ScalarType, target: str, what: str, rule: Callable[..., str | None] = promotion.stored
    ) -> Node:
        """Returns a value that ``target`` takes, in its type ``dtype``: an element, a parameter, a result or a
        variable. If the rule does not allow it, raises a ``CompileError`` that begins with ``what``."""
        found = self.lifted(value, target)
        problem = rule(dtype, found.operand)
        if problem is not None:
            self.refuse(f"{what} {dtype.name} and {problem}")
        if promotion.narrows(dtype, found.operand):
            line, file = self.at.lineno + self.shift, self.function.__code__.co_filename
            self.narrowings.add(Narrowing(file, line, target, found.dtype.name, dtype.name))
        return self.convert(found, dtype)

    def broadcast(self, value: Node, shape: tuple[int, ...]) -> Node:
        """Repeats a tile to a shape that it broadcasts to."""
        return value if value.shape == shape else self.node("broadcast", (value,), value.dtype, shape)

    def broadcasts(self, shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
        """Returns whether a tile of one shape can be repeated to another shape."""
        try:
            return tuple(np.broadcast_shapes(shape, to)) == to
        except ValueError:
            return False

    def common_shape(self, values: Sequence[Node]) -> tuple[int, ...]:
        """Returns the common shape to which values broadcast. Raises ``CompileError`` if there is none."""
        try:
            return tuple(np.broadcast_shapes(*[each.shape for each in values]))
        except ValueError:
            shapes = [each.shape for each in values if each.shape]
            hint = ""
            if len(shapes) == 2:
                long, short = sorted(shapes, key=len, reverse=True)
                if len(long) == 2 and len(short) == 1 and short[0] == long[0]:
                    hint = "; did you mean x[:, None]?"
                elif len(long) == len(short) == 2 and long == short[::-1]:
                    hint = "; did you mean x.T?"
            self.refuse(f"{' and '.join(map(str, shapes))} do not broadcast{hint}")

    def common_type(self, values: Sequence[Node], what: str) -> Operand:
        """Returns the common type to which values promote. Raises ``CompileError`` if there is none."""
        return self._promoted(promotion.together, what, values)

    def result(self, symbol: str, values: Sequence[Node]) -> Operand:
        """Returns the type of the result of an operator. Raises ``CompileError`` if it does not take the values."""
        return self._promoted(promotion.binary, symbol, values)

    def _promoted(
        self, rule: Callable[[str, Sequence[Operand]], Operand], what: str, values: Sequence[Node]
    ) -> Operand:
        try:
            return rule(what, [each.operand for each in values])
        except Refused as refused:
            raise self.error(str(refused)) from None

    def elementwise(self, op: str, values: Sequence[Any], dtype: ScalarType | None = None, what: str = "") -> Node:
        """Applies an operation to values, after their conversion to a common type and shape."""
        what = what or op
        symbol = SYMBOLS.get(op, op)
        operands = [self.lifted(each, what) for each in values]
        if op in language.FLOATING:
            found = operands[0].operand
        elif len(operands) == 1:
            found = self._promoted(lambda symbol, each: promotion.unary(symbol, *each), symbol, operands)
        elif dtype is BOOL:
            found = self.common_type(operands, what)
        else:
            found = self.result(symbol, operands)
        common, weak = found.scalar, found.weak
        if op in language.FLOATING and common.kind in "iub":
            common, weak = F64, None
        if common.kind == "f" and symbol in (*promotion.SHIFTS, *promotion.BITWISE):
            both = " and ".join(self.shown(each) for each in operands)
            self.refuse(f"{what} takes integers{'' if symbol in promotion.SHIFTS else ' or bools'}, not {both}")
        if symbol in promotion.SHIFTS:
            operands[1] = self._amount(operands[1], common)
        shape = self.common_shape(operands)
        operands = [self.broadcast(self.cast(each, common), shape) for each in operands]
        return self.node(op, operands, dtype or common, shape, weak=weak if dtype is None else None)

    def _amount(self, count: Node, dtype: ScalarType) -> Node:
        """Returns the count of a shift in the type of the shifted number. A count that this type does not hold, or a
        negative one, becomes the number of bits."""
        if count.operand.value is not None:
            fits = 0 <= count.detail < dtype.bits
            return self.constant(count.detail if fits else dtype.bits, dtype)
        if count.dtype.bits > dtype.bits:
            count = self.elementwise("minimum", (self.cast(self.cast(count, I64), U64), dtype.bits))
        return self.cast(count, dtype)

    def truth(self, value: Any, what: str) -> Node:
        """Returns a value as a scalar bool. Raises ``CompileError`` for a tile with axes."""
        found = self.lifted(value, what)
        if found.shape:
            self.refuse(f"{what} takes one truth value, and this is {self.shown(found)}; use where(…) for each element")
        return found if found.dtype is BOOL else self.elementwise("ne", (found, 0), BOOL)

    # What is known when the kernel is compiled

    def dtype(self, value: Any) -> ScalarType:
        """Returns a dtype argument as a scalar type. Raises ``CompileError`` for any other value."""
        kind = OF_PYTHON.get(value, value) if isinstance(value, type) else value
        if isinstance(kind, type) and issubclass(kind, np.generic):
            kind = of_dtype(np.dtype(kind))
        if not isinstance(kind, ScalarType) or kind not in DTYPES:
            self.refuse(f"a dtype is one of {' '.join(each.name for each in DTYPES)}, not {self.shown(value)}")
        return kind

    def sizes(self, value: Any, what: str) -> tuple[int, ...]:
        """Returns a shape argument as a tuple of lengths. Raises ``CompileError`` for any other value."""
        sizes = tuple(value) if isinstance(value, tuple | list) else (value,)
        if any(isinstance(each, Node) for each in sizes):
            self.refuse(f"{what}: the shape of a tile must be known when the kernel is compiled; pass its lengths as "
                        "tile.Constant")  # fmt: skip
        if not all(isinstance(each, int) and not isinstance(each, bool) and each >= 1 for each in sizes):
            self.refuse(f"{what}: a shape is one or more lengths of at least 1, not {written(value)}")
        if math.prod(sizes) > _MOST_ELEMENTS:
            self.refuse(f"{what}: a tile of shape {sizes} has more than 2**20 elements")
        return sizes

    def axis(self, value: Any, ndim: int, what: str) -> int:
        """Returns an axis argument, counted from the front. Raises ``CompileError`` for any other value."""
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(
                f"{what}: the axis is a number that is known when the kernel is compiled, not {self.shown(value)}"
            )
        if not -ndim <= value < ndim:
            self.refuse(f"{what}: a tile of {ndim} axes has no axis {value}")
        return value % ndim

    def flag(self, value: Any, what: str) -> bool:
        """Returns a bool argument. Raises ``CompileError`` for any other value."""
        if not isinstance(value, bool):
            self.refuse(f"{what} is True or False, known when the kernel is compiled, not {self.shown(value)}")
        return value
