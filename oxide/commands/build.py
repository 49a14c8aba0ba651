"""``oxide build``: compiles kernels ahead of time, into a directory that ``oxide.load`` reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from oxide.commands.finding import find_kernel
from oxide.commands.inspect import capability_of, types_of
from oxide.commands.output import refuse, say, size_text, table


def build(
    kernels: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE:KERNEL [NAME=TYPE]...",
            help="the kernels, each followed by what specialize() takes: T=f32, x=Array[f32, 1], or for a tile kernel "
            "shapes of tiles and constants, 'y=(4, 1024)'",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="the directory")],
    cc: Annotated[list[str] | None, typer.Option(metavar="X.Y", help="a GPU's compute capability; repeatable")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="build for the CPU device")] = False,
    processor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="the CPU: native, this machine's (the default), or x86-64-v2, -v3, -v4 for all such"
        ),
    ] = None,
) -> None:
    """Compiles kernels ahead of time. `oxide.load(DIR)["kernel"]` launches one, with neither numba nor LLVM installed.

    A kernel is named again for further types. PTX for a compute capability also runs on later ones.

    \b
    Examples:
      oxide build kernels:saxpy --cpu --cc 8.0 --cc 9.0 -o built
      oxide build kernels.py:scale T=f32 kernels.py:scale T=f64 --cpu -o built
      oxide build kernels:add x=Array[f32,1] out=Array[f32,1] --cpu --processor x86-64-v3 -o built
      oxide build examples.tiles.softmax:softmax 'y=(4, 1024)' --cc 9.0 -o built
    """
    import oxide
    from oxide.errors import OxideError
    from oxide.runtime.launching import building

    wanted: list[tuple[Any, dict[str, Any]]] = []
    try:
        for path, types in _named(kernels):
            wanted.append((find_kernel(path), types_of(path, types)))
        written = building.build(
            wanted,
            output,
            oxide.__version__,
            capabilities=[capability_of(each, "build") for each in cc or ()],
            processor=(processor or "native") if cpu or processor else None,
        )
    except (OxideError, LookupError) as error:
        refuse("build", str(error.args[0]))
    table(
        ("kernel", "types", "for", "size", "file"),
        [(row.kernel, row.types, row.target, size_text(row.nbytes), row.file) for row in written],
        right=(3,),
    )
    count = len({row.kernel for row in written})
    plural = "s" if count > 1 else ""
    files = f"{len(written)} file{'s' * (len(written) > 1)}"
    say(f"{output}: code of {count} kernel{plural} in {files}, and the manifest")


def _named(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Returns the kernels that the arguments name, each with the types that follow it. Ends the command if the first
    argument is not a kernel."""
    found: list[tuple[str, list[str]]] = []
    for each in arguments:
        if "=" not in each:
            found.append((each, []))
        elif found:
            found[-1][1].append(each)
        else:
            refuse("build", f"{each!r} follows no kernel: name the kernel first, as in module:kernel T=f32")
    return found
