"""The compiled form of the package: where its modules are, and what it needs of the source.

The runtime is ordinary Python. With a C compiler at hand, ``make native`` (or ``OXIDE_NATIVE=1 pip install``) turns its
hot modules into extension modules (mypyc), from this same source; everything works without, only slower.

The compiled modules lie in ``oxide/compiled``, beside a list of what their sources looked like, and not beside the
sources: Python takes an extension module wherever it finds one, so an edited file would go on running as it was. Here
they are used only while every source is what they were made from (as Python's own hash-based ``.pyc`` files are);
otherwise a warning says so and the sources run. ``OXIDE_NATIVE=0`` runs the sources in any case, and ``OXIDE_NATIVE=1``
is an ``ImportError`` where the compiled modules cannot run.

What differs between the two forms, and so is asked of the source:

- ``Given[T]`` is the type of an argument that the function judges itself. A compiled function refuses what is not of
  the type that it declares, before its first line and in mypyc's words; this is ``T`` to who reads and checks the
  package, and anything at all to the compiled function.
- ``mypyc_attr`` says how a class is compiled. A compiled class is closed to subclasses in Python unless it says
  otherwise, and cannot be weakly referenced; in the interpreted form the decorator does nothing.
- ``caused(error, cause)`` sets the cause, since mypyc leaves out what follows ``from`` in a ``raise``.
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

COMPILING = False  # native.ini says otherwise to mypyc
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
"""The extension module that all the others are in; each of them only points into it."""


def is_compiled() -> bool:
    """Whether the runtime's modules are the compiled ones."""
    return GROUP in sys.modules


def form() -> str:
    """``"compiled"`` or ``"interpreted"``, for reports."""
    return "compiled" if is_compiled() else "interpreted"


def compiled_modules(package: str) -> list[str]:
    """Where the compiled modules of ``oxide.<package>`` are to be looked for: nowhere, or in one folder."""
    if not is_compiled() and not _load_group():
        return []
    return [os.path.join(_PACKAGE, "compiled", package)]


def fingerprints(package: str, modules: list[str]) -> str:
    """A line for each source of a compiled form: its hash and its path inside ``package``, a folder."""
    lines = []
    for module in modules:
        with open(os.path.join(package, *module.split("/")), "rb") as file:
            lines.append(f"{source_hash(file.read()).hex()} {module}\n")
    return "".join(lines)


def fingerprints_path(package: str) -> str:
    """Where ``fingerprints`` are kept, for each version of Python that has a compiled form."""
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
    """A ``RuntimeWarning`` at the line of the program that called the package."""
    frame = sys._getframe()  # a compiled finaliser that Python's end calls has no other below it
    level = 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE + os.sep):
        frame = frame.f_back
        level += 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)


def caused(error: E, cause: BaseException | None) -> E:
    """``error`` as ``raise error from cause`` raises it."""
    error.__cause__ = cause
    return error
