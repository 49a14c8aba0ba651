"""``python -m oxide.commands.hosted HOW [-m] PROGRAM [ARGS]``: runs a program as ``__main__`` in a prepared process.

If HOW is ``numba-cuda``, ``oxide.numba_cuda`` stands in the place of ``numba.cuda``, for ``oxide run --numba-cuda``.
Any other HOW is a file that gets what the sanitizer finds, for ``oxide sanitize``: a line of JSON for each finding. It
is written at once, so it is not lost if the program handles the error or is killed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from oxide.commands.running import Program, print_traceback, run_as_main
from oxide.driver import sanitizing
from oxide.errors import SanitizerError

NUMBA_CUDA = "numba-cuda"


def main(how: str, words: Sequence[str]) -> None:
    """Runs the program. Raises its errors."""
    if how == NUMBA_CUDA:
        from oxide.numba_cuda import install

        install()
    else:
        _write_findings(how)
    is_module = words[0] == "-m"
    name, *rest = words[1:] if is_module else words
    run_as_main(Program(name, tuple(rest), is_module))


def _write_findings(to: str) -> None:
    file = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    recorded = os.getpid()

    def write(errors: tuple[SanitizerError, ...]) -> None:
        if os.getpid() == recorded:
            lines = (json.dumps({"kind": each.kind, "kernel": each.kernel, "text": str(each)}) for each in errors)
            os.write(file, "".join(f"{line}\n" for line in lines).encode())

    sanitizing.observe(write)


if __name__ == "__main__":
    sys.excepthook = lambda _kind, error, _frames: print_traceback(error, __file__)
    main(sys.argv[1], sys.argv[2:])
