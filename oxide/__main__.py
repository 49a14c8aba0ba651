"""``python -m oxide inspect module:kernel``: what a kernel becomes, shown without a GPU."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any

from oxide.compiler.kernel import Kernel, Specialization
from oxide.compiler.signature import SCALARS
from oxide.errors import OxideError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Gives the exit status: 0, or 2 if there is no such kernel or it does not compile."""
    parser = argparse.ArgumentParser(prog="python -m oxide", description="Looks inside kernels.")
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect", help="show a kernel's bounds checks, PTX, LLVM IR or native assembly")
    inspect.add_argument("kernel", help="module:kernel, for example oxide_kernels:sgemm_naive")
    inspect.add_argument(
        "types",
        nargs="*",
        help="what a generic kernel's type variables are, for example T=f64 (f32, or the first that is possible, where "
        "nothing is said), and its functions, for example f=module:function",
    )
    what = inspect.add_mutually_exclusive_group()
    what.add_argument("--checks", action="store_true", help="where each bounds check is, and why (the default)")
    what.add_argument("--ptx", action="store_true", help="the PTX")
    what.add_argument("--llvm", action="store_true", help="the IR that both back ends start from")
    what.add_argument("--asm", action="store_true", help="the assembly for this machine's CPU")
    options = parser.parse_args(arguments)
    try:
        kernel = _find(options.kernel)
        special = kernel.example(**dict(map(_meaning, options.types)))
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
    module, name = _module(path)
    kernels = [key for key, value in vars(module).items() if isinstance(value, Kernel)]
    kernel = vars(module).get(name)
    if not isinstance(kernel, Kernel):
        found = f"its kernels are {', '.join(kernels)}" if kernels else "it has no kernels"
        if isinstance(kernel, FunctionType):
            found = f"{name} is a function, which picks kernels by what it is called with; {found}"
        raise LookupError(f"{path}: {module.__name__} has no kernel {name or '(none was named)'}; {found}")
    return kernel


def _module(path: str) -> tuple[ModuleType, str]:
    """``module:name`` as the module and the name."""
    module_name, _, name = path.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module_name), name
    except ModuleNotFoundError as error:
        raise LookupError(f"{path}: {error}; name a module that can be imported from here") from None


def _meaning(given: str) -> tuple[str, Any]:
    """``T=f32`` as the name and the type, ``f=module:function`` as the name and the function."""
    name, _, meant = given.partition("=")
    if ":" in meant:
        module, function = _module(meant)
        if not hasattr(module, function):
            raise LookupError(f"{given}: {module.__name__} has no {function or 'function without a name'}")
        return name, getattr(module, function)
    if meant not in SCALARS:
        raise LookupError(
            f"{given}: say what a type variable is as in T=f32, and what a function is as in f=module:function; the "
            f"types are {', '.join(SCALARS)}"
        )
    return name, SCALARS[meant]


def _show_checks(kernel: Kernel, special: Specialization) -> None:
    print(f"{kernel.name}, {kernel.function.__code__.co_filename}")
    if kernel.unchecked:
        print("  unchecked: no access is checked")
    for check in special.checks():
        print(f"  {check}")


if __name__ == "__main__":
    sys.exit(main())
