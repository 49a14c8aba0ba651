"""``Kernel.checks()``, ``deny_checks`` and ``python -m oxide inspect``: where the checks are, in the author's terms."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from oxide import CompileError, DisjointSlice, LocalArray, Slice, device, f32, f64, i64, kernel, thread, u8, u16, u32
from oxide.__main__ import main
from oxide.compiler.kernel.reports import Check
from oxide.compiler.source.faults import Narrowing
from oxide_kernels import matvec_naive, sgemm_naive


@kernel
def mixed(n: u32, where: Slice[i64], x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        acc = x[index.get()]
        for i in range(n):
            for j in range(n):
                acc += x[i * n + j]
            if i < 3:
                acc += x[i + 7]
        for i in range(n):
            acc += x[where[i]]
        j = i64(0)
        while acc > f32(0.0):
            acc -= x[j * j]
            j += 1
        element.value = acc


T = TypeVar("T", f32, f64)


def doubled(value: Any) -> Any:
    return value + value


@kernel
def scaled(f: Callable[[T], T], x: Slice[T], y: DisjointSlice[T]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = f(x[index.get()])


@kernel
def unannotated(a):  # type: ignore[no-untyped-def]
    a[0] = 1


FIRST = inspect.getsourcelines(mixed.function)[1]


def test_every_access_is_listed_with_its_place_and_the_reason() -> None:
    found = [(check.parameter, check.line - FIRST, check.place, check.detail) for check in mixed.checks()]
    assert found == [
        ("y", 3, "proved", "by contracts, or by the loops and tests around it"),
        ("x", 5, "access", "it is in no loop"),
        ("x", 8, "hoisted", f"one check before the loop in line {FIRST + 6}"),
        ("x", 10, "access", "the access is under a condition inside the loop"),
        ("where", 12, "hoisted", f"one check before the loop in line {FIRST + 11}"),
        ("x", 12, "access", "the index is read from memory"),
        ("x", 15, "access", "it is in a while loop, whose number of iterations is not known before"),
    ]


def test_the_second_of_two_equal_checks_is_proved() -> None:
    @kernel
    def twice(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            first = x[index.get()]
            if first > f32(0.0):
                first = first + x[index.get()]
            element.value = first

    assert [check.place for check in twice.checks() if check.parameter == "x"] == ["access", "proved"]


def test_an_access_in_a_device_function_counts_for_its_costliest_call() -> None:
    @device
    def fetch(x: Any, i: Any) -> Any:
        return x[i]

    @kernel
    def calls(n: u32, x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            acc = f32(0.0)
            for i in range(n):
                acc += fetch(x, i) + fetch(x, i * i)
            element.value = acc

    (check,) = [check for check in calls.checks() if check.parameter == "x"]
    assert check.place == "access"
    assert check.line == inspect.getsourcelines(fetch.function)[1] + 2


def test_a_check_inside_a_loop_can_be_denied() -> None:
    denied = kernel(deny_checks=True)(mixed.function)
    with pytest.raises(
        CompileError, match=r"denies checks inside loops, but x.* the access is under a condition"
    ) as raised:
        denied.specialize()
    assert f":{FIRST + 10}:" in str(raised.value)
    for each in (sgemm_naive, matvec_naive):
        kernel(deny_checks=True)(each.function).specialize()  # hoisted checks are not inside a loop


def test_denying_checks_and_leaving_them_out_is_a_contradiction() -> None:
    with pytest.raises(CompileError, match="contradict"):
        kernel(deny_checks=True, unchecked=True)(mixed.function)


def test_an_unchecked_kernel_has_no_checks() -> None:
    assert kernel(unchecked=True)(mixed.function).checks() == ()


def test_inspect_shows_the_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "oxide_kernels:sgemm_naive", "--checks"]) == 0
    shown = capsys.readouterr().out
    assert "a: hoisted, one check before the loop in line" in shown
    assert main(["inspect", "oxide_kernels:sgemm_naive"]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "expected"),
    [("--ptx", ".visible .entry matvec_naive"), ("--llvm", "@oxide.in_bounds"), ("--asm", "oxide_run_blocks")],
)
def test_inspect_shows_what_a_kernel_becomes(option: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "oxide_kernels:matvec_naive", option]) == 0
    assert expected in capsys.readouterr().out


def test_inspect_shows_a_generic_kernel_for_the_types_that_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    path = f"{__name__}:scaled"
    assert main(["inspect", path, "T=f64", f"f={__name__}:doubled", "--ptx"]) == 0
    assert "st.global.b64" in capsys.readouterr().out
    assert main(["inspect", path, "--ptx", "T=f32", "f=doubled"]) == 0
    assert "st.global.b32" in capsys.readouterr().out
    assert main(["inspect", f"{__name__}:unannotated", "a=Array[i32, 1]"]) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "say what f is, as in scaled.specialize(T=f32, f=lambda ...: ...); here the types follow the kernel"),
        (["T"], "'T' says no type: write name=type, as in T=f32"),
        (["T=f31"], "'T=f31' says no type: name 'f31' is not defined"),
        (["T=i32", "f=doubled"], "T is one of f32, f64; the argument is i32"),
        (["f=no_such_module:g"], "name a module that can be imported"),
        (["T=f32", "f=3"], "give a function"),
    ],
)
def test_inspect_says_what_is_wrong_with_the_types(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", f"{__name__}:scaled", *given]) == 2
    assert message in capsys.readouterr().err


def test_inspect_asks_a_gpu_for_resources(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["inspect", "oxide_kernels:sgemm_naive", "--resources", "--block", "64"])
    shown = capsys.readouterr()
    if device == "cpu":
        assert status == 2
        assert "registers and occupancy are a GPU's" in shown.err
    else:
        assert status == 0
        assert "block: 64" in shown.out


def test_inspect_shows_a_generic_kernel_for_the_types_that_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "oxide_kernels:relu", "T=f64", "--ptx"]) == 0
    assert ".f64" in capsys.readouterr().out
    assert main(["inspect", "oxide_kernels:relu", "--ptx"]) == 0
    shown = capsys.readouterr().out
    assert ".f32" in shown
    assert ".f64" not in shown
    assert main(["inspect", "oxide_kernels:relu", "T=float"]) == 2
    assert "kernel relu: T is <class 'float'>; give a scalar type, such as f32" in capsys.readouterr().err


def test_inspect_chooses_the_types_that_are_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "oxide_kernels:map_", "f=oxide_kernels.activations:relu_of", "C=f64", "--ptx"]) == 0
    shown = capsys.readouterr().out
    assert "ld.global.b32" in shown
    assert "st.global.b64" in shown


def test_inspect_says_what_there_is_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "oxide_kernels:softmax"]) == 2
    assert "softmax is a function, which chooses among kernels when it is called; its kernels are" in (
        capsys.readouterr().err
    )
    assert main(["inspect", "oxide_kernels:nothing"]) == 2
    assert "has no kernel nothing; its kernels are" in capsys.readouterr().err
    assert main(["inspect", "no_such_module:softmax"]) == 2
    assert "name a module that can be imported" in capsys.readouterr().err


def test_a_loop_with_inline_ptx_is_not_written_twice_as_threads_may_meet_there() -> None:
    @intrinsic  # numba's way to write PTX
    def meet(context):  # type: ignore[no-untyped-def]
        def lower(context, builder, sig, args):  # type: ignore[no-untyped-def]
            barrier = ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "bar.sync 0;", "", side_effect=True)
            builder.call(barrier, [])
            return context.get_dummy_value()

        return types.none(), lower

    @kernel
    def summed(n: u32, x: Slice[f32], y: DisjointSlice[f32]) -> None:
        total = f32(0)
        for i in range(n):
            total += x[i]
            meet()
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = total

    assert summed.ptx().count("bar.sync") == 1
    read = summed.checks()[0]
    assert (read.place, read.detail) == ("access", "the loop has a barrier or another call that threads make together")


@device
def halved(n: u8) -> u16:
    return u32(n) // 2


@kernel
def narrowed(n: u32, x: Slice[u32], y: DisjointSlice[u16]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        cells = LocalArray(2, u8)
        cells[0] = 3
        cells[1] = n
        count: u8 = n
        count += 1
        count = cells[0]
        element.value = halved(n) + count
        element.value = index.get()


def test_narrowings_are_listed_where_no_conversion_is_written() -> None:
    first = inspect.getsourcelines(narrowed.function)[1]
    inside = inspect.getsourcelines(halved.function)[1]
    assert [str(each) for each in narrowed.checks() if isinstance(each, Narrowing)] == [
        f"line {inside + 2}: the result of halved takes u32 as u16, which may wrap; write u16(…) where that is meant",
        f"line {first + 7}: an element of LocalArray(2, u8) takes u32 as u8, which may wrap; write u8(…) where that is "
        "meant",
        f"line {first + 8}: count takes u32 as u8, which may wrap; write u8(…) where that is meant",
        f"line {first + 11}: parameter n of halved takes u32 as u8, which may wrap; write u8(…) where that is meant",
        f"line {first + 12}: element.value takes i64 as u16, which may wrap; write u16(…) where that is meant",
    ]


@kernel
def narrow_indices(n: u32, k: u8, x: Slice[u32], y: DisjointSlice[u32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        start = n * k
        total: u32 = 0
        for i in range(k):
            total += x[start + i]
            total += x[i * n + i]
            total += x[u32(n * k) + i]
            total += x[n * k % 7]
            total += x[min(k + 1, k)]
            total += x[n]
        element.value = total


def test_an_access_is_marked_if_its_index_is_computed_in_a_narrow_type() -> None:
    first = inspect.getsourcelines(narrow_indices.function)[1]
    found = {each.line - first: each.narrow for each in narrow_indices.checks() if isinstance(each, Check)}
    assert found == {3: "", 8: "u32", 9: "", 10: "", 11: "", 12: "u8", 13: ""}
    (text,) = [str(each) for each in narrow_indices.checks() if getattr(each, "narrow", "") == "u32"]
    assert text == (
        f"line {first + 8}: x: hoisted, one check before the loop in line {first + 7}; the index is computed in u32"
    )
