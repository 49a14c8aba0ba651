"""Launch contracts: ``@kernel(requires=("len(a) >= m * k", …))``.

A contract compares two integer expressions over a kernel's integer parameters and the lengths of its slices. It is
parsed when the kernel is decorated. Each launch checks it once on the host, in Python's unbounded integers. The
compiler takes the contract as a fact (``prove``): an access needs no check if the contract implies that it is in
bounds.
"""

from __future__ import annotations

import ast
import copy
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from oxide.compiler.source.source import located
from oxide.errors import CompileError, LaunchError

from .annotations import Declared
from .signature import NumbaParameter, Parameter, UntypedParameter

if TYPE_CHECKING:
    from .generic_parameters import OpenFunction, OpenParameter
    from .tuples import Fields

_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.GtE: operator.ge,
    ast.Gt: operator.gt,
    ast.LtE: operator.le,
    ast.Lt: operator.lt,
    ast.Eq: operator.eq,
}


@final
@dataclass(frozen=True, slots=True)
class Contract:
    """A comparison of two expressions. ``names`` are its variables: ``m`` for a parameter, ``len(a)`` for a slice's
    length, and ``a.shape[1]`` for the length of an axis."""

    text: str
    left: ast.expr
    comparison: ast.cmpop
    right: ast.expr
    names: frozenset[str]

    def check(self, kernel: str, values: Mapping[str, int]) -> None:
        """Raises ``LaunchError``, with the value of both sides, unless the comparison holds for ``values``."""
        try:
            left, right = _evaluate(self.left, values), _evaluate(self.right, values)
        except ZeroDivisionError:
            raise LaunchError(
                f"kernel {kernel} requires {self.text}, which divides by zero{self._where(values)}"
            ) from None
        if not _COMPARISONS[type(self.comparison)](left, right):
            sides = ", ".join(
                f"{ast.unparse(side)} is {value}"
                for side, value in ((self.left, left), (self.right, right))
                if not isinstance(side, ast.Constant)
            )
            raise LaunchError(f"kernel {kernel} requires {self.text}, but {sides}{self._where(values)}")

    def _where(self, values: Mapping[str, int]) -> str:
        shown = [
            f"{name} = {values[name]}"
            for name in sorted(self.names)
            if not (name.startswith("len(") or ".shape[" in name)
        ]
        return f" ({', '.join(shown)})" if shown else ""


def compiled(contracts: Sequence[Contract], names: Sequence[str]) -> Callable[..., bool]:
    """Returns a function of the values of ``names``, in that order, that tells whether all contracts hold.

    The function may raise ``ZeroDivisionError``. Every launch calls the function, which takes a tenth of the time of
    ``Contract.check``. Only ``check`` can report which contract failed.
    """
    by_place = _ByPlace(names)
    held: list[ast.expr] = [
        ast.Compare(by_place.copy_of(contract.left), [contract.comparison], [by_place.copy_of(contract.right)])
        for contract in contracts
    ]
    parameters = [ast.arg(by_place.variable(name)) for name in names]
    function = ast.Lambda(
        ast.arguments([], parameters, None, [], [], None, []), ast.BoolOp(ast.And(), [ast.Constant(True), *held])
    )
    # The code is safe to run: _Parser accepts only integer arithmetic.
    code = compile(ast.fix_missing_locations(ast.Expression(function)), "<contracts>", "eval")
    holds: Callable[..., bool] = eval(code, {"__builtins__": {}})
    return holds


def parse_contracts(
    function: Callable[..., Any], kernel: str, parameters: tuple[Declared, ...], texts: Iterable[str]
) -> tuple[Contract, ...]:
    """Returns a kernel's contracts. Raises ``CompileError`` for a name or an operation that a contract cannot have."""
    if isinstance(texts, str):
        raise located(function, f'kernel {kernel}: requires is the text "{texts}"; give a tuple of texts')
    found: list[Contract] = []
    for text in texts:
        found += _Parser(function, kernel, parameters, text).parse()
    return tuple(found)


