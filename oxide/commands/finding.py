"""Finds the object that an argument of a command names, as ``module:kernel`` or ``file.py:name``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxide.commands.running import print_traceback

if TYPE_CHECKING:
    from oxide.compiler.kernel.kernel import Kernel
    from oxide.runtime.launching.tile_kernel import TileKernel


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
