"""Without Ray, ``oxide.ray`` raises an error that names the package, and all else works."""

from __future__ import annotations

import pickle
import subprocess
import sys

from oxide import errors


def test_the_error_without_ray_names_the_package() -> None:
    program = """
import sys

sys.modules["ray"] = None  # as if it were not installed
import oxide
from oxide import *

print("ray" in globals())  # a star import does not replace the program's own ray
try:
    oxide.ray
except ImportError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [
        "False",
        "oxide.ray needs ray, which is not installed: pip install 'oxide-gpu[ray]'",
    ]


def test_the_error_of_a_lost_actor_keeps_its_fields_when_it_is_pickled() -> None:
    error = errors.ActorLostError("batch 3 has no result", 3, "actor 1", 2)
    same = pickle.loads(pickle.dumps(error))
    assert type(same) is errors.ActorLostError
    assert (str(same), same.batch, same.actor, same.attempts) == (str(error), 3, "actor 1", 2)
