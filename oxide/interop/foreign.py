"""Kernels of other compilers as operations: PTX, cubins, fatbins and CUDA C++.

``module`` takes the code. ``In``, ``Out`` and ``InOut`` declare what a launch does with a box. With these declarations
the runtime orders and captures the launch, and keeps its boxes alive, as for a launch of an oxide kernel. Nothing
checks the accesses of a foreign kernel, and it reports no faults: an access outside its memory breaks the device's
context (``DeviceLostError``).
"""

from __future__ import annotations

import os
import re
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np

from oxide.driver.base import BINARY_MAGIC, Code, Target
from oxide.driver.ptx_parameters import KernelParameter, entries, kernel_parameters
from oxide.errors import ArgumentError, CompileError, LaunchError
from oxide.host.messages import byte_count, written
from oxide.runtime.awaiting.loading import announce, ready_function
from oxide.runtime.devices.runtime import Device, current_runtime
from oxide.runtime.launching.launch_config import LaunchConfig, bracketed
from oxide.runtime.memory.addresses import DevicePointer
from oxide.runtime.memory.allocation import Allocation
from oxide.runtime.memory.memory import Arc, DeviceBox, require_device
from oxide.runtime.operations.operation import Depiction, DeviceOperation, OfArguments, Spec, consume, spec_of
from oxide.runtime.submission.submission import ExecutionContext

_POINTER_BYTES = 8
_NVRTC_FROM = "install it with pip install 'oxide-gpu[nvrtc]', or pass PTX or a cubin that nvcc made"


class _Declared:
    """A pointer argument of a foreign kernel: a box, an ``Arc`` of a box, a ``DevicePointer``, or an operation that
    yields one of these."""

    __slots__ = ("given",)

    reads = writes = False

    def __init__(self, given: DeviceBox | Arc[DeviceBox] | DevicePointer | DeviceOperation[Any]) -> None:
        if not isinstance(given, DeviceOperation):
            _memory(given, type(self).__name__)
        self.given = given

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.given!r})"


@final
class In(_Declared):
    """Declares that a foreign kernel reads a box and does not write it."""

    __slots__ = ()
    reads = True


@final
class Out(_Declared):
    """Declares that a foreign kernel writes a box."""

    __slots__ = ()
    writes = True


@final
class InOut(_Declared):
    """Declares that a foreign kernel reads and writes a box."""

    __slots__ = ()
    reads = writes = True


def module(source: str | bytes | os.PathLike[str], options: Mapping[str, Any] | None = None) -> ForeignModule:
    """Returns the kernels of foreign code: ``oxide.module(source)["name"]``.

    ``source`` is the text of PTX or of CUDA C++, the bytes of PTX, of a cubin or of a fatbin, or the ``Path`` of a file
    with one of these. CUDA C++ is compiled by NVRTC (``pip install 'oxide-gpu[nvrtc]'``) for the architecture of the
    default device, when its first kernel is requested. ``options`` are fields of cuda.core's ``ProgramOptions``, such
    as ``{"std": "c++20", "include_path": "/usr/local/include"}``.

    Raises ``TypeError`` for another kind of source, and for ``options`` with code that is compiled already. Raises
    ``ValueError`` for an empty source.
    """
    is_text = not isinstance(source, (bytes, bytearray, memoryview))
    if isinstance(source, os.PathLike):
        source = Path(source).read_bytes()
    if isinstance(source, str):
        image = source.encode()
    elif isinstance(source, (bytes, bytearray, memoryview)):
        image = bytes(source)
    else:
        raise TypeError(
            f"oxide.module: the source is {written(source)}; it must be PTX, a cubin, a fatbin or CUDA C++, as text, "
            f"as bytes or as the Path of a file"
        )
    if not image.strip():
        raise ValueError("oxide.module: the source is empty")
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"oxide.module: options are {written(options)}; they must be a dict of ProgramOptions' fields")
    if image.startswith(BINARY_MAGIC):
        kind = "binary"
    else:
        try:
            text = image.decode().rstrip("\0")
        except UnicodeDecodeError:
            raise TypeError("oxide.module: the source is neither text nor a cubin nor a fatbin") from None
        if re.fullmatch(r"\S+\.(cu|ptx|cubin|fatbin)", text):
            raise TypeError(f"oxide.module: {text!r} is the name of a file; pass pathlib.Path({text!r}) to read it")
        kind = "ptx" if re.search(r"^\s*\.version\s", text, re.MULTILINE) else "c++"
    if kind == "c++" and not is_text:
        raise TypeError(
            f"oxide.module: {byte_count(len(image))} are neither PTX nor a cubin nor a fatbin; pass CUDA C++ as text"
        )
    if options and kind != "c++":
        raise TypeError(f"oxide.module: options are for CUDA C++, and this is {'PTX' if kind == 'ptx' else 'a binary'}")
    return ForeignModule(image, kind, dict(options or {}))


