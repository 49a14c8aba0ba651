"""Reads the annotations of local variables, as in ``h: u32 = 2166136261``. Python's bytecode does not have them.

Each assignment to an annotated local converts the value to the annotated type. The front end makes these conversions
(``frontend/lowering/assignments.py``), and ``check`` refuses annotations that are no scalar types.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import ModuleType
from typing import Any

from oxide.errors import CompileError
from oxide.language.types import ScalarType

from .source import outer_names, parse_definition


def annotated_locals(function: Callable[..., Any]) -> dict[str, ScalarType]:
    """Returns the types of a function's annotated local variables, by name. Returns an empty dict for a function
    without a source."""
    try:
        definition, _ = parse_definition(function)
    except CompileError:
        return {}
    annotated = [node for node in ast.walk(definition) if isinstance(node, ast.AnnAssign)]
    outer = outer_names(function) if annotated else {}
    found = {ast.unparse(node.target): _resolved(node.annotation, outer) for node in annotated}
    return {name: kind for name, kind in found.items() if isinstance(kind, ScalarType)}


def _resolved(node: ast.expr, outer: dict[str, Any]) -> Any:
    """Returns the outside object that an annotation names, or None."""
    match node:
        case ast.Name(id=name):
            return outer.get(name)
        case ast.Attribute(value=value, attr=attribute):
            module = _resolved(value, outer)
            return getattr(module, attribute, None) if isinstance(module, ModuleType) else None
    return None
