"""Which nodes to drain, with the evidence a human can check.

Nothing here drains a node: it names the command.
"""

from __future__ import annotations

import time as clock
from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_hook.common.terminal import count

from ..history.columns import DOWN, DRAIN, MARKED_BAD, MARKED_IGNORE, REPORTED, WRONG, FloatArray, History, sum_by
from .attributed_method import Attribution
from .failures import EVENT_NEAR, near
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

    Without a known culprit two users' failures are needed; after a repair, a failure since; marked `ignore`, or no longer in
    the configuration: never.
    """
    n = len(history.nodes)
    certain = (lemon_probability(scored) >= CERTAINTY) & ((scored.known > 0) | (scored.users >= USERS_NEEDED))
    for node in np.flatnonzero(certain):
        repaired = scored.trust.last_repair(int(node))
        certain[node] = last_evidence(history, scored, int(node)) > repaired
    bad = marked_now(history.events, MARKED_BAD, n, history.as_of)
    return ((certain & ~marked_now(history.events, MARKED_IGNORE, n, history.as_of)) | bad) & history.nodes.here


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
    rate = f"fails {times:.1f} times as often as the median node"
    marked = _marked(history, node)
    words = "; ".join([*marked, *([rate] if not marked or times >= TIMES_MEDIAN else []), *evidence])
    why = "marked bad by hand" if marked and times < TIMES_MEDIAN else f"{times:.1f} x the median failure rate"
    command = f'scontrol update NodeName={name} State=DRAIN Reason="workhorse: {why}"'
    gain = (float(scored.hazard[node]) - middle) * float(scored.exposure.busy[node]) / max(_days(history), 1.0) * 30.0
    return Lemon(name, probability, times, max(gain, 0.0), users, known, likely, words, command)


def _days(history: History) -> float:
    """Days that the history tells of: a month's dump in a window of 90 days is a month."""
    first = max(history.window_start, float(history.tasks.start.min(initial=history.as_of)))
    return (history.as_of - first) / 86400.0


def _marked(history: History, node: int) -> list[str]:
    """Whether the node is marked bad, since when and why."""
    if not marked_now(history.events, MARKED_BAD, len(history.nodes), history.as_of)[node]:
        return []
    last = np.flatnonzero((history.events.node == node) & (history.events.kind == MARKED_BAD))[-1]
    return [f"marked bad by hand {day(history.events.start[last])}{history.events.said(last)}"]


def _jobs(history: History, scored: Attribution, rows: Any) -> tuple[tuple[int, float], ...]:
    """(job id, blame) of the failures in these candidate rows, heaviest first, then latest; one job of each failure."""
    wanted = {int(scored.failures.failure[row]): float(scored.blame[row]) for row in rows}
    attempts = np.flatnonzero(np.isin(scored.failures.of_attempt, list(wanted)))
    job_of = {int(scored.failures.of_attempt[a]): int(history.attempts.job[a]) for a in reversed(attempts)}
    return tuple(sorted(((job_of[f], blame) for f, blame in wanted.items()), key=lambda pair: (-pair[1], -pair[0])))


def _evidence(
    history: History, scored: Attribution, node: int, *, known: tuple[Any, ...], likely: tuple[Any, ...], users: int
) -> list[str]:
    parts = []
    if known:
        parts.append(f"known to have ended {count(len(known), 'job')} ({_listed([str(j) for j, _ in known])})")
    if likely:
        listed = _listed([f"{job} {blame:.0%}" for job, blame in likely])
        parts.append(f"a likely cause of {count(len(likely), 'more failure' if known else 'failure')} ({listed})")
    if known or likely:
        parts.append(f"jobs of {count(users, 'user')}")
    alone = scored.evidence_events & (history.events.node == node)
    beside = _beside(history, scored, node) & ~alone
    for rows, words in ((beside, "with them it"), (alone, "and by itself it")):
        if rows.any():
            parts.append(f"{words} {_listed(_told(history, np.flatnonzero(rows)[::-1]))}")
    return parts


def _beside(history: History, scored: Attribution, node: int) -> Any:
    """Rows of events (bool array) of the node that tell the same as failures it is known to have caused."""
    found = np.zeros(len(history.events), bool)
    rows = np.flatnonzero(scored.failures.culprit & (scored.failures.node == node))
    for time in scored.failures.time[scored.failures.failure[rows]].tolist():
        found[near(history.events, node, time, EVENT_NEAR)] = True
    return found & np.isin(history.events.kind, list(EVENT_WORDS))


def _told(history: History, rows: Any) -> list[str]:
    """Events in words, those of one kind and reason as one with their number and last day."""
    kinds: dict[str, list[float]] = {}
    for e in rows.tolist():
        what = f"{EVENT_WORDS[int(history.events.kind[e])]}{history.events.said(e)}"
        kinds.setdefault(what, []).append(float(history.events.start[e]))
    return [f"{what} {day(times[0]) if len(times) == 1 else _often(times)}" for what, times in kinds.items()]


def _often(times: list[float]) -> str:
    return f"{len(times)} times, last {day(max(times))}"


def day(time: float) -> str:
    """A day in words, UTC, so that the same history reads the same everywhere."""
    return clock.strftime("%Y-%m-%d", clock.gmtime(time))


def _listed(items: list[str], most: int = 5) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def failed_attempts(history: History) -> FloatArray:
    """Failed attempts per node, plainly counted: what a naive count would say."""
    failed = history.attempts.outcome[history.tasks.attempt] == WRONG
    return sum_by(history.tasks.node, failed.astype(float), len(history.nodes))