@final
class ForeignModule:
    """Foreign code with its kernels by name. It is loaded on a device when the first of its kernels runs there. It is
    unloaded once the module and all its kernels have been dropped."""

    def __init__(self, image: bytes, kind: str, options: dict[str, Any]) -> None:
        self.reference = weakref.ref(self)  # the key of the loaded code, as a specialization has one
        self._announced = False
        self._kind = kind
        self._options = options
        self._image = image
        self._ptx = image.decode().rstrip("\0") if kind == "ptx" else ""
        self._compiled: dict[str, tuple[bytes, str]] = {}  # of CUDA C++: the cubin and the PTX, by architecture

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ForeignModule cannot be pickled or copied; oxide.module(code) makes another")

    def __getitem__(self, name: str) -> ForeignKernel:
        """Returns a kernel. A kernel of CUDA C++ without ``extern "C"`` is found by its plain name, too.

        Raises ``KeyError``, which lists the module's kernels, for a name that it does not have, and ``CompileError``
        for CUDA C++ that NVRTC refuses. The names in a binary are known only once it is loaded: a launch raises
        ``LaunchError`` for a name that the binary does not have.
        """
        if not isinstance(name, str):
            raise TypeError(f"a kernel's name is a str, not {written(name)}")
        ptx = self.ptx()
        return ForeignKernel(self, name if not ptx else self._found(name, entries(ptx)))

    @property
    def names(self) -> list[str]:
        """Returns the names of the kernels. The list is empty where the names are not known: for a binary, and for CUDA
        C++ without a CUDA device."""
        return entries(self.ptx())

    def ptx(self) -> str:
        """Returns the code as PTX; "" for a binary, and for CUDA C++ without a CUDA device."""
        if self._kind != "c++":
            return self._ptx
        runtime = current_runtime()
        if runtime.driver.name != "cuda":
            return ""
        return self._for(runtime.default_device.info.target)[1]

    def code(self, target: Target) -> Code:
        """Returns the code for a device's target."""
        image = self._for(target)[0] if self._kind == "c++" else self._image
        return Code(target, "oxide.module", image, foreign=True)

    def has_code(self, target: Target) -> bool:
        """Returns whether ``code`` takes no time: only CUDA C++ is compiled, once for each architecture."""
        return self._kind != "c++" or target.arch in self._compiled

    def announce(self) -> None:
        """Records that a launch of one of the kernels was built. When a task first awaits an operation after this, the
        code is loaded in a thread before the submission."""
        if not self._announced:
            self._announced = True
            announce(self)

    def _for(self, target: Target) -> tuple[bytes, str]:
        found = self._compiled.get(target.arch)
        if found is None:
            found = self._compiled[target.arch] = _compiled(self._image.decode(), target.arch, self._options)
        return found

    @staticmethod
    def _found(name: str, names: list[str]) -> str:
        if name in names:
            return name
        mangled = [each for each in names if re.match(rf"_Z{len(name)}{re.escape(name)}(?![0-9])", each)]
        if len(mangled) == 1:
            return mangled[0]
        there = ", ".join(names) or "none"
        several = f"; {', '.join(mangled)} are all called that" if mangled else ""
        raise KeyError(f"the module has no kernel {name!r}; there are: {there}{several}")

    def __repr__(self) -> str:
        what = {"binary": "binary", "ptx": "PTX", "c++": "CUDA C++"}[self._kind]
        return f"<oxide.module of {what}, {byte_count(len(self._image))}>"


