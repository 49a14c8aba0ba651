"""``oxide new``: makes a project that can be run and tested at once.

The files of the project are texts at the end. ``NAME`` in a path or a text is the project's name. The project's tests
use unittest, which every Python has; pytest runs them too.
"""

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


KERNELS = '''
"""The kernels: what each thread of the device does."""

from oxide import DisjointSlice, Slice, f32, kernel, thread


@kernel
def smooth(x: Slice[f32], y: DisjointSlice[f32]):
    """Writes the mean of each element and its two neighbours. The first and the last element stay as they are."""
    i = thread.index_1d()
    out = y.get_mut(i)
    if out is not None:
        at = i.get()
        if at > 0 and at + 1 < len(x):
            out.value = (x[at - 1] + x[at] + x[at + 1]) / f32(3)
        else:
            out.value = x[at]
'''

INIT = '''
"""NAME: kernels and the operations that are built from them."""

from NAME.operations import smoothed

__all__ = ["smoothed"]
'''

OPERATIONS = '''
"""The operations: what a program awaits. Nothing runs before that."""

from oxide import LaunchConfig, d2h, h2d, zeros

from NAME.kernels import smooth


def smoothed(signal, times=1):
    """Returns the operation that smooths a signal some times and yields it as an array. The signal is a 1-D array of
    float32."""
    current = h2d(signal)
    for _ in range(times):
        launch = smooth[LaunchConfig.for_num_elems(len(signal))]
        current = launch(current, zeros(len(signal))).last()
    return current.and_then(d2h)
'''

MAIN = '''
"""The program: smooths several signals at once, on several streams of the device, from one event loop."""

import sys

import numpy as np
import trio
from oxide import gather, prepare

from NAME import smoothed
from NAME.kernels import smooth


async def main(count):
    rng = np.random.default_rng(0)
    signals = [rng.standard_normal(1000).astype(np.float32) for _ in range(count)]
    await prepare(smooth)  # compiles it while the event loop goes on
    results = await gather(*(smoothed(signal, times=20) for signal in signals))
    for number, (before, after) in enumerate(zip(signals, results, strict=True)):
        print(f"signal {number}: standard deviation {before.std():.3f} before, {after.std():.3f} after")


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 4)
'''

TESTS = '''
"""The operations beside NumPy, at sizes that fill no block evenly. They run on any device."""

import unittest

import numpy as np
import trio
from oxide import prepare

from NAME import smoothed
from NAME.kernels import smooth


def reference(signal):
    """The same in NumPy, in double precision."""
    result = signal.astype(np.float64)
    if len(result) > 2:
        result[1:-1] = (result[:-2] + result[1:-1] + result[2:]) / 3
    return result


class Smoothed(unittest.TestCase):
    def test_it_is_the_mean_of_neighbours_at_every_size(self):
        rng = np.random.default_rng(1)
        for size in (1, 2, 3, 31, 33, 1000):
            with self.subTest(size=size):
                signal = rng.standard_normal(size).astype(np.float32)
                np.testing.assert_allclose(smoothed(signal).sync(), reference(signal), rtol=1e-5, atol=1e-6)

    def test_it_can_be_awaited(self):
        async def twice(signal):
            await prepare(smooth)
            return await smoothed(signal, times=2)

        signal = np.array([0, 0, 9, 0, 0], np.float32)
        np.testing.assert_allclose(trio.run(twice, signal), [0, 2, 3, 2, 0], atol=1e-6)


if __name__ == "__main__":
    unittest.main()
'''

PYPROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "NAME"
version = "0.1.0"
description = "GPU kernels in Python, with oxide"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["oxide-gpu>=0.1,<0.2", "numpy>=2.0,<2.5", "trio>=0.27"]

[project.optional-dependencies]
math = ["oxide-gpu[math]"]  # libdevice, for sin, exp and the like on a GPU without a CUDA Toolkit

[tool.setuptools]
packages = ["NAME"]
"""

MAKEFILE = """
# `make test DEVICE=cpu` and `make run DEVICE=cuda` choose the device; without it, a GPU is used if there is one.
# local.mk, which is not committed, says which Python has oxide.
-include local.mk
PYTHON ?= python3
DEVICE ?= $(OXIDE_DEVICE)
export OXIDE_DEVICE := $(DEVICE)

.PHONY: run test sanitize doctor

run:
\t$(PYTHON) main.py

test:
\t$(PYTHON) -m unittest discover -s tests -t . -v

# Memory errors and races, found on the CPU device, and on a GPU where compute-sanitizer is.
sanitize:
\t$(PYTHON) -m oxide sanitize main.py 1

doctor:
\t$(PYTHON) -m oxide doctor
"""

README = """
# NAME

A kernel, the operation that is built from it, and a program that awaits it on several streams at once.

```console
$ make test       # on a GPU if there is one, else on the CPU
$ make run
$ make sanitize   # memory errors and races
$ make doctor     # is everything here that kernels need?
```

`NAME/kernels.py` has the kernel, `NAME/operations.py` the operation, `main.py` the program. To install it elsewhere:
`python -m pip install -e .`; `make PYTHON=python` uses the Python on your PATH.

`oxide inspect NAME.kernels:smooth` shows where the kernel's bounds checks are, with `--ptx` what it becomes.
"""

IGNORED = """
__pycache__/
*.egg-info/
build/
dist/
.venv/
local.mk
"""

LOCAL = """# Which Python has oxide, on this machine. `oxide new` wrote it; it is not committed.
PYTHON ?= PYTHON_HERE
"""

FILES = {
    "NAME/__init__.py": INIT,
    "NAME/kernels.py": KERNELS,
    "NAME/operations.py": OPERATIONS,
    "main.py": MAIN,
    "tests/__init__.py": '"""The tests of NAME."""\n',
    "tests/test_smoothed.py": TESTS,
    "pyproject.toml": PYPROJECT,
    "Makefile": MAKEFILE,
    "README.md": README,
    ".gitignore": IGNORED,
}
"""Maps the paths to the contents."""
