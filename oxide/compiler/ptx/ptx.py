"""The GPU back end: portable IR to PTX by LLVM's NVPTX target. It needs no CUDA Toolkit, since drivers accept PTX."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from oxide.compiler.bounds import in_bounds
from oxide.compiler.bounds.exits import share_exits
from oxide.compiler.ir import half, parameters
from oxide.compiler.ir.known_functions import QUOTIENTS, quotient
from oxide.compiler.ir.lines import has_lines, move_lines, number_calls
from oxide.compiler.ir.llvm import declared_once, gpu_machine, header, link, optimise
from oxide.compiler.ir.module import Module
from oxide.compiler.ir.parser import parse
from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.primitives import ptx_debugging
from oxide.compiler.ir.values import Constant, Value, identifier
from oxide.compiler.signature.signature import Closed
from oxide.driver.base import Code, Dim3, Target, capability_of
from oxide.errors import CompileError

from . import primitives, tensor
from .assembly import Calls, as_specified, hide_amounts, shifts, with_calls
from .expansions import expand, is_expanded
from .libdevice import link_libdevice

FEATURES = "+ptx86"
"""PTX ISA 8.6: old enough for a wide range of drivers. Architectures that this version does not know need a newer
one."""

_OLDER = "50 52 53 60 61 62 70 72 75 80 86 87 89 90 100 101"
# For an unknown processor, LLVM only warns on stderr. For a processor that is newer than the PTX version, LLVM ends the
# process. So the known architectures are listed here.
_FEATURES = {f"sm_{number}": FEATURES for number in _OLDER.split()} | {
    "sm_120": "+ptx87",
    "sm_103": "+ptx88",
    "sm_121": "+ptx88",
    "sm_88": "+ptx90",
    "sm_110": "+ptx90",
}


def target_of(name: str, cc: tuple[int, int]) -> Target:
    """Returns the target for a compute capability. Raises ``CompileError`` for an unknown capability."""
    arch = f"sm_{cc[0]}{cc[1]}"
    if cc[1] > 9 or arch not in _FEATURES:
        known = sorted((int(number[3:-1]), int(number[-1])) for number in _FEATURES)
        listed = ", ".join(f"{major}.{minor}" for major, minor in known)
        raise CompileError(f"kernel {name}: there is no PTX for compute capability {cc[0]}.{cc[1]}; known are {listed}")
    return Target("ptx", arch, _FEATURES[arch])


def compile_ptx(
    kernel: PortableKernel,
    name: str,
    signature: tuple[Closed, ...],
    kernel_id: int,
    target: Target,
    *,
    unchecked: bool,
    max_registers: int | None,
    block: Dim3 | None,
    only_block: bool = False,
) -> Code:
    """Returns PTX for one architecture. The entry has the kernel's name, and its last parameter is the fault record's
    address. With ``only_block``, ``block`` is the largest block of any launch, and the block's threads may use all
    registers of a multiprocessor."""
    try:
        capability = capability_of(target.arch)
    except ValueError:
        raise CompileError(f"kernel {name}: {target.arch} is no CUDA architecture; use one such as sm_90") from None
    tensor.check_capability(kernel, capability)
    entry = identifier(name)
    if unchecked:
        check = in_bounds.UNCHECKED
    else:
        check, kernel = _check(kernel_id), replace(kernel, module=share_exits(kernel.module))
    if kernel.persistent:
        block = kernel.persistent, 1, 1
    limits = _limits(kernel, max_registers, block, only_block)
    module, machine, maps = _module(kernel, entry, signature, target, check, limits, linking=name)
    calls: Calls = []
    has_shifts, located = any(shifts(kernel.module)), has_lines(kernel.module)
    if has_shifts or located:
        optimised = parse(str(module))
        if has_shifts:
            hide_amounts(optimised)
        if located:
            calls = number_calls(optimised)
        module = link([header(machine) + str(optimised)])
    ptx = as_specified(machine.emit_assembly(module))
    if located:
        ptx = with_calls(ptx, calls)
    ptx += "".join(each.comment for each in maps)
    return Code(target, entry, ptx.encode(), kernel.shared.beyond_static, persistent=kernel.persistent)


def sites_left(kernel: PortableKernel, name: str, signature: tuple[Closed, ...]) -> frozenset[int]:
    """Returns the sites of the accesses that LLVM could not prove to be in bounds."""
    entry = identifier(name)
    module, *_ = _module(kernel, entry, signature, Target("ptx", "sm_90", FEATURES), in_bounds.REPORTING, "")
    reports = (call for call in parse(str(module)).calls if call.called == "oxide.report")
    return frozenset(site for call in reports if (site := call.arguments[0].integer) is not None)


def _module(
    kernel: PortableKernel,
    entry: str,
    signature: tuple[Closed, ...],
    target: Target,
    check: str,
    limits: str,
    linking: str | None = None,
) -> tuple[Any, Any, list[tensor.TensorMap]]:
    """Returns the optimised module, its machine and the tensor maps that the entry takes. ``linking`` is the kernel's
    name, for errors, if libdevice is to be linked, or else None."""
    symbols = kernel.module.functions
    machine = gpu_machine(tensor.architecture(target.arch, symbols), target.features or FEATURES)
    capability = capability_of(target.arch)
    edited = kernel.module.copy() if _needs_edits(kernel.module) else kernel.module
    _place_constants(edited)
    maps = tensor.take_maps(kernel, edited, signature)
    support = [
        *expand(edited),
        _registers(),
        _fast_tanh(symbols, capability),
        _FAST_EXP2 if "__nv_fast_exp2f" in symbols else "",
        *_quotients(symbols),
        ptx_debugging(symbols),
        half.definitions(symbols, capability),
        primitives.definitions(symbols, kernel.shared, capability),
        tensor.definitions(symbols, kernel.cluster),
        _entry(kernel, edited, entry, signature, limits, maps),
    ]
    supporting = declared_once("\n".join(support))
    if has_lines(edited):
        edited.adopt(parse(supporting))
        move_lines(edited, kernel.symbol, entry)
        supporting = ""
    module = link(header(machine) + part for part in (str(edited), check, supporting))
    if linking is not None:
        link_libdevice(linking, module)
    optimise(module, machine, exported=entry, packing=False)  # a GPU thread has no vector registers
    return module, machine, maps


def _needs_edits(module: Module) -> bool:
    """Returns whether a kernel has constant arrays, copies of tiles, streaming accesses or remainders, which a GPU
    treats specially, or line tables."""
    return (
        has_lines(module)
        or any(symbol.startswith("oxide.constant") for symbol in module.globals)
        or tensor.copies_tiles(module)
        or any(map(is_expanded, module.instructions))
    )


_FAST_EXP2 = """define float @__nv_fast_exp2f(float %x) alwaysinline {
  %r = call float asm "ex2.approx.ftz.f32 $0, $1;", "=f,f"(float %x)
  ret float %r
}"""
"""libdevice has no such function: CUDA C++ compiles ``exp2f`` to this instruction under ``-use_fast_math``."""


def _fast_tanh(symbols: Collection[str], capability: int) -> str:
    """Defines the fast ``tanh``: one instruction from compute capability 7.5 on, libdevice's function before."""
    if "__nv_fast_tanhf" not in symbols:
        return ""
    head = "define float @__nv_fast_tanhf(float %x) alwaysinline {\n  %r = call float "
    if capability >= 75:
        return f'{head}asm "tanh.approx.f32 $0, $1;", "=f,f"(float %x)\n  ret float %r\n}}'
    return f"declare float @__nv_tanhf(float)\n{head}@__nv_tanhf(float %x)\n  ret float %r\n}}"


