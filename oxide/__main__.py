"""``python -m oxide inspect module:kernel``: what a kernel becomes, shown without a GPU.

``python -m oxide info``: which form of the package runs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
from collections.abc import Sequence

from oxide.compiler.kernel import Kernel, Specialization
from oxide.compiler.signature import SCALARS
from oxide.device.types import ScalarType
from oxide.errors import OxideError
from oxide.native import form


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Gives the exit status: 0, or 2 if there is no such kernel or it does not compile."""
    parser = argparse.ArgumentParser(
        prog="python -m oxide", description="Looks inside kernels and at the installation."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect", help="show a kernel's bounds checks, PTX, LLVM IR or native assembly")
    inspect.add_argument("kernel", help="module:kernel, for example oxide_kernels:sgemm_naive")
    inspect.add_argument("types", nargs="*", help="what a generic kernel's type variables are, for example T=f32")
    what = inspect.add_mutually_exclusive_group()
    what.add_argument("--checks", action="store_true", help="where each bounds check is, and why (the default)")
    what.add_argument("--ptx", action="store_true", help="the PTX")
    what.add_argument("--llvm", action="store_true", help="the IR that both back ends start from")
    what.add_argument("--asm", action="store_true", help="the assembly for this machine's CPU")
    commands.add_parser("info", help="say whether the host path runs compiled or interpreted")
    options = parser.parse_args(arguments)
    if options.command == "info":
        print(f"oxide in {os.path.dirname(os.path.abspath(__file__))}, Python {platform.python_version()}")
        print(f"host path: {form()}")
        return 0
    try:
        kernel = _find(options.kernel)
        special = kernel.specialize(**dict(map(_type, options.types)))
        if options.ptx:
            print(special.ptx())
        elif options.llvm:
            print(special.llvm_ir())
        elif options.asm:
            print(special.native_asm())
        else:
            _show_checks(kernel, special)
    except (OxideError, LookupError) as error:
        print(f"oxide inspect: {error.args[0]}", file=sys.stderr)
        return 2
    return 0


def _find(path: str) -> Kernel:
    module_name, _, name = path.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise LookupError(f"{path}: {error}; name a module that can be imported from here") from None
    kernels = [key for key, value in vars(module).items() if isinstance(value, Kernel)]
    kernel = vars(module).get(name)
    if not isinstance(kernel, Kernel):
        found = f"its kernels are {', '.join(kernels)}" if kernels else "it has no kernels"
        raise LookupError(f"{path}: {module_name} has no kernel {name or '(none was named)'}; {found}")
    return kernel


def _type(given: str) -> tuple[str, ScalarType]:
    """``T=f32`` as the name and the type."""
    name, _, scalar = given.partition("=")
    if scalar not in SCALARS:
        raise LookupError(f"{given}: say what a type variable is as in T=f32; the types are {', '.join(SCALARS)}")
    return name, SCALARS[scalar]


def _show_checks(kernel: Kernel, special: Specialization) -> None:
    print(f"{kernel.name}, {kernel.function.__code__.co_filename}")
    if kernel.unchecked:
        print("  unchecked: no access is checked")
    for check in special.checks():
        print(f"  {check}")


if __name__ == "__main__":
    sys.exit(main())
