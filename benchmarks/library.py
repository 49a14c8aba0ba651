"""The kernel library beside what one would use instead: torch, with cuBLAS behind it, and CuPy; all on the same memory.

Kernels that are bound by memory are held to the bandwidth of a copy on the device, measured here too, counting each
byte that must move once; rows and matrix products to torch's speed. On the CPU device NumPy stands beside them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import oxide
from benchmarks.harness import (
    Comparison,
    Contender,
    Session,
    Unavailable,
    WrongResult,
    expect,
    peer,
    timed_to_the_end,
)
from oxide import h2d
from oxide_kernels import (
    axpy,
    dot,
    gelu,
    inclusive_scan,
    layer_norm,
    matmul,
    matvec,
    reduce_sum,
    relu,
    rms_norm,
    sgemm_tiled,
    softmax,
    transpose,
)

_REPEATS = 200
"""Calls in a row: what it takes to submit the first and to see the end of the last must not count."""


@dataclass(frozen=True, slots=True)
class _Case:
    """One kernel at one size. The functions take the inputs, ``oxide`` the output too, ``torch`` torch in front.

    What the peers compute is what oxide is checked against, except where ``expected`` says otherwise."""

    title: str
    shapes: tuple[tuple[int, ...], ...]
    result: tuple[int, ...]
    moved: int  # bytes
    oxide: Callable[..., oxide.DeviceOperation[Any]]
    torch: Callable[..., Any]
    numpy: Callable[..., Any]
    of_copy: float | None = None  # the least part of the copy's bandwidth
    of_torch: float | None = None  # the least part of torch's speed
    cupy: Callable[..., Any] | None = None
    relative: float = 1e-5
    expected: Callable[..., Any] | None = None
    dtype: str = "float32"


def run(session: Session) -> None:
    """Measures the group."""
    long = session.choose(1 << 27, 1 << 12)
    copied = _compare(
        session,
        _Case(
            f"a copy, {long} elements",
            ((long,),),
            (long,),
            8 * long,
            lambda x, y: oxide.memcpy(y, x),
            lambda t, x: x.clone(),
            lambda x: x.copy(),
        ),
    )
    bandwidth = _rate(copied, 8 * long, "oxide"), _rate(copied, 8 * long, "torch")
    fastest = max((rate for rate in bandwidth if rate is not None), default=None)
    for case in _cases(session, long):
        comparison = _compare(session, case)
        ours, theirs = (_rate(comparison, case.moved, name) for name in ("oxide", "torch"))
        if case.of_copy is not None and ours is not None and fastest is not None:
            session.claim(f"{case.title}: of the copy's bandwidth", ours / fastest, "at least", case.of_copy)
        if case.of_torch is not None and ours is not None and theirs is not None:
            session.claim(f"{case.title}: of torch's speed", ours / theirs, "at least", case.of_torch)


def _cases(session: Session, long: int) -> list[_Case]:
    rows, columns = session.choose((8192, 16384), (64, 64))
    cases = [
        _Case(
            f"relu, {long}",
            ((long,),),
            (long,),
            8 * long,
            relu,
            lambda t, x: t.relu(x),
            lambda x: np.maximum(x, 0),
            of_copy=0.9,
        ),
        _Case(
            f"axpy, {long}",
            ((long,),),
            (long,),
            12 * long,
            lambda x, y: axpy(1.0, x, y),
            lambda t, x: t.add(x, x),  # as many bytes: two reads and a write
            lambda x: np.add(x, x),
            of_copy=0.9,
            expected=lambda x: x,  # once, onto zeros
        ),
        _Case(
            f"gelu, {long}",
            ((long,),),
            (long,),
            8 * long,
            gelu,
            lambda t, x: t.nn.functional.gelu(x),
            _numpy_gelu,
        ),
        _Case(
            f"transpose, {rows}×{columns}",
            ((rows, columns),),
            (columns, rows),
            8 * rows * columns,
            lambda x, y: transpose(rows, columns, x, y),
            lambda t, x: x.t().contiguous(),
            lambda x: np.ascontiguousarray(x.T),  # x.T by itself moves nothing
            of_copy=0.9,
            cupy=lambda c, x: c.ascontiguousarray(x.T),
        ),
        _Case(
            f"reduce_sum, {long}",
            ((long,),),
            (1,),
            4 * long,
            reduce_sum,
            lambda t, x: x.sum().reshape(1),
            lambda x: x.sum().reshape(1),
            of_copy=0.9,
            cupy=lambda c, x: x.sum().reshape(1),
            relative=1e-3,  # of a sum that is small beside its terms
        ),
        _Case(
            f"dot, {long}",
            ((long,), (long,)),
            (1,),
            8 * long,
            dot,
            lambda t, x, y: t.dot(x, y).reshape(1),
            lambda x, y: (x @ y).reshape(1),
            cupy=lambda c, x, y: c.dot(x, y).reshape(1),
            relative=1e-2,
        ),
        _Case(
            f"inclusive_scan, {long // 4}",
            ((long // 4,),),
            (long // 4,),
            2 * long,
            inclusive_scan,
            lambda t, x: t.cumsum(x, 0),
            np.cumsum,
            cupy=lambda c, x: c.cumsum(x),
            relative=1e-3,
        ),
    ]
    for width in session.choose((128, 1024, 8192), (128,)):
        count = session.choose(1 << 26, 1 << 12) // width
        shape, moved = (count, width), 8 * count * width
        cases += [
            _Case(
                f"softmax, {count}×{width}",
                (shape,),
                shape,
                moved,
                softmax,
                lambda t, x: t.softmax(x, 1),
                _numpy_softmax,
                of_torch=1.0,
            ),
            _Case(
                f"layer_norm, {count}×{width}",
                (shape, (width,), (width,)),
                shape,
                moved,
                layer_norm,
                lambda t, x, w, b: t.nn.functional.layer_norm(x, w.shape, w, b),
                _numpy_layer_norm,
                of_torch=1.0,
            ),
            _Case(
                f"rms_norm, {count}×{width}",
                (shape, (width,)),
                shape,
                moved,
                lambda x, w, y: rms_norm(x, w, y),
                lambda t, x, w: t.nn.functional.rms_norm(x, w.shape, w, eps=1e-5),
                lambda x, w: x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * w,
            ),
        ]
    m, n = session.choose((8192, 16384), (64, 64))
    cases.append(
        _Case(
            f"matvec, {m}×{n}",
            ((m, n), (n,)),
            (m,),
            4 * m * n,
            lambda a, x, y: matvec(m, n, a, x, y),
            lambda t, a, x: a @ x,
            lambda a, x: a @ x,
        )
    )
    for size, least in session.choose(((4096, 0.8), (2048, None), (1000, 0.7)), ((64, None),)):
        cases.append(_product(size, least))
    cases += [_tensor_product(size) for size in session.choose((8192, 4096, 2048, 1024, 1000), (64,))]
    return cases


def _product(size: int, least: float | None) -> _Case:
    return _Case(
        f"sgemm_tiled, {size}×{size}",
        ((size, size), (size, size)),
        (size, size),
        12 * size * size,
        lambda a, b, c: sgemm_tiled(size, size, size, 1.0, a, b, 0.0, c),
        lambda t, a, b: a @ b,
        lambda a, b: a @ b,
        of_torch=least,
    )


def _tensor_product(size: int) -> _Case:
    """A product of f16 on tensor cores, with the right matrix transposed as a layer's weights are."""
    return _Case(
        f"matmul, f16, {size}×{size}",
        ((size, size), (size, size)),
        (size, size),
        6 * size * size,
        lambda a, b, c: matmul(a, b.T, c),
        lambda t, a, b: a @ b.t(),
        lambda a, b: a @ b.T,
        relative=1e-3,
        dtype="float16",
    )