def _compiled(source: str, arch: str, options: Mapping[str, Any]) -> tuple[bytes, str]:
    """Returns the code as a cubin for an architecture such as ``sm_90``, and as PTX. The PTX is only read for the types
    of the parameters. The cubin is loaded, because a driver that is older than NVRTC refuses NVRTC's PTX.

    Raises ``CompileError`` with NVRTC's log for code that does not compile, and if NVRTC is not installed. Raises
    ``TypeError`` for unknown options.
    """
    try:
        from cuda.core import Program, ProgramOptions
    except ImportError as error:
        raise CompileError(
            f"CUDA C++ is compiled by NVRTC through cuda.core, which is missing: {_NVRTC_FROM}"
        ) from error
    given = {"std": "c++17", **options}
    try:
        made = ProgramOptions(**{"arch": arch, **given})
    except TypeError as error:
        raise TypeError(f"oxide.module: options are fields of cuda.core's ProgramOptions: {error}") from error
    try:
        program = Program(source, "c++", made)
    except Exception as error:
        if type(error).__name__ == "DynamicLibNotFoundError":
            raise CompileError(f"CUDA C++ is compiled by NVRTC, which is not installed: {_NVRTC_FROM}") from error
        raise CompileError(f"CUDA C++: {error}") from error
    try:
        cubin = bytes(program.compile("cubin").code)
        with warnings.catch_warnings():  # that the driver could not load this PTX: it is never loaded
            warnings.simplefilter("ignore")
            return cubin, bytes(program.compile("ptx").code).decode().rstrip("\0")
    except Exception as error:
        raise CompileError(f"CUDA C++ for {arch} was refused by NVRTC: {error}") from error
    finally:
        program.close()


@final
class ForeignKernel:
    """A kernel of a ``module``. ``kernel[grid, block](In(x), Out(y), 3)`` makes a launch of it."""

    __slots__ = ("module", "name")

    def __init__(self, module: ForeignModule, name: str) -> None:
        self.module = module
        self.name = name

    def __getitem__(self, config: LaunchConfig | tuple[Any, Any]) -> ConfiguredForeign:
        """Returns the kernel with a launch configuration: a ``LaunchConfig``, or a grid and a block. Raises
        ``LaunchError`` for any other configuration."""
        return ConfiguredForeign(self, bracketed(self.name, config))

    def __call__(self, *_: object) -> NoReturn:
        raise LaunchError(
            f"kernel {self.name} was launched without a grid and block: write {self.name}[grid, block](…)"
        )

    def __repr__(self) -> str:
        return f"<foreign kernel {self.name}>"


@final
class ConfiguredForeign:
    """A foreign kernel with its launch configuration. Calling it makes the launch operation."""

    __slots__ = ("_config", "_kernel")

    def __init__(self, kernel: ForeignKernel, config: LaunchConfig) -> None:
        self._kernel = kernel
        self._config = config

    def __call__(self, *arguments: Any) -> ForeignLaunch:
        """Returns an operation that launches the kernel. It yields the tuple of its arguments, with the box itself in
        place of its ``In``, ``Out`` or ``InOut``.

        For a pointer, pass an ``In``, ``Out`` or ``InOut``. For a number, pass a NumPy scalar, such as ``f32(2.0)``, or
        a Python number, which is converted to the parameter's type. Raises ``LaunchError`` on a device other than a
        CUDA device. Raises ``ArgumentError`` for a wrong number, size or kind of arguments: for PTX and CUDA C++ here;
        for a binary, whose parameters are known once it is loaded, when the operation runs and before the launch is
        submitted.
        """
        return ForeignLaunch(self._kernel, self._config, arguments)


