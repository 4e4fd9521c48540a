"""Failures and their candidate causes: what the attribution shares out.

A failure is one or more failed attempts that ended together for one reason: an attempt of its own, members of an array
or het job that end together, or all jobs that a node known to be the culprit took with it. Times are epoch seconds,
elapsed is hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import pdtr, pdtrik

from ..history.columns import (
    DOWN,
    DRAIN,
    REASON_HARDWARE,
    REASON_UNKNOWN,
    REPORTED,
    SILENT,
    WRONG,
    Events,
    FloatArray,
    History,
    IntArray,
    sum_by,
    together,
)

TOGETHER = 120.0  # s: members of one array that end within this of the first are one failure
SAME_OUTAGE = 600.0  # s: failures that a known culprit caused within this of the first are one
BURST = 60.0  # s: unexplained failures of several users in this stretch, too many for chance, share one cause
BURST_CHANCE = 1e-6
BUSY_HOUR = 3600.0  # s: what chance gives is judged by the rate so long before and after, or by the mean if that is higher
EVENT_NEAR = 1800.0  # s: an event this close to a failure that names the node is the same evidence
EVENT_WEIGHT = 0.5  # a drain, an outage or a report without a failed job is weaker evidence than one
EVENT_EVERY = 86400.0  # s: health checks that cycle a node count once in this


@dataclass(frozen=True)
class Attempted:
    """Arrays over attempts: start, end (epoch s; NaN for attempts without tasks)."""

    start: FloatArray
    end: FloatArray

    @property
    def hours(self) -> FloatArray:
        """Run time in hours."""
        return (self.end - self.start) / 3600.0


@dataclass(frozen=True)
class Failures:
    """Arrays over failures: time, elapsed (h), work, user, known (its culprits are known), share (a burst of k failures
    of one cause counts 1/k each). Arrays over candidates (failure, node): failure, node, weight (of heavy or light work),
    culprit. `of_attempt`: failure of each attempt, -1 for none; lost, over failures: Slurm says that a node was lost, so it
    was not the job."""

    time: FloatArray
    elapsed: FloatArray
    work: IntArray
    user: IntArray
    known: Any
    share: FloatArray
    failure: Any
    node: Any
    weight: FloatArray
    culprit: Any
    of_attempt: Any
    lost: Any

    def __len__(self) -> int:
        return len(self.time)


def attempted(history: History) -> Attempted:
    """Start and end of every attempt from its tasks (all tasks of an attempt share them)."""
    tasks, n = history.tasks, len(history.attempts)
    start, end = np.full(n, np.nan), np.full(n, np.nan)
    start[tasks.attempt] = np.minimum(tasks.start, history.as_of)
    end[tasks.attempt] = np.clip(tasks.end, np.minimum(tasks.start, history.as_of), history.as_of)
    return Attempted(start, end)


def collect(history: History, ran: Attempted, weight: FloatArray) -> Failures:
    """All failures up to `as_of`. `weight`: of a failure at each task's end (1 in heavy work, a quarter in light)."""
    attempts, tasks = history.attempts, history.tasks
    failed = np.flatnonzero((attempts.outcome == WRONG) & (ran.end <= history.as_of))
    number = _merged(attempts.group[failed], ran.end[failed])
    n = int(number.max()) + 1 if len(number) else 0
    of_attempt = np.full(len(attempts), -1)
    of_attempt[failed] = number
    earliest = np.full(n, np.inf)
    np.minimum.at(earliest, number, ran.hours[failed])
    time, work, user = np.zeros(n), np.zeros(n, np.int32), np.zeros(n, np.int32)
    time[number], work[number], user[number] = ran.end[failed], attempts.work[failed], attempts.user[failed]
    rows = np.flatnonzero(of_attempt[tasks.attempt] >= 0)
    failure, node = of_attempt[tasks.attempt[rows]], tasks.node[rows].astype(np.int64)
    failure, node, rows = _unique_candidates(failure, node, rows, len(history.nodes), tasks.culprit)
    culprit = tasks.culprit[rows]
    known = np.zeros(n, bool)
    known[failure[culprit]] = True
    share = _burst_share(time, user, known, history.as_of - history.window_start)
    lost = np.zeros(n, bool)
    if len(attempts.lost):
        lost[number[attempts.lost[failed]]] = True
    return Failures(time, earliest, work, user, known, share, failure, node, weight[rows], culprit, of_attempt, lost)


def _merged(group: Any, end: FloatArray) -> Any:
    """Number of the failure that each failed attempt belongs to: same group, ended together. Group -1: on its own."""
    return together(np.where(group < 0, -1 - np.arange(len(group)), group), end, TOGETHER)


def _unique_candidates(failure: Any, node: Any, rows: Any, n_nodes: int, culprit: Any) -> tuple[Any, Any, Any]:
    """One row per (failure, node): of several tasks on the node, one that names it the culprit if there is any."""
    order = np.lexsort((~culprit[rows], failure * n_nodes + node))
    key = (failure * n_nodes + node)[order]
    first = np.append(True, np.diff(key) != 0)[: len(key)]
    kept = order[first]
    return failure[kept], node[kept], rows[kept]


