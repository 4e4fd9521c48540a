"""Attempts into the database in bulk: groups of rows → attempts, tasks and steps, a chunk in one transaction.

After a crash the database holds whole chunks, and reading them again changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..sources import records
from .earlier import Earlier
from .members import Key, Members, Old
from .store import Counts, Store, stored_text, transaction

CHUNK = 4000  # attempts a transaction
AT_ONCE = 100  # groups taken together: few enough that the processor's cache holds them

# sqlite3 searches long for how to adapt what is neither number nor text; told at once, a None costs a third
sqlite3.register_adapter(type(None), {}.get)  # type: ignore[arg-type]  # None stays None
sqlite3.register_adapter(bytes, bytes)

_COLUMNS = (
    "id", "cluster_id", "job_id", "submit", "digest", "is_open", "label", "work_id", "account", "partition", "qos", "state_id",
    "exit_code", "exit_signal", "derived_code", "derived_signal", "eligible", "start", "end", "elapsed", "limit_minutes",
    "nnodes", "cpus", "mem_mib", "gpus", "gpu_type", "node_list", "nsteps", "flags",
)  # fmt: skip
_RARE = ("array_job", "array_task", "het_job", "het_offset", "cancelled_by", "failed_node", "restarts")
_NO_RARE = (None,) * len(_RARE)


def _insert_into_attempts(columns: Sequence[str]) -> str:
    return f"INSERT INTO attempts ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608


_INSERT_PLAIN, _INSERT = _insert_into_attempts(_COLUMNS), _insert_into_attempts(_COLUMNS + _RARE)
_UPSERT = f"{_INSERT} ON CONFLICT (id) DO UPDATE SET {', '.join(f'{c} = excluded.{c}' for c in _COLUMNS[4:] + _RARE)}"
_INSERT_TASK = "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_STEP = f"INSERT OR REPLACE INTO steps VALUES ({', '.join('?' * 15)})"  # noqa: S608


class _Pending(NamedTuple):
    """An attempt to be written. `old`: its id where the database has an older record of it; `stand_in`: id of that without
    Slurm's own number, where there is one."""

    old: int | None
    digest: bytes
    attempt: records.Attempt
    stand_in: int | None = None


