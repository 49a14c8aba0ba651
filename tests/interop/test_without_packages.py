"""Without torch or Ray, ``oxide.torch`` or ``oxide.ray`` raises an error that names the package, and all else works."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("package", ["torch", "ray"])
def test_the_error_without_a_package_names_it(package: str) -> None:
    program = f"""
import sys

sys.modules["{package}"] = None  # as if it were not installed
import oxide
from oxide import *

print("{package}" in globals())  # a star import does not replace the program's own
try:
    oxide.{package}
except ImportError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [
        "False",
        f"oxide.{package} needs {package}, which is not installed: pip install 'oxide-gpu[{package}]'",
    ]
