"""Launch contracts: ``@kernel(requires=("len(a) >= m * k", …))``.

A contract compares two integer expressions over a kernel's integer parameters and the lengths of its slices. It is
parsed when the kernel is decorated. Each launch checks it once on the host, in Python's unbounded integers. The
compiler takes the contract as a fact (``prove``): an access needs no check if the contract implies that it is in
bounds.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from oxide.compiler.source.source import located
from oxide.errors import CompileError, LaunchError

from .signature import Declared, NumbaParameter, OpenFunction, OpenParameter, Parameter, UntypedParameter

if TYPE_CHECKING:
    from .tuples import Fields

_OPERATIONS = ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod
_COMPARISONS = ast.GtE, ast.Gt, ast.LtE, ast.Lt, ast.Eq


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
            if compiled((self,), list(values))(*values.values()):
                return
        except ZeroDivisionError:
            raise LaunchError(
                f"kernel {kernel} requires {self.text}, which divides by zero{self._where(values)}"
            ) from None
        sides = ", ".join(
            f"{ast.unparse(side)} is {_function(side, list(values))(*values.values())}"
            for side in (self.left, self.right)
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
    held: list[ast.expr] = [
        ast.Compare(contract.left, [contract.comparison], [contract.right]) for contract in contracts
    ]
    return _function(ast.BoolOp(ast.And(), [ast.Constant(True), *held]), names)


def _function(expression: ast.expr, names: Sequence[str]) -> Callable[..., Any]:
    """Returns an expression of contracts as a function of the values of ``names``."""
    by_place = _ByPlace(names)
    parameters = [ast.arg(by_place.variable(name)) for name in names]
    body = by_place.visit(copy.deepcopy(expression))
    function = ast.Lambda(ast.arguments([], parameters, None, [], [], None, []), body)
    # The code is safe to run: _Parser accepts only integer arithmetic.
    code = compile(ast.fix_missing_locations(ast.Expression(function)), "<contracts>", "eval")
    made: Callable[..., Any] = eval(code, {"__builtins__": {}})
    return made


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
        tree = _OneName(self).visit(tree)
        contracts = []
        left = tree.left
        for comparison, right in zip(tree.ops, tree.comparators, strict=True):
            if not isinstance(comparison, _COMPARISONS):
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
            case ast.BinOp(left=left, op=operation, right=right) if isinstance(operation, _OPERATIONS):
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
        return declared.ndim if isinstance(declared, Parameter | OpenParameter) else 1

    def _error(self, problem: str) -> CompileError:
        return located(self.function, f'kernel {self.kernel}: the contract "{self.text}" {problem}')


@final
class _OneName(ast.NodeTransformer):
    """Gives each number one name. An element of a tuple, as ``size.rows`` or ``size[0]``, is a scalar parameter of that
    name. ``len(a)`` becomes ``a.shape[0]`` for a slice of several axes."""

    def __init__(self, parser: _Parser) -> None:
        self.parser = parser

    def visit_Attribute(self, node: ast.Attribute | ast.Subscript) -> ast.expr:
        element = self._element(node)
        if element is None:
            return node
        self.parser.parameters[element.name] = element
        return ast.Name(element.name, ast.Load())

    visit_Subscript = visit_Attribute

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)], keywords=[]):
                if self.parser._axes(name) > 1:
                    return ast.parse(f"{name}.shape[0]", mode="eval").body
        return self.generic_visit(node)

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
class _ByPlace(ast.NodeTransformer):
    """Replaces each name in a contract by a variable, which is numbered by the name's position in ``names``."""

    def __init__(self, names: Sequence[str]) -> None:
        self._places = {name: place for place, name in enumerate(names)}

    def variable(self, name: str) -> str:
        return f"v{self._places[name]}"

    def visit_Name(self, node: ast.expr) -> ast.expr:
        return ast.Name(self.variable(ast.unparse(node)), ast.Load())

    visit_Call = visit_Subscript = visit_Name
