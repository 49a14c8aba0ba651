"""The programs of the book's chapter "A product on tensor cores, step by step", beside cuBLAS.

``python -m benchmarks.gemm_steps [--n 4096] [--rounds 9] [--write]`` runs each program of ``docs/gemm.md`` as it is
there, and measures its ``launch`` with square matrices: TFLOPS, and the ratio to torch's matmul with its quartiles.
Each result is compared with float64 first.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import runpy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.harness import peer
from benchmarks.tensor import compare
from oxide import devices, from_dlpack

PAGE = Path(__file__).resolve().parents[1] / "docs" / "gemm.md"


def programs() -> Iterator[tuple[str, str]]:
    """Yields the title and the program of each step."""
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        program = re.search(r"```python\n(.*?)```", section, re.DOTALL)
        if program is not None:
            yield section.partition("\n")[0], program[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    given = parser.parse_args()
    torch = peer("torch")
    n = given.n
    a, b = (torch.randn(n, n, device="cuda").to(torch.bfloat16) for _ in range(2))
    c, c_torch = torch.empty_like(a), torch.empty_like(a)
    torch.cuda.synchronize()
    expected = a[:256].double() @ b.T.double()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (title, program) in enumerate(programs(), 1):
            file = Path(folder) / f"step_{number}.py"
            file.write_text(program, encoding="utf-8")
            with contextlib.redirect_stdout(io.StringIO()):
                launch = runpy.run_path(str(file))["launch"]
            operation = launch(from_dlpack(a), from_dlpack(b), from_dlpack(c))
            operation.sync()
            error = float((c[:256].double() - expected).norm() / expected.norm())
            if not error < 4e-3:
                raise SystemExit(f"{title}: the product is off by {error:.1e} of its norm")
            found = compare(
                torch, operation, {"torch": lambda: torch.matmul(a, b.T, out=c_torch)}, 2 * n**3, given.rounds
            )
            rows.append({"step": title, "n": n, "error": error, **found})
            print(json.dumps(rows[-1]), flush=True)
    if given.write:
        figures = {"device": devices()[0].name, "torch": torch.__version__, "rows": rows}
        record.write("gemm_steps", figures, "numba", "numba-cuda", "llvmlite", "numpy")


if __name__ == "__main__":
    main()
