"""Collecting: sources → store, in bounded windows. Each chunk is whole, progress is noted only after success."""

from __future__ import annotations

import fcntl
import gc
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

import sqlite_utils

from slurm_hook.common.errors import BusyError, InputError, StoreError
from slurm_hook.published.snapshot import hand_over

from ..sources import converters, records, sacct
from . import bulk_writer, schema
from .store import Counts, Store, clusters, transaction

HOUR = 3600
DAY = 86_400
CLOCKS_APART = 300  # s; clocks of hosts may differ by this much
# s; slurmdbd leaves a job out of every window until slurmctld has told it when the job became eligible. For a job that ran
# as soon as it was submitted that is some seconds after its end (seen: 4 s, on a calm cluster).
SETTLING = 600


@contextmanager
def one_at_a_time(path: str) -> Iterator[None]:
    """Hold the lock of a database while writing. Raises BusyError at once when another process has it.

    The kernel drops the lock with the process, so a killed run leaves none behind. It lies beside the file itself, whatever
    links lead there, and is never one: in a folder of others a link could name any file, which would be cut.
    """
    lock = os.path.realpath(path) + ".lock"
    try:
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as err:
        raise StoreError(f"{lock}: can't be opened ({err.strerror}); run as the database's owner") from err
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise StoreError(f"{lock}: no plain file of its own; remove it")
        hand_over(descriptor, os.path.dirname(lock))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            raise BusyError(f"{path}: another run (process {who or '?'}) is writing; try again when it is done") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


class Stores:
    """The clusters of one database; rows that don't name theirs belong to `default`."""

    def __init__(self, db: sqlite_utils.Database, path: str, default: str) -> None:
        self._db, self._path, self.default = db, path, default
        self.all: dict[str, Store] = {}
        self.reason = ""  # why the first row was set aside

    def __getitem__(self, cluster: str) -> Store:
        name = cluster or self.default
        if name not in self.all:
            self.all[name] = Store(self._db, self._path, name)
        return self.all[name]

    @property
    def first(self) -> Store:
        """The first cluster that had rows, or else the default: whose rejects are those of rows that name none."""
        return next(iter(self.all.values()), None) or self[""]

    @property
    def only(self) -> str:
        """The cluster of a history that has one, else "": a dump without names that comes later is of the same."""
        known = clusters(self._db)
        return known[0] if len(known) == 1 else ""

    def finish(self) -> None:
        """Make the indices that the first large import does without."""
        with transaction(self._db.conn, self._path):
            for statement in schema.INDICES:
                self._db.conn.execute(statement)


def store_rows(
    stores: Stores, header: Sequence[str], rows: Iterable[list[str]], *, source: str, times: converters.Times | None = None,
    private: bool = False,
) -> Counts:  # fmt: skip
    """Write all rows of one source. Returns counts. Raises InputError when the header lacks what is needed.

    private: the source has free text that may not be kept; of what can't be understood only the job's number is told.
    """
    try:
        reader = records.Reader(header, times=times, cluster=stores.default)
    except ValueError as err:
        raise InputError(f"{source}: {err}; needed are JobIDRaw (or JobID), Submit and State") from err
    rejects: list[records.Reject] = []

    def reject(aside: records.Reject) -> None:
        rejects.append(records.withheld(aside) if private else aside)

    writers: dict[str, bulk_writer.Writer] = {}
    total = Counts()
    groups = reader.groups(rows, reject)
    with no_cycle_search():
        while some := list(islice(groups, bulk_writer.AT_ONCE)):
            for cluster, mine in by_cluster(some).items():
                if cluster not in writers:
                    writers[cluster] = bulk_writer.Writer(stores[cluster], reader, reject)
                writers[cluster].add(mine)
            total += keep_rejects(stores, source, rejects)
        for writer in writers.values():
            writer.finish()
            total += writer.counts
    return total + keep_rejects(stores, source, rejects)


def by_cluster(groups: Sequence[records.Group]) -> dict[str, list[records.Group]]:
    """Groups under the cluster that they name."""
    found: dict[str, list[records.Group]] = {}
    for group in groups:
        found.setdefault(group.cluster, []).append(group)
    return found


