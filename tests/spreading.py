"""Spreads a run over processes (pytest-xdist), a file at a time, since a file's tests share what they compile.

A case whose process dies, as one that crashes or that faulthandler ends, fails alone: another process runs the rest of
the file. xdist's own scheduler would give the same case to the next process, and so on for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

__all__ = ["Files", "pytest_xdist_make_scheduler"]


class Files(LoadFileScheduling):
    """Gives each process whole files, and a case of a process that died to no other one."""

    def remove_node(self, node: WorkerController) -> str | None:
        """Takes back the files of a process that ended. Returns the case that it died in, or None."""
        files = self.assigned_work[node]
        died_in = next(_waiting(files), None)
        for cases in files.values():
            if died_in in cases:
                cases[died_in] = True
        # A file of which nothing is left to run would be given to a process that then waits for ever.
        self.assigned_work[node] = {name: cases for name, cases in files.items() if not all(cases.values())}
        super().remove_node(node)
        return died_in


def _waiting(files: dict[str, dict[str, bool]]) -> Iterator[str]:
    return (case for cases in files.values() for case, done in cases.items() if not done)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Files | None:
    return Files(config, log) if config.getvalue("dist") == "loadfile" else None
