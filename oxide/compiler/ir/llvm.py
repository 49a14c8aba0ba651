"""LLVM as both back ends use it: target machines, linking, the optimisation pipeline and runs of selected passes. Also
the IR that LLVM is given as text: templates from ``.ll`` files of the package.

``<record.field>`` in a template stands for a field's offset in a record of ``driver/records.py``, and
``<record.sizeof>`` for the record's size. ``{{field}}`` and ``{{field[index]}}`` stand for addresses. Other names in
angle brackets or braces are for a back end to fill in.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import llvmlite.binding as llvm
from llvmlite.binding.ffi import ObjectRef
from llvmlite.binding.newpassmanagers import NewPassManager

from oxide.driver.base import Target
from oxide.driver.records import RECORDS
from oxide.host.locks import new_lock, unheld


def host_target() -> Target:
    """Returns this machine's CPU and its features as a target."""
    _initialise("native")
    return Target("native", llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def host_machine(target: Target) -> Any:
    """Returns LLVM's target machine for a host target. The machine emits position-independent code, because an object
    file is loaded at any free address."""
    _initialise("native")
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=target.arch, features=target.features, opt=3, reloc="pic", codemodel="jitdefault", jit=True
    )


def gpu_machine(arch: str = "", features: str = "") -> Any:
    """Returns LLVM's target machine for a CUDA architecture, such as ``sm_90``."""
    _initialise("all")
    return llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(cpu=arch, features=features, opt=3)


def header(machine: Any) -> str:
    """Returns the lines that precede a module's text to give it a machine's layout. LLVM's default layout would give
    structures other offsets."""
    return f'target triple = "{machine.triple}"\ntarget datalayout = "{machine.target_data}"\n'


_lock = new_lock()
_initialised = set[str]()


def _initialise(which: Literal["native", "all"]) -> None:
    """Registers this machine's target or all of LLVM's targets, at the first call only. The former takes 4 ms, the
    latter 15 ms."""
    with unheld(_lock):
        if which in _initialised:
            return
        if which == "native":
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
        else:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
        _initialised.add(which)


_LAYOUT = 'target datalayout = "e-i64:64-i128:128"\n'
"""The common part of both back ends' layouts. Without this layout LLVM aligns an i64 to 4 bytes, and a GPU loads the
i64 as two halves."""


def portable_module(text: str) -> Any:
    """Parses portable IR into LLVM's own module, on which LLVM's passes run."""
    return llvm.parse_assembly(_LAYOUT + text)


def link(texts: Iterable[str]) -> Any:
    """Links several modules into one and verifies it."""
    first, *rest = (llvm.parse_assembly(text) for text in texts)
    for module in rest:
        first.link_in(module)
    first.verify()
    return first


def optimise(module: Any, machine: Any, exported: str, *, packing: bool) -> None:
    """Runs LLVM's O3 on a module in which ``exported`` is the only function called from outside. ``packing`` combines
    similar instructions of one thread into vectors (LLVM's SLP)."""
    keep_inside(module, exported)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.slp_vectorization = packing
    options.loop_interleaving = True
    options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    _run(builder.getModulePassManager(), module, builder)


def simplify(module: Any, machine: Any, exported: str) -> None:
    """Inlines calls and promotes memory to registers, in a third of ``optimise``'s time, for rarely run code."""
    keep_inside(module, exported)
    passes = ("always_inliner", "global_dead_code_eliminate", "sroa", "simplify_cfg", "instruction_combine")
    run_passes(module, machine, [*passes, "simplify_cfg"])


def run_passes(module: Any, machine: Any, passes: Iterable[str], *, speed_level: int = 3) -> None:
    """Runs passes, given by their names in llvmlite, such as ``sroa``."""
    manager = llvm.create_new_module_pass_manager()
    for name in passes:
        getattr(manager, f"add_{name}_pass")()
    options = llvm.create_pipeline_tuning_options(speed_level=speed_level)
    _run(manager, module, llvm.create_pass_builder(machine, options))


def _run(manager: Any, module: Any, builder: Any) -> None:
    if not module.data_layout:
        raise ValueError("a module without a layout, whose structures have other offsets than the caller's")
    try:
        manager.run(module, builder)
    finally:
        # llvmlite 0.50 leaks pass managers, and O3's has 30 KiB: `_dispose` resolves to the empty method of the first
        # base class.
        if type(manager)._dispose is ObjectRef._dispose:
            NewPassManager._dispose(manager)
            manager.detach()


def keep_inside(module: Any, exported: str) -> None:
    """Makes all functions but one internal, so that LLVM drops them once they are inlined."""
    for function in module.functions:
        if not function.is_declaration and function.name != exported:
            function.linkage = "internal"


# IR as text

_OFFSET = re.compile(r"<(\w+)\.([\w.]+(?:\[\d+\])?)>")


@functools.cache
def ir_file(module: str, name: str) -> str:
    """Returns the text of ``name``, a file in the directory of the module whose ``__file__`` is ``module``.

    The records' offsets are filled in. Raises ``LookupError`` for a record or a field that does not exist."""
    return with_offsets(Path(module).with_name(name).read_text(encoding="utf-8"), name)


def with_offsets(text: str, name: str) -> str:
    """Returns IR with the records' offsets filled in. Raises ``LookupError`` for a record or a field that does not
    exist. ``name`` is the IR's file, for the error."""

    def offset(found: re.Match[str]) -> str:
        record, field = found.groups()
        if record not in RECORDS:
            raise LookupError(f"{name}: {found[0]} names no record; the records are {', '.join(RECORDS)}")
        layout = RECORDS[record]
        try:
            return str(layout.size if field == "sizeof" else layout.offset(field))
        except LookupError as error:
            raise LookupError(f"{name}: {found[0]}: {error}") from None

    return _OFFSET.sub(offset, text)


def with_addresses(text: str, address: Callable[[str, str, str], str]) -> str:
    """Returns IR with the addresses of fields filled in. ``address`` takes the name of a result, a field and an index,
    which may be "", and returns the line that computes the result."""
    lines: list[str] = []
    for line in text.split("\n"):
        while "{{" in line:
            before, _, rest = line.partition("{{")
            field, _, after = rest.partition("}}")
            name, _, index = field.removesuffix("]").partition("[")
            result = f"%field.{len(lines)}"
            lines.append(address(result, name, index))
            line = f"{before}ptr {result}{after}"
        lines.append(line)
    return "\n".join(lines)


def declared_once(text: str) -> str:
    """Returns the text without repeated ``declare`` lines, which LLVM refuses."""
    seen: set[str] = set()
    lines = []
    for line in text.split("\n"):
        if line.startswith("declare "):
            if line in seen:
                continue
            seen.add(line)
        lines.append(line)
    return "\n".join(lines)
