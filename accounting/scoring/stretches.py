"""What settled stretches of a node's past add to its exposure: sums kept from night to night that only fade.

A stretch begins and ends where the node was idle and no heavy group goes on, so that nothing outside has a part in it. It
is known again by its content: a late row, a mark, a repaired outcome, another node size change the checksum or the trust
in it, and it is measured anew like any recent work.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ..history.columns import SILENT, WRONG, FloatArray, History, sum_by
from .published_method import running_latest
from .theilsen import BOUNDS, pairs
from .trust import Trust

SPAN = 7 * 86400.0  # s: a node's past is cut once in this, where it can be
_GRID = 1024  # stretches are told apart by start in 1/1024 s


@dataclass(frozen=True)
class Stretches:
    """Arrays with one row per stretch, by node and time. Of the work that began in [first, until) on `node` (a name):

    last: its latest end; before, after: s that must be idle around it (a heavy edge could go on in a group); checksum of its
    tasks; hours: busy, heavy, overload (weighted by the loss of efficiency), and at the moment `made` faded, weighted (light
    hours at a quarter) and squares (of the faded weights); pairs (rows by BOUNDS), largest, over, bound: of its heavy groups.
    worn: checksums of its failed tasks that ended in heavy work, ascending. setting: what all this was worked out with.
    """

    node: Any
    first: FloatArray
    until: FloatArray
    last: FloatArray
    before: FloatArray
    after: FloatArray
    checksum: Any
    busy: FloatArray
    heavy: FloatArray
    overload: FloatArray
    faded: FloatArray
    weighted: FloatArray
    squares: FloatArray
    pairs: FloatArray
    largest: Any
    over: Any
    bound: Any
    made: FloatArray
    worn: Any
    setting: FloatArray

    def __len__(self) -> int:
        return len(self.node)

    def only(self, rows: Any) -> Stretches:
        """These rows. `worn` and `setting` stay."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _PER_ROW})

    def agree(self, bound: int) -> bool:
        """Were the slopes of all their groups found with this bound, or with any?"""
        return bool(((self.bound == bound) | (self.largest <= np.minimum(self.bound, bound))).all())

    def joined(self, other: Stretches) -> Stretches:
        """Both, by node and time."""
        columns = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in _PER_ROW}
        both = Stretches(**columns, worn=np.union1d(self.worn, other.worn), setting=self.setting)
        return both.only(np.lexsort((both.first, both.node)))


_PER_ROW = tuple(field.name for field in fields(Stretches) if field.name not in ("worn", "setting"))


def none(setting: Sequence[float] | FloatArray) -> Stretches:
    """No stretch yet."""
    columns: dict[str, Any] = {name: np.zeros(0) for name in _PER_ROW}
    columns.update(node=np.zeros(0, "U1"), checksum=np.zeros(0, np.uint64), pairs=np.zeros((0, len(BOUNDS))))
    columns.update({name: np.zeros(0, np.int64) for name in ("largest", "over", "bound")})
    return Stretches(**columns, worn=np.zeros(0, np.uint64), setting=np.array(setting, float))


def checksums(history: History) -> Any:
    """A number per task that changes with whatever its part in the exposure depends on."""
    tasks, attempts = history.tasks, history.attempts
    outcome = attempts.outcome[tasks.attempt]
    said = (outcome != SILENT) + 2 * (outcome == WRONG)
    names = [
        int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest())
        for name in history.nodes.names
    ]
    mixed = np.array(names, np.uint64)[tasks.node] ^ attempts.job[tasks.attempt].astype(np.uint64)
    for column in (tasks.start, tasks.end, tasks.demand, tasks.capacity, said.astype(np.float64)):
        mixed ^= np.ascontiguousarray(column).view(np.uint64)
        mixed *= np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed


@dataclass(frozen=True)
class Known:
    """Of a history: stretches that hold, with the position of their node; arrays over its tasks: which are theirs (bool),
    checksums, and which of theirs failed in heavy work (bool)."""

    rows: Stretches
    at: Any
    inside: Any
    checksum: Any
    worn: Any

    def kept(self) -> Stretches:
        """These stretches with the checksums that still tell of their tasks."""
        return replace(self.rows, worn=np.unique(self.checksum[self.worn]))


