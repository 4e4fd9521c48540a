"""The published method's score of nodes, steps 1 to 10: from tasks to capability. Pure numpy; no clock.

One vectorised pass serves a single node and a whole cluster. `score_history` takes the columns of a history;
`score_columns` takes plain arrays. Times in epoch seconds, demand and capacity in MiB, durations in hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..history.columns import FloatArray, History, IntArray, sum_by
from .theilsen import slopes

HOUR = 3600.0
MIN_BREAKDOWN = 1.0  # hours; step 10 divides by at least this


@dataclass(frozen=True)
class Options:
    """Settings of the method. heavy_threshold None: Otsu's threshold, clamped to `clamp`."""

    heavy_threshold: float | None = None
    overload_threshold: float = 0.9
    max_gap_hours: float = 6.0
    clamp: tuple[float, float] = (0.3, 0.8)
    bins: int = 256


@dataclass(frozen=True)
class Groups:
    """Heavy groups, one row each, ordered by node and time. `first` and `size` are positions in the sorted tasks.

    slope: per task; loss: exp(-slope); overload_hours: hours over the overload threshold; ratio: contribution ratio in
    1/MiB, NaN where no task of the group says anything.
    """

    node: IntArray
    first: np.ndarray
    size: np.ndarray
    slope: FloatArray
    loss: FloatArray
    overload_hours: FloatArray
    ratio: FloatArray


@dataclass(frozen=True)
class CapabilityTable:
    """The published scores. Arrays over nodes: capability, reliability (NaN: none of its own), breakdown (h), tasks.

    order: input positions of the tasks used, sorted by node and time; share, utilization, efficiency: in that order.
    """

    capability: FloatArray
    reliability: FloatArray
    breakdown: FloatArray
    tasks: np.ndarray
    groups: Groups
    order: np.ndarray
    share: FloatArray
    utilization: FloatArray
    efficiency: FloatArray
    heavy_threshold: float
    notes: tuple[str, ...] = ()


def otsu(utilization: FloatArray, clamp: tuple[float, float] = (0.3, 0.8), bins: int = 256) -> float:
    """Otsu's threshold: the bin edge that splits the values with the largest variance between the two classes.

    `bins` bins between smallest and largest value; the mean of the upper bin edges among equal maxima; clamped. All
    values equal: just under the value where it is at least the lower clamp (all are heavy), else the lower clamp.
    """
    if len(utilization) == 0:
        return clamp[0]
    low, high = float(utilization.min()), float(utilization.max())
    if not high > low:
        return float(np.nextafter(clamp[0], 0.0)) if low >= clamp[0] else clamp[0]
    counts, edges = np.histogram(utilization, bins=bins, range=(low, high))
    centres = (edges[:-1] + edges[1:]) / 2
    below = np.cumsum(counts)[:-1].astype(np.float64)
    above = len(utilization) - below
    sums = np.cumsum(counts * centres)
    difference = sums[:-1] / np.maximum(below, 1) - (sums[-1] - sums[:-1]) / np.maximum(above, 1)
    between = below * above * difference**2
    best = between >= between.max() * (1 - 1e-12)
    return float(np.clip(edges[1:-1][best].mean(), *clamp))


def score_history(history: History, options: Options | None = None) -> CapabilityTable:
    """Steps 1 to 10 over a history. Tasks that start at or after `as_of` are left out, later ends count up to it."""
    tasks = history.tasks
    seen = tasks.start < history.as_of if history.as_of else np.ones(len(tasks), bool)
    kept = np.flatnonzero(seen)
    end = np.minimum(tasks.end, history.as_of) if history.as_of else tasks.end
    table = score_columns(
        node=tasks.node[kept], start=tasks.start[kept], end=end[kept], demand=tasks.demand[kept],
        capacity=tasks.capacity[kept], correct=tasks.correct[kept],
        job=history.attempts.job[tasks.attempt[kept]], n_nodes=len(history.nodes), options=options,
    )  # fmt: skip
    order = kept[table.order]
    return CapabilityTable(**{**table.__dict__, "order": order})


