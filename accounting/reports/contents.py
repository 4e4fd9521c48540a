"""What the report says: gathered from history, scores and logged decisions into plain records. Drawing is report_html's.

Nothing here depends on the clock: `as_of` and the decisions are arguments.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slurm_hook.common.config import Settings
from slurm_hook.common.progress import Step, silent

from ..evaluation.decisions import fallback
from ..history.columns import WRONG, History
from ..history.columns_reader import load_history
from ..scoring import carried, lemons, published_method, score
from ..scoring.attributed_method import Attribution, attribute
from ..scoring.outliers import outliers
from . import job_story
from .metrics import decision_key
from .story import Story, first_jobs, stories

WORST_NODES = 10
BIG_FAILURES = 20
BIG_DAYS = 30.0
SHOWN_DECISIONS = 40
NODES_PER_BLOCK = 32  # where no switches are known
WEEK = 7 * 86400.0
STEPS = 3
ALIKE = 0.95  # a node at this share of the median or above doesn't stand out


@dataclass(frozen=True)
class Cell:
    """A node in the heat map. relative: capability over the median, None without one of its own."""

    name: str
    relative: float | None
    low: float | None
    high: float | None
    hazard: float | None
    tasks: int
    lemon: bool
    suspect: bool
    note: str


@dataclass(frozen=True)
class Block:
    """Nodes of one leaf switch (or neighbours, where switches aren't known)."""

    name: str
    cells: tuple[Cell, ...]
    leaf: bool = True


@dataclass(frozen=True)
class Worst:
    """One of the worst nodes: its cell, its story, the evidence in words (lemons and outliers) and the command (lemons)."""

    cell: Cell
    story: Story
    words: str
    command: str


@dataclass(frozen=True)
class BigFailure:
    """A costly failure. suspects: (node, blame) from the likeliest down; own: the job's own share; work: user/job name;
    sentence: who broke it, as `workhorse explain` says it."""

    time: float
    job: int
    work: str
    nodes: int
    lost_hours: float
    own: float
    known: bool
    suspects: tuple[tuple[str, float], ...]
    sentence: str


@dataclass(frozen=True)
class Week:
    """Failures that ended in a week: expected number caused by nodes and by the jobs themselves."""

    start: float
    by_nodes: float
    by_jobs: float


@dataclass(frozen=True)
class Overview:
    """The key figures. node_hours: of all tasks; lost_hours: node-hours of failed attempts; node_lost_hours: of those the
    nodes' share of the blame."""

    cluster: str
    method: str
    mode: str
    as_of: float
    window_start: float
    nodes: int
    scored: int
    lemons: int
    suspects: int
    jobs: int
    node_hours: float
    failures: int
    node_failures: float
    lost_hours: float
    node_lost_hours: float
    median_mtbf: float | None
    heavy_threshold: float


@dataclass(frozen=True)
class Report:
    """Everything that is drawn. decisions: lines as logged, newest first; by_day: (day, {action: count}), oldest first;
    fallbacks: why mode steer acted as avoid, how often; effect: what `workhorse effect` found, as lines."""

    overview: Overview
    blocks: tuple[Block, ...]
    worst: tuple[Worst, ...]
    failures: tuple[BigFailure, ...]
    weeks: tuple[Week, ...]
    decisions: tuple[Mapping[str, Any], ...]
    by_day: tuple[tuple[str, Mapping[str, int]], ...]
    routes: Mapping[str, int]
    fallbacks: Mapping[str, int]
    effect: tuple[str, ...]
    notes: tuple[str, ...]


def gather(
    db: Any, cluster: str, settings: Settings, *, as_of: float, decisions: Iterable[Mapping[str, Any]] = (),
    effect: Sequence[str] = (), step: Step = silent,
) -> Report:  # fmt: skip
    """The report on one cluster. Raises StoreError when the history doesn't have it."""
    step("reading the history")
    history = load_history(db, cluster, as_of, settings.scoring.window_days, settings)
    step("scoring")
    threshold = carried.threshold(db, cluster, carried.kind(settings), as_of)
    table = score.score_history(history, settings, threshold=threshold)
    options = carried.options(db, cluster, settings, as_of)
    scored = attribute(history, options, score.model(settings))
    step("telling the stories")
    published = published_method.score_history(history, options)
    rows = [row for row, here in zip(table.rows, history.nodes.here.tolist()) if here]  # those that left are nobody's care
    cells = {row.name: _cell(row, as_of) for row in rows}
    lines = sorted(decisions, key=lambda line: -float(line.get("time", 0)))
    return Report(
        overview=_overview(history, scored, replace(table, rows=tuple(rows)), settings),
        blocks=_blocks(history, cells),
        worst=_worst(db, history, scored, published, cells),
        failures=big_failures(history, scored, as_of - BIG_DAYS * 86400),
        weeks=_weeks(history, scored),
        decisions=tuple(lines[:SHOWN_DECISIONS]),
        by_day=_by_day(lines),
        routes=dict(Counter(decision_key(line)[0] for line in lines)),
        fallbacks=dict(Counter(filter(None, map(fallback, lines))).most_common()),
        effect=tuple(effect),
        notes=table.notes,
    )


def _cell(row: score.NodeRow, as_of: float) -> Cell:
    return Cell(row.name, row.relative, row.low, row.high, row.hazard, row.tasks, row.lemon, row.suspect_until > as_of, row.note)


def _overview(history: History, scored: Attribution, table: score.ScoreTable, settings: Settings) -> Overview:
    tasks, failures = history.tasks, scored.failures
    hours = np.maximum(np.minimum(tasks.end, history.as_of) - tasks.start, 0) / 3600
    failure = failures.of_attempt[tasks.attempt]
    lost = (history.attempts.outcome[tasks.attempt] == WRONG) & (failure >= 0)
    blamed = 1.0 - scored.own[failure[lost]]
    own = [row for row in table.rows if row.capability is not None]
    return Overview(
        cluster=history.cluster, method=table.method, mode=settings.steer.mode, as_of=history.as_of,
        window_start=history.window_start, nodes=len(table.rows), scored=len(own), lemons=sum(r.lemon for r in table.rows),
        suspects=sum(r.suspect_until > history.as_of for r in table.rows), jobs=len(np.unique(history.attempts.job)),
        node_hours=float(hours.sum()), failures=len(failures), node_failures=float((1.0 - scored.own).sum()),
        lost_hours=float(hours[lost].sum()), node_lost_hours=float((hours[lost] * blamed).sum()),
        median_mtbf=float(np.median(scored.reliability)) if len(scored.reliability) else None,
        heavy_threshold=table.heavy_threshold,
    )  # fmt: skip


def _blocks(history: History, cells: Mapping[str, Cell]) -> tuple[Block, ...]:
    """By leaf switch in the order of their names; nodes without one in blocks of neighbours."""
    names = history.nodes.names
    of_switch: dict[str, list[str]] = {}
    for name, switch in zip(names, history.nodes.switch):
        if name in cells:
            of_switch.setdefault(history.nodes.switches[switch] if switch >= 0 else "", []).append(name)
    loose = sorted(of_switch.pop("", []), key=hostlist_key)
    switches = sorted(of_switch, key=hostlist_key)
    blocks = [Block(s, tuple(cells[n] for n in sorted(of_switch[s], key=hostlist_key))) for s in switches]
    for at in range(0, len(loose), NODES_PER_BLOCK):
        part = loose[at : at + NODES_PER_BLOCK]
        blocks.append(Block(_from_to(part[0], part[-1]), tuple(cells[n] for n in part), leaf=False))
    return tuple(blocks)


def _from_to(first: str, last: str) -> str:
    """Such as n0001–0032."""
    if first == last:
        return first
    alike = next((at for at, (a, b) in enumerate(zip(first, last)) if a != b), 0)
    return f"{first}–{last[len(first[:alike].rstrip('0123456789')) :]}"


def hostlist_key(name: str) -> tuple[Any, ...]:
    """Sorts n2 before n10."""
    words = re.findall(r"[0-9]+|[^0-9]+", name)
    return tuple((0, int(word), "") if word[0] in "0123456789" else (1, 0, word) for word in words)


def _worst(
    db: Any, history: History, scored: Attribution, published: published_method.CapabilityTable, cells: Mapping[str, Cell]
) -> tuple[Worst, ...]:
    """Lemons and suspects first, then by capability; of nodes that are alike, the one blamed for most failures first, then
    the one that has done most. Nodes that don't stand out aren't listed."""
    told = {one.name: (one.words, "") for one in outliers(history, scored)}
    told.update({lemon.name: (lemon.words, lemon.command) for lemon in lemons.describe(history, scored)})
    position = {name: at for at, name in enumerate(history.nodes.names)}
    failures = scored.failures
    blamed = np.zeros(len(position))
    np.add.at(blamed, failures.node, scored.blame)
    rated = [c for c in cells.values() if c.lemon or c.suspect or (c.relative is not None and c.relative < ALIKE)]
    chosen = sorted(rated, key=lambda c: _badness(c, float(blamed[position[c.name]])))[:WORST_NODES]
    found = stories(db, history, scored, published, [position[cell.name] for cell in chosen])
    evidence = [told.get(cell.name, ("", "")) for cell in chosen]
    return tuple(Worst(cell, story, *words) for cell, story, words in zip(chosen, found, evidence))


def _badness(cell: Cell, blamed: float) -> tuple[Any, ...]:
    """Sorts the worst first. Two digits of the capability: what differs by less is alike."""
    relative = round(cell.relative, 2) if cell.relative is not None else np.inf
    return (not cell.lemon, not cell.suspect, relative, -round(blamed, 2), -cell.tasks, hostlist_key(cell.name))


def big_failures(history: History, scored: Attribution, since: float) -> tuple[BigFailure, ...]:
    """The failures since a moment that lost most node-hours on two nodes or more, newest first."""
    failures, tasks = scored.failures, history.tasks
    if not len(failures):
        return ()
    failure = failures.of_attempt[tasks.attempt]
    hours = np.maximum(tasks.end - tasks.start, 0) / 3600
    lost = np.bincount(failure[failure >= 0], weights=hours[failure >= 0], minlength=len(failures))
    sizes = np.bincount(failures.failure, minlength=len(failures))
    at = np.flatnonzero((failures.time >= since) & (sizes >= 2))
    at = at[np.argsort(-lost[at], kind="stable")][:BIG_FAILURES]
    jobs = first_jobs(history, scored)
    order = np.argsort(failures.failure, kind="stable")
    first = np.searchsorted(failures.failure[order], np.arange(len(failures) + 1))
    return tuple(
        BigFailure(
            time=float(failures.time[f]), job=jobs.get(int(f), 0), work=history.attempts.works[failures.work[f]],
            nodes=int(sizes[f]), lost_hours=float(lost[f]), own=float(scored.own[f]), known=bool(failures.known[f]),
            suspects=_suspects(history, scored, order[first[f] : first[f + 1]]),
            sentence=_sentence(history, scored, int(f), jobs),
        )
        for f in at[np.argsort(-failures.time[at], kind="stable")]
    )  # fmt: skip


def _suspects(history: History, scored: Attribution, rows: Any) -> tuple[tuple[str, float], ...]:
    rows = rows[np.argsort(-scored.blame[rows], kind="stable")][:3]
    named = [(history.nodes.names[scored.failures.node[row]], float(scored.blame[row])) for row in rows]
    return tuple((name, blame) for name, blame in named if blame >= 0.05)


def _weeks(history: History, scored: Attribution) -> tuple[Week, ...]:
    """Weeks back from `as_of`, oldest first; the first may be cut by the window."""
    if not len(scored.failures):
        return ()
    back = np.floor((history.as_of - scored.failures.time) / WEEK).astype(int).clip(0)
    count = int(np.ceil((history.as_of - history.window_start) / WEEK))
    nodes = np.bincount(back, weights=1.0 - scored.own, minlength=count)
    own = np.bincount(back, weights=scored.own, minlength=count)
    return tuple(Week(history.as_of - (i + 1) * WEEK, float(nodes[i]), float(own[i])) for i in reversed(range(count)))


def _by_day(lines: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, Mapping[str, int]], ...]:
    days: dict[str, Counter[str]] = {}
    for line in reversed(lines):
        day = time.strftime("%Y-%m-%d", time.localtime(float(line.get("time", 0))))
        days.setdefault(day, Counter())[decision_key(line)[1]] += 1
    return tuple(days.items())


def _sentence(history: History, scored: Attribution, failure: int, jobs: Mapping[int, int]) -> str:
    """What `explain` says. It speaks of a job's last failure; of an earlier one the shares are told."""
    said = job_story.who_broke(history, scored, jobs.get(failure, 0))
    rows = np.flatnonzero(scored.failures.failure == failure)
    top = float(scored.blame[rows].max()) if len(rows) else 0.0
    if said.nodes and (said.own, said.nodes[0][1]) == (float(scored.own[failure]), top):
        return said.sentence.split(": ", 1)[1]
    named = [f"{name} {blame:.0%}" for name, blame in _suspects(history, scored, rows)]
    return ", ".join([f"the job itself {scored.own[failure]:.0%}", *named])
