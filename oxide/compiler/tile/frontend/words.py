"""The vocabulary of tile kernels, such as ``tile.sum``: maps a call to the function that makes its nodes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from oxide.compiler.tile.ir import SCATTERS
from oxide.compiler.tile.number_types import F32, I64
from oxide.language import tile as language

from . import tensors
from . import tile_functions as operations
from .node_maker import Nodes


def taken(
    build: Nodes, name: str, arguments: list[Any], named: dict[str, Any], names: tuple[str, ...], **defaults: Any
) -> list[Any]:
    """Returns a call's arguments in the order of the parameters. Raises ``CompileError`` for a missing or surplus
    argument."""
    every = (*names, *defaults)
    takes = f"it takes {', '.join(every)}" if every else "it takes none"
    if len(arguments) > len(every):
        build.refuse(f"{name} has {len(arguments)} arguments, which are too many; {takes}")
    found = dict(zip(every, arguments, strict=False))
    for key, value in named.items():
        if key not in every:
            build.refuse(f"{name} has no argument {key}; {takes}")
        if key in found:
            build.refuse(f"{name}: {key} is given twice")
        found[key] = value
    missing = [key for key in names if key not in found]
    if missing:
        build.refuse(f"{name} needs {' and '.join(missing)}; {takes}")
    return [found.get(key, defaults.get(key)) for key in every]


def word(build: Nodes, name: str, arguments: list[Any], named: dict[str, Any]) -> Any:
    """Evaluates a call of a function of the vocabulary."""
    function = _WORDS.get(name)
    if function is None:
        raise build.error(f"tile.{name} cannot be called here; it is what a for loop goes over")
    names, defaults, takes_name = _parameters_of(function)
    found = taken(build, name, arguments, named, names, **defaults)
    return function(build, name, *found) if takes_name else function(build, *found)


@functools.cache
def _parameters_of(function: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any], bool]:
    """Returns the parameters of a word's function that have no default value, the default values of the others, and
    whether the function also takes the word's name."""
    _, *parameters = inspect.signature(function).parameters.values()
    takes_name = parameters[0].name == "name"
    own = parameters[takes_name:]
    names = tuple(each.name for each in own if each.default is each.empty)
    return names, {each.name: each.default for each in own if each.default is not each.empty}, takes_name


def _unary(build: Nodes, name: str, x: Any) -> Any:
    found = build.lifted(x, name)
    if found.weak is not None and name in language.FLOATING:
        found = build.cast(found, F32)
    if (name in ("floor", "ceil") and found.dtype.kind in "iub") or (name == "abs" and found.dtype.kind in "ub"):
        return found
    return build.elementwise(name, (found,))


def _extreme(build: Nodes, name: str, a: Any, b: Any) -> Any:
    return build.elementwise(name, (a, b))


def _zeros_or_ones(build: Nodes, name: str, shape: Any, dtype: Any = F32) -> Any:
    return operations.filled(build, name, shape, int(name == "ones"), dtype)


def _arange(build: Nodes, name: str, n: Any, dtype: Any = I64) -> Any:
    if isinstance(n, tuple | list):
        build.refuse("arange takes one length; reshape gives its tile another shape")
    return build.node(name, (), build.dtype(dtype), build.sizes(n, name))


def _of_grid(build: Nodes, name: str, axis: Any = 0) -> Any:
    if isinstance(axis, bool) or not isinstance(axis, int) or axis not in (0, 1, 2):
        build.refuse(f"{name} takes an axis, 0 to 2, that is known when the kernel is compiled")
    return build.node(name, (), I64, (), axis)


def _cdiv(build: Nodes, a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b) if b else build.refuse("cdiv by 0")
    one, two = build.lifted(a, "cdiv"), build.lifted(b, "cdiv")
    if "f" in (one.dtype.kind, two.dtype.kind):
        build.refuse(f"cdiv takes integers, not {build.shown(one)} and {build.shown(two)}")
    return build.elementwise("neg", (build.elementwise("floordiv", (build.elementwise("neg", (one,)), two)),))


_WORDS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys((*language.FLOATING, "abs", "floor", "ceil"), _unary),
    **dict.fromkeys(("maximum", "minimum"), _extreme),
    **dict.fromkeys(("zeros", "ones"), _zeros_or_ones),
    **dict.fromkeys(("sum", "max", "min"), operations.reduce),
    **dict.fromkeys(("argmax", "argmin", "cumsum"), operations.along),
    **dict.fromkeys(SCATTERS, tensors.scatter),
    **dict.fromkeys(("program_id", "num_programs"), _of_grid),
    "where": operations.where, "full": operations.filled, "arange": _arange, "sort": operations.sort,
    "topk": operations.topk, "rand": operations.rand, "reshape": operations.reshape,
    "transpose": operations.transpose, "broadcast_to": operations.broadcast_to, "cat": operations.cat,
    "mma": operations.matmul, "load_like": tensors.load_like, "gather": tensors.gather, "cdiv": _cdiv,
}  # fmt: skip
"""The functions that make the nodes of each word. The parameters after ``build``, and after the word's own name if the
function takes it, are the parameters of the word."""
