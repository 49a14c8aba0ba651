"""Commands that take an object of a program by its name, as ``module:kernel`` or ``file.py:name``.

``oxide inspect`` shows the code that a kernel is compiled to. It needs no GPU, except for ``--resources``. ``oxide
build`` compiles kernels ahead of time, into a directory that ``oxide.load`` reads. ``oxide graph`` draws an operation
that has not run, or a captured graph.

The types of a generic kernel are given as for ``specialize``: ``inspect module:scale T=f64 --ptx``. Type variables that
are not given get the types of ``Kernel.example``. For a tile kernel, the shapes of tiles and the constants are given:
``inspect module:softmax 'y=(4, 1024)'``. Without an option, the plan of a tile kernel is shown.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxide.commands.listing import listing, text_of
from oxide.commands.output import refuse, say, size_text, table, write
from oxide.commands.running import print_traceback

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
        for path, types in _with_types(kernels):
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


def _with_types(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Returns the kernels that the arguments name, each with the types that follow it."""
    found: list[tuple[str, list[str]]] = []
    for each in arguments:
        if "=" not in each:
            found.append((each, []))
        elif found:
            found[-1][1].append(each)
        else:
            refuse("build", f"{each!r} follows no kernel: name the kernel first, as in module:kernel T=f32")
    return found


def graph(
    what: Annotated[str, typer.Argument(metavar="FILE:OPERATION", help="file.py:name or module:name")],
    svg: Annotated[bool, typer.Option("--svg", help="as SVG (the default, and the only form)")] = True,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="the file; else standard output")
    ] = None,
) -> None:
    """Draws an operation before it runs, or a captured graph: its nodes, boxes, streams and waits.

    OPERATION names an operation, a graph, or a function without parameters that returns one. The file is imported, not
    run as __main__.

    \b
    Examples:
      oxide graph pipeline.py:recipe --svg -o recipe.svg
      oxide graph examples.async_mlp.pipeline:build > recipe.svg
    """
    from oxide.pictures import svg as drawn

    found = _to_draw(what)
    try:
        picture = drawn(found)
    except TypeError as error:
        refuse("graph", f"{what}: {error}")
    write("graph", picture, output)


def _to_draw(what: str) -> Any:
    """Returns the object that ``what`` names, or the result of calling it if it is a function. Ends the command if
    there is no such object, if it is a kernel, or if the function takes arguments."""
    from oxide.compiler.kernel.kernel import Kernel
    from oxide.runtime.launching.launch import ConfiguredKernel
    from oxide.runtime.launching.tile_kernel import TileKernel

    try:
        module, name = module_of(what)
    except LookupError as error:
        refuse("graph", str(error.args[0]))
    if not name or not hasattr(module, name):
        drawable = [
            key for key, value in vars(module).items() if hasattr(value, "picture") and not isinstance(value, type)
        ]
        there = f"what can be drawn there is {', '.join(drawable)}" if drawable else "nothing there can be drawn"
        refuse("graph", f"{what}: {module.__name__} has no {name or 'object without a name'}; {there}")
    found = getattr(module, name)
    if isinstance(found, Kernel | TileKernel | ConfiguredKernel):
        refuse(
            "graph",
            f"{what}: {name} is a kernel; an operation is its launch with arguments, such as `recipe = "
            f"{name}{'[grid, block]' if isinstance(found, Kernel) else ''}(...)`; name that, or a function "
            f"that returns it, or see the kernel with `oxide inspect {what}`",
        )
    if hasattr(found, "picture") or not callable(found):
        return found
    try:
        return found()
    except TypeError as error:
        refuse("graph", f"{what}: {name} is a function that cannot be called without arguments: {error}")


# Names


def specialized(kernel: Kernel | TileKernel, path: str, types: Sequence[str]) -> Specialization:
    """Specializes the kernel by the ``name=type`` arguments. Raises ``LookupError`` as ``types_of`` does, and if the
    kernel needs types and none are given, ``ArgumentError`` if types do not fit the kernel."""
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
    """Returns the types that ``name=type`` arguments give. Raises ``LookupError`` for an argument that gives none."""
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


def module_of(path: str) -> tuple[Any, str]:
    """Imports the module of ``module:name`` or ``file.py:name``. Returns the module and the name.

    Raises ``LookupError`` if there is no such module. If the module's code raises an error or calls ``sys.exit``,
    prints the traceback and raises ``LookupError``."""
    module_name, _, name = path.rpartition(":") if ":" in path else (path, "", "")
    if not module_name:
        raise LookupError(f"{path}: name the module or the file before the colon, as in kernels.py:saxpy")
    file = Path(module_name) if module_name.endswith(".py") else None
    if file is not None and not file.is_file():
        raise LookupError(f"{path}: there is no file {file}")
    try:
        if file is not None:
            return _file_module(file), name
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        return importlib.import_module(module_name), name
    except ModuleNotFoundError as error:
        raise LookupError(f"{path}: {error}; name a module that can be imported from here") from None
    except (Exception, SystemExit) as error:  # the module is the user's: its code may raise anything
        print_traceback(error, __file__)
        how = f"it called sys.exit({error.code!r})" if isinstance(error, SystemExit) else type(error).__name__
        raise LookupError(f"{path}: {module_name} cannot be imported: {how}") from None


def find_kernel(path: str) -> Kernel | TileKernel:
    """Returns the kernel ``module:kernel``. Raises ``LookupError`` if there is none."""
    from oxide.compiler.kernel.kernel import Kernel
    from oxide.runtime.launching.tile_kernel import TileKernel

    module, name = module_of(path)
    kernels = [key for key, value in vars(module).items() if isinstance(value, Kernel | TileKernel)]
    kernel = vars(module).get(name)
    if not isinstance(kernel, Kernel | TileKernel):
        found = f"its kernels are {', '.join(kernels)}" if kernels else "it has no kernels"
        if callable(kernel):
            found = f"{name} is a function, which chooses among kernels when it is called; {found}"
        raise LookupError(f"{path}: {module.__name__} has no kernel {name or '(none was named)'}; {found}")
    return kernel


def _file_module(file: Path) -> Any:
    """Imports a file as a module named after it, with its folder on ``sys.path``, as a program in this folder would
    import it."""
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) == str(file.resolve()):
        return known
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(file.stem, file.resolve())
    assert spec is not None, "a file that ends with .py has a loader"
    assert spec.loader is not None, "a file that ends with .py has a loader"
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
