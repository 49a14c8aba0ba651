"""Where the programs that measure one thing leave their figures: a JSON file named by the program and the device."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import oxide

RESULTS = Path(__file__).parent / "results"


def path_of(name: str, device: str, kind: str) -> Path:
    """``<name>-<device>.json`` among the results, where ``device`` is the device's own name: a GPU of a model that
    figures are kept of is told by that, any other device by its kind."""
    label = next((model for model in ("h200", "h100") if model in device.lower()), kind)
    return RESULTS / f"{name}-{label}.json"


def write(name: str, figures: dict[str, Any], *packages: str) -> None:
    """Writes the figures, and with what Python and which packages they were measured; says where."""
    record = {
        **figures,
        "python": platform.python_version(),
        "versions": {package: version(package) for package in packages},
    }
    device = oxide.devices()[0]
    path = path_of(name, device.name, device.kind)
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"written: {path}")
