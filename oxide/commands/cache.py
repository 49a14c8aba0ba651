"""``oxide cache``: the compiled kernels on disk."""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Annotated

import typer

from oxide.commands.output import FINDINGS, complain, refuse, say, size_text, table
from oxide.host import disk

app = typer.Typer(
    help="""Lists, measures, verifies and clears the cache of compiled kernels on disk.

    \b
    Examples:
      oxide cache list
      oxide cache size
      oxide cache verify
      oxide cache clear --yes
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Lists the cache's files, the last used first.

    \b
    Examples:
      oxide cache list
      oxide cache list --json
    """
    _place()
    files = disk.stored()
    # A code file names its entry point, which on the CPU is not the kernel's name. The file of types and IR names the
    # kernel.
    kernels = {each.name.partition(".")[0]: _described(each.name)[0] for each in files if each.name.endswith(".facts")}
    found = []
    for each in files:
        kernel, what = _described(each.name)
        found.append((each, kernels.get(each.name.partition(".")[0], kernel), what))
    if as_json:
        rows = [
            {"kernel": kernel, "what": what, "bytes": each.nbytes, "used": each.used, "file": each.name}
            for each, kernel, what in found
        ]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    if not found:
        say("the cache is empty")
        return
    table(
        ("kernel", "what", "size", "last used", "file"),
        [
            (
                kernel,
                what,
                size_text(each.nbytes),
                time.strftime("%Y-%m-%d %H:%M", time.localtime(each.used)),
                each.name,
            )
            for each, kernel, what in found
        ],
        right=(2,),
    )


@app.command()
def size() -> None:
    """Says where the cache is, how many bytes its files take, and how many they may take.

    \b
    Example:
      oxide cache size
    """
    place = _place()
    files = disk.stored()
    total = sum(each.nbytes for each in files)
    say(f"{place}: {len(files)} files, {total} bytes ({size_text(total)}) of at most {disk.limit()}")


@app.command()
def verify(
    remove: Annotated[bool, typer.Option("--remove", help="remove the damaged files")] = False,
) -> None:
    """Compares each file with its checksum. A damaged file is compiled again at its next use, and harms nothing.

    Exit status 1 if a file is damaged and stays.

    \b
    Examples:
      oxide cache verify
      oxide cache verify --remove
    """
    _place()
    files = disk.stored()
    damaged = [each.name for each in files if disk.peek(each.name) is None]
    for name in damaged:
        say(f"damaged: {name}")
    if damaged and remove:
        _remove(damaged)
        say(f"{len(damaged)} of {len(files)} files removed")
        return
    say(f"{len(files) - len(damaged)} of {len(files)} files are intact")
    if damaged:
        complain("cache verify", "remove the damaged files with `oxide cache verify --remove`")
        raise typer.Exit(FINDINGS)


@app.command()
def clear(yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False) -> None:
    """Removes all files of the cache. Kernels are compiled again at their next use.

    \b
    Example:
      oxide cache clear --yes
    """
    place = _place()
    files = disk.stored()
    if files and not yes:
        if not sys.stdin.isatty():
            refuse("cache clear", f"this removes {len(files)} files from {place}; confirm with --yes")
        typer.confirm(f"Remove {len(files)} files from {place}?", abort=True)
    _remove([each.name for each in files])
    say(f"{len(files)} files removed from {place}")


def _place() -> str:
    """Returns the cache's directory. Ends the command if the cache is off, or its directory cannot be used."""
    if not disk.enabled():
        refuse("cache", "the cache is off (OXIDE_CACHE=0); unset OXIDE_CACHE")
    place, problem = disk.place_and_problem()
    if problem is not None:
        refuse("cache", f"{problem}; OXIDE_CACHE_DIR names another place")
    return place


def _remove(names: list[str]) -> None:
    try:
        disk.remove(names)
    except OSError as error:
        complain("cache", f"{error.filename} cannot be removed: {error.strerror}")
        raise typer.Exit(FINDINGS) from None


def _described(name: str) -> tuple[str, str]:
    """Returns a file's kernel, "" if unknown, and its kind, both read from its content. ``compiler.cache.entries``
    defines the formats."""
    content = disk.peek(name)
    if content is None:
        return "", "damaged"
    if name.endswith(".code"):
        head, _, image = content.partition(b"\n")
        target = re.search(rb"^\.target (\w+)", image, re.MULTILINE)
        return head.split()[0].decode(), target[1].decode() if target else "native code"
    if name.endswith(".facts"):
        portable = json.loads(content)["portable"]["PortableKernel"]
        return str(portable["name"]), "types and IR"
    return "", "of the runtime"
