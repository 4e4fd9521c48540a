"""Nodes that stand out by a plain count of late failures though nothing names them: told beside the lemons, no score.

A job that fails after hours, without a word of Slurm about its nodes, may always have broken itself, and the attribution
leaves most of the blame with it. Where that happens on one node several times as often as elsewhere, to several users, a
person should look.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import pdtrc

from slurm_hook.common.terminal import count

from ..history.columns import MARKED_IGNORE, SILENT, FloatArray, History, IntArray, sum_by
from .attributed_method import Attribution
from .trust import marked_now

LATE = 2.0  # h of work before a failure that is counted: most jobs that break themselves do so earlier
TIMES, USERS = 2.5, 3  # so many times the usual number, from so many users,
CHANCE = 1e-3  # and less likely than this to be found on any node by chance alone
LISTED = 5


class Outlier(NamedTuple):
    """A node to look at. failures: late ones of unknown cause; usual: as many are expected in its hours; chance: of this
    node's count, its worst user left out, by luck; jobs: some of them, the latest first."""

    name: str
    failures: int
    usual: float
    users: int
    chance: float
    jobs: tuple[int, ...]

    @property
    def words(self) -> str:
        """For people."""
        listed = ", ".join(map(str, self.jobs[:LISTED])) + (" …" if len(self.jobs) > LISTED else "")
        return (
            f"no lemon by its score, but {count(self.failures, 'job')} of {count(self.users, 'user')} failed on it after over"
            f" {LATE:.0f} h, where {self.usual:.1f} are usual in its hours ({listed}); nothing names it: look at it"
        )


def outliers(history: History, scored: Attribution, known: frozenset[str] = frozenset()) -> list[Outlier]:
    """The nodes that stand out, worst first; `known`: names that are told already."""
    failures, n = scored.failures, len(history.nodes)
    late = (failures.elapsed >= LATE) & ~failures.known & (failures.share == 1.0)  # an outage that took many is none of these
    repaired = np.array([scored.trust.last_repair(i) for i in range(n)])
    rows = np.flatnonzero(late[failures.failure] & (failures.time[failures.failure] > repaired[failures.node]))
    node, user = failures.node[rows], failures.user[failures.failure[rows]]
    found = sum_by(node, np.ones(len(rows)), n)
    hours = _late_hours(history)
    usual = hours * (found.sum() / max(hours.sum(), 1e-9))
    users, most = _by_user(node, user, n)
    chance = np.where(found > most, pdtrc(np.maximum(found - most - 1, 0), usual), 1.0)
    stands_out = (found - most >= TIMES * usual) & (users >= USERS) & (chance < CHANCE / max(n, 1)) & (hours > 0)
    stands_out &= ~marked_now(history.events, MARKED_IGNORE, n, history.as_of) & history.nodes.here
    told = []
    for i in np.flatnonzero(stands_out):
        which = failures.failure[rows[node == i]]
        jobs = sorted(history.attempts.job[np.isin(failures.of_attempt, which)].tolist(), reverse=True)
        name = history.nodes.names[i]
        told.append(Outlier(name, int(found[i]), float(usual[i]), int(users[i]), float(chance[i]), tuple(jobs)))
    return sorted((one for one in told if one.name not in known), key=lambda one: (one.chance, one.name))


def _late_hours(history: History) -> FloatArray:
    """Hours of each node in which a failure would have counted."""
    tasks = history.tasks
    says = history.attempts.outcome[tasks.attempt] != SILENT
    late = np.maximum((np.minimum(tasks.end, history.as_of) - tasks.start) / 3600.0 - LATE, 0.0)
    return sum_by(tasks.node, np.where(says, late, 0.0), len(history.nodes))


def _by_user(node: IntArray, user: IntArray, n: int) -> tuple[IntArray, FloatArray]:
    """Per node: how many users had such failures, and how many the worst of them had."""
    span = int(user.max(initial=0)) + 1
    pairs, size = np.unique(node.astype(np.int64) * span + user, return_counts=True)
    most = np.zeros(n)
    np.maximum.at(most, pairs // span, size)
    return np.bincount(pairs // span, minlength=n).astype(np.int32), most
