"""The entry point of the program ``oxide``.

It stands outside the package, so that ``oxide doctor`` also runs where ``import oxide`` fails, say because a package
that it needs is missing or broken. Then the package is replaced by one without contents, in which Python finds the
commands; those that need no more than that run.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType


def main() -> int:
    """Runs the command line. Returns the exit status."""
    try:
        import oxide  # noqa: F401
    except Exception as error:  # a broken package may raise anything
        broken = f"{type(error).__name__}: {error}"
        if sys.argv[1:2] not in (["doctor"], ["cache"]):
            print(f"oxide: `import oxide` fails: {broken}\nrun `oxide doctor`, which says why", file=sys.stderr)
            return 1
        for name in [each for each in sys.modules if each.partition(".")[0] == "oxide"]:
            del sys.modules[name]
        found = importlib.util.find_spec("oxide")
        assert found is not None, "its import was tried"
        package = sys.modules["oxide"] = ModuleType("oxide")
        package.__path__ = list(found.submodule_search_locations or ())
        package.__spec__ = found
        print(f"oxide: `import oxide` fails: {broken}", file=sys.stderr)
    try:
        from oxide.commands.program import main as run
    except ModuleNotFoundError as error:
        print(f"oxide: {error.name} is not installed; python -m pip install {error.name}", file=sys.stderr)
        return 1
    return run()


if __name__ == "__main__":
    sys.exit(main())
