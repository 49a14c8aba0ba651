"""The conversions of ``oxide_kernels``, and the kernels whose PTX shows whether one of them is needed.

A conversion is noise if the kernels have the same instructions without it: the arithmetic already has that type. As a
program, ``python -m tests.kernels.conversions``, prints each such conversion with its place.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import linecache
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oxide
from oxide import CompileError, bf16, bool_, f8e4m3, f16, f32, f64, i8, i32, i64, u32, u64
from oxide.language.types import SCALARS

PACKAGE = Path(__file__).parent.parent.parent / "oxide_kernels"
_TYPES = {*SCALARS, "wide", "dtype", "out_dtype", "accumulator", "unsigned"}
"""The names of types, and the names that the library's functions give to types."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A call of a type with one argument, and the source of its module without it."""

    module: str
    line: int
    text: str
    without: str


def conversions(module: str) -> list[Conversion]:
    """Returns the conversions in the device code of a module. A conversion of a constant is a typed constant, so it is
    not among them."""
    source = (PACKAGE / f"{module}.py").read_text()
    return [
        Conversion(module, node.lineno, ast.get_source_segment(source, node) or "", _without(source, node))
        for function in _device_functions(ast.parse(source))
        for statement in function.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and _is_conversion(node)
    ]


def _device_functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(
            _name(each) in ("kernel", "device") for each in node.decorator_list
        ):
            yield node


def _name(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _is_conversion(node: ast.Call) -> bool:
    is_type = ast.unparse(node.func).rpartition(".")[2] in _TYPES
    return is_type and len(node.args) == 1 and not node.keywords and not _is_constant(node.args[0])


def _is_constant(node: ast.expr) -> bool:
    names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
    return not any(isinstance(each, ast.Call) for each in ast.walk(node)) and all(name.isupper() for name in names)


def _without(source: str, call: ast.Call) -> str:
    lines = source.encode().splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]

    def place(line: int | None, column: int | None) -> int:
        assert line is not None
        assert column is not None
        return starts[line - 1] + column

    (argument,) = call.args
    text = b"".join(lines)
    kept = text[place(argument.lineno, argument.col_offset) : place(argument.end_lineno, argument.end_col_offset)]
    begin, end = place(call.lineno, call.col_offset), place(call.end_lineno, call.end_col_offset)
    return (text[:begin] + b"(" + kept + b")" + text[end:]).decode()


class Library:
    """A copy of the library under another name, whose modules may differ from the original."""

    _made = 0

    def __init__(self, folder: Path) -> None:
        Library._made += 1
        self._folder, self.name = folder, f"library_{Library._made}"
        shutil.copytree(PACKAGE, folder / self.name, ignore=shutil.ignore_patterns("__pycache__"))

    def write(self, module: str, source: str) -> None:
        (self._folder / self.name / f"{module}.py").write_text(source)

    def code(self, module: str) -> Iterator[Counter[str]]:
        """Yields the instructions of each kernel that reaches a module: how often each occurs, whatever its registers,
        because a conversion that computes nothing may still change the order in which LLVM writes instructions."""
        sys.path.insert(0, str(self._folder))
        importlib.invalidate_caches()
        try:
            for made in KERNELS[module](lambda name: importlib.import_module(f"{self.name}.{name}")):
                yield Counter(_REGISTER.sub("%", line) for line in made().splitlines() if _is_instruction(line))
        except CompileError as error:
            yield Counter({f"refused: {error}": 1})
        finally:
            sys.path.remove(str(self._folder))
            for name in [name for name in sys.modules if name.partition(".")[0] == self.name]:
                del sys.modules[name]


_REGISTER = re.compile(r"%\w+|-?\d{15,}")
"""Registers, and the numbers of places in the source, which faults are told by."""


def _is_instruction(line: str) -> bool:
    return line.startswith("\t") and not line.lstrip().startswith((".", "//"))


def noise(module: str) -> list[Conversion]:
    """Returns the conversions of a module that change no kernel's PTX."""
    found: list[Conversion] = []
    with tempfile.TemporaryDirectory() as folder:
        expected = list(Library(Path(folder)).code(module))
        for each in conversions(module):
            changed = Library(Path(folder))
            changed.write(module, each.without)
            if all(one == two for one, two in zip(changed.code(module), expected, strict=False)):
                found.append(each)
    return found


# The kernels: a function of the imports of a library yields, for each kernel, a function that compiles it.

