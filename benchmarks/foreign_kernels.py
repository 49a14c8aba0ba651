"""Runs the kernels of other packages, and compares their results with numba-cuda's simulator.

``python -m benchmarks.foreign_kernels FOLDER:PACKAGE … -o FILE.json`` imports all modules below ``FOLDER/PACKAGE`` that
mention ``cuda.jit``, once on oxide (``oxide.numba_cuda.install()``) and once in numba-cuda's simulator, an interpreter
in Python that shares no code with oxide. Each kernel gets random arguments whose kinds follow from its source: arrays
of as many axes as it indexes, integers where it counts. Arguments on which the simulator fails, by an index outside an
array for example, are replaced by larger arrays; a kernel on which all of them fail is not counted, and listed. A
kernel is right if all its arrays agree with the simulator's within a relative 1e-6, after a run that changed some.

Packages' own imports that are not installed, cupy above all, are stubs: kernels do not need them.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np

# The length of every axis (squared, for arrays of one axis in the larger plans), and the value of integers that are no
# lengths. A launch has 24 threads along each axis, or as many as the axis is long.
PLANS = [
    (axis, number, kind)
    for kind in ("float64", "complex128", "float32", "int64")
    for axis, number in ((8, 2), (24, 4), (64, 1))
]
SECONDS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("packages", nargs="*", metavar="FOLDER:PACKAGE")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--child", nargs=4, metavar=("SIDE", "FOLDER", "MODULE", "PICKLE"))
    given = parser.parse_args()
    if given.child:
        side, folder, module, path = given.child
        run_module(side, folder, module, Path(path))
        return
    found: list[dict[str, Any]] = []
    for package in given.packages:
        folder, _, name = package.partition(":")
        for module in modules_with_kernels(Path(folder), name):
            for entry in survey(folder, module):
                found.append({"package": name, "module": module, **entry})
                print(f"{name} {module}.{entry['kernel']}: {entry['result']} {entry.get('why', '')[:200]}", flush=True)
    counted = [entry for entry in found if entry["result"] != "not counted"]
    right = sum(entry["result"] == "right" for entry in counted)
    print(f"{right} of {len(counted)} right; {len(found) - len(counted)} not counted")
    if given.output:
        from importlib.metadata import version

        summary = {
            "versions": {name: version(name) for name in ("numba", "numba-cuda", "numpy")},
            "device": os.environ.get("OXIDE_DEVICE", "cpu"),
            "counted": len(counted),
            "right": right,
            "kernels": found,
        }
        given.output.write_text(json.dumps(summary, indent=1) + "\n")


def modules_with_kernels(folder: Path, package: str) -> Iterator[str]:
    """Yields the names of the modules below a package whose source mentions ``cuda.jit``."""
    root = folder / package
    for path in sorted(root.rglob("*.py")) if root.is_dir() else [root.with_suffix(".py")]:
        text = path.read_text(encoding="utf-8", errors="replace")
        if "cuda.jit" in text or "@compile_cupy" in text or "cuda_jit" in text:
            yield ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")


def survey(folder: str, module: str) -> Iterator[dict[str, Any]]:
    """Yields the outcome of each kernel of a module."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "state"
        state: dict[str, Any] = {}
        for side in ("simulator", "oxide"):
            for _ in range(60):  # again after each kernel that ends the process
                path.write_bytes(pickle.dumps(state))
                environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
                environment.pop("NUMBA_ENABLE_CUDASIM", None)
                if side == "simulator":
                    environment["NUMBA_ENABLE_CUDASIM"] = "1"
                command = [sys.executable, "-m", "benchmarks.foreign_kernels", "--child", side, folder, module]
                ran = subprocess.run(
                    [*command, str(path)], env=environment, capture_output=True, text=True, check=False
                )
                state = pickle.loads(path.read_bytes())
                if ran.returncode == 0:
                    break
                running = state.get("running")
                if running is None:
                    yield {"kernel": "*", "result": "not counted", "why": f"import: {ran.stderr.strip()[-300:]}"}
                    return
                why = f"the {side} ended with status {ran.returncode}: {ran.stderr.strip()[-200:]}"
                state[side][running] = {"error": why}
                state["running"] = None
    for name, simulated in sorted(state.get("simulator", {}).items()):
        if "error" in simulated:
            yield {"kernel": name, "result": "not counted", "why": simulated["error"]}
            continue
        ours = state["oxide"].get(name, {"error": "no such kernel"})
        why = ours.get("error") or difference(simulated["after"], ours["after"])
        plan = {"axis": simulated["plan"][0], "number": simulated["plan"][1], "dtype": simulated["plan"][2]}
        yield {"kernel": name, "result": "wrong" if why else "right", **({"why": why} if why else {}), **plan}


