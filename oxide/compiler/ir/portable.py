"""Translates numba-cuda's LLVM 7 dialect to IR that both back ends take.

Four changes are made to the text:

- Typed pointers become opaque pointers, and parts that only libNVVM reads are dropped.
- Every function gets a hidden first parameter, the context: the fault record's address, and on the CPU the thread's
  coordinates too. Special registers become calls that take it.
- Integer and conversion arithmetic becomes total: a wrapping sum, a shift by too much, a division by zero and a
  conversion out of range have defined results. Otherwise LLVM may assume that they do not happen, and could remove a
  bounds check on such an index.
- Under ``fastmath``, floating point may be reassociated and fused. Without it, floating point does not change:
  ``lowering/contraction.py`` has decided which products are fused into sums.

Each back end defines the remaining calls: ``oxide.in_bounds``, ``oxide.aligned``, ``oxide.assertion_failed``,
``oxide.register.*``, ``oxide.fault_record``, those of ``primitives.py``: shared memory, barriers and warps; and
``__nv_*``, libdevice's functions (``ptx/libdevice.py``, ``cpu/libdevice/libm.py``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm

from oxide.compiler.source.faults import FaultSite
from oxide.compiler.source.source import SourcePlace, located

from . import atomics, clearing, decimal_rounding, half, instructions, numba_runtime, verifier
from .local_memory import check_local_memory
from .module import Module
from .parser import parse
from .primitives import PREFIXES, SharedMemory, cooperates, declared_once, place_shared_memory, suspends
from .unroll import unroll_marked_loops


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """A kernel in numba-cuda's dialect: the modules of the kernel and of its device functions, the kernel's symbol,
    all known sites and the places of all shared and local arrays, both in the numbering that the modules use."""

    modules: tuple[str, ...]
    symbol: str
    sites: tuple[FaultSite, ...]
    array_places: Mapping[int, SourcePlace]


@dataclass(frozen=True, slots=True)
class PortableKernel:
    """A kernel for either back end: its IR, the symbol of the function to call for each thread, its sites, its shared
    memory, whether a thread may wait for another of its block, the kernel's name, and whether a thread may wait for the
    whole grid."""

    module: Module
    symbol: str
    sites: tuple[FaultSite, ...]
    shared: SharedMemory
    suspends: bool
    name: str
    cooperative: bool = False

    @property
    def text(self) -> str:
        """The IR as LLVM reads it."""
        return str(self.module)


def translate(function: Callable[..., Any], lowered: LoweredKernel, fastmath: bool) -> PortableKernel:
    """Links the kernel and its callees into one module. Raises ``CompileError`` for a call that no back end defines."""
    modules = check_local_memory(function, lowered.modules, lowered.symbol, lowered.array_places)
    context_functions = _defined_names(modules) | {"oxide.in_bounds", "oxide.aligned", "oxide.assertion_failed"}
    module = link(_LAYOUT + _modernise(text, context_functions, fastmath) for text in modules)
    used = sorted({int(number) for number in re.findall(r"@oxide\.site\.(\d+)", str(module))})
    shared_conversions = half.portable_definitions(str(module))
    module = link(
        _LAYOUT + part
        for part in (
            half.counted(_without_layout(module)),
            shared_conversions,
            clearing.portable_definitions(str(module)),
            decimal_rounding.portable_definitions(str(module)),
            _site_definitions(used),
            atomics.definitions(str(module)),
            _known_functions(function, module),
        )
    )
    waits, cooperative = suspends(module), cooperates(module)
    for defined in module.functions:
        if not defined.is_declaration:
            defined.add_function_attribute("alwaysinline")
        if waits:
            # Otherwise LLVM may move a call across a branch at which the threads of a warp diverge.
            defined.add_function_attribute("convergent")
    text = _assembly_of_all_threads(_pure_mathematics(_without_layout(module)))
    text, shared = place_shared_memory(function, text, lowered.array_places)
    places = tuple(lowered.sites[number] for number in used)
    portable = parse(text)
    if verifier.is_enabled():
        verifier.verify(portable)
    return PortableKernel(portable, lowered.symbol, places, shared, waits, function.__name__, cooperative)


def link(texts: Iterable[str]) -> Any:
    """Links several modules into one and verifies it."""
    first, *rest = (llvm.parse_assembly(text) for text in texts)
    for module in rest:
        first.link_in(module)
    first.verify()
    return first


_LAYOUT = 'target datalayout = "e-i64:64-i128:128"\n'
"""The common part of both back ends' layouts. Without it LLVM aligns an i64 to 4 bytes and a GPU loads two halves."""


def _without_layout(module: Any) -> str:
    return "".join(line for line in str(module).splitlines(keepends=True) if not line.startswith("target datalayout"))