_Imports = Callable[[str], Any]
_Kernels = Iterator[Callable[[], str]]


def _generic(kernel: Any, *types: Any, **named: Any) -> Iterator[Callable[[], str]]:
    for kind in types:
        yield lambda kind=kind: kernel.specialize(T=kind, **named).ptx()  # type: ignore[misc]


def _plain(kernel: Any) -> Callable[[], str]:
    return lambda: str(kernel.ptx(cc=(9, 0)))


def _activations(of: _Imports) -> _Kernels:
    module = of("activations")
    for name in ("relu", "gelu", "silu", "sigmoid"):
        yield from _generic(getattr(module, name), f16, bf16, f32, f64)


def _reductions(of: _Imports) -> _Kernels:
    module = of("reductions")
    for kind, wide in ((f16, f32), (bf16, f32), (f32, f32), (i32, i64), (u32, u64), (i64, i64), (f64, f64)):
        yield from _generic(module._partial_sums, kind, A=wide)
        yield from _generic(module._sum_of_partials, kind, A=wide)
        yield from _generic(module._partial_dots, kind, A=wide)
    for kind, wide in ((f16, f32), (f32, f32), (i32, i32), (u64, u64)):
        for kernel in module._maxima(wide):
            yield from _generic(kernel, kind, A=wide)
        yield from _generic(module._partial_argmax, kind, A=wide)


def _rows(of: _Imports) -> _Kernels:
    module = of("rows")
    for kind, wide in ((f16, f32), (bf16, f32), (f32, f32), (f64, f64)):
        eps = f64 if kind is f64 else f32
        for threads, held, form in ((32, 2, "aligned"), (256, 1, "any")):
            yield from _generic(module._softmax(threads, held, form, wide), kind)
            yield from _generic(module._layer_norm(threads, held, form, wide), kind, E=eps)
            yield from _generic(module._rms_norm(threads, held, form, wide), kind, E=eps)
        yield from _generic(module._softmax_wide(wide), kind)
        yield from _generic(module._layer_norm_wide(wide), kind, E=eps)
        yield from _generic(module._rms_norm_wide(wide), kind, E=eps)


def _scans(of: _Imports) -> _Kernels:
    module = of("scans")
    for kind, wide in ((f16, f32), (f32, f32), (i32, i32), (u32, u32), (i64, i64), (u64, u64), (f64, f64)):
        yield from _generic(module._single_pass(wide, "scan"), kind)


def _cooperative(of: _Imports) -> _Kernels:
    module = of("cooperative")
    lines = [
        "@kernel(block=256)",
        "def k(x: Slice[given], y: DisjointSlice[wanted]):",
        "    i = thread.index_1d()",
        "    element = y.get_mut(i)",
        "    value = x[0] if i.get() > 5 else x[1]",
        "    found = c.{}(value, {}y.dtype)",
        "    if element is not None:",
        "        element.value = found",
    ]
    names = ("warp_inclusive_sum", "block_sum", "block_max", "block_min", "block_inclusive_sum", "block_exclusive_sum")
    for name in (*names, "block_broadcast"):
        for given, wanted in ((i32, i64), (f16, f32)):
            source = "\n".join(lines).format(name, "0, " if name == "block_broadcast" else "")
            yield lambda source=source, given=given, wanted=wanted: _defined(  # type: ignore[misc]
                source, {"c": module, "given": given, "wanted": wanted}
            ).ptx()


_count = itertools.count()


def _defined(source: str, names: dict[str, Any]) -> Any:
    file = f"<conversions {next(_count)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    scope = {**{name: getattr(oxide, name) for name in oxide.__all__}, **names}
    exec(compile(source, file, "exec", dont_inherit=True), scope)
    return scope["k"]


def _data_movement(of: _Imports) -> _Kernels:
    module = of("data_movement")
    for size in (u32, i64):
        yield from _generic(module.turning(False, size), f32)
    yield lambda: module.widen.specialize(N=f16).ptx()
    yield _plain(module.split_rows)
    for index in (i32, i64):
        yield from _generic(module.gather, f32, I=index)


def _gemm(of: _Imports) -> _Kernels:
    for large, vectors, size in ((True, True, u32), (False, False, u32), (False, True, i64)):
        yield _plain(of("gemm").kernel_of(large, vectors, False, size))


