"""Attempts and tasks of the window out of the database: blocks that didn't change since are kept as columns.

Nearly all that a nightly run reads is what the night before read: reading rows costs several times what scoring them does.
A block is a stretch of attempt ids; triggers of the schema drop it whenever one of its attempts is written or removed, so
that what is kept is what reading the rows would give.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .schema import BLOCK_BITS
from .store import transaction

_FETCHED = 65_536
_AT_ONCE = 16  # blocks settled in one transaction: a collector waits for less than a second

_NUMBERS, _NAMES = ("id", "job_id", "submit"), ("user", "work", "parent", "state", "code", "signal", "start", "end", "limit")
_ATTEMPT_COLUMNS: dict[str, Any] = {**dict.fromkeys(_NUMBERS, np.int64), **dict.fromkeys(_NAMES, np.float64)}
_TASK_COLUMNS = {"attempt": np.int64, "node": np.int32, "mem": np.float64, "gpus": np.float64}
_IN_BLOCKS = "a.cluster_id = ? AND a.start IS NOT NULL AND a.id BETWEEN ? AND ?"
_IN_WINDOW = " AND (a.end > ? OR a.end IS NULL) AND a.start < ?"

Columns = dict[str, Any]


class Rows(NamedTuple):
    """attempts: a column each, by id; tasks: node (database id), mem, gpus, and `at`: position of the attempt. Tasks are
    ordered by attempt and node."""

    attempts: Columns
    tasks: Columns


class Window(NamedTuple):
    """cluster_id and the stretch (epoch seconds): attempts that ended after `start`, or still run, and began before `as_of`."""

    cluster_id: int
    start: float
    as_of: float


def read(db: Any, window: Window, *, kept: bool = True) -> Rows:
    """All attempts of a window that ran, and their tasks. kept False: from the rows alone, whatever is kept of them."""
    blocks = _blocks(db, window)
    known = _kept(db, window.cluster_id) & set(blocks) if kept else set()
    parts = []
    for low, high in _runs([number for number in blocks if number not in known]):
        parts.append((low, _from_rows(db, window, low, high)))
    parts += [(number, _in_window(_load(db, window.cluster_id, number), window)) for number in known]
    return _joined([rows for _, rows in sorted(parts, key=lambda part: part[0])])


def settle(db: Any, window: Window) -> int:
    """Keep every block of the window that has all its attempts and isn't kept yet; forget those that left the window.

    Returns how many were made. Each few in a transaction of their own, so that nobody changes what is being read.
    """
    blocks = set(_blocks(db, window))
    newest = (db.execute("SELECT coalesce(max(id), 0) FROM attempts").fetchone()[0] + 1) >> BLOCK_BITS
    kept = _kept(db, window.cluster_id)
    with transaction(db.conn):
        gone = [(window.cluster_id, number) for number in kept - blocks]
        db.conn.executemany("DELETE FROM settled WHERE cluster_id = ? AND block = ?", gone)
    missing = sorted(number for number in blocks - kept if number < newest)
    for at in range(0, len(missing), _AT_ONCE):
        with transaction(db.conn):
            for number in missing[at : at + _AT_ONCE]:
                rows = _from_rows(db, window._replace(start=-np.inf, as_of=np.inf), number, number)
                db.execute("INSERT OR REPLACE INTO settled VALUES (?, ?, ?)", (window.cluster_id, number, _packed(rows)))
    return len(missing)


def forget(db: Any, cluster_id: int) -> None:
    """Drop what is kept of a cluster."""
    with transaction(db.conn):
        db.execute("DELETE FROM settled WHERE cluster_id = ?", (cluster_id,))


def _blocks(db: Any, window: Window) -> list[int]:
    """Blocks that have attempts of the window, ascending."""
    rows = db.execute(
        "SELECT id >> ?1 FROM attempts WHERE cluster_id = ?2 AND end > ?3 UNION"
        " SELECT id >> ?1 FROM attempts WHERE cluster_id = ?2 AND end IS NULL AND start < ?4",
        (BLOCK_BITS, *window),
    )
    return sorted(row[0] for row in rows)


def _kept(db: Any, cluster_id: int) -> set[int]:
    return {row[0] for row in db.execute("SELECT block FROM settled WHERE cluster_id = ?", (cluster_id,))}


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each stretch of numbers without a gap."""
    first = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[first], numbers[i - 1]
            first = i


