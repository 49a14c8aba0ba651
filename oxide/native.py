"""The compiled form of the package: finds its modules, and lets the source work in both forms.

The runtime is ordinary Python. With a C compiler at hand, ``make native`` (or ``OXIDE_NATIVE=1 pip install``) turns its
hot modules into extension modules (mypyc), from this same source. Everything works without them, only slower.

The compiled modules lie in ``oxide/compiled``, with a list of their sources' hashes, and not next to the sources:
Python loads an extension module wherever it finds one, so an edited file would have no effect. Here they are used only
if every source is unchanged since (as for Python's own hash-based ``.pyc`` files); otherwise a warning says so and the
sources run. ``OXIDE_NATIVE=0`` always runs the sources, and ``OXIDE_NATIVE=1`` raises ``ImportError`` if the compiled
modules cannot run.

The two forms differ in these ways, which the source must respect:

- ``Given[T]`` is the type of an argument that the function checks itself. A compiled function refuses an argument that
  is not of its declared type before its first line, with mypyc's message. ``Given[T]`` is ``T`` to readers and type
  checkers of the package, and any type to the compiled function.
- ``mypyc_attr`` says how a class is compiled. A compiled class cannot be subclassed in Python unless it says so, and
  cannot be weakly referenced. In the interpreted form the decorator does nothing.
- ``caused(error, cause)`` sets the cause, since mypyc drops the ``from`` of a ``raise``.
- Compiled functions have no frames, so ``warnings``' ``stacklevel`` counts differently: ``warn_caller`` looks for the
  first frame outside of the package.

This file itself is never compiled.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, source_hash, spec_from_loader
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

COMPILING = False  # native.ini makes it True for mypyc
if not COMPILING:
    Given = Annotated[T, "judged by the function itself"]
else:
    Given = Union[T, Any]  # type: ignore[misc]  # noqa: UP007

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_options):
        return lambda decorated: decorated


_PACKAGE = os.path.dirname(os.path.abspath(__file__))
GROUP = "oxide__mypyc"
"""The extension module that contains all the others; each of them only points into it."""


def is_compiled() -> bool:
    """Returns whether the runtime's modules are the compiled ones."""
    return GROUP in sys.modules


def form() -> str:
    """Returns ``"compiled"`` or ``"interpreted"``, for reports."""
    return "compiled" if is_compiled() else "interpreted"


def compiled_modules(package: str) -> list[str]:
    """Returns the folder to search for the compiled modules of ``oxide.<package>``: an empty list or one entry."""
    if not is_compiled() and not _load_group():
        return []
    return [os.path.join(_PACKAGE, "compiled", package)]


def fingerprints(package: str, modules: list[str]) -> str:
    """Returns a line for each source of a compiled form: its hash and its path inside the folder ``package``."""
    lines = []
    for module in modules:
        with open(os.path.join(package, *module.split("/")), "rb") as file:
            lines.append(f"{source_hash(file.read()).hex()} {module}\n")
    return "".join(lines)


def fingerprints_path(package: str) -> str:
    """Returns the path of the stored ``fingerprints``: one file for each version of Python with a compiled form."""
    return os.path.join(package, "compiled", f"sources{EXTENSION_SUFFIXES[0]}.txt")


_warned: list[str] = []


def _load_group() -> bool:
    asked = os.environ.get("OXIDE_NATIVE", "")
    if asked == "0":
        return False
    if asked not in ("", "1"):
        raise ImportError(f"OXIDE_NATIVE={asked!r}: 0 or 1 is needed, for the interpreted or the compiled form")
    try:
        with open(fingerprints_path(_PACKAGE)) as file:
            expected = file.read()
    except OSError as error:
        if asked == "1":
            raise ImportError(
                f"OXIDE_NATIVE=1 asks for compiled modules, and this Python has none ({error}): make native compiles "
                "them in a checkout, OXIDE_NATIVE=1 pip install . makes and installs a wheel that has them, for the "
                "Python that runs it; or unset OXIDE_NATIVE, and the interpreted form runs"
            ) from None
        return False
    found = fingerprints(_PACKAGE, [line.split(" ", 1)[1] for line in expected.splitlines()])
    if found != expected:
        changed = sorted(set(found.splitlines()) - set(expected.splitlines()))
        names = ", ".join(f"oxide/{line.split(' ', 1)[1]}" for line in changed)
        what = f"oxide's compiled modules were made from other sources ({names} changed since)"
        hint = "make native compiles them again, make clean-native removes them"
        if asked == "1":
            raise ImportError(f"OXIDE_NATIVE=1 asks for compiled modules, but {what}: {hint}")
        if not _warned:
            _warned.append(what)
            warnings.warn(f"{what}, so the interpreted ones run: {hint}", RuntimeWarning, stacklevel=2)
        return False
    loader = ExtensionFileLoader(GROUP, os.path.join(_PACKAGE, "compiled", GROUP + EXTENSION_SUFFIXES[0]))
    spec = spec_from_loader(GROUP, loader)
    assert spec is not None
    module = sys.modules[GROUP] = module_from_spec(spec)
    loader.exec_module(module)
    return True


def warn_caller(message: str) -> None:
    """Gives a ``RuntimeWarning`` at the line of the program that called the package."""
    frame = sys._getframe()  # the only frame, in a compiled finaliser that the interpreter's end calls
    level = 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE + os.sep):
        frame = frame.f_back
        level += 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)


def caused(error: E, cause: BaseException | None) -> E:
    """Returns ``error`` as ``raise error from cause`` raises it."""
    error.__cause__ = cause
    return error
