"""``oxide.torch.op``: kernels and operations as torch's custom operators, on the CPU device with CPU tensors."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'oxide-gpu[torch]'")

import oxide  # noqa: E402
from benchmarks.torch_op import measure  # noqa: E402
from oxide import (  # noqa: E402
    ArgumentError,
    AtomicSlice,
    BoundsError,
    DeviceBox,
    DeviceError,
    DeviceOperation,
    DisjointSlice,
    LaunchConfig,
    LaunchError,
    Slice,
    Slice2,
    dup,
    f32,
    f64,
    h2d,
    i32,
    kernel,
    thread,
    u32,
    zeros,
)
from oxide.driver.cpu import CpuDriver  # noqa: E402
from oxide.interop import torch as torch_definitions  # noqa: E402
from oxide.interop import torch_runs  # noqa: E402
from oxide.interop.torch_runs import repeated  # noqa: E402
from oxide.runtime.devices.fault_records import StandingReport  # noqa: E402
from oxide.runtime.submission.lending import Lender  # noqa: E402
from oxide.testing import FailingDriver, use_driver  # noqa: E402
from tests.interop.torch_operators import multiply, reaches_too_far, scale, scaled_twice  # noqa: E402

SIZES = [0, 1, 31, 33, 1000003]


@kernel(block=128)
def sum_and_product(x: Slice[f64], y: Slice[f64], total: DisjointSlice[f64], product: DisjointSlice[f64]) -> None:
    index = thread.index_1d()
    a, b = total.get_mut(index), product.get_mut(index)
    if a is not None and b is not None:
        a.value = x[index.get()] + y[index.get()]
        b.value = x[index.get()] * y[index.get()]


@kernel
def count(x: Slice[i32], bins: AtomicSlice[u32]) -> None:
    index = thread.index_1d().get()
    if index < len(x):
        bins.fetch_add(x[index], 1)


def scale_gradient() -> Any:
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.s = inputs[1]

    return oxide.torch.op(
        "oxide_test::scale",
        scale,
        backward=lambda ctx, grad: (torch.ops.oxide_test.scale(grad, ctx.s), None),
        setup_context=setup_context,
    )


def multiply_gradient() -> Any:
    def backward(ctx: Any, grad: Any) -> Any:
        a, b = ctx.saved_tensors
        multiplied = torch.ops.oxide_test.multiply
        return multiplied(grad, b.t()), multiplied(a.t(), grad)

    return oxide.torch.op(
        "oxide_test::multiply",
        multiply,
        outputs=lambda a, b: a.new_empty((a.shape[0], b.shape[1])),
        backward=backward,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )


scaled = scale_gradient()
multiplied = multiply_gradient()
both = oxide.torch.op("oxide_test::both", sum_and_product)
twice = oxide.torch.op("oxide_test::twice", scaled_twice, outputs=lambda x, s: torch.empty_like(x))
too_far = oxide.torch.op("oxide_test::too_far", reaches_too_far)


@pytest.fixture(autouse=True)
def cpu_device() -> None:
    if oxide.devices()[0].kind != "cpu":
        pytest.skip("tests of CPU tensors need the CPU device")


def gradient_free(*shape: int, dtype: Any = torch.float64) -> Any:
    return torch.randn(*shape, dtype=dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_generic_kernel_is_an_operator(size: int, dtype: Any) -> None:
    x = gradient_free(size, dtype=dtype)
    result = scaled(x, 0.5)
    assert result.dtype is dtype
    assert torch.equal(result, x * 0.5)
    assert torch.equal(torch.ops.oxide_test.scale(x, 0.5), result)


@pytest.mark.parametrize("size", SIZES)
def test_a_kernel_with_two_outputs_returns_two_tensors(size: int) -> None:
    x, y = gradient_free(size), gradient_free(size)
    total, product_ = both(x, y)
    assert torch.equal(total, x + y)
    assert torch.equal(product_, x * y)


@pytest.mark.parametrize("size", SIZES)
def test_a_function_that_builds_an_operation_is_an_operator(size: int) -> None:
    x = gradient_free(size)
    assert torch.equal(twice(x, 3.0), x * 3.0 * 3.0)
    assert torch.equal(twice(x), x * 4.0)


def test_a_configured_kernel_and_outputs_of_another_shape() -> None:
    @kernel
    def first_column(x: Slice2[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = x[index.get(), 0]

    column = oxide.torch.op("oxide_test::column", first_column[1, 64], outputs=lambda x: x.new_empty(x.shape[0]))
    x = gradient_free(33, 5, dtype=torch.float32)
    assert torch.equal(column(x), x[:, 0])
    torch.library.opcheck(column, (x,))


@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 1, 1), (33, 31, 2)])
def test_inputs_may_be_strided(shape: tuple[int, int, int]) -> None:
    n, k, m = shape
    a, b = gradient_free(k, n).t(), gradient_free(k, 2 * m)[:, ::2]
    torch.testing.assert_close(multiplied(a, b), a @ b, rtol=1e-12, atol=1e-12)
    x = gradient_free(n, k).t()
    assert torch.equal(scaled(x, 2.0), x * 2.0)
    assert scaled(x, 2.0).is_contiguous()


def test_lists_of_tensors_and_optional_tensors() -> None:
    def chosen(xs: list[DeviceBox], y: DeviceBox | None) -> DeviceOperation[DeviceBox]:
        return dup(xs[-1] if y is None else y)

    op = oxide.torch.op(
        "oxide_test::chosen", chosen, outputs=lambda xs, y: torch.empty_like(xs[-1] if y is None else y)
    )
    x, y = gradient_free(3), gradient_free(3)
    assert torch.equal(op([y, x], None), x)
    assert torch.equal(op([x], y), y)


def test_a_schema_instead_of_annotations() -> None:
    op = oxide.torch.op(
        "oxide_test::bins",
        lambda x, bins: count[LaunchConfig.for_num_elems(x.size)](x, zeros(bins, u32)).last(),
        schema="(Tensor x, int bins=4) -> Tensor",
        outputs=lambda x, bins: x.new_empty(bins, dtype=torch.uint32),
    )
    x = torch.randint(0, 4, (1000,), dtype=torch.int32)
    assert op(x).to(torch.int64).tolist() == torch.bincount(x, minlength=4).tolist()
    assert op(x, 9).numel() == 9


def test_the_narrow_dtypes_of_torch_are_those_of_ml_dtypes() -> None:
    op = oxide.torch.op("oxide_test::same", lambda x: dup(x), schema="(Tensor x) -> Tensor", outputs=torch.empty_like)
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.bool, torch.complex64, torch.int8):
        x = gradient_free(33).to(dtype)
        result = op(x)
        assert result.dtype is dtype
        assert torch.equal(result.view(torch.uint8), x.view(torch.uint8))


def test_opcheck_passes() -> None:
    x = gradient_free(3, 4).requires_grad_()
    for op, arguments in (
        (scaled, (x, 2.0)),
        (multiplied, (x, gradient_free(4, 5).requires_grad_())),
        (both, (x.detach(), x.detach())),
        (twice, (x.detach(), 2.0)),
        (scaled, (x.detach().t(), 2.0)),
    ):
        results = torch.library.opcheck(op, arguments)
        assert set(results.values()) == {"SUCCESS"}


def test_gradients_are_those_of_float64() -> None:
    a, b = gradient_free(3, 4).requires_grad_(), gradient_free(4, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: scaled(x, 1.5), (a,))
    assert torch.autograd.gradcheck(multiplied, (a, b))
    assert torch.autograd.gradgradcheck(multiplied, (a, b))


def test_an_operator_without_a_gradient_says_so_in_the_backward_pass() -> None:
    x = gradient_free(3).requires_grad_()
    result = twice(x, 2.0)
    with pytest.raises(RuntimeError, match="oxide_test::twice has no gradient"):
        result.sum().backward()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiling_a_program_breaks_at_no_operator(backend: str) -> None:
    def program(x: Any, w: Any) -> Any:
        return multiplied(scaled(x, 2.0).relu(), w).sum()

    torch._dynamo.reset()
    compiled = torch.compile(program, fullgraph=True, backend=backend)
    for rows in (3, 5, 33):  # the second is compiled with a dynamic shape
        x, w = gradient_free(rows, 4).requires_grad_(), gradient_free(4, 2).requires_grad_()
        expected = torch.autograd.grad(program(x, w), (x, w))
        found = torch.autograd.grad(compiled(x, w), (x, w))
        for each, other in zip(found, expected, strict=True):
            torch.testing.assert_close(each, other, rtol=1e-12, atol=1e-12)


def test_one_graph_serves_all_shapes() -> None:
    graphs: list[Any] = []

    def counting(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, w: both(multiplied(scaled(x, 2.0), w), multiplied(x, w))[0],
        fullgraph=True,
        dynamic=True,
        backend=counting,
    )
    for rows, columns in ((5, 4), (7, 3), (33, 9)):
        x, w = gradient_free(rows, columns), gradient_free(columns, rows + 2)
        torch.testing.assert_close(compiled(x, w), 3 * x @ w, rtol=1e-12, atol=1e-12)
    assert len(graphs) == 1
    outputs = [node.meta["example_value"] for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert isinstance(outputs[0].shape[0], torch.SymInt)


def test_exporting_a_module_keeps_the_operator() -> None:
    class Model(torch.nn.Module):  # type: ignore[name-defined,misc]
        def forward(self, x: Any) -> Any:
            return scaled(x, 3.0)

    exported = torch.export.export(Model(), (gradient_free(4),))
    assert "oxide_test.scale.default" in exported.graph_module.code
    x = gradient_free(4)
    assert torch.equal(exported.module()(x), x * 3.0)


def test_results_are_torchs_own_memory_and_given_back_at_once() -> None:
    x = gradient_free(100)
    result = twice(x, 2.0)
    gone = [weakref.ref(x), weakref.ref(result)]
    assert result.untyped_storage().nbytes() == 800
    result.resize_(1000)  # as only memory of torch's allocator can be
    gc.disable()
    try:
        del x, result
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


def test_a_box_that_outlives_the_call_keeps_its_memory() -> None:
    kept: list[DeviceBox] = []

    def keeping(x: DeviceBox) -> DeviceOperation[DeviceBox]:
        return dup(x).inspect(lambda box: kept.append(box)).and_then(dup)

    op = oxide.torch.op("oxide_test::keeping", keeping, outputs=torch.empty_like)
    x = gradient_free(1000)
    op(x)
    for _ in range(20):
        op(gradient_free(1000))
    np.testing.assert_array_equal(oxide.d2h(kept[0]).sync(), x.numpy())


def test_boxes_on_a_tensors_memory_are_ordered_with_the_call() -> None:
    x = gradient_free(1000)
    box = oxide.from_dlpack(x)
    scale(h2d(np.ones(1000)), 7.0, box).async_on(oxide.devices()[0].new_stream())
    assert torch.equal(scaled(x, 2.0), torch.full((1000,), 14.0, dtype=torch.float64))


def test_a_fault_is_raised_at_once_and_names_the_operator() -> None:
    with pytest.raises(BoundsError, match="reaches_too_far") as caught:
        too_far(torch.ones(5))
    assert "in torch's operator oxide_test::too_far, of x torch.float32 (5,) on cpu" in caught.value.__notes__
    assert torch.equal(scaled(torch.ones(3), 2.0), torch.full((3,), 2.0))


def test_a_launch_that_the_driver_refuses_leaves_nothing_behind() -> None:
    with use_driver(FailingDriver(CpuDriver())) as driver:
        x = gradient_free(50)
        scaled(x, 2.0)
        driver.fail("launch", DeviceError("refused"))
        with pytest.raises(DeviceError, match="refused"):
            scaled(x, 2.0)
        assert torch.equal(scaled(x, 2.0), x * 2.0)
        gone = weakref.ref(x)
        del x
        gc.collect()  # the error's traceback
        oxide.reclaim.drain()
        assert gone() is None


# Refusals


def test_wrong_dtypes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="parameter x: expected a device buffer of float64") as caught:
        both(torch.ones(3), torch.ones(3))
    assert any("x torch.float32 (3,) on cpu" in note for note in caught.value.__notes__)
    with pytest.raises(TypeError, match=r"torch\.complex32, which is no dtype of boxes"):
        twice(torch.ones(3, dtype=torch.complex32), 1.0)


def test_other_shapes_than_the_inputs_need_outputs() -> None:
    with pytest.raises(ValueError, match=r"shapes \(3,\), \(4,\).*outputs="):
        both(gradient_free(3), gradient_free(4))


def test_tensors_of_another_device_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="oxide_test::scale"):
        torch.ops.oxide_test.scale(torch.ones(3).to_sparse(), 2.0)


def test_a_function_may_not_yield_or_write_its_input() -> None:
    same = oxide.torch.op(
        "oxide_test::yields_input",
        lambda x: oxide.value(x),
        schema="(Tensor x) -> Tensor",
        outputs=torch.empty_like,
    )
    with pytest.raises(ValueError, match="yield dup"):
        same(torch.ones(3))
    writes = oxide.torch.op(
        "oxide_test::writes_input",
        lambda x: scale(dup(x), 2.0, x).last().and_then(dup),
        schema="(Tensor x) -> Tensor",
        outputs=torch.empty_like,
    )
    with pytest.raises(ValueError, match="wrote to an input"):
        writes(torch.ones(3))
    aliases = oxide.torch.op("oxide_test::own_input", scale, outputs=lambda x, s: x)
    with pytest.raises(ValueError, match="outputs returned an input"):
        aliases(torch.ones(3), 2.0)


def test_a_wrong_fake_implementation_is_found_at_the_first_call() -> None:
    wrong = oxide.torch.op(
        "oxide_test::wrong_fake", dup, schema="(Tensor x) -> Tensor", outputs=lambda x: x.new_empty(2)
    )
    with pytest.raises(ValueError, match=r"torch.float32 \(3,\), and outputs says torch.float32 \(2,\)"):
        wrong(torch.ones(3))


def test_wrong_results_of_functions_are_refused() -> None:
    def defined(function: Any) -> Any:
        return oxide.torch.op(
            "oxide_test::wrong", function, schema="(Tensor x) -> Tensor", outputs=lambda x: torch.empty_like(x)
        )

    with pytest.raises(TypeError, match="must return an operation"):
        defined(lambda x: 3)(torch.ones(3))
    with pytest.raises(TypeError, match="yielded 3; it must yield a box"):
        defined(lambda x: oxide.value(3))(torch.ones(3))
    with pytest.raises(TypeError, match="yielded 3 boxes"):
        defined(lambda x: oxide.zip(dup(x), dup(x), dup(x)))(torch.ones(3))
    with pytest.raises(ValueError, match="strided view"):
        defined(lambda x: dup(x).map(lambda box: box[::2]))(torch.ones(3))


def test_definitions_that_cannot_be_operators_are_refused() -> None:
    with pytest.raises(ValueError, match="'namespace::name'"):
        oxide.torch.op("scale", scale)
    with pytest.raises(TypeError, match="bins of kernel count is AtomicSlice"):
        oxide.torch.op("oxide_test::count", count)
    with pytest.raises(TypeError, match="pass outputs="):
        oxide.torch.op("oxide_test::f", multiply)
    with pytest.raises(TypeError, match="x has no annotation; pass schema="):
        oxide.torch.op("oxide_test::f", lambda x: dup(x), outputs=torch.empty_like)
    with pytest.raises(TypeError, match="neither a kernel nor a function"):
        oxide.torch.op("oxide_test::f", 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="setup_context is for backward"):
        oxide.torch.op("oxide_test::f", scale, setup_context=lambda ctx, inputs, output: None)
    for schema, message in (
        ("(Tensor(a!) x) -> Tensor", "writes to new tensors only"),
        ("(Tensor x, Device d) -> Tensor", "the schema has d: Device"),
        ("(int x) -> Tensor", "has no tensor"),
        ("(Tensor x) -> int", "must return one Tensor"),
        ("(Tensor x, *, int n) -> Tensor", "by keyword only"),
    ):
        with pytest.raises(ValueError, match=message):
            oxide.torch.op("oxide_test::f", dup, schema=schema, outputs=torch.empty_like)


def test_defining_a_name_again_replaces_the_operator() -> None:
    first = oxide.torch.op("oxide_test::again", scale)
    assert torch.equal(first(torch.ones(2), 2.0), torch.full((2,), 2.0))
    second = oxide.torch.op("oxide_test::again", dup, schema="(Tensor x) -> Tensor", outputs=torch.empty_like)
    assert torch.equal(second(torch.ones(2)), torch.ones(2))


def test_contracts_of_a_kernel_are_checked() -> None:
    @kernel(block=64, requires=("len(x) == len(y)",))
    def copied(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = x[index.get()]

    op = oxide.torch.op("oxide_test::copied", copied, outputs=lambda x: x.new_empty(x.shape[0] + 1))
    with pytest.raises(LaunchError, match="len"):
        op(torch.ones(3))


def test_importing_oxide_does_not_import_torch() -> None:
    program = "import sys, oxide; print('torch' in sys.modules); oxide.torch; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True"]


def test_a_repeated_launch_takes_other_addresses_and_floats() -> None:
    device = oxide.devices()[0]
    stream = device.new_stream()
    report = StandingReport(device.runtime.fault_records)
    launch = scale(h2d(np.ones(33)).sync(), 2.0, zeros(33, f64).sync())
    launch.sync_on(stream)
    again = repeated(launch, device, report, [torch.zeros(33, dtype=torch.float64)])
    assert again is not None
    pointers: list[int] = []
    (made,) = again.outputs_like(torch.zeros(3, 11), pointers)
    assert (made.shape, made.dtype, [made.data_ptr()]) == ((3, 11), torch.float64, pointers)
    x, y = np.random.default_rng(1).random(33), np.zeros(33)
    assert again.submit(device, stream, [x.ctypes.data, y.ctypes.data], [7.0])
    stream.synchronize()
    np.testing.assert_array_equal(y, x * 7.0)
    assert not again.submit(device, stream, [x.ctypes.data, y.ctypes.data], [float("inf")])  # to be checked again
    assert not report.claimed()


def test_faults_of_repeated_launches_are_reported() -> None:
    device = oxide.devices()[0]
    stream = device.new_stream()
    report = StandingReport(device.runtime.fault_records)
    launch = reaches_too_far(zeros(6).sync(), zeros(5).sync())
    launch.sync_on(stream)
    again = repeated(launch, device, report, [torch.zeros(5)])
    assert again is not None
    x, y = np.zeros(6, np.float32), np.zeros(5, np.float32)
    assert again.submit(device, stream, [x.ctypes.data, y.ctypes.data], [])
    stream.synchronize()
    assert not report.claimed()
    launch = reaches_too_far(zeros(5).sync(), zeros(5).sync())
    with pytest.raises(BoundsError):
        launch.sync_on(stream)
    again = repeated(launch, device, report, [torch.zeros(5)])
    assert again is not None
    again.submit(device, stream, [x.ctypes.data, y.ctypes.data], [])
    stream.synchronize()
    with pytest.raises(BoundsError, match="reaches_too_far"):
        report.raise_fault()


def test_the_benchmark_compares_right_results() -> None:
    assert set(measure(calls=200, rounds=1)) == {"torch", "torch.library.custom_op", "kernel", "function"}


PAGE = Path(__file__).parents[2] / "docs" / "torch.md"
PROGRAMS = re.findall(
    r"^``` \{ \.python \.torch \}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_the_programs_of_the_page_run(program: str, tmp_path: Path) -> None:
    assert len(PROGRAMS) == 2
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    subprocess.run([sys.executable, str(file)], check=True, cwd=PAGE.parents[1])


@pytest.fixture
def on_a_stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An operator's calls as they are on a GPU: submitted to a stream of torch's, with one record for faults. Torch's
    allocator for the host does not know that stream, so all tensors are kept until it has run."""
    kept: list[Any] = []
    device = oxide.devices()[0]
    state = torch_runs._State(device.runtime)
    report = state.report = StandingReport(device.runtime.fault_records)
    place = torch_runs._Place(device, torch.device("cpu"), device.new_stream())
    state.places[-1, 0] = place
    monkeypatch.setattr(torch_runs, "_state", state)
    monkeypatch.setattr(torch_runs, "_raw_stream", lambda index: 0)

    def calls(kernel_: Any, outputs: Any, schema: str = "(Tensor x, float s) -> Tensor") -> Any:
        arguments = torch_definitions._KernelArguments("oxide_test::calls", kernel_, kernel_, outputs)
        made = torch_definitions._contiguous("oxide_test::calls", outputs, 1)
        run = torch_runs.Run(
            "oxide_test::calls", torch._C.parse_schema("oxide_test::calls" + schema), made, kernel_, arguments.build
        )

        def first(*given: Any) -> Any:
            lender = Lender(place.allocate, report, state.functions)
            kept.extend((given, run._run(place, place.stream, lender, given, False)))
            return kept[-1]

        def again(*given: Any) -> Any:
            kept.extend((given, run._repeat(state, given)))
            return kept[-1]

        return first, again

    yield calls, place.stream, report
    assert place.stream is not None
    place.stream.synchronize()
    kept.clear()


