"""``oxide.load``: loads kernels from a directory that ``oxide build`` has written.

A loaded kernel is an ordinary ``Kernel`` or ``TileKernel`` whose function has no body. Its function has the declaration
of the kernel that it was built from, so it is launched and checked like that kernel, with the same errors. Only its
specializations come from the directory. The directory has the declaration as texts, which this module evaluates as
annotations are evaluated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, TypeVar, cast, final

import numpy as np

from oxide.compiler.cache.built import BuiltKernel, provide, read_manifest
from oxide.compiler.kernel.kernel import Kernel
from oxide.language import arrays, slices
from oxide.language.types import SCALARS
from oxide.language.vectors import VECTORS
from oxide.runtime.awaiting.loading import note_compiled, note_compiling
from oxide.runtime.launching.launch import KernelLaunches

__all__ = ["LoadedKernels", "load"]


@final
class LoadedKernels(Mapping[str, Any]):
    """The kernels of a directory, by name. Each is made at its first use."""

    def __init__(self, directory: Path, declared: Mapping[str, Any]) -> None:
        self._directory = directory
        self._declared = declared
        self._kernels: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """Returns the kernel ``name``. If there is none, raises a ``KeyError`` that names the directory's kernels."""
        found = self._kernels.get(name)
        if found is None:
            declared = self._declared.get(name)
            if declared is None:
                raise KeyError(f"{self._directory} has no kernel {name}; it has {', '.join(self._declared)}")
            found = _kernel(name, declared, BuiltKernel(name, self._directory, declared["built"]))
            found = self._kernels.setdefault(name, found)  # two threads that ask at once get the same kernel
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)

    def __repr__(self) -> str:
        return f"<kernels of {self._directory}: {', '.join(self._declared)}>"


def load(directory: str | PathLike[str]) -> LoadedKernels:
    """Returns the kernels of a directory that ``oxide build`` has written, by name: ``load("kernels")["saxpy"]``.

    A loaded kernel is launched like the kernel that it was built from, on the devices that it was built for, and needs
    neither numba nor llvmlite. The directory also has the code that the runtime would otherwise compile for itself; the
    whole process then uses that code. A directory holds machine code: load only one that you trust.

    Raises ``ArgumentError`` if the directory has no manifest, is damaged, or was built by another version of oxide.
    """
    place = Path(fspath(directory)).absolute()
    manifest = read_manifest(place, vars(sys.modules["oxide"])["__version__"])
    for name, declared in manifest["kernels"].items():
        if declared["module"].partition(".")[0] == "oxide_kernels":
            provide(name, place, declared["built"])
    for name, records in manifest["own_kernels"].items():
        provide(name, place, records)
    return LoadedKernels(place, manifest["kernels"])


def evaluated(text: str, variables: Mapping[str, Sequence[str]]) -> Any:
    """Evaluates a text of a declaration. ``variables`` are the declaration's type variables, each with the names of the
    types that it may stand for."""
    return eval(text, _names(variables))


def _names(variables: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Returns the names that a declaration may use: those of oxide's types and annotations, and type variables."""
    names = _names_of_types().copy()
    for name, choices in variables.items():
        kinds = [SCALARS[choice] for choice in choices]
        names[name] = TypeVar(name, *kinds) if len(kinds) > 1 else kinds[0]
    return names


_VECTORS: Final = {made_of.__name__: made_of for made_of in VECTORS.values()}


@cache
def _names_of_types() -> dict[str, Any]:
    from oxide.language import tile, tiles
    from oxide.language.atomic import AtomicSlice

    names: dict[str, Any] = {"__builtins__": {"int": int, "float": float, "str": str, "bool": bool}}
    for module in (arrays, slices, tiles):
        names |= {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return names | {"tile": tile, "AtomicSlice": AtomicSlice, "dtype": np.dtype} | SCALARS | _VECTORS


def _kernel(name: str, declared: Mapping[str, Any], built: BuiltKernel) -> Any:
    """Makes the kernel that a declaration describes."""
    function = _function(name, declared)
    options = {key: evaluated(text, {}) for key, text in declared["options"].items()}
    if declared["kind"] == "tile":
        from oxide.runtime.launching.tile_kernel import TileKernel

        return TileKernel(function, **options, names={}, prebuilt=built)
    return Kernel(
        function, launches=KernelLaunches(), compiling=note_compiling, compiled=note_compiled, **options, prebuilt=built
    )


def _function(name: str, declared: Mapping[str, Any]) -> Callable[..., Any]:
    """Returns a function without a body that has a kernel's name, place, parameters, annotations and defaults."""
    parameters = [parameter["name"] for parameter in declared["parameters"]]
    if not all(each.isidentifier() for each in (name, *parameters)):
        raise TypeError(f"{name}({', '.join(parameters)}) is no declaration")
    lines = "\n" * (declared["line"] - 1)
    by_name = [parameter["name"] for parameter in declared["parameters"] if parameter.get("by_name")]
    written = [each for each in parameters if each not in by_name] + ["*", *by_name] * bool(by_name)
    source = compile(f"{lines}def {name}({', '.join(written)}): ...", declared["file"], "exec")
    names = _names(declared["type_variables"]) | {"__name__": declared["module"]}
    exec(source, names)
    function = cast("Any", names[name])
    function.__qualname__ = declared["qualname"]
    function.__doc__ = declared["doc"]
    function.__annotations__ = {
        each["name"]: each["annotation"] for each in declared["parameters"] if each["annotation"] is not None
    }
    defaults = {each["name"]: evaluated(each["default"], {}) for each in declared["parameters"] if "default" in each}
    function.__defaults__ = tuple(value for each, value in defaults.items() if each not in by_name)
    function.__kwdefaults__ = {each: value for each, value in defaults.items() if each in by_name}
    return cast("Callable[..., Any]", function)
