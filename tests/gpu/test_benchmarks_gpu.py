"""The benchmarks on a GPU: every contender that is installed gives right results, the compiled launch loop included."""

from __future__ import annotations

import pytest

from benchmarks import completion, kernels, launch, pipeline
from benchmarks.harness import Session


@pytest.mark.parametrize("group", [launch, completion, pipeline, kernels])
def test_every_contender_gives_right_results(group: object) -> None:
    session = Session("cuda", quick=True, seconds=1)
    session.group = str(group)
    group.run(session)  # type: ignore[attr-defined]
    assert not session.wrong, [comparison.wrong for comparison in session.comparisons]
    if group is launch:
        assert launch.FLOOR in session.comparisons[0].figures
