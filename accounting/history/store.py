"""The history in SQLite: opening, the marks of a cluster, ids of names, rejects. Attempts are written by `bulk`.

sqlite-utils opens the file and runs the migrations; the bulk path uses its connection's executemany.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import hostlist
import sqlite_utils

from slurm_hook.common.errors import StoreError, UsageError
from slurm_hook.published.snapshot import hand_over

from ..sources import records
from . import schema
from .sqlite_words import BUSY_SECONDS, explain, look_at

_CACHE_SIZE = 100_000  # names of a kind
_LISTED = 100_000  # nodes in the node lists that are remembered
MAX_HOSTS = 65_536  # Slurm takes as many in one range and refuses more


def connect(path: str, *, create: bool = True) -> sqlite_utils.Database:
    """Open the history (made 0600 when new), migrated, WAL, foreign keys on. Raises StoreError with the mend."""
    if not create:
        _refuse_none(path)
    _refuse_other(path)
    try:
        _make_private(path)
        conn = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        _refuse_foreign(conn, path)
        conn.execute("PRAGMA foreign_keys = ON")
        if conn.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("PRAGMA synchronous = NORMAL")
        conn.execute("PRAGMA cache_size = -32768")
        db = sqlite_utils.Database(conn)
        _refuse_newer(db, path)
        if len(schema.MIGRATIONS) != _applied(db):
            with transaction(conn, path):
                schema.migrate(db)
    except (sqlite3.Error, OSError) as err:
        raise StoreError(explain(path, err)) from err
    return db


def connect_to_read(path: str) -> sqlite_utils.Database:
    """Open the history to look only: on a read-only copy, a full disk or beside a collector. Raises StoreError."""
    _refuse_none(path)
    _refuse_other(path)
    try:
        conn = look_at(path, BUSY_SECONDS)
        _refuse_foreign(conn, path)
        db = sqlite_utils.Database(conn)
        _refuse_newer(db, path)
        if len(schema.MIGRATIONS) != _applied(db):  # empty, or written by an older version: whoever may write mends it
            return connect(path, create=False)
    except (sqlite3.Error, OSError) as err:
        raise StoreError(explain(path, err)) from err
    return db


def _refuse_other(path: str) -> None:
    """A pipe would be waited for for ever."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise StoreError(f"{path}: not a file; name the history with --db or [history] path")


def clusters(db: Any) -> list[str]:
    """The clusters of a database by name: those that anything is known of, or else all."""
    rows = db.execute(
        "SELECT name, EXISTS (SELECT 1 FROM nodes WHERE cluster_id = c.id)"
        " OR EXISTS (SELECT 1 FROM attempts WHERE cluster_id = c.id) FROM clusters c ORDER BY name"
    ).fetchall()
    return [name for name, known in rows if known] or [name for name, _ in rows]


def the_cluster(db: Any, path: str, asked: str | None) -> str:
    """The cluster asked for, or the only one of the history. Raises UsageError or StoreError, naming those there are."""
    known = clusters(db)
    if not known:
        raise StoreError(f"{path}: nothing is collected yet; run `workhorse collect` first, or name another with --db")
    if asked is not None:
        every = [row[0] for row in db.execute("SELECT name FROM clusters").fetchall()]
        found = asked if asked in every else asked.lower()  # as Slurm has it
        if found not in every:
            raise UsageError(f"-M {asked}: no such cluster in {path}; it has {', '.join(known)}")
        return found
    if len(known) > 1:
        raise UsageError(f"{path} has the clusters {', '.join(known)}; name one with -M")
    return known[0]


def _refuse_none(path: str) -> None:
    """A file without a byte in it is no history either, and none is made of it by who only wants to read."""
    try:
        if os.stat(path).st_size:
            return
    except FileNotFoundError:
        pass
    except OSError as err:
        raise StoreError(explain(path, err)) from err
    raise StoreError(f"{path}: no history yet; run `workhorse collect` first, or name another with --db")


def _refuse_newer(db: Any, path: str) -> None:
    newer = schema.unknown(db)
    if newer:
        raise StoreError(f"{path}: written by a newer version (it has {', '.join(newer)}); update this one")


