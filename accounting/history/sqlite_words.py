"""SQLite's errors in words: what, why and how to mend it. And opening a history to look only. Standard library."""

from __future__ import annotations

import os
import sqlite3

BUSY_SECONDS = 30
# (part of SQLite's message, what it means here, how to mend it); the first that is found counts
_WORDS = (
    (("locked", "busy"), f"locked by another program for over {BUSY_SECONDS} s", "end it and run again"),
    (("disk is full",), "the disk is full; nothing of this step was kept", "make room and run again"),
    (("not a database", "malformed"), "damaged, or no SQLite file", "move it away and collect anew, or restore a copy"),
    (
        ("disk i/o",),
        "can't be read or written",
        "make room, look at the file system's health (dmesg), or mount it again; the history itself may be whole",
    ),
    (
        ("unable to open", "readonly", "read-only"),
        "can't be opened, or may not be written",
        "run as its owner, make room, or mount the file system for writing; the history itself may be whole",
    ),
)
_DAMAGED = "damaged, or no SQLite file"


def cause(err: Exception | str) -> tuple[str, str]:
    """What an error of SQLite means, and the mend (empty where nothing is known of it)."""
    text = str(err)
    for parts, meaning, mend in _WORDS:
        if any(part in text.lower() for part in parts):
            return f"{meaning} ({text})", mend
    return text, ""


def is_damage(err: Exception | str) -> bool:
    """True where the file itself is spoilt: only then another is needed."""
    return cause(err)[0].startswith(_DAMAGED)


def explain(path: str, err: Exception) -> str:
    """A message for an SQLite or file error."""
    if isinstance(err, OSError):
        return f"{path}: can't be opened ({err.strerror}); name another with --db or [history] path"
    meaning, mend = cause(err)
    return f"{path}: {meaning}" + (f"; {mend}" if mend else "")


def look_at(path: str, timeout: float = 5.0) -> sqlite3.Connection:
    """A connection that changes and creates nothing, also on a file system that can't be written.

    Raises sqlite3.Error. What another program is writing at that moment is seen where SQLite can share it; where the
    folder can't be written nobody here writes.
    """
    uri = "file:" + _quoted(os.path.abspath(path))
    try:
        return _opened(f"{uri}?mode=ro", timeout)
    except sqlite3.OperationalError as err:
        if os.path.exists(path + "-wal") and os.path.getsize(path + "-wal"):
            raise  # rows stand in the log, which immutable would not see
        if "unable to open" not in str(err) and "readonly" not in str(err) and "disk" not in str(err):
            raise
    return _opened(f"{uri}?immutable=1", timeout)


def _opened(uri: str, timeout: float) -> sqlite3.Connection:
    conn = sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None)
    try:
        conn.execute("SELECT 1 FROM sqlite_master").fetchone()  # opening alone reads nothing
    except sqlite3.Error:
        conn.close()
        raise
    return conn


def _quoted(path: str) -> str:
    """A path as part of a URI: `?`, `#` and `%` would end or change it."""
    from urllib.parse import quote  # noqa: PLC0415 - not needed to write

    return quote(os.fsencode(path))
