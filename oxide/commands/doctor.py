"""``oxide doctor``: examines whether everything that kernels need is installed. Each problem comes with its fix.

This process imports neither numba nor LLVM, and kernels are tried in processes of their own. So the command also works
where the compiler cannot be imported, or crashes its process.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from oxide.commands.output import FINDINGS, console


def doctor(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Examines the driver, GPUs, libdevice, package versions and cache, and runs a kernel on each device.

    Exit status 0 if kernels run here; warnings, such as a missing GPU, count as fine. Exit status 1 if something has to
    be fixed.

    \b
    Examples:
      oxide doctor
      oxide doctor --json | jq '.findings[] | select(.status != "ok")'
    """
    from oxide.commands.diagnosis import examine

    failed = warned = 0
    found = []
    shown = console()
    for finding in examine():
        failed += finding.status == "failed"
        warned += finding.status == "warning"
        if as_json:
            found.append(finding.as_json())
            continue
        style = {"ok": "green", "warning": "yellow", "failed": "bold red"}[finding.status]
        shown.print(f"{finding.status:<8}", style=style, end="")
        shown.print(f"{finding.name}: {finding.found}")
        if finding.fix:
            shown.print(f"{'':8}fix: {finding.fix}")
    if as_json:
        status = "failed" if failed else "warning" if warned else "ok"
        sys.stdout.write(json.dumps({"status": status, "findings": found}, indent=2, ensure_ascii=False) + "\n")
    elif failed:
        shown.print(f"{failed} to fix", style="bold red")
    else:
        shown.print(
            "kernels run here" + (f"; {warned} {'warning' if warned == 1 else 'warnings'}" if warned else ""),
            style="green",
        )
    if failed:
        raise typer.Exit(FINDINGS)
