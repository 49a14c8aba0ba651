"""What operations and their combinators yield, and what they refuse."""

from __future__ import annotations

import builtins
import copy
import gc
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import oxide
from oxide import (
    Arc,
    DeviceOperation,
    ExecutionContext,
    arange,
    d2h,
    dup,
    empty,
    full,
    h2d,
    memcpy,
    ones,
    randn,
    shared,
    unzip,
    value,
    with_context,
    zeros,
)
from oxide import zip as zip_operations
from oxide.driver.cpu import CpuDriver
from oxide.testing import use_driver


def test_value_yields_the_very_object() -> None:
    thing = object()
    assert value(thing).sync() is thing


@pytest.mark.parametrize("name", ["and_then", "then", "apply"])
def test_and_then_and_its_other_names_run_the_operation_made_of_the_result(name: str) -> None:
    operation = getattr(value(20), name)(lambda x: value(x + 1))
    assert operation.sync() == 21


def test_and_then_with_context_gets_the_context_of_the_run() -> None:
    stream = oxide.devices()[0].new_stream()
    seen: list[ExecutionContext] = []

    def follow(context: ExecutionContext, x: int) -> DeviceOperation[int]:
        seen.append(context)
        return value(x * 2)

    assert value(4).and_then_with_context(follow).sync_on(stream) == 8
    assert seen[0].stream is stream
    assert seen[0].device is oxide.devices()[0]
    assert seen[0].device_id == 0


def test_with_context_gets_the_context_at_execution() -> None:
    assert with_context(lambda context: value(context.device_id)).sync() == 0


def test_map_changes_the_result_and_inspect_does_not() -> None:
    seen: list[int] = []
    assert value(3).map(lambda x: x + 1).inspect(seen.append).sync() == 4
    assert seen == [4]


async def slowly(x: int) -> int:
    return x


@pytest.mark.parametrize("name", ["map", "inspect", "and_then", "and_then_with_context"])
def test_an_async_function_is_refused_where_nothing_would_await_it(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name} takes an ordinary function, not the async slowly: nothing would"):
        getattr(value(3), name)(slowly)