_DROPPED = ("target ", "!nvvm", '@"llvm.used"', '@"_ZN08NumbaEnv')

_DEFINE = re.compile(r'^define (?:linkonce_odr )?(?P<type>.+?) @"(?P<name>[^"]+)"\(', re.MULTILINE)


def _defined_names(modules: tuple[str, ...]) -> set[str]:
    return {match["name"] for text in modules for match in _DEFINE.finditer(text)}


def _modernise(text: str, context_functions: set[str], fastmath: bool) -> str:
    lines = [_placed(line) for line in text.split("\n") if not line.startswith(_DROPPED)]
    text = unroll_marked_loops(_opaque_pointers(_without_unused_declarations("\n".join(lines))))
    # LLVM would parse the registers' names as intrinsics, so they are renamed before parsing.
    text = text.replace("llvm.nvvm.read.ptx.sreg.", "oxide.register.")
    if _FAST_TANH.search(text):
        text = _FAST_TANH.sub(r'\1@"__nv_fast_tanhf"', text) + '\ndeclare float @"__nv_fast_tanhf"(float)\n'
    text = _CALL_OR_DEFINE.sub(lambda match: _with_context(match, context_functions), text)
    return _total_arithmetic(text, fastmath)


def _without_unused_declarations(text: str) -> str:
    """Removes unused declarations: numba-cuda declares functions, some of NVVM's too, whose calls it then replaces."""
    used = Counter(_SYMBOL.findall(text))
    return _DECLARE.sub(lambda match: match[0] if used[match["name"]] > 1 else "", text)


_SYMBOL = re.compile(r'@"([^"]+)"')
_DECLARE = re.compile(r'^declare [^@\n]*@"(?P<name>[^"]+)"\([^\n]*\n', re.MULTILINE)


def _placed(line: str) -> str:
    """Renames an instruction's source place (``!dbg``) to ``!oxide.place``, which LLVM leaves alone."""
    body, mark, place = line.partition(", !dbg !")
    if not mark:
        return line
    body = body.rstrip()
    return f"{body}, !oxide.place !{place}" if _TOUCHES_MEMORY.match(body) else body


_TOUCHES_MEMORY = re.compile(r"\s*(?:%\S+ = )?(?:load|store|call|atomicrmw|cmpxchg)\b")
# numba-cuda emits the GPU's instruction under fastmath; the CPU calls a function.
_FAST_TANH = re.compile(r'(call [\w ]*float )asm\s+"tanh\.approx\.f32 \$0, \$1;",\s*"=f,f"\s*')


def _opaque_pointers(text: str) -> str:
    """Replaces ``float*``, ``{i8*, i64}*``, ``[4 x float] addrspace(3)*`` … by ``ptr``, the innermost types first."""
    before = None
    while before != text:
        before = text
        text = re.sub(r'(?<![\w"%.@])(?:i\d+|float|double|half|ptr)(?:\s+addrspace\(\d+\))?\*', "ptr", text)
        text = re.sub(r"(\{[^{}*]*\}|\[\d+ x [^\[\]{}*]*\]|<\d+ x \w+>)\*", "ptr", text)
    return text


_CALL_OR_DEFINE = re.compile(
    r'^(?P<head>\s*(?:%"[^"]*" = )?(?P<what>call|define|declare) [^@\n]*)@"(?P<name>[^"]+)"\((?P<rest>[^\n]*)',
    re.MULTILINE,
)


def _with_context(match: re.Match[str], context_functions: set[str]) -> str:
    name, rest = match["name"], match["rest"]
    if name not in context_functions and not name.startswith(PREFIXES):
        return match[0]
    context = "ptr" if match["what"] == "declare" else 'ptr %".context"'
    separator = "" if rest.startswith(")") else ", "
    return f'{match["head"]}@"{name}"({context}{separator}{rest}'


# Arithmetic whose result is always defined

_FLAGS = re.compile(r"(?<== )(add|sub|mul|shl|lshr|ashr|sdiv|udiv)(?: nsw| nuw| exact)+ ")
_FLOATING = re.compile(r"(?<== )(fadd|fsub|fmul|fdiv) (?=float|double)")
_PARTIAL = re.compile(r"(?<== )(shl|lshr|ashr|sdiv|udiv|srem|urem) (i\d+) ([^,\n]+), ([^,\n]+)$", re.MULTILINE)
_TO_INTEGER = re.compile(r"(?<== )(fptosi|fptoui) (float|double)\s+(.+?) to (i\d+)$", re.MULTILINE)
_FLOAT_SUFFIX = {"float": "f32", "double": "f64"}


