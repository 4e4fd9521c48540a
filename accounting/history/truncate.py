"""A history as it was known at an earlier moment: what ended later still runs then, what started later isn't there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .columns import SURVIVED, Events, History, Tasks, known_ends


def until(history: History, as_of: float, window_start: float | None = None) -> History:
    """The history known at `as_of`, optionally with a later start of the window. Cheap where nothing is later."""
    start = history.window_start if window_start is None else max(window_start, history.window_start)
    tasks, attempts = history.tasks, history.attempts
    kept = (tasks.start < as_of) & (tasks.end >= start)
    late = tasks.end > as_of
    if kept.all() and not late.any() and as_of == history.as_of and start == history.window_start:
        return history
    outcome = attempts.outcome.copy()
    outcome[tasks.attempt[late]] = SURVIVED
    culprit = tasks.culprit & ~late
    correct = np.where(late, np.nan, tasks.correct)
    end = np.minimum(tasks.end, as_of)
    columns: Any = (tasks.node, tasks.attempt, tasks.start, end, tasks.demand, tasks.capacity, correct, culprit)
    return replace(
        history, tasks=Tasks(*(column[kept] for column in columns)), attempts=replace(attempts, outcome=outcome),
        events=_events(history.events, as_of), window_start=start, as_of=as_of,
    )  # fmt: skip


def _events(events: Events, as_of: float) -> Events:
    kept = events.start <= as_of
    end = known_ends(events.kind, events.end, as_of)
    text = tuple(words for words, one in zip(events.text, kept.tolist()) if one)
    return Events(events.node[kept], events.kind[kept], events.reason[kept], events.start[kept], end[kept], text)
