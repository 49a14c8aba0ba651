"""What cannot be compiled is refused with file, line and the reason, in the terms of whoever wrote the kernel."""

# ruff: noqa: B007, F401, F811, F821, F841, SIM105 (the kernels here are wrong on purpose)

from __future__ import annotations

import inspect
import math
import os
import re
import textwrap
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import (
    DisjointSlice,
    SharedArray,
    Slice,
    ThreadIndex,
    device,
    f32,
    i32,
    i64,
    kernel,
    thread,
    u8,
    u32,
    zeros,
)
from oxide.compiler.source.source import located
from oxide.errors import ArgumentError, CompileError, DeviceError, LaunchError

A_LIST = [1, 2]
AN_ARRAY = np.zeros(3, np.clongdouble)
WIDTH = 7


def ordinary(x):  # type: ignore[no-untyped-def]
    return x


@device
def index_with(width):  # type: ignore[no-untyped-def]
    return thread.index_2d(width)


@device
def index_with_sum(width):  # type: ignore[no-untyped-def]
    return thread.index_2d(width + 1)


@device
def endless(x):  # type: ignore[no-untyped-def]
    return endless(x)


@device
def half_index(a, i):  # type: ignore[no-untyped-def]
    return a[i + 0.5]


def refuse(body: Callable[..., Any], reason: str) -> None:
    """The kernel is refused with the reason, at the line of the body marked with a comment ``here``."""
    lines, first = inspect.getsourcelines(body)
    (marked,) = (number for number, line in enumerate(lines, first) if line.rstrip().endswith("# here"))
    with pytest.raises(CompileError) as raised:
        kernel(body).specialize()
    message = str(raised.value)
    assert message.startswith(f"{inspect.getsourcefile(body)}:{marked}: "), message
    assert re.search(reason, message), message
    assert len(message.splitlines()) <= 3
    assert "numba" not in message


def test_an_integer_index_into_an_output_is_refused() -> None:
    def write(c: DisjointSlice[f32]) -> None:
        c[0] = 1.0  # type: ignore[index]  # here

    def read(c: DisjointSlice[f32]) -> None:
        x = c[0]  # type: ignore[index]  # here

    def add(c: DisjointSlice[f32]) -> None:
        c[thread.index_1d().get()] += 1.0  # type: ignore[index]  # here

    def get_mut(c: DisjointSlice[f32]) -> None:
        c.get_mut(3)  # type: ignore[arg-type]  # here

    for body in (write, read, add):
        refuse(body, r"c is a DisjointSlice\[f32\], which has no \[...\].*c\.get_mut\(thread\.index_1d\(\)\)")
    refuse(get_mut, r"c\.get_mut takes a ThreadIndex, not i64")


def test_a_write_through_a_slice_is_refused() -> None:
    def write(a: Slice[f32]) -> None:
        a[0] = 1.0  # type: ignore[index]  # here

    refuse(write, r"a is a Slice\[f32\], which is read-only; declare an output as DisjointSlice")


def test_a_thread_index_cannot_be_made_or_computed_with() -> None:
    def make(c: DisjointSlice[f32]) -> None:
        index = ThreadIndex()  # here

    def add(c: DisjointSlice[f32]) -> None:
        index = thread.index_1d() + 1  # type: ignore[operator]  # here

    def compare(c: DisjointSlice[f32]) -> None:
        if thread.index_1d() < 3:  # type: ignore[operator]  # here
            pass

    def convert(c: DisjointSlice[f32]) -> None:
        number = i64(thread.index_1d())  # type: ignore[call-overload]  # here

    def read(a: Slice[f32]) -> None:
        x = a[thread.index_1d()]  # type: ignore[index]  # here

    refuse(make, r"comes only from thread\.index_1d\(\), thread\.index_2d\(\) and thread\.index_3d")
    refuse(add, r"\+ is not defined for ThreadIndex and 1; .*index\.get\(\)")
    refuse(compare, r"< is not defined for ThreadIndex and 3")
    refuse(convert, r"ThreadIndex")
    refuse(read, r"not a ThreadIndex: write a\[index\.get\(\)\]")


