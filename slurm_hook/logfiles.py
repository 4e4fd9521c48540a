"""The log of decisions as logrotate leaves it: today's file and those before it, as lines, oldest first."""

from __future__ import annotations

import gzip
import os
import re
import stat
import zlib
from collections import deque
from contextlib import suppress

from .light import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# what logrotate adds to a name: .1, .2.gz, or with dateext -20261130, -20261130.gz
_ROTATED = re.compile(r"(?:[.-][0-9]+){1,2}(?:\.gz)?")


def files(path: str, since: float = 0.0) -> list[str]:
    """The log and, of what logrotate made of it, the files written to at `since` (epoch s) or later; newest first."""
    folder, name = os.path.split(path)
    found = []
    with suppress(OSError):
        for entry in os.scandir(folder or "."):
            if entry.name.startswith(name) and _ROTATED.fullmatch(entry.name[len(name) :]):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_mtime >= since:
                    found.append((status.st_mtime, entry.path))
    return [path, *(one for _, one in sorted(found, reverse=True))]


def lines(path: str, since: float = 0.0) -> Iterator[str]:
    """All lines that can be of `since` or later. Raises OSError where the log itself can't be read."""
    for one in reversed(files(path, since)):
        yield from _lines_of(one, rotated=one != path)


def last_lines(path: str, most: int, since: float = 0.0) -> Iterator[str]:
    """The same, of very many the last ones. Raises OSError as well."""
    kept: list[deque[str]] = []
    for one in files(path, since):
        some = deque(_lines_of(one, rotated=one != path), maxlen=most)
        kept.append(some)
        most -= len(some)
        if most <= 0:
            break
    for some in reversed(kept):
        yield from some


def _lines_of(path: str, *, rotated: bool) -> Iterator[str]:
    """What a rotated file has as far as it can be read: logrotate may be at it this moment."""
    try:
        if path.endswith(".gz") and rotated:
            with gzip.open(path, "rt", encoding="utf-8", errors="replace") as packed:
                yield from packed
        else:
            with open(path, encoding="utf-8", errors="replace") as file:
                yield from file
    except (OSError, EOFError, zlib.error):
        if not rotated:
            raise