def _total_arithmetic(text: str, fastmath: bool) -> str:
    text = _FLAGS.sub(r"\1 ", text)
    if fastmath:
        text = _FLOATING.sub(rf"\1 {instructions.FAST} ", text)
    helpers: dict[str, str] = {}

    def call_helper(match: re.Match[str]) -> str:
        operation, kind, left, right = match.groups()
        name = f"oxide.{operation}.{kind}"
        helpers[name] = _helper(name, operation, kind)
        return f"call {kind} @{name}({kind} {left}, {kind} {right})"

    def saturate(match: re.Match[str]) -> str:
        operation, source, value, target = match.groups()
        name = f"llvm.{operation}.sat.{target}.{_FLOAT_SUFFIX[source]}"
        helpers[name] = f"declare {target} @{name}({source})"
        return f"call {target} @{name}({source} {value})"

    text = _PARTIAL.sub(call_helper, text)
    text = _TO_INTEGER.sub(saturate, text)
    return "\n".join([text, *helpers.values(), ""])


def _helper(name: str, operation: str, kind: str) -> str:
    """Defines a total operation: a shift acts bit by bit, x // 0 and x % 0 are 0, the least number over -1 wraps."""
    bits = int(kind[1:])
    if operation in ("shl", "lshr", "ashr"):
        body = f"  %fits = icmp ult {kind} %b, {bits}\n"
        if operation == "ashr":
            # A signed number shifted by all bits but one is 0 or -1, and further shifts do not change it.
            body += f"""  %amount = select i1 %fits, {kind} %b, {kind} {bits - 1}
  %result = ashr {kind} %a, %amount"""
        else:
            body += f"""  %shifted = {operation} {kind} %a, %b
  %result = select i1 %fits, {kind} %shifted, {kind} 0"""
        body += f"\n  ret {kind} %result"
    else:
        least = -(2 ** (bits - 1))
        signed = operation in ("sdiv", "srem")
        overflow = f"icmp eq {kind} %a, {least}" if signed else "icmp ne i1 false, false"
        wrapped = least if operation == "sdiv" else 0
        body = f"""  %zero = icmp eq {kind} %b, 0
  %least = {overflow}
  %minus_one = icmp eq {kind} %b, -1
  %overflow = and i1 %least, %minus_one
  %special = or i1 %zero, %overflow
  %divisor = select i1 %special, {kind} 1, {kind} %b
  %divided = {operation} {kind} %a, %divisor
  %instead = select i1 %overflow, {kind} {wrapped}, {kind} 0
  %result = select i1 %special, {kind} %instead, {kind} %divided
  ret {kind} %result"""
    return f"define linkonce_odr {kind} @{name}({kind} %a, {kind} %b) alwaysinline {{\n{body}\n}}"


# oxide's own functions, and functions that are one instruction on both back ends


def _site_definitions(used: list[int]) -> str:
    return "\n".join(
        f"define i32 @oxide.site.{number}() alwaysinline {{\n  ret i32 {dense}\n}}" for dense, number in enumerate(used)
    )


def _known_functions(kernel: Callable[..., Any], module: Any) -> str:
    """Returns definitions of the libdevice and numba runtime functions that are plain IR. The back ends define
    libdevice's others. Raises ``CompileError`` for a function of neither libdevice, LLVM nor oxide."""
    texts = []
    for function in module.functions:
        symbol = function.name
        if not function.is_declaration or symbol.startswith(("llvm.", "oxide.")):
            continue
        text = instructions.definition(symbol) or numba_runtime.definition(symbol)
        if text is not None:
            texts += text.split("\n", 1) if text.startswith("declare") else [text]
        elif not symbol.startswith("__nv_"):
            raise located(kernel, f"kernel {kernel.__name__}: {symbol} is not supported in kernels")
    return declared_once("\n".join(dict.fromkeys(texts)))


def _pure_mathematics(text: str) -> str:
    """Adds attributes that hold in every back end to libdevice's undefined functions: they return, and access only
    memory that an argument points to."""
    return _OPEN_MATHEMATICS.sub(
        lambda match: f"{match[0]} nounwind willreturn memory({'argmem: readwrite' if 'ptr' in match[1] else 'none'})",
        text,
    )


def _assembly_of_all_threads(text: str) -> str:
    """Marks inline PTX with side effects as convergent, as CUDA's compilers do: it may be a barrier, and LLVM would
    otherwise duplicate it into two paths."""
    return _ASSEMBLY.sub(r"\1 convergent", text)


_ASSEMBLY = re.compile(
    r'^([^@\n"]*\bcall [^@\n"]*\basm sideeffect [^"\n]*"[^\n]*?"\([^\n]*?\))(?=(?: #\d+)?(?:, ![^\n]*)?$)', re.MULTILINE
)
_OPEN_MATHEMATICS = re.compile(r"^declare [^@\n]*@__nv_\w+(\([^\n]*\))[^\n]*$", re.MULTILINE)
