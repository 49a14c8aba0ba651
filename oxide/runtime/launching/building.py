"""Builds kernels ahead of time: the work of ``oxide build``.

Each kernel is compiled as for a launch, for each target that is asked for, and written with all that a launch needs to
know (``compiler/cache``). The kernel of strided copies, which the runtime compiles for itself, is written to the
same directory. So a program that loads the directory needs no compiler.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from oxide.compiler.cache.built import BASELINES, described_code, described_entry, key_of, write_directory
from oxide.compiler.cache.entries import Facts
from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.kernel.specialization import Specialization
from oxide.compiler.ptx.ptx import target_of
from oxide.compiler.signature.signature import Parameter, UntypedParameter
from oxide.driver import sanitizing
from oxide.driver.base import Target
from oxide.driver.cpu.code import host_target
from oxide.errors import ArgumentError, cell_of
from oxide.language.types import ScalarType, u8, u16, u32, u64
from oxide.runtime.launching.prebuilt import evaluated
from oxide.runtime.launching.tile_kernel import TileKernel
from oxide.runtime.operations import strided_copy

__all__ = ["Written", "build"]


@final
@dataclass(frozen=True, slots=True)
class Written:
    """A file that ``build`` has written: its kernel, the types, the target and the size of the code."""

    kernel: str
    types: str
    target: str
    file: str
    nbytes: int


def build(
    kernels: Sequence[tuple[Kernel | TileKernel, Mapping[str, Any]]],
    directory: Path,
    version: str,
    *,
    capabilities: Sequence[tuple[int, int]] = (),
    processor: str | None = None,
) -> list[Written]:
    """Compiles kernels and writes them to a directory, which ``oxide.load`` loads. Returns what was written.

    Each kernel comes with the types that ``specialize`` takes. A kernel may be listed several times, with different
    types. ``capabilities`` are the compute capabilities of the GPUs to build for. ``processor`` is ``"native"`` for
    this machine's CPU, a level of x86-64 such as ``"x86-64-v3"``, or None to build for no CPU.

    Raises ``ArgumentError`` for a kernel that cannot be built ahead of time, for missing types and if there is no
    target. Raises ``CompileError`` as a launch does.
    """
    targets = _targets(capabilities, processor)
    if sanitizing.requested():
        raise ArgumentError("OXIDE_SANITIZE is set, and no sanitized code is built ahead of time: unset it")
    builder = _Builder(targets)
    entries: dict[str, dict[str, Any]] = {}
    whose: dict[str, Kernel | TileKernel] = {}
    for kernel, types in kernels:
        described = _described(kernel)
        if whose.setdefault(kernel.name, kernel) is not kernel:
            raise ArgumentError(
                f"two kernels are named {kernel.name}, of {whose[kernel.name].function.__module__} and "
                f"{kernel.function.__module__}: build them to two directories"
            )
        entry = entries.setdefault(kernel.name, {**described, "built": []})
        special = _specialized(kernel, types)
        if key_of(special.description, special.parameters) not in [known["key"] for known in entry["built"]]:
            entry["built"].append(builder.built(kernel.name, special))
    copies = [
        builder.built(f"oxide_{strided_copy.KERNEL.name}", strided_copy.KERNEL.specialize(T=word))
        for word in (u8, u16, u32, u64)
    ]
    content = {
        "oxide": version,
        "kernels": entries,
        "own_kernels": {strided_copy.KERNEL.name: copies},
    }
    write_directory(directory, content, builder.files)
    return [row for row in builder.written if row.kernel in entries]


def _specialized(kernel: Kernel | TileKernel, types: Mapping[str, Any]) -> Specialization:
    try:
        return kernel.specialize(**types)
    except ArgumentError as error:
        raise ArgumentError(
            f"{error.args[0]}. A kernel is built ahead of time for certain types or tile shapes: they follow it, as in "
            f"`oxide build module:{kernel.name} NAME=VALUE …`"
        ) from None


def _targets(capabilities: Sequence[tuple[int, int]], processor: str | None) -> list[Target]:
    targets = [target_of("", cc) for cc in dict.fromkeys(capabilities)]
    if processor == "native":
        targets.append(host_target())
    elif processor is not None:
        if processor not in BASELINES or platform.machine() != "x86_64":
            raise ArgumentError(
                f"there is no processor {processor} to build for on {platform.machine()}: give native, or on x86-64 "
                f"one of {', '.join(BASELINES)}"
            )
        targets.append(Target("native", processor, ""))
    if not targets:
        raise ArgumentError("name what to build for: --cc 9.0 for a GPU's compute capability, --cpu for the CPU device")
    return targets


@final
class _Builder:
    """Compiles specializations for some targets, and names the files."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.files: dict[str, bytes] = {}
        self.written: list[Written] = []
        self._targets = targets
        self._numbers: dict[str, int] = {}

    def built(self, name: str, special: Specialization) -> dict[str, Any]:
        """Compiles a specialization for all targets. Returns its entry in the manifest."""
        number = self._numbers[name] = self._numbers.get(name, -1) + 1
        codes = []
        for target in self._targets:
            code = special.code(target)
            ending = f"{target.arch}.ptx" if target.kind == "ptx" else f"{platform.machine()}-{target.arch}.o"
            file = f"{name}-{number}-{ending}"
            codes.append(described_code(code, file))
            self.files[file] = code.image
            types = ", ".join(f"{p.name}: {p.annotation}" for p in special.parameters)
            self.written.append(Written(name, types, target.arch, file, len(code.image)))
        return described_entry(special.description, special.parameters, _facts(special), codes)


