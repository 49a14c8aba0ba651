"""The directory of kernels that were built ahead of time: files of code, and ``manifest.json``.

The manifest is JSON. It has a checksum of its own content, and the name and checksum of each file. Nothing is
unpickled. The checksums detect damage, but not manipulation. The files are machine code, so a user must trust a
directory like a program.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oxide.errors import ArgumentError
from oxide.host import disk

__all__ = ["FORMAT", "NAME", "file_digest", "read_file", "read_manifest", "write_directory"]

FORMAT = 1
"""The version of the manifest's format. Several versions of oxide may share one."""

NAME = "manifest.json"


def write_directory(directory: Path, content: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Removes an old manifest, writes the files, and writes the new manifest last. A directory whose writing was
    interrupted therefore has no manifest, or an incomplete one, which is refused. Raises ``ArgumentError`` if the
    directory cannot be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (directory / NAME).unlink()
        for name, image in files.items():
            (directory / name).write_bytes(image)
        whole = {"format": FORMAT, "checksum": _checksum(content), **content}
        (directory / NAME).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"{directory} cannot be written: {error.strerror or error}; name another folder") from None


def read_manifest(directory: Path, version: str) -> dict[str, Any]:
    """Returns the manifest of a directory that was built by the version ``version`` of oxide. Raises ``ArgumentError``
    if the manifest is missing, damaged, or from another version."""
    path = directory / NAME
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ArgumentError(
            f"{directory} has no {NAME} that can be read ({error.strerror or error}); `oxide build … -o {directory}` "
            "makes one"
        ) from None
    except UnicodeDecodeError:
        raise _damaged(path) from None
    try:
        found = json.loads(text)
        form, checksum, by = found.pop("format"), found.pop("checksum"), found["oxide"]
        is_intact = checksum == _checksum(found)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise _damaged(path) from None
    if form != FORMAT or by != version:
        raise ArgumentError(
            f"{directory} was built by oxide {by} (format {form}), and this is oxide {version} (format {FORMAT}): "
            "build it again with this version"
        )
    if not is_intact:
        raise _damaged(path)
    manifest: dict[str, Any] = found
    return manifest


def read_file(directory: Path, name: str, digest: str) -> bytes:
    """Returns the content of a file of the directory. Raises ``ArgumentError`` if it is missing or damaged."""
    path = directory / os.path.basename(name)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror or error}; build the directory again") from None
    if file_digest(content) != digest:
        raise _damaged(path)
    return content


def file_digest(content: bytes) -> str:
    """Returns the checksum of a file's content."""
    return disk.digest((content,))


def _checksum(content: Mapping[str, Any]) -> str:
    return disk.digest((json.dumps(content, sort_keys=True),))


def _damaged(path: Path) -> ArgumentError:
    return ArgumentError(f"{path} is damaged: it is not what was written; build the directory again")
