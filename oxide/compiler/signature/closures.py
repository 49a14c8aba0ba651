"""Python functions as kernel arguments: the numbers that a function captures become parameters of the kernel.

``map_(lambda x: x * factor, x, out)`` must not compile again when ``factor`` changes, and must not keep the old value.
So the function is *lifted*: oxide compiles a copy of its source in which each captured number is a parameter. Other
things that the function names (device functions, modules, types) are part of the code, as in every ``@device``
function. A kernel is compiled once for each combination of the function's code, the types of its captured numbers and
the other things that it names.

A lambda or an ordinary function also captures the numbers of its module, with their values at the launch. In a
``@device`` function the module's numbers are constants, which may be the shape of a ``SharedArray``, for example.
Default values count as captured.
"""

from __future__ import annotations

import ast
import builtins
import copy
import dis
import functools
import itertools
import weakref
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias, final

import numpy as np

from oxide.compiler.source.source import (
    EMPTY,
    FUTURE,
    closure_values,
    first_line,
    keep_text,
    lines_of,
    located,
    parsed,
    trees,
    why_missing,
)
from oxide.errors import ArgumentError, place_name
from oxide.host import disk
from oxide.language import atomic, thread
from oxide.language.types import OF_PYTHON, ScalarType, of_dtype

from .annotations import Annotation
from .device_function import DeviceFunction
from .signature import Lifted, OpenFunction, Parameter

Function: TypeAlias = FunctionType | DeviceFunction[..., Any]

_NUMBERS = (int, float, complex, np.generic)


def kind_of(function: Function) -> Hashable:
    """Returns a key for the specialization that a function needs: its code, its numbers' types, and the other things
    that it names."""
    plain, shape = _plain(function)
    is_device = plain is not function
    parts: list[Any] = [shape.number, is_device, *_annotations(function)]
    for _, value, is_global in _outer(plain, shape):
        if isinstance(value, _NUMBERS):
            parts.append(exactly(value) if is_device and is_global else type(value))
        else:
            parts.append(value if _is_constant(value) else type(value))
    return tuple(parts)


def lift(
    parameter: OpenFunction,
    function: Function,
    takes: tuple[ScalarType | None, ...] | None,
    returns: ScalarType | None,
) -> Parameter:
    """Returns the kernel parameter for a function, given the types that it takes and returns.

    Raises ``ArgumentError`` if the function has more or fewer parameters than ``takes``, has parameters with ``*``,
    ``**`` or ``/``, or captures something that cannot be a parameter. Raises ``CompileError`` if the function's source
    cannot be read.
    """
    plain, shape = _plain(function)
    code, is_device = plain.__code__, plain is not function
    if shape.unsupported is not None or (takes is not None and len(takes) != shape.arity(plain)):
        own = ", ".join(code.co_varnames[: shape.arity(plain)])
        found = f"parameters ({own})" if shape.unsupported is None else shape.unsupported
        raise _refused(parameter, plain, f"has {found}")
    numbers: list[tuple[str, ScalarType]] = []
    literal: list[bool] = []
    constants: dict[str, Any] = {}
    for name, value, is_global in _outer(plain, shape):
        if isinstance(value, _NUMBERS) and not (is_device and is_global):
            kind = OF_PYTHON.get(type(value)) or (of_dtype(value.dtype) if isinstance(value, np.generic) else None)
            if kind is None:
                raise _refused(
                    parameter, plain, f"uses {name}, a {type(value).__name__}, which kernels have no type for"
                )
            numbers.append((name, kind))
            literal.append(type(value) is float)
        elif isinstance(value, _NUMBERS) or _is_constant(value):
            constants[name] = value
        elif value is EMPTY:
            raise _refused(parameter, plain, f"uses {name}, which has no value yet")
        else:
            raise _refused(
                parameter,
                plain,
                f"uses {name}, a {type(value).__name__}, where it may use numbers, device functions and modules; give "
                "the kernel a parameter for anything else",
            )
    annotations = _annotations(function)
    exact = [(name, exactly(value) if isinstance(value, _NUMBERS) else value) for name, value in constants.items()]
    captured = tuple(numbers), tuple(literal), tuple(exact)
    key = code, code.co_filename, is_device, annotations, *captured, takes, returns
    made = _known(key)
    if made is None:
        made = _copied(plain, numbers, constants)
        _remember(key, made)
        if returns is not None:
            made.annotations["return"] = Annotation("scalar", returns)
        for name, scalar in zip(code.co_varnames, takes or (), strict=False):
            if scalar is not None:
                made.annotations[name] = Annotation("scalar", scalar)
        made.annotations.update(annotations)
    parts = tuple(Parameter(parameter.kernel, f"{parameter.name}.{name}", "scalar", kind) for name, kind in numbers)
    identity = f"{_identity(plain, annotations, numbers, takes, returns)} {literal}"
    words = functools.partial(_captured, parts)
    lifted = Lifted(made, parts, tuple(literal), shape.arity(plain), parameter.annotation, identity, words)
    return Parameter(parameter.kernel, parameter.name, "function", _NO_SCALAR, lifted=lifted)


