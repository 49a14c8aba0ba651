"""What ``help`` shows of the public names: each has a docstring and a signature, in Python and in C."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType

import oxide


def public_names() -> Iterator[tuple[str, object]]:
    """Yields functions, classes, methods and properties, of the package and of its public modules."""
    for name in (*oxide.__all__, "zip"):
        found = getattr(oxide, name)
        if isinstance(found, ModuleType):
            own = [each for each, of in vars(found).items() if getattr(of, "__module__", "") == found.__name__]
            for each in getattr(found, "__all__", own):
                yield from _with_methods(f"{name}.{each}", getattr(found, each))
        else:
            yield from _with_methods(name, found)


def _with_methods(name: str, found: object) -> Iterator[tuple[str, object]]:
    if name.rpartition(".")[2].startswith("_") or (isinstance(found, type) and issubclass(found, BaseException)):
        return
    if callable(found):
        yield name, found
    if isinstance(found, type) and found.__module__.partition(".")[0] == "oxide":
        for each in dir(found):
            member = inspect.getattr_static(found, each)
            if not each.startswith("_") and (callable(getattr(found, each)) or isinstance(member, property)):
                yield f"{name}.{each}", getattr(found, each)


def test_every_public_name_has_a_docstring_and_a_signature() -> None:
    found = dict(public_names())
    assert {"kernel", "h2d", "Stream.synchronize", "collectives.local_group", "thread.index_1d"} <= set(found)
    assert not [name for name, each in found.items() if not inspect.getdoc(each)]
    for each in found.values():
        assert not callable(each) or inspect.signature(each)
