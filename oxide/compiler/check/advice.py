"""Advice for error messages: replacements for names that kernels cannot use, and for common mistakes.

A test looks up each word here that looks like a name of Python, NumPy, oxide or numba-cuda, and fails if no such name
exists.
"""

from __future__ import annotations

import ast
import difflib
import enum
import sys
from collections.abc import Iterable
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

from oxide.compiler.signature.annotations import dtype_name
from oxide.compiler.signature.device_function import DeviceFunction
from oxide.compiler.source.source import located_in
from oxide.errors import CompileError

_MATHEMATICS = """acos acosh asin asinh atan atan2 atanh cbrt ceil comb copysign cos cosh degrees dist erf erfc exp exp2
expm1 fabs factorial floor fma fmod frexp gamma gcd hypot isclose isfinite isinf isnan isqrt lcm ldexp lgamma log log10
log1p log2 modf nextafter perm pow prod radians remainder sin sinh sqrt sumprod tan tanh trunc ulp"""
MATHEMATICS = _MATHEMATICS.split()
"""The functions of Python's ``math`` that kernels have. Some exist only in later versions of Python."""

_OF_TWO = frozenset({"atan2", "copysign", "fmod", "gcd", "hypot", "isclose", "lcm", "ldexp", "nextafter"})

_HOST_PACKAGES = ("oxide", "oxide_kernels")
"""Packages whose functions are host functions, except for those that kernels know."""

LOOPS = "range(...), a Slice, a view, enumerate, zip, reversed or zip_exact(...)"
ZIP_STRICT = "zip(..., strict=True) is not supported in kernels: zip_exact(a, b) goes over views of equal lengths"
_LOOP = "a for loop over range(len(x))"

NUMPY: dict[str, str] = {
    "abs": "abs(x)",
    "absolute": "abs(x)",
    "max": f"{_LOOP} and max(a, b)",
    "amax": f"{_LOOP} and max(a, b)",
    "min": f"{_LOOP} and min(a, b)",
    "amin": f"{_LOOP} and min(a, b)",
    "clip": "min(max(x, low), high)",
    "pow": "a ** b",
    "power": "a ** b",
    "square": "x * x",
    "round": "np.rint(x)",
    "around": "np.rint(x)",
    "rint": "round(x)",
    "where": "a if condition else b",
    "prod": f"{_LOOP} that multiplies",
    "sum": f"{_LOOP} that adds, or oxide_kernels.ops.reduce_sum in a launch of its own",
    "mean": f"{_LOOP} that adds",
    "dot": f"{_LOOP} that adds products",
    "matmul": "loops that add products",
    "add": "a + b",
    "subtract": "a - b",
    "multiply": "a * b",
    "divide": "a / b",
    "true_divide": "a / b",
    "floor_divide": "a // b",
    "mod": "a % b",
    "remainder": "a % b",
    "negative": "-x",
    "sign": "(x > 0) - (x < 0), an integer, which is 0 for a NaN",
    **{
        name: f"math.{name}({'a, b' if name in _OF_TWO else 'x'})"
        for name in MATHEMATICS
        if hasattr(np, name) and name not in ("prod", "remainder", "pow")
    },
    "arccos": "math.acos(x)",
    "arccosh": "math.acosh(x)",
    "arcsin": "math.asin(x)",
    "arcsinh": "math.asinh(x)",
    "arctan": "math.atan(x)",
    "arctan2": "math.atan2(y, x)",
    "arctanh": "math.atanh(x)",
    "deg2rad": "math.radians(x)",
    "rad2deg": "math.degrees(x)",
}
"""Maps NumPy's functions that a kernel lacks, or takes no such arguments for, to what to write there."""