@final
class ForeignLaunch(OfArguments[tuple[Any, ...]]):
    """A launch of a foreign kernel. Yields the tuple of its arguments, in order."""

    def __init__(self, kernel: ForeignKernel, config: LaunchConfig, arguments: tuple[Any, ...]) -> None:
        given = [argument.given if isinstance(argument, _Declared) else argument for argument in arguments]
        consume(given)
        self._kernel = kernel
        self._called = kernel.name
        self._config = config
        self._declared = arguments
        _require_cuda(kernel, current_runtime().driver.name)
        for number, argument in enumerate(arguments):
            if not isinstance(argument, (_Declared, int, float, np.generic)):
                raise ArgumentError(f"{self._named(number)} is {written(argument)}; {_hint(argument)}")
        ptx = kernel.module.ptx()
        # Read from the PTX: a cubin does not tell which parameters are floating-point numbers.
        self._parameters = kernel_parameters(ptx, kernel.name) if ptx else None
        if self._parameters is not None:
            self._check(self._parameters)
        kernel.module.announce()
        super().__init__(*given)

    def submit(self, context: ExecutionContext, *arguments: Any) -> tuple[Any, ...]:
        kernel, config, device = self._kernel, self._config, context.device
        _require_cuda(kernel, device.kind)
        loaded = ready_function(kernel.module, device)
        name = self._name_in(loaded.kernels)
        parameters = self._parameters
        if parameters is None:
            parameters = loaded.parameters[name]
            self._check(parameters)
        reads: list[Allocation] = []
        writes: list[Allocation] = []
        params = bytearray(max([each.offset + each.nbytes for each in parameters], default=0))
        for number, (parameter, declared, given) in enumerate(zip(parameters, self._declared, arguments, strict=True)):
            pointer = isinstance(declared, _Declared)
            word = self._pointer(number, given, device, reads, writes) if pointer else _number_bytes(parameter, given)
            assert word is not None
            params[parameter.offset : parameter.offset + parameter.nbytes] = word
        context.launch(
            kernel.name,
            loaded.kernels[name],
            config._grid,
            config._block,
            config._shared_mem_bytes,
            bytes(params),
            reads,
            writes,
        )
        return arguments

    def _pointer(
        self, number: int, given: object, device: Device, reads: list[Allocation], writes: list[Allocation]
    ) -> bytes:
        """Returns a pointer argument as bytes. Adds its memory to ``reads``, to ``writes`` or to both."""
        argument, what = self._declared[number], self._named(number)
        memory = _memory(given, f"{what}, {type(argument).__name__}")
        if isinstance(memory, DevicePointer):
            memory = DeviceBox(memory._allocation, (memory.nbytes,), np.dtype(np.uint8), memory._offset)
        require_device(memory, device, what)
        if argument.reads:
            reads.append(memory._allocation)
        if argument.writes:
            writes.append(memory._allocation)
        return memory.ptr.to_bytes(_POINTER_BYTES, "little")

    def _name_in(self, names: dict[str, Any]) -> str:
        try:
            return ForeignModule._found(self._kernel.name, list(names))
        except KeyError as error:
            raise LaunchError(str(error.args[0])) from None

    def _check(self, parameters: tuple[KernelParameter, ...]) -> None:
        """Raises ``ArgumentError`` if the arguments do not fit the parameters."""
        count = len(parameters)
        if len(self._declared) != count:
            raise ArgumentError(
                f"kernel {self._kernel.name} takes {count} argument{'s' * (count != 1)}, got {len(self._declared)}"
            )
        for number, (parameter, argument) in enumerate(zip(parameters, self._declared, strict=True)):
            if isinstance(argument, _Declared):
                if parameter.nbytes != _POINTER_BYTES or parameter.kind == "float":
                    raise ArgumentError(
                        f"{self._named(number)} is {type(argument).__name__}(…), a pointer of 8 bytes; the parameter "
                        f"is {_described(parameter)}"
                    )
            elif _number_bytes(parameter, argument) is None:
                raise ArgumentError(
                    f"{self._named(number)} is {written(argument)}, of type {type(argument).__name__}; the parameter "
                    f"is {_described(parameter)}, so pass a number that fits it, such as {_example(parameter)}"
                )

    def _named(self, number: int) -> str:
        return f"kernel {self._kernel.name}, argument {number + 1}"

    def spec(self) -> Spec:
        return tuple([spec_of(argument) for argument in self._arguments])

    def depict(self) -> Depiction:
        size = f"grid {self._config.grid}, block {self._config.block}"
        inputs = [(type(each).__name__, each.given) for each in self._declared if isinstance(each, _Declared)]
        return "launch", self._kernel.name, (size,), tuple(inputs)

    def __repr__(self) -> str:
        return f"<oxide operation launch of foreign kernel {self._kernel.name}>"


