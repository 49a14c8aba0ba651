"""The vocabulary of tile kernels, such as ``tile.sum``: maps a call to the function that makes its nodes."""

from __future__ import annotations

from typing import Any

from oxide.compiler.tile.numbers import F32, I64
from oxide.language import tile as language

from . import operations, tensors
from .nodes import Nodes


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

    def take(*names: str, **defaults: Any) -> list[Any]:
        return taken(build, name, arguments, named, names, **defaults)

    if name in language.FLOATING or name in ("abs", "floor", "ceil"):
        return _unary(build, name, *take("x"))
    match name:
        case "maximum" | "minimum":
            return build.elementwise(name, take("a", "b"))
        case "where":
            return operations.where(build, *take("condition", "a", "b"))
        case "zeros" | "ones":
            shape, dtype = take("shape", dtype=F32)
            return operations.filled(build, shape, 0 if name == "zeros" else 1, dtype, name)
        case "full":
            return operations.filled(build, *take("shape", "value", dtype=F32))
        case "arange":
            n, dtype = take("n", dtype=I64)
            if isinstance(n, tuple | list):
                build.refuse("arange takes one length; reshape gives its tile another shape")
            return build.node("arange", (), build.dtype(dtype), build.sizes(n, name))
        case "sum" | "max" | "min":
            return operations.reduce(build, name, *take("x", axis=None, keepdims=False))
        case "argmax" | "argmin" | "cumsum":
            return operations.along(build, name, *take("x", axis=None))
        case "sort":
            return operations.sort(build, *take("x", axis=-1, descending=False))
        case "topk":
            return operations.topk(build, *take("x", "k", axis=-1))
        case "rand":
            return operations.rand(build, *take("seed", "counters"))
        case "reshape":
            return operations.reshape(build, *take("x", "shape"))
        case "transpose":
            return operations.transpose(build, *take("x", axes=None))
        case "broadcast_to":
            return operations.broadcast_to(build, *take("x", "shape"))
        case "cat":
            return operations.cat(build, *take("tiles", axis=0))
        case "mma":
            return operations.matmul(build, *take("a", "b", "acc", tf32=False))
        case "load_like":
            return tensors.load_like(build, *take("x", "like", padding=0))
        case "gather":
            return tensors.gather(build, *take("tensor", "indices", mask=None, padding=0))
        case "scatter" | "atomic_add" | "atomic_max" | "atomic_min" | "atomic_and" | "atomic_or" | "atomic_xor":
            return tensors.scatter(build, name, *take("tensor", "indices", "values", mask=None))
        case "program_id" | "num_programs":
            (axis,) = take(axis=0)
            if isinstance(axis, bool) or not isinstance(axis, int) or axis not in (0, 1, 2):
                build.refuse(f"{name} takes an axis, 0 to 2, that is known when the kernel is compiled")
            return build.node(name, (), I64, (), axis)
        case "cdiv":
            return _cdiv(build, *take("a", "b"))
    raise build.error(f"tile.{name} cannot be called here; it is what a for loop goes over")


def _unary(build: Nodes, name: str, x: Any) -> Any:
    found = build.lifted(x, name)
    if found.weak is not None and name in language.FLOATING:
        found = build.cast(found, F32)
    if (name in ("floor", "ceil") and found.dtype.kind in "iub") or (name == "abs" and found.dtype.kind in "ub"):
        return found
    return build.elementwise(name, (found,))


def _cdiv(build: Nodes, a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b) if b else build.refuse("cdiv by 0")
    one, two = build.lifted(a, "cdiv"), build.lifted(b, "cdiv")
    if "f" in (one.dtype.kind, two.dtype.kind):
        build.refuse(f"cdiv takes integers, not {build.shown(one)} and {build.shown(two)}")
    return build.elementwise("neg", (build.elementwise("floordiv", (build.elementwise("neg", (one,)), two)),))