def _quotients(symbols: Collection[str]) -> list[str]:
    return [part for symbol in QUOTIENTS if symbol in symbols for part in quotient(symbol, approximate=True)]


def _place_constants(module: Module) -> None:
    """Moves the kernel's constant arrays to constant memory, which all threads of a warp read in one access."""
    for symbol, line in module.globals.items():
        if symbol.startswith("oxide.constant"):
            module.globals[symbol] = line.replace(" constant ", " addrspace(4) constant ", 1)
            for each in module.instructions:
                each.operands = [_in_bank(operand, f"@{symbol}") for operand in each.operands]


def _in_bank(operand: Value, constant: str) -> Value:
    """Returns an operand, which may be a constant expression, with a constant's address replaced by its address in
    constant memory."""
    if not (isinstance(operand, Constant) and constant in operand.name):
        return operand
    text, address = f"{operand.name} ", f"addrspacecast (ptr addrspace(4) {constant} to ptr)"
    for end in " ,)":
        text = text.replace(constant + end, address + end)
    return Constant(text[:-1], operand.type)


def _check(kernel_id: int) -> str:
    return in_bounds.checked(kernel_id, 'syncscope("device")', hardware_registers=True)


def _entry(
    kernel: PortableKernel,
    module: Module,
    entry: str,
    signature: tuple[Closed, ...],
    limits: str,
    maps: Sequence[tensor.TensorMap],
) -> str:
    types = parameters.word_types(signature)
    words = [f"%p{number}" for number in range(len(types))]
    found = [f"%map.{number}" for number in range(len(maps))]
    function = module.functions[kernel.symbol]
    declaration, call = parameters.call(function, "%fault_record", [*words, *found], [*types, *["ptr"] * len(maps)])
    listed = ", ".join(
        [f"{kind} {word}" for kind, word in zip(types, words, strict=True)]
        + ["ptr %fault_record", *map(tensor.entry_parameter, range(len(maps)))]
    )
    return f"{declaration}\ndefine ptx_kernel void @{entry}({listed}){limits} {{\n{call}\n  ret void\n}}\n"


def _limits(kernel: PortableKernel, max_registers: int | None, block: Dim3 | None, only_block: bool) -> str:
    """Returns the attributes of an entry that limit its registers and group its blocks.

    In a kernel that moves registers between its warps, each thread begins with an equal share of a multiprocessor's
    registers. The shape of a cluster is a part of the code, so that every launch has it, also a captured launch.
    """
    cluster = "" if kernel.cluster is None else f' "nvvm.cluster_dim"="{",".join(map(str, kernel.cluster))}"'
    if block is not None and tensor.moves_registers(kernel.module.functions):
        return f' "nvvm.maxntid"="{",".join(map(str, block))}" "nvvm.minctasm"="1"{cluster}'
    if block is not None and only_block:
        return f' "nvvm.maxntid"="{",".join(map(str, block))}"{cluster}'
    return (f' "nvvm.maxnreg"="{max_registers}"' if max_registers is not None else "") + cluster


def _registers() -> str:
    """Defines the registers as the hardware's special registers, and the context as the fault record's address."""
    texts = [
        f"declare i32 @llvm.nvvm.read.ptx.sreg.{name}()\n"
        f"define i32 @oxide.register.{name}(ptr %context) alwaysinline {{\n"
        f"  %value = call i32 @llvm.nvvm.read.ptx.sreg.{name}()\n  ret i32 %value\n}}"
        for name in (
            *(f"{register}.{axis}" for register in ("tid", "ctaid", "ntid", "nctaid") for axis in "xyz"),
            "laneid",
            "warpsize",
        )
    ]
    texts.append("define ptr @oxide.fault_record(ptr %context) alwaysinline {\n  ret ptr %context\n}")
    return "\n".join(texts)