def _compare(session: Session, case: _Case) -> Comparison:
    if session.device == "cuda":
        contenders = {"oxide": lambda: _oxide_on_gpu(case), "torch": lambda: _torch(case)}
        if case.cupy is not None:
            contenders["CuPy"] = lambda: _cupy(case)
    else:
        contenders = {"oxide": lambda: _oxide_on_cpu(case), "NumPy": lambda: _numpy(case)}
    return session.compare(case.title, contenders, turns=session.choose(20, 3))


def _rate(comparison: Comparison, moved: int, name: str) -> float | None:
    """Bytes a microsecond."""
    figure = comparison.figures.get(name)
    return None if figure is None else moved / figure.median


@functools.lru_cache(maxsize=1)
def _inputs(case: _Case) -> list[Any]:
    """The inputs as torch tensors on the GPU, the same tensors for each contender: where in memory an array lies makes
    2 % of a copy's speed. For axpy the output begins as zeros."""
    torch = peer("torch")
    torch.backends.cuda.matmul.allow_tf32 = False
    generator = torch.Generator(device="cuda").manual_seed(7)
    kind = getattr(torch, case.dtype)
    return [torch.randn(shape, device="cuda", generator=generator).to(kind) for shape in case.shapes]


def _check(case: _Case, inputs: list[Any], found: Any) -> None:
    """Compares with torch in float64, on the GPU."""
    numbers = [x.double() for x in inputs]
    expected = case.expected(*numbers) if case.expected is not None else case.torch(peer("torch"), *numbers)
    scale = expected.norm().item() or 1.0
    error = (found.double() - expected).norm().item() / scale
    if not error <= case.relative:
        raise WrongResult(f"the result is off by {error:.2e} of its norm, more than {case.relative:.0e}")


