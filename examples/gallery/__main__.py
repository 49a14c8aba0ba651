"""``python -m examples.gallery``: prints a line about each program."""

from __future__ import annotations

import importlib
import pkgutil

from examples import gallery


def main() -> None:
    names = sorted(module.name for module in pkgutil.iter_modules(gallery.__path__) if module.name != "__main__")
    for name in names:
        documentation = importlib.import_module(f"examples.gallery.{name}").__doc__ or ""
        print(f"python -m examples.gallery.{name:16} {documentation.splitlines()[0]}")


if __name__ == "__main__":
    main()
