"""``@tile.kernel``: makes kernels of functions on tiles, which describe the computation of a whole block. A call of a
kernel checks the arguments and returns the launch as an operation.

A tile kernel makes an ordinary ``Kernel`` for each choice of tile shapes and constants. That ``Kernel`` is compiled and
launched like any other.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn, final, overload

from oxide.compiler.declaration.description import checked
from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.kernel.specialization import Specialization
from oxide.compiler.signature.annotations import Names, default_values
from oxide.compiler.source.source import keep_text, located, parameter_line
from oxide.compiler.tile import tile_source as source
from oxide.compiler.tile.frontend import TensorParameter
from oxide.compiler.tile.ir import DTYPES
from oxide.compiler.tile.tile_source import TileSource
from oxide.driver.base import KernelResources
from oxide.errors import ArgumentError, CompileError, LaunchError
from oxide.host.environment import drop_frames, without_frames
from oxide.host.host_arrays import upload_of
from oxide.host.messages import written
from oxide.language.tile import Annotation, Function
from oxide.language.types import ScalarType
from oxide.runtime.awaiting.loading import note_compiled, note_compiling
from oxide.runtime.launching.launch import KernelLaunches
from oxide.runtime.launching.launch_config import LaunchConfig
from oxide.runtime.launching.refusals import refuse_shared_tensors
from oxide.runtime.launching.tuning import Tuned, checked_configs, loaded, shapes_of
from oxide.runtime.launching.tuning import tune as search
from oxide.runtime.loop.event_loops import current_loop
from oxide.runtime.memory.memory import Arc, DeviceBox, Partition
from oxide.runtime.memory.strides import grid_of, parse_tile_shape
from oxide.runtime.operations.combinators import zip as both
from oxide.runtime.operations.operation import BoxSpec, Depiction, DeviceOperation, Spec, consume, value
from oxide.runtime.operations.transfers import Partitioned
from oxide.runtime.submission.submission import ExecutionContext

if TYPE_CHECKING:
    from oxide.compiler.cache.built import BuiltKernel

__all__ = ["TileKernel", "kernel"]

_WARP = 32
_MOST_WARPS = 32


@final
class TileKernel:
    """A kernel of tiles. A call returns an operation that runs the kernel once for each tile of its first ``Partition``
    and yields the arguments."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        warps: int = 4,
        stages: int | None = None,
        fastmath: bool = False,
        lineinfo: bool | None = None,
        configs: Any = (),
        names: Mapping[str, Any],
        prebuilt: BuiltKernel | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        if prebuilt is None:
            keep_text(function)
        self.name = function.__name__
        self.function = function
        if isinstance(warps, bool) or not isinstance(warps, int) or not 1 <= warps <= _MOST_WARPS:
            raise located(function, f"kernel {self.name}: warps is {written(warps)}; a block has 1 to {_MOST_WARPS}")
        if stages is not None and (isinstance(stages, bool) or not isinstance(stages, int) or stages < 1):
            raise located(function, f"kernel {self.name}: stages is {written(stages)}; a loop has 1 or more")
        self._prebuilt = prebuilt
        self._warps = warps
        self._stages = stages
        self._fastmath = fastmath
        self._lineinfo = checked(function, self.name, {"lineinfo": lineinfo})["lineinfo"]
        self.parameters = _parameters(function, names)
        self.defaults = default_values(function)
        self._signature = inspect.signature(function)
        self._constants = tuple(name for name, kind in self.parameters.items() if _is(kind, "constant"))
        self._configs = checked_configs(self.name, configs, self._constants)
        self._tuned: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._kernels: dict[tuple[Any, ...], Kernel] = {}
        self._latest: Kernel | None = None
        self._grid = next((name for name, kind in self.parameters.items() if _is(kind, "partition")), None)
        if self._grid is None:
            raise located(
                function,
                f"kernel {self.name} has no tile.Partition: its grid follows from the partition that it writes",
            )

    def __repr__(self) -> str:
        return f"<tile kernel {self.name}({', '.join(f'{name}: {kind!r}' for name, kind in self.parameters.items())})>"

    def _repr_html_(self) -> str:
        """Returns the kernel's name, parameters, options and docstring, which notebooks show."""
        from oxide.compiler.kernel.reports import report

        rows = [
            (name, f"{kind!r} = {self.defaults[name]!r}" if name in self.defaults else repr(kind))
            for name, kind in self.parameters.items()
        ]
        rows += [("warps", str(self._warps)), *([("stages", str(self._stages))] if self._stages else [])]
        return report("tile kernel", self.name, self.function, rows)

    def __reduce__(self) -> str:
        from oxide.compiler.signature.device_function import global_name

        return global_name(self, f"kernel {self.name}")

    @without_frames
    def __getitem__(self, configuration: object) -> NoReturn:
        """Raises ``LaunchError``: the partition decides the grid, and ``warps`` the block."""
        raise LaunchError(
            f"kernel {self.name} is a tile kernel, which takes no grid and block in brackets: its grid has a block for "
            f"each tile of {self._grid}, and @tile.kernel(warps=...) chooses the threads; call "
            f"{self.name}({', '.join(self.parameters)})"
        )

    @without_frames
    def __call__(self, *args: Any, **kwargs: Any) -> DeviceOperation[tuple[Any, ...]]:
        """Returns an operation that launches the kernel and yields the arguments, in order.

        Raises ``ArgumentError`` and ``CompileError`` before anything is submitted.
        """
        consume((*args, *kwargs.values()))
        given = self._given(args, kwargs)
        if any(self._waits(self.parameters[name], each) for name, each in given.items()):
            names = list(given)
            parts = [each if isinstance(each, DeviceOperation) else value(each) for each in given.values()]
            return both(*parts).and_then(lambda results: self(**dict(zip(names, results, strict=True))))
        return self._launch(given, self._config_for(given))

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments of a call by their names, with defaults for all but the constants, which may be
        missing. Raises ``ArgumentError``."""
        try:
            bound = self._signature.bind_partial(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"kernel {self.name}: {error}") from None
        given = {name: each for name, each in self.defaults.items() if name not in self._constants} | bound.arguments
        for name in self.parameters:
            if name not in given and name not in self._constants:
                raise ArgumentError(f"kernel {self.name}: missing a required argument: {name!r}")
        return given

    def tune(
        self, configs: Any = None, /, *args: Any, budget: float = 60.0, progress: bool = True, **kwargs: Any
    ) -> Tuned:
        """Finds the fastest of some candidates for the arguments of a launch, and uses it for all launches with
        arguments of these shapes: ``k.tune([{"bk": 32, "warps": 4}, {"bk": 64, "stages": 3}], out.partition(shape), a,
        b)``.

        A candidate is a dict of constants, ``warps`` and ``stages``. If ``configs`` is None, the candidates are the
        kernel's own ``configs``. The candidates run in another process on copies of the arguments, for at most
        ``budget`` seconds, with a progress bar if stderr is a terminal. The arguments are boxes, partitions and
        numbers, without the constants that the candidates give. The result is kept on disk. Raises ``ArgumentError``.
        """
        candidates = self._configs if configs is None else checked_configs(self.name, configs, self._constants)
        if not candidates:
            raise ArgumentError(f"kernel {self.name}: tune needs candidates, as in k.tune([{{'warps': 8}}], …)")
        given = self._given(args, kwargs)
        fixed = {name: value for name, value in given.items() if name in self._constants}
        candidates = tuple(fixed | each for each in candidates)
        found = search(self, candidates, self._passed(given), budget, progress)
        self._tuned[found.shapes] = found.config
        return found

    async def tune_async(
        self, configs: Any = None, /, *args: Any, budget: float = 60.0, progress: bool = False, **kwargs: Any
    ) -> Tuned:
        """Does what ``tune`` does, in a thread, so that the event loop keeps running."""
        search = functools.partial(self.tune, configs, *args, budget=budget, progress=progress, **kwargs)
        return await current_loop().in_thread(search)

    def load_tuned(self, path: str | PathLike[str]) -> int:
        """Uses the results that ``Tuned.save`` has written for this kernel and devices like the current one. Returns
        the number of shapes with a result. Raises ``ArgumentError`` if the file has no result for this kernel, or only
        for another version of its source."""
        found = loaded(self, path)
        self._tuned |= found
        return len(found)

    def with_config(self, config: Mapping[str, Any], arguments: Sequence[Any]) -> DeviceOperation[tuple[Any, ...]]:
        """Returns the launch that ``tune`` measures for a candidate. ``arguments`` leave out the constants."""
        names = [name for name in self.parameters if name not in self._constants]
        return self._launch(dict(zip(names, arguments, strict=True)), config)

    def _passed(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """Returns the arguments of a launch in the order of the parameters, without the kernel's constants."""
        return tuple(given[name] for name in self.parameters if name not in self._constants)

    def _config_for(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the candidate for a launch: the fastest one if ``tune`` has run for its shapes, else the kernel's
        first candidate. Without candidates, returns an empty dict."""
        if self._tuned:
            shapes = shapes_of(self._passed(given))
            if shapes is not None and shapes in self._tuned:
                return self._tuned[shapes]
        return self._configs[0] if self._configs else {}

    def options(self) -> dict[str, Any]:
        """Returns the options that ``tile.kernel`` was given, or their defaults."""
        return {
            "warps": self._warps,
            "stages": self._stages,
            "fastmath": self._fastmath,
            "lineinfo": self._lineinfo,
            "configs": self._configs,
        }

    def specialize(self, **given: Any) -> Specialization:
        """Returns the specialization for tile shapes and constants, which are given by the names of the parameters:
        ``add.specialize(z=(4, 4)).ptx()``. ``warps`` and ``stages`` may be given too. Constants with a default may be
        left out. Raises ``ArgumentError`` and ``CompileError``."""
        tiles: dict[str, tuple[int, ...]] = {}
        constants: dict[str, Any] = {}
        for name, kind in self.parameters.items():
            if _is(kind, "partition"):
                if name not in given:
                    raise ArgumentError(f"kernel {self.name}: give the tile shape of {name}, as in {name}=(32, 32)")
                tiles[name] = self._tile_shape(name, kind, parse_tile_shape(given.pop(name), None))
            elif _is(kind, "constant"):
                first = self.defaults | (self._configs[0] if self._configs else {})
                if name not in given and name not in first:
                    raise ArgumentError(f"kernel {self.name}: give the constant {name}")
                constants[name] = self._constant(name, kind, given.pop(name, first.get(name)))
        warps, stages = given.pop("warps", None), given.pop("stages", None)
        if given:
            raise ArgumentError(f"kernel {self.name} has no partition and no constant {' and no '.join(given)}")
        return self._kernel(tiles, constants, warps, stages).specialize()

    def _example(self, given: dict[str, Any]) -> Specialization:
        if not given and self._latest is not None:
            return self._latest.specialize()
        return self.specialize(**given)

    @without_frames
    def ptx(self, cc: tuple[int, int] = (9, 0), **given: Any) -> str:
        """Returns the PTX for a compute capability. ``given`` are tile shapes and constants, as for ``specialize``.
        Without ``given``, returns the PTX of the latest launch. Needs no GPU."""
        return self._example(given).ptx(cc)

    @without_frames
    def llvm_ir(self, **given: Any) -> str:
        """Returns the text of the IR from which the CPU's code is compiled; ``given`` as for ``ptx``."""
        return self._example(given).llvm_ir()

    @without_frames
    def native_asm(self, **given: Any) -> str:
        """Returns the assembly for this machine's CPU; ``given`` as for ``ptx``."""
        return self._example(given).native_asm()

    def resources(self, **given: Any) -> KernelResources:
        """Returns registers, memory, spills and occupancy, as the driver reports them for the GPU that operations run
        on; ``given`` as for ``ptx``. Raises ``DeviceError`` on the CPU device."""
        return self._example(given).resources()

    @without_frames
    def explain(self, cc: tuple[int, int] = (9, 0), **given: Any) -> str:
        """Returns a description of the kernel on a GPU with the compute capability ``cc``: the place of each value, the
        products that run on tensor cores, the reasons why other products do not, and the loads that run ahead.
        ``given`` is as for ``ptx``."""
        tile = self._example(given).description.tile
        assert tile is not None
        return tile.explained(10 * cc[0] + cc[1])

    def _waits(self, kind: Any, argument: Any) -> bool:
        """Returns whether an argument must be computed before the launch can be checked."""
        if not isinstance(argument, DeviceOperation) or not isinstance(kind, Annotation):
            return False
        if kind.kind == "partition":
            known = argument.source.spec() if isinstance(argument, Partitioned) else argument.spec()
            return not isinstance(known, BoxSpec)
        return kind.kind in ("tensor", "target") and not isinstance(argument.spec(), BoxSpec)

    def _launch(self, given: dict[str, Any], config: Mapping[str, Any]) -> DeviceOperation[tuple[Any, ...]]:
        tiles: dict[str, tuple[int, ...]] = {}
        constants: dict[str, Any] = {}
        passed: list[Any] = []
        grid: tuple[int, ...] = ()
        for name, kind in self.parameters.items():
            if _is(kind, "constant"):
                chosen = given if name in given else config if name in config else self.defaults
                if name not in chosen:
                    raise ArgumentError(f"kernel {self.name}: missing a required argument: {name!r}")
                constants[name] = self._constant(name, kind, chosen[name])
                continue
            argument = given[name]
            if not isinstance(kind, Annotation):
                passed.append(argument)
                continue
            plain = argument.value if isinstance(argument, Arc) else argument
            if kind.kind == "partition":
                if isinstance(plain, Partition):
                    box: Any = plain.box
                    tile = plain.tile_shape
                elif isinstance(plain, Partitioned):
                    box, tile = plain.source, plain.tile_shape
                else:
                    upload = upload_of(plain, kind.scalar.dtype) or "box"
                    raise self._refused(name, kind, plain, f"pass {upload}.partition(shape)")
                tiles[name] = self._tile_shape(name, kind, tile)
            else:
                box = plain
                if isinstance(plain, Partition):
                    raise self._refused(name, kind, plain, "pass its box, partition.unpartition()")
            shape = self._shape(name, kind, box)
            if kind.kind == "partition":
                mine = grid_of(shape, tiles[name])
                if name == self._grid:
                    grid = mine
                elif mine != grid:
                    raise ArgumentError(
                        f"kernel {self.name}: {self._grid} has {_counted(grid)} tiles and {name} has {_counted(mine)}; "
                        "a kernel runs once for each tile, so its partitions have equally many along each axis"
                    )
            passed.append(box if kind.kind == "partition" else argument)
        warps = config.get("warps", self._warps)
        inner = self._latest = self._kernel(tiles, constants, warps, config.get("stages"))
        refuse_shared_tensors(self.name, inner.description.parameters, passed)
        launch = inner[LaunchConfig(max(1, math.prod(grid)), _WARP * warps)](*passed)
        return TileLaunch(launch, self, {name: (given | constants)[name] for name in self.parameters})

    def _shape(self, name: str, kind: Annotation, box: Any) -> tuple[int, ...]:
        known = box.spec() if isinstance(box, DeviceOperation) else box
        if not isinstance(known, BoxSpec | DeviceBox):
            upload = upload_of(box, kind.scalar.dtype) or "h2d(array)"
            raise self._refused(name, kind, box, f"pass a box, as {upload} makes one")
        if len(known.shape) != kind.ndim:
            raise ArgumentError(
                f"kernel {self.name}: parameter {name} is {kind!r}, the argument has shape {known.shape}; pass a box "
                f"of {kind.ndim} axes"
            )
        return known.shape

    def _refused(self, name: str, kind: Annotation, argument: Any, advice: str) -> ArgumentError:
        found = "a box" if isinstance(argument, DeviceBox) else type(argument).__name__
        if isinstance(argument, DeviceOperation):
            found = "an operation that yields a box"
        return ArgumentError(f"kernel {self.name}: parameter {name} is {kind!r}, the argument is {found}; {advice}")

    def _tile_shape(self, name: str, kind: Annotation, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) != kind.ndim:
            raise ArgumentError(
                f"kernel {self.name}: parameter {name} is {kind!r}, and tiles of shape {shape} have {len(shape)} axes"
            )
        return shape

    def _constant(self, name: str, kind: Annotation, given: Any) -> Any:
        wanted: Any = kind.scalar
        if isinstance(given, DeviceOperation | DeviceBox) or not isinstance(
            given, int | float | str | ScalarType | tuple
        ):
            raise ArgumentError(
                f"kernel {self.name}: {name} is a tile.Constant, a number, string, dtype or tuple of these, not "
                f"{type(given).__name__}"
            )
        named = isinstance(wanted, type) and wanted is not Any  # Any is a class since Python 3.11
        if (named and not isinstance(given, wanted)) or (wanted is int and isinstance(given, bool)):
            raise ArgumentError(
                f"kernel {self.name}: {name} is a tile.Constant[{wanted.__name__}], not {written(given)}"
            )
        return given

    def _kernel(
        self,
        tiles: dict[str, tuple[int, ...]],
        constants: dict[str, Any],
        warps: int | None = None,
        stages: int | None = None,
    ) -> Kernel:
        """Returns the ``Kernel`` for these tile shapes, constants, warps and stages. The tile kernel's own warps and
        stages are the defaults."""
        warps, stages = warps or self._warps, stages or self._stages
        threads = _WARP * warps
        named = ((name, repr(each)) for name, each in constants.items())  # 1, 1.0 and True are different constants
        key = (*tiles.items(), *named, threads, stages, source.simulated)
        found = self._kernels.get(key)
        if found is None:
            given: dict[str, Any] = {}
            for name, kind in self.parameters.items():
                if _is(kind, "constant"):
                    given[name] = (constants[name],)
                elif isinstance(kind, Annotation):
                    target = kind.kind == "target"
                    given[name] = TensorParameter(name, kind.scalar, kind.ndim, tiles.get(name), target)
                else:
                    given[name] = kind
            found = self._kernels[key] = Kernel(
                self.function,
                launches=KernelLaunches(),
                compiling=note_compiling,
                compiled=note_compiled,
                fastmath=self._fastmath,
                lineinfo=self._lineinfo,
                block=threads,
                partial=True,
                tile=TileSource(self.function, given, threads, stages, self._fastmath),
                tile_key=key,
                prebuilt=self._prebuilt,
            )
        return found


@final
class TileLaunch(DeviceOperation[tuple[Any, ...]]):
    """A launch of a tile kernel. Yields the tuple of its arguments, in order."""

    _composed = True

    def __init__(self, launch: DeviceOperation[tuple[Any, ...]], kernel: TileKernel, given: dict[str, Any]) -> None:
        self._launch = launch
        self._parts = (launch,)
        self._tile_kernel = kernel
        self._given = given
        super().__init__(launch)

    @property
    def specialization(self) -> Specialization:
        """Returns the specialization that is launched."""
        found: Specialization = self._launch.specialization  # type: ignore[attr-defined]
        return found

    def finish(self, context: ExecutionContext, results: list[Any]) -> tuple[Any, ...]:
        passed = iter(results[0])
        found: list[Any] = []
        for name, argument in self._given.items():
            kind = self._tile_kernel.parameters[name]
            if _is(kind, "constant"):
                found.append(argument)
                continue
            result = next(passed)
            found.append(Partition(result, argument.tile_shape) if isinstance(argument, Partitioned) else
                         argument if _is(kind, "partition") else result)  # fmt: skip
        return tuple(found)

    def spec(self) -> Spec:
        specs = iter(known) if isinstance(known := self._launch.spec(), tuple) else iter(())
        found: list[Spec] = []
        for name in self._given:
            kind = self._tile_kernel.parameters[name]
            one: Spec = None if _is(kind, "constant") else next(specs, None)
            found.append(None if _is(kind, "partition") else one)
        return tuple(found)

    def depict(self) -> Depiction:
        kind, _, lines, inputs = self._launch.depict()
        constants = [
            f"{name} = {written(given)}"
            for name, given in self._given.items()
            if _is(self._tile_kernel.parameters[name], "constant")
        ]
        return kind, self._tile_kernel.name, ("tile kernel", *lines, *constants), inputs

    def __repr__(self) -> str:
        return f"<oxide operation launch of tile kernel {self._tile_kernel.name}>"


def _is(kind: Any, name: str) -> bool:
    return isinstance(kind, Annotation) and kind.kind == name


def _counted(grid: tuple[int, ...]) -> str:
    return "x".join(map(str, grid))


def _parameters(function: Callable[..., Any], local_names: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parsed annotation of each parameter. Raises ``CompileError``."""
    names = Names(function, local_names)
    found: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        name = parameter.name

        def refused(problem: str, name: str = name) -> CompileError:
            return located(function, f"kernel {function.__name__}: {problem}", *parameter_line(function, name))

        if parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise refused(f"parameter {name} must be an ordinary one, without * or /")
        if parameter.annotation is inspect.Parameter.empty:
            raise refused(
                f"parameter {name} needs an annotation: tile.Tensor[f32, 2], tile.Partition[f32, 2], "
                "tile.Constant[int] or a scalar type"
            )
        kind = names.evaluate(parameter.annotation, f"the annotation of {name}", name)
        kind = {float: None, int: None}.get(kind, kind) if isinstance(kind, type) else kind
        scalar = kind.scalar if isinstance(kind, Annotation) else kind
        if not isinstance(kind, Annotation | ScalarType) or (not _is(kind, "constant") and scalar not in DTYPES):
            raise refused(
                f"the annotation of {name} is no type of a tile kernel's parameter: use tile.Tensor[f32, 2], "
                "tile.Partition[f32, 2], tile.Constant[int] or a scalar type of "
                + " ".join(each.name for each in DTYPES)
            )
        found[name] = kind
    return found


@overload
def kernel(function: Callable[..., Any], /) -> TileKernel: ...
@overload
def kernel(
    function: None = None,
    /,
    *,
    warps: int = 4,
    stages: int | None = None,
    fastmath: bool = False,
    lineinfo: bool | None = None,
    configs: Any = (),
) -> Callable[[Callable[..., Any]], TileKernel]: ...
def kernel(
    function: Callable[..., Any] | None = None,
    /,
    *,
    warps: int = 4,
    stages: int | None = None,
    fastmath: bool = False,
    lineinfo: bool | None = None,
    configs: Any = (),
) -> TileKernel | Callable[[Callable[..., Any]], TileKernel]:
    """Makes a tile kernel of a Python function. Raises ``CompileError`` for annotations that a tile kernel cannot have.

    The function runs once for each tile of its first ``tile.Partition`` parameter. ``warps`` is the number of warps of
    32 threads that compute a tile on a GPU. ``fastmath`` allows reassociation, contraction, approximate division, and
    an ``exp2`` of f32 that gives 0 for results below the normal floats. ``stages`` is the number of buffers, on a GPU,
    of each load whose tile a matrix product in a loop reads: the copies run up to ``stages - 1`` iterations ahead. By
    default there are as many buffers as fit, up to three. ``lineinfo`` has the meaning that it has for
    ``oxide.kernel``. ``configs`` are candidates for ``k.tune``. Launches use the first candidate until ``k.tune`` has
    run.
    """
    names = dict(sys._getframe(1).f_locals)

    def made(function: Callable[..., Any]) -> TileKernel:
        try:
            return TileKernel(
                function,
                warps=warps,
                stages=stages,
                fastmath=fastmath,
                lineinfo=lineinfo,
                configs=configs,
                names=names,
            )
        except (CompileError, LaunchError) as error:
            drop_frames(error)
            raise

    return made if function is None else made(function)


def function(wrapped: Any) -> Any:
    """Returns ``wrapped`` as a function that tile kernels can call. Use it as a decorator, ``@tile.function``. The
    function is compiled into its callers."""
    keep_text(wrapped)
    return Function(wrapped)
