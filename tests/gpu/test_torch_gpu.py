"""``oxide.torch.op`` on a real GPU: torch's streams, allocator, CUDA graphs, compiler and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'oxide-gpu[torch]'")
if not torch.cuda.is_available():
    pytest.skip("torch has no CUDA device", allow_module_level=True)

import oxide  # noqa: E402
from oxide import BoundsError, DeviceError, GraphError, h2d  # noqa: E402
from oxide.driver.cuda.driver import CudaDriver  # noqa: E402
from oxide.testing import use_driver  # noqa: E402
from tests.interop.torch_operators import multiply, reaches_too_far, scale, scaled_twice  # noqa: E402

pytestmark = pytest.mark.gpu


def keep_factor(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.s = inputs[1]


def multiply_backward(ctx: Any, grad: Any) -> Any:
    a, b = ctx.saved_tensors
    return torch.ops.oxide_gpu.multiply(grad, b.t()), torch.ops.oxide_gpu.multiply(a.t(), grad)


scaled = oxide.torch.op(
    "oxide_gpu::scale",
    scale,
    backward=lambda ctx, grad: (torch.ops.oxide_gpu.scale(grad, ctx.s), None),
    setup_context=keep_factor,
)
multiplied = oxide.torch.op(
    "oxide_gpu::multiply",
    multiply,
    outputs=lambda a, b: a.new_empty((a.shape[0], b.shape[1])),
    backward=multiply_backward,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
twice = oxide.torch.op("oxide_gpu::twice", scaled_twice, outputs=lambda x, s: torch.empty_like(x))
too_far = oxide.torch.op("oxide_gpu::too_far", reaches_too_far)


@pytest.fixture(scope="module", autouse=True)
def driver() -> Iterator[Any]:
    driver = CudaDriver()
    with use_driver(driver):
        yield driver


@pytest.fixture(autouse=True)
def no_fault_is_left() -> Iterator[None]:
    yield
    oxide.torch.synchronize()


def random(*shape: int, dtype: Any = torch.float64) -> Any:
    return torch.randn(*shape, dtype=dtype, device="cuda")


@pytest.mark.parametrize("size", [0, 1, 31, 33, 1000003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_operators_compute_on_torchs_tensors(size: int, dtype: Any) -> None:
    x = random(size, dtype=dtype)
    for factor in (0.5, 3.0, float("inf"), 7.0):  # the second call and the fourth repeat the first one's launch
        assert torch.equal(scaled(x, factor), x * factor)
    assert torch.equal(twice(x, 3.0), x * 3.0 * 3.0)
    strided = random(2 * size, dtype=dtype)[::2]
    assert torch.equal(scaled(strided, 2.0), strided * 2.0)


def test_opcheck_passes() -> None:
    x = random(3, 4).requires_grad_()
    for op, arguments in (
        (scaled, (x, 2.0)),
        (multiplied, (x, random(4, 5).requires_grad_())),
        (twice, (x.detach(), 2.0)),
    ):
        assert set(torch.library.opcheck(op, arguments).values()) == {"SUCCESS"}


def test_gradients_are_those_of_float64() -> None:
    a, b = random(3, 4).requires_grad_(), random(4, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: scaled(x, 1.5), (a,))
    assert torch.autograd.gradcheck(multiplied, (a, b))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiling_a_program_breaks_at_no_operator(mode: str) -> None:
    def program(x: Any, w: Any) -> Any:
        return multiplied(scaled(x, 2.0).relu(), w).sum()

    torch._dynamo.reset()
    compiled = torch.compile(program, fullgraph=True, mode=mode)
    for _ in range(3):
        x, w = random(33, 4).requires_grad_(), random(4, 7).requires_grad_()
        expected = torch.autograd.grad(program(x, w), (x, w))
        found = torch.autograd.grad(compiled(x, w), (x, w))
        for each, other in zip(found, expected, strict=True):
            torch.testing.assert_close(each, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("op", [scaled, twice], ids=["kernel", "function"])
def test_calls_are_ordered_on_torchs_current_stream(op: Any) -> None:
    size = 1 << 22
    x = torch.zeros(size, device="cuda")
    op(x, 1.0)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # the device is busy for some 30 ms
        x.fill_(2.0)
        result = op(x, 1.0)
        doubled = result * 2
        assert not side.query()  # the call waited for nothing
    side.synchronize()
    assert torch.equal(doubled, torch.full_like(x, 4.0))


def test_memory_that_torch_reuses_is_not_overwritten_too_early() -> None:
    size = 1 << 20
    x = torch.ones(size, device="cuda")
    # Each call's temporary is the memory of the one before.
    results = [twice(x, float(number)).sum() for number in range(100)]
    assert [float(each) for each in results] == pytest.approx(
        [number * number * size for number in range(100)], rel=1e-6
    )


def test_temporaries_and_outputs_are_of_torchs_allocator() -> None:
    x = random(1 << 20)
    twice(x, 2.0)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    result = twice(x, 2.0)
    assert torch.cuda.memory_allocated() - before == result.nbytes
    del result
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("op", [scaled, twice], ids=["kernel", "function"])
def test_torch_captures_and_replays_a_call(op: Any) -> None:
    x = torch.arange(1000, dtype=torch.float32, device="cuda")
    op(x, 3.0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = op(x, 3.0) + 1
    for number in (1.0, 5.0):
        x.fill_(number)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(result, op(x, 3.0) + 1)


def test_a_capture_before_the_first_call_is_refused() -> None:
    cold = oxide.torch.op("oxide_gpu::cold", scale)
    x = torch.ones(3, device="cuda")
    with (
        pytest.raises(GraphError, match="call it once before torch captures it"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        cold(x, 2.0)
    assert torch.equal(cold(x, 2.0), x * 2)


def test_a_fault_is_raised_by_the_next_call_or_by_synchronize() -> None:
    x = torch.ones(5, device="cuda")
    too_far(x)
    torch.cuda.synchronize()
    with pytest.raises(BoundsError, match="reaches_too_far"):
        scaled(x, 2.0)
    assert torch.equal(scaled(x, 2.0), x * 2.0)
    too_far(x)
    with pytest.raises(BoundsError, match="reaches_too_far"):
        oxide.torch.synchronize()
    oxide.torch.synchronize()


def test_a_fault_of_a_replayed_graph_is_raised() -> None:
    x = torch.ones(5, device="cuda")
    too_far(x)
    with pytest.raises(BoundsError):
        oxide.torch.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        too_far(x)
    oxide.torch.synchronize()
    for _ in range(2):
        graph.replay()
        with pytest.raises(BoundsError, match="reaches_too_far"):
            oxide.torch.synchronize()


def test_boxes_and_tensors_are_ordered() -> None:
    box = h2d(np.ones(1000, np.float32)).sync()
    tensor = torch.from_dlpack(box)
    scale(box, 5.0, box).async_on(oxide.devices()[0].new_stream())
    assert torch.equal(scaled(tensor, 2.0), torch.full((1000,), 10.0, device="cuda"))


def test_tensors_of_the_host_are_refused() -> None:
    with pytest.raises(DeviceError, match=r"on cpu, and oxide's devices are cuda devices"):
        scaled(torch.ones(3), 2.0)
