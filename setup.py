"""The part of the build that ``pyproject.toml`` cannot express; ``build_backend.py`` explains it."""

from __future__ import annotations

import sys

from setuptools import setup

from build_backend import BuildCompiled, BuildSources, extensions

# Nothing else is compiled: a checkout (``editable_wheel``) runs interpreted, and metadata need no compiler.
setup(
    cmdclass={"build_py": BuildSources, "build_ext": BuildCompiled},
    ext_modules=extensions() if "bdist_wheel" in sys.argv else [],
)
