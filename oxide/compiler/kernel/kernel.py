"""``Kernel``: a Python function that is compiled when its types are known. ``@kernel`` makes one.

The constructor reads only annotations and options (``declaration``). The first launch, or ``specialize()``, types the
body and lowers it to IR, which is the same for all devices. A generic kernel is typed and lowered once for each choice
of types. ``Specialization.code`` makes machine code for a device. This package cannot launch kernels: the constructor
takes a ``Launches`` object, which can.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, cast

from oxide.compiler.declaration.description import KernelDescription, Options, checked
from oxide.compiler.signature.annotations import default_values, parse_parameters
from oxide.compiler.signature.signature import Closed, Declared, NumbaParameter, UntypedParameter
from oxide.compiler.signature.untyped_arguments import ArgumentType, type_of
from oxide.compiler.source.source import keep_text
from oxide.driver.base import Dim3, KernelResources
from oxide.errors import ArgumentError, CompileError, LaunchError
from oxide.host.environment import drop_frames, without_frames
from oxide.host.locks import new_lock, unheld
from oxide.host.uninterrupted import uninterrupted

from .specialization import Specialization, not_typed

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from oxide.compiler.declaration.description import BuiltSource, FusedSource
    from oxide.compiler.signature.contracts import Contract
    from oxide.compiler.source.faults import Narrowing, Widening
    from oxide.compiler.tile.tile_source import TileSource

    from .reports import Check

    # What a launch returns and what tuning finds. The runtime, which makes them, says what they are.
    Operation = TypeVar("Operation", default=Any, covariant=True)
    Result = TypeVar("Result", default=Any, covariant=True)
else:
    Operation, Result = map(typing.TypeVar, ("Operation", "Result"))

__all__ = ["Kernel", "Launches"]


class Launcher(Protocol[Operation]):
    """A kernel with a launch configuration."""

    def __call__(self, *args: Any, **kwargs: Any) -> Operation:
        """Returns an operation that launches the kernel and yields the arguments."""

    def interpret(self, *args: Any, **kwargs: Any) -> Operation:
        """Returns an operation that interprets the launch; see ``Kernel.interpret``."""


class Tuning(Protocol[Operation, Result]):
    """Finds the fastest options of one kernel, and launches the kernel with them. The runtime implements this
    protocol."""

    def __call__(self, *args: Any, **kwargs: Any) -> Operation:
        """Returns an operation that launches the kernel with the fastest options found for the arguments' shapes. If no
        search was made for these shapes, the launch has the first candidate's options."""

    def tune(
        self, configs: Any, args: tuple[Any, ...], kwargs: dict[str, Any], budget: float, progress: bool
    ) -> Result:
        """Measures the candidates in ``configs`` and returns the result, as ``Kernel.tune`` does."""

    async def tune_async(
        self, configs: Any, args: tuple[Any, ...], kwargs: dict[str, Any], budget: float, progress: bool
    ) -> Result:
        """Does what ``tune`` does, in a thread."""

    def load(self, path: str | PathLike[str]) -> int:
        """Loads the results of earlier searches from a file, as ``Kernel.load_tuned`` does."""


class Launches(Protocol[Operation, Result]):
    """Launches one kernel. The runtime implements this protocol. Each kernel has an object of its own, which may cache
    data that all launches of the kernel need."""

    @property
    def configured(self) -> Callable[[Any, object | None], Launcher[Operation]]:
        """Returns a function that takes a kernel and a launch configuration, and returns a launcher. The configuration
        is the content of the brackets, or None without brackets."""

    def tuner(self, kernel: Any, configs: object) -> Tuning[Operation, Result]:
        """Returns the object that tunes a kernel. ``configs`` are the candidates that the kernel was made with."""

    def again(self) -> Launches[Operation, Result]:
        """Returns a new object of this type, for another form of the same kernel."""

    @without_frames
    def resources(
        self, special: Specialization, block: int | tuple[int, ...] | None, shared_mem_bytes: int
    ) -> KernelResources:
        """Returns the resources that a specialization uses on the device that operations run on."""