class Writer:
    """Writes what one source tells of one cluster. What is added is there after `finish`, or earlier in whole chunks."""

    def __init__(self, store: Store, reader: records.Reader, reject: Callable[[records.Reject], None]) -> None:
        self._store, self._reader, self._reject = store, reader, reject
        self._pending: dict[Key, _Pending] = {}
        self._members = Members(store)
        self._earlier = Earlier(store, reader.lacking)
        self.counts = Counts()

    def add(self, groups: Sequence[records.Group]) -> None:
        """Take groups. What the database has as it is isn't even converted; of an attempt told twice the last counts,
        but for one that still runs after one that ended."""
        unique = {(g.job_id, g.submit): g for g in groups}
        if len(unique) < len(groups):
            unique |= {(g.job_id, g.submit): g for g in groups if not g.waits_or_runs}
        if self._members.some or min(unique)[0] < 0:
            self._add_members(unique)
        else:
            self._take(unique, self._known(unique))
        self.counts += Counts(len(unique))
        if len(self._pending) >= CHUNK:
            self.finish()

    def _add_members(self, unique: Mapping[Key, records.Group]) -> None:
        """The same where Slurm's own number of some member of an array or het job isn't known."""
        members = self._members
        if not members.some:  # of what is pending so far nobody noted the names
            self.finish()
            members.some = True
        if members.once(unique):
            self._take(*members.found(unique, self._known(unique)))
            if members.remembered >= 4 * CHUNK:  # a dump whose rows are all known would fill the memory with their names
                self.finish()
            return
        self.finish()
        for key, group in unique.items():  # each finds what was told before it
            self._take(*members.found({key: group}, self._known({key: group})))
            self.finish()

    def _take(self, unique: Mapping[Key, records.Group], known: Mapping[Key, Old]) -> None:
        for key, group in unique.items():
            old, digest, stand_in = known.get(key, (None, None, None))
            as_it_was = digest == group.digest and stand_in is None
            before = self._pending.get(key)
            if as_it_was and before is None:
                continue
            try:
                attempt = self._reader.attempt(group)
            except ValueError as err:
                self._reject(records.Reject(str(err), records.kept_text(group.job)))
                continue
            if before is not None and attempt.is_open and not before.attempt.is_open:
                continue  # of two looks at one attempt the older one
            news = not as_it_was
            if news and old is not None:
                attempt, news = self._earlier.kept(attempt, old)
            if news or stand_in is not None:
                self._pending[key] = _Pending(old, group.digest, attempt, stand_in)
            else:
                self._pending.pop(key, None)

    def finish(self) -> None:
        """Write what is pending, in one transaction."""
        self._members.written()
        if not self._pending:
            return
        pending, self._pending = list(self._pending.values()), {}
        store = self._store
        try:
            with transaction(store.conn, store.path):
                self.counts += self._write(pending)
        except BaseException:
            store.forget_names()  # ids given out in a transaction that is gone
            raise

    def _write(self, pending: Sequence[_Pending]) -> Counts:
        first_new = next_id = self._store.next_attempt_id()
        plain: list[Any] = []  # attempts without what is rare, which is most of them: a third fewer values each
        others: list[Any] = []
        tasks: list[Any] = []
        steps: list[Any] = []
        changed = [(p.old,) for p in pending if p.old is not None]
        for old, digest, attempt, stand_in in pending:
            if stand_in is not None and old is not None:
                self._members.replace(stand_in, old, attempt)
            number = old
            if number is None:
                number, next_id = next_id, next_id + 1
            row, rare = self._rows(number, digest, attempt, tasks, steps)
            if old is None and rare == _NO_RARE:
                plain.append(row)
            else:
                others.append(row + rare)
        self._insert(plain, others, tasks, steps, changed)
        self._seen(first_new, changed)
        return Counts(0, len(pending) - len(changed), len(changed), len(tasks))

    def _insert(self, plain: list[Any], others: list[Any], tasks: list[Any], steps: list[Any], changed: list[tuple[int]]) -> None:
        conn = self._store.conn
        if changed:
            conn.executemany("DELETE FROM tasks WHERE attempt_id = ?", changed)
            conn.executemany("DELETE FROM steps WHERE attempt_id = ?", changed)
        conn.executemany(_INSERT_PLAIN, plain)
        conn.executemany(_UPSERT if changed else _INSERT, others)
        conn.executemany(_INSERT_TASK, tasks)
        conn.executemany(_INSERT_STEP, steps)

    def _seen(self, first_new: int, changed: Sequence[tuple[int]]) -> None:
        """Widen the time in which nodes are known to have been there by the tasks of new and changed attempts."""
        update = (
            "UPDATE nodes SET first_seen = min(coalesce(first_seen, t.first), t.first),"
            " last_seen = max(coalesce(last_seen, t.last), t.last) FROM (SELECT node_id, min(start) AS first,"
            " max(coalesce(end, start)) AS last FROM tasks WHERE {} GROUP BY +node_id) t WHERE nodes.id = t.node_id"
        )
        conn = self._store.conn
        conn.execute(update.format("attempt_id >= ?"), (first_new,))  # +: by key, not over the index of all nodes
        conn.executemany(update.format("attempt_id = ?"), changed)

    def _known(self, unique: Mapping[Key, records.Group]) -> dict[Key, tuple[int, bytes, None]]:
        """Attempts of these that are there: key → id, digest (and no stand-in). One range query where the numbers lie close."""
        conn, cluster = self._store.conn, self._store.cluster_id
        low, high = min(unique)[0], max(unique)[0]
        sql = "SELECT job_id, submit, id, digest FROM attempts WHERE cluster_id = ? AND "
        if high - low <= 20 * len(unique):
            rows = conn.execute(sql + "job_id BETWEEN ? AND ?", (cluster, low, high)).fetchall()
        else:
            rows = [r for key in unique for r in conn.execute(sql + "job_id = ? AND submit = ?", (cluster, *key))]
        return {(job, submit): (number, digest, None) for job, submit, number, digest in rows}

    def _rows(
        self, attempt_id: int, digest: bytes, a: records.Attempt, tasks: list[Any], steps: list[Any]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The table row of an attempt, what is rare in it apart; the rows of its tasks and steps go to the lists."""
        store, flags = self._store, a.flags
        try:
            names, ids = store.listed_nodes(a.node_list)
        except ValueError as err:
            self._reject(records.Reject(f"{err}; the attempt is kept without nodes", f"JobID={a.label}"))
            names, ids, flags = (), (), flags | records.BAD_NODE_LIST
        start, end, text = a.start, a.end, store.text
        if start is not None:
            tasks += [(attempt_id, node, start, end, *task) for node, task in zip(ids, records.tasks(a, names))]
        for step in a.steps:
            name = stored_text(step.step), stored_text(step.name)
            steps.append((attempt_id, *name, store.state_id(step.state), *step[3:]))
        row = (
            attempt_id, store.cluster_id, a.job_id, a.submit, digest, int(a.is_open), stored_text(a.label),
            store.work_id(a.user, a.name), text[a.account], text[a.partition], text[a.qos], store.state_id(a.state),
            *a[15:29], text[a.node_list], a.nsteps, flags,
        )  # fmt: skip
        return row, (*a[4:8], a.cancelled_by, a.failed_node, a.restarts)
