"""Builds the package: setuptools, its core in C, and mypyc for the host path, where there is a C compiler.

*The core*, ``oxide._core``, is built wherever a compiler is found, in a checkout too. It uses Python's limited API, so
one build serves every version of Python. Where there is no compiler the package runs with the twin in Python, and the
build says why. ``OXIDE_CORE=require`` makes that an error, ``OXIDE_CORE=0`` builds no core.

*The host path* is built as black and mypy are: a wheel has each compiled module next to its source, and Python imports
the compiled one. A checkout has none, and runs interpreted. ``COMPILED`` says what is compiled; each exception has its
reason.

``pip install .`` compiles where it can: it needs a C compiler, Python's headers and mypy, which pip installs for the
build. Where one of them is missing, the wheel is interpreted and the build says why. ``OXIDE_NATIVE=1`` makes that an
error, ``OXIDE_NATIVE=0`` compiles nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from setuptools import Extension, build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

COMPILED = ("oxide/locks.py", "oxide/runtime", "oxide/driver/cuda", "oxide/tracing/recording", "oxide/distributed")
"""What is compiled: a module, or all modules of a folder. An ``__init__.py`` is not: it has a docstring and
re-exports."""

INTERPRETED = {
    "oxide/runtime/awaiting/unrun.py": "it reads the frames of its callers, which compiled functions do not have",
    "oxide/runtime/device/policy.py": "a compiled protocol class is refused by runtime_checkable",
    "oxide/runtime/device/dlpack.py": "mypyc's C for a subclass of ctypes.Structure does not compile",
    "oxide/runtime/device/foreign_layout.py": "it judges objects of other libraries, of any type, for interop",
    "oxide/runtime/device/interop.py": "compiled, it loses errors that objects of other libraries raise",
    "oxide/runtime/launching/building.py": "it runs when kernels are built ahead of time, once",
    "oxide/runtime/launching/decorator.py": "it reads the frame of its caller, which a compiled function does not have",
    "oxide/runtime/launching/interpreting.py": "it runs in a debugger, which sees the frames of Python alone",
    "oxide/runtime/launching/interpreting_all.py": "it runs in a debugger, which sees the frames of Python alone",
    "oxide/runtime/launching/prebuilt.py": "it makes functions, whose names and places a compiled one does not have",
    "oxide/runtime/launching/tile_kernel.py": "it reads the frame of its caller, which a compiled one does not have",
    "oxide/runtime/launching/tuning.py": "a child process runs its functions, which it finds by their names",
    "oxide/runtime/operations/strided_copy.py": "its kernels: the kernel compiler reads the bytecode of functions",
    "oxide/distributed/ray_actors.py": "Ray pickles its classes and functions, and looks into them",
    "oxide/distributed/ray_batches.py": "Ray pickles its classes and functions, and looks into them",
    "oxide/distributed/ray_kernels.py": "Ray pickles its classes and functions, and looks into them",
    "oxide/distributed/ray_pool.py": "Ray pickles its classes and functions, and looks into them",
    "oxide/driver/cuda/early.py": "it runs once, and its tests replace functions, which compiled callers do not see",
    "oxide/driver/cuda/graph.py": "its driver calls are tested with stand-ins for streams, which compiled code refuses",
    "oxide/driver/cuda/peer.py": "its driver calls are tested with stand-ins for contexts, which compiled code refuses",
}
"""The exceptions in these folders, and why."""

LAUNCHER = "oxide/driver/cuda/call.c"

CORE = sorted(path.as_posix() for path in Path("oxide/_core").glob("*.c"))

# numpy and trio for their types: mypyc looks up at run time what mypy does not know.
MYPYC = ["mypy>=2.4", "numpy>=2.0,<2.5", "trio>=0.27"]


def modules() -> list[str]:
    """Returns the paths of the modules that mypyc compiles."""
    found = (path for place in COMPILED for path in (Path(place), *Path(place).rglob("*.py")) if path.suffix == ".py")
    return sorted(
        path.as_posix() for path in found if path.name != "__init__.py" and path.as_posix() not in INTERPRETED
    )


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Names mypy only where it is of use and pip finds it: the installation fails if a requirement cannot be had."""
    requires = build_meta.get_requires_for_build_wheel(config_settings)
    return [*requires, *MYPYC] if without_c_compiler() is None and _pip_finds(MYPYC) else requires


