"""``python -m oxide.commands.observed FINDINGS [-m] FILE ARGS…``: runs a program, and writes what the sanitizer finds.

Each finding is a line of JSON in the file FINDINGS. It is written at once, so it is not lost if the program handles the
error or is killed.
"""

from __future__ import annotations

import json
import os
import sys

from oxide.commands.running import Program, print_traceback, run_as_main
from oxide.driver import sanitizing
from oxide.errors import SanitizerError


def main(findings: str, program: Program) -> None:
    """Runs the program as ``__main__``. Raises the program's errors."""
    file = os.open(findings, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    recorded = os.getpid()

    def write(errors: tuple[SanitizerError, ...]) -> None:
        if os.getpid() == recorded:
            lines = (json.dumps({"kind": each.kind, "kernel": each.kernel, "text": str(each)}) for each in errors)
            os.write(file, "".join(f"{line}\n" for line in lines).encode())

    sanitizing.observe(write)
    run_as_main(program)


if __name__ == "__main__":
    words = sys.argv[2:]
    named = words[words[0] == "-m" :]
    sys.excepthook = lambda _kind, error, _frames: print_traceback(error, __file__)
    main(sys.argv[1], Program(named[0], tuple(named[1:]), words[0] == "-m"))