def test_a_width_that_may_differ_between_threads_is_refused() -> None:
    def computed(n: u32, c: DisjointSlice[f32]) -> None:
        thread.index_2d(n + 1)  # here

    def local(n: u32, c: DisjointSlice[f32]) -> None:
        width = n
        thread.index_2d(width)  # here

    def reassigned(n: u32, c: DisjointSlice[f32]) -> None:
        n = thread.index_2d_row()
        thread.index_2d(n)  # here

    def loop_variable(n: u32, c: DisjointSlice[f32]) -> None:
        for width in range(n):
            thread.index_2d(width)  # here

    def read(a: Slice[i32], c: DisjointSlice[f32]) -> None:
        thread.index_2d(a[0])  # here

    def own(c: DisjointSlice[f32]) -> None:
        thread.index_2d(thread.thread_idx.x)  # here

    def length(a: Slice[i32], c: DisjointSlice[f32]) -> None:
        thread.index_2d(len(a))  # here

    for body in (computed, local, reassigned, loop_variable, read, own, length):
        refuse(body, "the width of thread.index_2d is .*, which may differ between threads")


def test_a_varying_width_is_found_through_device_functions() -> None:
    def varying(c: DisjointSlice[f32]) -> None:
        index_with(thread.index_2d_row())

    def summed(n: u32, c: DisjointSlice[f32]) -> None:
        index_with_sum(n)

    for body, function in ((varying, index_with), (summed, index_with_sum)):
        with pytest.raises(CompileError, match="which may differ between threads") as raised:
            kernel(body).specialize()
        assert f"{__file__}:{inspect.getsourcelines(function.function)[1] + 2}:" in str(raised.value)


def test_two_widths_in_one_kernel_are_refused() -> None:
    def two_constants(c: DisjointSlice[f32]) -> None:
        first = thread.index_2d(5)
        second = thread.index_2d(100)  # here

    def two_parameters(m: u32, n: u32, c: DisjointSlice[f32]) -> None:
        first = thread.index_2d(m)
        second = thread.index_2d(n)  # here

    for body in (two_constants, two_parameters):
        refuse(body, "is called with width .* here and .* elsewhere in kernel")
    refuse_hidden = kernel(_hidden_second_width)
    with pytest.raises(CompileError, match="width 7 here and n elsewhere"):
        refuse_hidden.specialize()


def _hidden_second_width(n: u32, c: DisjointSlice[f32]) -> None:
    first = thread.index_2d(n)
    second = index_with(WIDTH)


def test_one_width_is_accepted_however_often_and_however_deep() -> None:
    def fine(n: u32, c: DisjointSlice[f32]) -> None:
        first = thread.index_2d(n)
        second = index_with(n)
        if first is not None and second is not None:
            element = c.get_mut(first)

    def constant(c: DisjointSlice[f32]) -> None:
        first = thread.index_2d(WIDTH)
        second = index_with(7)

    for body in (fine, constant):
        assert kernel(body).specialize().needs.index_2d


def test_the_index_functions_cannot_be_hidden_behind_another_name() -> None:
    def alias(c: DisjointSlice[f32]) -> None:
        get = thread.index_2d  # here
        get(5)

    def device_alias(c: DisjointSlice[f32]) -> None:
        get = index_with  # here
        get(5)

    for body in (alias, device_alias):
        refuse(body, "can only be called in a kernel, not stored or passed")