@pytest.mark.parametrize("name", ["map", "inspect"])
def test_a_coroutine_that_a_function_returns_is_refused_and_closed(name: str, recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(TypeError, match=rf"^{name} takes an ordinary function, not the async <lambda>"):
        getattr(value(3), name)(lambda x: slowly(x)).sync()
    gc.collect()
    assert not recwarn.list


def test_a_star_import_leaves_pythons_own_names() -> None:
    names: dict[str, Any] = {}
    exec("from oxide import *", names)
    assert not vars(builtins).keys() & (names.keys() - {"__builtins__"})
    assert names["unzip"] is unzip


def test_what_is_copied_the_wrong_way_says_which_way_there_is() -> None:
    box = zeros(3).sync()
    with pytest.raises(
        TypeError, match=r"^memcpy writes into a DeviceBox, not into an ndarray; d2h\(box\) copies to a new"
    ):
        memcpy(np.zeros(3, np.float32), box)  # type: ignore[arg-type]
    for text in ("abc", b"abc"):
        with pytest.raises(TypeError, match=rf"^h2d takes numbers, not the {type(text).__name__} {text!r}"):
            h2d(text)


def test_zip_of_any_number_keeps_the_order() -> None:
    assert zip_operations().sync() == ()
    assert zip_operations(value(1)).sync() == (1,)
    assert zip_operations(*[value(i) for i in range(12)]).sync() == tuple(range(12))


def test_first_and_last_of_a_tuple() -> None:
    assert zip_operations(value(1), value(2), value(3)).first().sync() == 1
    assert zip_operations(value(1), value(2), value(3)).last().sync() == 3


def test_first_of_what_is_no_tuple_says_so() -> None:
    with pytest.raises(TypeError, match="a tuple"):
        value(7).first().sync()


def test_unzip_runs_its_source_once() -> None:
    runs: list[int] = []
    source = zip_operations(value(1).inspect(runs.append), value(2))
    first, second = unzip(source)
    assert (second.sync(), first.sync(), first.sync()) == (2, 1, 1)
    assert runs == [1]


def test_unzip_of_an_unknown_length_asks_for_it() -> None:
    def pair(_: int) -> DeviceOperation[tuple[int, int]]:
        return value((1, 2))

    with pytest.raises(TypeError, match="n=2"):
        value(0).and_then(pair).unzip()
    a, b = value(0).and_then(pair).unzip(2)
    assert (a.sync(), b.sync()) == (1, 2)


def test_unzip_refuses_a_length_that_is_wrong() -> None:
    with pytest.raises(TypeError, match="yields 2"):
        unzip(zip_operations(value(1), value(2)), 3)


def test_an_operation_may_be_run_again_and_does_its_work_again() -> None:
    runs: list[int] = []
    operation = value(1).inspect(runs.append)
    operation.sync()
    operation.sync()
    assert runs == [1, 1]


def test_a_shared_operation_does_its_work_once_and_gives_the_same_object() -> None:
    runs: list[object] = []
    operation = h2d(np.arange(5.0)).inspect(runs.append).shared()
    assert operation.sync() is operation.sync()
    assert len(runs) == 1


def test_shared_of_a_plain_value_yields_it() -> None:
    thing = object()
    assert shared(thing).sync() is thing


def test_the_failure_of_a_shared_operation_reaches_every_consumer() -> None:
    runs: list[int] = []

    def fail(x: int) -> int:
        runs.append(x)
        raise ArithmeticError("once")

    operation = value(1).map(fail).shared()
    for _ in range(3):
        with pytest.raises(ArithmeticError, match="once"):
            operation.sync()
    assert runs == [1]


def test_a_shared_operation_that_uses_itself_is_refused() -> None:
    holder: list[DeviceOperation[Any]] = []
    operation = value(1).and_then(lambda _: holder[0]).shared()
    holder.append(operation)
    with pytest.raises(RuntimeError, match="itself"):
        operation.sync()


def test_arc_counts_its_owners() -> None:
    arc = value("weights").arc().sync()
    assert (arc.value, Arc.strong_count(arc)) == ("weights", 1)
    clones = [arc.clone() for _ in range(3)]
    assert Arc.strong_count(arc) == Arc.strong_count(clones[0]) == 4
    assert clones[2].value is arc.value
    del clones
    assert Arc.strong_count(arc) == 1


def test_a_function_that_returns_no_operation_is_named() -> None:
    with pytest.raises(TypeError, match=r"and_then's function must return a DeviceOperation.*int.*map"):
        value(1).and_then(lambda x: x + 1).sync()  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="with_context"):
        with_context(lambda _: 3).sync()  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="zip takes operations"):
        zip_operations(3)  # type: ignore[call-overload]