def difference(wanted: list[Any], found: list[Any]) -> str | None:
    """Returns where two lists of arguments differ, or None."""
    for place, (one, other) in enumerate(zip(wanted, found, strict=True)):
        if isinstance(one, np.ndarray) and not np.allclose(one, other, rtol=1e-6, atol=1e-9, equal_nan=True):
            wrong = ~np.isclose(one, other, rtol=1e-6, atol=1e-9, equal_nan=True)
            first = tuple(np.argwhere(wrong)[0])
            return f"argument {place}: {wrong.sum()} of {one.size} differ, at {first} {other[first]} for {one[first]}"
    return None


# In a child process


def run_module(side: str, folder: str, name: str, path: Path) -> None:
    """Runs the kernels of a module on one side, and writes the state after each."""
    state = pickle.loads(path.read_bytes())
    results = state.setdefault(side, {})
    state["running"] = None
    sys.path[:0] = [folder]
    if side == "oxide":
        from oxide import numba_cuda

        numba_cuda.install()
    sys.meta_path.append(Stubs(folder))
    adapt(side, name)
    signal.alarm(3 * SECONDS)  # a program that computes when it is imported is ended
    module = importlib.import_module(name)
    signal.alarm(0)
    for kernel_name, kernel, function in sorted(kernels_of(module), key=lambda found: found[0]):
        if kernel_name in results or (side == "oxide" and "plan" not in state["simulator"].get(kernel_name, {})):
            continue
        state["running"] = kernel_name
        path.write_bytes(pickle.dumps(state))
        if side == "simulator":
            results[kernel_name] = simulated(kernel, function)
        else:
            results[kernel_name] = outcome(kernel, function, state["simulator"][kernel_name]["plan"])
        state["running"] = None
        path.write_bytes(pickle.dumps(state))
    os._exit(0)  # the simulator's threads may hang


def simulated(kernel: Any, function: Any) -> dict[str, Any]:
    """Returns the first plan that the simulator can run and that changes an array, with its result."""
    error, late = "no plan", 0
    names_numba(function)
    for plan in PLANS:
        found = outcome(kernel, function, plan)
        late += found.get("error", "").startswith("TimeoutError")
        if late > 1:
            return {"error": found["error"]}
        if "error" not in found:
            if any(
                not np.array_equal(before, after, equal_nan=True)
                for before, after in zip(found["before"], found["after"], strict=True)
                if isinstance(before, np.ndarray)
            ):
                return found
            error = "no array changed"
        elif error == "no plan":
            error = found["error"]
    return {"error": error}


class _Numba:
    """The package numba, whose ``cuda`` is a global of a module."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names

    def __getattr__(self, name: str) -> Any:
        return self.names["__cuda__"] if name == "cuda" else getattr(importlib.import_module("numba"), name)


def names_numba(function: Any) -> None:
    """Makes ``numba.cuda.grid`` in a kernel mean what ``cuda.grid`` does: the simulator knows only the latter."""
    import numba

    names = function.__globals__
    for name in [name for name, value in names.items() if value is numba]:
        names["__cuda__"] = numba.cuda  # the simulator replaces it during a launch
        names[name] = _Numba(names)


def outcome(kernel: Any, function: Any, plan: tuple[int, int, str]) -> dict[str, Any]:
    """Returns the arguments before and after a launch, or its error."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    warnings.simplefilter("error", np.exceptions.ComplexWarning)  # numba refuses what NumPy warns of
    try:
        arguments, axes = arguments_for(function, plan)
        before = [np.copy(each) if isinstance(each, np.ndarray) else each for each in arguments]
        blocks = min(plan[0], 24) // 8
        grid, block = (blocks,) * axes, (8,) * axes
        kernel[grid, block](*arguments)
        return {"plan": plan, "before": before, "after": list(arguments)}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {str(error).strip()[:300]}"}
    finally:
        signal.alarm(0)


