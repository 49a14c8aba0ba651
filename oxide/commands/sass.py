"""SASS, a GPU's own instructions: ptxas assembles the PTX, and a tool of the CUDA Toolkit disassembles the result.
Needs no GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from oxide.commands.machine import find_tool

_WHERE = "neither on PATH nor in CUDA_HOME; the CUDA Toolkit has it, and so does the package triton"


def disassembly(ptx: str) -> str:
    """Assembles PTX for the architecture that it names, and returns the disassembled instructions. If the PTX has line
    tables, comments name the line of the source before its instructions. Raises ``LookupError`` if a tool is missing or
    fails."""
    ptxas, nvdisasm, cuobjdump = map(find_tool, ("ptxas", "nvdisasm", "cuobjdump"))
    if ptxas is None:
        raise LookupError(f"--sass needs ptxas, the assembler, which is {_WHERE}")
    if nvdisasm is None and cuobjdump is None:
        raise LookupError(f"--sass needs nvdisasm or cuobjdump, a disassembler, which is {_WHERE}")
    target = re.search(r"^\.target\s+(\w+)", ptx, re.MULTILINE)
    assert target is not None, "PTX names its target"
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx, encoding="utf-8")
        _run([ptxas, f"-arch={target[1]}", "--generate-line-info", "-o", str(binary), str(source)])
        if nvdisasm is not None:
            return _run([nvdisasm, "--print-line-info-inline", "--print-code", str(binary)])
        return _run([str(cuobjdump), "-sass", str(binary)])


def _run(command: list[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        said = (ran.stderr or ran.stdout).strip() or f"exit status {ran.returncode}"
        raise LookupError(f"{command[0]} failed: {said}")
    return ran.stdout
