"""Which tests a run takes, and how long each took.

``--sample``, as ``make test`` runs it, takes one case of each test marked ``slow`` and none of those marked
``nightly``; ``make test-all`` takes all. ``--reached-by``, as ``make check`` runs it, takes the nearest tests that a
changed file reaches. ``--times`` renews ``times.json`` with what this run takes.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests import reach


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", action="store_true", help="one case of each test marked `slow`, none marked `nightly`")
    parser.addoption("--reached-by", action="append", default=[], type=Path, help="tests that a changed file reaches")
    parser.addoption("--reach-seconds", default=70.0, type=float, help="what those may take, on all processes together")
    parser.addoption("--times", action="store_true", help="renew tests/times.json; on a quiet machine")


_sampled = False


def examples(count: int) -> int:
    """Returns how many random examples a test of hypothesis draws: a quarter of them in a quick run."""
    return max(count // 4, 1) if _sampled else count


def pytest_configure(config: pytest.Config) -> None:
    global _sampled
    _sampled = is_sampled(config)
    if config.getoption("--times") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Times())


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    changed = tuple(config.getoption("--reached-by"))
    pages = {path.name for path in changed if path.suffix == ".md"}
    if is_sampled(config):
        kept = {id(item) for cases in _cases(items).values() for item in _sample(cases)}
        _keep(config, items, (item for item in items if id(item) in kept or _page_of(item) in pages))
    if changed:
        if len(pages) == len(changed):
            _keep(config, items, (item for item in items if _page_of(item) in {None, *pages}))
        found = {name: len(cases) for name, cases in _cases(items).items()}
        chosen = reach.Budget(changed, config.getoption("--reach-seconds")).choose(found)
        _keep(config, items, (item for item in items if _test_of(item) in chosen))
        config.stash[_left_out] = [name for name in found if name not in chosen]


_left_out = pytest.StashKey[list[str]]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left out"] = session.config.stash.get(_left_out, None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes from one of xdist's processes, each of which finds the same, what it left out."""
    left = getattr(node, "workeroutput", {}).get("left out")
    if left is not None:
        node.config.stash[_left_out] = left


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left = config.stash.get(_left_out, None)
    if left is None:
        return
    folders = Counter(str(Path(name.partition("::")[0]).parent) for name in left)
    where = ", ".join(f"{folder} {count}" for folder, count in folders.most_common())
    terminalreporter.write_line(
        f"left out: {len(left)} of the tests that the change reaches{f' ({where})' if left else ''}, the slow cases of "
        "the others, and every test that it does not reach; make test runs those, make test-all every case"
    )


def is_sampled(config: pytest.Config) -> bool:
    """Returns whether the run takes one case where the cases take long."""
    return bool(config.getoption("--sample") or config.getoption("--reached-by"))


def _keep(config: pytest.Config, items: list[pytest.Item], kept: Iterable[pytest.Item]) -> None:
    """Deselects the other items."""
    chosen = list(kept)
    left = {id(item) for item in chosen}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in left])
    items[:] = chosen


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _cases(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """Returns the cases of each test."""
    found: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        found[_test_of(item)].append(item)
    return found


def _sample(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Returns the cases of a test that a quick run takes, the same in each run and each process. Interpreted, or as
    without some packages, it is one of each test."""
    once_more = any(cases[0].config.getoption(option, False) for option in ("--interpret", "--hide"))
    cases = [item for item in cases if not item.get_closest_marker("nightly")]
    slow = cases if once_more else [item for item in cases if item.get_closest_marker("slow")]
    if not slow:
        return cases
    kept = random.Random(_test_of(slow[0])).choice(slow)
    return [item for item in cases if item is kept or item not in slow]


def _page_of(item: pytest.Item) -> str | None:
    """Returns the page of the book that a case is of, or None."""
    name = item.nodeid.partition("[")[2].partition(":")[0].rstrip("]")
    return name if name.endswith(".md") else None


class Times:
    """Keeps what a case of each test takes, the mean of its cases, in ``times.json`` as the run ends."""

    def __init__(self) -> None:
        self._taken: dict[str, dict[str, float]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cases = self._taken[report.nodeid.partition("[")[0]]
        cases[report.nodeid] = cases.get(report.nodeid, 0) + report.duration

    def pytest_sessionfinish(self) -> None:
        means = {name: round(sum(cases.values()) / len(cases), 2) for name, cases in self._taken.items()}
        known = {name: seconds for name, seconds in reach.times().items() if name not in means}
        known |= {name: seconds for name, seconds in means.items() if seconds >= reach.LEAST}
        reach.TIMES.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n", encoding="utf-8")