def _oxide_on_gpu(case: _Case) -> Contender:
    torch = peer("torch")
    inputs = _inputs(case)
    boxes = [oxide.from_dlpack(x) for x in inputs]
    stream = oxide.devices()[0].new_stream()

    def operation() -> tuple[Any, oxide.DeviceOperation[Any]]:
        # In the block that torch's allocator hands to torch's own result: see _inputs.
        result = torch.zeros(case.result, device="cuda", dtype=getattr(torch, case.dtype))
        torch.cuda.synchronize()
        return result, case.oxide(*boxes, oxide.from_dlpack(result))

    def timed() -> list[float]:
        _, once = operation()
        repeated = oxide.zip(*[once] * _REPEATS)  # one submission: what is compared is the kernels
        return timed_to_the_end(lambda: repeated.async_on(stream), _REPEATS, stream.synchronize)()

    def sample() -> list[float]:
        times = timed()
        oxide.reclaim.drain()  # the result's block is torch's again
        return times

    def check() -> None:
        result, once = operation()
        once.sync_on(stream)
        _check(case, inputs, result)

    return Contender(sample, check, torch.cuda.empty_cache)


def _torch(case: _Case) -> Contender:
    torch = peer("torch")
    inputs = _inputs(case)

    def submit() -> None:
        for _ in range(_REPEATS):
            case.torch(torch, *inputs)

    return Contender(timed_to_the_end(submit, _REPEATS, torch.cuda.synchronize), lambda: None, torch.cuda.empty_cache)


def _cupy(case: _Case) -> Contender:
    cupy = peer("cupy")
    compute = case.cupy
    assert compute is not None
    inputs = [cupy.from_dlpack(x) for x in _inputs(case)]

    def submit() -> None:
        for _ in range(_REPEATS):
            compute(cupy, *inputs)

    return Contender(timed_to_the_end(submit, _REPEATS, cupy.cuda.Device().synchronize), lambda: None)


def _oxide_on_cpu(case: _Case) -> Contender:
    arrays = _arrays(case)
    stream = oxide.devices()[0].new_stream()
    boxes = [h2d(array).sync_on(stream) for array in arrays]
    result = oxide.zeros(case.result, case.dtype).sync_on(stream)
    operation = case.oxide(*boxes, result)

    def submit() -> None:
        for _ in range(_REPEATS):
            operation.async_on(stream)

    def check() -> None:
        operation.sync_on(stream)
        compute = case.numpy if case.expected is None else case.expected
        expected = compute(*(array.astype(np.float64) for array in arrays))
        expect(oxide.d2h(result).sync_on(stream), expected, relative=case.relative)

    return Contender(timed_to_the_end(submit, _REPEATS, stream.synchronize), check)


def _numpy(case: _Case) -> Contender:
    arrays = _arrays(case)
    if case.numpy is _numpy_gelu:
        raise Unavailable("NumPy has no erf")

    def submit() -> None:
        for _ in range(_REPEATS):
            case.numpy(*arrays)

    return Contender(timed_to_the_end(submit, _REPEATS, lambda: None), lambda: None)


def _arrays(case: _Case) -> list[Any]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(shape, np.float32).astype(case.dtype) for shape in case.shapes]


def _numpy_gelu(x: Any) -> Any:
    import math

    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _numpy_softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _numpy_layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * weight + bias
