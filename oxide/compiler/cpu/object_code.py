"""The CPU back end: portable IR to a host object file.

The object exports one function, which runs a range of a launch's blocks. A block's threads are a loop around the
inlined kernel. Their coordinates live in a structure on the stack, which LLVM promotes to registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

import llvmlite.binding as llvm

from oxide.compiler.bounds import in_bounds
from oxide.compiler.bounds.exits import share_exits
from oxide.compiler.ir import half, parameters
from oxide.compiler.ir.lines import for_object_file, has_lines, move_lines
from oxide.compiler.ir.llvm import declared_once, header, host_machine, link, optimise, simplify
from oxide.compiler.ir.module import Module
from oxide.compiler.ir.parser import parse
from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.primitives import native_debugging
from oxide.compiler.ir.values import Binary
from oxide.compiler.primitives.effects import WAITING
from oxide.compiler.signature.signature import Closed
from oxide.compiler.source.source import located_in
from oxide.driver.base import COOPERATIVE_ENTRY, LOOP_FREE_ENTRY, Code, Target
from oxide.driver.records import LAUNCH
from oxide.errors import CompileError

from . import positions, primitives
from .coroutines import coroutines, tensor_primitives
from .libdevice import libm
from .masks import hidden_masks
from .positions import CHECKED_BLOCKS

ENTRY = "oxide_run_blocks"
"""``void oxide_run_blocks(void *launch, int64_t first_block, int64_t end_block)``: ``launch`` points to a ``LAUNCH`` of
``driver/records.py``, and the blocks are counted with x fastest. A kernel without loops has the entry
``LOOP_FREE_ENTRY`` instead. A cooperative kernel has the entry ``COOPERATIVE_ENTRY``, which takes a ``COOPERATIVE``
record."""

_REGISTERS = primitives.REGISTERS
_CONTEXT = primitives.CONTEXT


def entry_of(kernel: PortableKernel) -> str:
    """Returns the symbol that the kernel's object file exports."""
    if kernel.cooperative:
        return COOPERATIVE_ENTRY
    return LOOP_FREE_ENTRY if is_loop_free(kernel.module) else ENTRY


_MAY_BLOCK = "oxide.print."  # standard output may be a pipe that is never read


def is_loop_free(module: Module) -> bool:
    """Returns whether no function of a module loops, recurses or prints: its threads end soon, whatever the arguments
    and the contents of memory. A ``print`` may wait for the reader of standard output.

    The CPU device runs such a kernel on the thread that waits for it, where Ctrl-C cannot end the kernel. The analysis
    sees the kernel's IR without the loop around its threads. A loop with a constant number of iterations counts as a
    loop, unless the front end has unrolled it.
    """
    if any(symbol.startswith(_MAY_BLOCK) for symbol in module.functions):
        return False
    if any(_has_cycle({block: block.successors for block in each.blocks.values()}) for each in module.defined):
        return False
    return not _has_cycle(
        {
            function.symbol: {operand.symbol for each in function.instructions for operand in each.operands}
            for function in module.defined
        }
    )


def _has_cycle(graph: Mapping[Any, Iterable[Any]]) -> bool:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return True
    return False


def compile_native(
    kernel: PortableKernel,
    signature: tuple[Closed, ...],
    kernel_id: int,
    target: Target,
    *,
    unchecked: bool,
) -> Code:
    """Returns a host object file that exports the kernel's entry. The object's symbol for the source file has the
    kernel's name."""
    entry = entry_of(kernel)
    module, machine = _module(kernel, entry, signature, kernel_id, target, unchecked)
    image = machine.emit_object(module)
    if any(name in image for name in (b"__udivti3", b"__umodti3")):
        module, machine = _module(kernel, entry, signature, kernel_id, target, unchecked)
        module.link_in(llvm.parse_assembly(primitives.WIDE_DIVISIONS))
        image = machine.emit_object(module)
    return Code(target, entry, image, persistent=kernel.persistent)


