"""Runs batches on Ray actors, each of which holds a device: ``oxide.ray``.

Ray schedules the actors, restarts them and stores arrays. This package adds the device of each actor, the upload of its
weights, the window of batches in flight (``ray_batches.py``), and results that trio or asyncio awaits without a thread
for each. ``ray_actors.py`` is the part that runs in the actors' processes.

Ray's own retries of batches (``max_task_retries``) are not used. With them, Ray sends a batch to the same actor again,
after its restart, which takes seconds. The pool sends the batch to another actor at once (``ray_batches.py``).
"""

from __future__ import annotations

import inspect
import math
import os
import warnings
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any, Generic, Literal, NoReturn, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from oxide.host.messages import written
from oxide.runtime.loop.event_loops import current_loop
from oxide.runtime.memory.memory import require_data
from oxide.serving.task_groups import TaskGroup, task_group

try:
    import ray
except ImportError as error:
    raise ImportError("oxide.ray needs ray, which is not installed: pip install 'oxide-gpu[ray]'") from error

from oxide.distributed.ray_actors import DeviceActor, Settings, send_kernels_by_value
from oxide.distributed.ray_batches import Batches, Scheduler, Worker

Batch = TypeVar("Batch")
Result = TypeVar("Result")

send_kernels_by_value()


@final
@dataclass(frozen=True, slots=True)
class ActorState:
    """An actor of a pool, as ``ActorPool.actors`` lists it.

    ``state`` is ``"starting"``, ``"ready"``, ``"restarting"`` or ``"dead"``. ``pid``, ``node`` (its address),
    ``device`` (its label, such as ``cuda:0``) and ``threads`` (the most that run kernels of the CPU device) are those
    of the last process that was ready. ``restarts`` counts the restarts that the pool has seen, ``in_flight`` the
    batches that the actor has.
    """

    number: int
    state: Literal["starting", "ready", "restarting", "dead"]
    pid: int | None
    node: str | None
    device: str | None
    threads: int | None
    restarts: int
    in_flight: int


