"""Kernel launches as operations: here the compiler and the runtime meet.

A launch is checked when the operation is built, before anything is submitted: the number of arguments, their types and
dtypes, the grid and the block, and the kernel's own requirements. If an argument is itself an operation, its result is
checked when the operation has run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, final

import numpy as np

from oxide import core
from oxide.compiler.kernel import Kernel
from oxide.compiler.signature.device_function import is_function
from oxide.compiler.signature.signature import Closed, Declared, NumbaParameter, Parameter, UntypedParameter
from oxide.compiler.signature.untyped_arguments import arrays_in
from oxide.compiler.specialization import Specialization
from oxide.driver import sanitizing
from oxide.driver.base import Dim3, KernelResources
from oxide.environment import drop_frames
from oxide.errors import ArgumentError, CompileError, LaunchError
from oxide.host_arrays import upload_of
from oxide.locks import is_interrupt
from oxide.messages import warn_caller, written
from oxide.runtime.awaiting.loading import CompilesLater, announce, compiled_beside, ready_function
from oxide.runtime.device.arc import Arc
from oxide.runtime.device.memory import Allocation, DeviceBox, require_device
from oxide.runtime.device.partition import Partition
from oxide.runtime.launching.aliasing import refuse_shared_outputs, refuse_shared_tensors
from oxide.runtime.launching.argument_kinds import is_typed_by_boxes, kinds
from oxide.runtime.launching.binding import Plan, bind
from oxide.runtime.launching.captured import captured_boxes
from oxide.runtime.launching.launch_config import LaunchConfig, bracketed
from oxide.runtime.launching.reach import reach, shape_of, width_of
from oxide.runtime.launching.tiled import refuse_uneven_rows
from oxide.runtime.launching.untyped import check_argument, take_strides
from oxide.runtime.loop.event_loops import blocked_loop_name
from oxide.runtime.loop.turns import current_turn
from oxide.runtime.operations.operation import BoxSpec, Depiction, DeviceOperation, Spec
from oxide.runtime.plan.nodes import Launched
from oxide.runtime.submission.submission import ExecutionContext
from oxide.runtime.tracepoints import points

if TYPE_CHECKING:
    from oxide.compiler.signature.generic_parameters import OpenFunction, OpenParameter
    from oxide.runtime.device.runtime import Device
    from oxide.runtime.launching.deferred import DeferredLaunch
    from oxide.runtime.launching.tuning import Tuner

_NO_RECORD: Final = bytes(8)  # the fault record's address, for a kernel in which nothing can fail


@final
class KernelLaunch(core.Launch, DeviceOperation[tuple[Any, ...]]):
    """A launch of a kernel. Yields the tuple of its arguments, in order.

    ``_known`` are the arguments' specs, once computed. ``_numbers`` are the values to pass for numbers, tuples and
    functions. ``_open_contracts`` are the contracts to check at execution. ``_output`` is the position of the output
    that determines the grid. A launch that is ``_bound`` has its packed parameters, ``_params``, the memory that it
    ``_reads`` and ``_writes``, and the device of all of it, ``_bound_device`` (None for a kernel of scalars).
    """

    __slots__ = ()

    def __init__(self, kernel: Kernel, config: LaunchConfig | None, arguments: tuple[Any, ...], plan: Plan) -> None:
        """Makes a launch of ``plan``'s specialization of the kernel."""
        self._kernel = kernel
        self._config = config
        self._arguments = arguments
        self._plan = plan
        special = self._specialization = plan.special
        if plan.interpreted or not bind(self, plan, arguments):
            strided = plan.strided
            if strided is not None and bind(self, strided, arguments):
                plan = self._plan = strided
                special = self._specialization = plan.special
            elif (other := _typed(kernel, arguments, lambda: take_strides(special, arguments))) is not special:
                strided = _launches_of(kernel).plan_of(other)
                if not strided.interpreted:
                    plan.strided = strided
                plan = self._plan = strided
                special = self._specialization = other
                bind(self, plan, arguments)
        if self._bound:  # see binding.py
            if config is None and plan.outputs and kernel.description.default_block is not None:
                place = self._output = plan.outputs[0]
                output_box = arguments[place]
                shape = output_box.value.shape if isinstance(output_box, Arc) else output_box.shape
                config = self._config = self._inferred(shape)
                plan.inferred, plan.inferred_shape = config, shape
            if config is not None:
                fitting = plan.fitting
                if fitting is not config and (fitting is None or not fitting.equals(config)):
                    self._check_shape(config)
                    if plan.warns:
                        plan.short = True  # perhaps: the bound outputs were compared with the previous configuration
                if plan.matrices:
                    self._check_width(arguments)
                if plan.short:
                    self._check_reach(arguments)
                self._unused = True
                tracer = points.tracer
                if tracer is not None:
                    self._built = tracer.built()
                return
        parts = _consume(arguments)
        parameters = special.parameters
        if len(arguments) != len(parameters):
            raise _wrong_count(kernel, arguments)
        known = self._known = self.spec()
        self._numbers = tuple(map(_numbers, parameters, arguments))
        self._refuse_shared_outputs(arguments)
        refuse_uneven_rows(kernel.name, parameters, plan.tiled, arguments)
        if kernel.description.contracts:
            self._check_contracts(known)
        output = next(
            (index for index, parameter in enumerate(parameters) if parameter.kind in ("disjoint", "tiles")), None
        )
        self._output = output
        if config is None:
            if kernel.description.default_block is None:
                raise LaunchError(
                    f"kernel {kernel.name} was launched without a grid and block: write "
                    f"{kernel.name}[grid, block](…), or declare @kernel(block=…)"
                )
            if output is None:
                raise LaunchError(
                    f"kernel {kernel.name} has no DisjointSlice for the grid to follow from: write "
                    f"{kernel.name}[grid, block](…)"
                )
            spec = known[output]
            if isinstance(spec, BoxSpec):
                self._config = self._inferred(spec.shape)
        if self._config is not None:
            given = [spec if isinstance(spec, BoxSpec) else each for spec, each in zip(known, arguments, strict=True)]
            self._check_shape(self._config)
            self._check_width(given)
            self._check_reach(given)
        if parts:
            self._composed, self._parts = True, tuple(parts)
        super().__init__(*parts)

    @property
    def specialization(self) -> Specialization:
        """Returns the specialization that is launched."""
        return self._specialization

    def traced_name(self) -> str:
        return self._kernel.name

    def _execute_otherwise(self, context: ExecutionContext) -> tuple[Any, ...]:
        """Does what ``execute`` does, in a recording or a trace, for a kernel that is not loaded yet, or for a launch
        that is not bound for this device."""
        config, specialization, device = self._config, self._specialization, context.device
        if not self._bound or config is None or (self._bound_device is not device and self._bound_device is not None):
            return self.finish(context, [])
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
        """Submits a launch without a binding for this device, for example because an argument is an operation.
        ``results`` are those of the operations among the arguments. Raises the errors for arguments that the kernel
        does not take."""
        yielded = iter(results)
        kernel, specialization, device = self._kernel, self._specialization, context.device
        results = []
        values: list[Any] = []
        reads: list[Allocation] = []
        writes: list[Allocation] = []
        if self._bound:
            self._require_device(device)
        for parameter, argument, number in zip(
            specialization.parameters, self._arguments, self._numbers or (), strict=True
        ):
            if isinstance(argument, DeviceOperation):
                argument = next(yielded)
                _check(kernel, parameter, argument)
                number = _numbers(parameter, argument)
            results.append(argument)
            if isinstance(parameter, NumbaParameter):
                plain = argument.value if isinstance(argument, Arc) else argument
                for array in arrays_in(parameter.type, plain):
                    require_device(array, device, f"kernel {kernel.name}, parameter {parameter.name}")
                    writes.append(array._allocation)
                values.append(parameter.type.flatten(plain))
                continue
            if number is not None:
                values.append(number)
                continue
            box: DeviceBox = argument.value if isinstance(argument, Arc) else argument
            require_device(box, device, f"kernel {kernel.name}, parameter {parameter.name}")
            values.append((box.ptr, *(box.shape if parameter.ndim > 1 else (box.size,))))
            (reads if parameter.kind == "slice" else writes).append(box._allocation)
        self._refuse_shared_outputs(results)
        refuse_uneven_rows(kernel.name, specialization.parameters, self._plan.tiled, tuple(results))
        if self._open_contracts:
            known: dict[str, int] = {}
            for parameter, value in zip(specialization.parameters, values, strict=True):
                if isinstance(parameter, NumbaParameter) or parameter.kind == "function":
                    continue
                if parameter.kind == "tuple":
                    known |= _integers(parameter, value)
                elif parameter.kind != "scalar":
                    known |= zip(parameter.lengths, value[1:], strict=True)
                elif parameter.dtype.kind in "iu":
                    known[parameter.name] = int(value)
            for contract in self._open_contracts:
                contract.check(kernel.name, known)
        config = self._config
        if config is None:
            assert self._output is not None
            output = results[self._output]
            config = self._inferred((output.value if isinstance(output, Arc) else output).shape)
        self._check_width(results)
        if self._known is not None and any(not isinstance(self._known[place], BoxSpec) for place in self._plan.outputs):
            self._check_shape(config)
            self._check_reach(results)
        specialization = compiled_beside(lambda: take_strides(specialization, results))
        if self._plan.interpreted:
            from oxide.runtime.launching.interpreting import interpret

            interpret(specialization, context, values, config, reads, writes)
            return tuple(results)
        for box in captured_boxes(specialization):
            require_device(box, device, f"kernel {kernel.name}, an array from outside of it")
            writes.append(box._allocation)
        function = ready_function(specialization, device)
        params = specialization.pack(values, context.fault_address(specialization) if function.reports else 0)
        grid, block, shared_bytes = config._grid, config._block, config._shared_mem_bytes
        if context.recording is not None:
            context.recording.launched = _recorded(specialization, results, params, context)
        context.launch(kernel.name, function, grid, block, shared_bytes, params, reads, writes)
        return tuple(results)

    def _require_device(self, device: Device) -> None:
        """Raises ``DeviceError`` if the boxes are on another device."""
        for parameter, argument in zip(self._specialization.parameters, self._arguments, strict=True):
            box = argument.value if isinstance(argument, Arc) else argument
            if isinstance(box, DeviceBox):
                require_device(box, device, f"kernel {self._kernel.name}, parameter {parameter.name}")

    def spec(self) -> tuple[Spec, ...]:
        if self._known is not None:
            return self._known
        return tuple(
            [
                _check(self._kernel, parameter, argument)
                for parameter, argument in zip(self._specialization.parameters, self._arguments, strict=True)
            ]
        )

    def _inferred(self, shape: tuple[int, ...]) -> LaunchConfig:
        """Returns a configuration with a thread for each ``items_per_thread`` elements or tiles of the output, rounded
        up. The threads are along x, or along y and x if the block has two axes. The grid consists of whole clusters.
        Raises ``LaunchError`` if no grid follows from the output's shape."""
        described = self._kernel.description
        block, items = described.default_block, described.items_per_thread
        assert block is not None
        assert self._output is not None
        output = self._specialization.parameters[self._output]
        assert isinstance(output, Parameter)
        tile = output.tile
        if len(tile) < 2 and block[1] == block[2] == 1:
            each = items[0] * (tile[0] if tile else 1)
            found = LaunchConfig.for_num_elems(-(-math.prod(shape) // each), block[0])
            return _whole_clusters(found, described.cluster)
        if len(tile) == 2 and len(shape) == 2:
            shape = (-(-shape[0] // tile[0]), -(-shape[1] // tile[1]))
        if len(tile) != 1 and block[2] == 1 and len(shape) == 2:
            found = LaunchConfig.for_shape((-(-shape[0] // items[1]), -(-shape[1] // items[0])), block)
            return _whole_clusters(found, described.cluster)
        raise LaunchError(
            f"kernel {self._kernel.name}: no grid follows from an output of shape {shape} and a block of {block}; "
            f"write {self._kernel.name}[grid, block](…)"
        )

    def _refuse_shared_outputs(self, arguments: Sequence[Any]) -> None:
        outputs: list[tuple[Parameter, DeviceBox]] = []
        inputs: list[tuple[Parameter, DeviceBox]] = []
        for parameter, argument in zip(self._specialization.parameters, arguments, strict=True):
            box = argument.value if isinstance(argument, Arc) else argument
            if isinstance(box, DeviceBox) and isinstance(parameter, Parameter):
                if parameter.kind in ("disjoint", "tiles", "atomic"):
                    outputs.append((parameter, box))
                elif parameter.kind == "slice":
                    inputs.append((parameter, box))
        if len(outputs) > 1:
            refuse_shared_outputs(self._kernel.name, outputs)
        if inputs and self._kernel.description.tile is not None:
            refuse_shared_tensors(self._kernel.name, inputs, outputs)

    def _check_contracts(self, specs: tuple[Spec, ...]) -> None:
        """Checks the contracts whose names are all known. The others are checked at execution, when the arguments that
        are operations have run."""
        known: dict[str, int] = {}
        certain: set[str] = set()
        for parameter, argument, spec in zip(self._specialization.parameters, self._arguments, specs, strict=True):
            if isinstance(parameter, NumbaParameter):
                continue
            operation = isinstance(argument, DeviceOperation)
            if parameter.kind == "tuple":
                if not operation:
                    assert parameter.lifted is not None
                    known |= (integers := _integers(parameter, parameter.lifted.words(argument)))
                    certain |= integers.keys()
                continue
            names = (parameter.name,) if parameter.kind == "scalar" else parameter.lengths
            if isinstance(spec, BoxSpec):
                lengths = spec.shape if parameter.ndim > 1 else (math.prod(spec.shape),)
                known |= zip(names, lengths, strict=True)
            elif parameter.kind == "scalar" and parameter.dtype.kind in "iu" and not operation:
                known[parameter.name] = int(parameter.convert(argument))
            if not operation:
                certain.update(names)
        for contract in self._kernel.description.contracts:
            if contract.names <= known.keys():
                contract.check(self._kernel.name, known)
        # Memory safety depends on the contracts, so an operation's announced spec is checked again once it has run.
        self._open_contracts = tuple(c for c in self._kernel.description.contracts if not c.names <= certain)

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
            shape = shape_of(arguments[place])
            size = 0 if shape is None else math.prod(shape)
            if shape is None or size <= slot.most:
                continue
            reached, instead = reach(plan, slot, shape, width_of(plan, arguments))
            if reached == size:
                slot.fits = shape
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
        try:
            if kwargs or (kernel.defaults and len(args) < len(kernel.parameters)):
                args = kernel.positional(args, kwargs)
            plan = launches.only or launches.plan_for(kernel, args)
            self._plan = launches.latest
            return KernelLaunch(kernel, self._config, args, plan)
        except CompilesLater:
            return self._deferred(args)
        except (CompileError, LaunchError) as error:
            drop_frames(error)
            raise

    def _deferred(self, arguments: tuple[Any, ...]) -> DeferredLaunch:
        kernel = self._kernel
        parts = _consume(arguments)
        if len(arguments) != len(kernel.parameters):
            raise _wrong_count(kernel, arguments)
        known = [_check(kernel, each, given) for each, given in zip(kernel.parameters, arguments, strict=True)]
        from oxide.runtime.launching.deferred import DeferredLaunch  # few launches need it

        return DeferredLaunch(kernel.name, partial(self, *arguments), parts, tuple(known))

    def interpret(self, *args: Any, **kwargs: Any) -> KernelLaunch | DeferredLaunch:
        """Returns an operation that interprets the launch; see ``Kernel.interpret``."""
        try:
            return ConfiguredKernel(self._kernel.interpreted, self._config)(*args, **kwargs)
        except (CompileError, LaunchError) as error:
            drop_frames(error)
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return ConfiguredKernel, (self._kernel, self._config)

    def __copy__(self) -> ConfiguredKernel:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ConfiguredKernel:
        return self


@final
class KernelLaunches:
    """The plans of one kernel's specializations, which its launches share. ``@kernel`` gives each kernel a
    ``KernelLaunches`` of its own."""

    __slots__ = ("_by_kinds", "_plans", "latest", "only")

    # a class attribute, as a method would cost a call at each launch
    configured: ClassVar[type[ConfiguredKernel]] = ConfiguredKernel

    def __init__(self) -> None:
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
        """Returns the result of ``Specialization.resources``."""
        from oxide.runtime.launching.resources import resources_of

        return resources_of(special, block, shared_mem_bytes)

    def tuner(self, kernel: Kernel, configs: object) -> Tuner:
        """Returns the object that tunes a kernel. Raises ``ArgumentError`` for wrong candidates."""
        from oxide.runtime.launching.tuning import Tuner

        return Tuner(kernel, configs)

    def plan_for(self, kernel: Kernel, arguments: tuple[Any, ...]) -> Plan:
        """Returns the plan for a launch's arguments. Raises ``ArgumentError`` and ``CompileError``."""
        if not kernel.is_generic:
            _consume(arguments)
            self.only = self.latest = self.plan_of(_typed(kernel, arguments, kernel.specialize))
            return self.only
        complete = len(arguments) == len(kernel.parameters)
        key = kinds(kernel, arguments) if complete else ()
        plan = self._by_kinds.get(key) if complete else None
        if plan is None:
            _consume(arguments)
            if not complete:
                raise _wrong_count(kernel, arguments)
            for parameter, argument in zip(kernel.parameters, arguments, strict=True):
                _check(kernel, parameter, argument)
            from oxide.runtime.launching.specializing import specialize_for

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


def _consume(arguments: tuple[Any, ...]) -> list[DeviceOperation[Any]]:
    """Returns the operations among the arguments and marks them as used, so that a refused launch does not warn."""
    parts = [argument for argument in arguments if isinstance(argument, DeviceOperation)]
    for part in parts:
        part.consume()
    return parts


def _wrong_count(kernel: Kernel, arguments: tuple[Any, ...]) -> ArgumentError:
    count = len(kernel.parameters)
    return ArgumentError(
        f"kernel {kernel.name} takes {count} argument{'s' * (count != 1)} "
        f"({', '.join(parameter.name for parameter in kernel.parameters)}), got {len(arguments)}"
    )


def _numbers(parameter: Closed, argument: Any) -> Any:
    """Returns the values to pass for a number, a tuple or a function, and None for a box or an operation. Call it when
    the launch is built, as the numbers that a function captures may change before the launch runs."""
    if isinstance(parameter, NumbaParameter) or isinstance(argument, DeviceOperation):
        return None
    if parameter.lifted is not None:
        return parameter.lifted.words(argument)
    return parameter.convert(argument) if parameter.kind == "scalar" else None


def _recorded(special: Specialization, arguments: Sequence[Any], params: bytes, context: ExecutionContext) -> Launched:
    """Returns the part of a launch that a recording keeps, which has no references to boxes. ``params`` are the packed
    parameters. For an argument that is a function, they have the numbers that it captured when the launch was built;
    the function's own numbers may have changed since."""
    values: list[Any] = []
    allocations: list[Allocation | None] = []
    contiguous = True
    for parameter, argument in zip(special.parameters, arguments, strict=True):
        plain = argument.value if isinstance(argument, Arc) else argument
        box = plain if isinstance(plain, DeviceBox) else None
        allocations.append(None if box is None else box._allocation)
        contiguous = contiguous and (box is None or box.is_contiguous)
        if isinstance(parameter, NumbaParameter):
            values.append(parameter.type.flatten(plain))
        elif parameter.lifted is not None:
            values.append(special.words_of(params, len(values)))
        elif box is None:
            values.append(_numbers(parameter, argument))
        else:
            values.append((box.ptr, *(box.shape if parameter.ndim > 1 else (box.size,))))
    return Launched(special, tuple(values), tuple(allocations), context.place, contiguous=contiguous)


def _integers(parameter: Parameter, words: tuple[Any, ...]) -> dict[str, int]:
    """Returns the integers of a tuple by name, for a contract."""
    assert parameter.lifted is not None
    named = zip(parameter.lifted.parts, words, strict=True)
    return {part.name: int(word) for part, word in named if part.dtype.kind in "iu"}


def _check(kernel: Kernel, parameter: Declared, argument: object) -> Spec:
    """Checks one argument as far as it is known, and returns its spec. Raises ``ArgumentError``."""
    if isinstance(parameter, NumbaParameter | UntypedParameter):
        check_argument(parameter, argument)
        if isinstance(argument, DeviceOperation):
            return argument.spec()
        given = argument.value if isinstance(argument, Arc) else argument
        return BoxSpec(given.shape, given.dtype) if isinstance(given, DeviceBox) else None
    if parameter.kind == "function":
        if is_function(argument):
            if isinstance(parameter, Parameter) and parameter.lifted is not None:
                parameter.lifted.words(argument)
            return None
        raise ArgumentError(
            f"kernel {kernel.name}: parameter {parameter.name} is {parameter.annotation}, the argument is "
            f"{type(argument).__name__} {written(argument):.80}; pass a function: a lambda, a def or a @device function"
        )
    if TYPE_CHECKING:
        assert not isinstance(parameter, OpenFunction)
    if isinstance(parameter, Parameter) and parameter.lifted is not None:
        if not isinstance(argument, DeviceOperation):
            parameter.lifted.words(argument)
            return None
        spec: Spec = argument.spec()
        if isinstance(spec, BoxSpec):
            raise ArgumentError(
                f"kernel {kernel.name}, parameter {parameter.name}: expected {parameter.annotation}, got an operation "
                f"that yields {_found(spec)}"
            )
        return None
    if isinstance(argument, DeviceOperation):
        spec = argument.spec()
        if parameter.kind == "scalar":
            if isinstance(spec, (BoxSpec, tuple)):
                raise _refusal(kernel, parameter, "an operation that yields " + _found(spec))
            return spec
        if isinstance(spec, BoxSpec):
            _check_dtype(kernel, parameter, spec.dtype)
            _check_axes(kernel, parameter, spec.shape)
        elif isinstance(spec, tuple):
            raise _refusal(
                kernel, parameter, "an operation that yields a tuple; pick one with first(), last() or unzip()"
            )
        return spec
    if parameter.kind == "scalar":
        parameter.convert(argument)
        return None
    box = argument.value if isinstance(argument, Arc) else argument
    if isinstance(box, DeviceBox):
        _check_dtype(kernel, parameter, box.dtype)
        _check_axes(kernel, parameter, box.shape)
        if not box.is_contiguous:
            element = parameter.scalar.name if isinstance(parameter, Parameter) else parameter.variable
            strided = f", and Array[{element}, {box.ndim}] takes strides"
            if isinstance(parameter, Parameter) and parameter.of_tiles:
                strided = ""
            raise _refusal(
                kernel,
                parameter,
                f"a strided view, of shape {box.shape} and strides {box.strides} bytes: {parameter.annotation} takes "
                f"contiguous memory; dup(view) makes a contiguous box{strided}",
            )
        # A generic parameter is checked again when its type is known.
        if isinstance(parameter, Parameter) and parameter.kind == "tiles" and box.ptr % parameter.alignment:
            raise _refusal(
                kernel,
                parameter,
                f"one at an address that is no multiple of {parameter.alignment}, where the tiles of "
                f"{parameter.annotation} begin; partition a box at multiples of a tile, or write this piece by a "
                "DisjointSlice without a layout",
            )
        return BoxSpec(box.shape, box.dtype)
    if isinstance(box, np.ndarray):
        raise _refusal(
            kernel, parameter, "a NumPy array, which is in host memory; copy it to the device with h2d(array)"
        )
    if isinstance(box, Partition):
        raise _refusal(kernel, parameter, "a Partition, which is for tile kernels; pass partition.unpartition()")
    upload = upload_of(box, parameter.dtype if isinstance(parameter, Parameter) else None)
    if upload is not None:
        raise _refusal(
            kernel, parameter, f"a {type(box).__name__} x in host memory; copy it to the device with {upload}"
        )
    if isinstance(box, tuple):
        raise _refusal(kernel, parameter, "a tuple, as a launch yields all its arguments; pick one of them")
    raise _refusal(kernel, parameter, f"{type(argument).__name__} {written(argument):.80}")


def _check_dtype(kernel: Kernel, parameter: Parameter | OpenParameter, dtype: np.dtype[Any]) -> None:
    if isinstance(parameter, Parameter) and dtype != parameter.dtype and not parameter.scalar.takes(dtype):
        raise _refusal(
            kernel,
            parameter,
            f"a box of {dtype}; convert the data before the upload: array.astype({str(parameter.dtype)!r})",
        )


def _check_axes(kernel: Kernel, parameter: Parameter | OpenParameter, shape: tuple[int, ...]) -> None:
    """Checks the number of axes. A slice of one axis takes any box, in row-major order; a slice of several axes takes
    only a box with that number of axes."""
    if parameter.ndim not in (1, len(shape)):
        axes = "one axis" if len(shape) == 1 else f"{len(shape)} axes"
        raise _refusal(
            kernel,
            parameter,
            f"a box of {axes}, of shape {shape}: {parameter.annotation} takes one of {parameter.ndim} axes; "
            "box.reshape(…) gives the same memory other axes",
        )


def _refusal(kernel: Kernel, parameter: Parameter | OpenParameter, found: str) -> ArgumentError:
    kind = "a scalar" if parameter.kind == "scalar" else "a device buffer"
    of = parameter.dtype if isinstance(parameter, Parameter) else parameter.variable
    return ArgumentError(f"kernel {kernel.name}, parameter {parameter.name}: expected {kind} of {of}, got {found}")


def _found(spec: Spec) -> str:
    return f"a box of {spec.dtype}" if isinstance(spec, BoxSpec) else "a tuple"


def _launch_failed(kernel: Kernel, error: BaseException) -> NoReturn:
    """Raises the error of a launch, with the kernel's name if it is a ``LaunchError``."""
    if isinstance(error, LaunchError):
        raise LaunchError(f"kernel {kernel.name}: {error}") from None
    try:
        raise error
    finally:
        del error  # a frame that its traceback has must not refer to it


core.setup(KernelLaunch=KernelLaunch, launch_failed=_launch_failed, is_interrupt=is_interrupt)
