"""The directory of kernels that were built ahead of time: files of code, and ``manifest.json``.

The manifest is JSON with a checksum of its own, and names each file with its checksum. Nothing is unpickled. The
checksums find damage, not intent: the files are machine code, so a directory is trusted as a program is.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oxide import disk
from oxide.errors import ArgumentError

__all__ = ["FORMAT", "NAME", "file_digest", "read_file", "read_manifest", "write_directory"]

FORMAT = 1
"""The version of the manifest. Another version of oxide may write the same."""

NAME = "manifest.json"


def write_directory(directory: Path, content: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Writes the files, and the manifest last. A directory whose writing was interrupted has no manifest, or the old
    one with other checksums. Raises ``ArgumentError`` if it cannot be written."""
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
    """Returns the manifest of a directory that ``version`` of oxide has built. Raises ``ArgumentError`` for any
    other."""
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
    except (ValueError, KeyError, AttributeError, TypeError):
        raise _damaged(path) from None
    if form != FORMAT or by != version:
        raise ArgumentError(
            f"{directory} was built by oxide {by} (format {form}), and this is oxide {version} (format {FORMAT}): "
            "build it again with this version"
        )
    if checksum != _checksum(found):
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