def unsupported() -> list[tuple[Callable[..., Any], str]]:
    def with_try(a: Slice[f32]) -> None:
        try:  # here
            pass
        except ValueError:
            pass

    def with_raise(a: Slice[f32]) -> None:
        raise ValueError  # here

    def with_lambda(a: Slice[f32]) -> None:
        f = (lambda x: x) if len(a) > 1 else (lambda x: 1)  # here

    def with_comprehension(a: Slice[f32]) -> None:
        x = [i for i in range(3)]  # noqa: C416  # here

    def with_list(a: Slice[f32]) -> None:
        x = [1, 2]  # here

    def with_dict(a: Slice[f32]) -> None:
        x = {1: 2}  # here

    def with_f_string(a: Slice[f32]) -> None:
        x = f"{a}"  # here

    def with_string(a: Slice[f32]) -> None:
        x = "text"  # here

    def with_print(a: Slice[f32]) -> None:
        print(a[0], end="")  # here

    def with_import(a: Slice[f32]) -> None:
        import math  # here

    def with_class(a: Slice[f32]) -> None:
        class C:  # here
            pass

    def with_function(a: Slice[f32]) -> None:
        def f() -> None:  # here
            pass

        f = a  # type: ignore[assignment]

    def with_global(a: Slice[f32]) -> None:
        global WIDTH  # here
        WIDTH = 3

    def with_delete(a: Slice[f32]) -> None:
        x = 1
        del x  # here

    def with_slice(a: Slice[f32]) -> None:
        x = a[1:3]  # type: ignore[index]  # here

    def with_in(a: Slice[f32]) -> None:
        x = 3 in a  # type: ignore[operator]  # here

    def with_iteration(a: Slice[f32]) -> None:
        for x in len(a):  # type: ignore[attr-defined]  # here
            pass

    def with_result(a: Slice[f32]):  # type: ignore[no-untyped-def]
        return 3  # here

    def with_annotated_local(a: Slice[f32]) -> None:
        x: float = 0.0  # here

    def with_match(a: Slice[f32]) -> None:
        match len(a):  # here
            case [1, _]:
                pass

    def with_matmul(a: Slice[f32]) -> None:
        x = a @ a  # type: ignore[operator]  # here

    def with_zero_step(a: Slice[f32]) -> None:
        for i in range(0, 3, 0):  # here
            pass

    return [
        (with_try, "try is not supported"),
        (with_raise, "raise is not supported"),
        (with_lambda, "a lambda in a kernel is called, named by an assignment or passed to a function; write a def"),
        (with_comprehension, "comprehension is not supported"),
        (with_list, "list is not supported"),
        (with_dict, "dict is not supported"),
        (with_f_string, "strings are not supported"),
        (with_string, "strings are not supported in kernels, but in print"),
        (with_print, "takes no sep, end or file"),
        (with_import, "import is not supported"),
        (with_class, "class is not supported"),
        (with_function, "f is a function here and is bound once more: use another name"),
        (with_global, "global is not supported"),
        (with_delete, "del is not supported"),
        (with_slice, r"a\[i:j\] is not supported"),
        (with_in, "in takes a tuple in kernels, as in n in .1, 2.: write a loop that compares"),
        (with_iteration, r"goes over range\(\.\.\.\)"),
        (with_result, "a kernel returns nothing"),
        (with_annotated_local, "x: float is no scalar type of kernels: write one, as in x: f32"),
        (with_match, "match in a kernel compares with constants, as in case 1 | 2, case name and case _"),
        (with_matmul, "@ is not supported"),
        (with_zero_step, "step of range.* must not be 0"),
    ]


@pytest.mark.parametrize(("body", "reason"), unsupported(), ids=lambda value: getattr(value, "__name__", ""))
def test_unsupported_python_is_named(body: Callable[..., Any], reason: str) -> None:
    refuse(body, reason)


