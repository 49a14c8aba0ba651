"""The options of a CUDA stream, without a GPU: the driver's answer is the test's."""

from __future__ import annotations

import pytest

from oxide.driver.cuda import contexts
from oxide.driver.cuda.contexts import stream_options
from oxide.errors import DriverError

codes = contexts.driver.CUresult


def test_a_normal_stream_has_the_options_of_every_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(contexts.driver, "cuCtxGetStreamPriorityRange")  # not even asked
    assert stream_options("normal") is None


@pytest.mark.parametrize("greatest", [-5, -1, 0])  # 0 on a device without priorities
def test_high_is_the_greatest_priority_of_the_device(monkeypatch: pytest.MonkeyPatch, greatest: int) -> None:
    answer = (codes.CUDA_SUCCESS, 0, greatest)
    monkeypatch.setattr(contexts.driver, "cuCtxGetStreamPriorityRange", lambda: answer)
    options = stream_options("high")
    assert options is not None
    assert options.priority == greatest
    assert options.nonblocking


def test_a_refusal_is_an_error_that_names_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oxide.driver.cuda.errors._text", lambda code: "no")
    answer = (codes.CUDA_ERROR_INVALID_CONTEXT, None, None)
    monkeypatch.setattr(contexts.driver, "cuCtxGetStreamPriorityRange", lambda: answer)
    with pytest.raises(DriverError, match="cuCtxGetStreamPriorityRange"):
        stream_options("high")
