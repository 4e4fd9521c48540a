"""How long each node carried work, and how full it was: the attributed method's utilization, exposure and breakdown.

Utilization is the node's: the summed demand over capacity of all tasks that run on it at the same time, so that eight
1-GPU tasks make a heavy node; hours are wall time, counted once. One sorted pass over all task ends of the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ..history.columns import SILENT, WRONG, FloatArray, History, Tasks, sum_by
from . import stretches
from .published_method import HOUR, Options, heavy_groups, otsu
from .stretches import Stretches
from .theilsen import BOUNDS, bound_of, pairs, slopes
from .trust import Trust

LIGHT_WEIGHT = 0.25  # exposure and failures outside heavy work weigh this much
_QUANTUM = 2.0**32  # utilization is summed in whole quanta: float sums would drift across a threshold
_GRID = 1024  # sorting resolution: 1/1024 s; Slurm's times are whole seconds


@dataclass(frozen=True)
class Exposure:
    """Arrays over nodes, in hours: weighted (faded, light hours at a quarter), heavy and busy (plain wall time),
    breakdown (share of the window). gain: what faded evidence is worth, see `measure`. Arrays over tasks: utilization
    (mean of the node's while the task ran; NaN in a settled stretch) and weight (of a failure at the task's end: 1 in heavy
    work, else a quarter). past: settled stretches for the next run, None where none were given."""

    weighted: FloatArray
    heavy: FloatArray
    busy: FloatArray
    breakdown: FloatArray
    utilization: FloatArray
    weight: FloatArray
    heavy_threshold: float
    gain: float = 1.0
    notes: tuple[str, ...] = ()
    past: Stretches | None = None


@dataclass(frozen=True)
class _Sweep:
    """All starts and ends sorted by node and time. `used` and `counting` (bool) hold from each row to the next (`hours` long)."""

    node: Any
    time: FloatArray
    hours: FloatArray
    used: FloatArray
    counting: Any
    at_start: Any
    at_end: Any


@dataclass(frozen=True)
class _Hours:
    """Hours over nodes: weighted, heavy, busy, overload (weighted by the loss of efficiency); of all nodes: faded, squares."""

    weighted: FloatArray
    heavy: FloatArray
    busy: FloatArray
    overload: FloatArray
    faded: float
    squares: float

    def gain(self) -> float:
        """What faded evidence is worth, see `measure`."""
        return float(np.clip(self.faded / self.squares, 1.0, 2.0)) if self.squares > 0 else 1.0


@dataclass(frozen=True)
class _Groups:
    """Heavy groups. order: tasks by node, start, end and job; heavy (bool, in that order); first (position in `order`), size;
    bound of their slopes, and how many were over it."""

    order: Any
    heavy: Any
    first: Any
    size: Any
    bound: int
    over: int


@dataclass(frozen=True)
class _Measured:
    """A history measured: arrays over tasks and nodes as in Exposure; the sweep and its rows' overload hours where settled
    stretches are to be cut."""

    hours: _Hours
    utilization: FloatArray
    weight: FloatArray
    threshold: float
    groups: _Groups
    sweep: _Sweep | None = None
    row_overload: FloatArray | None = None


def measure(history: History, options: Options, half_life_days: float, trust: Trust, past: Stretches | None = None) -> Exposure:
    """Exposure, utilization and breakdown of every node up to `history.as_of`. Silent attempts fill the node but their
    hours don't count. Tasks of unknown demand or capacity count as light.

    Weights below 1 make a sum of failures vary less than a count of the same size does. `gain` makes up for it, as Kish's
    effective sample size does: Σ w / Σ w² over the hours, between 1 and 2; charges and exposure times it have the
    variance of a count, and their ratio, the hazard, stays.

    past: settled stretches of an earlier run, which only fade; they serve while the threshold is a given one.
    """
    half_life = half_life_days * 24 * HOUR
    if past is None or options.heavy_threshold is None:
        return _exposure(history, _measured(history, options, half_life, trust))
    return _with_past(history, options, half_life, trust, past)


def _exposure(history: History, m: _Measured) -> Exposure:
    breakdown = m.hours.overload / np.maximum(_hours_there(history), 1.0)
    over, bound = m.groups.over, m.groups.bound
    notes = (f"{over} groups of over {bound} tasks: slope from {bound} evenly spaced ones",) if over else ()
    hours = m.hours
    return Exposure(
        hours.weighted, hours.heavy, hours.busy, breakdown, m.utilization, m.weight, m.threshold, hours.gain(), notes
    )  # fmt: skip


def _measured(
    history: History, options: Options, half_life: float, trust: Trust, known: Stretches | None = None
) -> _Measured:  # fmt: skip
    """All of a history at once. known: stretches beside it, whose heavy groups count for the bound; the sweep is kept then."""
    tasks = history.tasks
    start = np.minimum(tasks.start, history.as_of)
    end = np.clip(tasks.end, start, history.as_of)
    own = _own_utilization(tasks.demand, tasks.capacity)
    sweep = _sweep(tasks.node, start, end, own, history.attempts.outcome[tasks.attempt] != SILENT)
    utilization = _mean_utilization(sweep, start, end, own)
    threshold = options.heavy_threshold
    if threshold is None:
        threshold = otsu(utilization, options.clamp, options.bins)
    weighted, heavy, busy, faded, squares = _node_hours(sweep, threshold, history.as_of, half_life, trust)
    weight = np.where(_before_end(sweep, own) > threshold, 1.0, LIGHT_WEIGHT)
    if known is None:
        sweep = replace(sweep, time=sweep.time[:0])  # 16 bytes a task less from here on
    groups, row_overload = _groups(history, sweep, utilization, replace(options, heavy_threshold=threshold), known)
    overload = sum_by(sweep.node, row_overload, trust.n_nodes)
    hours = _Hours(weighted, heavy, busy, overload, faded, squares)
    if known is None:
        return _Measured(hours, utilization, weight, threshold, groups)
    return _Measured(hours, utilization, weight, threshold, groups, sweep, row_overload)


def _with_past(history: History, options: Options, half_life: float, trust: Trust, past: Stretches) -> Exposure:
    """The same from the stretches that hold and the tasks outside of them."""
    threshold = float(options.heavy_threshold or 0.0)
    max_gap = options.max_gap_hours * HOUR
    setting = (threshold, options.overload_threshold, max_gap, half_life)
    if not np.array_equal(past.setting, setting):
        past = stretches.none(setting)
    known = stretches.holding(past, history, trust)
    outside = np.flatnonzero(~known.inside)
    tasks = history.tasks
    fresh = replace(history, tasks=Tasks(*(getattr(tasks, field.name)[outside] for field in fields(Tasks))))
    m = _measured(fresh, options, half_life, trust, known.rows)
    if not known.rows.agree(m.groups.bound):
        return _with_past(history, options, half_life, trust, stretches.none(setting))
    new = stretches.cut(fresh, known, _as_cut(fresh, m, known.checksum[outside], half_life), max_gap)
    utilization, weight = np.full(len(tasks), np.nan), np.full(len(tasks), LIGHT_WEIGHT)
    utilization[outside], weight[outside] = m.utilization, m.weight
    weight[known.worn] = 1.0
    groups = replace(m.groups, over=m.groups.over + int(known.rows.over.sum()))
    whole = replace(m, hours=_added(m.hours, known, trust, history.as_of, half_life), utilization=utilization, weight=weight)
    return replace(_exposure(history, replace(whole, groups=groups)), past=known.kept().joined(new))


def _added(hours: _Hours, known: stretches.Known, trust: Trust, as_of: float, half_life: float) -> _Hours:
    """Hours with those of settled stretches, faded since they were summed."""
    rows, at, n = known.rows, known.at, trust.n_nodes
    fading = np.exp2((rows.made - as_of) / half_life)
    return _Hours(
        weighted=hours.weighted + sum_by(at, rows.weighted * fading * trust.factor(at, rows.first), n),
        heavy=hours.heavy + sum_by(at, rows.heavy, n),
        busy=hours.busy + sum_by(at, rows.busy, n),
        overload=hours.overload + sum_by(at, rows.overload, n),
        faded=hours.faded + float(np.dot(rows.faded, fading)),
        squares=hours.squares + float(np.dot(rows.squares, fading**2)),
    )


def _as_cut(fresh: History, m: _Measured, checksum: Any, half_life: float) -> stretches.Measured:
    """What new stretches are cut out of."""
    sweep, row_overload, groups = m.sweep, m.row_overload, m.groups
    assert sweep is not None and row_overload is not None  # noqa: S101
    counted = np.where(sweep.counting, sweep.hours, 0.0)
    is_heavy = sweep.used > m.threshold
    first, faded = _fading(sweep, fresh.as_of, half_life)
    squares = half_life / np.log(2.0) / HOUR / 2 * (faded - first) * (faded + first)
    faded = (faded - first) * (half_life / np.log(2.0) / HOUR)
    hours = {
        "busy": counted, "heavy": counted * is_heavy, "faded": faded, "squares": squares, "overload": row_overload,
        "weighted": np.where(is_heavy, faded, LIGHT_WEIGHT * faded),
    }  # fmt: skip
    worn = (fresh.attempts.outcome[fresh.tasks.attempt] == WRONG) & (m.weight == 1.0)
    return stretches.Measured(
        groups.order, groups.heavy, worn, checksum, sweep.node, sweep.time, hours, groups.first, groups.size, groups.bound
    )


def _node_hours(
    sweep: _Sweep, threshold: float, as_of: float, half_life: float, trust: Trust
) -> tuple[FloatArray, FloatArray, FloatArray, float, float]:
    """Hours per node: weighted, heavy, busy; faded ones and squares of all."""
    n, is_heavy = trust.n_nodes, sweep.used > threshold
    counted = np.where(sweep.counting, sweep.hours, 0.0)
    busy = sum_by(sweep.node, counted, n)
    counted *= is_heavy
    heavy = sum_by(sweep.node, counted, n)
    del counted
    faded, squares = _faded_hours(sweep, as_of, half_life)
    total = float(faded.sum())
    faded *= trust.factor(sweep.node, sweep.time)
    faded[~is_heavy] *= LIGHT_WEIGHT
    return sum_by(sweep.node, faded, n), heavy, busy, total, squares


def _own_utilization(demand: FloatArray, capacity: FloatArray) -> FloatArray:
    known = np.isfinite(demand) & (demand > 0) & np.isfinite(capacity) & (capacity > 0)
    return np.divide(demand, capacity, out=np.zeros(len(demand)), where=known).clip(0.0, 1.0)


def _sweep(node: Any, start: FloatArray, end: FloatArray, own: FloatArray, counts: Any) -> _Sweep:
    n = len(node)
    if n == 0:
        none = np.zeros(0)
        return _Sweep(none.astype(np.int64), none, none, none, none.astype(bool), *[none.astype(np.int64)] * 2)
    base = float(start.min())
    span = int((end.max() - base) * _GRID) + 1
    width = max(1, span.bit_length()) + 1  # the lowest bit sorts ends before starts of the same moment
    key = np.empty(2 * n, np.int64)
    key[:n] = ((start - base) * _GRID).astype(np.int64) * 2 + 1
    key[n:] = ((end - base) * _GRID).astype(np.int64) * 2
    key[n:] += 2 * (end <= start)  # a task of no length must not end before it starts
    key[:n] += node.astype(np.int64) << width
    key[n:] += node.astype(np.int64) << width
    order = np.argsort(key)
    where = (key[order] >> width).astype(np.int32)
    del key
    position = np.empty(2 * n, np.int32)
    position[order] = np.arange(2 * n, dtype=np.int32)
    quanta = (own * _QUANTUM).astype(np.int64)
    quanta = np.concatenate([quanta, -quanta])[order]
    used = np.minimum(np.cumsum(quanta, out=quanta) / _QUANTUM, 1.0)
    del quanta
    counting = np.cumsum(np.concatenate([counts, -counts.astype(np.int8)]).astype(np.int8)[order], dtype=np.int32) > 0
    time = np.concatenate([start, end])[order]
    hours = np.zeros(2 * n)
    np.subtract(time[1:], time[:-1], out=hours[:-1])
    hours[:-1][where[1:] != where[:-1]] = 0.0
    return _Sweep(where, time, np.maximum(hours, 0.0, out=hours) / HOUR, used, counting, position[:n], position[n:])


def _mean_utilization(sweep: _Sweep, start: FloatArray, end: FloatArray, own: FloatArray) -> FloatArray:
    """The node's utilization while each task ran; of a task of no length, what it had on its own.

    Summed in whole quanta and ticks, so that it is the same whatever other nodes and times are summed with it: a running
    total of floats isn't. The total may go round; differences of up to 2^63 come out right.
    """
    longest = int((end - start).max(initial=0.0) * _GRID)
    quantum = 2.0 ** min(27, 62 - longest.bit_length())
    filled = np.rint(sweep.used * quantum).astype(np.int64)
    filled *= np.rint(sweep.hours * (HOUR * _GRID)).astype(np.int64)
    filled = np.concatenate([np.zeros(1, np.int64), np.cumsum(filled, out=filled)])
    hours = (end - start) / HOUR
    total = (filled[sweep.at_end] - filled[sweep.at_start]) / (quantum * HOUR * _GRID)
    mean = np.divide(total, hours, out=own.copy(), where=hours > 0)
    return np.round(mean, 8).clip(0.0, 1.0)  # so that what is just at a threshold stays there


def _before_end(sweep: _Sweep, own: FloatArray) -> FloatArray:
    """The node's utilization just before each task's end; tasks that end at the same moment were all still there."""
    if len(own) == 0:
        return own
    fresh = np.append(True, (np.diff(sweep.time) > 0) | (np.diff(sweep.node) != 0))
    block = np.maximum.accumulate(np.where(fresh, np.arange(len(fresh)), 0))
    before = block[sweep.at_end] - 1
    return np.maximum(np.where(before >= 0, sweep.used[before], 0.0), own)


def _fading(sweep: _Sweep, as_of: float, half_life: float) -> tuple[FloatArray, FloatArray]:
    """What an hour counts at the begin and the end of each row; 0 where it doesn't."""
    first, last = np.exp2((sweep.time - as_of) / half_life), np.exp2((sweep.time + sweep.hours * HOUR - as_of) / half_life)
    first[~sweep.counting] = 0.0
    last[~sweep.counting] = 0.0
    return first, last


