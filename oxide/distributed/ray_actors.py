"""The side of a pool that runs in an actor's process: the device, the weights, the model, and the batches in flight.

An actor is asynchronous: Ray runs its methods as tasks of an asyncio loop, where oxide awaits operations. So all
batches that the pool has sent can be on the device at once, and no thread waits for them.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import traceback
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from oxide.errors import DeviceLostError

if TYPE_CHECKING:
    from oxide.runtime.memory.memory import DeviceBox


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
        import ray

        from oxide.runtime.devices.runtime import devices

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
        import ray

        from oxide.runtime.operations.transfers import h2d

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
    from oxide.runtime.memory.memory import Arc, DeviceBox

    inside = result.values() if isinstance(result, dict) else result if isinstance(result, tuple | list) else (result,)
    if any(isinstance(each, DeviceBox | Arc) for each in inside):
        raise TypeError(
            f"{model} returned a DeviceBox, which only the actor's process can use: end the operation with "
            f".and_then(d2h)"
        )
