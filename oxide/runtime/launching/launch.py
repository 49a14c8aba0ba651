"""Kernel launches as operations: here the compiler and the runtime meet.

A launch is checked when the operation is built, before anything is submitted: the number of arguments, their types and
dtypes, the grid and the block, and the kernel's own requirements. If an argument is itself an operation, its result is
checked when the operation has run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, final

from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.kernel.specialization import NotTyped, Specialization
from oxide.compiler.signature.signature import ROWS, NumbaParameter, Parameter
from oxide.compiler.signature.untyped_arguments import arrays_in
from oxide.driver import sanitizing
from oxide.driver.base import Dim3, KernelResources
from oxide.errors import ArgumentError, CompileError, DeviceError, LaunchError
from oxide.host import core
from oxide.host.core import current_turn
from oxide.host.environment import drop_frames, without_frames
from oxide.host.locks import is_interrupt
from oxide.host.messages import warn_caller, written
from oxide.runtime.awaiting.loading import CompilesLater, announce, compiled_beside, loaded_function, ready_function
from oxide.runtime.devices.runtime import Device, current_runtime
from oxide.runtime.launching.binding import Plan, held, reach, shape_of, width_of
from oxide.runtime.launching.launch_config import LaunchConfig, bracketed
from oxide.runtime.launching.refusals import check, refuse, refuse_layouts, wrong_count
from oxide.runtime.launching.specializing import is_typed_by_boxes, kinds, specialize_for, take_strides
from oxide.runtime.loop.event_loops import blocked_loop_name
from oxide.runtime.memory.memory import Arc, DeviceBox, require_device
from oxide.runtime.operations.operation import Depiction, DeviceOperation, Spec, consume, filled, spec_of
from oxide.runtime.plan.nodes import Launched
from oxide.runtime.submission.stops import Beside
from oxide.runtime.submission.submission import ExecutionContext
from oxide.runtime.submission.walk import Frame

if TYPE_CHECKING:
    from oxide.runtime.launching.tuning import Tuner

_USUAL_BLOCK: Final = 256
_NO_RECORD: Final = bytes(8)  # the fault record's address, for a kernel in which nothing can fail


@final
class KernelLaunch(core.Launch, DeviceOperation[tuple[Any, ...]]):
    """A launch of a kernel. Yields the tuple of its arguments, in order.

    A launch that is ``_bound`` has its packed parameters, ``_params``, the memory that it ``_reads`` and ``_writes``,
    and the device of all of it, ``_bound_device`` (None for a kernel of scalars). Any other launch has operations among
    its arguments, and is bound at each run, or has boxes on several devices. ``_known`` are then the arguments' specs,
    and ``_held`` what stands for the arguments until the operations have run.
    """

    __slots__ = ()

    def __init__(self, kernel: Kernel, config: LaunchConfig | None, arguments: tuple[Any, ...], plan: Plan) -> None:
        """Makes a launch of ``plan``'s specialization of the kernel."""
        self._kernel = kernel
        self._config = config
        self._arguments = arguments
        parts: list[DeviceOperation[Any]] = []
        given: Sequence[Any] = arguments  # with specs in place of operations
        if not self.bind(plan, arguments):
            strided = plan.strided
            if strided is not None and self.bind(strided, arguments):
                plan = strided
            else:
                parts = consume(arguments)
                plan = self._with_strides(plan)
                known = self._known = refuse(kernel, plan, arguments)
                given = [spec or each for spec, each in zip(known, arguments, strict=True)]
                if parts:
                    self._held = tuple(map(held, plan.special.parameters, arguments))
                    self._composed, self._parts = True, tuple(parts)
                else:
                    self.bind(plan.lenient(), arguments)
        elif plan.judged:
            refuse_layouts(kernel.name, plan, arguments)
        self._plan = plan
        self._specialization = plan.special
        if config is None:
            config = self._config = self._follows_from(given)
        if config is not None:
            fitting = plan.fitting
            if fitting is not config and (fitting is None or not fitting.equals(config)):
                self._check_shape(config)
                plan.short = plan.warns  # perhaps: the bound outputs were compared with the previous configuration
            self._check_width(given)
            if not parts and (plan.short or self._known is not None):
                self._check_reach(arguments)
        super().__init__(*parts)

    def _with_strides(self, plan: Plan) -> Plan:
        """Returns the plan for the arguments' strides, which a plan for contiguous ones does not mention."""
        kernel, special, arguments = self._kernel, plan.special, self._arguments
        other = _typed(kernel, arguments, lambda: take_strides(special, arguments))
        if other is special:
            return plan
        strided = plan.strided = _launches_of(kernel).plan_of(other)
        return strided

    def _follows_from(self, given: Sequence[Any]) -> LaunchConfig | None:
        """Returns the configuration of a launch without brackets; None if it follows from a box that an operation has
        yet to yield. Raises ``LaunchError`` if there is none. ``given`` are the arguments, or specs in place of
        operations."""
        plan, name = self._plan, self._kernel.name
        if self._kernel.description.default_block is None:
            raise LaunchError(
                f"kernel {name} was launched without a grid and block: write {name}[grid, block](…), or declare "
                "@kernel(block=…)"
            )
        if not plan.outputs:
            raise LaunchError(
                f"kernel {name} has no DisjointSlice for the grid to follow from: write {name}[grid, block](…)"
            )
        shape = shape_of(given[plan.outputs[0]])
        if shape is None:
            return None
        config = self._inferred(shape)
        plan.inferred, plan.inferred_shape = config, shape
        return config

    @property
    def specialization(self) -> Specialization:
        """Returns the specialization that is launched."""
        return self._specialization

    def traced_name(self) -> str:
        return self._kernel.name

    def _execute_otherwise(self, context: ExecutionContext) -> tuple[Any, ...]:
        """Does what ``execute`` does, in a recording or a trace, for a kernel that is not loaded yet or is interpreted,
        or for a launch that is not bound for this device."""
        config, specialization, device = self._config, self._specialization, context.device
        if not self._bound or config is None or (self._bound_device is not device and self._bound_device is not None):
            self._refuse_device(device)
        if self._plan.interpreted:
            from oxide.runtime.launching.interpreting import interpret

            values = specialization.values_of(self._params)
            interpret(specialization, context, values, config, self._reads, self._writes)
            return self._arguments
        # Nearly every launch finds its function here, which saves a call.
        function = device.loaded.get(self._plan.reference) or ready_function(specialization, device)
        params = self._params + (context.fault_word(specialization) if function.reports else _NO_RECORD)
        if context.recording is not None:
            context.recording.launched = _recorded(specialization, self._arguments, params, context)
        context.launch(
            self._kernel.name,
            function,
            config._grid,
            config._block,
            config._shared_mem_bytes,
            params,
            self._reads,
            self._writes,
        )
        return self._arguments

    def finish(self, context: ExecutionContext, results: list[Any]) -> tuple[Any, ...]:
        """Binds and executes a launch with operations among its arguments. ``results`` are what they have yielded.
        Raises the errors for results that the kernel does not take."""
        kernel, special = self._kernel, self._specialization
        kept = filled(self._held, results)
        compiled_beside(lambda: take_strides(special, kept))
        launch = KernelLaunch(kernel, self._config, kept, self._plan)
        launch.consume()
        if launch._composed:
            raise ArgumentError(
                f"kernel {kernel.name}: an operation among the arguments yields an operation; run that one first, with "
                "operation.and_then(lambda inner: inner)"
            )
        launch.execute(context)
        return filled(self._arguments, results)

    def _refuse_device(self, device: Device) -> NoReturn:
        """Raises ``DeviceError`` for a launch that is not bound for a device: some of its boxes are on another."""
        what = f"kernel {self._kernel.name}"
        for parameter, argument in zip(self._specialization.parameters, self._arguments, strict=True):
            plain = argument.value if isinstance(argument, Arc) else argument
            boxes = arrays_in(parameter.type, plain) if isinstance(parameter, NumbaParameter) else [plain]
            for box in boxes:
                if isinstance(box, DeviceBox):
                    require_device(box, device, f"{what}, parameter {parameter.name}")
        for box in self._plan.captured:
            require_device(box, device, f"{what}, an array from outside of it")
        raise AssertionError(f"{what}: the arguments do not bind, and all boxes are on {device.label}")

    def spec(self) -> tuple[Spec, ...]:
        if self._known is not None:
            return self._known
        return tuple(map(spec_of, self._arguments))

    def _inferred(self, shape: tuple[int, ...]) -> LaunchConfig:
        """Returns a configuration with a thread for each ``items_per_thread`` elements or tiles of the output, rounded
        up. The threads are along the output's axes if the kernel's indices have so many or the block has two axes, else
        along x. The grid consists of whole clusters.
        Raises ``LaunchError`` if no grid follows from the output's shape."""
        described = self._kernel.description
        block, items = described.default_block, described.items_per_thread
        assert block is not None
        output = self._specialization.parameters[self._plan.outputs[0]]
        assert isinstance(output, Parameter)
        tile, shape = output.tile, output.elements(shape)
        by_places = self._plan.axes > 1 and len(shape) == output.ndim in (2, 3) and len(tile) != 1
        if tile == ROWS and block[1] == block[2] == 1:
            return _whole_clusters(LaunchConfig.for_num_elems(-(-shape[0] // items[0]), block[0]), described.cluster)
        if len(tile) < 2 and block[1] == block[2] == 1 and not by_places:
            each = items[0] * (tile[0] if tile else 1)
            found = LaunchConfig.for_num_elems(-(-math.prod(shape) // each), block[0])
            return _whole_clusters(found, described.cluster)
        if len(tile) == 2 and len(shape) == 2:
            shape = (-(-shape[0] // tile[0]), -(-shape[1] // tile[1]))
        if by_places or (len(tile) != 1 and block[2] == 1 and len(shape) == 2):
            along = zip(shape, items[: len(shape)][::-1], strict=True)
            found = LaunchConfig.for_shape(tuple(-(-length // each) for length, each in along), block)
            return _whole_clusters(found, described.cluster)
        raise LaunchError(
            f"kernel {self._kernel.name}: no grid follows from an output of shape {shape} and a block of {block}; "
            f"write {self._kernel.name}[grid, block](…)"
        )

    def _check_shape(self, config: LaunchConfig) -> None:
        """Raises ``LaunchError`` for a launch with more axes than the kernel's thread indices have (the indices would
        not be unique), for a grid that does not consist of whole clusters, and for a launch without the dynamic shared
        memory that the kernel uses."""
        needs = self._plan.needs
        _, grid_y, grid_z = config._grid
        _, block_y, block_z = config._block
        if needs.index_1d and not grid_y == grid_z == block_y == block_z == 1:
            raise LaunchError(
                f"kernel {self._kernel.name} uses thread.index_1d(), which needs a launch with y and z of 1, got "
                f"grid {config.grid}, block {config.block}: launch it along x, or use thread.index_2d(width)"
            )
        if needs.index_2d and not grid_z == block_z == 1:
            raise LaunchError(
                f"kernel {self._kernel.name} uses thread.index_2d(), which needs a launch with z of 1, got "
                f"grid {config.grid}, block {config.block}"
            )
        cluster = self._kernel.description.cluster
        if cluster is not None and config != _whole_clusters(config, cluster):
            raise LaunchError(
                f"kernel {self._kernel.name} has clusters of {cluster} blocks, and each axis of the grid is a multiple "
                f"of theirs; got grid {config.grid}: launch {_whole_clusters(config, cluster).grid}"
            )
        if needs.dynamic_shared and not config._shared_mem_bytes:
            raise LaunchError(
                f"kernel {self._kernel.name} uses dynamic shared memory, and the launch gives it none: write "
                f"{self._kernel.name}[LaunchConfig({config.grid}, {config.block}, shared_mem_bytes=…)](…)"
            )
        self._plan.fit(config)

    def _check_width(self, arguments: Sequence[object]) -> None:
        """Raises ``LaunchError`` if the width of ``index_2d`` is not the number of columns of the kernel's output of
        two axes, or of the widest of several. ``arguments`` are the launch's arguments, or specs in place of boxes;
        what is not known yet is not checked."""
        plan, kernel = self._plan, self._kernel
        if not plan.matrices:
            return
        width = width_of(plan, arguments)
        found = [(place, shape_of(arguments[place])) for place in plan.matrices]
        shapes = [(shape[1], place, shape) for place, shape in found if shape is not None and 0 not in shape]
        if width is None or len(shapes) < len(found) or width == max(shapes)[0]:
            return
        columns, place, shape = max(shapes)
        name, needed = plan.slots[place].parameter.name, plan.needs.width
        shown = f"{needed}, which is {width}" if isinstance(needed, str) else f"{width}"
        raise LaunchError(
            f"kernel {kernel.name}: the width of thread.index_2d is {shown}, and parameter {name}, of shape {shape}, "
            f"has {columns} columns{f': the threads from column {width} on have no index' if width < columns else ''}; "
            f"use {name}.shape[1], or declare @kernel(partial=True) if that is meant"
        )

    def _check_reach(self, arguments: Sequence[object]) -> None:
        """Warns if an output has more elements than the launch's threads reach: at the first such launch of the
        specialization, and under the sanitizer at each such launch. ``arguments`` are the launch's arguments, or specs
        in place of boxes."""
        plan, kernel = self._plan, self._kernel
        plan.short = False
        for place, slot in zip(plan.outputs, plan.reached, strict=True):
            given = shape_of(arguments[place])
            shape = None if given is None else slot.parameter.elements(given)
            size = 0 if shape is None else math.prod(shape)
            if shape is None or size <= slot.most:
                continue
            reached, instead = reach(plan, slot, shape, width_of(plan, arguments))
            if reached == size:
                slot.fits = given
                continue
            if not (kernel.description.sanitize or sanitizing.requested()):
                plan.warn_no_more()
            warn_caller(
                f"kernel {kernel.name}: the launch's threads reach {reached} of the {size} elements of parameter "
                f"{slot.parameter.name}, of shape {shape}, and the others are not written. "
                f"{f'Launch it with {instead}' if instead else 'Launch more threads'}, or declare "
                "@kernel(partial=True) if that is meant"
            )

    def title(self) -> object:
        return self

    def depict(self) -> Depiction:
        from oxide.runtime.operations.depicting import launch_lines

        config = self._config
        numbers: list[str] = []
        inputs: list[tuple[str, Any]] = []
        for parameter, argument in zip(self._specialization.parameters, self._arguments, strict=True):
            plain = argument.value if isinstance(argument, Arc) else argument
            if isinstance(plain, (DeviceOperation, DeviceBox)):
                inputs.append((parameter.name, argument))
            else:
                numbers.append(f"{parameter.name} = {getattr(plain, '__name__', None) or written(plain)}")
        size = (
            ("grid and block follow from the output",)
            if config is None
            else launch_lines(config._grid, config._block, config._shared_mem_bytes)
        )
        return "launch", self._kernel.name, (*size, *numbers), tuple(inputs)

    def __repr__(self) -> str:
        return f"<oxide launch of {self._kernel.name}>"


@final
class DeferredLaunch(DeviceOperation[tuple[Any, ...]]):
    """A launch of the kernel ``name``, which is compiled in its run, as compiling would block an event loop when the
    launch is built. The arguments were checked against the kernel's declaration then. In the run, the walk stops, a
    thread compiles and loads the kernel, and the other checks of a launch are made there. ``build`` builds the launch,
    and compiles the kernel. ``known`` are the specs of the arguments, as the launch's ``spec`` returns them."""

    _composed = True

    def __init__(
        self,
        name: str,
        build: Callable[[], DeviceOperation[tuple[Any, ...]]],
        parts: list[DeviceOperation[Any]],
        known: tuple[Spec, ...],
    ) -> None:
        self._name = name
        self._build = build
        self._known = known
        self._launch: Any = None  # None until the kernel is compiled
        super().__init__(*parts)

    @property
    def specialization(self) -> Specialization:
        """Returns the specialization that is launched. Compiles the kernel if need be."""
        found: Specialization = self._built_launch().specialization
        return found

    def traced_name(self) -> str:
        return self._name

    def step(self, frame: Frame, result: Any) -> DeviceOperation[Any] | None:
        if frame.at:
            frame.result = result
            return None
        device = frame.context.device
        if self._launch is None and current_turn().gives_up:
            raise Beside(partial(self._prepare, device))
        frame.at = 1
        launch: DeviceOperation[Any] = self._built_launch()
        return launch

    def _prepare(self, device: Device) -> None:
        """Compiles and loads the kernel."""
        special = self._built_launch().specialization
        if not special.description.interpreted:
            loaded_function(special, device)

    def _built_launch(self) -> Any:
        launch = self._launch
        if launch is None:
            turn = current_turn()
            before, turn.compiles_now = turn.compiles_now, True
            try:
                launch = self._build()
            finally:
                turn.compiles_now = before
            launch.consume()
            self._launch = launch
        return launch

    def spec(self) -> tuple[Spec, ...]:
        return self._known

    def title(self) -> object:
        return self

    def depict(self) -> Depiction:
        return "launch", self._name, ("compiled when it runs",), ()

    def __repr__(self) -> str:
        return f"<oxide launch of {self._name}>"


def _whole_clusters(config: LaunchConfig, cluster: Dim3 | None) -> LaunchConfig:
    """Returns a configuration whose grid consists of whole clusters: ``config`` itself if this is true of its grid,
    else a configuration with the grid rounded up. Returns ``config`` if there are no clusters."""
    if cluster is None:
        return config
    x, y, z = config._grid
    across, down, deep = cluster
    if x % across == y % down == z % deep == 0:
        return config
    grid = -(-x // across) * across, -(-y // down) * down, -(-z // deep) * deep
    return LaunchConfig(grid, config._block, config._shared_mem_bytes)


@final
class ConfiguredKernel(core.ConfiguredKernel):
    """A kernel with its launch configuration, ``kernel[grid, block]``. Calling it returns an operation that launches
    the kernel with this configuration and yields the arguments.

    The call raises ``ArgumentError``, ``LaunchError`` or ``CompileError``, before anything is submitted. If the kernel
    must be compiled first, in a run that a task awaits or with operations as arguments on an event loop's thread, the
    run compiles it, in a thread, and raises some of these errors.
    """

    __slots__ = ()

    @staticmethod
    def _bracketed(kernel: Kernel, config: object) -> LaunchConfig:
        return bracketed(kernel.name, config)

    def _call_slow(self, *args: Any, **kwargs: Any) -> KernelLaunch | DeferredLaunch:
        """Does what a call does, for every kernel, configuration and argument."""
        kernel = self._kernel
        launches = _launches_of(kernel)
        if launches.interprets and current_runtime().driver.name == "cpu":
            with suppress(NotTyped):
                return self.interpret(*args, **kwargs)
        try:
            named = kernel.by_position < len(kernel.parameters)
            if kwargs or named or (kernel.defaults and len(args) < len(kernel.parameters)):
                args = kernel.positional(args, kwargs)
            plan = launches.only or launches.plan_for(kernel, args)
            if launches.interprets:
                launches.latest = None  # the next launch may be on a device whose launches are interpreted
            if not named:  # else each call comes here, which refuses arguments by position
                self._plan = launches.latest
            return KernelLaunch(kernel, self._config, args, plan)
        except CompilesLater:
            return self._deferred(args)
        except (CompileError, LaunchError) as error:
            drop_frames(error)
            raise

    def _deferred(self, arguments: tuple[Any, ...]) -> DeferredLaunch:
        kernel = self._kernel
        parts = consume(arguments)
        if len(arguments) != len(kernel.parameters):
            raise wrong_count(kernel, arguments)
        known = [check(kernel, each, given) for each, given in zip(kernel.parameters, arguments, strict=True)]
        return DeferredLaunch(kernel.name, partial(kernel.called, self, arguments), parts, tuple(known))

    @without_frames
    def interpret(self, *args: Any, **kwargs: Any) -> KernelLaunch | DeferredLaunch:
        """Returns an operation that interprets the launch; see ``Kernel.interpret``."""
        return ConfiguredKernel(self._kernel.interpreted, self._config)(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return ConfiguredKernel, (self._kernel, self._config)

    def __copy__(self) -> ConfiguredKernel:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ConfiguredKernel:
        return self


@final
class KernelLaunches:
    """The plans of one kernel's specializations, which its launches share. ``@kernel`` gives each kernel a
    ``KernelLaunches`` of its own. If it ``interprets``, as under ``OXIDE_INTERPRET=1``, launches of a typed kernel on
    the CPU device are interpreted."""

    __slots__ = ("_by_kinds", "_plans", "interprets", "latest", "only")

    # a class attribute, as a method would cost a call at each launch
    configured: ClassVar[Any] = ConfiguredKernel

    def __init__(self, interprets: bool = False) -> None:
        self.interprets = interprets
        self.only: Plan | None = None
        """The only plan of a kernel that is not generic, from its first launch on. Later launches then need no
        look-up."""
        self.latest: Plan | None = None
        """The plan that a launch is tried with first: ``only``, or the last one of a generic kernel whose types the
        dtypes of boxes decide, so that arguments bind to no plan but theirs."""
        self._plans: dict[Specialization, Plan] = {}
        self._by_kinds: dict[tuple[Any, ...], Plan] = {}  # keyed by the kinds of the arguments that determine the types

    def again(self) -> KernelLaunches:
        """Returns a new ``KernelLaunches``, for another form of the kernel."""
        return KernelLaunches()

    def resources(
        self, special: Specialization, block: int | tuple[int, ...] | None, shared_mem_bytes: int
    ) -> KernelResources:
        """Returns the result of ``Specialization.resources``, for the default device."""
        config = LaunchConfig(1, block or special.description.default_block or _USUAL_BLOCK, shared_mem_bytes)
        device = current_runtime().default_device
        function = loaded_function(special, device)
        code = special.code(device.info.target)
        try:
            return device.driver.resources(function, code, math.prod(config.block), config.shared_mem_bytes)
        except DeviceError as error:
            if type(error) is not DeviceError:
                raise  # CUDA's own message names the call
            raise DeviceError(f"kernel {special.description.name}: {error}") from None

    def tuner(self, kernel: Kernel, configs: object) -> Tuner:
        """Returns the object that tunes a kernel. Raises ``ArgumentError`` for wrong candidates."""
        from oxide.runtime.launching.tuning import Tuner

        return Tuner(kernel, configs)

    def plan_for(self, kernel: Kernel, arguments: tuple[Any, ...]) -> Plan:
        """Returns the plan for a launch's arguments. Raises ``ArgumentError`` and ``CompileError``."""
        if not kernel.is_generic:
            consume(arguments)
            self.only = self.latest = self.plan_of(_typed(kernel, arguments, kernel.specialize))
            return self.only
        complete = len(arguments) == len(kernel.parameters)
        key = kinds(kernel, arguments) if complete else ()
        plan = self._by_kinds.get(key) if complete else None
        if plan is None:
            consume(arguments)
            if not complete:
                raise wrong_count(kernel, arguments)
            for parameter, argument in zip(kernel.parameters, arguments, strict=True):
                check(kernel, parameter, argument)
            special = _typed(kernel, arguments, lambda: specialize_for(kernel, arguments))
            plan = self._by_kinds[key] = self.plan_of(special)
        self.latest = plan if plan.binds_alone and is_typed_by_boxes(kernel) else None
        return plan

    def plan_of(self, special: Specialization) -> Plan:
        """Returns the plan of a specialization, made at its first launch."""
        plan = self._plans.get(special)
        if plan is None:
            if not special.description.interpreted:
                announce(special)
            plan = self._plans[special] = Plan(special)
        return plan


def _launches_of(kernel: Kernel) -> KernelLaunches:
    """Returns the launches object that ``@kernel`` gave the kernel."""
    launches: Any = kernel.launches
    found: KernelLaunches = launches
    return found


def _typed(kernel: Kernel, arguments: tuple[Any, ...], specialize: Callable[[], Specialization]) -> Specialization:
    """Returns ``specialize()``. Raises ``CompilesLater`` if it would compile the kernel in a run that a task awaits, or
    on an event loop's thread for arguments that are operations: the run of the launch compiles it then. An interpreted
    launch is typed at once, as it is compiled instead if it cannot be typed."""
    turn = current_turn()
    of_operations = any(isinstance(argument, DeviceOperation) for argument in arguments)
    at_once = turn.compiles_now or kernel.description.interpreted
    if at_once or not (turn.gives_up or (of_operations and blocked_loop_name() is not None)):
        return specialize()
    before, turn.defers = turn.defers, True
    try:
        return specialize()
    finally:
        turn.defers = before


def _recorded(special: Specialization, arguments: Sequence[Any], params: bytes, context: ExecutionContext) -> Launched:
    """Returns the part of a launch that a recording keeps, which has no references to boxes. ``params`` are the packed
    parameters."""
    plain = [argument.value if isinstance(argument, Arc) else argument for argument in arguments]
    boxes = [each if isinstance(each, DeviceBox) else None for each in plain]
    allocations = tuple([None if box is None else box._allocation for box in boxes])
    contiguous = all(box is None or box.is_contiguous for box in boxes)
    return Launched(special, special.values_of(params), allocations, context.place, contiguous=contiguous)


def _launch_failed(kernel: Kernel, error: BaseException) -> NoReturn:
    """Raises the error of a launch, with the kernel's name if it is a ``LaunchError``."""
    if isinstance(error, LaunchError):
        raise LaunchError(f"kernel {kernel.name}: {error}") from None
    try:
        raise error
    finally:
        del error  # a frame that its traceback has must not refer to it


core.setup(KernelLaunch=KernelLaunch, launch_failed=_launch_failed, is_interrupt=is_interrupt)
