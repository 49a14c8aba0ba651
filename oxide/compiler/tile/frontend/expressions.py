"""Evaluates a kernel's expressions. Values known at compile time are computed as Python objects. All others become
nodes."""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from oxide.compiler.check import advice
from oxide.compiler.source.annotated_locals import annotated_parameters
from oxide.compiler.source.source import closure_values, parse_definition
from oxide.compiler.tile.ir import BOOL, I64, Node
from oxide.host.messages import written
from oxide.language import tile as language
from oxide.language.types import OF_PYTHON, ScalarType

from . import words
from .node_maker import Nodes, TensorParameter
from .powers import power
from .words import Method, taken, word

_BINARY: dict[type, tuple[str, str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", "+", operator.add),
    ast.Sub: ("sub", "-", operator.sub),
    ast.Mult: ("mul", "*", operator.mul),
    ast.Div: ("truediv", "/", operator.truediv),
    ast.FloorDiv: ("floordiv", "//", operator.floordiv),
    ast.Mod: ("mod", "%", operator.mod),
    ast.Pow: ("pow", "**", operator.pow),
    ast.BitAnd: ("and", "&", operator.and_),
    ast.BitOr: ("or", "|", operator.or_),
    ast.BitXor: ("xor", "^", operator.xor),
    ast.LShift: ("shl", "<<", operator.lshift),
    ast.RShift: ("shr", ">>", operator.rshift),
    ast.MatMult: ("matmul", "@", operator.matmul),
    ast.Lt: ("lt", "<", operator.lt),
    ast.LtE: ("le", "<=", operator.le),
    ast.Gt: ("gt", ">", operator.gt),
    ast.GtE: ("ge", ">=", operator.ge),
    ast.Eq: ("eq", "==", operator.eq),
    ast.NotEq: ("ne", "!=", operator.ne),
}
_UNARY: dict[type, tuple[str, Callable[[Any], Any]]] = {
    ast.USub: ("neg", operator.neg),
    ast.UAdd: ("pos", operator.pos),
    ast.Invert: ("invert", operator.invert),
    ast.Not: ("not", operator.not_),
}
_BUILTINS = {"range": range, "len": len, "min": min, "max": max, "abs": abs, "int": int, "float": float, "bool": bool,
             "tuple": tuple, "sum": sum, "print": print}  # fmt: skip
_METHODS = ("sum", "max", "min", "argmax", "argmin", "cumsum", "reshape", "transpose", "astype")
_MOST_CALLS = 64
"""The greatest depth of nested calls of ``@tile.function``s."""
_MOST_PRINTED = 1024
"""The most elements that a printed tile may have."""


class Returned(Exception):
    """Raised to leave a ``@tile.function`` with its result."""

    def __init__(self, value: Any) -> None:
        self.value = value


@final
class Expressions:
    """Evaluates expressions in the innermost of ``scopes``. ``run`` evaluates the statements of a function that is
    called."""

    def __init__(self, nodes: Nodes, run: Callable[[Sequence[ast.stmt]], None]) -> None:
        self.nodes = nodes
        self.scopes: list[dict[str, Any]] = []
        self._run = run
        self._globals: list[Mapping[str, Any]] = [_reached(nodes.function)]

    @property
    def in_function(self) -> bool:
        """Returns whether a ``@tile.function`` is being evaluated."""
        return len(self._globals) > 1

    def lookup(self, name: str) -> Any:
        """Returns the value of a name."""
        scope = self.scopes[-1]
        if name in scope:
            return scope[name]
        reached = self._globals[-1]
        if name in reached:
            return reached[name]
        if name in _BUILTINS:
            return _BUILTINS[name]
        if name in self.nodes.function.__code__.co_varnames:
            problem = f"{name} is not defined here; a name that only one branch or a loop sets is not known after it"
        elif hasattr(builtins, name):
            problem = f"{name} is not supported in tile kernels{language.instead_of_builtin(name)}"
        elif name in language.WORDS:
            problem = f"{name} is not defined; did you mean tile.{name}?"
        else:
            problem = advice.undefined(name, {*scope, *reached, *_BUILTINS})
        raise self.nodes.error(problem)

    def value(self, expression: ast.expr) -> Any:
        """Returns the value of an expression."""
        outer, self.nodes.at = self.nodes.at, expression
        handler = getattr(self, f"of_{type(expression).__name__}", None)
        if handler is None:
            self.nodes.refuse(f"a tile kernel cannot contain {_NAMES.get(type(expression), type(expression).__name__)}")
        found = handler(expression)
        self.nodes.at = outer
        return found

    def of_Constant(self, expression: ast.Constant) -> Any:
        return expression.value

    def of_Name(self, expression: ast.Name) -> Any:
        return self.lookup(expression.id)

    def of_Tuple(self, expression: ast.Tuple) -> Any:
        return tuple(self.value(each) for each in expression.elts)

    def of_List(self, expression: ast.List) -> Any:
        return [self.value(each) for each in expression.elts]

    def of_JoinedStr(self, expression: ast.JoinedStr) -> Any:
        self.nodes.refuse('a tile kernel cannot format strings; print("x", x) prints a text and values')

    def of_IfExp(self, expression: ast.IfExp) -> Any:
        test = self.value(expression.test)
        if not isinstance(test, Node):
            return self.value(expression.body if test else expression.orelse)
        condition = self.nodes.truth(test, "if")
        return words.where(self.nodes, condition, self.value(expression.body), self.value(expression.orelse))

    def of_BoolOp(self, expression: ast.BoolOp) -> Any:
        both = isinstance(expression.op, ast.And)
        name = "and" if both else "or"
        operands: list[Any] = []  # all but the last are the device's
        for number, each in enumerate(expression.values, 1):
            value = self.value(each)
            if isinstance(value, Node) or bool(value) is not both or number == len(expression.values):
                operands.append(value)
            if not isinstance(value, Node) and bool(value) is not both:
                break
        found = operands.pop()
        if operands and isinstance(found, Node):
            self.nodes.truth(found, name)  # refuses a tile
        while operands:
            value = operands.pop()
            test = self.nodes.truth(value, name)
            plain = found if isinstance(found, Node) else self.nodes.lifted(found, name)
            if value.dtype is BOOL and plain.dtype is BOOL:
                found = self.nodes.elementwise(name, (value, plain))
            else:
                yes, no = (found, value) if both else (value, found)
                found = words.where(self.nodes, test, yes, no)
        return found

    def of_Compare(self, expression: ast.Compare) -> Any:
        left = self.value(expression.left)
        found: Any = None
        for kind, each in zip(expression.ops, expression.comparators, strict=True):
            right = self.value(each)
            if isinstance(kind, ast.Is | ast.IsNot):
                part: Any = (left is right) is isinstance(kind, ast.Is)
            else:
                part = self.binary(type(kind), left, right)
            found = part if found is None else self.binary(ast.BitAnd, found, part)
            left = right
        return found

    def of_BinOp(self, expression: ast.BinOp) -> Any:
        left, right = self.value(expression.left), self.value(expression.right)
        return self.binary(type(expression.op), left, right)

    def binary(self, kind: type, left: Any, right: Any) -> Any:
        """Returns the result of a binary operator."""
        if kind not in _BINARY:
            self.nodes.refuse("a tile kernel compares numbers and tiles with < <= > >= == !=, not with in")
        op, sign, plain = _BINARY[kind]
        if not isinstance(left, Node) and not isinstance(right, Node):
            if isinstance(left, TensorParameter) or isinstance(right, TensorParameter):
                self.nodes.lifted(left, sign)
                self.nodes.lifted(right, sign)
            try:
                return plain(left, right)
            except (TypeError, ZeroDivisionError, ValueError) as error:
                self.nodes.refuse(f"{self.nodes.shown(left)} {sign} {self.nodes.shown(right)}: {error}")
        if op == "matmul":
            return words.matmul(self.nodes, left, right, None)
        if op == "pow":
            return self._power(left, right)
        if op in words.COMPARISONS:
            return words.compare(self.nodes, op, (left, right), sign)
        return self.nodes.elementwise(op, (left, right), what=sign)

    def _power(self, left: Any, right: Any) -> Node:
        nodes = self.nodes
        base, exponent = (nodes.lifted(each, "**") for each in (left, right))
        if not (base.operand.is_whole and exponent.operand.is_whole) or exponent.operand.value is not None:
            return words.power(nodes, base, exponent)
        kind = nodes.result("**", (base, exponent))
        base = nodes.broadcast(nodes.cast(base, kind.scalar), nodes.common_shape((base, exponent)))
        exponent = nodes.cast(exponent, I64) if exponent.operand.is_bool else exponent
        found: Node = self._inlined(power, [base, exponent], {})
        return found if kind.weak is None else nodes.node("copy", (found,), kind.scalar, found.shape, weak=kind.weak)

    def of_UnaryOp(self, expression: ast.UnaryOp) -> Any:
        value = self.value(expression.operand)
        op, plain = _UNARY[type(expression.op)]
        if not isinstance(value, Node):
            try:
                return plain(value)
            except TypeError as error:
                self.nodes.refuse(str(error))
        if op == "pos":
            return value if value.dtype is not BOOL else self.nodes.elementwise(op, (value,))
        if op == "not":
            return self.nodes.node("invert", (self.nodes.truth(value, "not"),), BOOL, ())
        if op == "invert" and value.dtype.kind == "f":
            self.nodes.refuse(f"~ takes integers or bools, not {self.nodes.shown(value)}")
        return self.nodes.elementwise(op, (value,), what="-" if op == "neg" else "~")

    def of_Attribute(self, expression: ast.Attribute) -> Any:
        this = self.value(expression.value)
        name = expression.attr
        if isinstance(this, TensorParameter):
            return words.attribute(self.nodes, this, name)
        if isinstance(this, Node):
            if name in ("shape", "dtype", "ndim", "size"):
                return len(this.shape) if name == "ndim" else getattr(this, name)
            if name == "T":
                return words.transpose(self.nodes, this, None)
            if name in _METHODS:
                return Method(this, name)
            hint = f"; tile.{name}(x) may be what you mean" if name in language.WORDS else ""
            self.nodes.refuse(
                f"a tile has no .{name}; it has .shape .dtype .ndim .size .T and "
                + " ".join(f".{m}()" for m in _METHODS)
                + hint
            )
        try:
            return getattr(this, name)
        except AttributeError as error:
            if getattr(this, "__name__", None) == "oxide.tile":
                self.nodes.refuse(f"tile has no {name}{language.instead(name)}")
            self.nodes.refuse(str(error))

    def of_Subscript(self, expression: ast.Subscript) -> Any:
        this = self.value(expression.value)
        if isinstance(this, Node):
            return self._subscript(this, expression)
        key = self.value(expression.slice)
        if isinstance(this, TensorParameter):
            reach = (
                "gather(…) are elements of it" if this.is_target else f"{this.name}.load(index, shape) is a tile of it"
            )
            self.nodes.refuse(f"{this.name}[…] is no part of a tile kernel; {reach}")
        if isinstance(key, Node):
            self.nodes.refuse(
                "the index of a tuple is a number that is known when the kernel is compiled; use static_range"
            )
        try:
            return this[key]
        except (TypeError, IndexError, KeyError) as error:
            self.nodes.refuse(str(error))

    def of_Slice(self, expression: ast.Slice) -> Any:
        parts = (expression.lower, expression.upper, expression.step)
        return slice(*[None if each is None else self.value(each) for each in parts])

    def _subscript(self, this: Node, expression: ast.Subscript) -> Node:
        """Evaluates ``x[:, None]``, which adds axes to a tile."""
        keys = self.value(expression.slice)
        keys = keys if isinstance(keys, tuple) else (keys,)
        if Ellipsis in [each for each in keys if not isinstance(each, Node)]:
            place = keys.index(Ellipsis)
            missing = len(this.shape) - sum(1 for each in keys if each is not None and each is not Ellipsis)
            keys = (*keys[:place], *[slice(None)] * missing, *keys[place + 1 :])
        given = [each for each in keys if each is not None]
        if any(isinstance(each, Node) or each != slice(None) for each in given):
            self.nodes.refuse(
                "a tile is indexed with : and None only, as in x[:, None]; sum, where and gather pick elements"
            )
        if len(given) > len(this.shape):
            self.nodes.refuse(f"a tile of shape {this.shape} has no axis {len(given) - 1}")
        lengths = iter(this.shape)
        shape = tuple(1 if each is None else next(lengths) for each in keys) + tuple(lengths)
        return self.nodes.node("reshape", (this,), this.dtype, shape)

    # Calls

    def of_Call(self, expression: ast.Call) -> Any:
        called = self.value(expression.func)
        if any(isinstance(each, ast.Starred) for each in expression.args) or any(
            each.arg is None for each in expression.keywords
        ):
            self.nodes.refuse("a call in a tile kernel has no * and no **; write its arguments one by one")
        arguments = [self.value(each) for each in expression.args]
        named = {str(each.arg): self.value(each.value) for each in expression.keywords}
        if isinstance(called, Method):
            return self._method(called, arguments, named)
        if isinstance(called, language.Word):
            return word(self.nodes, called.__name__, arguments, named)
        if isinstance(called, language.Function):
            return self._inlined(called, arguments, named)
        if isinstance(called, ScalarType) or (isinstance(called, type) and issubclass(called, np.generic)):
            scalar = self.nodes.dtype(called)
            if len(arguments) != 1 or named:
                self.nodes.refuse(f"{scalar.name}(…) takes one number")
            return self.nodes.convert(self.nodes.lifted(arguments[0]), scalar)
        return self._python(called, arguments, named)

    def _python(self, called: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Evaluates a call of one of Python's functions, such as ``min`` or ``math.sqrt``."""
        on_device = any(isinstance(each, Node) for each in (*arguments, *named.values()))
        if called is print:
            return self._print(arguments, named)
        if called in (min, max, abs, sum) and on_device:
            if called in (min, max) and len(arguments) == 2:
                return self.nodes.elementwise(f"{called.__name__}imum", arguments)
            return word(self.nodes, called.__name__, arguments, named)
        if called in (int, float, bool) and len(arguments) == 1 and on_device:
            return self.nodes.convert(arguments[0], OF_PYTHON[called])
        name = getattr(called, "__name__", None) or written(called)
        module = (getattr(called, "__module__", "") or "").partition(".")[0]
        hint = f"; tile.{name} may be what you mean" if name in language.WORDS else ""
        hint = "; x.shape[0] is the length of the first axis of x" if called is len else hint
        if called in _BUILTINS.values() or module == "math":
            if on_device:
                self.nodes.refuse(f"{name} takes numbers that are known when the kernel is compiled{hint}")
            try:
                return called(*arguments, **named)
            except (TypeError, ValueError) as error:
                self.nodes.refuse(str(error))
        raise self.nodes.error(
            f"a tile kernel cannot call {name}{hint or '; decorate a function of your own with @tile.function'}"
        )

    def _print(self, arguments: list[Any], named: dict[str, Any]) -> None:
        """Evaluates ``print("x", x)``: one line for texts and scalars, several lines for a tile."""
        if named:
            self.nodes.refuse("print in a tile kernel takes texts and values only, without sep, end and file")
        parts: list[str | None] = []
        values: list[Node] = []
        for each in arguments:
            if isinstance(each, Node):
                if each.size > _MOST_PRINTED:
                    self.nodes.refuse(f"print: {self.nodes.shown(each)} has more than {_MOST_PRINTED} elements")
                parts.append(None)
                values.append(each)
            elif isinstance(each, TensorParameter):
                self.nodes.lifted(each, "print")
            else:
                parts.append(str(each))
        if any(each.shape for each in values) and len(values) > 1:
            self.nodes.refuse("print takes one tile at a time, or any number of scalars")
        self.nodes.node("print", values, BOOL, (), tuple(parts))

    def _inlined(self, called: language.Function, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Evaluates a call of a ``@tile.function``: evaluates the function's body in a scope of its own."""
        nodes, function = self.nodes, called.wrapped
        if len(self._globals) > _MOST_CALLS:
            nodes.refuse(f"{called.__name__} calls itself; a @tile.function is compiled into its callers")
        try:
            bound = inspect.signature(function).bind(*arguments, **named)
        except TypeError as error:
            nodes.refuse(f"{called.__name__}: {error}")
        bound.apply_defaults()
        declared = annotated_parameters(function)
        for name in declared.keys() & bound.arguments.keys():
            what = f"{called.__name__}: parameter {name} is"
            bound.arguments[name] = nodes.accepted(
                bound.arguments[name], declared[name], f"parameter {name} of {called.__name__}", what
            )
        tree, shift = parse_definition(function)
        outer = nodes.function, nodes.shift, nodes.at, nodes.depth
        nodes.function, nodes.shift, nodes.depth = function, shift, 0
        self.scopes.append(dict(bound.arguments))
        self._globals.append(_reached(function))
        result = None
        try:
            self._run(tree.body)
        except Returned as returned:
            result = returned.value
        self.scopes.pop()
        self._globals.pop()
        nodes.function, nodes.shift, nodes.at, nodes.depth = outer
        if "return" not in declared:
            return result
        return nodes.accepted(
            result, declared["return"], f"the result of {called.__name__}", f"{called.__name__} is declared to return"
        )

    def _method(self, called: Method, arguments: list[Any], named: dict[str, Any]) -> Any:
        this, name = called.this, called.name
        if isinstance(this, TensorParameter):
            if name == "store":
                return words.store(self.nodes, this, *taken(self.nodes, "store", arguments, named, ("value",)))
            if this.tile is not None and not arguments and not (set(named) - {"padding"}):
                index: Any = words.own_index(self.nodes, this)
                return words.load(self.nodes, this, index, this.tile, named.get("padding", 0))
            given = taken(self.nodes, "load", arguments, named, ("index", "shape"), padding=0)
            return words.load(self.nodes, this, *given)
        if name == "astype":
            (dtype,) = taken(self.nodes, "astype", arguments, named, ("dtype",))
            return self.nodes.convert(this, self.nodes.dtype(dtype))
        if name in ("reshape", "transpose") and len(arguments) > 1:
            arguments = [tuple(arguments)]
        return word(self.nodes, name, [this, *arguments], named)


def _reached(function: Any) -> Mapping[str, Any]:
    """Returns the names that a function finds outside of itself, globals and closure variables, with their values."""
    return {**function.__globals__, **dict(closure_values(function))}


_NAMES: dict[type, str] = {
    ast.Lambda: "a lambda; use a @tile.function", ast.ListComp: "a comprehension; use a loop over static_range",
    ast.GeneratorExp: "a generator", ast.DictComp: "a comprehension", ast.SetComp: "a comprehension",
    ast.Dict: "a dict", ast.Set: "a set", ast.Await: "await", ast.Yield: "yield", ast.NamedExpr: ":=; assign before",
    ast.Starred: "*",
}  # fmt: skip
