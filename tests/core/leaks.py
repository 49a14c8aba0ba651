"""Whether the scenarios leave anything behind: ``python -m tests.core.leaks`` runs each again and again.

What is counted are blocks of memory, objects of each type, and references."""

from __future__ import annotations

import argparse
import gc
import sys
import warnings
from collections import Counter

from tests.core.scenarios import SCENARIOS, settle

LOOPS, FIRST, RUNS = 10, 3, 30


def counts() -> Counter[str]:
    """Returns what there is: blocks of memory, objects by the name of their type, and the references to them all, with
    those to a few objects that nobody frees. (``sys.gettotalrefcount`` of a debug build counts wrongly with NumPy
    and all else that was built for the other: each reference that one takes and the other gives back.)"""
    blocks, everything = sys.getallocatedblocks(), gc.get_objects()
    found = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in everything)
    found["blocks"] = blocks
    found["references"] = sum(map(sys.getrefcount, (*everything, None, True, False, (), "", b"", 0, 1, 2)))
    return found


def leaks(name: str, runs: int = RUNS, loops: int = LOOPS) -> list[str]:
    """Returns of what a scenario leaves one or more behind in each run, in words. What grows by less, or not in each
    of the last loops, is a cache of Python's: ``asyncio.run`` of an empty function takes a dozen blocks more now
    and then."""
    scenario, before = SCENARIOS[name], Counter[str]()
    least: Counter[str] = Counter()
    for loop in range(loops):
        for _ in range(runs):
            scenario()
        settle()
        after = counts()
        if loop == FIRST:
            least = after - before
        elif loop > FIRST:
            least &= after - before
        before = after
    return [
        f"{name}: {each} grow by {more} or more in {runs} runs" for each, more in sorted(least.items()) if more >= runs
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(SCENARIOS))
    parser.add_argument("--runs", type=int, default=RUNS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    grown = 0
    for name in given.names:
        found = leaks(name, given.runs)
        print("\n".join(found) or f"{name}: nothing is left behind", flush=True)
        grown += len(found)
    return bool(grown)


if __name__ == "__main__":
    sys.exit(main())
