"""``python -m oxide.commands.numba_program [-m] PROGRAM [ARGS]``: ``oxide run --numba-cuda`` starts this command.

Installs ``oxide.numba_cuda`` in the place of ``numba.cuda`` and runs the program as ``__main__``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from oxide.commands.running import Program, print_traceback, run_as_main


def main(arguments: Sequence[str]) -> int:
    """Runs the program. Returns the exit status."""
    from oxide.numba_cuda import install

    is_module = arguments[0] == "-m"
    name, *rest = arguments[1:] if is_module else arguments
    install()
    try:
        run_as_main(Program(name, tuple(rest), is_module))
    except Exception as error:
        print_traceback(error, __file__)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
