"""Fingerprints of kernels: two kernels with the same fingerprint compile to the same code.

A fingerprint is computed without numba and LLVM, since a program whose kernels are all in the cache imports neither.
Therefore a fingerprint may cover more than the code depends on, but never less. It covers:

- the kernel's bytecode and source, with file and line (a fault names them), its options and its parameters' types. A
  notebook gives a cell another file name in each session. So cells are hashed by number, and ``Fingerprint.cells`` has
  their file names;
- the values of the globals and closure variables that the kernel's code names, and the values that these reach in turn,
  such as device functions and their constants. Of a module, only the attributes that the code may name are hashed;
- the compiler: the source of this package, of ``oxide.language`` and of the records that compiled code shares with the
  driver, the versions of Python, NumPy, numba, numba-cuda and llvmlite, and numba's settings in the environment.

Some objects are hashed by name alone, because the hashed versions determine their content: the types of numba, and each
object that a module of Python, NumPy, numba or oxide holds under the object's own name. A kernel that reaches a value
of an unknown kind has no fingerprint and is compiled in every process.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import enum
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple, TypeVar, final, get_args, get_origin

import numpy as np

from oxide import errors
from oxide.compiler.declaration.description import KernelDescription
from oxide.compiler.ptx import libdevice
from oxide.compiler.signature.device_function import DeviceFunction, plain_function
from oxide.compiler.signature.signature import Closed, Lifted
from oxide.compiler.signature.untyped_arguments import captured
from oxide.compiler.source.source import EMPTY, as_written, closure_values, lines_of
from oxide.driver import records
from oxide.errors import cell_of
from oxide.host import disk
from oxide.language.structures import is_structure, structure_of
from oxide.language.tile import Function as TileFunction
from oxide.language.tile import Word as TileWord
from oxide.language.types import ScalarType
from oxide.language.vectors import Vector, VectorType

__all__ = ["Fingerprint", "Unknown", "cell_label", "environment", "fingerprint", "source_text"]


class Unknown(Exception):
    """Raised for a value that the kernel reaches and that cannot be hashed. The message names the value."""


class Fingerprint(NamedTuple):
    """A kernel's fingerprint. ``cells`` has the file names of the notebook cells that contain its functions, in the
    order of the cells' numbers."""

    text: str
    cells: tuple[str, ...]


def fingerprint(kernel: KernelDescription, parameters: tuple[Closed, ...]) -> Fingerprint:
    """Returns the fingerprint of a kernel for some parameter types. Raises ``Unknown`` if the kernel reaches a value
    that cannot be hashed, and ``OSError`` if the compiler's source cannot be read."""
    text = _Text()
    text.add("environment", *environment())
    _add_kernel(text, kernel, parameters)
    return Fingerprint(text.digest(), tuple(text.cells))


def _add_kernel(text: _Text, kernel: KernelDescription, parameters: tuple[Closed, ...]) -> None:
    for parameter in parameters:
        text.add("parameter", parameter.name, parameter.kind, parameter.identity)
        if isinstance(parameter.lifted, Lifted):
            text.value(parameter.lifted.function, ())
    # A field is hashed unless the description says otherwise, so that no option can be forgotten here.
    for option in dataclasses.fields(kernel):
        if not option.metadata:
            value = getattr(kernel, option.name)
            if _is_plain(value):
                text.add("option", option.name, repr(value))
            else:
                text.add("option", option.name)
                text.value(value, ())
    for contract in kernel.contracts:
        text.add("contract", contract.text)
    if kernel.fusion is not None:
        text.add("fusion", *kernel.fusion.bindings)
        for special in kernel.fusion.sources:
            text.add("stage", special.kernel.name)
            _add_kernel(text, special.description, special.parameters)
    text.function(kernel.function)


@functools.cache
def environment() -> tuple[str, ...]:
    """Returns the part of a fingerprint that is the same for all kernels: the compiler's source, the versions of its
    packages, and numba's settings. Raises ``OSError`` if a source file cannot be read."""
    package = os.path.join(os.path.dirname(os.path.abspath(errors.__file__)), "compiler")
    sources: list[str | bytes] = []
    paths = [os.path.abspath(records.__file__)]
    for root in (package, os.path.join(os.path.dirname(package), "language")):
        paths += sorted(_sources(root))
    above = os.path.join(os.path.dirname(package), "")
    for path in paths:
        with open(path, "rb") as file:
            sources += [path.removeprefix(above), file.read()]
    if not sources:
        raise Unknown("the compiler's source cannot be read")
    versions = [disk.version_text(name) for name in ("numba", "numba_cuda", "llvmlite")]
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("NUMBA_"))
    return disk.digest(sources), sys.version, np.__version__, libdevice.identity(), *versions, *settings