def test_an_exception_of_a_users_function_reaches_the_caller_and_the_runtime_goes_on() -> None:
    with pytest.raises(ZeroDivisionError):
        h2d(np.ones(9)).map(lambda _: 1 // 0).sync()
    np.testing.assert_array_equal(h2d(np.ones(9)).to_host().sync(), np.ones(9))


def test_an_operation_that_is_dropped_unrun_warns_and_one_that_was_used_does_not() -> None:
    with pytest.warns(RuntimeWarning, match="h2d of 4 float64> was never run"):
        h2d(np.ones(4))
        gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inner = value(1)
        outer = inner.map(lambda x: x)
        outer.sync()
        with pytest.raises(TypeError):
            unzip(value(1))
        del inner, outer
        gc.collect()


@pytest.mark.slow
@pytest.mark.parametrize("made", ["zeros(8)", "h2d(np.ones(8)).on(0)", "Own()"])
def test_an_operation_in_a_cycle_that_the_interpreters_end_collects_is_no_internal_error(made: str) -> None:
    program = f"""
import numpy as np
from oxide import *
class Own(DeviceOperation):
    dtype = np.dtype("f4")
    def execute(self, context): ...
    def __repr__(self): return f"own of {{self.dtype}}"
class Holder: pass
holder = Holder()
holder.itself, holder.operation = holder, {made}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "Error" not in done.stderr  # the warning may be there, or not, as the modules that it takes are
    assert "Exception" not in done.stderr


def test_an_operation_that_a_module_holds_unrun_to_the_interpreters_end_warns() -> None:
    program = "import oxide\nkept = oxide.value(8)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "RuntimeWarning: <oxide operation Value> was never run" in done.stderr


@pytest.mark.parametrize("size", [0, 1, 31, 33, 1000003])
@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u8", "f4", "f8", "?", "c8"])
def test_a_copy_to_the_device_and_back_is_the_same_array(size: int, dtype: str) -> None:
    array = np.random.default_rng(size).integers(0, 100, size).astype(dtype)
    box, back = zip_operations(h2d(array)).and_then(lambda t: zip_operations(value(t[0]), d2h(t[0]))).sync()
    assert (box.shape, box.dtype, box.size, box.nbytes) == (array.shape, array.dtype, array.size, array.nbytes)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_shapes_survive_and_strided_arrays_are_gathered() -> None:
    base = np.arange(60.0).reshape(3, 4, 5)
    for array in (base, base[:, ::2, ::-1], base.T, base[1, 1, 1:2].reshape(()), np.empty((0, 3))):
        back = h2d(array).to_host().sync()
        assert back.shape == array.shape
        np.testing.assert_array_equal(back, array)


def test_a_result_stays_the_callers_while_other_work_uses_the_pool() -> None:
    array = np.arange(5000.0)
    first = h2d(array).to_host().sync()
    for i in range(20):
        h2d(array + i).to_host().sync()
    np.testing.assert_array_equal(first, array)


MADE_OF_A_RESULT: dict[str, Callable[[Any], Any]] = {
    "a view": lambda result: result[10:],
    "a view of a view": lambda result: result.reshape(50, 100)[1:].T,
    "a subclass": lambda result: result.view(np.recarray),
    "a masked array": lambda result: np.ma.masked_array(result, result < 0),
    "a memoryview": lambda result: np.asarray(memoryview(result)),
    "a buffer": np.frombuffer,
    "its base": lambda result: result.base.view(np.float64)[:5000],
}


@pytest.mark.parametrize("made", MADE_OF_A_RESULT)
def test_a_result_s_memory_stays_while_anything_made_of_it_does_and_goes_with_that(made: str) -> None:
    with use_driver(CpuDriver(1)) as driver:
        array = np.arange(5000.0)
        kept = MADE_OF_A_RESULT[made](h2d(array).to_host().sync())
        expected = np.array(kept)
        gc.collect()
        for i in range(20):
            h2d(array + i).to_host().sync()
        np.testing.assert_array_equal(np.array(kept), expected)
        del kept
        gc.collect()
        oxide.reclaim.drain()
        assert driver.live_allocations.host_count == 0
    driver.close()


def test_h2d_reads_the_array_when_it_runs() -> None:
    array = np.zeros(10)
    operation = h2d(array).and_then(d2h)
    array[:] = 1
    np.testing.assert_array_equal(operation.sync(), np.ones(10))
    array[:] = 2
    np.testing.assert_array_equal(operation.sync(), np.full(10, 2.0))


@pytest.mark.parametrize("shape", [0, 1, 33, (2, 3), (4, 0), ()])
def test_zeros_ones_and_full_are_numpys_to_the_bit(shape: Any) -> None:
    np.testing.assert_array_equal(zeros(shape).to_host().sync(), np.zeros(shape, np.float32))
    np.testing.assert_array_equal(ones(shape, oxide.i64).to_host().sync(), np.ones(shape, np.int64))
    for number, dtype in ((-1.5, "f8"), (-0.0, "f4"), (200, "u1"), (-3, "i2"), (2**40 + 1, "i8"), (True, "?")):
        result = full(shape, number, dtype).to_host().sync()
        expected = np.full(shape, number, dtype)
        assert result.dtype == expected.dtype
        assert result.tobytes() == expected.tobytes()


def test_arange_counts_and_randn_repeats_by_its_seed() -> None:
    np.testing.assert_array_equal(arange(7).to_host().sync(), np.arange(7, dtype=np.float32))
    a = randn(1.0, 2.0, (50, 40), seed=3).to_host().sync()
    b = randn(1.0, 2.0, (50, 40), seed=3).to_host().sync()
    np.testing.assert_array_equal(a, b)
    assert a.dtype == np.float32
    assert abs(a.mean() - 1) < 0.2
    assert abs(a.std() - 2) < 0.2


def test_dup_and_memcpy_copy_between_boxes() -> None:
    array = np.arange(100.0)
    box = h2d(array).sync()
    copy = dup(box).sync()
    target = zeros(100, "f8").sync()
    assert memcpy(target, copy).sync() is target
    assert copy.ptr != box.ptr
    np.testing.assert_array_equal(d2h(target).sync(), array)


def test_reshape_looks_at_the_same_memory() -> None:
    box = h2d(np.arange(12.0)).sync()
    assert box.reshape(3, 4).ptr == box.ptr
    assert box.reshape((3, -1)).shape == (3, 4)
    np.testing.assert_array_equal(d2h(box.reshape(2, 6)).sync(), np.arange(12.0).reshape(2, 6))
    for wrong in ((5,), (-1, 5), (-2, -6)):
        with pytest.raises(ValueError, match="cannot be reshaped"):
            box.reshape(wrong)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: d2h(np.ones(3)), TypeError, "h2d copies"),  # type: ignore[arg-type]
        (lambda: d2h((1, 2)), TypeError, "first"),  # type: ignore[arg-type]
        (lambda: h2d(np.array([1.0], ">f8")), TypeError, "dtype"),
        (lambda: h2d(np.array([object()])), TypeError, "dtype"),
        (lambda: zeros(-1), ValueError, "negative"),
        (lambda: zeros(1.5), TypeError, "shape"),  # type: ignore[arg-type]
        (lambda: zeros(True), TypeError, "shape"),
        (lambda: zeros(3, "O"), TypeError, "dtype"),
        (lambda: zeros(3, "f32"), TypeError, "zeros: 'f32' is no dtype; .* oxide.f32, .* 'float32'"),
        (lambda: empty(3, "f32"), TypeError, "empty: 'f32' is no dtype"),
        (lambda: ones(3, "f32"), TypeError, "ones: 'f32' is no dtype"),
        (lambda: full(3, 1, 10**5000), TypeError, "full: an int of 16610 bits is no dtype"),  # type: ignore[arg-type]
        (lambda: arange(3, object()), TypeError, "arange: .* is no dtype"),  # type: ignore[arg-type]
        (lambda: randn(0, 1, 3, "f32"), TypeError, "randn: 'f32' is no dtype"),
        (lambda: unzip(None), TypeError, "unzip takes an operation that yields a tuple, not NoneType"),
        (lambda: value((1, 2)).unzip("2"), TypeError, r"unzip\(op, n='2'\): n, how many"),  # type: ignore[arg-type]
        (lambda: value((1, 2)).unzip(-1), TypeError, r"unzip\(op, n=-1\): n, how many"),
        (lambda: value((1, 2)).unzip(True), TypeError, r"unzip\(op, n=True\): n, how many"),
        (lambda: full(3, 300, "u1"), OverflowError, "300"),
        (lambda: full(3, 1.5, "i4"), TypeError, "1.5"),
        (lambda: full(3, np.arange(3)), TypeError, "one number"),  # type: ignore[arg-type]
        (lambda: full(3, 1e300), OverflowError, "float32"),
        (lambda: randn(0, -1, 3), ValueError, "negative"),
        (lambda: randn(0, 1, 3, "i4"), TypeError, "floating"),
        (lambda: value(1).sync_on("stream"), TypeError, "Stream"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.filterwarnings("ignore:.*was never run")
def test_bad_input_is_refused_when_the_operation_is_built(build: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()


def test_memcpy_refuses_what_does_not_match() -> None:
    a, b, c = zeros(3).sync(), zeros(4).sync(), zeros(3, "f8").sync()
    with pytest.raises(ValueError, match="3 elements, src has 4"):
        memcpy(a, b)
    with pytest.raises(TypeError, match="float64"):
        memcpy(a, c)


def test_an_operation_of_ones_own_is_a_subclass_with_execute() -> None:
    class Ticket(DeviceOperation[int]):
        def execute(self, context: ExecutionContext) -> int:
            return 42 + context.device_id

    assert Ticket().map(lambda x: x + 1).sync() == 43


def test_a_chain_may_be_longer_than_pythons_stack_is_deep() -> None:
    operation = value(0)
    for _ in range(3000):
        operation = operation.and_then(lambda x: value(x + 1)).map(lambda x: x + 1).inspect(lambda _: None)
    assert operation.sync() == 6000


def test_a_boxs_shape_and_dtype_cannot_be_assigned() -> None:
    box = zeros(3).sync()
    for name, new in (("shape", (10**7,)), ("dtype", np.dtype("f8")), ("size", 4), ("ptr", 0)):
        with pytest.raises(AttributeError):
            setattr(box, name, new)


def test_a_box_cannot_be_pickled_or_copied_by_copy() -> None:
    box = zeros(3).sync()
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"d2h.*dup"):
            attempt(box)


def test_wanting_only_some_elements_of_an_unzip_is_no_mistake() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, second = unzip(zip_operations(value(1), value(2)))
        assert second.sync() == 2
        del _, second
        gc.collect()


def test_what_could_not_be_run_does_not_warn_that_it_never_was() -> None:
    stream: Any = None
    policy: Any = 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for attempt in (
            lambda: value(1).sync_on(stream),
            lambda: value(1).async_on(stream),
            lambda: value(1).schedule(policy),
            lambda: zip_operations(value(1), stream),
        ):
            with pytest.raises(TypeError):
                attempt()
        gc.collect()


def test_streams_refuse_what_they_cannot_wait_for_or_call() -> None:
    stream, wrong = oxide.devices()[0].new_stream(), cast(Any, 3)
    with pytest.raises(TypeError, match="Event"):
        stream.wait(wrong)
    with pytest.raises(TypeError, match="function"):
        stream.launch_host_function(wrong)
    with pytest.raises(TypeError, match="elapsed_ms takes an Event, not int; stream"):
        stream.record_event().elapsed_ms(wrong)


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_stands_for_the_device_cannot_be_pickled_or_copied(way: Any) -> None:
    device = oxide.devices()[0]
    stream = device.new_stream()
    for thing, name in ((device, "a Device"), (stream, "a Stream"), (stream.record_event(), "an Event")):
        with pytest.raises(TypeError, match=f"{name} cannot be pickled or copied; "):
            way(thing)


def test_devices_lists_all_there_are_until_told_otherwise() -> None:
    program = "import oxide\nprint(len(oxide.devices()))\noxide.init_device_contexts(0, 2)\nprint(len(oxide.devices()))"
    environment = {**os.environ, "OXIDE_DEVICE": "cpu", "OXIDE_CPU_DEVICES": "4"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", "2"]


@pytest.mark.parametrize("name", ["and_then", "then", "apply", "and_then_with_context", "map", "inspect"])
@pytest.mark.parametrize("what", [5, None, value])
def test_what_is_no_function_is_refused_when_the_operation_is_built(name: str, what: Any) -> None:
    wrong = value(1) if what is value else what
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of value(1), which is run by nobody
        shown = "and_then" if name in ("then", "apply") else name
        with pytest.raises(TypeError, match=f"{shown} takes a function, not {type(wrong).__name__}"):
            getattr(value(1), name)(wrong)
        with pytest.raises(TypeError, match="with_context takes a function"):
            with_context(wrong)
        del wrong
        gc.collect()


def test_an_operation_without_execute_is_refused_where_it_is_defined() -> None:
    with pytest.raises(TypeError, match=r"Nothing is an operation without execute\(self, context\): define it"):

        class Nothing(oxide.DeviceOperation[int]):
            pass


def test_an_operation_is_no_array() -> None:
    operation = d2h(zeros(3))
    for use in (np.asarray, np.sum):
        with pytest.raises(TypeError, match=r"await it or call sync\(\) first"):
            use(operation)  # type: ignore[operator]
    operation.sync()
