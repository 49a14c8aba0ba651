"""Builds the compiled form of the package where that is asked for: ``make native``, ``OXIDE_NATIVE=1 pip install .``.

Everything else about the package is in ``pyproject.toml``, and without the variable nothing is built. mypyc compiles
the modules named here, from the same source that runs interpreted, in a minute or two, and one small file in C; it
takes a C compiler, Python's headers and mypy. ``oxide/native.py`` says where the results go and when they are used.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent.resolve()
MODULES = [
    *(f"driver/cuda/{name}.py" for name in ("driver", "blocks", "handles", "launch")),
    "runtime/device/arc.py",
    "runtime/launching/binding.py",
    "runtime/submission/capture.py",
    "runtime/operations/combinators.py",
    "runtime/awaiting/completion.py",
    "runtime/device/runtime.py",
    "runtime/loop/event_loops.py",
    "runtime/device/fault_records.py",
    "runtime/awaiting/future.py",
    "runtime/operations/graph.py",
    "runtime/launching/argument_kinds.py",
    "runtime/launching/launch.py",
    "runtime/launching/launch_config.py",
    "runtime/awaiting/loading.py",
    "runtime/locks.py",
    "runtime/device/memory.py",
    "runtime/submission/once.py",
    "runtime/operations/operation.py",
    "runtime/loop/pace.py",
    "runtime/host_memory/pinned.py",
    "runtime/device/places.py",
    "runtime/device/reclaim.py",
    "runtime/device/scheduling.py",
    "runtime/submission/staging.py",
    "runtime/device/staging_ring.py",
    "runtime/device/statistics.py",
    "runtime/device/stream.py",
    "runtime/submission/submission.py",
    "runtime/operations/tasks.py",
    "runtime/device/timeline.py",
    "runtime/operations/transfers.py",
    "runtime/loop/turns.py",
]
C_SOURCE = "driver/cuda/call.c"
# numpy and trio for their types: what is unknown to mypy is asked of Python at each use.
NEEDS = ["mypy>=2.4", "numpy>=2.0,<2.5", "trio>=0.27"]


class BuildNative(build_ext):
    """Compiles ``MODULES`` into ``oxide/compiled``, in the wheel or in the checkout."""

    def finalize_options(self) -> None:
        try:
            from mypyc.build import mypycify
        except ImportError as error:
            raise SystemExit(
                f"oxide: the compiled form is made by mypyc, which is not there ({error}); {WITHOUT}"
            ) from None
        paths = [f"oxide/{module}" for module in MODULES]
        # Now, and not when all is compiled: an edit in between must be seen.
        self.fingerprints = _native().fingerprints(str(HERE / "oxide"), [*MODULES, C_SOURCE])
        try:
            compiled = mypycify(["--config-file", "native.ini", *paths], group_name="oxide", opt_level="2")
        except SystemExit as error:
            raise SystemExit(f"oxide: mypyc refused the source, see above; {WITHOUT}") from error
        launcher = Extension("oxide.driver.cuda.call", [f"oxide/{C_SOURCE}"])
        self.distribution.ext_modules = [*compiled, launcher]
        super().finalize_options()

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            raise SystemExit(f"oxide: the C compiler failed: {error}; {WITHOUT}") from error

    def build_extensions(self) -> None:
        # Not there while the modules are others than it says: without it nothing in the folder is used. And written
        # before ``--inplace`` copies that.
        listing = Path(_native().fingerprints_path(self._package()))
        listing.unlink(missing_ok=True)
        super().build_extensions()
        listing.write_text(self.fingerprints)

    def get_ext_fullpath(self, ext_name: str) -> str:
        """``oxide.runtime.launching.launch`` and the group that all point into, both in ``oxide/compiled``."""
        folder, _, name = ext_name.removeprefix("oxide.").rpartition(".")
        return os.path.join(self._package(), "compiled", *folder.split("."), self.get_ext_filename(name))

    def copy_extensions_to_source(self) -> None:
        """For ``--inplace`` and editable installations: the same folder of the checkout."""
        built, here = Path(self._package(), "compiled").resolve(), HERE / "oxide" / "compiled"
        if built != here:
            shutil.copytree(built, here, dirs_exist_ok=True)

    def get_outputs(self) -> list[str]:
        return [*super().get_outputs(), _native().fingerprints_path(self._package())]

    def _package(self) -> str:
        return os.path.join(self.build_lib, "oxide")


class NativeDistribution(Distribution):
    """Known to have extension modules before mypyc, which may not be installed yet, has made them."""

    def has_ext_modules(self) -> bool:
        return True


WITHOUT = "without OXIDE_NATIVE=1 the package is installed as it is, and runs interpreted"


def _native() -> Any:
    """``oxide/native.py``, by itself: importing the package takes what it depends on."""
    spec = importlib.util.spec_from_file_location("oxide_native", HERE / "oxide" / "native.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if os.environ.get("OXIDE_NATIVE") == "1":
    setup(
        distclass=NativeDistribution,
        cmdclass={"build_ext": BuildNative},
        ext_modules=[Extension("oxide.compiled", [])],  # stands for them until they are known
        setup_requires=[] if "build_ext" in sys.argv else NEEDS,
    )
else:
    setup()