def _sources(root: str) -> Iterator[str]:
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _sources(entry.path)
            elif entry.name.endswith((".py", ".ll")):
                yield entry.path


_PLAIN = (type(None), bool, int, float, str)


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(_is_plain(item) for item in value))


@final
class _Text:
    """Hashes a sequence of items, each preceded by its length, so that different sequences give different digests."""

    def __init__(self) -> None:
        self._hash = disk.blake2b(digest_size=20)
        self._seen: dict[tuple[int, tuple[str, ...]], int] = {}
        self._kept: list[Any] = []  # keeps values alive, so that no other object gets their id
        self.cells: dict[str, int] = {}  # the number of each cell's file
        self._path: list[str] = []  # the names that lead from the function to the value, for ``Unknown``

    def digest(self) -> str:
        return self._hash.hexdigest()

    def add(self, *items: str | bytes) -> None:
        self._hash.update(len(items).to_bytes(4, "little"))
        for item in items:
            data = item.encode("utf-8", "surrogatepass") if isinstance(item, str) else item
            self._hash.update(len(data).to_bytes(8, "little"))
            self._hash.update(data)

    def function(self, function: Callable[..., Any]) -> None:
        """Adds a Python function and all that it reaches."""
        if self._again(function):
            return
        outer, self._path = self._path, []
        function = as_written(function)
        code: CodeType = function.__code__
        text = source_text(function)
        self.add("function", str(function.__module__), function.__qualname__, text)
        for name, value in sorted(function.__globals__.items()):
            if isinstance(value, ScalarType) and name in text:  # bytecode has no annotations of local variables
                self.add("annotation", name, value.name)
        self._code(code)
        for name, kind in sorted(getattr(function, "__annotations__", {}).items()):
            self._annotation(name, kind)
        defaults = (function.__defaults__ or ()) + tuple(sorted((function.__kwdefaults__ or {}).items()))
        self.value(defaults, ())
        attributes = tuple(sorted(set(_names(code, attributes=True))))
        for name, content in closure_values(function):
            self.add("closure", name)
            if content is EMPTY:
                self.add("empty")
            else:
                self._named(name, content, attributes)
        names = function.__globals__
        for name in sorted(set(_names(code, attributes=False))):
            self.add("global", name)
            if name in names:
                self._named(name, names[name], attributes)
            else:
                self.add("builtin" if hasattr(builtins, name) else "missing")
        self._path = outer

    def value(self, value: Any, attributes: tuple[str, ...]) -> None:
        """Adds a value. For a user's module or class, also adds those of its attributes that ``attributes`` names."""
        kind = type(value)
        if kind in _PLAIN or kind in (complex, bytes, type(...)):
            self.add(kind.__name__, repr(value))
        elif isinstance(value, enum.Enum):
            self.add("enum", _name_of(kind), value.name)
            self.value(value.value, attributes)
        elif isinstance(value, tuple | list):
            self._sequence(value, attributes)
        elif isinstance(value, dict):
            self.add("dict", _name_of(kind))
            self._sequence(list(value.items()), attributes, value)
        elif isinstance(value, set | frozenset):
            self.add("set", _name_of(kind))
            self._sequence(sorted(value, key=lambda item: (type(item).__name__, repr(item))), attributes)
        elif kind in (range, slice):
            self.add(kind.__name__)
            self._sequence((value.start, value.stop, value.step), attributes)
        elif isinstance(value, np.ndarray):
            self._array(value)
        elif isinstance(value, np.generic):
            self.add("number", value.dtype.str, value.tobytes())
        elif isinstance(value, np.dtype):
            self.add("dtype", repr(value))
        elif isinstance(value, ScalarType):
            self.add("scalar", value.name)
        elif isinstance(value, VectorType):
            self.add("vectors", value.name)
        elif isinstance(value, Vector):
            self.add("vector", _name_of(kind))
            self._sequence(tuple(value), attributes)
        elif isinstance(value, DeviceFunction):
            self.add("device function", *(f"{name}: {kind!r}" for name, kind in sorted(value.annotations.items())))
            self.function(value.function)
        elif isinstance(value, TileFunction):
            self.add("tile function")
            self.function(value.wrapped)
        elif isinstance(value, TileWord):
            self.add("tile word", value.__name__)
        elif isinstance(value, FunctionType):
            if _is_covered(value.__globals__.get("__name__")):
                self.add("known function", str(value.__module__), value.__qualname__)
            elif (called := plain_function(value)) is not None:
                self.value(called, attributes)
            else:
                self.function(value)
        elif isinstance(value, ModuleType | type):
            self._namespace(value, attributes)
        elif (known := _known_name(value)) is not None:
            self.add("known", known)
        elif isinstance(value, TypeVar):
            self.add("type variable", value.__name__)
            self.value(value.__constraints__, ())
        elif get_origin(value) is not None:
            self.add("alias")
            self.value(get_origin(value), ())
            self.value(get_args(value), ())
        elif isinstance(getattr(value, "py_func", None), FunctionType):  # a dispatcher of numba
            options = getattr(value, "targetoptions", {})
            self.add("compiled function", _name_of(kind), *(f"{k}={v!r}" for k, v in sorted(options.items())))
            self._sequence(_signatures(value), ())
            self.function(value.py_func)
        elif any(base.__name__ == "Type" and _is_covered(base.__module__) for base in kind.__mro__):
            self._numba_type(value)
        elif _is_covered(kind.__module__) and kind.__name__ == "Signature":  # of numba
            self.add("signature")
            self._sequence((value.return_type, *value.args), ())
        elif (fields := _fields(value)) is not None:
            self.add("fields", _name_of(kind))
            self._sequence(fields, attributes, value)
        elif kind.__module__.startswith("oxide."):
            self.add("object", _name_of(kind))  # such as a kernel, which kernels cannot use
        elif captured(value, "") is not None:
            self.add("device array")  # no kernel with one is in the cache
        else:
            raise Unknown(f"{'.'.join(self._path) or 'it'}, an object of type {_name_of(kind)}")

    def _sequence(self, items: Any, attributes: tuple[str, ...], holder: Any = None) -> None:
        """Adds the items of a sequence. ``holder`` is the object that the items were taken from, if it is not the
        sequence. A list or a holder may contain itself, so its items are added only once."""
        if not isinstance(items, tuple) and self._again(items if holder is None else holder, attributes):
            return
        self.add("sequence", _name_of(type(items)), str(len(items)), *getattr(items, "_fields", ()))
        if is_structure(type(items)):
            self.add(structure_of(type(items)).identity)
        for item in items:
            self.value(item, attributes)

    def _numba_type(self, value: Any) -> None:
        """Adds a type of numba's by its name. If it was made from a user's class, adds that class too."""
        if " at 0x" in value.name:
            raise Unknown(f"{'.'.join(self._path) or 'it'}, numba's type {value.name}")
        self.add("numba type", _name_of(type(value)), value.name)
        made_of = getattr(value, "instance_class", None)
        if made_of is not None:
            self.value(made_of, ())

    def _array(self, array: np.ndarray[Any, Any]) -> None:
        if array.dtype.hasobject:
            raise Unknown("an array of Python objects")
        flags = array.flags
        layout = (flags.c_contiguous, flags.f_contiguous, flags.aligned, flags.writeable)
        self.add("array", array.dtype.str, repr(array.dtype), repr(array.shape), repr(layout), array.tobytes())

    def _namespace(self, value: Any, attributes: tuple[str, ...]) -> None:
        is_module = isinstance(value, ModuleType)
        name = value.__name__ if is_module else _name_of(value)
        self.add("module" if is_module else "class", name)
        if _is_covered(name if is_module else value.__module__) or self._again(value, attributes):
            return
        if not is_module and issubclass(value, enum.Enum):
            for member_name, member in value.__members__.items():  # with aliases, which iterating leaves out
                self.add(member_name)
                self.value(member, ())
            return
        if not is_module and issubclass(value, tuple):
            self.add(*getattr(value, "_fields", ()))
            if is_structure(value):
                self.add(structure_of(value).identity)
                self._sequence(tuple(value._field_defaults.values()), ())
                attributes = tuple(name for name in attributes if name not in value._fields)
        for attribute in attributes:
            found = getattr(value, attribute, _ABSENT)  # may come from a base class or a module's __getattr__
            if found is not _ABSENT:
                self.add("attribute", attribute)
                self._named(attribute, found, attributes)

    def _named(self, name: str, value: Any, attributes: tuple[str, ...]) -> None:
        self._path.append(name)
        self.value(value, attributes)
        self._path.pop()

    def _annotation(self, name: str, kind: Any) -> None:
        if (
            kind is None
            or isinstance(kind, str | type)
            or get_origin(kind) is not None
            or isinstance(kind, ScalarType | VectorType)
        ):
            text = kind if isinstance(kind, str) else repr(kind)
            self.add("annotation", name, text)
        else:
            self.add("annotation", name, _name_of(type(kind)))

    def _code(self, code: CodeType) -> None:
        self.add(
            "code", self._file(code.co_filename), code.co_name, code.co_code, code.co_linetable, code.co_exceptiontable
        )
        counts = (code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_firstlineno)
        self.add(*map(str, counts))
        for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
            self.add(*names)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant)
            elif isinstance(constant, frozenset):
                self.add("set", *sorted(map(repr, constant)))
            else:
                self.value(constant, ())

    def _file(self, name: str) -> str:
        if name not in self.cells and cell_of(name) is None:
            return name
        return cell_label(self.cells.setdefault(name, len(self.cells)))

    def _again(self, value: Any, attributes: tuple[str, ...] = ()) -> bool:
        """Returns whether a value was added before. If so, adds only the number that it got the first time."""
        key = (id(value), attributes)
        if key in self._seen:
            self.add("again", str(self._seen[key]))
            return True
        self._seen[key] = len(self._seen)
        self._kept.append(value)
        return False