def test_outside_objects_that_kernels_cannot_use_are_named() -> None:
    def undefined(a: Slice[f32]) -> None:
        x = nothing_of_this_name  # type: ignore[name-defined]  # here

    def of_a_list(a: Slice[f32]) -> None:
        x = A_LIST[0]  # here

    def of_an_array(a: Slice[f32]) -> None:
        x = AN_ARRAY[0]  # here

    def of_a_function(a: Slice[f32]) -> None:
        x = textwrap.dedent("a")  # here

    def of_math(a: Slice[f32]) -> None:
        x = math.fsum((a[0],))  # here

    def of_a_module(a: Slice[f32]) -> None:
        x = thread.index_4d()  # type: ignore[attr-defined]  # here

    refuse(undefined, "nothing_of_this_name is not defined")
    refuse(of_a_list, "A_LIST is a list")
    refuse(of_an_array, "AN_ARRAY is an array of complex256; constant arrays are of")
    refuse(of_a_function, "textwrap.dedent is an ordinary Python function: mark it with @device")
    refuse(of_math, "math.fsum keeps a list of sums, which kernels cannot: add in f64")
    refuse(of_a_module, "thread has no index_4d")


def test_recursion_is_refused() -> None:
    with pytest.raises(CompileError, match="endless calls itself"):

        @kernel
        def recurse(a: Slice[f32]) -> None:
            x = endless(1)

        recurse.specialize()


def test_type_mismatches_are_refused_in_the_users_terms() -> None:
    def float_index(a: Slice[f32]) -> None:
        x = a[1.5]  # type: ignore[index]  # here

    def float_store(c: DisjointSlice[i32]) -> None:
        element = c.get_mut(thread.index_1d())
        if element is not None:
            element.value = 1.5  # type: ignore[assignment]  # here

    def slice_store(a: Slice[f32], c: DisjointSlice[f32]) -> None:
        element = c.get_mut(thread.index_1d())
        if element is not None:
            element.value = a  # type: ignore[assignment]  # here

    def slice_sum(a: Slice[f32]) -> None:
        x = a + 1  # type: ignore[operator]  # here

    def truth(c: DisjointSlice[f32]) -> None:
        if c.get_mut(thread.index_1d()):  # here
            pass

    def missing_attribute(a: Slice[f32]) -> None:
        x = a.size  # type: ignore[attr-defined]  # here

    def float_range(a: Slice[f32]) -> None:
        for i in range(2.5):  # type: ignore[arg-type]  # here
            pass

    refuse(float_index, r"a\[…\] takes an integer, not f64")
    refuse(float_store, r"the element is i32 and the value is f64; convert it, as in i32\(x\)")
    refuse(slice_store, r"the element is f32 and the value is Slice\[f32\]")
    refuse(slice_sum, r"\+ is not defined for a \(Slice\[f32\]\) and 1")
    refuse(truth, "neither true nor false; write is not None")
    refuse(missing_attribute, r"a \(Slice\[f32\]\) has no \.size")
    refuse(float_range, r"range\(\.\.\.\) takes integers")


def test_a_mistake_in_a_device_function_is_shown_there() -> None:
    @kernel
    def through(a: Slice[f32]) -> None:
        x = half_index(a, 1)

    with pytest.raises(CompileError, match=r"takes an integer, not f64") as raised:
        through.specialize()
    assert str(raised.value).startswith(f"{__file__}:{inspect.getsourcelines(half_index.function)[1] + 2}: ")


def test_annotations_are_checked_when_the_kernel_is_decorated() -> None:
    def python_type(a: int) -> None:
        pass

    def unknown(a: NoSuchName) -> None:  # type: ignore[name-defined]
        pass

    def returning(a: f32) -> f32:
        return a

    def variadic(*a: f32) -> None:
        pass

    for body, reason in (
        (python_type, "parameter a is annotated int; annotate it"),
        (unknown, "NoSuchName, cannot be evaluated"),
        (returning, "must return None"),
        (variadic, "must be an ordinary one"),
    ):
        with pytest.raises(CompileError, match=reason) as raised:
            kernel(body)
        assert str(raised.value).startswith(f"{__file__}:{inspect.getsourcelines(body)[1]}: ")


