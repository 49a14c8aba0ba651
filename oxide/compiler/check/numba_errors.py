"""Rewords numba's typing errors for a kernel's author: one line with file and place, the problem, and the fix."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from string import Formatter
from typing import Any, TypeAlias

from oxide.compiler.ir.values import split_list
from oxide.compiler.source.source import Span, column_of, compiling, line_in, located, located_in, node_at, statement_at
from oxide.errors import CompileError, OxideError
from oxide.host.locks import new_lock, unheld
from oxide.language.atomic import AtomicAccess
from oxide.language.types import SCALARS

from . import advice
from .vocabulary import refusal

_OPERATORS = {
    "add": "+", "iadd": "+=", "sub": "-", "isub": "-=", "mul": "*", "imul": "*=", "truediv": "/", "itruediv": "/=",
    "floordiv": "//", "ifloordiv": "//=", "mod": "%", "imod": "%=", "pow": "**", "ipow": "**=", "lshift": "<<",
    "ilshift": "<<=", "rshift": ">>", "irshift": ">>=", "and_": "&", "iand": "&=", "or_": "|", "ior": "|=",
    "xor": "^", "ixor": "^=", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "neg": "unary -", "pos": "unary +", "invert": "~", "getitem": "[...]", "setitem": "[...] =",
    "is_": "is", "is_not": "is not", "not_": "not",
}  # fmt: skip

_NAMES = {"int": "i64", "none": "None", "place": "i64", "open_integer": "i64", "open_float": "f64"} | {
    scalar.dtype_name: name for name, scalar in SCALARS.items()
}


Node: TypeAlias = ast.expr | ast.stmt | None
Said: TypeAlias = dict[str, str]
"""The parts of one of numba's messages, by the names that its template has for them."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed compilation: its place, numba's message, and messages of oxide's own typing rules. Line 0 means an
    unknown place."""

    file: str
    line: int
    span: Span | None
    text: str
    notes: tuple[str, ...]


def compile_error(name: str, function: Callable[..., Any], failure: Failure, *, numba_style: bool) -> CompileError:
    """Returns the ``CompileError`` for a failure of the front end."""
    node = node_at(failure.file, failure.span)
    problem = _construct(failure.text, node, numba_style)
    if problem is None:
        problem = failure.notes[-1] if failure.notes else _problem(failure.text, node, numba_style)
    if method := parts_of("BoundFunction({name} for ", problem):
        problem = _method_problem(method["name"].rpartition(".")[2], statement_at(failure.file, failure.line))
    if not failure.line:
        return located(function, f"kernel {name}: {problem}")
    column = column_of(failure.file, failure.span)
    if column is None and (found := parts_of(_UNIFY, failure.text)):
        column = _column_of_name(failure, found["name"].partition(".")[0])
    return located_in(failure.file, failure.line, problem, column)


def _column_of_name(failure: Failure, name: str) -> int | None:
    """Returns the column of a name in the line of a failure."""
    found = re.search(rf"\b{name}\b", line_in(failure.file, failure.line))
    return None if found is None else found.start()


@contextmanager
def placed_errors(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Raises each failure of a compilation step as an oxide error with a file and a line. If the line is not known, it
    is the kernel's first line.

    An unexpected exception becomes the cause of a ``CompileError``.
    """
    try:
        with _room_for_recursion(), compiling(function):
            yield
    except RecursionError as error:
        raise located(
            function,
            f"kernel {name} has too many branches, or expressions nested too deeply, to be compiled as one: write "
            "parts of it as loops, or make several kernels of it",
        ) from error
    except CompileError as error:
        said = str(error)
        if _PLACED.match(said):
            raise
        # The step that raised does not know the source.
        raise located(function, said if said.startswith("kernel ") else f"kernel {name}: {said}") from error.__cause__
    except (OxideError, MemoryError):
        raise
    except Exception as error:
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), "it says no more")
        raise located(
            function,
            f"kernel {name} cannot be compiled, and oxide should have said why: {type(error).__name__}: {said}; "
            "the line can be found by leaving parts of the kernel out",
        ) from error


_ROOM = 10_000
"""Python's recursion limit during a compilation, in calls: enough for a kernel with some thousand branches.

numba walks a function's blocks recursively, and oxide walks the expressions of its syntax tree. The usual limit of 1000
would allow a few hundred branches or terms. A higher one is safe: a call from one Python function to another takes no
space on the C stack, and Python's own compiler has already limited how deeply a source file nests.
"""

_limit_lock = new_lock()
_compilations = 0
_usual_limit = 0