def _refuse_foreign(conn: sqlite3.Connection, path: str) -> None:
    """A database of another program never gets our tables."""
    tables = {row[0] for row in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and not {"_migrations", "attempts"} <= tables:
        raise StoreError(f"{path}: a database of another program (it has {sorted(tables)[0]}); name another with --db")


def _applied(db: Any) -> int:
    if "_migrations" not in db.table_names():
        return 0
    return db.execute("SELECT count(*) FROM _migrations").fetchone()[0]


def _make_private(path: str) -> None:
    """Other users' job names are in it: only its owner may read it."""
    folder = os.path.dirname(path)
    if folder and not os.path.isdir(folder):  # a mistyped path must not become a folder
        raise StoreError(f"{path}: there is no folder {folder}; make it, or name another file with --db or [history] path")
    try:  # never one that is there: to close it would drop the locks of any other connection of this process
        descriptor = os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileExistsError:
        return
    try:
        hand_over(descriptor, folder or ".")
    finally:
        os.close(descriptor)


@contextmanager
def transaction(conn: sqlite3.Connection, path: str = "") -> Iterator[None]:
    """All or nothing; SQLite's errors become StoreError, which names the file (as `path` where the user named it)."""
    try:
        conn.execute("BEGIN IMMEDIATE")
        try:
            yield
            conn.execute("COMMIT")
        except BaseException:
            if conn.in_transaction:
                conn.execute("ROLLBACK")
            raise
    except sqlite3.Error as err:
        raise StoreError(explain(path or conn.execute("PRAGMA database_list").fetchone()[2], err)) from err


class Counts(NamedTuple):
    """What a chunk or a run did. rows are rows of accounting, seen those understood."""

    attempts: int = 0
    new: int = 0
    changed: int = 0
    tasks: int = 0
    rejected: int = 0

    def __add__(self, other: Counts) -> Counts:  # type: ignore[override]
        return Counts(*[a + b for a, b in zip(self, other)])


def stored_text(text: str) -> str | bytes:
    """Text as it is stored: bytes that are not UTF-8 go in as a BLOB, so that the very same come out."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return records.raw_bytes(text)
    return text


def loaded_text(value: str | bytes | None) -> str:
    """The other way round."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value or ""


def expand_nodes(text: str) -> tuple[str, ...]:
    """Names of a node list, each once. Raises ValueError for what is no node list or too large."""
    if not text:
        return ()
    try:
        if not _HOSTS.fullmatch(text):  # names end in commands that people paste into a shell
            raise ValueError("a blank or a character that no host name has inside")
        if text.count("[") != text.count("]"):
            raise ValueError("brackets don't match")
        names = _expand_plain(text) or tuple(hostlist.expand_hostlist(text))
        if len(names) > MAX_HOSTS:
            raise ValueError(f"over {MAX_HOSTS} hosts")
        return names
    except (hostlist.BadHostlist, ValueError) as err:
        raise ValueError(f"node list {text[:80]!r}: {err}") from None


_HOSTS = re.compile(r"[A-Za-z0-9_.,\[\]-]+")
_PLAIN = re.compile(r"([A-Za-z0-9_.-]+)(?:\[([0-9,-]+)\])?")


def _expand_plain(text: str) -> tuple[str, ...]:
    """Names of the list that nearly every job has: one prefix, perhaps with ranges behind it. Empty for any other."""
    match = _PLAIN.fullmatch(text)
    if match is None:
        return ()
    prefix, ranges = match.groups()
    if ranges is None:
        return (text,)
    names: list[str] = []
    for part in ranges.split(","):
        low, dash, high = part.partition("-")
        if not low or "-" in high or (dash and not high) or len(low) > 9 or len(high) > 9:
            return ()
        first, last = int(low), int(high or low)
        if last < first or last - first >= MAX_HOSTS:
            return ()
        width = len(low)
        names += [f"{prefix}{number:0{width}d}" for number in range(first, last + 1)]
        if len(names) > MAX_HOSTS:
            return ()
    return tuple(dict.fromkeys(names))


class Nodes(NamedTuple):
    """The nodes of a node list in its order: names and ids."""

    names: tuple[str, ...]
    ids: tuple[int, ...]


class Store:
    """One cluster's part of the history."""

    def __init__(self, db: sqlite_utils.Database, path: str, cluster: str) -> None:
        self.db, self.path, self.cluster = db, path, cluster
        self.conn: sqlite3.Connection = db.conn
        # ids come from the tables themselves; checking each of millions of rows again costs a tenth of the time
        self.conn.execute("PRAGMA foreign_keys = OFF")
        self._names: dict[str, dict[Any, int]] = {"users": {}, "states": {}, "works": {}, "nodes": {}}
        self._nodes_of: dict[str, Nodes] = {}
        self._listed = 0
        self.text = records.Memo(stored_text)
        if not cluster.isprintable():
            raise UsageError(f"{cluster!r} can't be the name of a cluster; name it with -M")
        with transaction(self.conn, path):
            self.conn.execute("INSERT OR IGNORE INTO clusters (name) VALUES (?)", (cluster,))
        self.cluster_id: int = self._one("SELECT id FROM clusters WHERE name = ?", (cluster,))

    def _one(self, sql: str, values: Sequence[Any] = ()) -> Any:
        row = self.conn.execute(sql, values).fetchone()
        return row[0] if row else None

    # high-water mark
    def high_water(self) -> int | None:
        """Accounting is read up to here; None before the first run."""
        return self._one("SELECT high_water FROM clusters WHERE id = ?", (self.cluster_id,))

    def distrust_marks(self, until: int) -> None:
        """Set marks back that a wrong clock left: what lies after `until` is to be read again."""
        with transaction(self.conn, self.path):
            self.conn.execute(
                "UPDATE clusters SET high_water = ?, deep_read = NULL, backfill_start = NULL, backfill_end = NULL,"
                " backfill_next = NULL WHERE id = ?",
                (until, self.cluster_id),
            )

    def set_high_water(self, until: int) -> None:
        """Advance the mark; it never goes back."""
        with transaction(self.conn, self.path):
            self.conn.execute(
                "UPDATE clusters SET high_water = max(coalesce(high_water, 0), ?) WHERE id = ?", (until, self.cluster_id)
            )

    def value_of(self, sql: str, *values: Any) -> Any:
        """The one value that a query gives; its first parameter is this cluster."""
        return self._one(sql, (self.cluster_id, *values))

    def value(self, column: str) -> int | None:
        """A column of this cluster's row."""
        return self._one(f"SELECT {column} FROM clusters WHERE id = ?", (self.cluster_id,))  # noqa: S608

    def set_deep_read(self, now: int) -> None:
        """Note that a longer stretch was read again."""
        with transaction(self.conn, self.path):
            self.conn.execute("UPDATE clusters SET deep_read = ? WHERE id = ?", (now, self.cluster_id))

    def open_jobs(self, before: int) -> list[tuple[int, int]]:
        """(Raw id, submit) of attempts that may still change and were submitted before a time: they may have ended by now."""
        sql = "SELECT job_id, min(submit) FROM attempts WHERE cluster_id = ? AND is_open = 1 AND submit < ? AND job_id > 0"
        return self.conn.execute(sql + " GROUP BY job_id ORDER BY 2", (self.cluster_id, before)).fetchall()

    def next_attempt_id(self) -> int:
        """The number of the next attempt of any cluster."""
        return int(self._one("SELECT coalesce(max(id), 0) FROM attempts")) + 1

    # ids of names
    def listed_nodes(self, node_list: str) -> Nodes:
        """Names and ids of a node list, remembered. Raises ValueError."""
        found = self._nodes_of.get(node_list)
        if found is None:
            names = expand_nodes(node_list)
            self._listed += len(names)
            if self._listed > _LISTED:
                self._nodes_of.clear()
                self._listed = len(names)
            found = self._nodes_of[node_list] = Nodes(names, tuple([self.node_id(name) for name in names]))
        return found

    def forget_names(self) -> None:
        """Forget the ids of names: those given out in a transaction that was rolled back aren't there."""
        for known in self._names.values():
            known.clear()
        self._nodes_of.clear()

    def _id(self, table: str, name: str) -> int:
        known = self._names[table]
        number = known.get(name)
        if number is None:
            value = stored_text(name)
            made = self.conn.execute(f"INSERT OR IGNORE INTO {table} (name) VALUES (?)", (value,))  # noqa: S608
            number = self._made(made) or self._one(f"SELECT id FROM {table} WHERE name = ?", (value,))  # noqa: S608
            self._remember(table, name, number)
        return number

    @staticmethod
    def _made(cursor: sqlite3.Cursor) -> int | None:
        """Id of the row that an INSERT OR IGNORE made, None where there was one: it need not be looked for."""
        return cursor.lastrowid if cursor.rowcount == 1 else None

    def _remember(self, table: str, key: Any, number: int) -> int:
        if len(self._names[table]) >= _CACHE_SIZE:
            self._names[table].clear()
        self._names[table][key] = number
        return number

    def state_id(self, name: str) -> int:
        """Id of a state word; it is made known if it isn't yet."""
        return self._names["states"].get(name) or self._id("states", name)

    def work_id(self, user: str, name: str) -> int:
        """Id of a kind of work, a user's jobs of one name; it is made known if it isn't yet."""
        number = self._names["works"].get((user, name))
        if number is None:
            key = (self._id("users", user), stored_text(name))
            made = self.conn.execute("INSERT OR IGNORE INTO works (user_id, name) VALUES (?, ?)", key)
            number = self._made(made) or self._one("SELECT id FROM works WHERE user_id = ? AND name = ?", key)
            self._remember("works", (user, name), number)
        return number

    def node_id(self, name: str) -> int:
        """Id of a node; it is made known if it isn't yet."""
        number = self._names["nodes"].get(name)
        if number is None:
            key = (self.cluster_id, stored_text(name))
            made = self.conn.execute("INSERT OR IGNORE INTO nodes (cluster_id, name) VALUES (?, ?)", key)
            number = self._made(made) or self._one("SELECT id FROM nodes WHERE cluster_id = ? AND name = ?", key)
            self._remember("nodes", name, number)
        return number

    def add_rejects(self, source: str, rejects: Sequence[records.Reject], now: int) -> None:
        """Keep what could not be understood, each once."""
        rows = [
            (self.cluster_id, now, source, r.reason[:500], stored_text(r.text[:4000]), records.digest(r.reason + r.text))
            for r in rejects
        ]
        with transaction(self.conn, self.path):
            self.conn.executemany(
                "INSERT INTO rejects (cluster_id, seen, source, reason, text, digest) VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (cluster_id, digest) DO UPDATE SET seen = excluded.seen",
                rows,
            )