def exactly(value: object) -> Hashable:
    """Returns a key for a number or a tuple of numbers. As a key, the value itself would equal others that give other
    code: 1, 1.0 and True, or 0.0 and -0.0."""
    return type(value), repr(value)


def _annotations(function: Function) -> tuple[tuple[str, Annotation], ...]:
    """Returns the annotations of a ``@device`` function, which may differ between functions of the same code."""
    return tuple(function.annotations.items()) if isinstance(function, DeviceFunction) else ()


def _captured(parts: tuple[Parameter, ...], function: Function) -> tuple[Any, ...]:
    """Returns the current values of the numbers that a function captures, converted for the kernel."""
    plain, shape = _plain(function)
    is_device = plain is not function
    numbers = (
        value
        for _, value, is_global in _outer(plain, shape)
        if isinstance(value, _NUMBERS) and not (is_device and is_global)
    )
    return tuple(word for part, number in zip(parts, numbers, strict=True) for word in part.words(number))


_NO_SCALAR = ScalarType("function", numpys=np.dtype(np.void))
_lifted: dict[int, tuple[weakref.ref[DeviceFunction[..., Any]], Hashable]] = {}  # by hash(key), compared in C code


def _known(key: Hashable) -> DeviceFunction[..., Any] | None:
    """Returns the lifted function with this key, if it is still alive."""
    found, known = _lifted.get(hash(key), (None, None))
    return found() if found is not None and known == key else None


def _remember(key: Hashable, made: DeviceFunction[..., Any]) -> None:
    """Stores a lifted function under its key for as long as it is alive. If the table has a function under another key
    with the same hash, that function is replaced, and is lifted again at its next use."""
    number = hash(key)
    forget = functools.partial(_lifted.pop, number)
    _lifted[number] = weakref.ref(made, forget), key


@final
@dataclass(frozen=True, slots=True)
class _Shape:
    """Data shared by all functions of one code object."""

    code: CodeType
    number: int
    global_names: tuple[str, ...]
    unsupported: str | None

    def arity(self, function: FunctionType) -> int:
        """Returns the number of parameters without a default."""
        return self.code.co_argcount - len(function.__defaults__ or ())


_numbers = itertools.count()
_shapes: dict[int, _Shape] = {}  # by the address of the code object, which its entry keeps alive


