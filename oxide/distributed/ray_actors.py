"""The side of a pool that runs in an actor's process: the device, the weights, the model, and the batches in flight.
And how a script's kernels get there.

An actor is asynchronous: Ray runs its methods as tasks of an asyncio loop, where oxide awaits operations. So all
batches that the pool has sent can be on the device at once, and no thread waits for them.

Usually a kernel is pickled by its name (``global_name``), and the actor imports its module. But the
script of a Ray program is ``__main__``, which no other process can import: Ray's pickler sends its functions and
classes as code. So a kernel, tile kernel or device function that belongs to ``__main__``, or has no name in its module,
is sent with its Python function and the text of its file. The actor compiles it.
"""

from __future__ import annotations

import asyncio
import inspect
import linecache
import os
import sys
import traceback
import warnings
from dataclasses import dataclass
from typing import Any, final

import ray
from ray.cloudpickle import CloudPickler

from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.signature.device_function import DeviceFunction
from oxide.compiler.source.source import lines_of
from oxide.errors import DeviceLostError
from oxide.host.locks import new_lock
from oxide.runtime.devices.runtime import devices
from oxide.runtime.launching.launch import KernelLaunches
from oxide.runtime.launching.tile_kernel import TileKernel
from oxide.runtime.memory.memory import Arc, DeviceBox
from oxide.runtime.operations.transfers import h2d


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a pool's actors."""

    model: bytes
    """The class and the constructor's arguments, pickled: they are unpickled only once the environment is set."""
    name: str
    on_gpu: bool
    threads: int | None
    """The threads of the CPU device; None for a share of the cores."""
    neighbours: int
    """The number of actors that share the cores of a machine."""


@final
@dataclass(frozen=True, slots=True)
class ActorFacts:
    """The process and the device of an actor that is ready."""

    pid: int
    node: str
    device: str
    threads: int


class RestartedError(Exception):
    """Raised by ``DeviceActor.run`` in a process in which ``ready`` was not called: Ray has restarted the actor, and
    the pool has not noticed yet."""


class DeviceActor:
    """An actor's object. The model is made by ``ready``, not by ``__init__``: so Ray passes the errors of the model's
    constructor to the pool unchanged."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._making: asyncio.Future[Any] | None = None
        os.environ["OXIDE_DEVICE"] = "cuda" if settings.on_gpu else "cpu"
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = max(1, cores // settings.neighbours) if settings.threads is None else settings.threads
        os.environ.setdefault("OXIDE_CPU_THREADS", str(threads))
        # A kernel that compiles on this loop keeps only batches waiting, and they need the kernel anyway.
        warnings.filterwarnings("ignore", "compiling kernel .* kept the asyncio event loop", RuntimeWarning)

    async def ready(self, weights: tuple[tuple[str, Any], ...]) -> ActorFacts:
        """Makes the model unless it has been made. Returns the actor's process and device. ``weights`` are the names of
        the weights, and Ray's references to their arrays. Raises the error of the model's constructor."""
        if self._making is None:
            self._making = asyncio.ensure_future(self._make(weights))
        await asyncio.shield(self._making)
        node = ray.util.get_node_ip_address()
        return ActorFacts(os.getpid(), node, devices()[0].label, int(os.environ["OXIDE_CPU_THREADS"]))

    async def run(self, batch: Any) -> Any:
        """Returns the model's result for a batch, once the device has computed it. Raises the model's error."""
        if self._making is None:
            raise RestartedError
        model = await asyncio.shield(self._making)
        try:
            result = model(batch)
            while inspect.isawaitable(result):
                result = await result
        except DeviceLostError:
            # This process cannot use its device any more. Ray starts another process.
            traceback.print_exc()
            print("oxide.ray: the device is lost, and the actor's process ends", file=sys.stderr, flush=True)
            os._exit(1)
        except (KeyboardInterrupt, SystemExit) as error:
            raise _ordinary(error, "the model") from error
        _require_host(self._settings.name, result)
        return result

    async def _make(self, weights: tuple[tuple[str, Any], ...]) -> Any:
        boxes: dict[str, DeviceBox] = {}
        for name, reference in weights:
            boxes[name] = await h2d(await reference)  # from a read-only view of the object store

        def make() -> Any:
            model, arguments = ray.cloudpickle.loads(self._settings.model)
            try:
                return model(**boxes, **arguments)
            except (KeyboardInterrupt, SystemExit) as error:
                raise _ordinary(error, "the model's constructor") from error

        return await asyncio.to_thread(make)  # it may compile, and wait for the device


def _ordinary(error: BaseException, where: str) -> RuntimeError:
    """Returns a ``RuntimeError`` to raise in place of a ``KeyboardInterrupt`` or ``SystemExit``. Either of these would
    end the actor's event loop, and Ray would wait forever for the result of the call."""
    return RuntimeError(f"{where} raised {type(error).__name__}({error}), which ends no actor; raise another exception")


def _require_host(model: str, result: object) -> None:
    """Raises ``TypeError`` for a result that is, or directly holds, a box: no other process can use it."""
    inside = result.values() if isinstance(result, dict) else result if isinstance(result, tuple | list) else (result,)
    if any(isinstance(each, DeviceBox | Arc) for each in inside):
        raise TypeError(
            f"{model} returned a DeviceBox, which only the actor's process can use: end the operation with "
            f".and_then(d2h)"
        )


# Kernels of a script

_MADE_ANEW: dict[type, dict[str, Any]] = {
    Kernel: {
        "launches": KernelLaunches,
        "_lock": new_lock,
        "_specializations": dict,
        "only": type(None),
        "_unconfigured": type(None),
        "_interpreted": type(None),
        "_tuner": type(None),
    },
    TileKernel: {"_tuned": dict, "_kernels": dict, "_latest": type(None)},
    DeviceFunction: {},
}
"""Maps each type to its attributes that are not sent, and each attribute to the function that makes it anew."""


def send_kernels_by_value() -> None:
    """Makes Ray's pickler call ``_reduced`` for kernels, tile kernels and device functions."""
    for kind in _MADE_ANEW:
        CloudPickler.dispatch_table[kind] = _reduced


def _reduced(thing: Any) -> str | tuple[Any, ...]:
    if thing.__module__ != "__main__":
        try:
            name: str = thing.__reduce__()
            return name
        except TypeError:  # no module has a name for it
            pass
    file, lines = thing.function.__code__.co_filename, lines_of(thing.function)
    anew = _MADE_ANEW[type(thing)]
    state = {name: value for name, value in vars(thing).items() if name not in anew}
    # The attributes are set once the object exists: its function may refer to it.
    return _empty, (type(thing), file, lines), state, None, None, _fill


def _empty(kind: type, file: str, lines: list[str]) -> Any:
    linecache.cache[file] = (sum(map(len, lines)), None, lines, file)  # where the compiler reads the source
    return object.__new__(kind)


def _fill(thing: Any, state: dict[str, Any]) -> None:
    vars(thing).update(state)
    vars(thing).update({name: make() for name, make in _MADE_ANEW[type(thing)].items()})