BUILTINS: dict[str, str] = {
    "sum": f"write {_LOOP} that adds",
    "any": "write a for loop that tests each",
    "all": "write a for loop that tests each",
    "sorted": "nothing is allocated there; sort before the launch",
    "enumerate": "count over range(len(x))",
    "zip": "count over range(len(x)), and index each",
    "reversed": "count down with range(n - 1, -1, -1)",
    "map": "write a for loop over range(...)",
    "filter": "write a for loop and an if",
    "list": "nothing is allocated there; use LocalArray(shape, dtype)",
    "dict": "nothing is allocated there; use LocalArray(shape, dtype)",
    "set": "nothing is allocated there; use LocalArray(shape, dtype)",
    "tuple": "write the tuple's elements, as in (a, b)",
    "str": "print(...) takes values one by one, as in print('x', x)",
    "repr": "print(...) takes values one by one, as in print('x', x)",
    "format": "print(...) takes values one by one, as in print('x', x)",
    "isinstance": "the types are known before the launch; test there",
    "input": "a kernel reads its parameters alone",
    "open": "a kernel reads its parameters alone",
}
"""Builtins that kernels do not have, and what to do instead."""

_MAKER_NAMES = """arange array asarray ascontiguousarray concatenate copy diag empty empty_like eye fromiter full
full_like hstack identity linspace ones ones_like stack vstack zeros zeros_like"""
_MAKERS = frozenset(_MAKER_NAMES.split())
"""NumPy's functions that create an array."""


def undefined(name: str, known: Iterable[str]) -> str:
    """Returns the error for an undefined name; it suggests the nearest of the ``known`` names."""
    return f"{name} is not defined{similar(name, known)}"


def similar(name: str, known: Iterable[str]) -> str:
    """Returns ``; did you mean …?`` if a known name resembles this one, else an empty string."""
    near = sorted(difflib.get_close_matches(name, set(known), 3, 0.75))
    return f"; did you mean {' or '.join(near)}?" if near else ""


def names_in(module: str) -> list[str]:
    """Returns the public names of a loaded module."""
    return [name for name in vars(sys.modules[module]) if name[0] != "_"] if module in sys.modules else []


def rebound(name: str, what: str) -> str:
    """Returns the error for an assignment of a value to a name that holds a reference."""
    return (
        f"{name} is a reference to an element, and this binds the name to {what} and writes nothing: "
        f"write {name}.value = ..., or use another name"
    )


def allocating(numba_style: bool) -> str:
    """Returns advice for a kernel that allocates an array: the arrays that it can have instead."""
    if numba_style:
        return "cuda.local.array(shape, dtype) or cuda.shared.array(shape, dtype), with a constant shape"
    return "LocalArray(shape, dtype) or SharedArray(shape, dtype), with a constant shape"


INTERPRET = "run k.interpret(…) for a kernel k, or set OXIDE_INTERPRET=1"


def of_value(shown: str, value: Any, *, numba_style: bool = False, called: bool = False) -> str:
    """Returns why a kernel cannot use an object from outside it, which it calls ``shown``, and what to do."""
    if getattr(value, "__name__", "") == "set_trace":
        return f"{shown} stops no kernel: write breakpoint() here, and {INTERPRET}"
    dtype = dtype_name(value)
    if dtype is not None and not numba_style:
        return f"{shown} is NumPy's: in a kernel the type is {dtype}"
    if type(value).__name__ == "Kernel" and hasattr(value, "specialize"):
        return f"{shown} is a kernel, and a kernel calls none: put what both do into a @device function"
    if isinstance(value, np.ufunc) or (getattr(value, "__module__", "") or "").partition(".")[0] == "numpy":
        return of_numpy(shown, getattr(value, "__name__", ""), numba_style)
    if isinstance(value, BuiltinFunctionType | type) and getattr(value, "__module__", None) == "builtins":
        return of_builtin(shown, value.__name__)
    if (
        callable(value)
        and not isinstance(value, type)
        and (getattr(value, "__module__", "") or "").partition(".")[0] in _HOST_PACKAGES
    ):
        return (
            f"{shown} is a function of the host, which makes operations or runs them: call it outside the kernel, and "
            "pass the kernel what it gives"
        )
    if isinstance(value, FunctionType):
        return f"{shown} is an ordinary Python function: mark it with @device to call it here"
    if isinstance(value, type):
        if called:
            return f"{shown} is a class, and kernels make no objects: pass numbers, or a NamedTuple as a parameter"
        return f"{shown} is a class, which kernels cannot use: give what it holds a name of its own, outside the kernel"
    if isinstance(value, ModuleType):
        return f"{shown} is a module, which kernels cannot use"
    if hasattr(value, "py_func"):
        return f"{shown} is compiled for the host alone, by its signatures: mark it with @device instead"
    if callable(value):
        return f"{shown} is a {type(value).__name__}, which cannot be called in a kernel: write a @device function"
    instead = "give the numbers that it has names of their own, outside the kernel"
    if type(value).__name__ in ("DeviceBox", "Arc"):
        instead = "pass it as a parameter"
    elif isinstance(value, range):
        instead = f"write {value} in the kernel"
    elif (made := as_constant(shown, value)) is not None:
        instead = f"make it an array outside the kernel, {made}, which is a constant in the kernel"
    return f"{shown} is a {type(value).__name__}, which kernels cannot use: {instead}"