def native_assembly(
    kernel: PortableKernel, signature: tuple[Closed, ...], kernel_id: int, target: Target, *, unchecked: bool
) -> str:
    """Returns the assembly of the code that ``compile_native`` compiles."""
    module, machine = _module(kernel, entry_of(kernel), signature, kernel_id, target, unchecked)
    return str(machine.emit_assembly(module))


def _module(
    kernel: PortableKernel, entry: str, signature: tuple[Closed, ...], kernel_id: int, target: Target, unchecked: bool
) -> tuple[Any, Any]:
    machine = host_machine(target)
    layout = f'source_filename = "{kernel.name}"\n{header(machine)}'
    if any(call.is_assembly for call in kernel.module.calls):
        raise CompileError(
            f"kernel {kernel.name}: it has inline PTX, which only a GPU runs; launch it on a CUDA device, or write the "
            "same with oxide's or numba-cuda's functions"
        )
    kernel, extremes = _with_plain_extremes(kernel)
    symbols = kernel.module.functions
    check = in_bounds.UNCHECKED if unchecked else in_bounds.checked(kernel_id, "")
    # With a seed, which chooses the schedule, each thread must be a coroutine, even in a kernel without barriers.
    suspends = kernel.suspends or target.seeded
    called = [libm.definitions(kernel.name, kernel.module)]
    converted = {*symbols, *tensor_primitives.conversions(symbols)}
    half.check_f16(kernel.name, converted, target)
    called += [half.definitions(converted, 0), *extremes, *([primitives.WORD] if "oxide.word" in symbols else [])]
    support = [primitives.definitions(kernel.shared), primitives.ALLOCATOR, *called]
    support.append(native_debugging(symbols))
    by_position = None if suspends else positions.positions(kernel, entry, signature)
    if suspends:
        support.append(coroutines.definitions(kernel, signature, kernel_id, entry))
    else:
        name = entry if by_position is None else CHECKED_BLOCKS
        support.append(_run_blocks(kernel, signature, name))
    checked = hidden_masks(kernel.module if unchecked else share_exits(kernel.module))
    supporting = declared_once("\n".join(support))
    if has_lines(checked):
        checked = checked.copy()
        checked.adopt(parse(supporting))
        around = coroutines.COROUTINE if suspends else entry if by_position is None else CHECKED_BLOCKS
        move_lines(checked, kernel.symbol, around)
        supporting = ""
    module = link(layout + part for part in (for_object_file(str(checked)), check, supporting))
    if suspends:
        module = coroutines.inline_all(module, machine)
    packing = not _has_far_addresses(kernel.module) and not _is_large(kernel.module)
    if by_position is None:
        optimise(module, machine, exported=entry, packing=packing)
    else:
        simplify(module, machine, exported=CHECKED_BLOCKS)
        text = for_object_file(str(hidden_masks(by_position)))
        fast = link(layout + part for part in (text, "\n".join(called)))
        optimise(fast, machine, exported=entry, packing=packing)
        fast.link_in(module)
        every_check = fast.get_function(CHECKED_BLOCKS)
        every_check.linkage = "internal"
        if _is_large(kernel.module):
            every_check.add_function_attribute("noinline")
            every_check.add_function_attribute("optnone")
        module = fast
    for function in module.functions:
        if function.is_declaration and function.name == coroutines.SUSPENSION:
            raise _waits_in_a_recursion(kernel)
        if function.is_declaration and function.name.startswith(("oxide.", "llvm.nvvm.")):
            raise CompileError(f"kernel {kernel.name}: {function.name} is an instruction that only a GPU has")
    return module, machine


def _waits_in_a_recursion(kernel: PortableKernel) -> CompileError:
    """Returns the error for a wait in a recursive function, which cannot be inlined into the thread's coroutine."""
    problem = (
        f"kernel {kernel.name}: a function that calls itself waits for other threads here, which the CPU device cannot "
        "do: write it as a loop, or wait outside of it"
    )
    for function in kernel.module.defined:
        waits = (call for call in function.calls if call.called.startswith(WAITING))
        number = next((site for call in waits if (site := call.arguments[-1].integer) is not None), None)
        if number is not None and any(call.called == function.symbol for call in function.calls):
            return located_in(kernel.sites[number].file, kernel.sites[number].line, problem)
    return CompileError(problem)