@final
class _Parser:
    def __init__(
        self, function: Callable[..., Any], kernel: str, parameters: tuple[Declared, ...], text: object
    ) -> None:
        self.function = function
        self.kernel = kernel
        self.parameters = {parameter.name: parameter for parameter in parameters}
        self.text = text
        self.names: set[str] = set()

    def parse(self) -> list[Contract]:
        try:
            tree = ast.parse(str(self.text).strip(), mode="eval").body
        except SyntaxError:
            raise self._error("is no expression") from None
        if not isinstance(tree, ast.Compare):
            raise self._error('is no comparison, such as "len(a) >= m * k"')
        tree = _FirstAxes(self).visit(_NamedElements(self).visit(tree))
        contracts = []
        left = tree.left
        for comparison, right in zip(tree.ops, tree.comparators, strict=True):
            if type(comparison) not in _COMPARISONS:
                raise self._error("compares with something other than <, <=, ==, >= and >")
            self.names = set()
            self._check(left)
            self._check(right)
            text = ast.unparse(ast.Compare(left, [comparison], [right]))
            contracts.append(Contract(text, left, comparison, right, frozenset(self.names)))
            left = right
        return contracts

    def _check(self, node: ast.expr) -> None:
        match node:
            case ast.Constant(value=value) if type(value) is int:
                return
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                self._check(operand)
            case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
                self._check(left)
                self._check(right)
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)], keywords=[]):
                if self._parameter(name).kind in ("scalar", "function", "tuple"):
                    raise self._error(f"takes the length of {name}, which is no slice")
                self.names.add(f"len({name})")
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=axis):
                ndim = self._axes(name)
                if ndim == 1:
                    raise self._error(f"takes the shape of {name}, which has no axes to choose from")
                if not (isinstance(axis, ast.Constant) and type(axis.value) is int and 0 <= axis.value < ndim):
                    raise self._error(f"takes {ast.unparse(node)}; {name} has the axes 0 to {ndim - 1}")
                self.names.add(ast.unparse(node))
            case ast.Name(id=name):
                parameter = self._parameter(name)
                if parameter.kind == "function":
                    raise self._error(f"uses {name}, which is a function")
                if parameter.kind == "tuple":
                    raise self._error(f"uses {name}, a whole tuple; name one of its numbers, as a kernel does")
                if parameter.kind != "scalar":
                    raise self._error(f"compares the slice {name} itself; its length is len({name})")
                if parameter.dtype.kind not in "iu":
                    raise self._error(f"uses {name}, a {parameter.annotation}; contracts are about integers")
                self.names.add(name)
            case _:
                raise self._error(
                    f"has {ast.unparse(node)}; there may be +, -, *, //, %, integers, parameters, len(…) and a.shape[…]"
                )

    def _parameter(self, name: str) -> Parameter | OpenParameter | OpenFunction:
        if name not in self.parameters:
            raise self._error(f"names {name}, but the parameters are {', '.join(self.parameters)}")
        declared = self.parameters[name]
        if isinstance(declared, NumbaParameter | UntypedParameter):
            raise self._error(f"names {name}, whose type is {declared.annotation}; contracts are of scalars and slices")
        return declared

    def _axes(self, name: str) -> int:
        """Returns the number of a slice's axes, 1 for anything else."""
        declared = self.parameters.get(name)
        if declared is None or isinstance(declared, NumbaParameter | UntypedParameter) or declared.kind == "function":
            return 1
        if TYPE_CHECKING:
            assert isinstance(declared, Parameter | OpenParameter)
        return declared.ndim

    def _error(self, problem: str) -> CompileError:
        return located(self.function, f'kernel {self.kernel}: the contract "{self.text}" {problem}')


@final
class _NamedElements(ast.NodeTransformer):
    """Replaces elements of tuples by names: ``size.rows`` and ``size[0]`` are scalar parameters with these names."""

    def __init__(self, parser: _Parser) -> None:
        self.parser = parser

    def visit_Attribute(self, node: ast.Attribute | ast.Subscript) -> ast.expr:
        element = self._element(node)
        if element is None:
            return node
        self.parser.parameters[element.name] = element
        return ast.Name(element.name, ast.Load())

    visit_Subscript = visit_Attribute

    def _element(self, node: ast.expr) -> Declared | None:
        if isinstance(node, ast.Name):
            return self.parser.parameters.get(node.id)
        if not isinstance(node, ast.Attribute | ast.Subscript):
            return None
        base = self._element(node.value)
        if base is None or base.kind != "tuple":
            return None
        if TYPE_CHECKING:
            assert isinstance(base, Parameter)
            assert isinstance(base.lifted, Fields)
        found = base.lifted.element(node)
        if found is None:
            listed = ", ".join(element.name for element in base.lifted.elements)
            raise self.parser._error(f"names {ast.unparse(node)}, but {base.name} has {listed}")
        return found


@final
class _FirstAxes(ast.NodeTransformer):
    """Replaces ``len(a)`` by ``a.shape[0]`` for a slice of several axes, so that each length has only one name."""

    def __init__(self, parser: _Parser) -> None:
        self.parser = parser

    def visit_Call(self, node: ast.Call) -> ast.expr:
        match node:
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)], keywords=[]):
                if self.parser._axes(name) > 1:
                    return ast.parse(f"{name}.shape[0]", mode="eval").body
        return node


@final
class _ByPlace(ast.NodeTransformer):
    """Replaces each name in a contract by a variable, which is numbered by the name's position in ``names``."""

    def __init__(self, names: Sequence[str]) -> None:
        self._places = {name: place for place, name in enumerate(names)}

    def variable(self, name: str) -> str:
        return f"v{self._places[name]}"

    def copy_of(self, side: ast.expr) -> ast.expr:
        changed: ast.expr = self.visit(copy.deepcopy(side))
        return changed

    def visit_Name(self, node: ast.expr) -> ast.expr:
        return ast.Name(self.variable(ast.unparse(node)), ast.Load())

    visit_Call = visit_Subscript = visit_Name


def _evaluate(node: ast.expr, values: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(operand=operand):
            return -_evaluate(operand, values)
        case ast.BinOp(left=left, op=operation, right=right):
            return _OPERATIONS[type(operation)](_evaluate(left, values), _evaluate(right, values))
        case ast.Name(id=name):
            return values[name]
        case ast.Call(args=[ast.Name(id=name)]):
            return values[f"len({name})"]
        case ast.Subscript():
            return values[ast.unparse(node)]
        case _:
            raise AssertionError(ast.dump(node))  # _Parser accepts nothing else