def as_constant(shown: str, value: Any) -> str | None:
    """Returns the assignment, outside a kernel, that makes a constant array of a list or a tuple of numbers. Returns
    None for any other value. Python's floats become f32."""
    if not isinstance(value, list | tuple):
        return None
    try:
        array, numbers = np.array(value), np.array(value, object).ravel()
    except ValueError:  # rows of different lengths
        return None
    if array.dtype.kind not in "biufc" or not 1 <= array.ndim <= 3 or not array.size:
        return None
    dtype = {"f": ", np.float32", "c": ", np.complex64"}.get(array.dtype.kind, "")
    if not any(type(number) in (float, complex) for number in numbers):
        dtype = ""
    name = shown.rpartition(".")[2]
    return f"{name if name.isidentifier() else 'numbers'} = np.array({shown}{dtype})"


def counted(shown: str) -> str:
    """Returns the advice to loop over an array's indices, for arrays that a kernel cannot iterate over."""
    return f"write: for i in range(len({shown})), and {shown}[i]"


def indexed(shown: str, ndim: int, *, length: str = "{}.shape[0]", element: str = "{}[{}]") -> str:
    """Returns the advice to loop over the first axis of an array by its index. ``length`` is the expression for its
    length, and ``element`` the one for an element, with its index."""
    index, over = ", ".join("ijklm"[:ndim]), {1: "its elements", 2: "rows"}.get(ndim, "an axis")
    return f"over {over}, write: for i in range({length.format(shown)}), and {element.format(shown, index)}"


def of_loop(node: ast.expr, instead: str = "") -> str:
    """Returns the error for a loop over an expression. ``instead`` is what to write, if the caller knows more."""
    problem, shown = f"a for loop in a kernel goes over {LOOPS}", ast.unparse(node)
    if instead.startswith("over "):
        return f"{problem}; {instead}"
    if isinstance(node, ast.Tuple | ast.List):
        try:
            made = as_constant(f"[{', '.join(map(ast.unparse, node.elts))}]", ast.literal_eval(node))
        except ValueError:
            made = None
        instead = "write the body of the loop for each, or store them in a LocalArray, and loop over it"
        if made is not None:
            instead = f"outside the kernel write {made}, and loop over it"
        return f"{problem}, not over a tuple; {instead}"
    match node:
        case ast.Subscript(value=array, slice=ast.Slice(lower=lower, upper=upper, step=None)) if not any(
            isinstance(bound, ast.UnaryOp) for bound in (lower, upper)
        ):
            bounds = "" if lower is None else f"{ast.unparse(lower)}, "
            bounds += f"len({ast.unparse(array)})" if upper is None else ast.unparse(upper)
            instead = f"write: for i in range({bounds}), and {ast.unparse(array)}[i]"
    return f"{problem}, not over {shown}" + (f"; {instead}" if instead else "")


def of_builtin(shown: str, name: str) -> str:
    """Returns the error for a builtin that kernels do not have."""
    instead = f"to stop here, {INTERPRET}" if name == "breakpoint" else BUILTINS.get(name)
    return f"{shown} is not supported in kernels" + (f": {instead}" if instead else "")