def score_columns(
    *,
    node: np.ndarray,
    start: FloatArray,
    end: FloatArray,
    demand: FloatArray,
    capacity: FloatArray,
    correct: FloatArray,
    job: np.ndarray,
    n_nodes: int,
    options: Options | None = None,
) -> CapabilityTable:
    """Steps 1 to 10 over plain arrays of equal length, one element per task.

    correct: +1, -1 or NaN (says nothing). Tasks whose demand or capacity is unknown (NaN, or no capacity) are left out
    and counted in the notes. An end before its start counts as no time.
    """
    options = options or Options()
    known = np.isfinite(demand) & (demand >= 0) & np.isfinite(capacity) & (capacity > 0)
    order = np.lexsort((job, end, start, node))
    order = order[known[order]]
    node, start, end, demand = node[order], start[order], np.maximum(end, start)[order], demand[order]
    total = sum_by(node, demand, n_nodes)
    share = demand / np.where(total > 0, total, 1.0)[node]
    utilization = np.minimum(demand / capacity[order], 1.0)
    efficiency = share * np.exp(-utilization)
    threshold = options.heavy_threshold
    if threshold is None:
        threshold = otsu(utilization, options.clamp, options.bins)
    heavy, first, size = heavy_groups(node, start, end, utilization, threshold=threshold, max_gap=options.max_gap_hours * HOUR)
    group = np.repeat(np.arange(len(first)), size)
    slope, bound = slopes(efficiency[heavy], first, size)
    hours = np.where(utilization > options.overload_threshold, (end - start) / HOUR, 0.0)[heavy]
    overload = sum_by(group, hours, len(first))
    ratio = _contribution(group, len(first), share[heavy], demand[heavy], correct[order][heavy])
    position = heavy[first] if len(first) else first
    groups = Groups(node[position], position, size, slope, np.exp(-slope), overload, ratio)
    reliability, breakdown, capability = _nodes(groups, n_nodes)
    return CapabilityTable(
        capability, reliability, breakdown, np.bincount(node, minlength=n_nodes), groups, order, share, utilization,
        efficiency, threshold, _notes(int((~known).sum()), bound, size),
    )  # fmt: skip


def heavy_groups(
    node: np.ndarray, start: FloatArray, end: FloatArray, utilization: FloatArray, *, threshold: float, max_gap: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step 4 on tasks sorted by node and time: positions of the heavy tasks, and first index into these and size per group.

    max_gap: seconds; the idle gap counts from the latest end so far in the group.
    """
    is_heavy = utilization > threshold
    heavy = np.flatnonzero(is_heavy)
    if len(heavy) == 0:
        return heavy, heavy, heavy
    adjacent = np.diff(heavy, prepend=heavy[0]) == 1  # no lighter task between
    adjacent &= np.diff(node[heavy], prepend=-1) == 0
    run = np.cumsum(~adjacent)
    latest = running_latest(run, end[heavy])
    gap = np.zeros(len(heavy))
    gap[1:] = start[heavy][1:] - latest[:-1]
    first = np.flatnonzero(~adjacent | (gap > max_gap))
    return heavy, first, np.diff(first, append=len(heavy))


def running_latest(run: np.ndarray, end: FloatArray) -> FloatArray:
    """Largest end so far within each run. A gap inside a run needs no fresh start: what follows it ends later anyway.

    One pass: the run number in the high bits, milliseconds in the low ones, so that an earlier run never wins.
    """
    base = end.min()
    ticks = np.rint((end - base) * 1000.0).astype(np.int64)
    width = int(ticks.max()).bit_length()
    if width + int(run[-1]).bit_length() > 62:
        ticks, width = ticks // 1000, max(1, width - 9)
        return np.maximum.accumulate((run.astype(np.int64) << width) + ticks) % (1 << width) * 1.0 + base
    return np.maximum.accumulate((run.astype(np.int64) << width) + ticks) % (1 << width) / 1000.0 + base


def _contribution(group: np.ndarray, n: int, share: FloatArray, demand: FloatArray, correct: FloatArray) -> FloatArray:
    """Step 9 per group: Σ share · correct / Σ demand over the tasks that say something; NaN where none does."""
    speaks = np.isfinite(correct)
    weight = sum_by(group[speaks], demand[speaks], n)
    above = sum_by(group[speaks], (share * np.where(speaks, correct, 0.0))[speaks], n)
    return np.where(weight > 0, above / np.where(weight > 0, weight, 1.0), np.nan)


def _nodes(groups: Groups, n_nodes: int) -> tuple[Any, Any, Any]:
    """Steps 8 to 10 per node: reliability, breakdown, capability."""
    breakdown = sum_by(groups.node, groups.loss * groups.overload_hours, n_nodes)
    rated = np.isfinite(groups.ratio)
    count = np.bincount(groups.node[rated], minlength=n_nodes)
    total = sum_by(groups.node[rated], groups.ratio[rated], n_nodes)
    reliability = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return reliability, breakdown, reliability / np.maximum(breakdown, MIN_BREAKDOWN)


def _notes(unknown: int, bound: int, size: np.ndarray) -> tuple[str, ...]:
    notes = []
    if unknown:
        notes.append(f"{unknown} tasks left out: their demand or their node's capacity is unknown")
    if bound:
        notes.append(f"{int((size > bound).sum())} groups of over {bound} tasks: slope from {bound} evenly spaced ones")
    return tuple(notes)
