"""Functions that a kernel defines, and lambdas: each becomes a device function.

The variables of the kernel that such a function reads become keyword-only parameters, and each call passes their values
at that moment. This is what Python does, because the function looks a variable up when it is called. So the kernel is
typed without closures, and all rules for device functions hold: widths, recursion, arguments.

A function that cannot become one keeps its place in the tree, with the reason as ``problem``, and is refused later.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from types import CellType, FunctionType
from typing import TypeAlias, final

from oxide.compiler.signature.device_function import DeviceFunction, device
from oxide.compiler.source.source import closure_values, keep_text, outer_names

_Function: TypeAlias = ast.FunctionDef | ast.Lambda

Compile: TypeAlias = Callable[[ast.FunctionDef, dict[str, CellType]], FunctionType]
"""Compiles a definition to a function, which may name the cells' variables too."""


def lift(function: FunctionType, definition: ast.FunctionDef, make: Compile) -> dict[str, CellType]:
    """Takes the functions out of a definition, and passes to their calls what they capture. Returns the device
    functions by the names that the definition has for them, in cells for ``compiled``."""
    found = _Nested(function, definition)
    cells = {name: CellType() for name in found.lifted}
    for name, nested in found.lifted.items():
        made = make(found.definition_of(name, nested), cells)
        # The annotations are evaluated in the scope of the kernel.
        made.__annotations__ = {
            each.arg: ast.unparse(each.annotation) for each in nested.args.args if each.annotation is not None
        }
        if isinstance(nested, ast.FunctionDef) and nested.returns is not None:
            made.__annotations__["return"] = ast.unparse(nested.returns)
        made.__defaults__ = tuple(map(ast.literal_eval, nested.args.defaults)) or None
        made.__kwdefaults__ = None
        keep_text(made, function)
        called = DeviceFunction(made, dict(closure_values(function)), plain=True)
        called.captures = tuple(sorted(found.captures[name]))
        cells[name].cell_contents = called
    return cells