@final
class ActorPool(Generic[Batch, Result]):
    """Actors of Ray, each with a device and a model, that run batches: ``async with ActorPool(Model, actors=4) as pool:
    async for result in pool.map_batches(batches): …``.

    ``model`` is a class. Each actor makes one object of it, ``model(**weights, **arguments)``, in a thread of its own.
    The object is called with a batch and returns an operation, a coroutine or a result. Operations and coroutines are
    awaited on the actor's event loop, and their result is the batch's. Results are pickled, so device arrays end with
    ``d2h``.

    - ``actors``: the number of actors.
    - ``weights``: arrays by name. Each is put once in Ray's object store. An actor uploads it from there through
      page-locked memory, without another copy on the host. The model gets ``DeviceBox``es.
    - ``arguments``: further arguments of the model, pickled.
    - ``in_flight``: the most batches that an actor has at a time.
    - ``num_gpus``: the GPUs of an actor. By default one, or a share of one if the cluster has fewer GPUs than
      ``actors``. Actors of a cluster without a GPU, or under ``OXIDE_DEVICE=cpu``, use the CPU device.
    - ``num_cpus``: the cores of an actor, which are also the threads of its CPU device. By default Ray reserves none
      for it, and the actors share the cores of their machine.
    - ``max_restarts``: how often Ray restarts each actor that died; -1 means without limit.
    - ``max_retries``: how often a batch is run again because its actor died. The last time, it has an actor to itself.
    - ``ray_options``: further options of Ray's actors, such as ``{"runtime_env": …}``.

    The start of the block calls ``ray.init()`` if the program has not connected to Ray. This blocks the event loop, so
    connect before. The end of the block kills the actors. Runs under trio and asyncio. Raises ``TypeError`` and
    ``ValueError`` for wrong arguments. The start of the block raises the error of the model's constructor, and
    ``ActorLostError`` if an actor cannot be started.
    """

    def __init__(
        self,
        model: type,
        *,
        actors: int = 1,
        weights: Mapping[str, NDArray[Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
        in_flight: int = 2,
        num_gpus: float | None = None,
        num_cpus: float | None = None,
        max_restarts: int = 3,
        max_retries: int = 3,
        ray_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not inspect.isclass(model):
            raise TypeError(
                f"ActorPool takes a class, which each actor makes an object of, not {written(model):.80}; pass the "
                f"constructor's arguments as arguments={{…}}"
            )
        if not any("__call__" in vars(each) for each in model.__mro__):
            raise TypeError(
                f"ActorPool({model.__name__}): the class has no method __call__(batch), which returns the operation "
                f"that computes a batch's result"
            )
        _require_count("actors", actors, 1)
        _require_count("in_flight", in_flight, 1)
        _require_count("max_retries", max_retries, 0)
        _require_count("max_restarts", max_restarts, -1)
        _require_amount("num_gpus", num_gpus)
        _require_amount("num_cpus", num_cpus)
        if num_gpus and os.environ.get("OXIDE_DEVICE", "").strip() == "cpu":
            raise ValueError(
                f"ActorPool(num_gpus={num_gpus:g}): OXIDE_DEVICE=cpu says that the CPU device is used; unset it, or "
                f"leave num_gpus out"
            )
        self._weights = _checked_weights(weights or {})
        self._arguments = _checked_arguments(model, self._weights, arguments or {})
        self._model = model
        self._count = actors
        self._in_flight = in_flight
        self._num_gpus = num_gpus
        self._num_cpus = num_cpus
        self._max_restarts = max_restarts
        self._max_retries = max_retries
        self._options = _checked_options(ray_options or {})
        self._entered = False
        self._tasks: TaskGroup | None = None
        self._scheduler: Scheduler | None = None

    # The block

    async def __aenter__(self) -> ActorPool[Batch, Result]:
        if self._entered:
            raise RuntimeError("an ActorPool's block is entered once: make another ActorPool")
        loop = current_loop()
        self._entered = True
        if not ray.is_initialized():
            ray.init()
        gpus = _share_of_gpus(self._count, self._num_gpus)
        pickled = ray.cloudpickle.dumps((self._model, self._arguments))
        weights = self._weights.items()
        references: tuple[tuple[str, Any], ...] = await loop.in_thread(
            lambda: tuple([(name, ray.put(np.asarray(array, order="C"))) for name, array in weights])
        )
        settings = Settings(
            model=pickled,
            name=self._model.__name__,
            on_gpu=gpus > 0,
            threads=None if self._num_cpus is None else max(1, int(self._num_cpus)),
            neighbours=-(-self._count // max(1, sum(node["Alive"] for node in ray.nodes()))),
        )
        options = {
            "max_restarts": self._max_restarts,
            "max_concurrency": self._in_flight + 1,  # one for `ready`
            **({} if self._num_cpus is None else {"num_cpus": self._num_cpus}),
            **({"num_gpus": gpus} if gpus else {}),
            **self._options,
        }
        actor_class = ray.remote(DeviceActor).options(**options)
        scheduler = self._scheduler = Scheduler(loop, references, self._in_flight, self._max_retries)
        try:
            scheduler.start(actor_class.remote(settings) for _ in range(self._count))
            await scheduler.started()
            tasks = task_group()
            await tasks.open()
        except BaseException:
            scheduler.close()
            raise
        self._tasks = tasks
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        tasks, scheduler = self._tasks, self._scheduler
        assert tasks is not None
        assert scheduler is not None
        scheduler.close()
        tasks.cancel()  # the tasks that read batches for calls of map_batches that have not ended
        await tasks.close()

    # Batches

    def __reduce__(self) -> NoReturn:
        raise TypeError("an ActorPool cannot be pickled or copied; make another with the same model")

    def map_batches(
        self,
        batches: Iterable[Batch] | AsyncIterable[Batch],
        *,
        ordered: bool = True,
        window: int | None = None,
    ) -> AsyncGenerator[Result, None]:
        """Returns the results of ``batches`` as an async iterator, in the order of the batches. With ``ordered=False``,
        they come in the order in which they complete. Each batch has one result.

        ``batches`` is read lazily. A batch is held from when it is read until the caller gets its result, and at most
        ``window`` batches are held at a time, by default ``actors * in_flight``. An item that is a Ray ``ObjectRef``
        stands for its value. A large batch is put in the object store. Large results are read-only views of the object
        store: copy a result that is kept for long.

        If an actor dies, its batches are run on other actors. So a batch may be run twice, but it has one result. An
        exception of the model is raised unchanged, with a note that names the batch; the batch is not run again. An
        exception of ``batches`` is raised after the results of the batches before it. If the iterator is left by an
        exception or a cancellation, the tasks of its batches in Ray are cancelled.

        Raises ``ActorLostError`` if a batch's actors have died more than ``max_retries`` times, or no actor is left.
        Raises ``TypeError`` and ``ValueError`` for wrong arguments, and ``RuntimeError`` outside of the pool's block.
        """
        if not isinstance(batches, Iterable | AsyncIterable):
            raise TypeError(f"map_batches takes an iterable or an async iterable, not {type(batches).__name__}")
        if window is None:
            window = self._count * self._in_flight
        _require_count("window", window, 1, "map_batches")
        tasks, scheduler = self._tasks, self._scheduler
        if tasks is None or scheduler is None or scheduler.closed:
            raise RuntimeError("the pool is not open: call map_batches inside `async with ActorPool(…) as pool:`")
        if not tasks.is_running_here():
            raise RuntimeError("map_batches was called outside the event loop in which the pool's block was entered")
        return Batches(scheduler, tasks, batches, ordered, window).results()

    @property
    def actors(self) -> tuple[ActorState, ...]:
        """Returns the states of the actors."""
        return () if self._scheduler is None else tuple(_state(each) for each in self._scheduler.workers)

    @property
    def retried(self) -> int:
        """Returns how often a batch was run again because its actor had died."""
        return 0 if self._scheduler is None else self._scheduler.retried


def _state(worker: Worker) -> ActorState:
    pid, node, device, threads = (None,) * 4 if worker.facts is None else astuple(worker.facts)
    return ActorState(worker.number, worker.state, pid, node, device, threads, worker.restarts, worker.busy)


# Checks


def _require_count(label: str, count: object, least: int, what: str = "ActorPool") -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < least:
        raise ValueError(f"{what}({label}={written(count)}): it must be an integer of {least} or more")


def _require_amount(label: str, amount: object) -> None:
    if amount is None:
        return
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < math.inf:
        raise ValueError(f"ActorPool({label}={written(amount)}): it must be a number of 0 or more")


def _checked_weights(weights: object) -> dict[str, NDArray[Any]]:
    if not isinstance(weights, Mapping):
        raise TypeError(f"ActorPool(weights=…) takes a dict of arrays by name, not {type(weights).__name__}")
    for name, array in weights.items():
        if not isinstance(name, str):
            raise TypeError(f"ActorPool(weights=…): a name is a str, not {written(name):.80}")
        if not isinstance(array, np.ndarray):
            raise TypeError(
                f"ActorPool(weights=…): {name} is {type(array).__name__}, and weights are NumPy arrays; pass other "
                f"arguments of the model as arguments={{…}}"
            )
        require_data(array.dtype, f"ActorPool(weights=…): {name}")
    return dict(weights)


def _checked_arguments(model: type, weights: Mapping[str, Any], arguments: object) -> dict[str, Any]:
    if not isinstance(arguments, Mapping):
        raise TypeError(f"ActorPool(arguments=…) takes a dict of arguments by name, not {type(arguments).__name__}")
    both = [name for name in arguments if name in weights]
    if both:
        raise TypeError(f"ActorPool: {both[0]} is among the weights and among the arguments")
    try:
        signature = inspect.signature(model)
    except ValueError:  # a class of C
        return dict(arguments)
    try:
        signature.bind(**weights, **arguments)
    except TypeError as error:
        raise TypeError(
            f"ActorPool({model.__name__}): {error}; the constructor gets the weights and the arguments by name, and "
            f"these are {', '.join([*weights, *arguments]) or 'none'}"
        ) from None
    return dict(arguments)


_OURS = ("max_restarts", "max_task_retries", "max_concurrency", "num_gpus", "num_cpus", "concurrency_groups")


def _checked_options(options: object) -> dict[str, Any]:
    if not isinstance(options, Mapping):
        raise TypeError(f"ActorPool(ray_options=…) takes a dict, not {type(options).__name__}")
    for name in _OURS:
        if name in options:
            raise ValueError(f"ActorPool(ray_options=…): {name} is not passed to Ray; the pool's own arguments set it")
    return dict(options)


def _share_of_gpus(actors: int, requested: float | None) -> float:
    """Returns the number of GPUs of each actor, 0 for the CPU device. Warns if the cluster has too few."""
    found = float(ray.cluster_resources().get("GPU", 0))
    if requested is not None:
        if requested * actors > found:
            warnings.warn(
                f"ActorPool(actors={actors}, num_gpus={requested:g}): the cluster has {found:g} GPUs, and the pool "
                f"waits for more; leave num_gpus out to use what there is, the CPU device without a GPU",
                RuntimeWarning,
                stacklevel=3,
            )
        return float(requested)
    if not found or os.environ.get("OXIDE_DEVICE", "").strip() == "cpu":
        return 0.0
    return 1.0 if actors <= found else 1 / -(-actors // int(found))
