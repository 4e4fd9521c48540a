"""The history as columns: what the scorer reads. Filled by `accounting.history.store`, read by capability and attribution.

Plain numpy arrays of equal length per table; indices are positions in the name tables. Times are epoch seconds (float64),
memory MiB (float64), unknown values NaN or -1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]
ByteArray = NDArray[np.int8]
BoolArray = NDArray[np.bool_]

# outcome of an attempt (part B): SILENT says nothing and its hours don't count; SURVIVED has hours but says nothing of
# failure (TIMEOUT, still running)
SILENT, RIGHT, WRONG, SURVIVED = 0, 1, 2, 3

# kinds of node events
DOWN, DRAIN, REPAIRED, MARKED_BAD, MARKED_IGNORE, REPORTED = 0, 1, 2, 3, 4, 5
MARKS = (REPAIRED, MARKED_BAD, MARKED_IGNORE)  # people's: until when one holds is known when it is made
# class of a reason after [events.reasons]
REASON_UNKNOWN, REASON_HARDWARE, REASON_USER, REASON_PLANNED, REASON_REPAIRED = 0, 1, 2, 3, 4
MOST_SAID = 60  # characters of a reason that are told


@dataclass(frozen=True)
class Tasks:
    """One row per task: one attempt of one job on one node.

    node, attempt: index into Nodes and Attempts; start, end: epoch seconds, end ≥ start (running tasks end at as_of);
    demand, capacity: MiB of the capacity resource on that node (NaN unknown); correct: +1, -1 or NaN (part A);
    culprit: this node is known to have ended the attempt.
    """

    node: IntArray
    attempt: IntArray
    start: FloatArray
    end: FloatArray
    demand: FloatArray
    capacity: FloatArray
    correct: FloatArray
    culprit: BoolArray

    def __len__(self) -> int:
        return len(self.node)


@dataclass(frozen=True)
class Attempts:
    """One row per attempt that ran: job (raw id), user and work (user and job name) as indices into `users`, `works`;
    group: attempts that are one failure together (members of one array or het job) share a number; outcome: see above;
    lost: Slurm itself says that a node was lost, whichever (empty: of none)."""

    job: NDArray[np.int64]
    user: IntArray
    work: IntArray
    group: IntArray
    outcome: ByteArray
    users: list[str] = field(default_factory=list)
    works: list[str] = field(default_factory=list)
    lost: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))

    def __len__(self) -> int:
        return len(self.job)


@dataclass(frozen=True)
class Nodes:
    """One row per node: name, GPU type and switch (indices into `gpu_types`, `switches`; -1 none), when it was there; left:
    it is no longer in the configuration (empty: all are)."""

    names: list[str]
    gpu_type: IntArray
    switch: IntArray
    first_seen: FloatArray
    last_seen: FloatArray
    gpu_types: list[str] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)
    left: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def here(self) -> BoolArray:
        """Nodes that are in the configuration, as far as is known: only these can be drained."""
        return ~self.left if len(self.left) else np.ones(len(self), np.bool_)


@dataclass(frozen=True)
class Events:
    """One row per node event: node, kind, reason class (constants above), start and end (NaN: still open).

    text: the reasons as they were given, where they are known (a made history has none).
    """

    node: IntArray
    kind: ByteArray
    reason: ByteArray
    start: FloatArray
    end: FloatArray
    text: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.node)

    def said(self, row: int) -> str:
        """The reason of an event as it was given, in brackets on one line, to be put behind a word; "" for none."""
        words = " ".join(self.text[row].split()) if self.text else ""
        return f" ({words if len(words) <= MOST_SAID else words[: MOST_SAID - 1] + '…'})" if words else ""


@dataclass(frozen=True)
class History:
    """Everything that one scoring run reads: a window of the history of one cluster."""

    cluster: str
    tasks: Tasks
    attempts: Attempts
    nodes: Nodes
    events: Events
    window_start: float = 0.0
    as_of: float = 0.0
    notes: list[str] = field(default_factory=list)


def sum_by(index: Any, weights: Any, n: int) -> FloatArray:
    """Sum of `weights` for each index 0 to n - 1."""
    return np.bincount(index, weights=weights, minlength=n).astype(np.float64)


def together(key: Any, time: FloatArray, within: float) -> Any:
    """Number of the stretch that each element belongs to: of one key, at most `within` after the stretch's first.

    From the first, not from the one before: else a steady trickle would be one stretch without end.
    """
    order = np.lexsort((time, key))
    if len(order) == 0:
        return order
    keys, times = np.asarray(key)[order], np.asarray(time)[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (keys[1:] != keys[:-1]) | (np.diff(times) > within)
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(order))
    for low, high in zip(*(ends[times[last - 1] - times[first] > within].tolist() for ends in (first, last))):
        at = low
        while (at := at + int(np.searchsorted(times[at:high], times[at] + within, side="right"))) < high:
            fresh[at] = True
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(fresh) - 1
    return number


def known_ends(kind: ByteArray, end: FloatArray, as_of: float) -> FloatArray:
    """Ends of events as they were known at a moment: what ended later was still open (NaN), but for marks."""
    return np.where((end > as_of) & ~np.isin(kind, MARKS), np.nan, end)


def empty_events() -> Events:
    """No events."""
    none: Any = np.zeros(0)
    return Events(none.astype(np.int32), none.astype(np.int8), none.astype(np.int8), none, none)
