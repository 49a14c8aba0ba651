"""Which exception a CUDA error code becomes. No device is needed; the packages are."""

from __future__ import annotations

import pytest

from oxide.errors import DeviceLostError, DriverError

pytest.importorskip("cuda.bindings")

from oxide.driver.cuda.errors import check, failure, raise_core_failure


def test_success_raises_nothing() -> None:
    check(0, "cuInit")


def test_an_ordinary_failure_names_the_code_and_the_call() -> None:
    with pytest.raises(DriverError, match=r"CUDA_ERROR_INVALID_VALUE \(1\): cuStreamQuery: ") as caught:
        check(1, "cuStreamQuery")

    assert caught.value.code == 1
    assert caught.value.name == "CUDA_ERROR_INVALID_VALUE"


@pytest.mark.parametrize("code", [214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719])
def test_a_sticky_failure_is_a_lost_device_with_the_driver_error_as_its_cause(code: int) -> None:
    error = failure(code, "cuEventQuery")

    assert isinstance(error, DeviceLostError)
    assert isinstance(error.__cause__, DriverError)
    assert error.__cause__.code == code
    assert error.__cause__.name in str(error)


def test_the_drivers_own_detail_reaches_the_message() -> None:
    assert "ptxas error: line 3" in str(failure(218, "cuModuleLoadDataEx(axpy)", "ptxas error: line 3"))


def test_a_code_that_the_bindings_do_not_know_keeps_its_number() -> None:
    error = failure(12345, "cuInit")

    assert isinstance(error, DriverError)
    assert error.code == 12345


def test_an_exception_of_cuda_core_becomes_the_same_error() -> None:
    with pytest.raises(DriverError, match="cuStreamCreate: out of handles") as caught:
        raise_core_failure(RuntimeError("CUDA_ERROR_INVALID_HANDLE: out of handles"), "cuStreamCreate")

    assert caught.value.code == 400


def test_a_sticky_exception_of_cuda_core_keeps_the_driver_error_as_its_cause() -> None:
    with pytest.raises(DeviceLostError) as caught:
        raise_core_failure(RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS: gone"), "cuStreamCreate")

    assert isinstance(caught.value.__cause__, DriverError)


def test_an_exception_of_cuda_core_without_a_code_keeps_its_text() -> None:
    with pytest.raises(DriverError, match=r"CUDA_ERROR_\w+ .*something else"):
        raise_core_failure(RuntimeError("something else"), "cuStreamCreate")
