"""The disk cache's files: bytes under a name, in a directory that only the user can write to.

The callers decide what the files contain: ``compiler.cache.entries`` stores compiled kernels, for example, and
``driver.cpu.processor`` stores the name and features of the host's processor. This module makes it safe to execute
machine code from the directory:

- The directory is made with mode 0700. If another user owns it or may write to it, it is not used: a warning is given
  once, and each process compiles its kernels.
- A file is written under a temporary name and then renamed. So a reader sees the whole file or none, even if several
  processes write it.
- A file carries a checksum of its name and content. A file that is damaged, was not written by this module, has another
  format, or is one that another user owns or may write to, counts as missing, and is written again. A file that is
  larger than the cache's limit also counts as missing; it is not read.

``OXIDE_CACHE_DIR`` names the directory; the default is ``$XDG_CACHE_HOME/oxide`` or ``~/.cache/oxide``.
``OXIDE_CACHE=0`` turns the cache off. ``OXIDE_CACHE_LIMIT`` is its limit in bytes, 256 MiB by default. Once in a while,
a process that writes to the cache looks at all files, and removes the least recently used if they exceed the limit. A
single file above the limit is not stored.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
import warnings
from collections.abc import Iterable
from typing import NamedTuple

try:
    # The function that hashlib provides. Importing hashlib also loads OpenSSL: a tenth of the time of a first launch
    # from the cache.
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

__all__ = [
    "Stored",
    "blake2b",
    "digest",
    "directory",
    "enabled",
    "limit",
    "peek",
    "place_and_problem",
    "read",
    "remove",
    "stored",
    "version_text",
    "write",
]

_MAGIC = b"oxide cache 1\n"
_CHECKSUM_BYTES = 16
_DEFAULT_LIMIT = 256 * 1024 * 1024
_KEPT_FRACTION = 0.75  # the fraction of the limit that a clean-up leaves, so that not every write needs one
_TOUCH_AFTER = 3600.0  # seconds: a file's last use is recorded at most this often
_ABANDONED_AFTER = 3600.0  # seconds: an older temporary file is assumed to have no writer any more
_LOOKS = 64  # a process looks again once it has written this fraction of the limit: others may have written too
_SUFFIX = ".oxide"  # other files in the directory are not touched
_TEMPORARY = ".oxide-writing-"

_warned = False
# By directory: the bytes of its files when this process last looked, and the bytes that it has written since. Looking
# takes some microseconds for each file, so not every write looks.
_sizes: dict[str, tuple[int, int]] = {}


class Stored(NamedTuple):
    """A file of the cache: its name, its size in bytes, and the time of its last use, which is recorded at most once an
    hour."""

    name: str
    nbytes: int
    used: float


def read(name: str) -> bytes | None:
    """Returns the bytes stored under a name; None if there is no such file or it cannot be trusted. Never raises."""
    return _read(name, records_use=True)


def peek(name: str) -> bytes | None:
    """Returns what ``read`` returns, without recording a use of the file."""
    return _read(name, records_use=False)


def _read(name: str, *, records_use: bool) -> bytes | None:
    place = directory()
    if place is None:
        return None
    path = os.path.join(place, name + _SUFFIX)
    try:
        # Does not follow links: a link could name any of the user's files.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or _open_to_others(found) or found.st_size > limit():
            return None
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(found.st_size)
        if records_use and time.time() - found.st_mtime > _TOUCH_AFTER:
            with contextlib.suppress(OSError):  # a cache may be readable but not writable
                os.utime(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    start = len(_MAGIC) + _CHECKSUM_BYTES
    if not content.startswith(_MAGIC) or content[len(_MAGIC) : start] != _checksum(name, content[start:]):
        return None
    return content[start:]


def write(name: str, content: bytes) -> None:
    """Stores bytes under a name unless they exceed the cache's limit. Never raises: what was not stored is compiled
    again."""
    place = directory(create=True)
    if place is None or len(_MAGIC) + _CHECKSUM_BYTES + len(content) > limit():
        return
    temporary = os.path.join(place, f"{_TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(_MAGIC + _checksum(name, content) + content)
            os.rename(temporary, os.path.join(place, name + _SUFFIX))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        found, written = _sizes.get(place, (limit(), 0))
        written += len(_MAGIC) + _CHECKSUM_BYTES + len(content)
        if found + written > limit() or written > limit() // _LOOKS:
            found, written = _make_room(place), 0
        _sizes[place] = found, written
    except OSError as error:
        _warn(f"nothing can be written to the cache in {place} ({error.strerror or error})")


def enabled() -> bool:
    """Returns whether the cache is turned on."""
    asked = os.environ.get("OXIDE_CACHE", "")
    if asked not in ("", "0", "1"):
        _warn(f"OXIDE_CACHE={asked!r:.80} is neither 0 nor 1, so the cache is on", "")
    return asked != "0"


def directory(*, create: bool = False) -> str | None:
    """Returns the cache's directory; None if the cache is off or there is no directory that is safe to use. ``create``
    makes a missing directory."""
    if not enabled():
        return None
    place, problem = place_and_problem(create=create)
    if problem is None:
        return place if create or os.path.isdir(place) else None
    _warn(problem)
    return None


def place_and_problem(*, create: bool = False) -> tuple[str, str | None]:
    """Returns the path of the cache's directory, and the reason why it cannot be used, or None. A missing directory is
    no such reason; ``create`` makes it."""
    place = os.environ.get("OXIDE_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "oxide"
    )
    try:
        if create:
            os.makedirs(os.path.dirname(os.path.abspath(place)), exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(place, 0o700)
        found = os.stat(place)
    except OSError as error:
        if create or not isinstance(error, FileNotFoundError):
            return place, f"the cache in {place} cannot be used ({error.strerror or error})"
        return place, None
    if not stat.S_ISDIR(found.st_mode):
        return place, f"the cache was to be in {place}, which is no directory"
    if _open_to_others(found):
        whose = "others may write to it" if found.st_uid == os.geteuid() else f"it belongs to user {found.st_uid}"
        return place, f"the cache in {place} is not used, because {whose}: it must be yours, with mode 0700"
    return place, None


def stored() -> list[Stored]:
    """Returns the cache's files, intact or not, the most recently used first. Returns an empty list if there is no
    cache."""
    place = directory()
    if place is None:
        return []
    found = []
    with os.scandir(place) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process removed it
                state = entry.stat(follow_symlinks=False)
                if entry.name.endswith(_SUFFIX) and stat.S_ISREG(state.st_mode):
                    found.append(Stored(entry.name.removesuffix(_SUFFIX), state.st_size, state.st_mtime))
    return sorted(found, key=lambda each: each.used, reverse=True)


def remove(names: Iterable[str]) -> None:
    """Removes files of the cache. Raises ``OSError`` if one cannot be removed."""
    place = directory()
    if place is None:
        return
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(place, name + _SUFFIX))


def digest(parts: Iterable[bytes | str]) -> str:
    """Returns a name for a sequence of texts or bytes. Different sequences get different names, even if their
    concatenations are equal."""
    found = blake2b(digest_size=20)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


def version_text(package: str) -> str:
    """Returns a text that differs between versions of an installed package: the content of the package's version file,
    or else the version in its metadata. Does not import the package."""
    import importlib.util

    found = importlib.util.find_spec(package)
    if found is not None and found.origin is not None:
        for file in ("VERSION", "_version.py"):
            with contextlib.suppress(OSError), open(os.path.join(os.path.dirname(found.origin), file)) as text:
                return text.read()
    from importlib import metadata  # takes 30 ms

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _open_to_others(found: os.stat_result) -> bool:
    return found.st_uid != os.geteuid() or bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _checksum(name: str, content: bytes) -> bytes:
    return bytes.fromhex(digest((name, content)))[:_CHECKSUM_BYTES]


def _make_room(place: str) -> int:
    """If the cache exceeds its limit, removes the least recently used files, until at most three quarters of the limit
    remain. Also removes temporary files older than an hour, which killed processes are assumed to have left. Returns
    the bytes of the files that remain."""
    most = limit()
    files: list[tuple[float, int, str]] = []
    total = 0
    now = time.time()
    with os.scandir(place) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process removed it
                found = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(found.st_mode):
                    continue
                if entry.name.startswith(_TEMPORARY):
                    if now - found.st_mtime > _ABANDONED_AFTER:
                        os.unlink(entry.path)
                    continue
                if entry.name.endswith(_SUFFIX):
                    files.append((found.st_mtime, found.st_size, entry.path))
                    total += found.st_size
    if total <= most:
        return total
    for _, size, path in sorted(files):
        if total <= most * _KEPT_FRACTION:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= size
    return total


def limit() -> int:
    """Returns the number of bytes that the cache may hold at most."""
    asked = os.environ.get("OXIDE_CACHE_LIMIT", "")
    if asked.isascii() and asked.isdecimal() and len(asked) <= 4300:  # Python parses no more digits
        return int(asked)
    if asked:
        _warn(f"OXIDE_CACHE_LIMIT is {asked!r:.80}, which is no number of bytes; {_DEFAULT_LIMIT} is used", what="")
    return _DEFAULT_LIMIT


def _warn(
    problem: str, what: str = "; kernels are compiled in each process. OXIDE_CACHE_DIR names another place"
) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(f"oxide: {problem}{what}", RuntimeWarning, stacklevel=2)