def kernels_of(module: ModuleType) -> Iterator[tuple[str, Any, Any]]:
    """Yields the names, kernels and Python functions of a module's own kernels."""
    for name, value in list(vars(module).items()):
        function = getattr(value, "py_func", None) or getattr(value, "fn", None)
        kind = type(value).__name__
        if (
            kind not in ("Dispatcher", "CUDADispatcher", "FakeCUDAKernel")
            or getattr(function, "__module__", "") != module.__name__
        ):
            continue
        if getattr(value, "_device", False) or returns(function):
            continue
        yield name, value, function


def returns(function: Any) -> bool:
    """Returns whether a function returns a value, as device functions do."""
    return any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(tree_of(function)))


def tree_of(function: Any) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]


def arguments_for(function: Any, plan: tuple[int, int, str]) -> tuple[list[Any], int]:
    """Returns random arguments, the same for a name and a plan in every process, and the axes of the launch."""
    axis, number, kind = plan
    tree = tree_of(function)
    numbers = np.random.default_rng(len(function.__name__) + axis)
    described = uses(tree, function, 0)
    arguments: list[Any] = []
    for name in inspect.signature(function).parameters:
        use = described.get(name, {})
        if use.get("axes"):
            shape = (3 if name in _SMALL else axis,) * use["axes"]
            if use["axes"] == 1 and axis > 24 and name not in _SMALL:
                shape = (axis * axis,)
            if use.get("index"):
                arguments.append(numbers.integers(0, 4, shape))
                continue
            values = numbers.random(shape) * 0.8 + 0.1
            if kind == "complex128":
                plain = len(shape) == 1
                arguments.append(values if plain else values + 1j * numbers.random(shape))
            else:
                arguments.append((values * (9 if kind == "int64" else 1)).astype(kind))
        elif use.get("integer") or name.lower().lstrip("_") in _LENGTHS:
            last = any(word in name for word in ("end", "stop", "max", "last", "high"))
            is_length = name.lower().lstrip("_") in _LENGTHS and not use.get("position")
            arguments.append(min(axis, 24) if is_length else number + 3 * last)
        else:
            arguments.append(0.75)
    text = ast.unparse(tree)
    axes = 3 if "grid(3)" in text or "Idx.z" in text else 2 if "grid(2)" in text or "Idx.y" in text else 1
    return arguments, axes


_SMALL = {"kernel", "mask", "window", "weights"}
_LENGTHS = {
    "n",
    "m",
    "nx",
    "ny",
    "nz",
    "nr",
    "size",
    "length",
    "width",
    "height",
    "rows",
    "cols",
    "nrow",
    "ncol",
    "ntot",
}


