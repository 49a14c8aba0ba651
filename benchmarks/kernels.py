"""The kernels of ``oxide_kernels``, by themselves: oxide beside numba-cuda, torch and NumPy, inputs on the device.

Every kernel is submitted several times in a row and waited for once, so that its own time is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import oxide
from benchmarks.harness import Contender, Session, Unavailable, expect, peer, timed_to_the_end
from examples.async_mlp.pipeline import TILE
from oxide import LaunchConfig, h2d
from oxide_kernels import matvec_naive, relu, sgemm_naive

_REPEATS = 10


def run(session: Session) -> None:
    """Measures the group."""
    rng = np.random.default_rng()
    n = session.choose(1024, 64)
    a, b = rng.standard_normal((n, n), np.float32), rng.standard_normal((n, n), np.float32)
    x = rng.standard_normal(n, np.float32)
    long = rng.standard_normal(session.choose(1 << 24, 1 << 12), np.float32)
    tiles = -(-n // TILE)
    grid, block = (tiles, tiles), (TILE, TILE)
    rows = LaunchConfig.for_num_elems(n)
    wide = LaunchConfig.for_num_elems(long.size)

    def sgemm_oxide() -> Contender:
        return _oxide(
            (a, b, np.zeros((n, n), np.float32)),
            lambda left, right, product: sgemm_naive[grid, block](n, n, n, 1.0, left, right, 0.0, product),
            a.astype(np.float64) @ b,
        )

    def sgemm_numba() -> Contender:
        from benchmarks import numba_kernels

        one, zero = np.float32(1), np.float32(0)
        return _numba(
            (a, b, np.zeros((n, n), np.float32)),
            lambda stream: numba_kernels.sgemm[grid, block, stream],
            lambda kernel, left, right, product: kernel(one, left, right, zero, product),
            a.astype(np.float64) @ b,
        )

    def matvec_oxide() -> Contender:
        return _oxide((a, x, np.zeros(n, np.float32)), lambda m, v, y: matvec_naive[rows](n, n, m, v, y), a @ x)

    def matvec_numba() -> Contender:
        from benchmarks import numba_kernels

        return _numba(
            (a, x, np.zeros(n, np.float32)),
            lambda stream: numba_kernels.matvec[rows.grid, rows.block, stream],
            lambda kernel, matrix, vector, out: kernel(matrix, vector, out),
            a @ x,
        )

    def relu_oxide() -> Contender:
        return _oxide((long, np.zeros_like(long)), relu, np.maximum(0, long))

    def relu_numba() -> Contender:
        from benchmarks import numba_kernels

        return _numba(
            (long, np.zeros_like(long)),
            lambda stream: numba_kernels.relu[wide.grid, wide.block, stream],
            lambda kernel, x, y: kernel(x, y),
            np.maximum(0, long),
        )

    for title, ours, theirs, torch_function, inputs, numpy_function in (
        (f"sgemm_naive, {n}×{n}", sgemm_oxide, sgemm_numba, lambda t, a, b: a @ b, (a, b), lambda a, b: a @ b),
        (f"matvec_naive, {n}×{n}", matvec_oxide, matvec_numba, lambda t, a, x: a @ x, (a, x), lambda a, x: a @ x),
        (
            f"relu, {long.size} elements",
            relu_oxide,
            relu_numba,
            lambda t, x: t.relu(x),
            (long,),
            lambda x: np.maximum(0, x),
        ),
    ):
        session.compare(
            title,
            {
                "oxide": ours,
                "numba-cuda": _gpu(session, "numba.cuda", theirs),
                "torch": _gpu(session, "torch", _bind(_torch, inputs, torch_function, numpy_function)),
                "NumPy": _bind(_numpy, session, inputs, numpy_function),
            },
            turns=session.choose(20, 3),
        )


def _oxide(
    arrays: tuple[Any, ...], launch: Callable[..., oxide.DeviceOperation[tuple[Any, ...]]], expected: Any
) -> Contender:
    stream = oxide.devices()[0].new_stream()
    boxes = [h2d(array).sync_on(stream) for array in arrays]
    operation = oxide.zip(*[launch(*boxes)] * _REPEATS)

    def check() -> None:
        operation.sync_on(stream)
        expect(oxide.d2h(boxes[-1]).sync_on(stream), expected, relative=1e-4)

    return Contender(timed_to_the_end(lambda: operation.async_on(stream), _REPEATS, stream.synchronize), check)


def _numba(
    arrays: tuple[Any, ...], configure: Callable[[Any], Any], launch: Callable[..., Any], expected: Any
) -> Contender:
    from numba import cuda

    stream = cuda.stream()
    device_arrays = [cuda.to_device(array) for array in arrays]
    kernel = configure(stream)

    def submit() -> None:
        for _ in range(_REPEATS):
            launch(kernel, *device_arrays)

    def check() -> None:
        submit()
        stream.synchronize()
        expect(device_arrays[-1].copy_to_host(), expected, relative=1e-4)

    return Contender(timed_to_the_end(submit, _REPEATS, stream.synchronize), check)


def _torch(inputs: tuple[Any, ...], function: Callable[..., Any], reference: Callable[..., Any]) -> Contender:
    torch = peer("torch")
    torch.backends.cuda.matmul.allow_tf32 = False
    tensors = [torch.from_numpy(array).cuda() for array in inputs]

    def submit() -> None:
        for _ in range(_REPEATS):
            function(torch, *tensors)

    def check() -> None:
        expect(function(torch, *tensors).cpu().numpy(), reference(*inputs), relative=1e-4)

    return Contender(timed_to_the_end(submit, _REPEATS, torch.cuda.synchronize), check)


def _numpy(session: Session, inputs: tuple[Any, ...], function: Callable[..., Any]) -> Contender:
    if session.device == "cuda":
        raise Unavailable("compared on the CPU device only")

    def submit() -> None:
        for _ in range(_REPEATS):
            function(*inputs)

    return Contender(timed_to_the_end(submit, _REPEATS, lambda: None), lambda: None)


def _gpu(session: Session, module: str, make: Callable[[], Contender]) -> Callable[[], Contender]:
    def checked() -> Contender:
        session.require_gpu()
        peer(module)
        return make()

    return checked


def _bind(make: Callable[..., Contender], *arguments: Any) -> Callable[[], Contender]:
    return lambda: make(*arguments)
