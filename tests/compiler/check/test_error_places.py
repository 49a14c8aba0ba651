"""Where a compile error points, whose line it is, and what is left of an error that nobody foresaw."""

# ruff: noqa: F821, F841 (the kernels here are wrong on purpose)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda

from oxide import (
    Array,
    BarrierError,
    BoundsError,
    DisjointSlice,
    KernelFault,
    Slice,
    d2h,
    device,
    f32,
    h2d,
    i8,
    i64,
    intrinsics,
    kernel,
    thread,
    zeros,
)
from oxide.compiler.check.numba_errors import placed_errors
from oxide.compiler.frontend import frontend
from oxide.compiler.ir import portable as ir
from oxide.errors import CompileError
from oxide_kernels import block_reduce
from tests.source_lines import line_of

TABLE = np.arange(4, dtype=np.float32)
MATRIX = np.ones((2, 3), np.float32)


def refused(body: Callable[..., Any], **types: Any) -> tuple[str, str]:
    """What a kernel of ``body`` is told, and the text above the caret from there on."""
    with pytest.raises(CompileError) as raised:
        kernel(body).specialize(**types)
    message, source, caret = str(raised.value).splitlines()
    return message, source[caret.index("^") :]


def test_of_two_mistakes_the_first_is_told_at_its_own_line() -> None:
    def counts(x: Slice[i8]) -> None:
        a = intrinsics.popc(x[0])  # type: ignore[type-var]  # here
        b = intrinsics.brev(x[0])  # type: ignore[type-var]

    message, source = refused(counts)
    assert message.startswith(f"{__file__}:{line_of(counts, 'here')}: intrinsics.popc takes")
    assert source.startswith("intrinsics.popc(x[0])")


def test_a_mistake_in_a_device_function_is_shown_there() -> None:
    @device
    def inner(x: Any) -> Any:
        return intrinsics.clz(x)  # here

    def outer(x: Slice[i8]) -> None:
        a = inner(x[0])
        b = intrinsics.popc(x[0])  # type: ignore[type-var]

    message, source = refused(outer)
    assert message.startswith(f"{__file__}:{line_of(inner.function, 'here')}: intrinsics.clz takes")
    assert source.startswith("intrinsics.clz(x)")