def _require_cuda(kernel: ForeignKernel, kind: str) -> None:
    if kind != "cuda":
        raise LaunchError(
            f"kernel {kernel.name} is foreign code for CUDA devices, and the runtime's devices are {kind} devices: run "
            f"it where there is a GPU, with OXIDE_DEVICE=cuda or unset, or write it as an oxide kernel, which runs on "
            f"both"
        )


def _memory(given: object, what: str) -> DeviceBox | DevicePointer:
    """Returns the box or pointer. Raises ``ArgumentError`` for anything else, and for a strided view."""
    inner = given.value if isinstance(given, Arc) else given
    if isinstance(inner, DevicePointer):
        return inner
    if not isinstance(inner, DeviceBox):
        hint = "; h2d copies a host array to the device" if isinstance(inner, np.ndarray) else ""
        hint = hint or ("; pick one with first(), last() or unzip()" if isinstance(inner, tuple) else "")
        raise ArgumentError(
            f"{what} takes a DeviceBox, an Arc of one, a DevicePointer or an operation that yields one, not "
            f"{type(inner).__name__}{hint}"
        )
    if not inner.is_contiguous:
        raise ArgumentError(
            f"{what}: the box of shape {inner.shape} is a strided view, and a foreign kernel gets only an address; "
            f"pass dup(view), or the whole box and the strides as numbers"
        )
    return inner


def _hint(argument: object) -> str:
    if isinstance(argument, (DeviceBox, Arc, DevicePointer, DeviceOperation)):
        return "a foreign kernel must declare what it does with it: wrap it in In, Out or InOut"
    if isinstance(argument, np.ndarray):
        return "pass h2d(array), wrapped in In, Out or InOut"
    return "a foreign kernel takes In, Out and InOut of boxes, NumPy scalars and Python numbers"


def _number_bytes(parameter: KernelParameter, number: Any) -> bytes | None:
    """Returns a number as the bytes of a parameter, None if it does not fit. A NumPy scalar must have the parameter's
    size, and also its kind if the code declares the kind. A Python number is converted to the declared kind. If the
    code declares none, an int is passed as an integer and a float as a floating-point number."""
    size, kind = parameter.nbytes, parameter.kind
    if isinstance(number, np.generic) and type(number) is not np.float64:
        is_float = number.dtype.kind == "f" or number.dtype.isbuiltin == 2
        wrong = (kind == "float" and not is_float) or (kind == "integer" and is_float)
        return None if number.dtype.itemsize != size or wrong or number.dtype.hasobject else number.tobytes()
    if isinstance(number, np.float64):
        return number.tobytes() if size == 8 and kind != "integer" else None
    if isinstance(number, float) or kind == "float":
        if kind == "integer" or size not in (2, 4, 8):
            return None
        try:
            with np.errstate(over="ignore"):
                made = np.dtype(f"f{size}").type(number)
        except OverflowError:
            return None
        if np.isinf(made) and abs(number) != np.inf:
            return None
        return bytes(made.tobytes())
    if size > 8 or not -(1 << (8 * size - 1)) <= number < 1 << (8 * size):
        return None
    return int(number % (1 << (8 * size))).to_bytes(size, "little")


def _described(parameter: KernelParameter) -> str:
    what = {"integer": "an integer", "float": "a number of floating point", "bits": "a value"}[parameter.kind]
    return f"{what} of {byte_count(parameter.nbytes)}"


def _example(parameter: KernelParameter) -> str:
    if parameter.nbytes not in (2, 4, 8):
        return f"a NumPy scalar of {byte_count(parameter.nbytes)}"
    bits = 8 * parameter.nbytes
    return {"integer": f"i{bits}(1)", "float": f"f{bits}(1.0)", "bits": f"i{bits}(1) or f{bits}(1.0)"}[parameter.kind]