@contextmanager
def no_cycle_search() -> Iterator[None]:
    """Python's search for reference cycles off: millions of tuples, and no cycle among them, would be searched in vain."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def keep_rejects(stores: Stores, source: str, rejects: list[records.Reject]) -> Counts:
    """Write what was set aside and empty the list."""
    count = len(rejects)
    if count:
        stores.reason = stores.reason or rejects[0].reason
        stores.first.add_rejects(source, rejects, int(time.time()))
        rejects.clear()
    return Counts(rejected=count)


def windows(start: int, end: int, hours: int) -> Iterator[tuple[int, int]]:
    """Consecutive stretches of at most `hours` from start to end."""
    while start < end:
        stop = min(start + hours * HOUR, end)
        yield start, stop
        start = stop


class Source(NamedTuple):
    """How accounting is read: for one window (start, end), or again for some jobs from a time on; returns counts."""

    window: Callable[[int, int], Counts]
    jobs: Callable[[Sequence[int], int, int], Counts]


def from_sacct(stores: Stores, timeout: float, cluster: str = "") -> Source:
    """sacct as the source. Raises SlurmError when it can't be run at all."""
    fields = sacct.known_fields(timeout)

    def window(start: int, end: int) -> Counts:
        query = sacct.Query(start, end, cluster=cluster, timeout=timeout, fields=fields)
        return store_rows(stores, query.fields, query.rows(), source="sacct")

    def jobs(ids: Sequence[int], start: int, end: int) -> Counts:
        query = sacct.Query(start, end, cluster=cluster, jobs=ids, timeout=timeout, fields=fields)
        return store_rows(stores, query.fields, query.rows(), source="sacct")

    return Source(window, jobs)


def read_window(source: Source, start: int, end: int) -> Counts:
    """One window; halved (down to an hour) where slurmdbd can't answer it as a whole."""
    try:
        return source.window(start, end)
    except sacct.SlurmTimeout:
        if end - start <= HOUR:
            raise
        middle = (start + end) // 2
        return read_window(source, start, middle) + read_window(source, middle, end)


def update(
    store: Store, source: Source, start: int, end: int, *, hours: int, done: Callable[[int], None] = lambda high: None,
    begins: bool = True,
) -> Counts:  # fmt: skip
    """Read [start, end] window by window, then again what was still open before it. `done` is told each window's end.

    The high-water mark follows each window that joins what was read before; where there is none yet, only if `begins`.
    """
    total = Counts()
    for low, high in windows(start, end, hours):
        total += read_window(source, low, high)
        mark = store.high_water()
        if begins if mark is None else low <= mark:
            store.set_high_water(high)
        done(high)
    for ids, since in still_open(store, start):
        total += source.jobs(ids, since, end)
    return total


def still_open(store: Store, before: int) -> Iterator[tuple[Sequence[int], int]]:
    """Jobs submitted before a time that may have changed since they were read, in lists that one call can take."""
    jobs = store.open_jobs(before)
    for some in sacct.by_ids(jobs):
        yield [job for job, _ in some], min(submit for _, submit in some) - 1


def from_the_future(store: Store, now: int) -> int | None:
    """The mark of a run whose clock was ahead, None where all marks can be."""
    marks = [store.value(name) or 0 for name in ("high_water", "deep_read", "backfill_next")]
    return max(marks) if max(marks) > now + CLOCKS_APART else None


def next_start(store: Store, now: int, *, overlap_hours: int, deep_hours: int, first_days: int) -> int:
    """Where the next plain collect begins: before the high-water mark, once a day well before it.

    Marks that lie in the future are taken back: what has been read up to then can't be known, so it is the deep stretch.
    """
    if from_the_future(store, now) is not None:
        store.distrust_marks(now - max(deep_hours, overlap_hours, 1) * HOUR)
    mark = store.high_water()
    if mark is None:
        return now - first_days * DAY
    deep = store.value("deep_read") or 0
    start = min(mark, now) - max(overlap_hours * HOUR, SETTLING)
    if now - deep >= DAY and deep_hours > overlap_hours:
        return min(start, now - deep_hours * HOUR)
    return start


class Backfill:
    """Progress of `collect -S`, kept so that an interrupted one goes on where it was."""

    def __init__(self, store: Store, start: int, end: int, *, resume: bool = True) -> None:
        self._store = store
        self.start = start
        old = store.value("backfill_start")
        after = store.value("backfill_next")
        # "now-90days" is a later second each time: the same stretch within a day. One that begins earlier has not been read
        if resume and old is not None and after is not None and old <= start <= old + DAY and old < after < end:
            self.start = after
        self.resumed = self.start != start
        self._note(old if self.resumed else start, end, self.start)

    def _note(self, start: int | None, end: int | None, after: int | None) -> None:
        with transaction(self._store.conn, self._store.path):
            self._store.conn.execute(
                "UPDATE clusters SET backfill_start = ?, backfill_end = ?, backfill_next = ? WHERE id = ?",
                (start, end, after, self._store.cluster_id),
            )

    def reached(self, high: int) -> None:
        """A window is done."""
        with transaction(self._store.conn, self._store.path):
            self._store.conn.execute("UPDATE clusters SET backfill_next = ? WHERE id = ?", (high, self._store.cluster_id))

    def finished(self) -> None:
        """All is read: the next one begins anew."""
        self._note(None, None, None)
