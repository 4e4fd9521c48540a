"""Which node is known to have ended an attempt, and which attempts were ended by a planned stop of a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import columns as c

MATCH_SECONDS = 1800.0  # a node event this near to a failure names its culprit
LOST = ("NODE_FAIL", "BOOT_FAIL")
_SCALE = 1e11  # above any epoch second; node · scale + time stays exact below 2^53


class Where(NamedTuple):
    """Of each task: node, attempt (positions) and end."""

    node: c.IntArray
    attempt: c.IntArray
    end: c.FloatArray


def lost(db: Any, raw: Mapping[str, c.FloatArray]) -> c.BoolArray:
    """Of each attempt: did Slurm end it because a node was lost?"""
    words = dict(db.execute("SELECT id, name FROM states").fetchall())
    return np.isin(raw["state"], [number for number, word in words.items() if word in LOST])


def by_events(outcome: c.ByteArray, was_lost: c.BoolArray, where: Where, events: c.Events) -> c.BoolArray:
    """Tasks near whose failure an event of their node names it as the culprit.

    A lost node is named by its going down, or by its drain for hardware; another failure by a hardware event only.
    """
    culprit = np.zeros(len(where.node), dtype=bool)
    at = np.flatnonzero(outcome[where.attempt] == c.WRONG)
    there = np.isin(events.kind, (c.DOWN, c.DRAIN, c.REPORTED))
    hardware = (events.reason == c.REASON_HARDWARE) & there
    down = hardware | ((events.kind == c.DOWN) & (events.reason != c.REASON_PLANNED))
    node, end = where.node[at], where.end[at]
    culprit[at] = np.where(was_lost[where.attempt[at]], near(events, down, node, end), near(events, hardware, node, end))
    return culprit


def planned(outcome: c.ByteArray, was_lost: c.BoolArray, where: Where, events: c.Events) -> c.BoolArray:
    """Attempts that lost a node to a planned stop (reboot, maintenance) and to nothing else: they say nothing of nodes."""
    of_attempt = np.zeros(len(outcome), dtype=bool)
    at = np.flatnonzero((outcome[where.attempt] == c.WRONG) & was_lost[where.attempt])
    node, end = where.node[at], where.end[at]
    stopped = np.isin(events.kind, (c.DOWN, c.DRAIN))
    of_attempt[where.attempt[at[near(events, stopped & (events.reason == c.REASON_PLANNED), node, end)]]] = True
    other = (stopped & (events.reason == c.REASON_HARDWARE)) | ((events.kind == c.DOWN) & (events.reason != c.REASON_PLANNED))
    of_attempt[where.attempt[at[near(events, other, node, end)]]] = False
    return of_attempt


def alone(outcome: c.ByteArray, was_lost: c.BoolArray, where: Where) -> c.BoolArray:
    """Tasks of attempts that lost a node and had no other."""
    count = np.bincount(where.attempt, minlength=len(outcome))
    return (was_lost & (outcome == c.WRONG) & (count == 1))[where.attempt]


def near(events: c.Events, chosen: c.BoolArray, node: c.IntArray, when: c.FloatArray) -> c.BoolArray:
    """For each (node, time): did one of the chosen events of that node begin within MATCH_SECONDS?"""
    if not chosen.any():
        return np.zeros(len(node), dtype=bool)
    keys = np.sort(events.node[chosen] * _SCALE + events.start[chosen])
    low = np.searchsorted(keys, node * _SCALE + (when - MATCH_SECONDS), side="left")
    high = np.searchsorted(keys, node * _SCALE + (when + MATCH_SECONDS), side="right")
    return high > low


def by_name(db: Any, ids: NDArray[np.int64], outcome: c.ByteArray, where: Where, nodes: c.Nodes) -> c.BoolArray:
    """Tasks on the node that Slurm itself names as failed (FailedNode) of attempts that went wrong.

    ids: database ids of the attempts, ascending.
    """
    named = np.full(len(ids), -1, dtype=np.int32)
    position = {name: i for i, name in enumerate(nodes.names)}
    for number, name in db.execute("SELECT id, failed_node FROM attempts WHERE failed_node IS NOT NULL").fetchall():
        i = int(np.searchsorted(ids, number))
        if i < len(ids) and ids[i] == number:
            named[i] = position.get(name, -1)
    return (named[where.attempt] == where.node) & (outcome[where.attempt] == c.WRONG)