def _plain(function: Function) -> tuple[FunctionType, _Shape]:
    plain: Any = function.function if isinstance(function, DeviceFunction) else function
    code = plain.__code__
    shape = _shapes.get(id(code))
    if shape is None:
        names = tuple(dict.fromkeys(each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"))
        unsupported = None
        if code.co_flags & 0x0C or code.co_kwonlyargcount or code.co_posonlyargcount:
            unsupported = "parameters with *, ** or /"
        shape = _shapes[id(code)] = _Shape(code, next(_numbers), names, unsupported)
    return plain, shape


def _outer(function: FunctionType, shape: _Shape) -> Iterator[tuple[str, Any, bool]]:
    """Yields the values from outside a function's body: name, value, and whether it is a module's global."""
    code = shape.code
    if function.__defaults__:
        names = code.co_varnames[shape.arity(function) : code.co_argcount]
        for name, value in zip(names, function.__defaults__, strict=True):
            yield name, value, False
    for name, value in closure_values(function):
        yield name, value, False
    outside = function.__globals__
    for name in shape.global_names:
        if name in outside:
            yield name, outside[name], True


def _is_constant(value: Any) -> bool:
    return callable(value) or isinstance(value, ModuleType | thread.Coordinates | atomic.Ordering | atomic.Scope)


def _refused(parameter: OpenFunction, function: FunctionType, problem: str) -> ArgumentError:
    code = function.__code__
    return ArgumentError(
        f"kernel {parameter.kernel}: parameter {parameter.name} is {parameter.annotation}, and the function "
        f"{function.__name__} at {place_name(code.co_filename, code.co_firstlineno)} {problem}"
    )


def _identity(
    function: FunctionType,
    annotations: tuple[tuple[str, Annotation], ...],
    numbers: list[tuple[str, ScalarType]],
    takes: tuple[ScalarType | None, ...] | None,
    returns: ScalarType | None,
) -> str:
    """Returns a text that identifies a function and its types. The text is the same in every process."""
    code = function.__code__
    constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
    body = f"{code.co_code!r}{constants!r}{code.co_names}{annotations}{numbers}{takes}{returns}"
    digest = disk.blake2b(body.encode(), digest_size=8).hexdigest()
    return f"{function.__module__}:{function.__qualname__}:{code.co_firstlineno}:{digest}"


def _copied(
    function: FunctionType, numbers: list[tuple[str, ScalarType]], constants: dict[str, Any]
) -> DeviceFunction[..., Any]:
    """Compiles a copy of a function's source with the captured numbers as parameters."""
    code = function.__code__
    node = copy.deepcopy(_node(function))
    arguments = node.args
    known = [argument.arg for argument in arguments.args]
    arguments.defaults = []
    arguments.args += [ast.arg(name) for name, _ in numbers if name not in known]
    for argument in arguments.args:
        argument.annotation = None
    name = "lambda_" if isinstance(node, ast.Lambda) else node.name
    body: list[ast.stmt] = (
        [ast.copy_location(ast.Return(node.body), node.body)] if isinstance(node, ast.Lambda) else node.body
    )
    definition = ast.FunctionDef(name, arguments, body, [], None, None)
    if "type_params" in definition._fields:
        setattr(definition, "type_params", [])  # noqa: B010 - since Python 3.12
    ast.copy_location(definition, node)
    ast.fix_missing_locations(definition)
    flags = code.co_flags & FUTURE
    module = compile(ast.Module([definition], []), code.co_filename, "exec", flags=flags, dont_inherit=True)
    names = {"__builtins__": builtins, "__name__": function.__module__, **constants}
    exec(module, names)
    made = names[name]
    made.__qualname__ = function.__qualname__
    trees.set(made, definition)
    keep_text(made, function)
    return DeviceFunction(made)


def _node(function: FunctionType) -> ast.Lambda | ast.FunctionDef:
    """Returns the function's node in the syntax tree of its file."""
    code = function.__code__
    source = "".join(lines_of(function))
    names = list(code.co_varnames[: code.co_argcount])
    found = [
        node
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.Lambda | ast.FunctionDef)
        and first_line(node) == code.co_firstlineno
        and getattr(node, "name", "<lambda>") == code.co_name
        and [each.arg for each in node.args.args] == names
    ]
    if len(found) > 1:
        places = set(code.co_positions())
        found = [
            node
            for node in found
            if isinstance(node, ast.Lambda)
            and (node.body.lineno, node.body.end_lineno, node.body.col_offset, node.body.end_col_offset) in places
        ]
    if len(found) != 1:
        raise located(
            function,
            f"the source of {function.__name__} cannot be read: "
            + ("define it with def" if source else why_missing(function)),
        )
    return found[0]
