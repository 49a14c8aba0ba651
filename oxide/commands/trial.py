"""``python -m oxide.commands.trial cpu|cuda NUMBER``: compiles a kernel, runs it on a device and compares the result.

``oxide doctor`` runs it with ``--json``, and reads the last line of its output. Without ``--json``, a failure ends the
process with its traceback.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

_ELEMENTS = 1001


def main(arguments: Sequence[str]) -> int:
    """Runs the trial. Returns the exit status."""
    given = [each for each in arguments if each != "--json"]
    kind, number = given[0], int(given[1]) if len(given) > 1 else 0
    os.environ["OXIDE_DEVICE"] = kind
    phases = ["import"]
    if "--json" not in arguments:
        _try_kernel(number, phases)
        return 0
    report = {"phase": "", "error": ""}
    try:
        _try_kernel(number, phases)
    except Exception as error:  # `oxide doctor` reports any error
        report = {"phase": phases[-1], "error": f"{type(error).__name__}: {error}".splitlines()[0]}
    sys.stdout.write(f"\n{json.dumps(report)}\n")
    return int(bool(report["error"]))


def _try_kernel(number: int, phases: list[str]) -> None:
    """Compiles a kernel, runs it and compares its result. Appends "compile" and "run" to ``phases`` when these phases
    begin. Raises the error of the phase that fails."""
    import llvmlite.binding  # noqa: F401  first, as its failure, and numba's, is another than a kernel's
    import numpy as np

    import oxide.compiler.frontend.frontend  # noqa: F401  numba and numba-cuda
    from oxide import DisjointSlice, LaunchConfig, Slice, d2h, f32, h2d, init_device_contexts, kernel, thread

    @kernel
    def doctor(alpha: f32, x: Slice[f32], y: DisjointSlice[f32]) -> None:
        i = thread.index_1d()
        element = y.get_mut(i)
        if element is not None:
            element.value += alpha * x[i.get()]

    phases.append("compile")
    doctor.llvm_ir()
    phases.append("run")
    init_device_contexts(number)
    x = np.arange(_ELEMENTS, dtype=np.float32)  # whole numbers below 2**24, so the result is exact
    launch = doctor[LaunchConfig.for_num_elems(_ELEMENTS)](2.0, h2d(x), h2d(x + 1))
    result = launch.last().and_then(d2h).sync()
    wrong = np.flatnonzero(result != 3 * x + 1)
    if len(wrong):
        first = wrong[0]
        raise ArithmeticError(
            f"{len(wrong)} of {_ELEMENTS} elements are wrong: number {first} is {result[first]}, not {3 * x[first] + 1}"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
