"""Collecting: sources → store, in bounded windows. Each chunk is whole, progress is noted only after success."""

from __future__ import annotations

import fcntl
import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from slurm_hook.errors import BusyError, InputError

from . import convert, records, sacct
from .store import CHUNK, Counts, Store

HOUR = 3600


@contextmanager
def one_at_a_time(path: str) -> Iterator[None]:
    """Hold the lock of a database while collecting. Raises BusyError at once when another process has it.

    The kernel drops the lock with the process, so a killed run leaves none behind.
    """
    descriptor = os.open(path + ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
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


def store_rows(
    store: Store, header: Sequence[str], rows: Iterable[list[str]], *, source: str, times: convert.Times | None = None
) -> Counts:
    """Write all rows of one source. Returns counts. Raises InputError when the header lacks what is needed."""
    try:
        reader = records.Reader(header, times=times, cluster=store.cluster)
    except ValueError as err:
        raise InputError(f"{source}: {err}; needed are JobIDRaw (or JobID), Submit and State") from err
    rejects: list[records.Reject] = []
    total = Counts()
    groups = reader.groups(rows, rejects.append)
    with no_cycle_search():
        while chunk := list(islice(groups, CHUNK)):
            total += store.write(reader, chunk, rejects.append)
            total += _keep_rejects(store, source, rejects)
    return total + _keep_rejects(store, source, rejects)


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


def _keep_rejects(store: Store, source: str, rejects: list[records.Reject]) -> Counts:
    count = len(rejects)
    if count:
        store.add_rejects(source, rejects, int(time.time()))
        rejects.clear()
    return Counts(rejected=count)


def windows(start: int, end: int, hours: int) -> Iterator[tuple[int, int]]:
    """Consecutive stretches of at most `hours` from start to end."""
    while start < end:
        stop = min(start + hours * HOUR, end)
        yield start, stop
        start = stop


def read_window(store: Store, start: int, end: int, *, timeout: float, fields: Sequence[str], cluster: str = "") -> Counts:
    """Ask sacct for one window and write it."""
    query = sacct.Query(start, end, cluster=cluster, timeout=timeout, fields=fields)
    return store_rows(store, query.fields, query.rows(), source="sacct")


def update(
    store: Store, start: int, end: int, *, hours: int, timeout: float, cluster: str = "",
    progress: Callable[[int], None] = lambda done: None,
) -> Counts:  # fmt: skip
    """Read [start, end] window by window, then what was still open before it, and advance the high-water mark."""
    fields = sacct.known_fields(timeout)
    total = Counts()
    for low, high in windows(start, end, hours):
        total += read_window(store, low, high, timeout=timeout, fields=fields, cluster=cluster)
        store.set_high_water(high)
        progress(high)
    still_open = store.open_jobs(start)
    for ids in sacct.by_ids(still_open):
        query = sacct.Query(0, end, cluster=cluster, jobs=ids, timeout=timeout, fields=fields)
        total += store_rows(store, query.fields, query.rows(), source="sacct")
    return total