@contextmanager
def _room_for_recursion() -> Iterator[None]:
    """Raises the recursion limit within the ``with`` block. All threads share it, so the last one to leave its block
    restores it."""
    global _compilations, _usual_limit
    with unheld(_limit_lock):
        if _compilations == 0:
            _usual_limit = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_usual_limit, _ROOM))
        _compilations += 1
    try:
        yield
    finally:
        with unheld(_limit_lock):
            _compilations -= 1
            if _compilations == 0:
                sys.setrecursionlimit(_usual_limit)


def _construct(text: str, node: Node, numba_style: bool) -> str | None:
    """Returns the problem in terms of the construct at the failure's place in the source, if this explains the failure
    better than numba's message about types. None for any other failure."""
    if "DictType[" in text:
        return f"a dict is not supported in kernels: nothing is allocated there; use {advice.allocating(numba_style)}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return "@ is not supported in kernels: write the loops"
    if NO_TEXT in text:
        return advice.of_text(node) if isinstance(node, ast.JoinedStr) else advice.of_builtin("str(...)", "str")
    if ufunc := parts_of(f"{NO_UFUNC} np.{{name}}", text):
        return _ufunc_problem(ufunc["name"], node, numba_style)
    if any(said in text for said in _ALLOCATES):
        return _allocation_problem(node, numba_style)
    lowered = parts_of("No definition for lowering <class 'numba.cuda.stubs.{function}'>({first}[", text)
    if "SliceType' object" in text or (lowered and lowered["first"].rstrip("12345").endswith("Slice")):
        return _of_slice(node)
    return None


_ATOMICS = {
    **{name: f"fetch_{name.rstrip('_')}" for name in ("add", "sub", "min", "max", "and_", "or_", "xor")},
    "exch": "exchange", "cas": "compare_exchange", "compare_and_swap": "compare_exchange",
}  # fmt: skip
"""Maps numba-cuda's functions ``cuda.atomic.…`` to the methods of ``AtomicSlice``."""


