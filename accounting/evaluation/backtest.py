"""How well scores from the first part of a history predict the node-caused failures of the second.

An admin decides by it whether to switch steering on. Labels are what Slurm or a ticket says, never our own blame: failed
nodes named by Slurm, hardware drains, or a file of tickets. A training run that was submitted again after a failure stays
on the side of the split where it began.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np
from scipy.special import gammaincinv

from slurm_hook.common.errors import InputError
from slurm_hook.common.progress import Step, silent

from ..history.columns import DOWN, DRAIN, REASON_HARDWARE, RIGHT, FloatArray, History, sum_by, together
from ..history.truncate import until
from ..scoring.attributed_method import attribute
from ..scoring.em import Model
from ..scoring.failures import SAME_OUTAGE
from ..scoring.lemons import failed_attempts
from ..scoring.published_method import Options
from ..sources.converters import LAST_TIME

DAY = 86400.0
CHAIN = DAY  # a run submitted again within a day of its failure is the same run
WORST = (0.01, 0.03, 0.05)
DRAWS = 1000
STEPS = 3
_POWER = (1.645 + 0.842) ** 2  # one-sided 5 %, power 80 %


@dataclass(frozen=True)
class Value:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Backtest:
    """auc and lift by predictor ("scores", "counts"); calibration: (nodes, expected, observed, low, high) by third of the
    predicted hazard; covered_days: how much of the first part the history tells of; failures: labelled failures in the
    test part; weeks: of steering until the effect shows (None: never).
    """

    train_days: float
    covered_days: float
    test_days: float
    nodes: int
    failures: int
    failed_nodes: int
    dropped_attempts: int
    auc: dict[str, Value]
    lift: dict[str, dict[float, Value]]
    calibration: tuple[tuple[int, float, int, float, float], ...]
    per_week: float
    avoidable: float
    weeks: float | None


def backtest(
    history: History, train_days: float, test_days: float, *, options: Options | None = None, model: Model | None = None,
    truth: Any = None, worst_share: float = 0.02, step: Step = silent,
) -> Backtest:  # fmt: skip
    """Score the first part, count labelled failures per node in the second. truth: (node indices, times) instead of labels.

    worst_share: how much steering in mode `avoid` leaves out; step: told of each of the STEPS. Raises InputError when a part
    is empty.
    """
    split = history.as_of - test_days * DAY
    train = until(history, split, split - train_days * DAY)
    if len(train.tasks) == 0 or len(train.tasks) == len(history.tasks):
        raise InputError("backtest: one of the two parts has no work; choose other lengths with --train and --test")
    step("scoring the first part")
    scored = attribute(train, options, model)
    step("counting failures of the second")
    dropped = straddling(history, split)
    failures = truth_counts(history, split, truth) if truth is not None else labelled(history, split, dropped)
    hours = _test_hours(history, split, dropped)
    seen = (hours > 0) | (failures > 0)  # one whose every job died at once has failures and no hours
    predictors = {"scores": scored.hazard[seen], "counts": failed_attempts(train)[seen]}
    observed, hours = failures[seen], hours[seen]
    step("intervals")
    lift = {name: _lifts(score, observed, hours) for name, score in predictors.items()}
    avoidable = _avoidable(predictors["scores"], observed, hours, worst_share)
    per_week = float(observed.sum()) / test_days * 7
    covered = min(train_days, (split - float(train.tasks.start.min())) / DAY)
    return Backtest(
        train_days, covered, test_days, int(seen.sum()), int(observed.sum()), int((observed > 0).sum()), int(dropped.sum()),
        {name: _auc(score, observed) for name, score in predictors.items()}, lift,
        _calibration(predictors["scores"], observed, hours), per_week, avoidable, _weeks(per_week, avoidable),
    )  # fmt: skip


def straddling(history: History, split: float) -> Any:
    """Attempts (bool array) that began after the split but belong to a run that began before it.

    A run: attempts of one kind of work, each submitted again within a day of the one before, which didn't end right.
    """
    attempts, tasks, n = history.attempts, history.tasks, len(history.attempts)
    start, end = np.full(n, np.inf), np.full(n, -np.inf)
    start[tasks.attempt], end[tasks.attempt] = tasks.start, tasks.end
    order = np.lexsort((start, attempts.work))
    work, begun, ended = attempts.work[order], start[order], end[order]
    again = np.zeros(n, bool)
    again[1:] = (work[1:] == work[:-1]) & (begun[1:] - ended[:-1] <= CHAIN) & (attempts.outcome[order][:-1] != RIGHT)
    run = np.cumsum(~again) - 1
    first = np.full(int(run[-1]) + 1 if n else 0, np.inf)
    np.minimum.at(first, run, begun)
    result = np.zeros(n, bool)
    result[order] = (first[run] < split) & (begun >= split)
    return result


def labelled(history: History, split: float, dropped: Any) -> FloatArray:
    """Node-caused failures per node after the split: named culprits and hardware outages, one per outage."""
    tasks, events = history.tasks, history.events
    rows = tasks.culprit & (tasks.start >= split) & ~dropped[tasks.attempt]
    hard = (events.reason == REASON_HARDWARE) & ((events.kind == DRAIN) | (events.kind == DOWN)) & (events.start >= split)
    node = np.concatenate([tasks.node[rows], events.node[hard]])
    time = np.concatenate([np.minimum(tasks.end[rows], history.as_of), events.start[hard]])
    return _once(node, time, len(history.nodes), 1800.0)


def truth_counts(history: History, split: float, truth: tuple[Any, FloatArray]) -> FloatArray:
    """The same from tickets: node indices and times."""
    node, time = truth
    inside = (time >= split) & (time <= history.as_of)
    return _once(node[inside], time[inside], len(history.nodes), SAME_OUTAGE)


def _once(node: Any, time: FloatArray, n: int, within: float) -> FloatArray:
    """Failures per node, those within `within` s of the first counted once."""
    outage = together(node, time, within)
    first = np.unique(outage, return_index=True)[1]
    return sum_by(node[first], np.ones(len(first)), n)


def read_truth(path: str, history: History, unknown: list[str] | None = None) -> tuple[Any, FloatArray]:
    """Tickets: a CSV with columns `node` and `time` (epoch seconds or ISO 8601, UTC where no zone is given).

    Raises InputError naming line and mend. Nodes that the history doesn't know are left out, and noted in `unknown`.
    """
    position = {name: i for i, name in enumerate(history.nodes.names)}
    nodes, moments = [], []
    strangers: list[str] = []
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if not {"node", "time"} <= set(reader.fieldnames or ()):
                raise InputError(f"{path}: no columns `node` and `time` in its first line; add a header line node,time")
            for row in reader:
                if row["node"] not in position:
                    strangers.append(row["node"] or "")
                    continue
                nodes.append(position[row["node"]])
                moments.append(_moment(row["time"] or "", f"{path}, line {reader.line_num}"))
    except (OSError, UnicodeDecodeError, csv.Error) as err:
        raise InputError(f"{path}: can't be read ({getattr(err, 'strerror', None) or err}); give a CSV file in UTF-8") from err
    if unknown is not None:
        unknown.extend(strangers)
    return np.array(nodes, np.int64), np.array(moments, np.float64)


def _moment(text: str, where: str) -> float:
    try:
        if 0 < float(text) < LAST_TIME:
            return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"{where}: {text!r} is not a time; write epoch seconds or 2026-01-31T12:00:00") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _test_hours(history: History, split: float, dropped: Any) -> FloatArray:
    tasks = history.tasks
    rows = (tasks.end > split) & ~dropped[tasks.attempt]
    hours = (np.minimum(tasks.end, history.as_of) - np.maximum(tasks.start, split))[rows] / 3600.0
    return sum_by(tasks.node[rows], np.maximum(hours, 0.0), len(history.nodes))


def auc(score: FloatArray, bad: Any) -> float:
    """Probability that a node that failed had scored above one that did not, ties halved; NaN where all or none failed."""
    positive = int(bad.sum())
    if positive in (0, len(bad)):
        return float("nan")
    where = np.unique(score, return_inverse=True)[1]
    counts = np.bincount(where)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[where]
    return float((ranks[bad].sum() - positive * (positive + 1) / 2) / (positive * (len(bad) - positive)))


def _auc(score: FloatArray, failures: FloatArray) -> Value:
    return _bootstrap(len(score), lambda pick: auc(score[pick], failures[pick] > 0))


def _bootstrap(n: int, statistic: Any) -> Value:
    """The statistic with a 95 % interval by resampling nodes; the same draws each time."""
    rng = np.random.default_rng(0)
    drawn = np.array([statistic(rng.integers(0, n, n)) for _ in range(DRAWS)])
    drawn = drawn[np.isfinite(drawn)]
    low, high = np.percentile(drawn, [2.5, 97.5]) if len(drawn) else (np.nan, np.nan)
    return Value(float(statistic(np.arange(n))), float(low), float(high))


def _worst(score: FloatArray, share: float) -> Any:
    count = max(1, round(share * len(score)))
    return np.argsort(-score, kind="stable")[:count]


def _lift(score: FloatArray, failures: FloatArray, hours: FloatArray, share: float) -> float:
    """Failures per hour on the worst nodes over those on all; NaN where nothing failed or the worst had not an hour."""
    worst = _worst(score, share)
    usual = failures.sum() / max(hours.sum(), 1e-9)
    defined = usual > 0 and hours[worst].sum() > 0
    return float(failures[worst].sum() / hours[worst].sum() / usual) if defined else float("nan")


def _lifts(score: FloatArray, failures: FloatArray, hours: FloatArray) -> dict[float, Value]:
    return {
        share: _bootstrap(len(score), lambda pick, s=share: _lift(score[pick], failures[pick], hours[pick], s)) for share in WORST
    }


def _calibration(hazard: FloatArray, failures: FloatArray, hours: FloatArray) -> tuple[tuple[int, float, int, float, float], ...]:
    """By third of the predicted hazard: nodes, expected and observed failures, exact Poisson interval of the observed."""
    rows = []
    for part in np.array_split(np.argsort(hazard, kind="stable"), 3):
        seen = int(failures[part].sum())
        low = gammaincinv(seen, 0.025) if seen else 0.0
        rows.append((len(part), float((hazard * hours)[part].sum()), seen, float(low), float(gammaincinv(seen + 1, 0.975))))
    return tuple(rows)


def _avoidable(score: FloatArray, failures: FloatArray, hours: FloatArray, share: float) -> float:
    """Share of the failures that would not have been, had the worst nodes' hours gone to the others."""
    worst = _worst(score, share)
    rest = np.delete(np.arange(len(score)), worst)
    total = failures.sum()
    if total == 0 or len(rest) == 0:
        return 0.0
    moved = hours[worst].sum() * failures[rest].sum() / max(hours[rest].sum(), 1e-9)
    return float(max(0.0, (failures[worst].sum() - moved) / total))


def _weeks(per_week: float, avoidable: float) -> float | None:
    """Weeks with steering, after as many without, until the difference of two Poisson counts shows."""
    if per_week <= 0 or avoidable <= 0.01:
        return None
    return _POWER * (2 - avoidable) / (per_week * avoidable**2)