def _from_rows(db: Any, window: Window, low: int, high: int) -> Rows:
    """Blocks low to high, of the window. NOT INDEXED: by id, not over the ends of the whole window."""
    values: tuple[Any, ...] = (window.cluster_id, low << BLOCK_BITS, ((high + 1) << BLOCK_BITS) - 1)
    where = _IN_BLOCKS
    if np.isfinite(window.start):
        where, values = where + _IN_WINDOW, (*values, window.start, window.as_of)
    attempts = read_columns(
        db.execute(
            "SELECT a.id, a.job_id, a.submit, w.user_id, a.work_id, coalesce(a.array_job, a.het_job, -1), a.state_id,"  # noqa: S608
            " a.exit_code, a.exit_signal, a.start, a.end, a.limit_minutes FROM attempts a NOT INDEXED JOIN works w"
            f" ON w.id = a.work_id WHERE {where} ORDER BY a.id",
            values,
        ),
        _ATTEMPT_COLUMNS,
    )
    # a task begins and ends with its attempt, so that these aren't read again
    tasks = read_columns(
        db.execute(
            "SELECT t.attempt_id, t.node_id, t.mem_mib, t.gpus FROM attempts a NOT INDEXED CROSS JOIN tasks t"  # noqa: S608
            f" ON t.attempt_id = a.id WHERE {where}",
            values,
        ),
        _TASK_COLUMNS,
    )
    at: Any = np.searchsorted(attempts["id"], tasks.pop("attempt")).astype(np.int32)
    order: Any = np.argsort(at, kind="stable")
    return Rows(attempts, {"at": at[order], **{name: column[order] for name, column in tasks.items()}})


def read_columns(cursor: Iterable[Sequence[Any]], columns: Mapping[str, Any]) -> Columns:
    """All rows of a cursor as one array per column (name → type), NULL as NaN. Whole numbers up to 2^53 come out exact."""
    blocks: dict[str, list[NDArray[Any]]] = {name: [] for name in columns}
    fetch = cursor.fetchmany  # type: ignore[attr-defined]
    while rows := fetch(_FETCHED):
        table = np.array(rows, dtype=np.float64)
        for i, (name, kind) in enumerate(columns.items()):
            blocks[name].append(table[:, i].astype(kind))
    return {name: np.concatenate([np.zeros(0, kind), *blocks.pop(name)]) for name, kind in columns.items()}


_TASKS_KEPT: dict[str, Any] = {"at": np.int32, "node": np.int32, "mem": np.float64, "gpus": np.float64}


def _packed(rows: Rows) -> bytes:
    """Both counts, then column by column."""
    counts = np.array([len(rows.attempts["id"]), len(rows.tasks["at"])], np.int64)
    columns = [*(rows.attempts[name] for name in _ATTEMPT_COLUMNS), *(rows.tasks[name] for name in _TASKS_KEPT)]
    return zlib.compress(b"".join(column.tobytes() for column in (counts, *columns)), 1)


def _load(db: Any, cluster_id: int, number: int) -> Rows:
    data = db.execute("SELECT data FROM settled WHERE cluster_id = ? AND block = ?", (cluster_id, number)).fetchone()[0]
    data, at = zlib.decompress(data), 16
    tables: list[Columns] = []
    for count, kinds in zip(np.frombuffer(data, np.int64, 2).tolist(), (_ATTEMPT_COLUMNS, _TASKS_KEPT)):
        tables.append({})
        for name, kind in kinds.items():
            tables[-1][name] = np.frombuffer(data, kind, count, at)
            at += count * np.dtype(kind).itemsize
    return Rows(*tables)


def _in_window(rows: Rows, window: Window) -> Rows:
    attempts, tasks = rows
    inside = ~(attempts["end"] <= window.start) & (attempts["start"] < window.as_of)
    if inside.all():
        return rows
    number = np.cumsum(inside, dtype=np.int32) - 1
    mine = inside[tasks["at"]]
    kept = {name: column[mine] for name, column in tasks.items()}
    return Rows({name: column[inside] for name, column in attempts.items()}, {**kept, "at": number[kept["at"]]})


def _joined(parts: Sequence[Rows]) -> Rows:
    before = np.cumsum([0, *[len(rows.attempts["id"]) for rows in parts]])
    attempts = {n: np.concatenate([np.zeros(0, kind), *[p.attempts[n] for p in parts]]) for n, kind in _ATTEMPT_COLUMNS.items()}
    tasks = {n: np.concatenate([np.zeros(0, kind), *[p.tasks[n] for p in parts]]) for n, kind in _TASKS_KEPT.items()}
    tasks["at"] += np.repeat(before[:-1], [len(rows.tasks["at"]) for rows in parts]).astype(np.int32)
    return Rows(attempts, tasks)