def _burst_share(time: FloatArray, user: Any, known: Any, window: float) -> FloatArray:
    """1/k for each of k unexplained failures of two or more users that ended within a stretch too short for chance.

    A switch, a file system or a power supply takes several jobs at once: that is one failure, whatever its cause. On a
    large site many end in each minute by chance, and in a storm of resubmitted jobs more than on other days: k must be too
    many for the rate around as well.
    """
    share = np.ones(len(time))
    rows = np.flatnonzero(~known)
    if len(rows) < 3:
        return share
    rows = rows[np.lexsort((user[rows], time[rows]))]
    times, users = time[rows], user[rows]
    size = np.searchsorted(times, times + BURST, side="right") - np.arange(len(rows))
    around = np.searchsorted(times, times + BUSY_HOUR, side="right") - np.searchsorted(times, times - BUSY_HOUR) - size
    usual = np.maximum(len(rows) * BURST / max(window, BURST), around * BURST / (2 * BUSY_HOUR))
    rates, of_rate = np.unique(usual, return_inverse=True)
    needed = np.maximum(3.0, _poisson_quantile(1 - BURST_CHANCE, rates) + 1)[of_rate]
    for i in np.flatnonzero(size >= needed).tolist():
        burst = slice(i, i + int(size[i]))
        if users[burst].min() != users[burst].max():
            share[rows[burst]] = np.minimum(share[rows[burst]], 1.0 / size[i])
    return share


def _poisson_quantile(p: float, rates: FloatArray) -> FloatArray:
    """Smallest count that is reached with probability p; scipy.stats has it too, but takes a second to import."""
    above = np.ceil(pdtrik(p, rates))
    below = np.maximum(above - 1, 0)
    return np.where(pdtr(below, rates) >= p, below, above)


def known_share(failures: Failures) -> FloatArray:
    """Weight of each candidate row that is a known culprit: split among culprits of a failure, and among the failures
    that one outage of the node caused. Zero for all other rows."""
    result = np.zeros(len(failures.failure))
    rows = np.flatnonzero(failures.culprit)
    if len(rows) == 0:
        return result
    many = np.bincount(failures.failure[rows], minlength=len(failures))
    outage = together(failures.node[rows], failures.time[failures.failure[rows]], SAME_OUTAGE)
    result[rows] = 1.0 / np.bincount(outage)[outage] / many[failures.failure[rows]]
    return result


def event_evidence(history: History, failures: Failures) -> Any:
    """Rows of `history.events` that are evidence against their node on their own (bool array).

    Hardware drains, outages for a hardware or unknown reason, and reports by users; not those that a failure with a known
    culprit already tells, and one a day per node.
    """
    events = history.events
    hardware = (events.kind == DRAIN) & (events.reason == REASON_HARDWARE)
    down = (events.kind == DOWN) & np.isin(events.reason, (REASON_HARDWARE, REASON_UNKNOWN))
    rows = np.flatnonzero((hardware | down | (events.kind == REPORTED)) & (events.start <= history.as_of))
    rows = rows[np.lexsort((events.start[rows], events.node[rows]))]
    evidence = np.zeros(len(events), bool)
    told: dict[int, list[float]] = {}
    for row in np.flatnonzero(failures.culprit):
        told.setdefault(int(failures.node[row]), []).append(float(failures.time[failures.failure[row]]))
    for i in rows:
        times = told.setdefault(int(events.node[i]), [])
        at = float(events.start[i])
        if not any(abs(at - t) <= EVENT_NEAR or 0 <= at - t < EVENT_EVERY for t in times):
            evidence[i] = True
            times.append(at)
    return evidence


def charged_hours(history: History, ran: Attempted, failures: Failures) -> Any:
    """Attempts whose time counts for the own-error rates (bool array): all that say something, members of one failure
    once."""
    counts = (history.attempts.outcome != SILENT) & np.isfinite(ran.start) & (ran.start < history.as_of)
    member = np.flatnonzero(failures.of_attempt >= 0)
    _, first = np.unique(failures.of_attempt[member], return_index=True)
    counts[member] = False
    counts[member[first]] = True
    return counts


def users_blaming(failures: Failures, blame: FloatArray, n_nodes: int, least: float = 0.2) -> IntArray:
    """How many different users' failures charge each node with at least `least` in all."""
    n_users = int(failures.user.max()) + 1 if len(failures) else 1
    key = failures.node.astype(np.int64) * n_users + failures.user[failures.failure]
    pairs, where = np.unique(key, return_inverse=True)
    total = sum_by(where, blame, len(pairs))
    return np.bincount(pairs[total >= least] // n_users, minlength=n_nodes).astype(np.int32)


def near(events: Events, node: int, time: float, within: float) -> Any:
    """Rows of events on the node that began within `within` seconds after (or a minute before) `time`."""
    return np.flatnonzero((events.node == node) & (events.start >= time - 60.0) & (events.start <= time + within))
