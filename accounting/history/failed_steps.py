"""Steps that died of a node inside a job that completed: such a step is a failed attempt of its own.

A job started with --no-kill, or one that runs its srun again, completes although a node died under a step. The time up to
the step's end on the step's nodes becomes a failed attempt, the rest stays with the job: no hour is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import columns as c
from . import culprits
from .store import expand_nodes


class FailedStep(NamedTuple):
    """attempt: database id; nodes: positions; start, end: epoch seconds; lost: Slurm itself says NODE_FAIL."""

    attempt: int
    nodes: tuple[int, ...]
    start: float
    end: float
    lost: bool


def find(db: Any, window: Sequence[Any], ids: NDArray[np.int64], position: Mapping[str, int]) -> list[FailedStep]:
    """Steps of completed jobs of a window (cluster id, start, end) that Slurm calls NODE_FAIL, or that ended when one of
    their nodes went down. ids: database ids of the window's attempts, ascending."""
    if not len(ids):
        return []
    rows = db.execute(  # steps before attempts: they are few
        "SELECT t.attempt_id, t.node_list, t.start, t.end, w.name FROM steps t JOIN states w ON w.id = t.state_id"
        " CROSS JOIN attempts a ON a.id = t.attempt_id JOIN states s ON s.id = a.state_id"
        " WHERE t.attempt_id BETWEEN ? AND ? AND a.cluster_id = ? AND a.end > ? AND a.end < ? AND s.name = 'COMPLETED'"
        " AND t.start IS NOT NULL AND t.end IS NOT NULL AND (w.name = 'NODE_FAIL' OR EXISTS (SELECT 1 FROM tasks k"
        " JOIN node_events e ON e.node_id = k.node_id WHERE k.attempt_id = a.id AND e.kind = 'down'"
        " AND e.start BETWEEN t.end - ? AND t.end + ?)) ORDER BY t.attempt_id, t.end",
        (int(ids[0]), int(ids[-1]), *window, culprits.MATCH_SECONDS, culprits.MATCH_SECONDS),
    ).fetchall()
    found = []
    for attempt, node_list, start, end, state in rows:
        nodes = tuple([position[name] for name in expand_nodes(node_list) if name in position])
        found.append(FailedStep(attempt, nodes, float(start), float(end), state == "NODE_FAIL"))
    return found


def split(
    tasks: c.Tasks, attempts: c.Attempts, ids: NDArray[np.int64], failed: Sequence[FailedStep], events: c.Events
) -> tuple[c.Tasks, c.Attempts]:
    """Tasks and attempts with a failed attempt more for each failed step. Tasks are ordered by attempt; ids: database ids of
    the attempts, ascending."""
    start = tasks.start.copy()
    parts: list[tuple[Any, ...]] = []
    parents: list[int] = []
    down = (events.kind == c.DOWN) & (events.reason != c.REASON_PLANNED)
    for step in failed:
        i = int(np.searchsorted(ids, step.attempt))
        if i >= len(ids) or ids[i] != step.attempt:
            continue
        low, high = np.searchsorted(tasks.attempt, [i, i + 1])
        at = low + np.flatnonzero(np.isin(tasks.node[low:high], step.nodes))
        end = np.minimum(np.maximum(step.end, start[at]), tasks.end[at])
        culprit = culprits.near(events, down, tasks.node[at], end)
        if not len(at) or not (step.lost or culprit.any()):
            continue
        number = len(attempts) + len(parents)
        parents.append(i)
        parts.append((tasks.node[at], number, start[at], end, tasks.demand[at], tasks.capacity[at], culprit))
        start[at] = end
    if not parts:
        return tasks, attempts
    return _with_parts(tasks, start, parts), _with_attempts(attempts, parents)


def _with_parts(tasks: c.Tasks, start: c.FloatArray, parts: Sequence[tuple[Any, ...]]) -> c.Tasks:
    count = [len(part[0]) for part in parts]
    total = sum(count)
    return c.Tasks(
        node=np.concatenate([tasks.node, *[p[0] for p in parts]]),
        attempt=np.concatenate([tasks.attempt, np.repeat(np.array([p[1] for p in parts], dtype=np.int32), count)]),
        start=np.concatenate([start, *[p[2] for p in parts]]),
        end=np.concatenate([tasks.end, *[p[3] for p in parts]]),
        demand=np.concatenate([tasks.demand, *[p[4] for p in parts]]),
        capacity=np.concatenate([tasks.capacity, *[p[5] for p in parts]]),
        correct=np.concatenate([tasks.correct, np.full(total, -1.0)]),
        culprit=np.concatenate([tasks.culprit, *[p[6] for p in parts]]),
    )


def _with_attempts(attempts: c.Attempts, parents: Sequence[int]) -> c.Attempts:
    at = np.array(parents, dtype=np.int64)
    group = attempts.group.max() + 1 + np.arange(len(at), dtype=np.int32)
    return c.Attempts(
        job=np.concatenate([attempts.job, attempts.job[at]]),
        user=np.concatenate([attempts.user, attempts.user[at]]),
        work=np.concatenate([attempts.work, attempts.work[at]]),
        group=np.concatenate([attempts.group, group.astype(np.int32)]),
        outcome=np.concatenate([attempts.outcome, np.full(len(at), c.WRONG, dtype=np.int8)]),
        users=attempts.users,
        works=attempts.works,
        lost=np.concatenate([attempts.lost, np.zeros(len(at) if len(attempts.lost) else 0, bool)]),
    )
