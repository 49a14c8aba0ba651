"""Integer arithmetic that wraps fools no bounds check, hoisted or not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from oxide.compiler.kernel.kernel import Kernel
from tests.compiler.native_runner import fault_of, run_blocks
from tests.language.wraparound import Case, cases, counted, narrow, nested, running, stepped, unsigned

KERNELS = [counted, stepped, narrow, unsigned, nested, running]


def by_kernel() -> Iterator[tuple[Kernel, list[Case]]]:
    for name, group in itertools.groupby(sorted(cases(), key=lambda c: c.kernel.name), lambda c: c.kernel.name):
        yield next(each for each in KERNELS if each.name == name), list(group)


@pytest.mark.slow
@pytest.mark.parametrize("each", KERNELS, ids=lambda each: each.name)
def test_at_the_edges_of_its_integers_a_loop_faults_where_it_should_and_nowhere_else(each: Kernel) -> None:
    wrong = []
    chosen = dict(by_kernel())[each]
    outcomes = set()
    for case in chosen:
        y = np.full(1, -1, np.int64)
        fault = fault_of(each, run_blocks(each, (1, 1, 1), (1, 1, 1), *case.numbers, case.x(), y))
        found = int(y[0]), None if fault is None else (fault.index, fault.length)
        outcomes.add(fault is None)
        if found != case.expected(-1):
            wrong.append((str(case), found, case.expected(-1)))
    assert not wrong
    assert outcomes == {True, False}
    assert len(chosen) >= 50


@pytest.mark.parametrize("each", [each for each in KERNELS if each is not running], ids=lambda each: each.name)
def test_the_checks_of_these_loops_are_hoisted(each: Kernel) -> None:
    assert [check.place for check in each.checks() if check.parameter == "x"] == ["hoisted"]
