"""NVIDIA's assembler over the PTX that kernels compile to, on machines that have it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

PTXAS = shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")
needs_ptxas = pytest.mark.skipif(PTXAS is None, reason="ptxas is not installed")


def assembled(ptx: str, cc: tuple[int, int] = (9, 0)) -> str:
    """What the assembler says of registers and spills. The test fails if it refuses the text."""
    assert PTXAS is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="utf-8")
        command = [PTXAS, "-v", f"-arch={_architecture(ptx, cc)}", str(source), "-o", str(source.with_suffix(".cubin"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def _architecture(ptx: str, cc: tuple[int, int]) -> str:
    """``sm_90a`` for a text with that target, which no other takes."""
    return "sm_90a" if ".target sm_90a" in ptx else f"sm_{cc[0]}{cc[1]}"
