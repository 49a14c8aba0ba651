"""A libcuda.so.1 that sees a GPU and can do nothing else with it, for the commands that only look."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = """
#include <string.h>
#include <stddef.h>
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "Simulated GPU", length); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)80 << 30; return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) {
    *value = which == 75 ? MAJOR : which == 76 ? MINOR : 0;
    return 0;
}
"""


def fake_driver(folder: Path, *, version: int = 13000, capability: tuple[int, int] = (9, 0)) -> dict[str, str]:
    """Compiles the library into a folder. Returns the variables with which a process finds it. Skips the test where
    there is no C compiler."""
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        pytest.skip("no C compiler")
    folder.mkdir()
    (folder / "driver.c").write_text(SOURCE)
    definitions = [f"-DVERSION={version}", f"-DMAJOR={capability[0]}", f"-DMINOR={capability[1]}"]
    library = str(folder / "libcuda.so.1")
    subprocess.run(
        [compiler, "-shared", "-fPIC", *definitions, "-o", library, str(folder / "driver.c")], check=True, timeout=60
    )
    return {"LD_LIBRARY_PATH": str(folder), "OXIDE_DEVICE": ""}