def uses(tree: ast.AST, function: Any, depth: int) -> dict[str, dict[str, Any]]:
    """Returns what a function does with its parameters: the number of axes it indexes, whether it counts with them."""
    found: dict[str, dict[str, Any]] = {}

    def of(name: str) -> dict[str, Any]:
        return found.setdefault(name, {})

    def indices(node: ast.AST) -> None:
        """Notes what is used as an index or a length below a node."""
        for part in ast.walk(node):
            if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name):
                of(part.value.id)["index"] = True
            elif isinstance(part, ast.Name):
                of(part.id)["integer"] = True

    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            count, base = 0, node
            while isinstance(base, ast.Subscript):
                part = base.slice
                count += len(part.elts) if isinstance(part, ast.Tuple) else 1
                following = base.value
                if not isinstance(following, ast.Subscript):
                    break
                base = following
            inner = base.value
            if isinstance(inner, ast.Name):
                of(inner.id)["axes"] = max(of(inner.id).get("axes", 0), count)
            elif isinstance(inner, ast.Attribute) and inner.attr in ("shape", "strides"):
                at = node.slice
                if isinstance(inner.value, ast.Name):
                    least = at.value + 1 if isinstance(at, ast.Constant) and isinstance(at.value, int) else 1
                    of(inner.value.id)["axes"] = max(of(inner.value.id).get("axes", 0), least)
            indices(node.slice)
            for part in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
                if isinstance(part, ast.Name):
                    of(part.id)["position"] = True
        elif isinstance(node, ast.For) and isinstance(node.iter, ast.Name):
            of(node.iter.id).setdefault("axes", 1)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in ("shape", "size"):
            of(node.value.id).setdefault("axes", 1)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            target, holder = node.targets[0], node.value.value
            if isinstance(target, ast.Tuple) and isinstance(holder, ast.Name):
                of(holder.id)["axes"] = max(of(holder.id).get("axes", 0), len(target.elts))
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute) and ast.unparse(called.value).endswith("atomic"):
                array, place = node.args[:2]
                if isinstance(array, ast.Name):
                    count = len(place.elts) if isinstance(place, ast.Tuple) else 1
                    of(array.id)["axes"] = max(of(array.id).get("axes", 0), count)
                indices(place)
            elif isinstance(called, ast.Name) and called.id in ("range", "int"):
                for argument in node.args:
                    if called.id == "range":
                        indices(argument)
            elif isinstance(called, ast.Name) and called.id == "len" and isinstance(node.args[0], ast.Name):
                of(node.args[0].id).setdefault("axes", 1)
            elif isinstance(called, ast.Name) and depth < 4:
                inner_function = function.__globals__.get(called.id)
                plain = getattr(inner_function, "py_func", None) or getattr(inner_function, "fn", None)
                if inspect.isfunction(plain):
                    with contextlib.suppress(OSError, SyntaxError):
                        inner_uses = uses(tree_of(plain), plain, depth + 1)
                        for name, argument in zip(inspect.signature(plain).parameters, node.args, strict=False):
                            if isinstance(argument, ast.Name):
                                for key, value in inner_uses.get(name, {}).items():
                                    of(argument.id)[key] = max(of(argument.id).get(key, 0), value)
    # A variable that is assigned from a parameter counts with it.
    for _ in range(3):
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare):
                parts = [node.left, *node.comparators]
                names = [part.id for part in parts if isinstance(part, ast.Name)]
                if any(of(name).get("integer") for name in names):
                    for name in names:
                        of(name)["integer"] = True
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                target = of(node.targets[0].id)
                if isinstance(node.value, ast.Name) and (target.get("axes") or of(node.value.id).get("axes")):
                    source = of(node.value.id)  # another name of an array
                    most = max(target.get("axes", 0), source.get("axes", 0))
                    target["axes"] = source["axes"] = most
                elif (
                    isinstance(node.value, ast.Subscript)
                    and isinstance(node.value.value, ast.Name)
                    and target.get("axes")
                ):  # a row of an array
                    part = node.value.slice
                    count = len(part.elts) if isinstance(part, ast.Tuple) else 1
                    row = of(node.value.value.id)
                    row["axes"] = max(row.get("axes", 0), count + target["axes"])
                if target.get("integer"):
                    value = node.value
                    if isinstance(value, ast.BinOp | ast.Name | ast.Subscript):
                        indices(value)
    return found


_OPTIONAL = {"mpi4py"}  # packages do without


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes a stub of each package that is not installed and that a module below ``folder`` imports."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.join(folder, "")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in _OPTIONAL:
            return None
        if "." in name:
            if not isinstance(sys.modules.get(name.rpartition(".")[0]), Stub):
                return None
        else:
            frame = inspect.currentframe()
            while frame is not None and (
                frame.f_code.co_filename == __file__ or frame.f_code.co_filename.startswith("<frozen importlib")
            ):
                frame = frame.f_back
            if frame is None or not frame.f_code.co_filename.startswith(self.folder):
                return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        made = Stub(spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module: ModuleType) -> None:
        pass


class Stub(ModuleType):
    """A module whose every name is a mock. It can be called: a name may be a module's and a function's, as dask's
    ``delayed``."""

    __version__ = "13.0.0"

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return MagicMock()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        made = MagicMock(name=f"{self.__name__}.{name}")
        if name[:1].isupper() or name == "ndarray":
            made = type(name, (), {"__class_getitem__": classmethod(lambda cls, item: cls)})
        setattr(self, name, made)
        return made


def adapt(side: str, name: str) -> None:
    """Makes a package's own decorator for kernels that of numba.cuda's."""
    if name.startswith("fbpic."):
        from numba import cuda

        if side == "simulator":
            type(cuda.gpus[0]._device).name = "simulator"  # fbpic reads it when it is imported
        module = importlib.import_module("fbpic.utils.cuda")
        module.compile_cupy = cuda.jit  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
