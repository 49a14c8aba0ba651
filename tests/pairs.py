"""Cases of a test with several parameters, where the code depends on two of them at a time at most."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any


def every_pair(*parameters: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Returns few combinations of the parameters' values, such that any two values of two parameters occur together.

    All combinations would take many times as long and, of code that no three parameters select together, show no more.
    For two parameters they are all combinations. The same values give the same cases in each run.
    """
    values = [list(parameter) for parameter in parameters]
    everything = list(product(*(range(len(each)) for each in values)))
    pairs = {case: set(combinations(enumerate(case), 2)) for case in everything}
    missing: set[Any] = set().union(*pairs.values())
    chosen: list[tuple[int, ...]] = []
    while missing:
        best = max(everything, key=lambda case: len(pairs[case] & missing))  # the first of equals
        missing -= pairs[best]
        chosen.append(best)
    return [tuple(each[i] for each, i in zip(values, case, strict=True)) for case in sorted(chosen)]