def cell_label(number: int) -> str:
    """Returns the name that stands, in the cache, for the file of a notebook's cell."""
    return f"<cell {number}>"


_ABSENT = object()


def _known_name(value: Any) -> str | None:
    """Returns the qualified name of a function or instance if a covered module holds it, else None. A module is covered
    if the hashed versions determine its content."""
    owner = getattr(value, "__objclass__", value)
    module = getattr(owner, "__module__", None) or ("numpy" if isinstance(value, np.ufunc) else None)
    held = sys.modules.get(module) if isinstance(module, str) and _is_covered(module) else None
    if held is None:
        return None
    for name in (getattr(value, "__qualname__", None), getattr(value, "__name__", None)):
        if isinstance(name, str) and _reached(held, name) is value:
            return f"{module}.{name}"
    return next((f"{module}.{name}" for name, other in list(vars(held).items()) if other is value), None)


def _reached(holder: Any, name: str) -> Any:
    for part in name.split("."):
        holder = getattr(holder, part, None)
    return holder


def _signatures(dispatcher: Any) -> list[Any]:
    """Returns the explicit signatures of a numba function, to whose types numba converts arguments."""
    return [] if getattr(dispatcher, "_can_compile", True) else list(dispatcher.nopython_signatures)


def _fields(value: Any) -> list[tuple[str, Any]] | None:
    """Returns the fields of a plain record with their values; None for any other object. A plain record is a dataclass,
    a namespace, a ``functools.partial``, or an annotation or layout of oxide's."""
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(kind)]
    if kind.__module__.startswith("oxide.language."):
        return [
            (name, getattr(value, name)) for base in kind.__mro__ for name in getattr(base, "__slots__", ())
        ] or None
    if isinstance(value, SimpleNamespace):
        return sorted(vars(value).items())
    return [("func", value.func), ("args", value.args), ("kw", value.keywords)] if kind is functools.partial else None


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_COVERED = {"oxide", "numpy", "numba", "numba_cuda", "llvmlite", "builtins"}


