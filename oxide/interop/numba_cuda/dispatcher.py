"""``jit`` of numba.cuda, and the kernels that it makes. A launch is submitted at once, with the kinds of arguments that
numba.cuda takes."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import oxide
from oxide.compiler.kernel.specialization import Specialization
from oxide.errors import DeviceError, LaunchError
from oxide.host.locks import new_lock, unheld
from oxide.host.messages import written
from oxide.interop.numba_cuda.arguments import NUMBERS, HostArguments
from oxide.interop.numba_cuda.device_arrays import DeviceNDArray
from oxide.interop.numba_cuda.devices import get_current_device
from oxide.interop.numba_cuda.streams import Stream, current, resolved

_OPTIONS = {
    "device", "inline", "forceinline", "lineinfo", "fastmath", "max_registers", "extensions", "boundscheck", "fma",
}  # fmt: skip
_UNSERVED = {
    "link": "linking with foreign device code; oxide.module launches foreign kernels",
    "target": "targets other than CUDA",
    "argtypes": "signatures as argtypes; give them as the first argument",
    "restype": "signatures as restype; give them as the first argument",
    "bind": "bind",
}
_IGNORED = {
    "cache", "debug", "opt", "lto", "launch_bounds", "shared_memory_carveout", "nopython", "nogil",
    "no_cpython_wrapper", "no_cfunc_wrapper",
}  # fmt: skip
"""Options that have no effect: oxide has its own cache, always optimises, links nothing, needs no bounds of a launch
ahead of time, and never runs a kernel as a Python function."""


def jit(func_or_sig: Any = None, device: bool = False, **options: Any) -> Any:
    """Makes a kernel of a Python function or, with ``device=True``, a device function. This is numba.cuda's decorator.

    Until the first launch, nothing is compiled and no device is needed, even with explicit signatures. Raises
    ``TypeError`` for unknown options, and ``NotImplementedError`` for options of numba.cuda that oxide does not have.
    """
    for name, value in options.items():
        if name in _UNSERVED:
            if value:
                raise NotImplementedError(f"cuda.jit({name}=): oxide has no {_UNSERVED[name]}")
        elif name not in _OPTIONS | _IGNORED:
            raise TypeError(f"cuda.jit has no option {name}; it has {', '.join(sorted(_OPTIONS | _IGNORED))}")
    if options.get("boundscheck"):
        raise NotImplementedError(
            "bounds checking is not supported for CUDA; OXIDE_SANITIZE=memory checks every access"
        )
    if func_or_sig is None:
        return lambda function: jit(function, device=device, **options)
    kept = {name: value for name, value in options.items() if name not in _IGNORED and name not in _UNSERVED}
    if isinstance(func_or_sig, Dispatcher):
        func_or_sig = func_or_sig.py_func
    from oxide.compiler.frontend.lowering import numba_programs  # loads numba

    if not callable(func_or_sig) or numba_programs.is_signature(func_or_sig):

        def decorate(function: Any) -> Any:
            made = numba_programs.decorated(function, func_or_sig, device, kept)
            return made if device else Dispatcher(made)

        return decorate
    made = numba_programs.decorated(func_or_sig, None, device, kept)
    return made if device else Dispatcher(made)


class Overload:
    """The compiled kernel for the types of one signature. Registers and memory are figures of the GPU that operations
    run on: of the CPU device only the shared memory and the most threads are known, and the others are a
    ``DeviceError``."""

    objectmode = False
    entry_point = None

    def __init__(self, py_func: Any, types: tuple[Any, ...], find: Callable[[], Specialization]) -> None:
        """``find`` returns the specialization for numba's ``types``, and may compile it."""
        self.py_func = py_func
        self.argument_types = types
        self._find = find

    @functools.cached_property
    def specialization(self) -> Specialization:
        """Returns oxide's kernel for these types. Raises ``CompileError`` at the first use."""
        return self._find()

    @property
    def signature(self) -> Any:
        """Returns the types as numba's signature."""
        from oxide.compiler.frontend.lowering.numba_programs import kernel_signature

        return kernel_signature(self.argument_types)

    @property
    def cooperative(self) -> bool:
        """Returns whether the kernel waits for the whole grid."""
        return self.specialization.portable.cooperative

    @property
    def regs_per_thread(self) -> int:
        """Returns the number of registers of a thread."""
        return self.specialization.resources().registers

    @property
    def const_mem_size(self) -> int:
        """Returns the bytes of constant memory."""
        return self.specialization.resources().constant_bytes

    @property
    def local_mem_per_thread(self) -> int:
        """Returns the bytes of local memory of a thread."""
        return self.specialization.resources().local_bytes

    @property
    def shared_mem_per_block(self) -> int:
        """Returns the bytes of static shared memory of a block."""
        if current().kind == "cpu":
            return self.specialization.portable.shared.total
        return self.specialization.resources().shared_bytes

    @property
    def max_threads_per_block(self) -> int:
        """Returns the most threads that a block of the kernel can have."""
        device = current()
        if device.kind == "cpu":
            return device.info.max_threads_per_block
        return self.specialization.resources().max_threads_per_block

    def max_cooperative_grid_blocks(self, blockdim: Any, dynsmemsize: int = 0) -> int:
        """Returns the most blocks of a grid that can wait for the whole grid, given the block's shape in threads and
        its bytes of dynamic shared memory. Returns 0 if not even one block fits."""
        device = current()
        threads = math.prod(blockdim) if isinstance(blockdim, tuple | list) else int(blockdim)
        if threads > self.max_threads_per_block:
            return 0
        if device.kind == "cpu":
            from oxide.driver.cpu.streams import blocks_that_fit

            return blocks_that_fit(threads)
        found = self.specialization.resources(threads, shared_mem_bytes=dynsmemsize)
        return found.blocks_per_multiprocessor * device.info.multiprocessors

    def inspect_llvm(self) -> str:
        """Returns oxide's LLVM IR, which both devices' code is made from."""
        return self.specialization.llvm_ir()

    def inspect_asm(self, cc: tuple[int, int]) -> str:
        """Returns oxide's PTX for a compute capability."""
        return self.specialization.ptx(cc)

    def __repr__(self) -> str:
        return f"<numba_cuda kernel {self.py_func.__name__}{self.argument_types}>"