@final
class _Nested:
    """The functions in one definition: ``lifted`` has those that become device functions, by name, and ``captures`` the
    variables that each reads."""

    def __init__(self, function: FunctionType, definition: ast.FunctionDef) -> None:
        self._outer = outer_names(function)
        self._locals = _bound(definition)
        self._number = 0
        self.lifted: dict[str, _Function] = {}
        self._find_named(definition, definition.body)
        self._find_lambdas(definition)
        self.captures = {name: set[str]() for name in self.lifted}
        reads = {name: _free(nested) for name, nested in self.lifted.items()}
        for _ in self.lifted:  # a function also captures what the functions that it calls capture
            for name, read in reads.items():
                called = (self.captures[each] for each in read & self.lifted.keys())
                captured = (read & self._locals).difference(self.lifted).union(*called)
                self.captures[name] = captured - _bound(self.lifted[name])
        scopes = [scope for top in (definition, *self.lifted.values()) for scope in _scopes(top)]
        for scope in scopes:
            self._check_uses(definition, scope)
        for scope in scopes:
            self._pass_captures(scope)

    def definition_of(self, name: str, nested: _Function) -> ast.FunctionDef:
        """Returns the definition of a function, with what it captures as keyword-only parameters."""
        arguments = nested.args
        arguments.kwonlyargs = [ast.copy_location(ast.arg(each), nested) for each in sorted(self.captures[name])]
        arguments.kw_defaults = [None] * len(arguments.kwonlyargs)
        body = nested.body
        if not isinstance(body, list):
            body = [ast.copy_location(ast.Return(body), body)]
        shown = name if isinstance(nested, ast.FunctionDef) else "lambda_"
        made = ast.FunctionDef(shown, arguments, body, [], None, None)
        if "type_params" in made._fields:
            setattr(made, "type_params", [])  # noqa: B010 - since Python 3.12
        return ast.copy_location(made, nested)

    def _find_named(self, definition: ast.FunctionDef, block: list[ast.stmt]) -> None:
        for place, statement in enumerate(block):
            match statement:
                case ast.FunctionDef(name=name) as nested:
                    pass
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda() as nested):
                    pass
                case _:
                    for inner in _blocks(statement):
                        self._find_named(definition, inner)
                    continue
            after = {id(node) for later in block[place + 1 :] for node in ast.walk(later)}
            used = [node for node in _own(definition) if isinstance(node, ast.Name) and node.id == name]
            early = [node for node in used if isinstance(node.ctx, ast.Load) and id(node) not in after]
            problem = self._problem(nested)
            if _bindings(definition).count(name) > 1:
                problem = f"{name} is a function here and is bound once more: use another name"
            elif early:
                problem = f"{name} is a function that is used before this line or outside this block: define it earlier"
            if problem:
                for node in (nested, *early):
                    node.problem = problem  # type: ignore[union-attr]
                continue
            self.lifted[name] = nested
            block[place] = ast.copy_location(ast.Pass(), statement)

    def _find_lambdas(self, definition: ast.FunctionDef) -> None:
        for call in [node for node in _own(definition) if isinstance(node, ast.Call)]:
            for place, given in enumerate([call.func, *call.args]):
                if not isinstance(given, ast.Lambda) or (problem := self._problem(given)):
                    if isinstance(given, ast.Lambda):
                        given.problem = problem  # type: ignore[attr-defined]
                    continue
                self._number += 1
                name = f"lambda_{self._number}"
                while name in self._locals or name in self._outer or name in self.lifted:
                    name += "_"
                self.lifted[name] = given
                named = ast.copy_location(ast.Name(name, ast.Load()), given)
                if place == 0:
                    call.func = named
                else:
                    call.args[place - 1] = named

    def _problem(self, nested: _Function) -> str:
        """Returns why a function cannot become a device function, or an empty string."""
        arguments = nested.args
        if arguments.vararg or arguments.kwarg or arguments.posonlyargs or arguments.kwonlyargs:
            return "a function in a kernel has ordinary parameters, without * and /"
        if any(isinstance(node, ast.Nonlocal | ast.Global) for node in _own(nested)):
            return "nonlocal is not supported in kernels: return the value, and assign it where the function is called"
        if not all(_is_number(each) for each in arguments.defaults):
            return "a default value of a function in a kernel is a number: it reads variables of the kernel by itself"
        decorators = nested.decorator_list if isinstance(nested, ast.FunctionDef) else []
        if any(not isinstance(each, ast.Name) or self._outer.get(each.id) is not device for each in decorators):
            return "a function in a kernel has no decorator but @device"
        return ""

    def _check_uses(self, definition: ast.FunctionDef, scope: _Function) -> None:
        """Marks the uses of functions with captures that have no meaning: a function that is passed on, and a call
        where a captured name means another variable."""
        called = {id(node.func) for node in _own(scope) if isinstance(node, ast.Call)}
        for node in _own(scope):
            if not isinstance(node, ast.Name) or not self.captures.get(node.id) or node.id in _bound(scope):
                continue
            captured = self.captures[node.id]
            shown = "this lambda" if isinstance(self.lifted[node.id], ast.Lambda) else node.id
            if id(node) not in called:
                node.problem = (  # type: ignore[attr-defined]
                    f"{shown} uses {', '.join(sorted(captured))} of the function around it, and such a function can "
                    "only be called here, not stored or passed: pass one that gets all its numbers as arguments"
                )
            elif scope is not definition and (twice := captured & _bound(scope)):
                node.problem = (  # type: ignore[attr-defined]
                    f"{shown} uses {', '.join(sorted(twice))} of the function around both, and the function that calls "
                    "it here has another variable of that name: rename one"
                )

    def _pass_captures(self, scope: _Function) -> None:
        """Gives each call the variables that the called function captures."""
        for node in [each for each in _own(scope) if isinstance(each, ast.Call)]:
            name = node.func.id if isinstance(node.func, ast.Name) and node.func.id not in _bound(scope) else ""
            for captured in sorted(self.captures.get(name, ())):
                value = ast.copy_location(ast.Name(captured, ast.Load()), node.func)
                node.keywords.append(ast.copy_location(ast.keyword(captured, value), node.func))


def _is_number(node: ast.expr) -> bool:
    try:
        return isinstance(ast.literal_eval(node), bool | int | float | complex)
    except ValueError:
        return False


# Scopes


def has_functions(definition: ast.FunctionDef) -> bool:
    """Returns whether a function defines functions or has lambdas."""
    return any(isinstance(node, ast.FunctionDef | ast.Lambda) for node in _own(definition))


def _body(function: _Function) -> list[ast.AST]:
    return list(function.body) if isinstance(function, ast.FunctionDef) else [function.body]


def _own(function: _Function) -> Iterator[ast.AST]:
    """Yields the nodes of a function's body, with the functions in it but without what is in these."""
    pending = _body(function)
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            pending += node.args.defaults
        else:
            pending += ast.iter_child_nodes(node)


def _scopes(function: _Function) -> Iterator[_Function]:
    """Yields a function, and all functions in it."""
    yield function
    for node in _own(function):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            yield from _scopes(node)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yields the blocks of a statement."""
    for _, value in ast.iter_fields(statement):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield value


def _bindings(function: _Function) -> list[str]:
    """Returns the names that a function binds, each as often as it does."""
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    for node in _own(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.FunctionDef):
            names.append(node.name)
    return names


def _bound(function: _Function) -> set[str]:
    return {*_bindings(function)}


def _free(function: _Function) -> set[str]:
    """Returns the names that a function reads from around it."""
    read = {node.id for node in _own(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    inner = (_free(node) for node in _own(function) if isinstance(node, ast.FunctionDef | ast.Lambda))
    return read.union(*inner) - _bound(function)