def _facts(special: Specialization) -> Facts:
    return Facts(
        needs=special.needs,
        sites=special.sites,
        conversions=special.conversions,
        elementwise=lambda: special.elementwise,
        portable=lambda: special.portable,
        placements=lambda: special.placements,
    )


# A kernel's declaration


def _described(kernel: Kernel | TileKernel) -> dict[str, Any]:
    """Returns a kernel's declaration as the manifest has it: texts that ``prebuilt.evaluated`` evaluates. Raises
    ``ArgumentError`` for a kernel that cannot be built ahead of time."""
    function = kernel.function
    code = function.__code__
    if cell_of(code.co_filename) is not None:
        raise ArgumentError(f"kernel {kernel.name} is of a notebook's cell: move it to a file, and name that")
    variables: dict[str, list[str]] = {}
    parameters: list[dict[str, Any]] = []
    if isinstance(kernel, TileKernel):
        for name, kind in kernel.parameters.items():
            parameters.append({"name": name, "annotation": kind.name if isinstance(kind, ScalarType) else repr(kind)})
    else:
        _refuse(kernel)
        for place, parameter in enumerate(kernel.parameters):
            untyped = isinstance(parameter, UntypedParameter)
            parameters.append({"name": parameter.name, "annotation": None if untyped else parameter.annotation})
            if place >= kernel.by_position:
                parameters[-1]["by_name"] = True
            variable: str | None = getattr(parameter, "variable", None)
            if variable is not None:
                variables[variable] = [scalar.name for scalar in getattr(parameter, "choices", ())]
    for each in parameters:
        if each["annotation"] is not None:
            _text(kernel.name, f"parameter {each['name']}", None, each["annotation"], variables)
        if each["name"] in kernel.defaults:
            what = f"the default of parameter {each['name']}"
            each["default"] = _text(kernel.name, what, kernel.defaults[each["name"]])
    options = kernel.options()
    return {
        "kind": "tile" if isinstance(kernel, TileKernel) else "thread",
        "module": str(function.__module__),
        "qualname": function.__qualname__,
        "file": code.co_filename,
        "line": code.co_firstlineno,
        "doc": function.__doc__,
        "parameters": parameters,
        "type_variables": variables,
        "options": {name: _text(kernel.name, name, value) for name, value in options.items()},
    }


def _refuse(kernel: Kernel) -> None:
    described = kernel.description
    if described.prebuilt is not None:
        raise ArgumentError(f"kernel {kernel.name} was loaded from a directory; name the kernel that it was built from")
    if described.adopted:
        raise ArgumentError(
            f"kernel {kernel.name} was decorated by numba.cuda.jit; decorate its function with @oxide.kernel"
        )
    if described.sanitize:
        raise ArgumentError(f"kernel {kernel.name} has sanitize=…, and no sanitized code is built: leave it out")
    for parameter in kernel.parameters:
        if isinstance(parameter, Parameter) and parameter.structure is not None:
            raise ArgumentError(
                f"kernel {kernel.name}: parameter {parameter.name} is {parameter.annotation}; a kernel with structures "
                "is compiled where their class is known, and not built ahead of time"
            )
        if parameter.kind == "function" or (isinstance(parameter, Parameter) and parameter.kind == "tuple"):
            raise ArgumentError(
                f"kernel {kernel.name}: parameter {parameter.name} is {parameter.annotation}; a kernel that takes "
                "functions or tuples is compiled for each of them, and not built ahead of time. Call the function by "
                "its name in the kernel, and pass the tuple's elements"
            )


def _text(
    kernel: str, what: str, value: Any, text: str | None = None, variables: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Returns a Python expression for a value. Raises ``ArgumentError`` if there is none."""
    written = repr(value) if text is None else text
    try:
        found = evaluated(written, variables or {})
        same = text is not None or (type(found) is type(value) and found == value)
    except Exception:
        same = False
    if not same:
        raise ArgumentError(
            f"kernel {kernel}: {what} is {written:.80}, which a manifest cannot hold; numbers, texts, tuples and "
            "oxide's types can be"
        )
    return written