def core() -> list[Extension]:
    """Returns the extension module of the core, or none where it cannot be built."""
    asked = os.environ.get("OXIDE_CORE")
    reason = "OXIDE_CORE=0" if asked == "0" else without_c_compiler() if CORE else "its sources are missing"
    if reason is None:
        built = Extension("oxide._core", CORE, depends=["oxide/_core/core.h"], py_limited_api=True)
        built.extra_compile_args = ["-std=c11", "-O2", "-g0"]
        built.optional = asked != "require"
        return [built]
    if asked == "require":
        raise SystemExit(f"oxide: OXIDE_CORE=require, and the core is not built: {reason}")
    print(f"oxide: the core is not built, and its twin in Python runs: {reason}", file=sys.stderr)
    return []


def extensions() -> list[Extension]:
    """Returns the extension modules of the wheel, of C that mypyc has written. Returns none where it cannot."""
    if os.environ.get("OXIDE_NATIVE") == "0":
        say_interpreted("OXIDE_NATIVE=0")
        return []
    if reason := without_c_compiler():
        say_interpreted(reason)
        return []
    try:
        from mypyc.build import mypycify

        compiled: list[Extension] = mypycify(
            ["--config-file", "native.ini", *modules()],
            group_name="oxide",
            opt_level="1",  # builds in half the time of 2; an `await` takes 8.0 µs, interpreted 12.6
            debug_level="0",
            multi_file=True,  # one for each module, for all cores
            target_dir="build/mypyc",
        )
    except ImportError as error:
        say_interpreted(f"mypyc is missing ({error})")
        return []
    except SystemExit:
        say_interpreted("mypyc refuses the source, see above")
        return []
    for extension in compiled:  # which share one list of arguments
        extension.extra_compile_args = [*extension.extra_compile_args, "-Wno-error"]  # mypyc's -Werror is for its tests
    return [*compiled, Extension(LAUNCHER.removesuffix(".c").replace("/", "."), [LAUNCHER])]


@cache
def without_c_compiler() -> str | None:
    """Returns why C cannot be compiled for this Python, or None: compiles a file that includes its header."""
    from distutils import ccompiler
    from distutils.sysconfig import customize_compiler

    paths = sysconfig.get_paths()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "header.c")
        source.write_text("#include <Python.h>\n")
        compiler = ccompiler.new_compiler()
        customize_compiler(compiler)
        try:
            compiler.compile([str(source)], folder, include_dirs=[paths["include"], paths["platinclude"]])
        except Exception as error:  # of several modules, by the version of setuptools
            return f"no C compiler with Python's headers was found ({error})"
    return None


def _pip_finds(requirements: list[str]) -> bool:
    command = [sys.executable, "-I", "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed"]
    command += ["--disable-pip-version-check", "--retries=0", "--only-binary=:all:", *requirements]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    return asked.returncode == 0 or "No module named pip" in asked.stderr  # other front ends look by themselves


class BuildSources(build_py):
    """Starts from an empty folder: setuptools would ship what an earlier build left there."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildCompiled(build_ext):
    """Compiles the C of all extension modules on all cores."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            for output in self.get_outputs():
                Path(output).unlink(missing_ok=True)
            say_interpreted(f"the C compiler failed: {error}")
            self.distribution.ext_modules = self.extensions = core()
            super().run()

    def build_extensions(self) -> None:
        self.parallel = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        compile_all = self.compiler.compile
        with ThreadPoolExecutor(self.parallel) as pool:

            def compile_in_parallel(sources: list[str], **options: Any) -> list[str]:
                return [*chain.from_iterable(pool.map(lambda source: compile_all([source], **options), sources))]

            self.compiler.compile = compile_in_parallel
            super().build_extensions()


def say_interpreted(reason: str) -> None:
    """Writes the one line that says why a wheel is not compiled. Raises ``SystemExit`` where it has to be."""
    if os.environ.get("OXIDE_NATIVE") == "1":
        raise SystemExit(f"oxide: OXIDE_NATIVE=1, and nothing is compiled: {reason}")
    print(f"oxide: this wheel runs interpreted: {reason}", file=sys.stderr)
