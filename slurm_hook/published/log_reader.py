"""The log of decisions, read back: syslog's files as logrotate leaves them, or the journal; oldest first.

Anybody on a host can write to syslog under any name. Only the journal knows who did (`_UID`): of its lines those count that
their writer may write, see `believed`. A line of a file is somebody's word; whoever tells of it says so.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import stat
import zlib
from collections import deque
from contextlib import suppress
from datetime import datetime

from ..common import bounded
from ..common.record import TYPE_CHECKING, Record
from . import decision_log

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import Any

LONGEST = 8192  # characters of a line: syslog takes no more, and ours are shorter
TIMEOUT = 60.0  # seconds that the journal may take
_NUMBERS = frozenset(("uid", "seed", "nodes", "count", "candidates", "demand", "total", "rank", "ms", "job"))
# who writes as the user whose job it is; all others are of root or the service user
_AS_USER = ("wrapper", "cli_filter")

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


class Entry(Record):
    """A line of the log. time: epoch seconds; uid: who wrote it, where the journal tells, else None."""

    fields: dict[str, Any]
    time: float
    uid: int | None = None


def parse(text: str) -> dict[str, Any] | None:
    """The fields of a line's JSON that ours have; None where one isn't of the kind that ours are of, and for anything else.
    Never raises."""
    if len(text) > LONGEST:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    known = {name: value for name, value in data.items() if name in decision_log.FIELDS}
    return known if all(_is_ours(name, value) for name, value in known.items()) else None


def _is_ours(name: str, value: object) -> bool:
    if name == "applied":
        return isinstance(value, bool)
    if name == "free":
        return isinstance(value, dict) and all(isinstance(folded, str) for folded in value.values())
    if name in _NUMBERS:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18  # false for nan
    return isinstance(value, str)


def believed(entry: Entry, owner: int | None, service: Collection[int]) -> bool:
    """Written by who may: a submission's line by the job's owner (None: by the one it names), the others by root or the
    service user; any line of which nobody knows the writer."""
    if entry.uid is None or entry.uid in service:
        return True
    return entry.fields.get("by") in _AS_USER and entry.uid == (entry.fields.get("uid") if owner is None else owner)


def has_journal() -> bool:
    """This host's syslog is kept by systemd's journal."""
    return shutil.which("journalctl") is not None and os.path.isdir("/run/systemd/system")


def journal(since: float, until: float, most: int) -> Iterator[Entry]:
    """Entries of a stretch (epoch seconds), of very many the last ones; none where the journal can't be read."""
    span = [f"--since=@{since:.0f}", f"--until=@{until:.0f}", f"--lines={most}"]
    argv = ["journalctl", "-t", "workhorse", "-o", "json", "--output-fields=MESSAGE,_UID", "--no-pager", "-q", *span]
    try:
        _, out, _ = bounded.run(argv, TIMEOUT)
    except (OSError, bounded.Expired):
        return
    for line in out.decode("utf-8", "replace").splitlines():
        entry = _of_journal(line)
        if entry is not None:
            yield entry


def _of_journal(line: str) -> Entry | None:
    try:
        data = json.loads(line)
        fields = parse(data["MESSAGE"])
        return None if fields is None else Entry(fields, int(data["__REALTIME_TIMESTAMP"]) / 1e6, int(data["_UID"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


_LINE = re.compile(r"(\S+(?: {1,2}\d{1,2} [\d:]{8})?) \S{1,256} workhorse(?:\[\d{1,10}\])?: (\{.*\})\s*")


def of_file(line: str, now: float) -> Entry | None:
    """A line of syslog's file: ISO or traditional time, host, ident, JSON. None for anything else."""
    match = _LINE.fullmatch(line) if len(line) <= 2 * LONGEST else None
    fields = parse(match[2]) if match else None
    when = moment(match[1], now) if match else None
    return None if fields is None or when is None else Entry(fields, when)


def moment(text: str, now: float) -> float | None:
    """Epoch seconds of a time as syslog writes it; the traditional form has no year: the latest that isn't to come."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        pass
    try:
        year = datetime.fromtimestamp(now).year
        when = datetime.strptime(f"{year} {text}", "%Y %b %d %H:%M:%S").timestamp()
        return when if when <= now + 86400 else datetime.strptime(f"{year - 1} {text}", "%Y %b %d %H:%M:%S").timestamp()
    except (ValueError, OverflowError):
        return None