def test_only_calls_like_an_earlier_one_are_repeated(on_a_stream: Any) -> None:
    calls, stream, report = on_a_stream
    first, again = calls(scale, lambda x, s: torch.empty_like(x))
    x = gradient_free(100)
    assert again(x, 2.0) is None
    result = first(x, 2.0)
    y = gradient_free(100)
    (other,) = again(y, 5.0)
    stream.synchronize()
    assert torch.equal(result, x * 2.0)
    assert torch.equal(other, y * 5.0)
    assert again(gradient_free(101), 2.0) is None
    assert again(gradient_free(10, 10), 2.0) is None
    assert again(x.to(torch.float32), 2.0) is None
    assert again(gradient_free(200)[::2], 2.0) is None
    assert again(x, float("nan")) is None
    box = oxide.from_dlpack(x)  # its uses and the call's are ordered only by a box
    assert again(x, 2.0) is None
    assert again(y, 2.0) is not None
    del box
    assert again(x, 2.0) is not None
    with oxide.profile():
        assert again(x, 2.0) is None
    stream.synchronize()
    assert not report.claimed()


def test_an_integer_of_a_repeated_call_decides_the_launch(on_a_stream: Any) -> None:
    @kernel(block=64)
    def plus(x: Slice[f32], n: i32, y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = x[index.get()] + f32(n)

    calls, stream, _ = on_a_stream
    first, again = calls(plus, lambda x, n: torch.empty_like(x), "(Tensor x, int n) -> Tensor")
    x = torch.ones(5)
    first(x, 1)
    assert again(x, 2) is None
    first(x, 2)
    (result,) = again(x, 2)
    stream.synchronize()
    assert torch.equal(result, x + 2)


def test_a_fault_of_a_call_that_was_not_waited_for_ends_the_repeating(on_a_stream: Any) -> None:
    calls, stream, report = on_a_stream
    first, again = calls(reaches_too_far, torch.empty_like, "(Tensor x) -> Tensor")
    x = torch.ones(5)
    first(x)
    stream.synchronize()
    assert again(x) is None
    with pytest.raises(BoundsError, match="reaches_too_far"):
        report.raise_fault()
    assert again(x) is not None
    stream.synchronize()
    assert report.claimed()


def test_outputs_that_share_memory_are_refused(on_a_stream: Any) -> None:
    calls, _, _ = on_a_stream
    own = False
    first, again = calls(scale, lambda x, s: x if own else torch.empty_like(x))
    x = gradient_free(100)
    first(x, 2.0)
    own = True
    for call in (first, again):
        with pytest.raises(ValueError, match="outputs returned an input"):
            call(x, 2.0)