def _of_each_overload(name: str, what: str) -> Callable[..., Any]:
    def read(self: Dispatcher, signature: Any = None) -> Any:
        return self._of_overloads(operator.attrgetter(name), signature)

    read.__doc__ = f"Returns the {what}, as ``get_regs_per_thread`` returns registers."
    return read


class Dispatcher:
    """A kernel of numba.cuda: ``kernel[grid, block, stream, shared_bytes](...)`` submits a launch at once. A kernel can
    call another kernel as a device function. ``.kernel`` is the ``oxide.Kernel``."""

    def __init__(self, dispatcher: Any) -> None:
        """Wraps a function that numba-cuda has decorated without compiling it."""
        functools.update_wrapper(self, dispatcher.py_func)
        self.numba_dispatcher = dispatcher
        self.py_func = dispatcher.py_func
        self.targetoptions: dict[str, Any] = dispatcher.targetoptions
        self._can_compile: bool = dispatcher._can_compile
        self.specialized = False
        self.specializations: dict[tuple[Any, ...], Dispatcher] = {}
        self._only: Overload | None = None  # of a specialised kernel
        self._kernel: oxide.Kernel | None = None
        self._configured: dict[Any, Configured] = {}
        self._lock = new_lock()

    @property
    def kernel(self) -> oxide.Kernel:
        """Returns the oxide kernel that launches run. Raises ``CompileError`` for a function that cannot be a
        kernel."""
        if self._kernel is None:
            with unheld(self._lock):
                if self._kernel is None:
                    lines = self.targetoptions.get("lineinfo")
                    self._kernel = oxide.kernel(lineinfo=True if lines else None)(self.numba_dispatcher)
        return self._kernel

    @property
    def overloads(self) -> dict[tuple[Any, ...], Overload]:
        """Returns the compiled kernels by the types of their arguments, as numba's types: those of the explicit
        signatures, or else of the launches so far. An array whose elements are not contiguous in C order has the layout
        ``"A"``."""
        if self._only is not None:
            return {self._only.argument_types: self._only}
        types = self.numba_dispatcher.overloads if not self._can_compile else ()
        if types:
            kernel = self.kernel
            named = [dict(zip(self.py_func.__code__.co_varnames, kinds, strict=False)) for kinds in kernel.signatures]
            return {
                each: Overload(self.py_func, each, functools.partial(kernel.specialize, **kinds))
                for each, kinds in zip(types, named, strict=True)
            }
        found = [] if self._kernel is None else list(self._kernel._specializations.values())
        return {each.argument_types: each for each in map(self._overload, found)}

    def _overload(self, special: Specialization) -> Overload:
        from oxide.compiler.frontend.lowering.numba_programs import kernel_types

        return Overload(self.py_func, kernel_types(special.parameters), lambda: special)

    @property
    def nopython_signatures(self) -> list[Any]:
        """Returns the signatures of ``overloads``."""
        return [each.signature for each in self.overloads.values()]

    @property
    def signatures(self) -> list[tuple[Any, ...]]:
        """Returns the argument types of ``overloads``."""
        return list(self.overloads)

    def __getitem__(self, configuration: Any) -> Configured:
        try:
            found = self._configured.get(configuration)
        except TypeError:  # lists do not hash
            return self._configure(configuration)
        if found is None:
            found = self._configure(configuration)
            if not isinstance(found.stream, Stream) or found.stream.is_default:
                if len(self._configured) > _MOST:
                    self._configured.clear()
                self._configured[configuration] = found
        return found

    def _configure(self, configuration: Any) -> Configured:
        if not isinstance(configuration, tuple | list) or not 2 <= len(configuration) <= 5:
            raise ValueError(
                f"kernel {self.py_func.__name__}: the launch configuration is [grid, block], [grid, block, stream] or "
                f"[grid, block, stream, shared_bytes], not {written(configuration)}"
            )
        grid, block, stream, shared = (*configuration, *(0, 0)[len(configuration) - 2 :])[:4]
        return Configured(self, grid, block, stream, shared)

    def configure(self, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0, cluster: Any = None) -> Any:
        """Returns ``self[griddim, blockdim, stream, sharedmem]``."""
        if cluster not in (None, (1, 1, 1), 1):
            raise NotImplementedError("configure(cluster=): declare oxide.kernel(cluster=…) instead")
        return self[griddim, blockdim, stream, sharedmem]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            f"Kernel launch configuration was not specified. Use the syntax:\n\n"
            f"{self.py_func.__name__}[blockspergrid, threadsperblock](<arguments>)"
        )

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Any:
        """Returns a launcher of at least ``ntasks`` threads along x, with ``tpb`` threads a block, 256 by default. For
        0 tasks, returns a function that launches nothing. Raises ``ValueError`` if ``ntasks`` is negative."""
        if ntasks < 0:
            raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
        if ntasks == 0:
            return lambda *args: None
        threads = tpb or 256
        return self[-(-operator.index(ntasks) // threads), threads, stream, sharedmem]

    def specialize(self, *args: Any) -> Dispatcher:
        """Returns the kernel with one overload, which is compiled for the types of ``args``. Raises ``RuntimeError``
        for such a kernel."""
        if self.specialized:
            raise RuntimeError("Dispatcher already specialized")
        hosts = HostArguments(resolved(0).oxide_stream)
        launch: Any = self.kernel[1, 1](*map(hosts.convert, args))
        launch.consume()
        only = self._overload(launch._specialization)
        found = self.specializations.get(only.argument_types)
        if found is None:
            found = self.specializations[only.argument_types] = type(self)(self.numba_dispatcher)
            found._kernel, found._only, found.specialized = self.kernel, only, True
        return found

    def get_regs_per_thread(self, signature: Any = None) -> Any:
        """Returns the registers of a thread for a signature: numba's signature, or a tuple of types. Without one,
        returns a dictionary of all overloads, or a number if the kernel is specialised."""
        return self._of_overloads(lambda overload: overload.regs_per_thread, signature)

    get_const_mem_size = _of_each_overload("const_mem_size", "bytes of constant memory")
    get_shared_mem_per_block = _of_each_overload("shared_mem_per_block", "bytes of static shared memory")
    get_local_mem_per_thread = _of_each_overload("local_mem_per_thread", "bytes of local memory")
    get_max_threads_per_block = _of_each_overload("max_threads_per_block", "most threads of a block")

    def inspect_llvm(self, signature: Any = None) -> Any:
        """Returns oxide's LLVM IR for a signature, or a dictionary of all overloads."""
        return self._of_overloads(Overload.inspect_llvm, signature, listed=True)

    def inspect_asm(self, signature: Any = None) -> Any:
        """Returns oxide's PTX for a signature, or a dictionary of all overloads."""
        cc = get_current_device().compute_capability
        return self._of_overloads(lambda overload: overload.inspect_asm(cc), signature, listed=True)

    def _of_overloads(self, read: Callable[[Overload], Any], signature: Any, *, listed: bool = False) -> Any:
        overloads = self.overloads
        if signature is not None:
            return read(overloads[tuple(getattr(signature, "args", signature))])
        if self.specialized and not listed:
            return read(next(iter(overloads.values())))
        return {types: read(overload) for types, overload in overloads.items()}

    def inspect_types(self, *_: Any, **__: Any) -> Any:
        """Raises ``NotImplementedError``. Its message names the methods that serve instead."""
        raise NotImplementedError(
            f"kernel {self.py_func.__name__}: oxide has neither numba's listing of types nor SASS; inspect_llvm() and "
            "inspect_asm() give its LLVM IR and PTX, and .kernel.specialize(x=Array[f32, 1], …).native_asm() the CPU's "
            "assembly"
        )

    inspect_sass = inspect_sass_cfg = inspect_lto_ptx = inspect_types

    def __reduce__(self) -> Any:
        return Dispatcher, (self.numba_dispatcher,)

    def __repr__(self) -> str:
        return f"<numba_cuda kernel {self.py_func.__name__}>"


_MOST = 1024  # launch configurations kept for each kernel


class Configured:
    """A kernel with its launch configuration."""

    __slots__ = ("_config", "_dispatcher", "_launcher", "stream")

    def __init__(self, dispatcher: Dispatcher, grid: Any, block: Any, stream: Any, shared: Any) -> None:
        self._dispatcher = dispatcher
        self.stream = stream
        if stream not in (0, None):
            resolved(stream)  # raises TypeError for an object that is no stream
        try:
            self._config = oxide.LaunchConfig(_dims(grid, "grid"), _dims(block, "block"), operator.index(shared))
        except LaunchError as error:
            raise LaunchError(f"kernel {dispatcher.py_func.__name__}: {error}") from None
        self._launcher: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> None:
        launcher = self._launcher
        if launcher is None:
            launcher = self._launcher = self._dispatcher.kernel[self._config]
        resolved_stream = resolved(self.stream)  # referenced until the launch is submitted
        stream = resolved_stream.oxide_stream
        boxes = []
        hosts: HostArguments | None = None
        for arg in args:
            kind = type(arg)
            if kind is DeviceNDArray and not arg.box._allocation.adopted:
                boxes.append(arg.box)
            elif kind in NUMBERS:
                boxes.append(arg)
            else:
                if hosts is None:
                    hosts = HostArguments(stream)
                try:
                    boxes.append(hosts.convert(arg))
                except (TypeError, BufferError, DeviceError) as error:
                    if type(error) not in (TypeError, BufferError, DeviceError):
                        raise
                    code = self._dispatcher.py_func.__code__
                    name = code.co_varnames[len(boxes)] if len(boxes) < code.co_argcount else f"number {len(boxes) + 1}"
                    raise type(error)(f"kernel {code.co_name}, parameter {name}: {error}") from None
        launch: Any = launcher(*boxes)
        launch.async_on(stream)
        if launch._plan.captured:
            hosts = hosts or HostArguments(stream)
            for box in launch._plan.captured:
                hosts.on_device(box)
        if hosts:
            hosts.finish()


def _dims(given: Any, what: str) -> Any:
    """Returns a grid or block as a tuple of ints. Raises ``ValueError`` unless it has 1 to 3 numbers, and ``TypeError``
    if one is no integer, as numba-cuda does."""
    parts = tuple(given) if isinstance(given, tuple | list) else (given,)
    if not 1 <= len(parts) <= 3:
        raise ValueError(f"{what}dim must be a sequence of 1, 2 or 3 integers, got {given!r}")
    try:
        return tuple(operator.index(part) for part in parts)
    except TypeError:
        raise TypeError(f"{what}dim must be a sequence of integers, got {given!r}") from None