def _is_large(module: Module) -> bool:
    """Returns whether a kernel has very many branches. For such a kernel, LLVM's slowest steps are left out, because
    their time grows with the square of the number of branches: packing (SLP) in all functions, and the optimisation of
    machine code in the function that runs blocks with every check. For 400 conditional expressions, packing takes 3 s
    and the optimisation of machine code 1.5 s."""
    return sum(len(function.blocks) for function in module.defined) > _MANY_BLOCKS


_MANY_BLOCKS = 1000


def _has_far_addresses(module: Module) -> bool:
    """Returns whether a kernel may compute addresses half the address space apart, such as those of ``x[i]`` and
    ``x[i + 2**62]``. LLVM 22's SLP vectoriser aborts then: their distance equals the empty key of one of its hash
    tables. Such an access is never in bounds, but a kernel may contain its code."""
    binary = (each for each in module.instructions if isinstance(each, Binary))
    return any((each.opcode, each.type) == ("add", "i64") and abs(each.right.integer or 0) >= 10**18 for each in binary)


def _with_plain_extremes(kernel: PortableKernel) -> tuple[PortableKernel, list[str]]:
    """Replaces ``min`` and ``max`` of floats by comparisons. Returns the changed kernel, and the LLVM definitions of
    the replacements, to be linked with it.

    LLVM 22's vectoriser recognises a loop that reduces by ``llvm.maxnum``. If a small constant bounds the loop's number
    of iterations, the vectoriser's two cost models disagree, which ends the process.
    """
    found = [name for name in _EXTREMES if f"llvm.{name}" in kernel.module.functions]
    if not found:
        return kernel, []
    module = kernel.module.copy()
    for name in found:
        module.rename(f"llvm.{name}", f"oxide.{name}")
    return replace(kernel, module=module), [_plain_extreme(*name.split(".")) for name in found]


_EXTREMES = ("maxnum.f32", "maxnum.f64", "minnum.f32", "minnum.f64")


def _plain_extreme(name: str, suffix: str) -> str:
    """Returns the definition of IEEE 754's maxNum or minNum: if one operand is a NaN, the result is the other
    operand."""
    kind = {"f32": "float", "f64": "double"}[suffix]
    comparison = {"maxnum": "ogt", "minnum": "olt"}[name]
    return f"""
define linkonce_odr {kind} @oxide.{name}.{suffix}({kind} %a, {kind} %b) alwaysinline {{
  %beyond = fcmp {comparison} {kind} %a, %b
  %alone = fcmp uno {kind} %b, %b
  %first = or i1 %beyond, %alone
  %result = select i1 %first, {kind} %a, {kind} %b
  ret {kind} %result
}}"""


