"""Compiled kernels on disk: the next process loads no compiler, what changes a kernel is compiled again, and a cache in
any state is survived."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib.util
import linecache
import os
import stat
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numba
import numba.cuda.random
import numpy as np
import pytest

from oxide import CompileError, Kernel, kernel
from oxide.compiler.cache import fingerprint as fingerprints
from oxide.compiler.cache.entries import entry_of
from oxide.compiler.cache.fingerprint import Unknown, fingerprint
from oxide.compiler.kernel import specialization
from oxide.compiler.signature.untyped_arguments import NumberType, identity
from oxide.host import disk
from oxide.runtime.launching.specializing import argument_type_of

ROOT = Path(__file__).parents[3]

MODULE = """
import settings
from oxide import DisjointSlice, Slice, device, f32, i32, kernel, thread

FACTOR = 3.0

@device
def innermost(x: f32):
    return x * f32(FACTOR)

@device
def middle(x: f32):
    return innermost(x)

def make(shift):
    @kernel(block=64)
    def scale(x: Slice[f32], y: DisjointSlice[f32]):
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value = middle(x[i.get()]) + f32(shift) + f32(settings.OFFSET)
    return scale

scale = make(0.25)

@kernel(block=64)
def reach(x: Slice[f32], at: i32, y: DisjointSlice[f32]):
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        element.value = x[at]
"""

PROGRAM = """
import sys
import numpy as np
import kernels
from oxide import BoundsError, h2d, zeros
x = np.arange(100, dtype=np.float32)
result = kernels.scale(h2d(x), zeros(100)).last().to_host().sync()
assert np.array_equal(result, x * 3 + 0.25 + 8), result
assert kernels.scale.__module__ == "kernels"
loaded = {"numba", "numba_cuda", "llvmlite"} & {name.partition(".")[0] for name in sys.modules}
print("compiled" if loaded else "from the cache", *sorted(loaded))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own."""
    monkeypatch.setattr(disk, "_warned", False)
    place = tmp_path / "cache"
    monkeypatch.setenv("OXIDE_CACHE_DIR", str(place))
    return place


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the module ``kernels`` and what it imports."""
    write_module(tmp_path / "kernels.py", MODULE)
    write_module(tmp_path / "settings.py", "OFFSET = 8\nUNUSED = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("adopted", "kernels", "settings"):
        sys.modules.pop(name, None)


def write_module(path: Path, text: str) -> None:
    """Writes a module and removes its bytecode: Python tells that of another text by the size and the time in whole
    seconds alone, and a test writes two of one size within a second."""
    path.write_text(text)
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def run(source: Path, program: str = PROGRAM, **environment: str) -> str:
    """The output of a program that may import ``kernels``, in a process of its own."""
    ran = start(source, program, **environment)
    output, errors = ran.communicate(timeout=120)
    assert ran.returncode == 0, errors
    return output.strip()


def start(source: Path, program: str = PROGRAM, **environment: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join(filter(None, [str(source), str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def load(source: Path, **replaced: str) -> ModuleType:
    """``kernels`` as it is now, after replacements in its text."""
    text = (source / "kernels.py").read_text()
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    return load_text(source, text)


def load_text(source: Path, text: str) -> ModuleType:
    path = source / "kernels.py"
    write_module(path, text)
    linecache.checkcache(str(path))
    linecache.cache.pop(str(path), None)
    importlib.invalidate_caches()
    for name in ("kernels", "settings"):
        sys.modules.pop(name, None)
    spec = importlib.util.spec_from_file_location("kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernels"] = module
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def mark(found: Kernel) -> str:
    return fingerprint(found.description, found.parameters)


def files(cache: Path) -> list[Path]:
    return sorted(cache.iterdir())


# The next process


def test_a_second_process_runs_its_first_kernel_without_numba_and_llvm(source: Path, cache: Path) -> None:
    assert run(source).startswith("compiled llvmlite")
    kept = {path.name: path.read_bytes() for path in files(cache)}
    assert run(source) == "from the cache"
    assert {path.name: path.read_bytes() for path in files(cache)} == kept


def test_code_from_the_cache_knows_the_memory_of_large_arrays(source: Path, cache: Path) -> None:
    text = """
from oxide import DisjointSlice, SharedArray, f32, kernel, thread

@kernel
def large(y: DisjointSlice[f32]):
    values = SharedArray(20_000, f32)
    values[0] = 1.0
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = values[0]
"""
    program = """
import sys
from large import large
from oxide.driver.base import Target
code = large.specialize().code(Target("ptx", "sm_90", "+ptx86"))
print(code.entry, code.array_bytes, b"oxide_dynamic_shared" in code.image, "numba" in sys.modules)
"""
    write_module(source / "large.py", text)
    assert run(source, program) == "large 80000 True True"
    assert run(source, program) == "large 80000 True False"


@pytest.mark.nightly
def test_without_a_cache_every_process_compiles_and_nothing_is_written(source: Path, cache: Path) -> None:
    for _ in range(2):
        assert run(source, OXIDE_CACHE="0").startswith("compiled")
    assert not cache.exists()


@pytest.mark.nightly
def test_the_cache_is_in_the_directory_that_the_environment_names(source: Path, tmp_path: Path) -> None:
    unset = {"OXIDE_CACHE_DIR": "", "HOME": str(tmp_path / "home")}
    run(source, **unset, XDG_CACHE_HOME=str(tmp_path / "xdg"))
    assert files(tmp_path / "xdg" / "oxide")
    run(source, **unset, XDG_CACHE_HOME="")
    place = tmp_path / "home" / ".cache" / "oxide"
    assert files(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(place)} == {0o600}


def test_a_fault_of_a_kernel_from_the_cache_names_its_parameter_file_and_line(source: Path, cache: Path) -> None:
    program = """
import sys
import kernels, numpy as np
from oxide import BoundsError, h2d, zeros
try:
    kernels.reach(h2d(np.zeros(5, np.float32)), 7, zeros(3)).sync()
except BoundsError as fault:
    print(fault.kernel, fault.parameter, fault.index, fault.length, fault.thread[0] < 3, fault.file, fault.line)
    print("numba" in sys.modules)
"""
    line = 1 + next(n for n, text in enumerate(MODULE.split("\n")) if "= x[at]" in text)
    expected = f"reach x 7 5 True {source / 'kernels.py'} {line}"
    assert run(source, program).split("\n") == [expected, "True"]
    assert run(source, program).split("\n") == [expected, "False"]


def test_a_kernel_from_the_cache_answers_what_a_compiled_one_does(source: Path, cache: Path) -> None:
    def answers(found: Kernel) -> list[Any]:
        special = found.specialize()
        return [
            found.checks(), found.ptx(), found.ptx((8, 0)), found.llvm_ir(), found.native_asm(), special.placements,
            special.sites, special.needs, special.kernel_id, special.portable,
        ]  # fmt: skip

    for name in ("scale", "reach"):
        cold, warm = (kernel(block=64)(getattr(load(source), name).function) for _ in range(2))
        asked = answers(cold)
        entry = entry_of(warm.description, warm.parameters)
        assert entry is not None
        assert entry.facts() is not None
        assert answers(warm) == asked


@pytest.mark.nightly
def test_a_kernel_that_does_not_compile_is_refused_by_every_process(source: Path, cache: Path) -> None:
    program = """
import kernels
from oxide import CompileError, kernel
try:
    kernel(deny_checks=True)(kernels.walk).specialize()
except CompileError as error:
    print("denied" if "denies checks" in str(error) else error)
"""
    walk = "\ndef walk(x: Slice[i32], y: DisjointSlice[f32]):\n    at = 0\n    for _ in range(5):\n        at = x[at]\n"
    write_module(source / "kernels.py", MODULE + walk)
    assert [run(source, program) for _ in range(2)] == ["denied", "denied"]
    assert run(source, program.replace("deny_checks=True", "block=1")) == ""
    assert run(source, program) == "denied"


@pytest.mark.nightly
def test_eight_processes_that_compile_the_same_kernel_at_once_all_succeed(source: Path, cache: Path) -> None:
    processes = [start(source) for _ in range(8)]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    assert run(source) == "from the cache"
    assert not [path for path in files(cache) if "writing" in path.name]


ADOPTED = """
import dataclasses
import enum
import math
from functools import partial
from math import sqrt
from operator import add
from typing import NamedTuple
import numba
import numpy as np
from numba import cuda, float32, int32, njit, types
from numba.cuda import grid
from numba.cuda.random import xoroshiro128p_normal_float32, xoroshiro128p_uniform_float32
from oxide.language.atomic import RELAXED
from oxide.language.thread import thread_idx
from oxide import Tiles

class Shape(enum.IntEnum):
    ROUND = 3

class Corner(NamedTuple):
    x: int = 1

@dataclasses.dataclass(frozen=True)
class Settings:
    width: int = 4

class settings:
    size = Settings()
    shape = {"size": [1, 2], "names": {"a", "b"}, "rest": slice(range(3)), "all": ...}
    T = partial(max, Settings())
    x = RELAXED, thread_idx, Tiles(4), np.sum, types.UniTuple(int32, 2), float32(int32)

CORNER = Corner(2)
TYPE = np.dtype(np.float32)
HALF = np.float64(0.5)
LENGTH = 32
element = float32

@cuda.jit
def tile(x):
    shared = cuda.shared.array(LENGTH, float32)
    shared[cuda.threadIdx.x] = x[grid(1)]
    x[grid(1)] = float32(2) * shared[cuda.threadIdx.x]

@cuda.jit
def typed(x):
    mine = cuda.local.array(3, TYPE)
    mine[0] = HALF + np.float32(1.5) + math.pi + sqrt(x[0]) + add(CORNER.x, Shape.ROUND)
    x[0] = element(mine[0])

@cuda.jit
def reaching(x):
    if settings.size == 0:
        x[0] = x.shape[0] + x.T[0]
    x[0] = settings.x

@cuda.jit
def random(states, x):
    x[0] = xoroshiro128p_uniform_float32(states, 0) + xoroshiro128p_normal_float32(states, 0)

def signed(kind):
    @njit
    def double(x):
        return kind(x) + x
    @cuda.jit
    def doubled(x):
        x[0] = double(x[0])
    return doubled

signed = signed(types.float64)
"""

ADOPTING = """
import sys
import adopted
import numpy as np
from oxide import Array, compiler, f32, kernel
from oxide.compiler.kernel import specialization
runs = []
real = specialization._front_end
specialization._front_end = lambda kernel, parameters: runs.append(kernel.name) or real(kernel, parameters)
from numba.cuda.random import xoroshiro128p_dtype
for function in (adopted.tile, adopted.typed, adopted.signed, adopted.random):
    types = {"states": Array[xoroshiro128p_dtype, 1]} if function is adopted.random else {}
    kernel(function).specialize(x=Array[f32, 1], **types).ptx()
print(*runs)
"""


@pytest.mark.nightly
def test_kernels_that_name_types_and_functions_of_numba_are_compiled_in_one_process_alone(
    source: Path, cache: Path
) -> None:
    write_module(source / "adopted.py", ADOPTED)
    assert run(source, ADOPTING) == "tile typed doubled random"
    assert run(source, ADOPTING) == ""


def test_what_a_class_holds_under_a_name_that_the_kernel_uses_elsewhere_is_known(source: Path) -> None:
    write_module(source / "adopted.py", ADOPTED)
    found = kernel(import_module("adopted").reaching)
    parameters = (found.parameters[0].closed(NumberType(np.dtype(np.int64))),)
    assert fingerprint(found.description, parameters) == fingerprint(found.description, parameters)


@pytest.mark.parametrize("on", ["1", "0"])
def test_two_kernels_of_one_function_are_compiled_once(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, on: str
) -> None:
    monkeypatch.setenv("OXIDE_CACHE", on)
    runs = []
    real = specialization._front_end
    monkeypatch.setattr(specialization, "_front_end", lambda *given: runs.append(given) or real(*given))
    function = load(source).scale.function
    texts = {kernel(function).ptx() for _ in range(3)}
    assert (len(runs), len(texts)) == (1, 1)
    kernel(fastmath=True)(function).ptx()
    assert len(runs) == 2
    sys.modules["settings"].OFFSET = 9  # which the next kernel of the function finds
    texts.add(kernel(function).ptx())
    assert (len(runs), len(texts)) == (3, 2)


# What makes a kernel another one


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FACTOR = 3.0", "FACTOR = 3.5"),  # a constant of a device function reached through another
        ("FACTOR = 3.0", "FACTOR = 3  "),
        ("return x * f32(FACTOR)", "return x + f32(FACTOR)"),
        ("return innermost(x)", "return innermost(x + x)"),
        ("def innermost(x: f32)", "def innermost(x)"),
        ("make(0.25)", "make(0.75)"),  # what the closure holds
        ("x: Slice[f32], y: Disj", "x: Slice[i32], y: Disj"),
        ("@kernel(block=64)\n    def", "@kernel(block=64, fastmath=True)\n    def"),
        ("@kernel(block=64)\n    def", "@kernel(block=64, unchecked=True)\n    def"),
        ("@kernel(block=64)\n    def", "@kernel(block=64, max_registers=32)\n    def"),
        ("@kernel(block=64)\n    def", "@kernel(block=64, requires=('len(x) >= len(y)',))\n    def"),
        ("scale = make", "\nscale = make"),  # nothing of the kernel
        ("@device\ndef innermost", "\n@device\ndef innermost"),  # its lines, which faults name
    ],
)
def test_a_change_to_anything_that_a_kernel_reaches_is_another_kernel(source: Path, old: str, new: str) -> None:
    before = mark(load(source).scale)
    assert mark(load(source).scale) == before
    same = old == "scale = make"
    assert (mark(load(source, **{old: new}).scale) == before) == same


def test_what_a_module_of_the_users_holds_counts_if_the_kernel_names_it(source: Path) -> None:
    before = mark(load(source).scale)
    write_module(source / "settings.py", "OFFSET = 8\nUNUSED = 2\n")
    assert mark(load(source).scale) == before
    write_module(source / "settings.py", "OFFSET = 16\nUNUSED = 1\n")
    assert mark(load(source).scale) != before


@pytest.mark.parametrize(
    "text",
    [
        "class Base:\n    OFFSET = {}\n\nclass Derived(Base):\n    pass\n\nOFFSET = Derived\n",
        "class Holder:\n    OFFSET = {}\n\nOFFSET = Holder\n",
        "def __getattr__(name):\n    return {}\n",
        "import enum\n\nclass Kind(enum.IntEnum):\n    ONE = {}\n\nOFFSET = Kind\n",
        "import enum\n\nclass Kind(enum.IntEnum):\n    A = 3\n    B = 4\n    ALIAS = {}\n\nOFFSET = Kind\n",
        "def OFFSET():\n    return {}\n",
    ],
)
def test_what_the_users_classes_and_functions_hold_counts_too(source: Path, text: str) -> None:
    def marked(number: int) -> str:
        write_module(source / "settings.py", text.format(number))
        return mark(load(source).scale)

    before = marked(3)
    assert marked(3) == before
    assert marked(4) != before


def test_a_package_of_the_users_that_is_called_as_one_of_pythons_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fingerprints._is_covered("math")
    assert fingerprints._is_covered("collections.abc")
    assert fingerprints._is_covered("numpy.linalg")
    assert not fingerprints._is_covered("oxide_kernels")
    assert not fingerprints._is_covered("__main__")
    for file in (str(tmp_path / "test" / "__init__.py"), None):
        module = ModuleType("test")
        module.__file__ = file
        monkeypatch.setitem(sys.modules, "test", module)
        assert not fingerprints._is_covered("test.kernels")


@pytest.mark.parametrize("package", ["numba", "numba_cuda", "llvmlite"])
def test_another_version_of_the_compiler_compiles_again(
    source: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    found = load(source).scale
    fingerprints.environment.cache_clear()  # other tests of this process change numba's settings
    before = mark(found)
    real = disk.version_text
    monkeypatch.setattr(disk, "version_text", lambda name: real(name) + ("!" if name == package else ""))
    fingerprints.environment.cache_clear()
    try:
        assert mark(found) != before
    finally:
        monkeypatch.undo()
        fingerprints.environment.cache_clear()
    assert mark(found) == before


def test_another_source_of_the_compiler_python_or_setting_of_numba_compiles_again(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = load(source).scale
    marks = {mark(found)}

    def again() -> None:
        fingerprints.environment.cache_clear()
        marks.add(mark(found))

    try:
        monkeypatch.setenv("NUMBA_OPT", "1")
        again()
        monkeypatch.setattr(sys, "version", sys.version + "+")
        again()
        monkeypatch.setattr(np, "__version__", "2.99")
        again()
        listed = list(fingerprints._sources(str(ROOT / "oxide" / "compiler")))
        monkeypatch.setattr(fingerprints, "_sources", lambda root: iter(listed[1:]))
        again()
    finally:
        monkeypatch.undo()
        fingerprints.environment.cache_clear()
    assert len(marks) == 5


def test_the_versions_are_those_that_the_packages_say() -> None:
    import llvmlite
    import numba
    import numba_cuda

    for package in (llvmlite, numba, numba_cuda):
        assert package.__version__ in disk.version_text(package.__name__)
    assert disk.version_text("no_such_package_as_this") == "none"


class Shape(enum.Enum):
    ROUND = 1
    FLAT = 2


class Corner(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass(frozen=True)
class Settings:
    size: int


def numba_type(value: object) -> Any:
    return numba.types.Dummy(repr(value))


def test_values_that_differ_have_different_texts_and_equal_ones_the_same() -> None:
    from oxide import Array, Slice, Tiles, atomic, device, f32, thread

    def values() -> list[Any]:
        array = np.arange(6.0)
        return [
            None, True, 1, 1.0, -0.0, 0.0, float("nan"), 1j, "1", b"1", (), (1,), ((1,), 2), (1, (2,)), np.float32(1),
            np.float64(1), np.int8(1), np.dtype("f4"), np.dtype("f8"), f32, Slice, Slice[f32], len, abs, np.sqrt,
            thread, thread.index_1d, array, array.astype("f4"), array.reshape(2, 3), array.reshape(3, 2),
            np.asfortranarray(array.reshape(2, 3)), array + 1, device(lambda x: x), device(lambda x: -x), mark,
            list[int], "Ω", 2**70, Shape.ROUND, Shape.FLAT, Shape, Corner(1, 2), Corner, (1, 2),
            numba.float32, numba.float64, numba.float32[:], numba.float32[:, :], numba.types.UniTuple(numba.int8, 2),
            numba.float32(numba.int8), numba.int8(numba.float32), numba.cuda.grid, numba.cuda.gridsize, np.sum, np.prod,
            numba.cuda.random.xoroshiro128p_next, [1], [1, 2], {1: 2}, {1: 3}, {1}, frozenset({1}), range(3), range(4),
            slice(3), Settings(1), Settings(2), SimpleNamespace(size=1), functools.partial(max, 1), ...,
            atomic.RELAXED, atomic.ACQUIRE, thread.thread_idx, thread.block_idx, Tiles(2), Tiles(4), Array[f32, 2],
        ]  # fmt: skip

    def text(value: Any) -> str:
        found = fingerprints._Text()
        found.value(value, ())
        return found.digest()

    first, second = ([text(value) for value in values()] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first)
    for unknown in (object(), [object()], {1: object()}, np.array([object()]), (1, object()), numba_type(object())):
        with pytest.raises(Unknown):
            text(unknown)


def test_a_list_that_holds_itself_has_a_text() -> None:
    def text(number: int) -> str:
        items: list[Any] = [number]
        items.append({"items": items})
        found = fingerprints._Text()
        found.value(items, ())
        return found.digest()

    assert text(1) == text(1) != text(2)


def test_numbas_type_of_the_users_enumeration_counts_its_members() -> None:
    def text(members: dict[str, int]) -> str:
        found = fingerprints._Text()
        found.value(numba.types.IntEnumMember(enum.IntEnum("Kind", members), numba.int64), ())
        return found.digest()

    assert text({"A": 1}) == text({"A": 1}) != text({"A": 2})
    assert text({"A": 1, "B": 2, "C": 1}) != text({"A": 1, "B": 2, "C": 2})  # aliases


def test_the_identity_of_an_enumeration_counts_its_aliases() -> None:
    def text(members: dict[str, int]) -> str:
        return identity(argument_type_of(enum.IntEnum("Kind", members).A))  # type: ignore[attr-defined]

    assert text({"A": 1, "B": 2, "C": 1}) == text({"A": 1, "B": 2, "C": 1}) != text({"A": 1, "B": 2, "C": 2})


def test_a_kernel_that_reaches_a_value_of_an_unknown_kind_is_compiled_in_every_process_and_says_so(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its name is that of a slice's method, so it may be what the kernel means.
    write_module(source / "settings.py", "class Odd:\n    pass\n\nOFFSET = 8\nget_mut = Odd()\n")
    function = load(source).scale.function
    with pytest.raises(Unknown, match="Odd"):
        mark(kernel(function))
    with pytest.warns(RuntimeWarning) as warned:
        kernel(function).specialize()
    (warning,) = warned
    said = (
        "oxide: kernel scale is compiled in every process: it reaches settings.get_mut, an object of type settings.Odd,"
    )
    assert str(warning.message).startswith(said)
    assert (warning.filename, warning.lineno) == (function.__code__.co_filename, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel(function).specialize()  # once for each function
        monkeypatch.setenv("OXIDE_CACHE", "0")
        load(source).scale.specialize()  # there is to be no cache
    assert not cache.exists()


def test_names_are_read_off_bytecode_as_dis_reads_them() -> None:
    import dis

    for function in (load_text, run, fingerprint, subprocess.run, linecache.updatecache):
        code = function.__code__
        expected = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
        assert set(fingerprints._globals(code)) == expected


# A cache in any state


def damaged(content: bytes) -> dict[str, bytes]:
    middle = len(content) // 2
    return {
        "empty": b"",
        "truncated": content[:middle],
        "one byte short": content[:-1],
        "a byte more": content + b"\0",
        "a byte changed": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "of another format": b"oxide cache 0\n" + content[14:],
        "foreign": b"#!/bin/sh\n",
    }


@pytest.mark.nightly
@pytest.mark.parametrize("damage", list(damaged(bytes(20))))
def test_a_damaged_file_is_compiled_again_and_rewritten(source: Path, cache: Path, damage: str) -> None:
    run(source)
    whole = {path: path.read_bytes() for path in files(cache)}
    for path, content in whole.items():
        path.write_bytes(damaged(content)[damage])
    assert run(source).startswith("compiled")
    assert run(source) == "from the cache"
    assert {path: path.read_bytes() for path in files(cache)} == whole


def test_one_file_in_the_place_of_another_is_not_taken_for_it(cache: Path) -> None:
    disk.write("one", b"first")
    (cache / "two.oxide").write_bytes((cache / "one.oxide").read_bytes())
    assert (disk.read("one"), disk.read("two")) == (b"first", None)


@pytest.mark.parametrize("how", ["writable by others", "writable by the group", "a link", "a directory", "a pipe"])
def test_a_file_that_cannot_be_trusted_counts_as_missing(cache: Path, tmp_path: Path, how: str) -> None:
    disk.write("name", b"content")
    path = cache / "name.oxide"
    if how.startswith("writable"):
        path.chmod(0o606 if "others" in how else 0o660)
    else:
        content = path.read_bytes()
        path.unlink()
        if how == "a link":
            (tmp_path / "elsewhere").write_bytes(content)
            path.symlink_to(tmp_path / "elsewhere")
        elif how == "a directory":
            path.mkdir()
        else:
            os.mkfifo(path)
    assert disk.read("name") is None
    if how != "a directory":
        disk.write("name", b"content")
        assert disk.read("name") == b"content"


def test_the_files_and_the_directory_of_another_user_are_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.write("name", b"content")
    real = os.fstat
    with monkeypatch.context() as patch:

        def foreign(descriptor: int) -> os.stat_result:
            found = list(real(descriptor))
            found[stat.ST_UID] = os.geteuid() + 1
            return os.stat_result(found)

        patch.setattr(os, "fstat", foreign)
        assert disk.read("name") is None
    assert disk.read("name") == b"content"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.warns(RuntimeWarning, match="it belongs to user"):
        assert disk.read("name") is None


@pytest.mark.nightly
def test_a_cache_that_is_neither_on_nor_off_is_on_and_warned_about_once(source: Path, cache: Path) -> None:
    process = start(source, OXIDE_CACHE_DIR=str(cache), OXIDE_CACHE="no")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert errors.count("OXIDE_CACHE='no' is neither 0 nor 1, so the cache is on") == 1
    assert any(cache.iterdir())


@pytest.mark.nightly
@pytest.mark.parametrize("state", ["writable by all", "a file", "in a file", "unwritable", "not to be made"])
def test_a_directory_that_cannot_be_used_is_warned_about_once_and_kernels_run(
    source: Path, cache: Path, state: str, tmp_path: Path
) -> None:
    cache.mkdir(mode=0o700)
    place = cache
    if state == "writable by all":
        cache.chmod(0o777)
    elif state == "a file":
        cache.rmdir()
        cache.write_bytes(b"mine")
    elif state == "in a file":
        (cache / "file").write_bytes(b"mine")
        place = cache / "file" / "cache"
    elif state == "not to be made":
        place = Path("/proc/nothing/cache")
    elif os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    else:
        cache.chmod(0o500)
    process = start(source, OXIDE_CACHE_DIR=str(place))
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert output.startswith("compiled")
    assert errors.count("RuntimeWarning") == 1
    assert "OXIDE_CACHE_DIR names another place" in errors
    assert str(place) in errors
    if cache.is_dir():
        cache.chmod(0o700)
        assert {path.name for path in cache.iterdir()} <= {"file"}


def test_a_write_that_fails_leaves_nothing_and_is_warned_about(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        disk.write("name", b"content")
    assert disk.read("name") is None
    assert files(cache) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        disk.write("name", b"content")  # one warning is enough


def test_beyond_the_limit_the_files_used_longest_ago_go(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir(mode=0o700)
    (cache / "notes.txt").write_bytes(bytes(10_000))
    for number in range(10):
        disk.write(f"file{number}", bytes(1000))
        os.utime(cache / f"file{number}.oxide", (number, number))
    (cache / ".oxide-writing-1-2").write_bytes(b"abandoned")
    os.utime(cache / ".oxide-writing-1-2", (1, 1))
    (cache / ".oxide-writing-3-4").write_bytes(b"in the making")
    assert disk.read("file0") == bytes(1000)  # which makes it the one used last
    monkeypatch.setenv("OXIDE_CACHE_LIMIT", "6000")
    disk.write("new", bytes(1000))
    left = {path.name for path in files(cache)}
    assert left == {"file0.oxide", "file8.oxide", "file9.oxide", "new.oxide", "notes.txt", ".oxide-writing-3-4"}
    monkeypatch.setenv("OXIDE_CACHE_LIMIT", "much")
    with pytest.warns(RuntimeWarning, match="OXIDE_CACHE_LIMIT is 'much'"):
        disk.write("new", bytes(1000))
    assert disk.read("new") == bytes(1000)


def test_not_every_write_looks_at_every_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    scandir = os.scandir

    def counted(path: str) -> Any:
        looks.append(path)
        return scandir(path)

    monkeypatch.setenv("OXIDE_CACHE_LIMIT", "640000")
    monkeypatch.setattr(os, "scandir", counted)
    for number in range(8):
        disk.write(f"file{number}", bytes(1000))
    assert len(looks) == 1
    for number in range(700):  # another process's
        (cache / f"theirs{number}.oxide").write_bytes(bytes(1000))
        os.utime(cache / f"theirs{number}.oxide", (1, 1))
    for number in range(4):
        disk.write(f"later{number}", bytes(1000))
    assert len(looks) == 2
    assert sum(path.stat().st_size for path in files(cache)) <= 640000
    for number in range(1000):
        disk.write(f"more{number}", bytes(1000))
    assert sum(path.stat().st_size for path in files(cache)) <= 640000


def test_a_limit_that_python_does_not_read_is_warned_about_and_the_usual_one_holds(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OXIDE_CACHE_LIMIT", "9" * 5000)
    with pytest.warns(RuntimeWarning, match="OXIDE_CACHE_LIMIT is '999") as warned:
        disk.write("name", b"content")
    assert len(str(warned[0].message)) < 200
    assert disk.read("name") == b"content"


def test_a_file_larger_than_the_cache_may_be_is_not_read(cache: Path) -> None:
    disk.write("name", b"content")
    limit = 256 * 1024 * 1024
    with open(cache / "name.oxide", "r+b") as file:
        file.truncate(limit + 1)  # a hole: it takes no room on the disk, and reading it would take memory
    tracemalloc.start()
    try:
        assert disk.read("name") is None
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1_000_000
    disk.write("name", b"content")
    assert disk.read("name") == b"content"


def test_what_is_larger_than_the_cache_may_be_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.write("small", bytes(1000))
    monkeypatch.setenv("OXIDE_CACHE_LIMIT", "6000")
    disk.write("large", bytes(6000))
    assert disk.read("large") is None
    assert disk.read("small") == bytes(1000)


def test_a_cache_that_may_only_be_read_is_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    disk.write("name", b"content")
    os.utime(cache / "name.oxide", (1, 1))
    monkeypatch.setattr(os, "utime", refuse)
    assert disk.read("name") == b"content"


def test_a_kernel_is_compiled_where_its_source_cannot_be_found(cache: Path) -> None:
    names: dict[str, Any] = {}
    exec("from oxide import *\n@kernel\ndef empty(x: Slice[f32]):\n    pass\n", names)
    with pytest.raises(CompileError):
        names["empty"].specialize()
    assert not cache.exists()
