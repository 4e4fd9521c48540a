"""Which nodes to drain, with the evidence a human can check.

Nothing here drains a node: it names the command.
"""

from __future__ import annotations

import time as clock
from dataclasses import dataclass
from typing import Any

import numpy as np

from .attribution import Attribution
from .columns import DOWN, DRAIN, MARKED_BAD, MARKED_IGNORE, REPORTED, WRONG, FloatArray, History, sum_by
from .trust import marked_now

TIMES_MEDIAN = 3.0  # a lemon's hazard is over so many times the median,
CERTAINTY = 0.95  # with this probability
USERS_NEEDED = 2  # where no culprit is known
LIKELY_BLAME = 0.3  # a failure is told as evidence from this share of blame on
EVENT_WORDS = {DOWN: "went down", DRAIN: "was drained", REPORTED: "was reported"}


@dataclass(frozen=True)
class Lemon:
    """One node to drain. probability: of a hazard over TIMES_MEDIAN medians; times_median: mean hazard over the median;
    gain: failures fewer in 30 days of the node's usual hours; known_jobs, likely_jobs: (job id, blame); words: evidence."""

    node: int
    name: str
    probability: float
    times_median: float
    gain: float
    users: int
    known_jobs: tuple[tuple[int, float], ...]
    likely_jobs: tuple[tuple[int, float], ...]
    words: str
    command: str


def lemon_probability(scored: Attribution) -> FloatArray:
    """P(hazard over TIMES_MEDIAN times the cluster's median) of each node."""
    if len(scored.hazard) == 0:
        return np.zeros(0)
    return scored.probability_above(TIMES_MEDIAN * float(np.median(scored.hazard)))


def find_lemons(history: History, scored: Attribution) -> Any:
    """Nodes (bool array) that are lemons, or under an open mark `bad`.

    Without a known culprit two users' failures are needed; after a repair, a failure since; marked `ignore`: never.
    """
    n = len(history.nodes)
    certain = (lemon_probability(scored) >= CERTAINTY) & ((scored.known > 0) | (scored.users >= USERS_NEEDED))
    for node in np.flatnonzero(certain):
        repaired = scored.trust.last_repair(int(node))
        certain[node] = last_evidence(history, scored, int(node)) > repaired
    bad = marked_now(history.events, MARKED_BAD, n, history.as_of)
    return (certain & ~marked_now(history.events, MARKED_IGNORE, n, history.as_of)) | bad


def last_evidence(history: History, scored: Attribution, node: int) -> float:
    """Time of the last failure or event that charges the node, or minus infinity."""
    rows = np.flatnonzero((scored.failures.node == node) & (scored.blame >= LIKELY_BLAME))
    events = scored.evidence_events & (history.events.node == node)
    times = [*scored.failures.time[scored.failures.failure[rows]], *history.events.start[events]]
    return float(max(times, default=-np.inf))


def describe(history: History, scored: Attribution) -> list[Lemon]:
    """The lemons, worst first, with their evidence."""
    chance = lemon_probability(scored)
    found = [_describe(history, scored, int(i), float(chance[i])) for i in np.flatnonzero(find_lemons(history, scored))]
    return sorted(found, key=lambda lemon: (-lemon.times_median, lemon.name))


def _describe(history: History, scored: Attribution, node: int, probability: float) -> Lemon:
    name = history.nodes.names[node]
    middle = float(np.median(scored.hazard))
    rows = np.flatnonzero(scored.failures.node == node)
    told = rows[scored.failures.culprit[rows] | (scored.blame[rows] >= LIKELY_BLAME)]
    users = len(set(scored.failures.user[scored.failures.failure[told]].tolist()))
    known = _jobs(history, scored, rows[scored.failures.culprit[rows]])
    likely = _jobs(history, scored, rows[~scored.failures.culprit[rows] & (scored.blame[rows] >= LIKELY_BLAME)])
    times = float(scored.hazard[node] / middle)
    evidence = _evidence(history, scored, node, known=known, likely=likely, users=users)
    words = "; ".join([f"fails {times:.1f} times as often as the median node", *evidence])
    command = f'scontrol update NodeName={name} State=DRAIN Reason="workhorse: {times:.1f} x the median failure rate"'
    gain = (float(scored.hazard[node]) - middle) * float(scored.exposure.busy[node]) / max(_days(history), 1.0) * 30.0
    return Lemon(node, name, probability, times, max(gain, 0.0), users, known, likely, words, command)


def _days(history: History) -> float:
    return (history.as_of - history.window_start) / 86400.0


def _jobs(history: History, scored: Attribution, rows: Any) -> tuple[tuple[int, float], ...]:
    """(job id, blame) of the failures in these candidate rows, heaviest first; one job of each failure."""
    wanted = {int(scored.failures.failure[row]): float(scored.blame[row]) for row in rows}
    attempts = np.flatnonzero(np.isin(scored.failures.of_attempt, list(wanted)))
    job_of = {int(scored.failures.of_attempt[a]): int(history.attempts.job[a]) for a in reversed(attempts)}
    return tuple(sorted(((job_of[f], blame) for f, blame in wanted.items()), key=lambda pair: (-pair[1], pair[0])))


def _evidence(
    history: History, scored: Attribution, node: int, *, known: tuple[Any, ...], likely: tuple[Any, ...], users: int
) -> list[str]:
    parts = []
    if known:
        parts.append(f"known to have ended {_count(len(known), 'job')} ({_listed([str(j) for j, _ in known])})")
    if likely:
        listed = _listed([f"{job} {blame:.0%}" for job, blame in likely])
        parts.append(f"likeliest cause of {_count(len(likely), 'more failure' if known else 'failure')} ({listed})")
    if known or likely:
        parts.append(f"jobs of {_count(users, 'user')}")
    events = np.flatnonzero(scored.evidence_events & (history.events.node == node))
    if len(events):
        told = [f"{EVENT_WORDS[int(history.events.kind[e])]} {day(history.events.start[e])}" for e in events[::-1]]
        parts.append(f"and by itself {_listed(told)}")
    if marked_now(history.events, MARKED_BAD, len(history.nodes), history.as_of)[node]:
        parts.append("marked bad by hand")
    return parts


def day(time: float) -> str:
    """A day in words, UTC, so that the same history reads the same everywhere."""
    return clock.strftime("%Y-%m-%d", clock.gmtime(time))


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _listed(items: list[str], most: int = 5) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def failed_attempts(history: History) -> FloatArray:
    """Failed attempts per node, plainly counted: what a naive count would say."""
    failed = history.attempts.outcome[history.tasks.attempt] == WRONG
    return sum_by(history.tasks.node, failed.astype(float), len(history.nodes))