def _run_blocks(kernel: PortableKernel, signature: tuple[Closed, ...], name: str) -> str:
    types = [*parameters.word_types(signature), "ptr"]
    words = [f"%word.{number}" for number in range(len(types))]
    declaration, call = parameters.call(kernel.function, "%context", words[:-1], types[:-1])
    structure = "{ " + ", ".join(types) + " }"
    loads = "\n".join(
        f"  %at.{number} = getelementptr {structure}, ptr %params, i32 0, i32 {number}\n"
        f"  %word.{number} = load {kind}, ptr %at.{number}"
        for number, kind in enumerate(types)
    )
    shape = "\n".join(
        f"  %{what}.{axis}.at = getelementptr i8, ptr %launch, i64 {LAUNCH.offset(f'{what}[{place}]')}\n"
        f"  %{what}.{axis} = load i32, ptr %{what}.{axis}.at\n"
        f"{_set(field, axis, f'%{what}.{axis}')}"
        for what, field in (("grid", 3), ("block", 2))
        for place, axis in enumerate("xyz")
    )
    coordinates = "\n".join(
        f"  %b.{axis}.narrow = trunc i64 %b.{axis} to i32\n{_set(1, axis, f'%b.{axis}.narrow')}" for axis in "xyz"
    )
    shared, release = _shared_memory(kernel)
    return f"""
{declaration}
define void @{name}(ptr %launch, i64 %first, i64 %end) {{
entry:
  %context = alloca {_CONTEXT}
{shape}
  %grid.x.wide = zext i32 %grid.x to i64
  %grid.y.wide = zext i32 %grid.y to i64
  %params.at = getelementptr i8, ptr %launch, i64 {LAUNCH.offset("params")}
  %params = load ptr, ptr %params.at
{loads}
  %record.at = getelementptr {_CONTEXT}, ptr %context, i32 0, i32 {primitives.RECORD_FIELD}
  store ptr {words[-1]}, ptr %record.at
{shared}
  %any = icmp slt i64 %first, %end
  br i1 %any, label %next_block, label %done
next_block:
  %linear = phi i64 [ %first, %entry ], [ %linear.next, %block_done ]
  %b.x = urem i64 %linear, %grid.x.wide
  %rows = udiv i64 %linear, %grid.x.wide
  %b.y = urem i64 %rows, %grid.y.wide
  %b.z = udiv i64 %rows, %grid.y.wide
{coordinates}
  br label %next_z
next_z:
  %z = phi i32 [ 0, %next_block ], [ %z.next, %z_done ]
{_set(0, "z", "%z")}
  br label %next_y
next_y:
  %y = phi i32 [ 0, %next_z ], [ %y.next, %y_done ]
{_set(0, "y", "%y")}
  br label %next_x
next_x:
  %x = phi i32 [ 0, %next_y ], [ %x.next, %next_x ]
{_set(0, "x", "%x")}
{call}
  %x.next = add nuw nsw i32 %x, 1
  %x.more = icmp ult i32 %x.next, %block.x
  br i1 %x.more, label %next_x, label %y_done
y_done:
  %y.next = add nuw nsw i32 %y, 1
  %y.more = icmp ult i32 %y.next, %block.y
  br i1 %y.more, label %next_y, label %z_done
z_done:
  %z.next = add nuw nsw i32 %z, 1
  %z.more = icmp ult i32 %z.next, %block.z
  br i1 %z.more, label %next_z, label %block_done
block_done:
  %linear.next = add nuw nsw i64 %linear, 1
  %more = icmp slt i64 %linear.next, %end
  br i1 %more, label %next_block, label %done
done:
{release}
  ret void
}}
"""


def _shared_memory(kernel: PortableKernel) -> tuple[str, str]:
    """Returns code that allocates the shared memory of a range of blocks, and code that releases it. Both are empty if
    the kernel uses no shared memory."""
    if not kernel.shared.used:
        return "", ""
    shared, dynamic = primitives.SHARED_FIELD, primitives.DYNAMIC_FIELD
    take = f"""  %dynamic.from = getelementptr i8, ptr %launch, i64 {LAUNCH.offset("shared_bytes")}
  %dynamic.narrow = load i32, ptr %dynamic.from
  %dynamic = zext i32 %dynamic.narrow to i64
  %dynamic.at = getelementptr {_CONTEXT}, ptr %context, i32 0, i32 {dynamic}
  store i64 %dynamic, ptr %dynamic.at
  %shared.bytes = add i64 %dynamic, {primitives.static_bytes(kernel.shared)}
  %room = alloca [{primitives.ROOM_BYTES} x i8], align {primitives.alignment(kernel.shared)}
  %shared = call ptr @oxide.take(ptr %room, i64 %shared.bytes, i64 {primitives.alignment(kernel.shared)})
  %shared.at = getelementptr {_CONTEXT}, ptr %context, i32 0, i32 {shared}
  store ptr %shared, ptr %shared.at"""
    return take, "  call void @oxide.leave(ptr %shared, ptr %room)"


def _set(field: int, axis: str, value: str) -> str:
    """Returns the IR that stores one axis of a register in the context."""
    place = "xyz".index(axis)
    at = f"%set.{_REGISTERS[field]}.{axis}"
    address = f"getelementptr {_CONTEXT}, ptr %context, i32 0, i32 {field}, i32 {place}"
    return f"  {at} = {address}\n  store i32 {value}, ptr {at}"
