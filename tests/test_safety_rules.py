"""Every rule of the public interface that keeps a program safe, a program that breaks it, and what stops that program.

``RULES`` is the list: a rule, and the tests that break it. Those that belong to a topic are in that topic's file; the
rest are here. A rule stands only as long as its tests are there.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from oxide import (
    AtomicSlice,
    DisjointSlice,
    DisjointSlice2,
    LaunchConfig,
    LocalArray,
    SharedArray,
    Slice,
    Slice2,
    Tiles,
    atomic,
    d2h,
    device,
    f32,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    u32,
    value,
    warp,
    zeros,
)
from oxide.driver.cpu import CpuDriver
from oxide.errors import ArgumentError, CompileError, LaunchError
from oxide.testing import RecordingDriver, use_driver
from tests.source_lines import line_of

ROOT = Path(__file__).parents[1]
HERE = "test_safety_rules.py"

RULES: dict[str, tuple[str, ...]] = {
    # Parameters
    "an input is read-only": ("compiler/check/test_compile_errors.py::test_a_write_through_a_slice_is_refused",),
    "every read is checked, whatever the loops": (
        "compiler/test_kernel_faults.py::test_an_index_outside_ends_the_thread_and_is_reported_exactly",
        "compiler/bounds/test_loop_checks.py::test_any_loop_nest_gives_the_values_or_the_first_fault_of_its_interpreter",
        "language/test_wraparound.py::*",
    ),
    "an output is reached by a ThreadIndex and nothing else": (
        "compiler/check/test_compile_errors.py::test_an_integer_index_into_an_output_is_refused",
        f"{HERE}::test_an_output_has_no_other_door",
    ),
    "no two threads write the same element, through two outputs of a launch either": (
        f"{HERE}::test_outputs_that_share_memory_are_refused",
        f"{HERE}::test_outputs_that_an_operation_yields_are_compared_when_they_are_there",
        f"{HERE}::test_outputs_that_begin_together_and_are_alike_share_no_element_between_threads",
    ),
    "an AtomicSlice changes through atomic methods only": (f"{HERE}::test_an_atomic_slice_has_atomic_methods_only",),
    "a kernel returns nothing": ("compiler/check/test_compile_errors.py::test_unsupported_python_is_named",),
    # ThreadIndex
    "a ThreadIndex has no constructor and no arithmetic": (
        "compiler/check/test_compile_errors.py::test_a_thread_index_cannot_be_made_or_computed_with",
        f"{HERE}::test_a_thread_index_is_not_computed_with",
    ),
    "another thread's ThreadIndex or Ref is never in hand": (f"{HERE}::test_an_index_or_reference_is_not_passed_on",),
    "the width of index_2d is the same in every thread": (
        "compiler/check/test_compile_errors.py::test_a_width_that_may_differ_between_threads_is_refused",
        "compiler/check/test_compile_errors.py::test_a_varying_width_is_found_through_device_functions",
        "compiler/check/test_compile_errors.py::test_two_widths_in_one_kernel_are_refused",
        f"{HERE}::test_the_program_that_would_race_on_element_5_does_not_compile",
        f"{HERE}::test_a_width_that_is_no_parameter_or_constant_integer_is_refused",
    ),
    "index_1d and index_2d stand for a place under no other name": (
        "compiler/check/test_compile_errors.py::test_the_index_functions_cannot_be_hidden_behind_another_name",
    ),
    "index_1d needs a launch with y and z of 1, index_2d one with z of 1": (
        "runtime/launching/test_launch.py::test_a_wrong_launch_is_refused_before_anything_is_submitted",
        f"{HERE}::test_a_kernel_of_both_indices_is_launched_along_x_only",
        f"{HERE}::test_an_index_inside_a_device_function_binds_the_launch_too",
    ),
    "get_mut is None where out of bounds, index_2d right of the last column": (
        "compiler/test_kernel_faults.py::test_the_value_of_a_reference_to_nothing_is_a_fault_and_writes_nothing",
        "runtime/launching/test_launch.py::test_a_none_reference_that_is_written_is_a_fault_and_touches_nothing",
    ),
    "a static type checker refuses a kernel that forgets None": (
        "compiler/check/test_kernel_type_checking.py::test_a_kernel_that_forgets_the_none_check_is_rejected",
        "compiler/check/test_kernel_type_checking.py::test_the_other_rules_are_type_errors_too",
        "compiler/check/test_kernel_type_checking.py::test_the_rules_of_views_tiles_and_atomics_are_type_errors_too",
    ),
    # Views and tiles
    "a view is None where it would not be inside": (
        "language/test_views.py::test_a_view_is_none_just_where_it_would_not_be_inside",
        "language/test_shaped_views.py::test_a_view_used_without_a_test_is_a_fault_that_names_the_axis",
        "language/test_views.py::test_any_other_index_of_a_view_is_checked",
        "language/test_views.py::test_what_a_view_cannot_be_made_of_is_a_compile_error",
    ),
    "views are zipped only if they are equally long": (
        "language/test_views.py::test_a_zip_of_different_lengths_is_a_fault_and_ends_the_thread",
    ),
    "a tile is one thread's, and whole or None": (
        "language/test_tiles.py::test_every_element_is_in_just_one_tile_or_remainder",
        "language/test_tiles.py::test_every_element_of_a_matrix_is_in_just_one_tile_or_remainder",
        "language/test_tiles.py::test_products_of_rows_and_widths_that_would_wrap_give_none",
        "language/test_tiles.py::test_a_tile_used_without_a_look_is_a_fault",
    ),
    "a position is inside its tile": (
        "language/test_tiles.py::test_a_variable_position_is_checked_against_the_tile",
        "language/test_tiles.py::test_what_a_tile_does_not_allow_is_a_compile_error",
    ),
    "vectors begin at multiples of their size": (
        "language/test_tiles.py::test_a_piece_that_begins_in_the_middle_of_a_vector_is_refused",
    ),
    # Launches
    "an argument of a wrong number, type, place or dtype is refused before anything is submitted": (
        "runtime/launching/test_launch.py::test_a_wrong_launch_is_refused_before_anything_is_submitted",
        "runtime/launching/test_launch.py::test_what_only_execution_shows_is_refused_before_the_kernel_is_launched",
        "runtime/launching/test_launch.py::test_a_box_of_another_device_is_refused",
    ),
    "a launch is lazy": (f"{HERE}::test_building_a_launch_submits_nothing",),
    "a contract that does not hold refuses the launch, and a misspelt one the kernel": (
        "runtime/launching/test_contracts.py::test_a_broken_contract_is_refused_with_both_values",
        "runtime/launching/test_contracts.py::test_a_contract_that_means_nothing_is_refused_at_decoration",
        "runtime/launching/test_contracts.py::test_what_an_operation_yields_is_checked_when_it_is_there",
    ),
    "deny_checks leaves no check inside a loop": ("compiler/kernel/test_reports.py::*",),
    # Operations and memory
    "an operation dropped without having been run warns": (
        "runtime/operations/test_operations.py::test_an_operation_that_is_dropped_unrun_warns_and_one_that_was_used_does_not",
    ),
    "sync() inside a running loop warns": (
        "runtime/awaiting/test_awaiting.py::test_sync_inside_a_loop_warns_that_it_blocks",
    ),
    "memory is not freed before its last use on any stream": (
        "runtime/awaiting/test_awaiting.py::test_dropping_a_future_in_flight_keeps_its_memory_until_the_device_is_past_it",
        "runtime/submission/test_execution_contract.py::test_memory_that_was_dropped_is_used_again_and_none_is_handed_out_twice",
    ),
    "a function of the program sees a host array only when it is filled": (
        "runtime/submission/test_host_data.py::test_a_function_behind_a_copy_is_called_when_the_array_is_filled",
        "runtime/submission/test_host_data.py::test_a_shared_result_is_waited_for_by_each_of_its_consumers",
        "runtime/operations/test_random_host_data.py::test_a_recipe_under_a_random_schedule_means_what_it_means_in_numpy",
    ),
    "a host array that no launch or copy has filled is refused to functions, and poison where it is handed out": (
        "runtime/submission/test_host_data.py::test_a_capture_refuses_a_function_behind_a_copy",
        "runtime/submission/test_host_data.py::test_the_host_arrays_of_a_graph_are_taken_once_a_launch_has_completed",
        "runtime/submission/test_host_data.py::"
        "test_a_call_that_does_not_wait_refuses_a_function_behind_a_copy_before_anything_is_submitted",
        "runtime/submission/test_host_data.py::"
        "test_an_array_that_async_on_hands_out_is_poison_until_the_stream_is_synchronised",
    ),
    "a read waits for the write on another stream": (
        "runtime/ordering/test_ordering.py::test_reading_a_box_written_on_another_stream_waits_for_the_write",
        "runtime/ordering/test_ordering.py::test_a_write_waits_for_the_reads_before_it",
    ),
    "what a kernel may touch of a box cannot be changed": (f"{HERE}::test_a_box_keeps_its_size_and_its_type",),
    "a fault ends its operation and nothing else": (
        "runtime/devices/test_fault_isolation.py::test_a_slice_one_too_short_is_named_and_work_beside_and_behind_it_is_right",
        "runtime/launching/test_launch.py::test_thousands_of_faults_leak_nothing",
    ),
    "names that mean something in a kernel alone are refused on the host": (
        f"{HERE}::test_on_the_host_the_names_of_kernels_do_nothing",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_has_its_tests(rule: str) -> None:
    for test in RULES[rule]:
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name == "*" or name in defined, f"{test} is gone: what stops a program that breaks this rule?"


def refuse(body: Callable[..., Any], reason: str) -> None:
    """The kernel does not compile, for the reason, at the line marked with a comment ``here``."""
    with pytest.raises(CompileError, match=reason) as raised:
        kernel(body).specialize()
    assert str(raised.value).startswith(f"{__file__}:{line_of(body, 'here')}: "), raised.value


def test_an_output_has_no_other_door() -> None:
    def unchecked(c: DisjointSlice[f32]) -> None:
        c.unchecked[0] = 3  # type: ignore[attr-defined]  # here

    def its_pointer(c: DisjointSlice[f32]) -> None:
        i64(c.data)  # type: ignore[attr-defined]  # here

    def atomically(c: DisjointSlice[i32]) -> None:
        c.fetch_add(0, 1)  # type: ignore[attr-defined]  # here

    def as_a_view(c: DisjointSlice2[f32]) -> None:
        c.row(0)  # type: ignore[attr-defined]  # here

    def as_an_input(c: DisjointSlice[f32]) -> None:
        first_of(c)  # type: ignore[arg-type]  # here

    def through_the_index_of_a_ref(c: DisjointSlice[f32]) -> None:
        element = c.get_mut(thread.index_1d())
        element.index = 3  # type: ignore[union-attr]  # here

    def past_the_pointer_of_a_ref(c: DisjointSlice[f32]) -> None:
        element = c.get_mut(thread.index_1d())
        element + 1  # type: ignore[operator]  # here

    refuse(unchecked, "no .unchecked: write through c.get_mut")
    refuse(its_pointer, "has no .data")
    refuse(atomically, "has no .fetch_add")
    refuse(as_a_view, "has no .row: only a Slice2 has")
    refuse(as_an_input, r"parameter a is Slice\[f32\] and the value is")
    refuse(through_the_index_of_a_ref, "has no .index that can be assigned to")
    refuse(past_the_pointer_of_a_ref, r"\+ is not defined for Ref")


@device
def first_of(a: Slice[f32]) -> f32:
    return a[0]


def test_an_atomic_slice_has_atomic_methods_only() -> None:
    def write(c: AtomicSlice[i32]) -> None:
        c[0] = 3  # type: ignore[index]  # here

    def read(c: AtomicSlice[i32]) -> None:
        c[0]  # type: ignore[index]  # here

    def reference(c: AtomicSlice[i32]) -> None:
        c.get_mut(thread.index_1d())  # type: ignore[attr-defined]  # here

    for body in (write, read):
        refuse(body, r"c is an AtomicSlice, which has no \[...\]: .*use c.load\(i\), c.store\(i, x\)")
    refuse(reference, "AtomicSlice.* has no .get_mut")


def test_a_thread_index_is_not_computed_with() -> None:
    def negate(c: DisjointSlice[f32]) -> None:
        -thread.index_1d()  # type: ignore[operator]  # here

    def least(c: DisjointSlice[f32]) -> None:
        c.get_mut(min(thread.index_1d(), thread.index_1d()))  # type: ignore[type-var]  # here

    def equal(c: DisjointSlice[f32]) -> None:
        if thread.index_1d() == thread.index_1d():  # here
            pass

    def plain(c: DisjointSlice[f32]) -> None:
        int(thread.index_1d())  # type: ignore[call-overload]  # here

    def count(c: DisjointSlice[f32]) -> None:
        for _ in range(thread.index_1d()):  # type: ignore[call-overload]  # here
            pass

    def assign(c: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        index.value = 3  # type: ignore[attr-defined]  # here

    def its_plain_number(c: DisjointSlice[f32]) -> None:
        c.get_mut(thread.index_1d().get() + 1)  # type: ignore[arg-type]  # here

    for body in (negate, least, equal, plain, count):
        refuse(body, "a ThreadIndex has no arithmetic, its plain number is index.get()")
    refuse(assign, "has no .value that can be assigned to")
    refuse(its_plain_number, "c.get_mut takes a ThreadIndex, not i64")


def test_an_index_or_reference_is_not_passed_on() -> None:
    def index_by_shuffle(c: DisjointSlice[f32]) -> None:
        warp.shuffle(thread.index_1d(), 0)  # type: ignore[type-var]  # here

    def index_by_shared_memory(c: DisjointSlice[f32]) -> None:
        board = SharedArray(4, i64)
        board[0] = thread.index_1d()  # type: ignore[assignment]  # here

    def index_by_exchange(c: AtomicSlice[i64]) -> None:
        c.exchange(0, thread.index_1d())  # type: ignore[arg-type]  # here

    def index_as_a_number(c: DisjointSlice[f32]) -> None:
        board = LocalArray(4, i64)
        board[0] = thread.index_1d()  # type: ignore[assignment]  # here

    def index_as_an_argument(c: DisjointSlice[f32]) -> None:
        plain_number(thread.index_1d())  # type: ignore[arg-type]  # here

    def reference_by_shuffle(c: DisjointSlice[f32]) -> None:
        warp.shuffle(c.get_mut(thread.index_1d()), 0)  # type: ignore[type-var]  # here

    def tile_by_shuffle(c: DisjointSlice[f32, Tiles[Literal[4]]]) -> None:
        warp.shuffle(c.get_mut(thread.index_1d()), 0)  # type: ignore[type-var]  # here

    refuse(index_by_shuffle, "integer or float, not ThreadIndex")
    refuse(index_by_shared_memory, "the element is i64 and the value is ThreadIndex")
    refuse(index_by_exchange, "the element is i64 and the value is ThreadIndex")
    refuse(index_as_a_number, "the element is i64 and the value is ThreadIndex")
    refuse(index_as_an_argument, "parameter x is i64 and the value is ThreadIndex")
    refuse(reference_by_shuffle, "integer or float, not Ref")
    refuse(tile_by_shuffle, "integer or float, not TileRef")


@device
def plain_number(x: i64) -> i64:
    return x


def test_the_program_that_would_race_on_element_5_does_not_compile() -> None:
    def number(row: int, col: int, width: int) -> int:
        return row * width + col

    assert number(1, 0, 5) == number(0, 5, 100) == 5, "two threads, one element"

    def race(c: DisjointSlice[f32]) -> None:
        width = 5 if thread.index_2d_row() == 1 else 100
        index = thread.index_2d(width)  # here
        if index is not None:
            c.get_mut(index)

    refuse(race, "the width of thread.index_2d is width, which may differ between threads")


def test_a_width_that_is_no_parameter_or_constant_integer_is_refused() -> None:
    def assigned_later(n: u32, c: DisjointSlice[f32]) -> None:
        thread.index_2d(n)  # here
        n += 1

    def a_float(n: f32, c: DisjointSlice[f32]) -> None:
        thread.index_2d(n)  # type: ignore[call-overload]  # here

    def a_truth(c: DisjointSlice[f32]) -> None:
        thread.index_2d(True)  # here

    def by_name(n: u32, c: DisjointSlice[f32]) -> None:
        thread.index_2d(width=n)  # here

    refuse(assigned_later, "which may differ between threads")
    refuse(a_float, "must be an integer; it is f32")
    refuse(a_truth, "must be an integer; it is True")
    refuse(by_name, "takes one argument, the width, by position")


@kernel
def both_indices(n: u32, c: DisjointSlice[f32]) -> None:
    first = c.get_mut(thread.index_1d())
    index = thread.index_2d(n)
    if first is not None:
        first.value = 1.0
    if index is not None:
        second = c.get_mut(index)
        if second is not None:
            second.value += 1.0


def test_a_kernel_of_both_indices_is_launched_along_x_only() -> None:
    with pytest.raises(LaunchError, match="y and z of 1"):
        both_indices[LaunchConfig((1, 2), (8, 1))](5, zeros(10))
    assert both_indices[1, 8](5, zeros(10)).last().to_host().sync().tolist() == [2] * 5 + [1] * 3 + [0] * 2


@device
def own(c: DisjointSlice[f32]) -> None:
    element = c.get_mut(thread.index_1d())
    if element is not None:
        element.value = 1.0


@kernel
def by_a_device_function(c: DisjointSlice[f32]) -> None:
    own(c)


def test_an_index_inside_a_device_function_binds_the_launch_too() -> None:
    with pytest.raises(LaunchError, match="y and z of 1"):
        by_a_device_function[1, (4, 4)](zeros(16))


@kernel
def two_outputs(a: DisjointSlice[f32], b: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    first, second = a.get_mut(index), b.get_mut(index)
    if first is not None and second is not None:
        first.value = index.get()
        second.value += 1.0


@kernel
def plain_and_tiled(a: DisjointSlice[f32], b: DisjointSlice[f32, Tiles[Literal[4]]]) -> None:
    pass


@kernel
def plain_and_atomic(a: DisjointSlice[f32], b: AtomicSlice[f32]) -> None:
    pass


@kernel
def two_sizes(a: DisjointSlice[f32], b: DisjointSlice[i64]) -> None:
    pass


@kernel
def two_atomics(a: AtomicSlice[f32], b: AtomicSlice[f32]) -> None:
    a.fetch_add(0, 1.0)
    b.fetch_add(0, 1.0)


def test_outputs_that_share_memory_are_refused() -> None:
    whole = zeros(64).sync()
    with use_driver(RecordingDriver(CpuDriver())) as driver:
        whole = zeros(64).sync()
        shifted = whole.split(16)[1]
        driver.clear()
        for launch, first, second in (
            (two_outputs, whole, shifted),
            (two_outputs, shifted, whole),
            (plain_and_tiled, whole, whole),
            (plain_and_atomic, whole, shifted),
        ):
            with pytest.raises(ArgumentError, match=r"the outputs a .* and b .* share memory.*give each output memory"):
                launch[1, 8](first, second)
        assert driver.submissions == []
        two_outputs[1, 16](*whole.split(16)[:2]).sync()
        two_atomics[1, 8](whole, shifted).sync()


def test_outputs_that_an_operation_yields_are_compared_when_they_are_there() -> None:
    whole = zeros(64).sync()
    with pytest.raises(ArgumentError, match="share memory"):
        two_outputs[1, 8](value(whole), value(whole.split(16)[1])).sync()


def test_outputs_that_begin_together_and_are_alike_share_no_element_between_threads() -> None:
    whole = zeros(64).sync()
    two_outputs[2, 32](whole, whole.reshape(8, 8)).sync()
    assert np.array_equal(d2h(whole).sync(), np.arange(1, 65))


def test_building_a_launch_submits_nothing() -> None:
    with use_driver(RecordingDriver(CpuDriver())) as driver:
        box = zeros(4).sync()
        driver.clear()
        launch = by_a_device_function[1, 4](box)
        assert driver.submissions == []
        launch.sync()
        assert driver.count("launch") == 1


def test_a_box_keeps_its_size_and_its_type() -> None:
    box = h2d(np.ones(4, np.float32)).sync()
    for name, other in (("shape", (8,)), ("dtype", np.float64), ("ptr", 0), ("size", 8), ("nbytes", 64)):
        with pytest.raises(AttributeError):
            setattr(box, name, other)


def test_on_the_host_the_names_of_kernels_do_nothing() -> None:
    for attempt in (
        lambda: Slice(),
        lambda: DisjointSlice(),
        lambda: AtomicSlice(),
        lambda: Slice2(),
        lambda: SharedArray(3, f32),
        lambda: thread.ThreadIndex(),
        lambda: thread.index_1d(),
        lambda: warp.lane_id(),
        lambda: atomic.fence(),
    ):
        with pytest.raises(TypeError, match="inside a @kernel"):
            attempt()