def _of_slice(node: Node) -> str:
    """Returns the error for a call of a function of numba-cuda with a slice."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="atomic"), attr=name), args=[array, *rest]) if (
            method := _ATOMICS.get(name)
        ):
            given = ", ".join(["0"] * (name == "compare_and_swap") + [ast.unparse(each) for each in rest])
            shown = ast.unparse(array)
            return (
                f"{ast.unparse(node.func)}(...) takes arrays: write {shown}.{method}({given}), where {shown} is an "
                "AtomicSlice[...], or annotate it as an array, as in Array[f32, 1]"
            )
        case ast.Call(func=called):
            return f"{ast.unparse(called)}(...) takes arrays: annotate the parameter as one, as in Array[f32, 1]"
    return "this takes arrays: annotate the parameter as one, as in Array[f32, 1]"


_PLACED = re.compile(r"(.+:\d+|In \[\d+\], line \d+): ")
NO_TEXT = "kernels make no text:"
NO_UFUNC = "kernels have no"
# numba's messages where it would need its memory runtime (NRT), which kernels do not have.
_ALLOCATES = ("NRT required", "Only accept returning of array", "NRT_")


def _ufunc_problem(name: str, node: Node, numba_style: bool) -> str:
    if isinstance(node, ast.Call):
        return advice.of_numpy(ast.unparse(node.func), name, numba_style)
    shown = "this" if node is None else ast.unparse(node)
    return (
        f"{shown} computes with whole arrays, and a kernel with numbers: index every axis, as in a[i, j], and loop "
        "over the elements"
    )


def _allocation_problem(node: Node, numba_style: bool) -> str:
    instead = advice.allocating(numba_style)
    match node:
        case ast.JoinedStr():
            return advice.of_text(node)
        case ast.List() | ast.ListComp():
            return f"a list is not supported in kernels: nothing is allocated there; use a tuple, or {instead}"
        case ast.Dict() | ast.Set() | ast.DictComp() | ast.SetComp():
            return f"a dict or set is not supported in kernels: nothing is allocated there; use {instead}"
        case ast.Call(func=ast.Attribute(value=ast.Name(id="np" | "numpy"), attr=name) as called):
            return advice.of_numpy(ast.unparse(called), name, numba_style)
        case ast.Call(func=ast.Attribute(attr="ravel" | "flatten") as called):
            return (
                f"{ast.unparse(called)}() may copy, and a kernel allocates nothing: use reshape(size) of an array "
                "that lies in one piece"
            )
        case ast.Call(func=ast.Attribute(attr=name) as called) if name in advice.NUMPY:
            return f"{ast.unparse(called)}() is not supported in kernels: use {advice.NUMPY[name]}"
        case ast.Call(func=called):
            return f"{ast.unparse(called)}(...) would allocate, and a kernel allocates nothing: use {instead}"
        case ast.Subscript(ctx=ast.Store()):
            return (
                f"{ast.unparse(node)} = ... may copy through a new array, and a kernel allocates nothing: copy it "
                "element by element, in a for loop"
            )
        case ast.Attribute(ctx=ast.Load()):
            return f"{ast.unparse(node)} is not supported in kernels"
        case ast.expr():
            return f"{ast.unparse(node)} would allocate, and a kernel allocates nothing: compute it for one element"
    return f"this would allocate, and a kernel allocates nothing: use {instead}"


def parts_of(template: str, text: str) -> dict[str, str] | None:
    """Returns what stands in a message in place of the names in braces, if a line of the message is as the template. A
    name at the end of the template stands for all that follows in the line. A bracket at the end is the last in the
    line."""
    parts = [(literal, name) for literal, name, *_ in Formatter().parse(template)]
    for line in text.split("\n"):
        start, found, before = 0, dict[str, str](), ""
        for number, (literal, name) in enumerate(parts):
            last = literal == ")" and number == len(parts) - 1
            place = line.rfind(literal, start) if last else line.find(literal, start)
            if place < 0:
                break
            if before:
                found[before] = line[start:place]
            start, before = place + len(literal), name or ""
        else:
            return found | ({before: line[start:]} if before else {})
    return None


_UNIFY = "Cannot unify {first} and {second} for '{name}'"


def _problem(text: str, node: Node, numba_style: bool) -> str:
    """Returns the problem that numba's message describes. If the message describes several, the first in the table
    wins, and of one kind the first in the message."""
    for template, wording in _PROBLEMS.items():
        found = parts_of(template, text)
        if found is None:
            continue
        if isinstance(wording, str):
            return wording.format_map({name: _SHOWN.get(name, str)(part) for name, part in found.items()})
        if problem := wording(found, node, numba_style):
            return problem
    shown = "" if node is None else ast.unparse(node)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Failed in")]
    first = "" if not lines or any(word in lines[0].lower() for word in _INTERNAL) else _translate(lines[0])
    if "positional argument" in first:
        return first
    if shown:
        return f"{shown} is not supported in kernels" + (f": {first}" if first else "")
    return first or "this is not supported in kernels"


_INTERNAL = (
    "object has no attribute", "is not subscriptable", "arg mismatch", "nonetype", "numba", "opcode", "op-code", "llvm",
)  # fmt: skip
"""Words of numba's internals, which mean nothing to a kernel's author."""


def _loop_problem(said: Said, node: Node, numba_style: bool) -> str:
    shown, loops = _shown(said["type"]), "range(...)" if numba_style else advice.LOOPS
    array = node.iter.id if isinstance(node, ast.For) and isinstance(node.iter, ast.Name) else "x"
    hint = f"; {advice.counted(array)}" if said["type"].startswith("Slice[") and not numba_style else ""
    return f"a for loop in a kernel goes over {loops}, not over {shown}{hint}"


def _store_problem(said: Said, node: Node, numba_style: bool) -> str:
    array = _array_of(said["array"])
    return "" if array is None else _index_problem("setitem", *array, [said["index"], said["value"]], node)


def _unpacking_problem(said: Said, node: Node, numba_style: bool) -> str:
    names = "several" if node is None else ast.unparse(node).strip("()")
    return f"the value is {_shown(said['type'])}, which is no tuple, and here it becomes {names}"


def _use_problem(said: Said, node: Node, numba_style: bool) -> str:
    given = " and ".join(map(_shown, split_list(said["arguments"]))) or "no arguments"
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else "this"
    return f"{called}(...) is not defined for {given}"


def _method_problem(name: str, statement: ast.stmt | None) -> str:
    """Returns the error for a method that a statement names and does not call."""
    nodes = [] if statement is None else list(ast.walk(statement))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    named = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr == name and id(node) not in called]
    shown = ast.unparse(named[0]) if named else f".{name}"
    if named and isinstance(named[0].ctx, ast.Store):
        return f"{shown} is a method, which cannot be assigned to"
    return f"{shown} is a method: call it, as in {shown}()"


def _call_problem(said: Said, node: Node, numba_style: bool) -> str:
    function, given = said["function"], split_list(said["arguments"])
    arguments = [_shown(argument) for argument in given]
    shown = " and ".join(arguments)
    if function == "bool":
        hint = "; write is not None" if arguments and arguments[0].startswith(("Ref", "ThreadIndex")) else ""
        return f"{shown} is neither true nor false{hint}"
    hint = ""
    if "ThreadIndex" in arguments:
        hint = "; a ThreadIndex has no arithmetic, its plain number is index.get()"
    elif any(argument.startswith("Ref[") for argument in arguments):
        hint = "; the element is .value"
    texts = any(argument.startswith(_TEXTS) for argument in given)
    if function in _OPERATORS:
        if texts and node is not None:
            return advice.of_text(node)
        if function in ("getitem", "setitem") and (array := _array_of(given[0])) is not None:
            return _index_problem(function, *array, given[1:], node)
        return f"{_OPERATORS[function]} is not defined for {shown}{hint}"
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else function
    head, _, last = called.rpartition(".")
    if head in ("np", "numpy"):
        return advice.of_numpy(called, last, numba_style)
    if called in ("cuda.shared.array", "cuda.local.array", "shared.array", "local.array"):
        return (
            f"{called}(shape, dtype): the shape is a constant, or a tuple of constants: a number, or a name that holds "
            f"one outside the kernel; this one is {', '.join(arguments[:1]) or 'missing'}"
        )
    if called in advice.BUILTINS:
        return f"{called}(...) is not supported in kernels: {advice.BUILTINS[called]}"
    return f"{called}(...) is not defined for {shown or 'no arguments'}{hint}"


def _index_problem(function: str, dtype: str, axes: int, given: list[str], node: Node) -> str:
    """Returns the error for ``a[index]`` of an array with ``axes`` axes."""
    name = ast.unparse(node.value) if isinstance(node, ast.Subscript) else "the array"
    indices = _element_types(given[0])
    if len(indices) > axes:
        return f"{name} has {_axes(axes)} and the index {len(indices)} numbers"
    shown = ", ".join(_shown(index) for index in indices)
    if function == "setitem" and len(given) > 1 and all(map(_is_integer, indices)):
        return f"an element of {name} is {_shown(dtype)}, and the value is {_shown(given[1])}"
    return f"{name}[...] is not defined for the index {shown}; an index is an integer, or one for each axis"


_TEXTS = ("Literal[str]", "unicode_type")


def _axes(count: int) -> str:
    return "no axes" if count == 0 else "one axis" if count == 1 else f"{count} axes"


def _attribute_problem(said: Said, node: Node, numba_style: bool) -> str:
    kind, name = said["type"], said["name"]
    shown = _shown(kind)
    if kind.startswith(_TEXTS) and node is not None:
        return advice.of_text(node)
    if "Slice[" in shown:
        if name in ("shape", "size"):
            parameter = shown.partition(" ")[0]
            return f"{shown} has no .{name} in kernels; its length is len({parameter})"
        if name in _ATOMIC_METHODS:
            return f"{shown} has no .{name}: declare the parameter as AtomicSlice[...] for atomic operations"
    if kind.startswith(("list(", "reflected list(")):
        return f"a list has no .{name} in kernels: nothing is allocated there; use a tuple, or " + advice.allocating(
            numba_style
        )
    if _array_of(kind) and name in advice.NUMPY:
        return f"{shown} has no .{name}() in kernels: use {advice.NUMPY[name]}"
    if kind.startswith("Module("):
        module = kind.partition("'")[2].partition("'")[0]
        owner = ast.unparse(node.value) if isinstance(node, ast.Attribute) else module
        if hasattr(sys.modules.get(module), name):
            return refusal(f"{owner}.{name}", getattr(sys.modules[module], name))
        return f"{owner} has no {name}{advice.similar(name, advice.names_in(module))}"
    return f"{shown} has no .{name} in kernels"


_ATOMIC_METHODS = frozenset(name for name in vars(AtomicAccess) if name[0] != "_")


def _unify_problem(said: Said, node: Node, numba_style: bool) -> str:
    name = "the value" if said["name"].startswith("$") else said["name"].partition(".")[0]
    shown = [_shown(re.sub(r"Literal\[(\w+)\]\([^()]*\)", r"\1", said[kind])) for kind in ("first", "second")]
    references = [each for each in shown if each.startswith(("Ref[", "TileRef[", "MatrixTileRef[", "RowRef["))]
    if len(references) == 1:
        return advice.rebound(name, next(each for each in shown if each not in references))
    return f"{name} is {shown[0]} in one place and {shown[1]} in another; use one name for each"


_PROBLEMS: dict[str, str | Callable[[Said, Node, bool], str]] = {
    "Casting ThreadIndex to {target} directly is unsupported": (
        "ThreadIndex cannot be converted to {target}; its plain number is index.get()"
    ),
    "Casting {source} to {target} directly is unsupported": "{source} cannot be converted to {target}",
    ">>> {function}({arguments})": _call_problem,
    "Unknown attribute '{name}' of type {type}": _attribute_problem,
    "Cannot resolve setattr: ({type}).{name} = ": "{type} has no .{name} that can be assigned to",
    _UNIFY: _unify_problem,
    "Cannot cast {source} to {target}:": "{source} cannot become {target} here",
    "Cannot cast {source} to {target}": "{source} cannot become {target} here",
    "Invalid use of getiter with parameters ({type})": _loop_problem,
    "No type info available for {type} as a callable": "{type} cannot be called",
    "No conversion from {source} to none for '$": (
        "a kernel returns nothing: write its result into an array that is a parameter"
    ),
    "No conversion from {source} to {target} for '$": (
        "the function is declared to return {target} and a path returns {source}; return a value on every path"
    ),
    "Can't unify return type from the following types: {types}": (
        "the returned values have different types: {types}; return one type"
    ),
    "name '{name}' is not defined": "{name} is read here before it is assigned",
    "ariable '{name}' is not defined": "{name} is read here before it is assigned",
    "Cannot resolve setitem: {array})[{index}] = {value}": _store_problem,
    "wrong tuple length for {what}expected {names}, got {values}'": (
        "the value has {values} elements, and here it becomes {names}"
    ),
    "failed to unpack {type}": _unpacking_problem,
    "Invalid use of {function} with parameters ({arguments})": _use_problem,
}
"""Maps numba's messages to the problem, or to a function that words the problem. The function returns "" to leave it to
another message."""


def _element_types(type_text: str) -> list[str]:
    """Returns the types of a tuple's elements. For any other type, returns a list that has only the type itself."""
    text = type_text.strip()
    kind, _, inside = text.removesuffix(")").partition("(")
    if kind == "UniTuple":
        element, _, count = inside.rpartition(" x ")
        return [element] * int(count)
    return split_list(inside) if kind == "Tuple" else [text]


