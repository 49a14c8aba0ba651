"""Without torch, ``oxide.torch`` raises an error that names the package, and all else works."""

from __future__ import annotations

import subprocess
import sys


def test_the_error_without_torch_names_the_package() -> None:
    program = """
import sys

sys.modules["torch"] = None  # as if it were not installed
import oxide
from oxide import *

print("torch" in globals())  # a star import does not replace the program's own torch
try:
    oxide.torch
except ImportError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [
        "False",
        "oxide.torch needs torch, which is not installed: pip install 'oxide-gpu[torch]'",
    ]
