"""The part of the build that ``pyproject.toml`` cannot express; ``build_backend.py`` explains it."""

from __future__ import annotations

import sys

from setuptools import setup

from build_backend import BuildCompiled, BuildSources, core, extensions

# Metadata need no compiler. A checkout (``editable_wheel``) has the core, and the host path interpreted.
compiled = extensions() if "bdist_wheel" in sys.argv else []
modules = core() if {"bdist_wheel", "editable_wheel", "build_ext"} & set(sys.argv) else []
one_for_all = modules and not compiled
setup(
    cmdclass={"build_py": BuildSources, "build_ext": BuildCompiled},
    ext_modules=[*modules, *compiled],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if one_for_all else {},
)