def _matrix_vector(of: _Imports) -> _Kernels:
    for threads, vectors in ((32, True), (256, False)):
        for kind, wide in ((f16, f32), (f32, f32), (f64, f64)):
            yield from _generic(of("matrix_vector")._rows_of(threads, vectors, wide), kind)


def _form(of: _Imports, kind: Any, output: Any, **changes: Any) -> Any:
    form = of("mma_products").Form(kind, kind, output, None, False, True, None, False, True, True)
    return form._replace(**changes)


def _mma_products(of: _Imports) -> _Kernels:
    kernel_of = of("mma_products").kernel_of
    yield _plain(kernel_of(_form(of, f16, f16, bias=f16, activation="gelu")))
    yield _plain(kernel_of(_form(of, bf16, f32, pairs=False, large=False, adds=True, a_turned=True)))
    yield _plain(kernel_of(_form(of, i8, i32, b_turned=False)))
    yield _plain(kernel_of(_form(of, i8, f16, scales="each", bias=f32)))
    yield _plain(kernel_of(_form(of, f32, f32, exact=True)))
    yield _plain(kernel_of(_form(of, f64, f64, scales="one")))


def _wgmma_products(of: _Imports) -> _Kernels:
    kernel_of, Plan = of("wgmma_products").kernel_of, of("wgmma_plans").Plan
    form = _form(of, f16, f16, bias=bf16, activation="gelu")
    yield _plain(kernel_of(form, Plan(64, True), even_rows=True))
    yield _plain(kernel_of(_form(of, f16, f32, bias=f16, adds=True), Plan(64, False, 2), stacked=True))
    yield _plain(
        kernel_of(_form(of, f8e4m3, bf16, exact=True, bias=f32, scales="each"), Plan(64, True), even_rows=True)
    )
    yield _plain(kernel_of(_form(of, f8e4m3, bf16, bias=f32, scales="one"), Plan(64, False), even_rows=True))
    yield _plain(kernel_of(_form(of, i8, i32, bias=i32), Plan(32)))
    yield _plain(kernel_of(_form(of, i8, f16, bias=f16), Plan(64, False), even_rows=True))


def _split_products(of: _Imports) -> _Kernels:
    kernel_of, Plan = of("wgmma_split_products").kernel_of, of("wgmma_plans").Plan
    yield _plain(kernel_of(_form(of, f16, f16, bias=f16), Plan(64, parts=2)))
    yield _plain(kernel_of(_form(of, f8e4m3, bf16, exact=True), Plan(64, parts=2, swapped=True), stacked=True))
    yield _plain(kernel_of(_form(of, i8, i32, bias=i32), Plan(32, parts=1)))


def _mma_attention(of: _Imports) -> _Kernels:
    module = of("mma_attention")
    yield _plain(module.kernel_of(module.Form(f16, 64, True, None, False, False, True)))
    yield _plain(module.kernel_of(module.Form(bf16, 160, False, bool_, True, False, False)))
    yield _plain(module.kernel_of(module.Form(f16, 64, True, f32, False, True, True)))


def _wgmma_attention(of: _Imports) -> _Kernels:
    kernel_of = of("wgmma_attention").kernel_of
    for causal, width in ((True, 64), (False, 64), (True, 128)):
        yield _plain(kernel_of(f16, width, causal, True))


def _attention(of: _Imports) -> _Kernels:
    yield from itertools.islice(_mma_attention(of), 2)
    yield from itertools.islice(_wgmma_attention(of), 2)


KERNELS: dict[str, Callable[[_Imports], _Kernels]] = {
    "accumulators": _rows,
    "activations": _activations,
    "cooperative": _cooperative,
    "data_movement": _data_movement,
    "gemm": _gemm,
    "matrix_vector": _matrix_vector,
    "mma_attention": _mma_attention,
    "mma_products": _mma_products,
    "online_softmax": _attention,
    "reductions": _reductions,
    "rows": _rows,
    "scans": _scans,
    "wgmma_attention": _wgmma_attention,
    "wgmma_buffers": _wgmma_products,
    "wgmma_products": _wgmma_products,
    "wgmma_split_products": _split_products,
}
"""Maps each module with conversions to its kernels."""


def main() -> None:
    for module in sys.argv[1:] or KERNELS:
        for each in noise(module):
            print(f"oxide_kernels/{module}.py:{each.line}: {each.text}", flush=True)


if __name__ == "__main__":
    main()