def _is_covered(module: Any) -> bool:
    """Returns whether the hashed versions determine the content of a module, given by its name."""
    package = str(module).partition(".")[0]
    if package in _COVERED or package in sys.builtin_module_names:
        return package != "__main__"
    if package not in sys.stdlib_module_names:
        return False
    # The name alone does not decide, because a user's package may be called `test`. The folder of the standard library
    # contains site-packages.
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return file.startswith(_LIBRARY) and "-packages" not in file[len(_LIBRARY) :]


_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")


_LOAD_GLOBAL, _EXTENDED_ARG = dis.opmap["LOAD_GLOBAL"], dis.opmap["EXTENDED_ARG"]


def _names(code: CodeType, *, attributes: bool) -> Iterator[str]:
    """Yields the names of the globals that code loads, or with ``attributes``, all names that may be attributes."""
    loaded = set(_globals(code))
    yield from (set(code.co_names) - loaded) if attributes else loaded
    if attributes:
        yield from loaded  # a global's name may also be an attribute's
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant, attributes=attributes)


def _globals(code: CodeType) -> Iterable[str]:
    # dis.get_instructions takes fifty times as long.
    raw, extended = code.co_code, 0
    for at in range(0, len(raw), 2):
        argument = raw[at + 1] | extended
        extended = argument << 8 if raw[at] == _EXTENDED_ARG else 0
        if raw[at] == _LOAD_GLOBAL:
            yield code.co_names[argument >> 1]  # the lowest bit says that a call follows


def source_text(function: Callable[..., Any]) -> str:
    """Returns the text of a function. After the lines of the function's code, the text continues while lines are blank
    or indented deeper than the function's first line. Returns "" if the source cannot be read."""
    code: CodeType = function.__code__
    lines = lines_of(function)
    first = code.co_firstlineno - 1
    last = max((line for _, _, line in code.co_lines() if line is not None), default=first + 1)
    if not 0 <= first < len(lines):
        return ""
    indent = _indent(lines[first])
    while last < len(lines) and (not lines[last].strip() or _indent(lines[last]) > indent):
        last += 1
    return "".join(lines[first:last])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