def test_a_body_is_not_looked_at_before_it_is_needed() -> None:
    @kernel
    def wrong(c: DisjointSlice[f32]) -> None:
        c[0] = 1.0  # type: ignore[index]

    assert wrong.name == "wrong"
    with pytest.raises(CompileError):
        wrong.specialize()


def test_an_error_about_the_program_shows_no_frame_of_the_library() -> None:
    def undefined(a: Slice[f32]) -> None:
        a[nowhere]  # type: ignore[name-defined]

    def right(a: Slice[f32]) -> None:
        len(a)

    def no_annotation_of_ours(a: dict) -> None:  # type: ignore[type-arg]
        len(a)

    box = zeros(4).sync()
    mistakes: list[tuple[type[Exception], Callable[[], object]]] = [
        (CompileError, lambda: kernel(undefined)[1, 1](box)),
        (CompileError, lambda: kernel(block=32)(undefined)(box)),
        (CompileError, lambda: kernel(undefined).specialize()),
        (CompileError, lambda: kernel(undefined).ptx()),
        (CompileError, lambda: kernel(block=32)(no_annotation_of_ours)),
        (CompileError, lambda: kernel("void()")),  # type: ignore[call-overload]
        (ArgumentError, lambda: kernel(right)[1, 1]({})),
        (ArgumentError, lambda: kernel(right)[1, 1]()),
        (LaunchError, lambda: kernel(right)(box)),
        (LaunchError, lambda: kernel(right)[1, 0](box)),
    ]
    for kind, mistake in mistakes:
        with pytest.raises(kind) as raised:
            mistake()
        frames = [frame.filename for frame in traceback.extract_tb(raised.value.__traceback__)]
        package = os.path.dirname(oxide.__file__)
        assert frames, kind
        assert [name for name in frames if name.startswith(package)] == [], mistake


def test_a_full_traceback_is_there_for_the_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    @kernel
    def wrong(a: Slice[f32]) -> None:
        x = a + 1  # type: ignore[operator]

    with pytest.raises(CompileError) as raised:
        wrong.specialize()
    assert raised.value.__cause__ is None
    monkeypatch.setenv("OXIDE_TRACEBACK", "full")
    with pytest.raises(CompileError) as raised:
        wrong.specialize()
    assert raised.value.__cause__ is not None
    assert len(traceback.extract_tb(raised.value.__traceback__)) > 3


@pytest.mark.usefixtures("uncached")
def test_a_traceback_that_there_is_not_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def right(a: Slice[f32]) -> None:
        len(a)

    monkeypatch.setenv("OXIDE_TRACEBACK", "long")
    with pytest.raises(DeviceError, match="OXIDE_TRACEBACK='long': full is needed; set it so, or unset it"):
        kernel(right).ptx()
    monkeypatch.setenv("OXIDE_TRACEBACK", "")
    kernel(right).ptx()


def test_an_error_points_with_a_caret() -> None:
    message = str(located(ordinary, "problem", inspect.getsourcelines(ordinary)[1] + 1, 11))
    assert message.splitlines()[1:] == ["    return x", "           ^"]


