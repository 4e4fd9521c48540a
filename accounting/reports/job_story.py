"""Who broke job 4711? One sentence from accounting, with probability and evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_hook.common.terminal import count

from ..history.columns import DOWN, DRAIN, REASON_HARDWARE, REASON_USER, REPORTED, RIGHT, SILENT, WRONG, History
from ..scoring.attributed_method import Attribution
from ..scoring.failures import near
from ..scoring.lemons import LIKELY_BLAME
from ..scoring.suspects import EARLY, FAILURES, USERS, WITHIN

FAILED, STEP_FAILED, MARKED = "it failed", "a step of the completed job failed", "its result, marked wrong, came"
SURE = 0.5  # share of the blame from which a cause is named
SOON = 1800.0  # s: an event this soon after the failure is told
FEW = 10  # failures; with fewer nothing is known of what usually breaks here
WEEK = 7 * 86400.0
OUTCOMES = {RIGHT: "ended right", SILENT: "was cancelled or says nothing", WRONG: "failed"}
EVENT_WORDS = {DOWN: "went down", DRAIN: "was drained", REPORTED: "was reported"}
REASON_WORDS = {REASON_HARDWARE: " for a hardware reason", REASON_USER: " for a user's reason"}


@dataclass(frozen=True)
class Verdict:
    """cause: "node", "job", "unknown" or "none" (it didn't fail); nodes: (name, share) of the candidates, largest first;
    own: share of the job itself; sentence: for people."""

    job: str
    cause: str
    nodes: tuple[tuple[str, float], ...]
    own: float
    sentence: str


def who_broke(
    history: History, scored: Attribution, number: int | None, label: str = "", last: tuple[str, float] = (FAILED, 0.0), *,
    since: float = 0.0,
) -> Verdict:  # fmt: skip
    """The verdict on the last failed attempt of a job, or why there is none.

    number: Slurm's own (None: accounting doesn't know it); label: as people see it; last: what the failure of an attempt was
    (FAILED, STEP_FAILED or MARKED) that began at this moment (epoch s) or later, others just failed; since: what began before
    is of an earlier job of this number (epoch s).
    """
    job = label or str(number)
    if number is None:
        why = f"not in the history of cluster {history.cluster}; if it is new, the next collect reads it"
        return Verdict(job, "none", (), 0.0, f"job {job}: {why}")
    attempts = np.flatnonzero((history.attempts.job == number) & (scored.ran.start >= since))
    if len(attempts) == 0:
        stretch = f"it never ran in the {(history.as_of - history.window_start) / 86400:g} days that are scored"
        return Verdict(job, "none", (), 0.0, f"job {job}: {stretch}")
    failed = attempts[scored.failures.of_attempt[attempts] >= 0]
    if len(failed) == 0:
        end = OUTCOMES.get(int(history.attempts.outcome[attempts[-1]]), "still runs, or ended at its time limit")
        return Verdict(job, "none", (), 0.0, f"job {job}: no failed attempt; the last one {end}")
    attempt = failed[np.argmax(scored.ran.end[failed])]
    failure = int(scored.failures.of_attempt[attempt])
    how = last[0] if scored.ran.start[attempt] >= last[1] else FAILED
    rows = np.flatnonzero(scored.failures.failure == failure)
    rows = rows[np.argsort(-scored.blame[rows], kind="stable")]
    nodes = tuple((history.nodes.names[int(scored.failures.node[r])], float(scored.blame[r])) for r in rows)
    own = float(scored.own[failure])
    care = "" if len(scored.failures) >= FEW else f" (only {len(scored.failures)} failures are known: hardly more than a guess)"
    if nodes and (scored.failures.known[failure] or (nodes[0][1] > _next(nodes) and nodes[0][1] >= max(SURE, own))):
        return Verdict(job, "node", nodes, own, f"job {job}: {_node_sentence(history, scored, failure, int(rows[0]), how)}{care}")
    if own >= SURE:
        sentence = f"job {job}: the job itself, {own:.0%}: {_own_words(history, scored, failure, how)}{care}"
        return Verdict(job, "job", nodes, own, sentence)
    likeliest = ", ".join(f"{name} {share:.0%}" for name, share in nodes[:3])
    if scored.failures.lost[failure]:
        likeliest = f"{likeliest}; Slurm says that a node was lost, not which"
    return Verdict(job, "unknown", nodes, own, f"job {job}: unknown; the job itself {own:.0%}, {likeliest}{care}")


def _next(nodes: tuple[tuple[str, float], ...]) -> float:
    """The share of the second, who is as likely when it is as large."""
    return nodes[1][1] if len(nodes) > 1 else 0.0


def _own_words(history: History, scored: Attribution, failure: int, how: str) -> str:
    work = history.attempts.work == scored.failures.work[failure]
    failed = int((work & (history.attempts.outcome == WRONG)).sum())
    when = f"{how} after {lasted(float(scored.failures.elapsed[failure]) * 3600.0)}"
    return f"{when}, and {failed} of {int(work.sum())} attempts of its kind of work failed{_burst(history, scored, failure)}"


def lasted(seconds: float) -> str:
    """A run time: 42 s, 9 min, 13.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _burst(history: History, scored: Attribution, failure: int) -> str:
    """A node that kills jobs in their first minutes leaves no time from which a rate could be told: what is then known is
    that jobs of several users died so on it within the hour."""
    failures = scored.failures
    if failures.elapsed[failure] * 3600.0 > EARLY:
        return ""
    alike = (failures.elapsed * 3600.0 <= EARLY) & (np.abs(failures.time - failures.time[failure]) <= WITHIN)
    told = []
    for node in failures.node[failures.failure == failure].tolist():
        found = failures.failure[(failures.node == node) & alike[failures.failure]]
        users = len(set(failures.user[found].tolist()))
        if len(found) >= FAILURES and users >= USERS:
            told.append(f"{history.nodes.names[node]}: {count(len(found), 'job')} of {count(users, 'user')}")
    return f"; but look at its nodes, where early failures came within an hour ({', '.join(told[:3])})" if told else ""


