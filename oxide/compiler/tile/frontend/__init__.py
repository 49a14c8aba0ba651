"""Translates Python to tile IR, without numba, by evaluating a kernel's syntax tree.

``node_maker.py`` makes the nodes, and ``words.py`` has the functions of tiles and of whole tensors.
``expressions.py`` and ``statements.py`` evaluate the syntax tree, from which ``jumps.py`` removes jumps first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from oxide.compiler.source.faults import Narrowing
from oxide.compiler.source.source import parse_definition
from oxide.compiler.tile.ir import Region, Site
from oxide.language.types import ScalarType

from .node_maker import Nodes, TensorParameter
from .statements import Statements

__all__ = ["Program", "TensorParameter", "parse"]


@final
@dataclass(frozen=True, slots=True)
class Program:
    """A kernel for certain types and constants. ``sites`` are the places at which a launch can fail."""

    body: Region
    tensors: tuple[TensorParameter, ...]
    sites: tuple[Site, ...]
    narrowings: tuple[Narrowing, ...]
    """The integers that narrow where no conversion is written."""

    @property
    def grid(self) -> TensorParameter:
        """Returns the partition that determines the grid."""
        return next(each for each in self.tensors if each.tile is not None)

    def tensor(self, name: str) -> TensorParameter:
        """Returns a tensor by its name."""
        return next(each for each in self.tensors if each.name == name)


def parse(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Program:
    """Returns a kernel as IR. ``parameters`` maps the name of each parameter to a ``TensorParameter``, to a scalar
    type, or, for a constant, to a tuple that has only its value. Raises ``CompileError`` for code that a tile kernel
    cannot contain."""
    tree, shift = parse_definition(function)
    nodes = Nodes(function, shift)
    statements = Statements(nodes)
    tensors = []
    scope: dict[str, Any] = {}
    for name, given in parameters.items():
        if isinstance(given, TensorParameter):
            tensors.append(given)
            scope[name] = given
        elif isinstance(given, ScalarType):
            scope[name] = nodes.node("parameter", (), given, (), name)
        else:
            (scope[name],) = given
    statements.expressions.scopes.append(scope)
    statements.begin(tree.body, returns=True)
    return Program(nodes.region, tuple(tensors), tuple(nodes.sites), tuple(sorted(nodes.narrowings)))