def _faded_hours(sweep: _Sweep, as_of: float, half_life: float) -> tuple[FloatArray, float]:
    """Counted hours of each row, integrated over a fading of half in each half-life (s); and Σ of their weights' squares."""
    scale = half_life / np.log(2.0) / HOUR
    first, faded = _fading(sweep, as_of, half_life)
    squares = scale / 2 * (float(np.dot(faded, faded)) - float(np.dot(first, first)))  # the same at half the half-life
    faded -= first
    faded *= scale
    return faded, squares


def _by_start(history: History, sweep: _Sweep) -> Any:
    """Tasks by node, start, end, job id: the sweep's order, mended where starts are equal."""
    tasks = history.tasks
    order = np.argsort(sweep.at_start)
    node, start = tasks.node[order], tasks.start[order]
    same = np.zeros(len(order) + 1, bool)
    same[1:-1] = (node[1:] == node[:-1]) & (np.diff(start) < 1.0 / _GRID)
    rows = np.flatnonzero(same[1:] | same[:-1])
    tied = order[rows]
    keys = (history.attempts.job[tasks.attempt[tied]], tasks.end[tied], tasks.start[tied], tasks.node[tied])
    order[rows] = tied[np.lexsort(keys)]
    return order


def _groups(
    history: History, sweep: _Sweep, utilization: FloatArray, options: Options, known: Stretches | None
) -> tuple[_Groups, FloatArray]:
    """Heavy groups, and overload hours of each row of the sweep, weighted by the loss of efficiency in their group.

    The slope is relative to the group's mean efficiency. Overload hours belong to the group of the task that started
    last; outside any group their loss is 1.
    """
    tasks, n = history.tasks, len(history.nodes)
    order = _by_start(history, sweep)
    node, start, end = tasks.node[order], tasks.start[order], tasks.end[order]
    demand = np.where(np.isfinite(tasks.demand), tasks.demand, 0.0)[order]
    total = sum_by(node, demand, n)
    efficiency = demand / np.where(total > 0, total, 1.0)[node] * np.exp(-utilization[order])
    heavy, first, size = heavy_groups(
        node, start, end, utilization[order], threshold=options.heavy_threshold or 0.0, max_gap=options.max_gap_hours * HOUR
    )
    before = np.zeros(len(BOUNDS)) if known is None else known.pairs.sum(axis=0)
    bound = bound_of([float(pairs(size, of).sum()) + other for of, other in zip(BOUNDS, before.tolist())])
    slope, _ = slopes(efficiency[heavy], first, size, bound)
    group = np.repeat(np.arange(len(first)), size)
    mean = sum_by(group, efficiency[heavy], len(first)) / np.maximum(size, 1)
    loss = np.append(np.exp(-np.divide(slope, mean, out=np.zeros(len(first)), where=mean > 0)), 1.0)
    of_task = np.full(len(order), -1, np.int32)
    of_task[heavy] = group
    is_start = np.zeros(len(sweep.node), bool)
    is_start[sweep.at_start] = True
    last_start = np.cumsum(is_start, dtype=np.int32) - 1
    weighted = np.where(sweep.used > options.overload_threshold, sweep.hours, 0.0) * loss[of_task[last_start]]
    return _Groups(order, of_task >= 0, heavy[first], size, bound, int((size > bound).sum())), weighted


def _hours_there(history: History) -> FloatArray:
    first = np.fmax(history.nodes.first_seen, history.window_start)
    last = np.fmin(np.where(np.isfinite(history.nodes.last_seen), history.nodes.last_seen, history.as_of), history.as_of)
    return np.maximum(last - first, 0.0) / HOUR
