"""Builds the core, ``oxide._core``: the part of the build that ``pyproject.toml`` cannot express.

The core is C for Python's limited API, so one build serves every Python from 3.11 on: a wheel with it is tagged
``cp311-abi3``. Where it cannot be built, the build says why, the package runs with the twin in Python, and the wheel is
tagged ``py3-none-any``. ``OXIDE_CORE=require`` makes that an error, and ``OXIDE_CORE=0`` builds no core.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

CORE = Extension(
    "oxide._core",
    sorted(glob("oxide/_core/*.c")),
    depends=sorted(glob("oxide/_core/*.h")),
    extra_compile_args=["-std=c11", "-O2", "-g0", "-fvisibility=hidden"],
    py_limited_api=True,
)


class BuildSources(build_py):
    """Starts from an empty folder: setuptools would ship what an earlier build left there."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildCore(build_ext):
    """Builds the core, or takes it out of the distribution and says why."""

    def run(self) -> None:
        for extension in self.extensions:  # an earlier build's must not pass for this one's
            Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
        try:
            if os.environ.get("OXIDE_CORE") == "0":
                raise RuntimeError("OXIDE_CORE=0")
            if sysconfig.get_config_var("Py_GIL_DISABLED"):
                raise RuntimeError("a free-threaded Python has no limited API before 3.15")
            super().run()
        except Exception as error:  # of several modules, by the version of setuptools
            if os.environ.get("OXIDE_CORE") == "require":
                raise SystemExit(f"oxide: OXIDE_CORE=require, and the core is not built: {error}") from error
            print(f"oxide: the core is not built, and its twin in Python runs: {error}", file=sys.stderr)
            self.distribution.ext_modules = self.extensions = []


class TagWheel(bdist_wheel):
    """Tags the wheel by what was built, which is known only after the build."""

    def run(self) -> None:
        self.run_command("build")
        self.root_is_pure = not self.distribution.has_ext_modules()
        self.py_limited_api = not self.root_is_pure and "cp311"
        super().run()


setup(
    ext_modules=[CORE],
    cmdclass={"build_py": BuildSources, "build_ext": BuildCore, "bdist_wheel": TagWheel},
)
