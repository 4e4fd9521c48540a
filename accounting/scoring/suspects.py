"""Suspects: nodes on which several users' jobs die within minutes, left out for an hour.

A bad node that fails jobs fast is always idle and eats a queue all day; the nightly scores come too late for it.
"""

from __future__ import annotations

import time as clock

import numpy as np

from slurm_hook.common.terminal import count
from slurm_hook.published.snapshot import WHILE_MARKED

from ..history.columns import MARKED_BAD, BoolArray, FloatArray, History
from ..history.truncate import until
from .failures import Failures, attempted, collect
from .trust import from_events, marked_now

LISTED = 5  # jobs that are told
FEW, LARGE_PART = 2, 0.25  # more suspects than both, this part of the nodes, have a common cause
EARLY = 600.0  # s: a failure sooner after the start than this is an early one
FAILURES, USERS, WITHIN, LASTS = 3, 2, 3600.0, 3600.0  # so many failures of so many users within s make a suspect for s


def suspects(history: History, failures: Failures) -> FloatArray:
    """Until when (epoch s; 0: not) each node is left out for all: three early failures of two users within an hour, or
    an open mark `bad`. (A lemon found by its score is no candidate of costly jobs alone; a person's word counts for all.)

    What came before a repair, or while the node was marked `ignore`, doesn't count. Where a large part of all nodes would be
    suspects at once, it is not the nodes: a module, a file system, or wide jobs that are broken themselves.
    """
    ends = np.zeros(len(history.nodes))
    rows = np.flatnonzero(_early(history, failures)[failures.failure])
    trust = from_events(history.events, len(ends), history.as_of)
    rows = rows[trust.factor(failures.node[rows], failures.time[failures.failure[rows]]) == 1.0]
    rows = rows[np.lexsort((failures.time[failures.failure[rows]], failures.node[rows]))]
    node, moment, user = failures.node[rows], failures.time[failures.failure[rows]], failures.user[failures.failure[rows]]
    first = np.searchsorted(node, node)
    for last in range(len(rows)):
        begin = int(first[last]) + int(np.searchsorted(moment[first[last] : last + 1], moment[last] - WITHIN))
        if last + 1 - begin >= FAILURES and len(set(user[begin : last + 1].tolist())) >= USERS:
            ends[node[last]] = moment[last] + LASTS
    ends = np.where(ends > history.as_of, ends, 0.0)
    if (ends > 0).sum() > max(FEW, LARGE_PART * len(ends)):
        ends[:] = 0.0
    return np.where(marked_now(history.events, MARKED_BAD, len(ends), history.as_of), WHILE_MARKED, ends)


def _early(history: History, failures: Failures) -> BoolArray:
    """Failures (bool array) that may make a suspect now."""
    return (failures.elapsed * 3600.0 <= EARLY) & (failures.time > history.as_of - WITHIN - LASTS)


def words(history: History, failures: Failures) -> dict[str, str]:
    """What each suspect (by name; marked ones apart) is suspected for, which a person can check."""
    ends, early = suspects(history, failures), _early(history, failures)
    told = {}
    for node in np.flatnonzero((ends > 0) & (ends < WHILE_MARKED)):
        found = [f for f in failures.failure[failures.node == node] if early[f]]
        jobs = sorted(history.attempts.job[np.isin(failures.of_attempt, found)].tolist(), reverse=True)
        users = count(len({int(failures.user[f]) for f in found}), "user")
        listed = ", ".join(map(str, jobs[:LISTED])) + (f" and {len(jobs) - LISTED} more" if len(jobs) > LISTED else "")
        since = clock.strftime("%H:%M", clock.localtime(min(float(failures.time[f]) for f in found)))
        until = clock.strftime("%Y-%m-%d %H:%M", clock.localtime(ends[node]))
        told[history.nodes.names[node]] = (
            f"suspect until {until}: {count(len(jobs), 'job')} of {users} died there since {since}, each in its first"
            f" {EARLY / 60:.0f} minutes ({listed})"
        )
    return told


def of_history(history: History) -> FloatArray:
    """`suspects` of a history that was not scored."""
    history = until(history, history.as_of)
    return suspects(history, collect(history, attempted(history), np.ones(len(history.tasks))))
