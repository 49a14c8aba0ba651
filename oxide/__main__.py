"""``python -m oxide inspect module:kernel``: shows a kernel's compiled forms without a GPU.

The types of a generic kernel are given as for ``specialize``: ``inspect module:scale T=f64 --ptx``. Other type
variables are as in ``Kernel.example``. A tile kernel takes the shapes of tiles and constants: ``inspect
module:softmax 'y=(4, 1024)'``; without an option its plan is shown.

``python -m oxide info``: shows which form of the package runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import platform
import sys
from collections.abc import Sequence
from typing import Any

import oxide
from oxide.compiler.kernel import Kernel
from oxide.compiler.specialization import Specialization
from oxide.errors import ArgumentError, OxideError
from oxide.native import form
from oxide.runtime.launching.tile_kernel import TileKernel


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit status: 0, or 2 if there is no such kernel or it does not compile."""
    parser = argparse.ArgumentParser(
        prog="python -m oxide", description="Looks inside kernels and at the installation."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser(
        "inspect", help="show a kernel's bounds checks, PTX, LLVM IR, native assembly or resources"
    )
    inspect.add_argument("kernel", help="module:kernel, for example oxide_kernels:sgemm_naive")
    inspect.add_argument(
        "types",
        nargs="*",
        metavar="name=type",
        help="for a generic kernel what specialize() takes: T=f32, x=Array[f32, 1], or f=module:function",
    )
    what = inspect.add_mutually_exclusive_group()
    what.add_argument(
        "--checks", action="store_true", help="where each bounds check is, or a tile kernel's plan (the default)"
    )
    what.add_argument("--ptx", action="store_true", help="the PTX")
    what.add_argument("--llvm", action="store_true", help="the IR that both back ends start from")
    what.add_argument("--asm", action="store_true", help="the assembly for this machine's CPU")
    what.add_argument("--resources", action="store_true", help="registers, memory and occupancy, where there is a GPU")
    inspect.add_argument("--block", type=int, help="threads of a block, for --resources; the kernel's own by default")
    commands.add_parser("info", help="say whether the host path runs compiled or interpreted")
    options, behind = parser.parse_known_args(arguments)  # argparse does not accept types after an option
    if any(each.startswith("-") for each in behind):
        parser.error(f"unrecognized arguments: {' '.join(behind)}")
    if options.command == "info":
        print(f"oxide in {os.path.dirname(os.path.abspath(__file__))}, Python {platform.python_version()}")
        print(f"host path: {form()}")
        return 0
    try:
        kernel = _specialized(_find(options.kernel), options.kernel, [*options.types, *behind])
        if options.ptx:
            print(kernel.ptx())
        elif options.llvm:
            print(kernel.llvm_ir())
        elif options.asm:
            print(kernel.native_asm())
        elif options.resources:
            for name, value in dataclasses.asdict(kernel.resources(options.block)).items():
                print(f"{name}: {value}")
        else:
            _show(kernel)
    except (OxideError, LookupError) as error:
        print(f"oxide inspect: {error.args[0]}", file=sys.stderr)
        return 2
    return 0


def _module(path: str) -> tuple[Any, str]:
    """Returns the module of ``module:name``, and the name."""
    module_name, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module_name), name
    except ModuleNotFoundError as error:
        raise LookupError(f"{path}: {error}; name a module that can be imported from here") from None


def _find(path: str) -> Kernel | TileKernel:
    module, name = _module(path)
    kernels = [key for key, value in vars(module).items() if isinstance(value, Kernel | TileKernel)]
    kernel = vars(module).get(name)
    if not isinstance(kernel, Kernel | TileKernel):
        found = f"its kernels are {', '.join(kernels)}" if kernels else "it has no kernels"
        if callable(kernel):
            found = f"{name} is a function, which chooses among kernels when it is called; {found}"
        raise LookupError(f"{path}: {module.__name__} has no kernel {name or '(none was named)'}; {found}")
    return kernel


def _specialized(kernel: Kernel | TileKernel, path: str, types: Sequence[str]) -> Specialization:
    """Specializes the kernel by the ``name=type`` arguments. Raises ``ArgumentError``, or ``LookupError`` for bad
    types."""
    module, _ = _module(path)
    given: dict[str, Any] = {}
    for each in types:
        name, equals, text = (part.strip() for part in each.partition("="))
        try:
            if not equals:
                raise ValueError("write name=type, as in T=f32")
            if ":" in text:
                owner, attribute = _module(text)
                given[name] = getattr(owner, attribute)
            else:
                given[name] = eval(text, {**vars(oxide), **vars(module)})
        except (SyntaxError, NameError, AttributeError, TypeError, ValueError) as error:
            raise LookupError(f"{path}: {each!r} says no type: {error}") from None
    try:
        return kernel.specialize(**given) if isinstance(kernel, TileKernel) else kernel.example(**given)
    except ArgumentError as error:
        if given:
            raise
        raise LookupError(
            f"{error.args[0]}; here the types follow the kernel, as in {path} T=f32 f=module:function"
        ) from None


def _show(special: Specialization) -> None:
    kernel = special.description
    if kernel.tile is not None:
        from oxide.compiler.tile.explanation import explained

        print(explained(kernel.tile, 90))
        return
    print(f"{kernel.name}, {kernel.function.__code__.co_filename}")
    if kernel.unchecked:
        print("  unchecked: no access is checked")
    for check in special.checks():
        print(f"  {check}")


if __name__ == "__main__":
    sys.exit(main())
