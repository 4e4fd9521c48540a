"""How long each node carried work, and how full it was: the attributed method's utilization, exposure and breakdown.

Utilization is the node's: the summed demand over capacity of all tasks that run on it at the same time, so that eight
1-GPU tasks make a heavy node; hours are wall time, counted once. One sorted pass over all task ends of the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .capability import HOUR, Options, heavy_groups, otsu
from .columns import SILENT, FloatArray, History, sum_by
from .theilsen import slopes
from .trust import Trust

LIGHT_WEIGHT = 0.25  # exposure and failures outside heavy work weigh this much
_QUANTUM = 2.0**32  # utilization is summed in whole quanta: float sums would drift across a threshold
_GRID = 1024  # sorting resolution: 1/1024 s; Slurm's times are whole seconds


@dataclass(frozen=True)
class Exposure:
    """Arrays over nodes, in hours: weighted (faded, light hours at a quarter), heavy and busy (plain wall time),
    breakdown (share of the window). gain: what faded evidence is worth, see `measure`. Arrays over tasks: utilization
    (mean of the node's while the task ran) and weight (of a failure at the task's end: 1 in heavy work, else a quarter)."""

    weighted: FloatArray
    heavy: FloatArray
    busy: FloatArray
    breakdown: FloatArray
    utilization: FloatArray
    weight: FloatArray
    heavy_threshold: float
    gain: float = 1.0
    notes: tuple[str, ...] = ()


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


def measure(history: History, options: Options, half_life_days: float, trust: Trust) -> Exposure:
    """Exposure, utilization and breakdown of every node up to `history.as_of`. Silent attempts fill the node but their
    hours don't count. Tasks of unknown demand or capacity count as light.

    Weights below 1 make a sum of failures vary less than a count of the same size does. `gain` makes up for it, as Kish's
    effective sample size does: Σ w / Σ w² over the hours, between 1 and 2; charges and exposure times it have the
    variance of a count, and their ratio, the hazard, stays.
    """
    tasks = history.tasks
    start = np.minimum(tasks.start, history.as_of)
    end = np.clip(tasks.end, start, history.as_of)
    own = _own_utilization(tasks.demand, tasks.capacity)
    sweep = _sweep(tasks.node, start, end, own, history.attempts.outcome[tasks.attempt] != SILENT)
    utilization = _mean_utilization(sweep, start, end, own)
    threshold = options.heavy_threshold
    if threshold is None:
        threshold = otsu(utilization, options.clamp, options.bins)
    weighted, heavy, busy, gain = _node_hours(sweep, threshold, history.as_of, half_life_days * 24 * HOUR, trust)
    weight = np.where(_before_end(sweep, own) > threshold, 1.0, LIGHT_WEIGHT)
    sweep = replace(sweep, time=sweep.time[:0])  # 16 bytes a task less from here on
    breakdown, notes = _breakdown(history, sweep, utilization, threshold, options)
    return Exposure(weighted, heavy, busy, breakdown, utilization, weight, threshold, gain, notes)


def _node_hours(
    sweep: _Sweep, threshold: float, as_of: float, half_life: float, trust: Trust
) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """Hours per node: weighted, heavy, busy; and the gain."""
    n, is_heavy = trust.n_nodes, sweep.used > threshold
    counted = np.where(sweep.counting, sweep.hours, 0.0)
    busy = sum_by(sweep.node, counted, n)
    counted *= is_heavy
    heavy = sum_by(sweep.node, counted, n)
    del counted
    faded, gain = _faded_hours(sweep, as_of, half_life)
    faded *= trust.factor(sweep.node, sweep.time)
    faded[~is_heavy] *= LIGHT_WEIGHT
    return sum_by(sweep.node, faded, n), heavy, busy, gain


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
    """The node's utilization while each task ran; of a task of no length, what it had on its own."""
    filled = np.concatenate([[0.0], np.cumsum(sweep.used * sweep.hours)])
    hours = (end - start) / HOUR
    total = filled[sweep.at_end] - filled[sweep.at_start]
    mean = np.divide(total, hours, out=own.copy(), where=hours > 0)
    return np.round(mean, 9).clip(0.0, 1.0)  # so that what is just at a threshold stays there


def _before_end(sweep: _Sweep, own: FloatArray) -> FloatArray:
    """The node's utilization just before each task's end; tasks that end at the same moment were all still there."""
    if len(own) == 0:
        return own
    fresh = np.append(True, (np.diff(sweep.time) > 0) | (np.diff(sweep.node) != 0))
    block = np.maximum.accumulate(np.where(fresh, np.arange(len(fresh)), 0))
    before = block[sweep.at_end] - 1
    return np.maximum(np.where(before >= 0, sweep.used[before], 0.0), own)


def _faded_hours(sweep: _Sweep, as_of: float, half_life: float) -> tuple[FloatArray, float]:
    """Counted hours of each row, integrated over a fading of half in each half-life (s); and the gain of `measure`."""
    scale = half_life / np.log(2.0) / HOUR
    faded, first = np.exp2((sweep.time + sweep.hours * HOUR - as_of) / half_life), np.exp2((sweep.time - as_of) / half_life)
    faded[~sweep.counting] = 0.0
    first[~sweep.counting] = 0.0
    squares = scale / 2 * (float(np.dot(faded, faded)) - float(np.dot(first, first)))  # the same at half the half-life
    faded -= first
    faded *= scale
    return faded, float(np.clip(faded.sum() / squares, 1.0, 2.0)) if squares > 0 else 1.0


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


def _breakdown(
    history: History, sweep: _Sweep, utilization: FloatArray, threshold: float, options: Options
) -> tuple[FloatArray, tuple[str, ...]]:
    """Overload hours, weighted by the loss of efficiency in their heavy group, over the hours in which the node existed.

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
        node, start, end, utilization[order], threshold=threshold, max_gap=options.max_gap_hours * HOUR
    )
    slope, bound = slopes(efficiency[heavy], first, size)
    group = np.repeat(np.arange(len(first)), size)
    mean = sum_by(group, efficiency[heavy], len(first)) / np.maximum(size, 1)
    loss = np.append(np.exp(-np.divide(slope, mean, out=np.zeros(len(first)), where=mean > 0)), 1.0)
    of_task = np.full(len(order), -1, np.int32)
    of_task[heavy] = group
    is_start = np.zeros(len(sweep.node), bool)
    is_start[sweep.at_start] = True
    last_start = np.cumsum(is_start, dtype=np.int32) - 1
    weighted = np.where(sweep.used > options.overload_threshold, sweep.hours, 0.0) * loss[of_task[last_start]]
    there = _hours_there(history)
    notes = (f"{int((size > bound).sum())} groups of over {bound} tasks: slope from {bound} evenly spaced ones",) if bound else ()
    return sum_by(sweep.node, weighted, n) / np.maximum(there, 1.0), notes


def _hours_there(history: History) -> FloatArray:
    first = np.fmax(history.nodes.first_seen, history.window_start)
    last = np.fmin(np.where(np.isfinite(history.nodes.last_seen), history.nodes.last_seen, history.as_of), history.as_of)
    return np.maximum(last - first, 0.0) / HOUR
