"""Retention: what is older than [history] keep_days goes, the file shrinks."""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple

from slurm_hook.common.errors import StoreError

from .store import explain, transaction

_AT_ONCE = 20_000


class Pruned(NamedTuple):
    """Rows removed."""

    attempts: int
    events: int
    rejects: int


def prune(db: Any, path: str, cutoff: int) -> Pruned:
    """Remove attempts that ended (or were last submitted) before the cutoff, with tasks and steps; old events and rejects.

    Attempts that may still run, marks of repairs and inventory stay. In steps, so that no other program waits long.
    """
    conn: sqlite3.Connection = db.conn
    attempts = 0
    while True:
        with transaction(conn, path):
            gone = conn.execute(
                "DELETE FROM attempts WHERE id IN (SELECT id FROM attempts WHERE is_open = 0"
                " AND coalesce(end, start, submit) < ? LIMIT ?)",
                (cutoff, _AT_ONCE),
            ).rowcount
        attempts += gone
        if gone < _AT_ONCE:
            break
    with transaction(conn, path):
        conn.execute("CREATE TEMP TABLE IF NOT EXISTS used_works AS SELECT DISTINCT work_id FROM attempts")
    conn.execute("PRAGMA foreign_keys = OFF")  # else each removed name would be looked for in all attempts
    try:
        with transaction(conn, path):
            conn.execute("DELETE FROM works WHERE id NOT IN (SELECT work_id FROM used_works)")
            conn.execute("DELETE FROM users WHERE id NOT IN (SELECT user_id FROM works)")
            conn.execute("DROP TABLE used_works")
            events = conn.execute("DELETE FROM node_events WHERE end < ?", (cutoff,)).rowcount
            rejects = conn.execute("DELETE FROM rejects WHERE seen < ?", (cutoff,)).rowcount
            conn.execute(
                "DELETE FROM job_marks WHERE NOT EXISTS (SELECT 1 FROM attempts a WHERE a.cluster_id = job_marks.cluster_id"
                " AND a.job_id = job_marks.job_id AND a.submit = job_marks.submit)"
            )
    finally:
        conn.execute("PRAGMA foreign_keys = ON")
    return Pruned(attempts, events, rejects)


def vacuum(db: Any, path: str) -> None:
    """Give the freed pages back to the file system, renew the planner's figures. Raises StoreError (disk full, locked)."""
    try:
        db.conn.execute("VACUUM")
        db.conn.execute("ANALYZE")
        db.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as err:
        raise StoreError(explain(path, err)) from err