def holding(past: Stretches, history: History, trust: Trust) -> Known:
    """The stretches whose tasks are all there and unchanged, with nothing else near enough to have a part in them, and in
    which trust doesn't change."""
    position = {name: i for i, name in enumerate(history.nodes.names)}
    at = np.array([position.get(name, -1) for name in past.node.tolist()], np.int64)
    order = np.lexsort((past.first, at))
    order = order[at[order] >= 0]
    rows, at = past.only(order), at[order]
    good = ~_trust_changes(rows, at, trust)
    rows, at = rows.only(good), at[good]
    checksum = checksums(history)
    tasks = history.tasks
    of = _of_task(rows, at, tasks.node, tasks.start)
    total = np.zeros(len(rows), np.uint64)
    np.add.at(total, of[of >= 0], checksum[of >= 0])
    good = total == rows.checksum
    while True:
        rows, at = rows.only(good), at[good]
        number = np.append(np.where(good, np.cumsum(good) - 1, -1), -1)  # the last for tasks of none
        of = number[of]
        good = _undisturbed(rows, at, *(column[of < 0] for column in (tasks.node, tasks.start, tasks.end)))
        if good.all():
            return Known(rows, at, of >= 0, checksum, _worn(rows, history, of >= 0, checksum))


def _worn(rows: Stretches, history: History, inside: Any, checksum: Any) -> Any:
    """Tasks inside of stretches that failed in heavy work."""
    worn = np.zeros(len(inside), bool)
    failed = np.flatnonzero(inside & (history.attempts.outcome == WRONG)[history.tasks.attempt])
    worn[failed] = np.isin(checksum[failed], rows.worn)
    return worn


def _trust_changes(rows: Stretches, at: Any, trust: Trust) -> Any:
    changes = np.zeros(len(rows), bool)
    moments = {node: [*times] for node, times in trust.repairs.items()}
    for node, ignored in trust.ignored.items():
        moments.setdefault(node, []).extend(moment for ends in ignored for moment in ends)
    for node, times in moments.items():
        low, high = np.searchsorted(at, [node, node + 1])
        for moment in times:
            changes[low:high] |= (rows.first[low:high] < moment) & (moment < rows.last[low:high])
    return changes


def keys(node: Any, time: FloatArray) -> Any:
    """One whole number for node and time, ascending in both."""
    return (node.astype(np.int64) << 42) + np.floor(time * _GRID).astype(np.int64)


def _of_task(rows: Stretches, at: Any, node: Any, start: FloatArray) -> Any:
    """The stretch in which each task began, −1 for none."""
    if len(rows) == 0:
        return np.full(len(node), -1)
    mine = keys(node, start)
    found = np.searchsorted(keys(at, rows.first), mine, side="right") - 1
    return np.where((found >= 0) & (mine < keys(at, rows.until)[found]), found, -1)


def _undisturbed(rows: Stretches, at: Any, node: Any, start: FloatArray, end: FloatArray) -> Any:
    """Stretches that tasks outside of them leave alone."""
    good = np.ones(len(rows), bool)
    if len(rows) == 0:
        return good
    following = np.searchsorted(keys(at, rows.first), keys(node, start), side="right")
    for index, side in ((following - 1, "after"), (following, "before")):
        there = (index >= 0) & (index < len(rows))
        there[there] = at[index[there]] == node[there]
        j = index[there]
        if side == "after":
            gap, needed = start[there] - rows.last[j], rows.after[j]
        else:
            gap, needed = rows.first[j] - end[there], rows.before[j]
        good[j[(gap < 0) | ((needed > 0) & (gap <= needed))]] = False
    return good


def pack(rows: Stretches) -> bytes:
    """As bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, **{field.name: getattr(rows, field.name) for field in fields(rows)})
    return buffer.getvalue()


def unpack(data: bytes) -> Stretches:
    """The other way round; none of what another version packed."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        if set(file.files) != {field.name for field in fields(Stretches)}:
            return none([])
        return Stretches(**{name: file[name] for name in file.files})