def test_a_mistake_handed_to_the_library_is_shown_where_it_was_handed_over() -> None:
    @device
    def joined(a: Any, b: Any) -> Any:
        return a

    def reduces(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        total = block_reduce(joined, x)  # type: ignore[call-overload]  # here

    message, source = refused(reduces)
    assert message.startswith(f"{__file__}:{line_of(reduces, 'here')}: ")
    assert source.startswith("block_reduce(joined, x)")


def test_the_caret_counts_characters() -> None:
    def accents(a):  # type: ignore[no-untyped-def]
        print("é", "ü", a.copy())

    _, source = refused(accents, a=Array[f32, 1])
    assert source == "a.copy())"

    def typed(x: Slice[f32]) -> None:
        print("é", "ü", nowhere)  # type: ignore[name-defined]

    _, source = refused(typed)
    assert source.startswith("nowhere")


def test_an_error_inside_numbas_own_functions_is_shown_at_the_call() -> None:
    @cuda.jit(device=True)  # type: ignore[untyped-decorator]
    def inner(a):  # type: ignore[no-untyped-def]
        return a.copy()[0]  # here

    def outer(a):  # type: ignore[no-untyped-def]
        a[0] = inner(a)

    message, source = refused(outer, a=Array[f32, 1])
    assert message.startswith(f"{__file__}:{line_of(inner.py_func, 'here')}: a.copy(...) would allocate")
    assert source.startswith("a.copy()[0]")


def test_a_formatted_string_is_refused_before_anything_is_compiled_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    original = frontend.compile_function

    def counting(*args: Any) -> Any:
        compiled.append(args[0].__name__)
        return original(*args)

    monkeypatch.setattr(frontend, "compile_function", counting)

    def shows(a):  # type: ignore[no-untyped-def]
        print(f"{a[0]}")

    message, _ = refused(shows, a=Array[f32, 1])
    assert message.endswith("as in print(a[0])")
    assert compiled == ["shows"]


def test_a_branch_that_a_constant_closes_may_name_what_is_not_there() -> None:
    @kernel
    def careful(a):  # type: ignore[no-untyped-def]
        if BETTER_ARITHMETIC:
            a[0] = nowhere(a[0])
        else:
            a[0] = 3

    assert careful[1, 1](zeros(1)).first().and_then(d2h).sync().tolist() == [3]


BETTER_ARITHMETIC = False


def test_a_failure_of_a_later_step_names_the_kernel_and_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    @kernel
    def fine(y: DisjointSlice[f32]) -> None:
        pass

    def broken(*args: Any) -> None:
        raise RuntimeError("LLVM IR parsing error\n<string>:76:33: error: invalid")

    monkeypatch.setattr(ir, "parse", broken)
    with pytest.raises(CompileError, match=r"kernel fine cannot be compiled.*RuntimeError: LLVM IR parsing") as raised:
        fine.specialize()
    assert str(raised.value).startswith(f"{__file__}:{fine.function.__code__.co_firstlineno}: ")
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_a_step_that_does_not_know_the_source_is_given_the_kernels_line() -> None:
    def body(y: Any) -> None:
        pass

    first = body.__code__.co_firstlineno
    located = pytest.raises(CompileError, match=f"^{__file__}:{first}: kernel body: no assembler")
    with located, placed_errors("body", body):
        raise CompileError("kernel body: no assembler")
    located = pytest.raises(CompileError, match=f"^{__file__}:{first}: kernel body: no such dtype")
    with located, placed_errors("body", body):
        raise CompileError("no such dtype")
    with pytest.raises(CompileError, match=r"^elsewhere\.py:3: as it was$"), placed_errors("body", body):
        raise CompileError("elsewhere.py:3: as it was")
    with pytest.raises(MemoryError), placed_errors("body", body):
        raise MemoryError


def test_the_name_of_a_reference_may_not_become_a_number() -> None:
    def later(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element = x[0]  # type: ignore[assignment]  # here

    def at_once(y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        element = 1  # type: ignore[assignment]  # here

    def read_again(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element = x[0]  # type: ignore[assignment]
        kept = element  # here

    for body in (later, at_once, read_again):
        message, _ = refused(body)
        assert message.startswith(f"{__file__}:{line_of(body, 'here')}: element is a reference to an element")
        assert "write element.value = ..." in message


def test_a_name_may_be_a_number_before_it_is_a_reference_and_one_of_two_references() -> None:
    @kernel(block=4)
    def fills(y: DisjointSlice[f32]) -> None:
        element = 1
        index = thread.index_1d()
        element = y.get_mut(index)  # type: ignore[assignment]
        element = y.get_mut(index)  # type: ignore[assignment]
        if element is not None:
            element.value = f32(2)  # type: ignore[attr-defined]

    assert fills(zeros(4)).first().and_then(d2h).sync().tolist() == [2] * 4


@cuda.jit(device=True)  # type: ignore[untyped-decorator]
def depth(n):  # type: ignore[no-untyped-def]
    if n <= 0:
        return 0
    return depth(n - 1) + 1


@cuda.jit(device=True)  # type: ignore[untyped-decorator]
def even(n):  # type: ignore[no-untyped-def]
    if n == 0:
        return 1
    return odd(n - 1)


@cuda.jit(device=True)  # type: ignore[untyped-decorator]
def odd(n):  # type: ignore[no-untyped-def]
    if n == 0:
        return 0
    return even(n - 1)


@cuda.jit(device=True)  # type: ignore[untyped-decorator]
def waits(n):  # type: ignore[no-untyped-def]
    cuda.syncthreads()  # here
    if n <= 0:
        return 0
    return waits(n - 1) + 1


def test_functions_that_call_themselves_or_each_other_take_constants_and_variables() -> None:
    @kernel
    def counts(out, n):  # type: ignore[no-untyped-def]
        out[0] = depth(3)
        out[1] = depth(n)
        out[2] = even(n)
        out[3] = odd(n)

    @kernel
    def other_way_round(out, n):  # type: ignore[no-untyped-def]
        out[0] = odd(n)

    assert counts[1, 1](zeros(4), 6).first().and_then(d2h).sync().tolist() == [3, 6, 1, 0]
    assert other_way_round[1, 1](zeros(1), 7).first().and_then(d2h).sync().tolist() == [1]


def test_waiting_in_a_recursion_is_refused_where_it_waits() -> None:
    @kernel
    def counts(out, n):  # type: ignore[no-untyped-def]
        out[0] = waits(n)

    with pytest.raises(CompileError, match="kernel counts: a function that calls itself waits") as raised:
        counts.specialize(out=Array[f32, 1], n=i64).native_asm()
    assert str(raised.value).startswith(f"{__file__}:{line_of(waits.py_func, 'here')}: ")


def test_a_barrier_of_the_grid_is_named_where_each_kernel_calls_it(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--device") == "cuda":
        pytest.skip("a GPU hangs there")

    @kernel
    def one(a):  # type: ignore[no-untyped-def]
        if cuda.grid(1) == 3:
            return
        cuda.cg.this_grid().sync()  # here

    @kernel
    def other(a):  # type: ignore[no-untyped-def]
        if cuda.grid(1) == 3:
            return
        a[0] = 1
        cuda.cg.this_grid().sync()  # here

    for k in (one, other):
        with pytest.raises(BarrierError) as raised:
            k[2, 4](zeros(1)).sync()
        assert raised.value.places[0] == (__file__, line_of(k, "here"))


def test_a_constant_array_goes_by_the_kernels_name_for_it() -> None:
    @kernel(block=1)
    def reads(n: i64, y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = TABLE[n] + MATRIX[1, n]

    with pytest.raises(BoundsError, match=r"TABLE\[4\] is outside TABLE, which has 4 elements"):
        reads(4, zeros(1)).sync()
    with pytest.raises(
        BoundsError, match=r"index 3 of axis 1 is outside MATRIX, .* \(\[1, 3\] of shape \(2, 3\)\); block"
    ):
        reads(3, zeros(1)).sync()


def test_constant_arrays_of_one_shape_may_stand_for_each_other() -> None:
    low, high = np.zeros(4, np.float32), np.ones(4, np.float32)

    @kernel(block=4)
    def choose(n: i64, y: DisjointSlice[f32]) -> None:
        table = low
        if n > 1:
            table = high
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = table[index.get()]

    for n in (1, 2):
        assert choose(n, zeros(4)).last().and_then(d2h).sync().tolist() == [n - 1] * 4
    with pytest.raises(KernelFault, match=r"high\|low\[4\]"):
        choose[1, 8](2, zeros(8)).sync()


def test_a_kernel_is_no_more_patient_than_before_with_names_it_does_not_have() -> None:
    @kernel
    def fine(y: DisjointSlice[f32]) -> None:
        pass

    assert not hasattr(fine, "py_func")
    with pytest.raises(AttributeError, match=r"kernel fine has no nothing$"):
        fine.nothing  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(CompileError, match="fine is a kernel already"):
        kernel(fine)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="looks for memory and race, and 'bogus' is neither"):
        kernel(sanitize="bogus")(fine.function)
    assert h2d(np.zeros(1, np.float32)).sync().size == 1