class Kernel(Generic[Operation, Result]):
    """A GPU function. A call returns an operation that launches it.

    ``kernel[config](…)`` launches with a ``LaunchConfig``, ``kernel[grid, block](…)`` with two shapes, ``kernel(…)``
    with the kernel's own block. Arguments may be given by name.
    """

    __wrapped__: Callable[..., Any]

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        launches: Launches[Operation, Result] | None = None,
        compiling: Callable[[], Callable[[str, tuple[Closed, ...]], None]] | None = None,
        compiled: Callable[[str, float], None] | None = None,
        requires: Iterable[str] = (),
        sanitizable: bool = True,
        configs: Any = (),
        names: Mapping[str, Any] | None = None,
        tile: TileSource | None = None,
        tile_key: tuple[Any, ...] = (),
        fusion: FusedSource | None = None,
        prebuilt: BuiltSource | None = None,
        **options: Any,
    ) -> None:
        """Makes a kernel with the options of ``kernel``. Without ``launches`` it can be compiled but not launched.

        ``compiling`` is called by a thread that needs the kernel for new types. The function that it returns is called
        before a compilation, perhaps in another thread, with the kernel's name and its parameters, and may refuse it by
        an error. ``compiled`` is called after each, with the kernel's name and the duration in seconds.
        """
        dispatcher, function = function, getattr(function, "py_func", function)
        adopted = dispatcher is not function
        if not hasattr(function, "__code__"):
            from oxide.compiler.check.advice import no_function

            raise no_function(function)
        functools.update_wrapper(self, function)
        if prebuilt is None:
            keep_text(function)
        name = function.__name__
        parameters: tuple[Declared, ...]
        source = tile if fusion is None else fusion
        if source is None:
            parameters = parse_parameters(function, name, names or {}, adopted)
        else:
            parameters = source.parameters
        self.defaults: dict[str, Any] = default_values(function) if source is None else {}
        """The default arguments of a launch, by parameter."""
        by_name = function.__code__.co_kwonlyargcount if source is None else 0
        self.by_position = len(parameters) - by_name
        """The number of parameters whose arguments may be given by position."""
        signatures: tuple[tuple[ArgumentType, ...], ...] = ()
        if adopted:
            from oxide.compiler.frontend.frontend import adopted_signatures

            targets = dispatcher.targetoptions  # type: ignore[attr-defined]
            signatures = adopted_signatures(dispatcher)
            options["fastmath"] = options.get("fastmath") or bool(targets.get("fastmath"))
            options["fma"] = options.get("fma", True) and bool(targets.get("fma", True))
            options["max_registers"] = options.get("max_registers") or targets.get("max_registers")
        contracts: tuple[Contract, ...] = ()
        if requires:
            from oxide.compiler.signature.contracts import parse_contracts

            contracts = parse_contracts(function, name, parameters, requires)
        self.description = KernelDescription(
            name=name,
            function=function,
            parameters=parameters,
            adopted=adopted,
            numba_style=adopted or any(isinstance(each, UntypedParameter) for each in parameters),
            signatures=signatures,
            contracts=contracts,
            sanitizable=sanitizable,
            tile=tile,
            tile_key=tile_key,
            fusion=fusion,
            prebuilt=prebuilt,
            **checked(function, name, {"lineinfo": None, **options}),
        )
        self.name = name
        self.function = function
        self.parameters = parameters
        self.launches = launches
        self.compiling = compiling
        self.compiled = compiled
        self.each: Kernel | None = None
        """A kernel with the same parameters and results, each thread of which computes one element. Fusion uses it
        instead of this kernel. None if there is no such kernel."""
        self.followed_by: Callable[[Any], Kernel | str] | None = None
        """A function that combines this kernel with another kernel, which is launched next on this kernel's only
        output. It returns one kernel that computes the same final result, bit for bit, or the reason why there is no
        such kernel. The returned kernel has this kernel's parameters and launches. None if there is no such
        function."""
        self.open_places = tuple(place for place, p in enumerate(parameters) if not isinstance(p, Closed))
        """The positions of the parameters whose types follow from the arguments."""
        self.is_generic = bool(self.open_places)
        self._lock = new_lock()
        self._specializations: dict[tuple[Closed, ...], Specialization] = {}
        self.only: Specialization | None = None
        """The only specialization of a kernel that is not generic. None for a generic kernel, and before
        ``specialize()`` has made the specialization."""
        self._unconfigured: Callable[..., Operation] | None = None
        """The launcher for calls without a launch configuration, which is the tuner if there is one. None before the
        first such call."""
        self._interpreted: Self | None = None
        self._tuner: Tuning[Operation, Result] | None = None
        if launches is not None and configs:
            self._unconfigured = self._tuner = launches.tuner(self, configs)

    @property
    def default_block(self) -> Dim3 | None:
        """Returns the block shape, in threads, of launches that give no block; None if the kernel has no block of its
        own."""
        return self.description.default_block

    @property
    def signatures(self) -> tuple[tuple[ArgumentType, ...], ...]:
        """Returns the explicit signatures of an adopted kernel, or an empty tuple."""
        return self.description.signatures

    def __getitem__(self, config: object) -> Launcher[Operation]:
        """Returns a launcher: the kernel with a launch configuration, which is a ``LaunchConfig``, or grid and block. A
        call of the launcher with the arguments returns the operation that launches the kernel.

        Raises ``LaunchError`` for any other configuration, and for sizes that no device can launch.
        """
        launches = self.launches
        if launches is None:
            raise RuntimeError(f"kernel {self.name} cannot be launched: import oxide, which brings the runtime")
        try:
            return launches.configured(self, config)
        except LaunchError as error:
            drop_frames(error)
            raise

    def __call__(self, *args: Any, **kwargs: Any) -> Operation:
        """Returns an operation that launches the kernel with its own block and yields the arguments.

        Raises ``ArgumentError``, ``LaunchError`` or ``CompileError``, before anything is submitted.
        """
        try:
            launcher = self._unconfigured
            if launcher is None:
                launcher = self._unconfigured = self[None]
            return launcher(*args, **kwargs)
        except (CompileError, LaunchError) as error:
            drop_frames(error)
            raise

    def interpret(self, *args: Any, **kwargs: Any) -> Operation:
        """Returns an operation that runs the kernel as plain Python in this process, thread by thread, for a debugger.

        The checks, results and faults are those of a launch. ``breakpoint()`` and a debugger work in the kernel.
        ``kernel[grid, block].interpret(…)`` takes a launch configuration. Raises ``LaunchError`` on any device but the
        CPU device, and for kernels that are not typed. With ``OXIDE_INTERPRET=1``, every launch is interpreted.
        """
        try:
            return self.interpreted(*args, **kwargs)
        except (CompileError, LaunchError) as error:
            drop_frames(error)
            raise

    @property
    def interpreted(self) -> Self:
        """Returns the form of the kernel whose launches are interpreted. Raises ``LaunchError`` if the kernel is not
        typed."""
        if self.description.interpreted:
            return self
        if self.description.prebuilt is not None:
            raise LaunchError(
                f"kernel {self.name} was built ahead of time, without its source, and only a kernel with its source is "
                "interpreted: interpret the kernel that it was built from"
            )
        found = self._interpreted
        if found is None:
            if self.description.adopted or any(
                isinstance(p, UntypedParameter | NumbaParameter) for p in self.parameters
            ):
                raise not_typed(self.name)
            found = self._interpreted = self._again(replace(self.description, interpreted=True))
        return found

    def _again(self, description: KernelDescription) -> Self:
        """Returns another form of the kernel."""
        found = object.__new__(type(self))
        vars(found).update(vars(self))
        found.description = description
        found.launches = None if self.launches is None else self.launches.again()
        found._lock, found._specializations, found.only = new_lock(), {}, None
        found._unconfigured = found._tuner = found._interpreted = None
        return found

    def options(self) -> dict[str, Any]:
        """Returns the options with which ``@kernel`` makes a kernel that has the same code and is launched the same
        way."""
        described = self.description
        names = [each.name for each in fields(Options) if not each.metadata and each.name != "default_block"]
        return {
            "block": described.default_block,
            "requires": tuple(contract.text for contract in described.contracts),
            **{name: getattr(described, name) for name in names},
        }

    # Tuning

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """Returns the kernel with other values of ``block``, ``items_per_thread`` and ``max_registers``. Raises
        ``CompileError`` for an impossible value."""
        return self._again(replace(self.description, **checked(self.function, self.name, options)))

    def with_config(self, config: Mapping[str, Any], arguments: Iterable[Any]) -> Operation:
        """Returns an operation that launches the kernel with a candidate's options. ``tune`` measures the operation."""
        form = self.with_options(config)
        launch: Operation = form.called(form, tuple(arguments))
        return launch

    def tune(
        self, configs: Any = None, /, *args: Any, budget: float = 60.0, progress: bool = True, **kwargs: Any
    ) -> Result:
        """Finds the fastest of some candidates for the arguments of a launch, as in
        ``k.tune([{"block": 128}, {"block": 256}], x, out)``. If a later launch gives no configuration and its arguments
        have the same shapes, it uses this candidate.

        A candidate is a dict of ``block``, ``items_per_thread`` and ``max_registers``. If ``configs`` is None, the
        candidates are the kernel's own ``configs``. The candidates are compiled in parallel and run in another process
        on copies of the arguments, for at most ``budget`` seconds, with a progress bar if stderr is a terminal. The
        result is kept on disk. Raises ``ArgumentError``.
        """
        return self._tuning().tune(configs, args, kwargs, budget, progress)

    async def tune_async(
        self, configs: Any = None, /, *args: Any, budget: float = 60.0, progress: bool = False, **kwargs: Any
    ) -> Result:
        """Does what ``tune`` does, in a thread, so that the event loop keeps running."""
        return await self._tuning().tune_async(configs, args, kwargs, budget, progress)

    def load_tuned(self, path: str | PathLike[str]) -> int:
        """Uses the results that ``Tuned.save`` has written for this kernel and devices like the current one. Returns
        the number of shapes with a result. Raises ``ArgumentError`` if the file has no result for this kernel, or only
        for another version of its source."""
        return self._tuning().load(path)

    def _tuning(self) -> Tuning[Operation, Result]:
        if self.launches is None:
            raise RuntimeError(f"kernel {self.name} cannot be tuned: import oxide, which brings the runtime")
        if self._tuner is None:
            self._unconfigured = self._tuner = self.launches.tuner(self, ())
        return self._tuner

    if not TYPE_CHECKING:  # so that a type checker refuses unknown attributes

        def __getattr__(self, name: str) -> Any:
            from oxide.compiler.check.advice import no_attribute

            raise no_attribute(self.__dict__.get("name", "?"), name)

    def __reduce__(self) -> str:
        from oxide.compiler.signature.device_function import global_name

        return global_name(self, f"kernel {self.name}")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # a kernel is its own copy, as a function is

    def __repr__(self) -> str:
        shown = [f"{parameter.name}: {parameter.annotation}" for parameter in self.parameters]
        if self.by_position < len(shown):
            shown.insert(self.by_position, "*")
        return f"<kernel {self.name}({', '.join(shown)})>"

    def _repr_html_(self) -> str:
        """Returns the kernel's name, parameters, options and docstring, which notebooks show."""
        from .reports import described

        return described(self.description, self.defaults)

    @without_frames
    def specialize(self, **types: Any) -> Specialization:
        """Returns the kernel for certain types. It is typed and lowered once for each choice of types. Any thread may
        call this.

        A generic kernel needs:

        - a type for each of its type variables, ``scale.specialize(T=f32)``;
        - a function for each parameter that takes a function, by the parameter's name;
        - a type for each parameter without an annotation, ``add.specialize(x=Array[f32, 1], n=i64)``, unless it has a
          default.

        Any other kernel needs nothing. Raises ``ArgumentError`` for a type that is missing or impossible, and
        ``CompileError``.
        """
        if self.only is not None and not types:
            return self.only
        types = self._default_types() | types
        if not self.is_generic and not types:
            self.only = self.specialization(cast(tuple[Closed, ...], self.parameters))
            return self.only
        from oxide.compiler.signature.type_variables import close_by_name  # here, as few programs need it

        parameters = close_by_name(self.name, self.parameters, types)
        return self.specialization(parameters)

    @without_frames
    def example(self, **types: Any) -> Specialization:
        """Returns ``specialize(**types)`` with a choice for each type variable that is not given: ``f32`` if the
        constraints allow it, otherwise the first constraint. A kernel's reports use this specialization if no types are
        given.

        Raises ``ArgumentError`` if a function, or a type for a parameter without an annotation, is needed and not
        given.
        """
        if not self.is_generic:
            return self.specialize(**types)
        from oxide.compiler.signature.type_variables import example_types

        return self.specialize(**(example_types(self.parameters) | types))

    def specialization(self, parameters: tuple[Closed, ...]) -> Specialization:
        """Returns the kernel for the given type of each parameter, as ``specialize`` does. Raises ``CompileError``."""
        special = self._specializations.get(parameters)
        if special is None:
            refuse = None if self.compiling is None else self.compiling()
            special = uninterrupted(functools.partial(self._specialize, parameters, refuse))
            if special.typing_seconds:
                self.note_compiled(special.typing_seconds)
        return special

    def _specialize(
        self, parameters: tuple[Closed, ...], refuse: Callable[[str, tuple[Closed, ...]], None] | None
    ) -> Specialization:
        with unheld(self._lock):
            special = self._specializations.get(parameters)
            if special is None:
                special = self._specializations[parameters] = Specialization(self, parameters, refuse)
            return special

    def note_compiled(self, seconds: float) -> None:
        """Tells that the calling thread has waited for a compilation of ``seconds``."""
        if self.compiled is not None:
            self.compiled(self.name, seconds)

    @without_frames
    def ptx(self, cc: tuple[int, int] = (9, 0)) -> str:
        """Returns ``Specialization.ptx(cc)``. A generic kernel is compiled for the types of ``example``; for other
        types, call ``k.specialize(T=f64).ptx()``."""
        return self.example().ptx(cc)

    @without_frames
    def llvm_ir(self) -> str:
        """Returns ``Specialization.llvm_ir()``. A generic kernel is compiled for the types of ``example``."""
        return self.example().llvm_ir()

    @without_frames
    def native_asm(self) -> str:
        """Returns ``Specialization.native_asm()``. A generic kernel is compiled for the types of ``example``."""
        return self.example().native_asm()

    def resources(self, block: int | tuple[int, ...] | None = None, *, shared_mem_bytes: int = 0) -> KernelResources:
        """Returns registers, memory, spills and occupancy, as the driver reports them for the GPU that operations run
        on.

        ``block`` is the block's shape in threads. Its default is the kernel's own block, or 256 threads if it has none.
        ``shared_mem_bytes`` is the block's dynamic shared memory. A generic kernel is compiled for the types of
        ``example``. Raises ``DeviceError`` on the CPU device, which has none of these resources.
        """
        return self.example().resources(block, shared_mem_bytes=shared_mem_bytes)

    @without_frames
    def checks(self) -> tuple[Check | Widening | Narrowing, ...]:
        """Returns ``Specialization.checks()``. A generic kernel is compiled for the types of ``example``."""
        return self.example().checks()

    def positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Returns the arguments of a call in the order of the parameters, with defaults. Raises ``ArgumentError`` for
        names that are no parameters."""
        names = [parameter.name for parameter in self.parameters]
        if len(args) > self.by_position < len(names):
            first = names[self.by_position]
            raise ArgumentError(
                f"kernel {self.name} takes {self.by_position} arguments by position, got {len(args)}: give {first} by "
                f"name, as {first}=…"
            )
        unknown = [name for name in kwargs if name not in names]
        if unknown:
            raise ArgumentError(f"kernel {self.name} has no parameter {unknown[0]}; it takes {', '.join(names)}")
        twice = [name for name in names[: len(args)] if name in kwargs]
        if twice:
            raise ArgumentError(f"kernel {self.name}: parameter {twice[0]} is given twice, by position and by name")
        kwargs = self.defaults | kwargs
        missing = [name for name in names[len(args) :] if name not in kwargs]
        if missing:
            raise ArgumentError(f"kernel {self.name}: parameter {missing[0]} is missing; it takes {', '.join(names)}")
        return args + tuple(kwargs[name] for name in names[len(args) :])

    def called(self, launcher: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Calls a launcher of the kernel with all its arguments, in the order of the parameters."""
        by_name = zip(self.parameters[self.by_position :], arguments[self.by_position :], strict=True)
        return launcher(*arguments[: self.by_position], **{each.name: given for each, given in by_name})

    def _default_types(self) -> dict[str, Any]:
        """Returns the types of the default values of parameters without an annotation."""
        untyped = {p.name for p in self.parameters if isinstance(p, UntypedParameter)} & self.defaults.keys()
        found = {name: type_of(self.defaults[name], lambda _: None) for name in untyped}
        return {name: kind for name, kind in found.items() if kind is not None}
