"""``oxide new``: makes a project that can be run and tested at once."""

from __future__ import annotations

import importlib.util
import keyword
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from oxide.commands.output import refuse, say


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="the project's name: its folder and its package")],
) -> None:
    """Makes a project in the folder NAME: a kernel, a trio program, tests, pyproject.toml, Makefile and README.

    It runs and tests with what is installed here, without a network and without a GPU.

    \b
    Example:
      oxide new waves && cd waves && make test && make run
    """
    from oxide.commands.template import FILES, LOCAL

    if reason := refused(name):
        refuse("new", f"{name!r}: {reason}")
    folder = Path(name)
    try:
        folder.mkdir()
        for path, text in FILES.items():
            file = folder / path.replace("NAME", name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("NAME", name).lstrip("\n"), encoding="utf-8")
        (folder / "local.mk").write_text(LOCAL.replace("PYTHON_HERE", shlex.quote(sys.executable)), encoding="utf-8")
    except FileExistsError:
        refuse("new", f"{name!r}: there is a file or folder of this name here already; choose another name")
    except OSError as error:
        refuse("new", f"{error.filename} cannot be written: {error.strerror}")
    say(f"{name}: made. Next: cd {name} && make test && make run")


def refused(name: str) -> str | None:
    """Returns the reason why a project cannot have this name, or None if it can."""
    if not name.isascii() or not name.isidentifier():
        return "a package is named by letters, digits and _, and begins with no digit; choose such a name"
    if name.startswith("_"):
        return "a name that begins with _ is private; choose another name"
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        return "this is a word of Python's grammar; choose another name"
    if name in ("main", "tests"):
        return "the project has a file or folder of this name; choose another name"
    if name.lower() in sys.stdlib_module_names or _is_installed(name):
        return "there is a module of this name, which the project would hide; choose another name"
    return None


def _is_installed(name: str) -> bool:
    """Returns whether Python finds a module of this name outside the current folder, in which the project is made."""
    here = {"", str(Path.cwd())}
    before = sys.path[:]
    try:
        sys.path[:] = [each for each in before if each not in here]
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    finally:
        sys.path[:] = before
