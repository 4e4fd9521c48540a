"""What a node has been through: heavy groups with their efficiency, failures with the blame, what Slurm said of it.

The same numbers for the report's timelines and for `workhorse nodes --long`. Pure but for the reasons of events, which
are read from the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..history.columns import History
from ..history.store import loaded_text
from ..scoring import attributed_method as attributing
from ..scoring import published_method

MOST_POINTS = 240
MOST_FAILURES = 60
CHARGED = 0.1  # a failure is told as the node's from this share of the blame on
MOST_EVENTS = 40


@dataclass(frozen=True)
class Group:
    """A heavy group: tasks that followed each other. efficiency: per task over the group's mean; change: relative fall
    (below 0) or rise of the efficiency from first to last task by its Theil-Sen slope; times in epoch seconds."""

    start: float
    end: float
    tasks: int
    overload_hours: float
    change: float
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Failure:
    """A failure that touched the node. blame: its share; nodes: candidates in all; own: the job's own share."""

    time: float
    job: int
    nodes: int
    blame: float
    own: float
    known: bool
    user: str
    work: str


@dataclass(frozen=True)
class Event:
    """What Slurm, a health check or a person said of the node. end: 0 while it lasts."""

    start: float
    end: float
    kind: str
    reason: str
    reason_class: str
    source: str


@dataclass(frozen=True)
class Story:
    """One node's window."""

    node: str
    groups: tuple[Group, ...]
    failures: tuple[Failure, ...]
    events: tuple[Event, ...]
    busy_hours: float
    heavy_hours: float
    failures_in_all: int = 0


def stories(
    db: Any, history: History, scored: attributing.Attribution, table: published_method.CapabilityTable, nodes: Iterable[int]
) -> list[Story]:
    """The stories of some nodes (positions in `history.nodes`), in that order."""
    wanted = list(nodes)
    events = _events(db, history, [history.nodes.names[node] for node in wanted])
    return [
        Story(
            node=history.nodes.names[node],
            groups=_groups(history, table, node),
            failures=failures_of(history, scored, node),
            events=tuple(events.get(history.nodes.names[node], ())[-MOST_EVENTS:]),
            busy_hours=float(scored.exposure.busy[node]),
            heavy_hours=float(scored.exposure.heavy[node]),
            failures_in_all=int((scored.failures.node == node).sum()),
        )
        for node in wanted
    ]


def _groups(history: History, table: published_method.CapabilityTable, node: int) -> tuple[Group, ...]:
    rows = np.flatnonzero(table.groups.node == node)
    found = []
    for row in rows:
        at = np.arange(table.groups.first[row], table.groups.first[row] + table.groups.size[row])
        task = table.order[at]
        start, end = history.tasks.start[task], np.minimum(history.tasks.end[task], history.as_of)
        mean = float(table.efficiency[at].mean()) or 1.0
        change = float(table.groups.slope[row]) * (len(at) - 1) / mean
        points = tuple(zip(((start + end) / 2).tolist(), (table.efficiency[at] / mean).tolist()))
        overload = float(table.groups.overload_hours[row])
        found.append(Group(float(start.min()), float(end.max()), len(at), overload, change, points))
    return _thinned(found)


def _thinned(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Groups whose points are at most MOST_POINTS in all, evenly thinned; first and last of each stay."""
    total = sum(len(group.points) for group in groups)
    step = max(1, -(-total // MOST_POINTS))
    thin = [(*g.points[::step], *(g.points[-1:] if (len(g.points) - 1) % step else ())) for g in groups]
    return tuple(Group(g.start, g.end, g.tasks, g.overload_hours, g.change, points) for g, points in zip(groups, thin))


def failures_of(history: History, scored: attributing.Attribution, node: int) -> tuple[Failure, ...]:
    """Failures that touched the node, oldest first; of many the last MOST_FAILURES, but those it is charged with first."""
    failures = scored.failures
    rows = np.flatnonzero(failures.node == node)
    rows = rows[np.lexsort((failures.time[failures.failure[rows]], scored.blame[rows] >= CHARGED))][-MOST_FAILURES:]
    rows = rows[np.argsort(failures.time[failures.failure[rows]], kind="stable")]
    sizes = np.bincount(failures.failure, minlength=len(failures))
    jobs = first_jobs(history, scored)
    return tuple(
        Failure(
            time=float(failures.time[f]), job=jobs.get(int(f), 0), nodes=int(sizes[f]), blame=float(scored.blame[row]),
            own=float(scored.own[f]), known=bool(failures.known[f]),
            user=history.attempts.users[failures.user[f]], work=history.attempts.works[failures.work[f]],
        )
        for row, f in zip(rows, failures.failure[rows])
    )  # fmt: skip


def first_jobs(history: History, scored: attributing.Attribution) -> Mapping[int, int]:
    """The lowest job id of each failure."""
    of = scored.failures.of_attempt
    rows = np.flatnonzero(of >= 0)
    rows = rows[np.argsort(-history.attempts.job[rows], kind="stable")]
    return {int(of[row]): int(history.attempts.job[row]) for row in rows}


def _events(db: Any, history: History, names: Sequence[str]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    sql = (
        "SELECT n.name, e.start, e.end, e.kind, e.reason, e.reason_class, e.source FROM node_events e"
        " JOIN nodes n ON n.id = e.node_id JOIN clusters c ON c.id = n.cluster_id"
        " WHERE c.name = ? AND n.name = ? AND e.start <= ? AND coalesce(e.end, ?) >= ?"
        " AND (e.end IS NULL OR e.end > e.start OR e.kind NOT IN ('down', 'drain')) ORDER BY e.start, e.id"
    )
    for name in names:
        rows = db.execute(sql, (history.cluster, name, history.as_of, history.as_of, history.window_start))
        for node, start, end, kind, reason, reason_class, source in rows:
            event = Event(float(start), float(end or 0), kind, loaded_text(reason), reason_class, source)
            found.setdefault(node, []).append(event)
    return found