def _shown(type_text: str) -> str:
    """Returns a type as the kernel's author would write it. For a slice, the parameter's name comes first."""
    text = type_text.strip().rstrip(":").removesuffix(" of index_2d")
    if text.startswith(("Slice[", "DisjointSlice[")):
        kind, _, name = text.partition("] ")
        return f"{name} ({kind}])" if name else text
    if text.startswith("Literal["):
        kind, _, value = text.removeprefix("Literal[").removesuffix(")").partition("](")
        return repr(value) if kind == "str" else value
    name, equals, value = text.partition("=")
    if equals and name.isidentifier():
        return _shown(value)
    if text.startswith("DictType["):
        return "a dict"
    if array := _array_of(text):
        return f"Array[{_shown(array[0])}, {array[1]}]"
    if text.startswith(("Tuple(", "UniTuple(")):
        return f"tuple[{', '.join(map(_shown, _element_types(text)))}]"
    kind, _, inside = text.partition("(")
    if kind == "OptionalType":
        return f"{_shown(inside.removesuffix(')'))} or None"
    if kind in ("list", "reflected list"):
        return f"a list of {_shown(inside.partition(')')[0])}"
    if kind == "class":
        return _shown(inside.removesuffix(")"))
    return "str" if text == "unicode_type" else _NAMES.get(text, text)


def _is_integer(text: str) -> bool:
    """Returns whether a type, or a number in place of one, is an integer."""
    return text.startswith("Literal[int]") or text.removeprefix("-").removeprefix("u").removeprefix("int").isdigit()


def _array_of(text: str) -> tuple[str, int] | None:
    """Returns the dtype and the number of axes of an array, or None for any other type."""
    kind, _, inside = text.removeprefix("unaligned ").removeprefix("Array").removesuffix(")").partition("(")
    match split_list(inside):
        case [dtype, axes, _, *_] if kind == "array" and axes.endswith("d"):
            return dtype, int(axes.removesuffix("d"))
    return None


def _translate(text: str) -> str:
    return re.sub(r"\b(?:u?int\d+|float\d+|complex\d+|none)\b", lambda match: _NAMES.get(match[0], match[0]), text)


_SHOWN = {"source": _shown, "target": _shown, "type": _shown, "types": _translate}
"""Maps the names that templates have for types to the functions that show these types."""
