"""Host arrays that are no plain ``numpy.ndarray``: masked ones, which device memory cannot hold, other subclasses."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from oxide import CompileError, DisjointSlice, d2h, f32, from_dlpack, h2d, kernel, memcpy, thread, zeros
from oxide.driver.cpu import CpuDriver
from oxide.testing import RecordingDriver, step_driver, use_driver

MASKED = np.ma.array(np.arange(5, dtype=np.float32), mask=[0, 1, 0, 0, 1])
RECORDS = np.ma.array([(1, 2.0), (3, 4.0)], mask=[(0, 1), (0, 0)], dtype=[("count", "i4"), ("mass", "f4")])


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (MASKED, "a MaskedArray with 2 of 5 elements masked"),
        (MASKED[::2], "a MaskedArray with 1 of 3 elements masked"),
        (np.ma.masked, "a MaskedConstant with 1 of 1 elements masked"),
        (RECORDS, "a MaskedArray with 1 of 4 elements masked"),
        (RECORDS[0], "a mvoid with 1 of 2 elements masked"),
        ([MASKED, MASKED], "a MaskedArray with 2 of 5 elements masked"),
        ([[[1.0], (MASKED[1:2],)]], "a MaskedArray with 1 of 1 elements masked"),
        ((1.0, np.ma.masked), "a MaskedConstant with 1 of 1 elements masked"),
    ],
    ids=["array", "view", "constant", "records", "record", "list", "nested", "element"],
)
def test_what_is_masked_is_refused_before_anything_is_submitted(array: Any, found: str) -> None:
    driver = RecordingDriver(step_driver())
    with use_driver(driver):
        before = len(driver.calls)
        with pytest.raises(ValueError, match=rf"h2d: {found}, and device memory has no masks; pass array\.filled\(x\)"):
            h2d(array)
        assert len(driver.calls) == before


def test_memcpy_refuses_what_is_masked() -> None:
    box = zeros(5).sync()
    with pytest.raises(ValueError, match="memcpy: a MaskedArray with 2 of 5 elements masked, and device memory has no"):
        memcpy(box, MASKED)
    np.testing.assert_array_equal(memcpy(box, MASKED.filled(7)).to_host().sync(), [0, 7, 2, 3, 7])


def test_from_dlpack_refuses_what_is_masked() -> None:
    with use_driver(CpuDriver()):
        with pytest.raises(ValueError, match="from_dlpack: a MaskedArray with 2 of 5 elements masked, and device"):
            from_dlpack(MASKED)
        box = from_dlpack(np.ma.masked_array(np.arange(3.0)))
        np.testing.assert_array_equal(d2h(box).sync(), [0, 1, 2])


@pytest.mark.parametrize("mask", [np.ma.nomask, [False] * 5], ids=["nomask", "all False"])
def test_a_masked_array_that_masks_nothing_is_its_data(mask: Any) -> None:
    array = np.ma.array(np.arange(5, dtype=np.float32), mask=mask)
    found = h2d(array).to_host().sync()
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, np.arange(5))
    np.testing.assert_array_equal(memcpy(zeros(5).sync(), array).to_host().sync(), np.arange(5))
    np.testing.assert_array_equal(h2d([array, [5.0] * 5]).to_host().sync(), [range(5), [5] * 5])


def test_other_subclasses_are_their_data() -> None:
    record = np.rec.array([(1, 2.0), (3, 4.0)], dtype=[("count", "i4"), ("mass", "f4")])
    assert d2h(h2d(record).sync()).sync().tolist() == [(1, 2.0), (3, 4.0)]


def test_a_masked_array_is_no_constant_of_a_kernel() -> None:
    @kernel(block=32)
    def reading(y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = MASKED[1]

    with pytest.raises(CompileError, match=r"MASKED is a MaskedArray with 2 of 5 elements masked.*array\.filled\(x\)"):
        reading.specialize()


def test_arrays_and_lists_load_nothing_of_masks() -> None:
    program = (
        "import sys, numpy as np\n"
        "loaded = 'numpy.ma' in sys.modules\n"
        "import oxide\n"
        "for array in (np.zeros(3), [1.0, 2.0], 3.0):\n"
        "    oxide.h2d(array).consume()\n"
        "print(('numpy.ma' in sys.modules) == loaded)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "True\n"


def test_memcpy_compares_numbers_of_elements_and_not_shapes() -> None:
    box = zeros((2, 3)).sync()
    numbers = np.arange(6, dtype=np.float32)
    for source in (numbers, numbers.reshape(3, 2), np.asfortranarray(numbers.reshape(2, 3)), h2d(numbers).sync()):
        memcpy(box, zeros(6).sync()).sync()
        assert memcpy(box, source).sync() is box
        np.testing.assert_array_equal(d2h(box).sync(), numbers.reshape(2, 3))
    with pytest.raises(ValueError, match="memcpy: dst has 6 elements, src has 5; it takes as many, of any shape"):
        memcpy(box, numbers[1:])