def of_attribute(shown: str, holder: Any, attribute: str) -> str:
    """Returns the error for ``shown``, an attribute of a class."""
    value = f"{shown}.value" if isinstance(holder, enum.EnumMeta) else shown
    made = as_constant(shown, getattr(holder, attribute, None)) or f"{attribute} = {value}"
    return (
        f"{shown} is an attribute of a class, and kernels look into none: give it a name of its own, outside the "
        f"kernel, as in {made}"
    )


def of_numpy(shown: str, name: str, numba_style: bool) -> str:
    """Returns the error for a function of NumPy, with what to use instead."""
    if name in _MAKERS:
        return f"{shown} makes an array, and a kernel allocates nothing: use {allocating(numba_style)}"
    instead = NUMPY.get(name)
    return f"{shown} is not supported in kernels: " + (
        f"use {instead}" if instead else "write what it does for one element"
    )


def of_text(node: ast.AST) -> str:
    """Returns the error for string formatting in a kernel, with the advice to print the parts as separate values."""
    items = _printed(node) or "'x', x"
    return f"strings are not supported in kernels: print takes its values one by one, as in print({items})"


def _printed(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        parts: list[str] = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts += [repr(str(part.value).strip())] if str(part.value).strip() else []
            elif isinstance(part, ast.FormattedValue):
                parts.append(ast.unparse(part.value))
        return ", ".join(parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
        values = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
        label = str(node.left.value).partition("%")[0].strip(" =:")
        return ", ".join([*([repr(label)] if label else []), *(ast.unparse(value) for value in values)])
    return ""


# Wrong uses of ``@kernel``, and of kernels

INSTEAD = {
    "forall": "kernel[LaunchConfig.for_num_elems(n)](...) launches a thread for each of n elements",
    "inspect_asm": "kernel.ptx() is the PTX; of a generic kernel kernel.specialize(...).ptx()",
    "inspect_llvm": "kernel.llvm_ir() is the LLVM IR; of a generic kernel kernel.specialize(...).llvm_ir()",
    "inspect_sass": "kernel.ptx() is the PTX, which cuobjdump disassembles once ptxas has assembled it",
    "inspect_types": "kernel.llvm_ir() is the LLVM IR, where every value has its type",
    "get_regs_per_thread": "kernel.resources().registers",
    "get_shared_mem_per_block": "kernel.resources().shared_bytes",
    "get_local_mem_per_thread": "kernel.resources().local_bytes",
    "get_const_mem_size": "kernel.resources().constant_bytes",
    "get_max_threads_per_block": "kernel.resources().max_threads_per_block",
    "max_cooperative_grid_blocks": "a launch that syncs its grid says how many blocks fit",
    "compile": "kernel.specialize(...) compiles; a launch does so by itself",
    "overloads": "kernel.specialize(...) is the kernel for certain types",
    "py_func": "kernel.function is the Python function",
}
"""oxide's replacements for the attributes of numba-cuda's kernels. ``kernel`` stands for the kernel's name."""


def no_attribute(name: str, attribute: str) -> AttributeError:
    """Returns the error for an attribute that a kernel does not have."""
    instead = INSTEAD.get(attribute)
    return AttributeError(f"kernel {name} has no {attribute}" + (f": {instead}" if instead else ""), name=attribute)


def no_function(given: Any) -> CompileError:
    """Returns the error for an argument of ``@kernel`` that is no plain function, at the caller's line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("oxide."):
        frame = frame.f_back
    if frame is None:
        return CompileError(_problem(given))
    return located_in(frame.f_code.co_filename, frame.f_lineno, _problem(given))


def _problem(given: Any) -> str:
    if isinstance(given, str):
        return (
            f"@kernel({given!r}): @kernel takes no signature, as arguments say their types: write @kernel, and "
            "annotate all parameters if you want them fixed, as in x: Slice[f32]"
        )
    if type(given).__name__ == "Kernel":
        return f"{given.name} is a kernel already: leave out the second @kernel"
    if isinstance(given, DeviceFunction):
        return (
            f"{given.function.__name__} is a @device function, which kernels call, and no kernel: leave out one of them"
        )
    what = f"the class {given.__name__}" if isinstance(given, type) else f"an object of type {type(given).__name__}"
    return f"@kernel makes a kernel of a Python function, not of {what}: write @kernel above a def"
