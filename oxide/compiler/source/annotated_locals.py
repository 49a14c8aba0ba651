"""Reads the annotations of local variables, as in ``h: u32 = 2166136261``. Python's bytecode does not have them.

Each assignment to an annotated local converts the value to the annotated type. The front end makes these conversions
(``frontend/lowering/assignments.py``), and ``check`` refuses annotations that are no types of numbers, vectors or
structures.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import ModuleType
from typing import Any

from oxide.errors import CompileError
from oxide.language.structures import StructureType, is_structure, structure_of
from oxide.language.types import ScalarType
from oxide.language.vectors import Vector, VectorType

from .source import outer_names, parse_definition


def annotated_locals(function: Callable[..., Any]) -> dict[str, ScalarType | VectorType | StructureType]:
    """Returns the types of a function's annotated local variables, by name. Returns an empty dict for a function
    without a source."""
    try:
        definition, _ = parse_definition(function)
    except CompileError:
        return {}
    annotated = [node for node in ast.walk(definition) if isinstance(node, ast.AnnAssign)]
    outer = outer_names(function) if annotated else {}
    found = {ast.unparse(node.target): annotated_type(node.annotation, outer) for node in annotated}
    return {name: kind for name, kind in found.items() if kind is not None}


def annotated_type(node: ast.expr, outer: dict[str, Any]) -> ScalarType | VectorType | StructureType | None:
    """Returns the type of numbers, vectors or structures that an annotation names, or None. ``outer`` has the outside
    objects."""
    found = _resolved(node, outer)
    if is_structure(found):
        return structure_of(found)
    return found if isinstance(found, ScalarType | VectorType) else None


def annotated_parameters(function: Callable[..., Any]) -> dict[str, ScalarType]:
    """Returns the scalar types of a function's annotated parameters, by name. ``return`` is that of its result."""
    definition, _ = parse_definition(function)
    arguments = definition.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    annotated = {each.arg: each.annotation for each in parameters} | {"return": definition.returns}
    outer = outer_names(function)
    found = {name: _resolved(node, outer) for name, node in annotated.items() if node is not None}
    return {name: kind for name, kind in found.items() if isinstance(kind, ScalarType)}


def _resolved(node: ast.expr, outer: dict[str, Any]) -> Any:
    """Returns the outside object that an annotation names, or None."""
    match node:
        case ast.Subscript(value=value, slice=scalar):
            made_of, kind = _resolved(value, outer), _resolved(scalar, outer)
            is_vector = isinstance(made_of, type) and issubclass(made_of, Vector) and isinstance(kind, ScalarType)
            return VectorType(made_of, kind) if is_vector else None
        case ast.Name(id=name):
            return outer.get(name)
        case ast.Attribute(value=value, attr=attribute):
            module = _resolved(value, outer)
            return getattr(module, attribute, None) if isinstance(module, ModuleType) else None
    return None
