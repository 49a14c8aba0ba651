"""``oxide inspect``: shows the code that a kernel is compiled to. It needs no GPU, except for ``--resources``.

The types of a generic kernel are given as for ``specialize``: ``inspect module:scale T=f64 --ptx``. Type variables that
are not given get the types of ``Kernel.example``. For a tile kernel, the shapes of tiles and the constants are given:
``inspect module:softmax 'y=(4, 1024)'``. Without an option, the plan of a tile kernel is shown.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxide.commands.finding import find_kernel, module_of
from oxide.commands.listing import listing, text_of
from oxide.commands.output import refuse, say, write

if TYPE_CHECKING:
    from oxide.compiler.kernel.kernel import Kernel
    from oxide.compiler.kernel.specialization import Specialization
    from oxide.runtime.launching.tile_kernel import TileKernel


def inspect(
    kernel: Annotated[
        str, typer.Argument(metavar="MODULE:KERNEL", help="for example oxide_kernels:sgemm_naive, or file.py:name")
    ],
    types: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=TYPE]...",
            help="for a generic kernel what specialize() takes: T=f32, x=Array[f32, 1], or f=module:function",
        ),
    ] = None,
    checks: Annotated[
        bool, typer.Option("--checks", help="where each bounds check is, or a tile kernel's plan (the default)")
    ] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="the PTX")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="the GPU's own instructions, where a disassembler is")] = False,
    llvm: Annotated[bool, typer.Option("--llvm", help="the IR that both back ends start from")] = False,
    asm: Annotated[bool, typer.Option("--asm", help="the assembly for this machine's CPU")] = False,
    resources: Annotated[
        bool, typer.Option("--resources", help="registers, memory and occupancy, where there is a GPU")
    ] = False,
    source: Annotated[bool, typer.Option("--source", help="the source, with what each line becomes below it")] = False,
    block: Annotated[
        int | None, typer.Option(help="threads of a block, for --resources; the kernel's own by default")
    ] = None,
    cc: Annotated[str, typer.Option(metavar="X.Y", help="the compute capability, for --ptx and --sass")] = "9.0",
) -> None:
    """Shows a kernel's bounds checks, PTX, SASS, LLVM IR, native assembly or resources.

    Exit status 2 if there is no such kernel, or if it does not compile.

    \b
    Examples:
      oxide inspect oxide_kernels:sgemm_naive
      oxide inspect oxide_kernels:relu T=f64 --ptx
      oxide inspect kernels.py:smooth --source
      oxide inspect oxide_kernels:matvec_naive --sass --cc 8.0
      oxide inspect examples.tiles.softmax:softmax 'y=(4, 1024)'
    """
    from oxide.errors import OxideError

    forms = {"checks": checks, "ptx": ptx, "sass": sass, "llvm": llvm, "asm": asm, "resources": resources}
    chosen = [name for name, given in forms.items() if given]
    if len(chosen) > 1:
        refuse("inspect", f"choose one of --{' and --'.join(chosen)}")
    capability = capability_of(cc)
    if source:
        os.environ.setdefault("OXIDE_LINEINFO", "1")  # before the module of the kernel is imported
    try:
        special = specialized(find_kernel(kernel), kernel, types or [])
        form = chosen[0] if chosen else "checks"
        if source:
            write("inspect", listing(special, form, capability), None)
        elif resources:
            for name, value in dataclasses.asdict(special.resources(block)).items():
                say(f"{name}: {value}")
        else:
            write("inspect", text_of(special, form, capability), None)
    except (OxideError, LookupError) as error:
        refuse("inspect", str(error.args[0]))


def specialized(kernel: Kernel | TileKernel, path: str, types: Sequence[str]) -> Specialization:
    """Specializes the kernel by the ``name=type`` arguments. Raises ``LookupError`` for an argument that gives no type,
    and if the kernel needs types and none are given. Raises ``ArgumentError`` if the given types do not fit the
    kernel."""
    from oxide.errors import ArgumentError
    from oxide.runtime.launching.tile_kernel import TileKernel

    given = types_of(path, types)
    try:
        return kernel.specialize(**given) if isinstance(kernel, TileKernel) else kernel.example(**given)
    except ArgumentError as error:
        if given:
            raise
        raise LookupError(
            f"{error.args[0]}; here the types follow the kernel, as in {path} T=f32 f=module:function"
        ) from None


def types_of(path: str, types: Sequence[str]) -> dict[str, Any]:
    """Parses the ``name=type`` arguments of the kernel ``path``. Returns the types by name. Raises ``LookupError`` for
    an argument that gives no type."""
    import oxide

    module, _ = module_of(path)
    given: dict[str, Any] = {}
    for each in types:
        name, equals, text = (part.strip() for part in each.partition("="))
        try:
            if not equals:
                raise ValueError("write name=type, as in T=f32")
            if ":" in text:
                owner, attribute = module_of(text)
                given[name] = getattr(owner, attribute)
            else:
                given[name] = eval(text, {**vars(oxide), **vars(module)})
        except (SyntaxError, NameError, AttributeError, TypeError, ValueError) as error:
            raise LookupError(f"{path}: {each!r} says no type: {error}") from None
    return given


def capability_of(text: str, command: str = "inspect") -> tuple[int, int]:
    """Parses a compute capability, such as ``9.0``. Ends the command for any other text."""
    major, dot, minor = text.partition(".")
    if not (dot and major.isascii() and major.isdecimal() and minor.isascii() and minor.isdecimal()):
        refuse(command, f"--cc {text}: give a compute capability, as 9.0")
    return int(major), int(minor)