def test_what_cannot_be_meant_is_said_in_the_authors_terms() -> None:
    def walrus(c: DisjointSlice[f32]) -> None:
        if 0 < (n := 3) < len(c):  # here
            pass

    def enormous(c: DisjointSlice[f32]) -> None:
        x = 99999999999999999999999999  # here

    def two_arguments(c: DisjointSlice[f32]) -> None:
        x = f32(1.0, 2)  # type: ignore[call-arg]  # here

    def no_argument(c: DisjointSlice[f32]) -> None:
        x = f32()  # here

    def index_with_argument(c: DisjointSlice[f32]) -> None:
        x = thread.index_1d(3)  # type: ignore[call-arg]  # here

    def float_width(c: DisjointSlice[f32]) -> None:
        x = thread.index_2d(1.5)  # type: ignore[call-overload]  # here

    def called_coordinates(c: DisjointSlice[f32]) -> None:
        x = thread.thread_idx()  # type: ignore[operator]  # here

    def sometimes_none(n: i32, c: DisjointSlice[f32]) -> None:
        q = 1.0 if n > 3 else None
        e = c.get_mut(thread.index_1d())
        if e is not None:
            e.value = q  # type: ignore[assignment]  # here

    def tuple_index(n: i32, c: DisjointSlice[f32]) -> None:
        q = (1.0, 2.0)
        x = q[n]  # here

    refuse(walrus, ":= is supported where it is sure to be evaluated: assign on a line of its own")
    refuse(enormous, "99999999999999999999999999 does not fit in 64 bits")
    refuse(two_arguments, r"f32\(\.\.\.\) converts one number, given by position; the call has 2 arguments")
    refuse(no_argument, "the call has 0 arguments")
    refuse(index_with_argument, r"thread\.index_1d\(\) takes no arguments; the call has 1")
    refuse(float_width, "the width of thread.index_2d must be an integer; it is 1.5")
    refuse(called_coordinates, r"is not called: its numbers are thread\.thread_idx\.x")
    refuse(sometimes_none, "the element is f32 and the value is f64 or None; give it a number on every path")
    refuse(tuple_index, "a tuple in a kernel is indexed with a constant")


def test_a_constant_that_an_element_does_not_hold_is_refused() -> None:
    def large(c: DisjointSlice[u8]) -> None:
        e = c.get_mut(thread.index_1d())
        if e is not None:
            e.value = 300  # here

    def negative(c: DisjointSlice[u32]) -> None:
        e = c.get_mut(thread.index_1d())
        if e is not None:
            e.value = -1  # here

    def in_shared_memory(n: u32) -> None:
        shared = SharedArray(4, u8)
        shared[0] = 256  # here

    refuse(large, r"the element is u8 and the value is 300, which does not fit; u8 holds 0 to 255, and u8\(300\) wraps")
    refuse(negative, "the element is u32 and the value is -1, which does not fit")
    refuse(in_shared_memory, "the element is u8 and the value is 256, which does not fit")


def test_an_annotation_is_refused_at_the_parameters_line() -> None:
    def spread(
        n: i32,
        x: int,
    ) -> None:
        pass

    with pytest.raises(CompileError, match="parameter x is annotated int") as raised:
        kernel(spread)
    assert str(raised.value).startswith(f"{__file__}:{inspect.getsourcelines(spread)[1] + 2}: ")
    assert str(raised.value).splitlines()[1:] == ["    x: int,", "    ^"]


@pytest.mark.parametrize("block", [4096, (64, 64), (1, 1, 65)])
def test_a_block_that_no_device_runs_is_refused_at_the_definition(block: Any) -> None:
    def body(n: i32) -> None:
        pass

    with pytest.raises(CompileError, match=r"kernel body: block is .* threads; a block has at most 1024"):
        kernel(block=block)(body)
    assert kernel(block=(16, 1, 64))(body).default_block == (16, 1, 64)


def test_an_unknown_compute_capability_is_refused_before_llvm_sees_it(capfd: pytest.CaptureFixture[str]) -> None:
    @kernel
    def fine(n: i32) -> None:
        pass

    for unknown in ((1, 0), (9, 9), (8, 10), (13, 0)):
        with pytest.raises(CompileError, match=r"kernel fine: .* known are .*8\.0.*9\.0"):
            fine.ptx(cc=unknown)
    with pytest.raises(TypeError, match=r"cc is 90; give a pair, as \(9, 0\)"):
        fine.ptx(cc=90)  # type: ignore[arg-type]
    assert capfd.readouterr().err == ""
    for known in ((8, 0), (8, 8), (11, 0), (12, 1)):
        assert f".target sm_{known[0]}{known[1]}" in fine.ptx(cc=known)
