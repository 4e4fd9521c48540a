"""How far earlier evidence about a node still counts: repairs halve it, stretches marked `ignore` don't count at all.

Only a repair that someone vouched for does this. A drain followed by a resume is none: health checks that cycle a bad
node in and out must not launder it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..history.columns import MARKED_BAD, MARKED_IGNORE, MARKS, REASON_REPAIRED, REPAIRED, Events, FloatArray

REPAIR_FACTOR = 0.5
ONE_REPAIR = 86400.0  # s; what is told of repairs in this time is told of one


@dataclass(frozen=True)
class Trust:
    """Repairs as {node: times}, ignored stretches as {node: (start, end) pairs}; epoch seconds."""

    n_nodes: int
    repairs: dict[int, list[float]]
    ignored: dict[int, list[tuple[float, float]]]

    def factor(self, node: Any, time: FloatArray) -> FloatArray:
        """What evidence on `node` at `time` counts, 0 to 1. Arrays of equal length."""
        factor = np.ones(len(node))
        if not self.repairs and not self.ignored:
            return factor
        marked = np.zeros(self.n_nodes, bool)
        marked[[*self.repairs, *self.ignored]] = True
        rows = np.flatnonzero(marked[node])
        for i in np.unique(node[rows]):
            mine = rows[node[rows] == i]
            for repaired in self.repairs.get(int(i), ()):
                factor[mine] *= np.where(time[mine] < repaired, REPAIR_FACTOR, 1.0)
            for start, end in self.ignored.get(int(i), ()):
                factor[mine] *= np.where((time[mine] >= start) & (time[mine] < end), 0.0, 1.0)
        return factor

    def last_repair(self, node: int) -> float:
        """Time of the last repair, or minus infinity."""
        return max(self.repairs.get(node, ()), default=-np.inf)


def from_events(events: Events, n_nodes: int, as_of: float) -> Trust:
    """Repairs and ignored stretches up to `as_of`. An open mark reaches to the node's next one, or else to `as_of`."""
    repairs: dict[int, list[float]] = {}
    ignored: dict[int, list[tuple[float, float]]] = {}
    for i in np.flatnonzero(events.start <= as_of):
        node = int(events.node[i])
        if events.kind[i] == REPAIRED or events.reason[i] == REASON_REPAIRED:
            repairs.setdefault(node, []).append(float(events.start[i]))
        elif events.kind[i] == MARKED_IGNORE:
            end = float(events.end[i])
            ignored.setdefault(node, []).append((float(events.start[i]), _next_mark(events, int(i)) if np.isnan(end) else end))
    return Trust(n_nodes, {node: _apart(times) for node, times in repairs.items()}, ignored)


def _apart(times: list[float]) -> list[float]:
    """Repairs a day apart, each by its last word: slurmdbd has a row for each state that a node goes through in one."""
    found: list[float] = []
    begun = -np.inf
    for time in sorted(times):
        if time - begun <= ONE_REPAIR:
            found[-1] = time
        else:
            found.append(time)
            begun = time
    return found


def _next_mark(events: Events, i: int) -> float:
    """When the next mark of the node begins after the one in row i; of the same moment the later row. Infinite: none."""
    marks = np.isin(events.kind, MARKS) & (events.node == events.node[i])
    later = (events.start > events.start[i]) | ((events.start == events.start[i]) & (np.arange(len(events)) > i))
    return float(events.start[marks & later].min(initial=np.inf))


def marked_now(events: Events, kind: int, n_nodes: int, as_of: float) -> Any:
    """Nodes (bool array) under an open mark of this kind. A repair after a mark `bad` ends it; one without an end of its own
    holds until the next."""
    marked = np.zeros(n_nodes, bool)
    trust = from_events(events, n_nodes, as_of)
    for i in np.flatnonzero((events.kind == kind) & (events.start <= as_of)):
        node = int(events.node[i])
        following = _next_mark(events, int(i)) if np.isnan(events.end[i]) else np.inf
        is_open = not events.end[i] <= as_of and following > as_of
        marked[node] |= is_open and not (kind == MARKED_BAD and trust.last_repair(node) > events.start[i])
    return marked