@dataclass(frozen=True)
class Measured:
    """A history measured, as `cut` takes it. Over its tasks: order (positions by node, start, end and job), heavy (bool, in
    that order), worn (bool: failed in heavy work), checksum. Over all starts and ends by node and time: node, time, hours up
    to the next, and of these hours heavy (bool), busy, faded, weighted, squares, overload. Over heavy groups: group (position
    in `order` of the first), size. bound: of their slopes."""

    order: Any
    heavy: Any
    worn: Any
    checksum: Any
    node: Any
    time: FloatArray
    hours: dict[str, FloatArray]
    group: Any
    size: Any
    bound: int


def cut(history: History, known: Known, measured: Measured, max_gap: float) -> Stretches:
    """New stretches out of a history without the tasks of the known ones. max_gap: s, of heavy groups."""
    tasks = history.tasks
    node, start, end = (column[measured.order] for column in (tasks.node, tasks.start, tasks.end))
    if len(node) == 0:
        return none(known.rows.setting)
    following = np.searchsorted(keys(known.at, known.rows.first), keys(node, start), side="right")
    begins = _begins(start, end, measured.heavy, _runs(node, following), max_gap)
    stops = np.append(begins[1:], len(node))
    after = following[begins]
    closed = after < len(known.rows)  # a known one follows on the same node
    closed[closed] = known.at[after[closed]] == node[begins[closed]]
    until = np.where(closed, 0.0, np.inf)
    until[closed] = known.rows.first[after[closed]]
    same = (node[begins][:-1] == node[begins][1:]) & (after[:-1] == after[1:])
    until[:-1][same] = start[begins[1:]][same]
    edges = [np.where(measured.heavy[at], max_gap, 0.0) for at in (begins, stops - 1)]
    every = Stretches(
        node=np.array(history.nodes.names)[node[begins]], first=start[begins], until=until,
        last=np.maximum.reduceat(end, begins), before=edges[0], after=edges[1],
        **_sums(measured, begins, keys(node[begins], start[begins]), history.as_of), worn=np.zeros(0, np.uint64),
        setting=known.rows.setting,
    )  # fmt: skip
    kept = np.isfinite(until)
    worn = measured.checksum[measured.order][measured.worn[measured.order] & np.repeat(kept, stops - begins)]
    return replace(every.only(kept), worn=np.sort(worn))


def _runs(node: Any, following: Any) -> Any:
    """Number of the run of each task: of one node, between two known stretches."""
    return np.cumsum(np.append(True, (np.diff(node) != 0) | (np.diff(following) != 0)))


def _begins(start: FloatArray, end: FloatArray, heavy: Any, run: Any, max_gap: float) -> Any:
    """Positions where stretches begin: the first task of a run, and once in each SPAN after its own one that finds the node
    idle with no heavy group going on."""
    fresh = np.append(True, np.diff(run) != 0)
    idle = np.zeros(len(start))
    idle[1:] = start[1:] - running_latest(run, end)[:-1]
    light = np.append(False, ~heavy[1:] & ~heavy[:-1])
    apart = np.append(False, np.diff(np.floor(start * _GRID)) > 0)
    span = np.floor(start / SPAN)
    later = span > span[fresh][run - 1]
    at = np.flatnonzero(later & apart & (idle >= 0) & (light | (idle > max_gap)))
    first = np.append(True, (np.diff(run[at]) != 0) | (np.diff(span[at]) != 0))[: len(at)]
    return np.union1d(np.flatnonzero(fresh), at[first])


def _sums(m: Measured, begins: Any, begin_keys: Any, as_of: float) -> dict[str, Any]:
    """What the columns of hours, groups and content are for stretches that begin there."""
    n = len(begins)
    of_row = np.searchsorted(begin_keys, keys(m.node, m.time), side="right") - 1
    of_group = np.searchsorted(begins, m.group, side="right") - 1
    largest = np.zeros(n, np.int64)
    np.maximum.at(largest, of_group, m.size)
    return {
        **{name: sum_by(of_row, values, n) for name, values in m.hours.items()},
        "pairs": np.stack([sum_by(of_group, pairs(m.size, of), n) for of in BOUNDS], axis=1),
        "largest": largest,
        "over": np.bincount(of_group, weights=m.size > m.bound, minlength=n).astype(np.int64),
        "bound": np.full(n, m.bound),
        "checksum": np.add.reduceat(m.checksum[m.order], begins),
        "made": np.full(n, as_of),
    }