def _node_sentence(history: History, scored: Attribution, failure: int, row: int, how: str) -> str:
    failures, node = scored.failures, int(scored.failures.node[row])
    evidence = [
        *([] if how == FAILED else [f"{how} there"]),
        *_events(history, node, float(failures.time[failure])),
        *_others(scored, node, failure),
        *_rate(scored, node),
    ]
    if failures.culprit[row] and not any("drained" in e or "down" in e for e in evidence):
        alone = failures.lost[failure] and (failures.failure == failure).sum() == 1
        evidence.insert(0, "its only node, and Slurm lost it" if alone else "named by Slurm as the failed node")
    told = "; ".join(evidence) or "the likeliest of its nodes"
    return f"{history.nodes.names[node]}, {scored.blame[row]:.0%}: {told}"


def _events(history: History, node: int, time: float) -> list[str]:
    told = []
    for e in near(history.events, node, time, SOON):
        word = EVENT_WORDS.get(int(history.events.kind[e]))
        if word:
            minutes = max(0.0, (history.events.start[e] - time) / 60.0)
            when = "at that moment" if minutes < 1 else f"{minutes:.0f} min later"
            told.append(f"{word}{REASON_WORDS.get(int(history.events.reason[e]), '')}{history.events.said(e)} {when}")
    return told[:2]


def _others(scored: Attribution, node: int, failure: int) -> list[str]:
    """How many other users' jobs died there in the week around: as counts, never by name."""
    failures = scored.failures
    rows = np.flatnonzero((failures.node == node) & (scored.blame >= LIKELY_BLAME) & (failures.failure != failure))
    which = failures.failure[rows]
    which = which[np.abs(failures.time[which] - failures.time[failure]) <= WEEK]
    others: Any = which[failures.user[which] != failures.user[failure]]
    if len(others) == 0:
        return []
    users = len(set(failures.user[others].tolist()))
    return [f"{count(len(others), 'job')} of {count(users, 'other user')} died there within a week of it"]


def _rate(scored: Attribution, node: int) -> list[str]:
    times = float(scored.hazard[node] / np.median(scored.hazard))
    return [f"it fails {times:.1f} times as often as the median node"] if times >= 1.5 else []
