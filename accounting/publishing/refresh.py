"""One scoring run from the database to the published files: history → scores → snapshot."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from slurm_hook.common import progress
from slurm_hook.common.config import Settings
from slurm_hook.published.snapshot import Scores

from ..history import settled
from ..history.columns_reader import load_history, window_of
from ..history.node_rows import present
from ..scoring import carried
from ..scoring.score import score_history
from ..scoring.stretches import none
from . import publish

STEPS = 3
COST_DAYS = 30.0  # jobs of this many days make the percentiles of the cost rank


class Refreshed(NamedTuple):
    """What a run made: the snapshot, where it was written ("" if it was not), and notes for people."""

    scores: Scores
    path: str
    notes: tuple[str, ...]


def cost_quantiles(db: Any, cluster: str, as_of: float) -> tuple[float, ...]:
    """Percentiles 0, 5 … 100 of node-hours (nodes × limit, else × run time) of the jobs that ran in the last 30 days."""
    ran = (  # by their ends, for which there is an index: nothing ends before it starts
        "SELECT a.nnodes * coalesce(a.limit_minutes * 60, a.elapsed, 0) / 3600.0 FROM attempts a"
        " WHERE a.cluster_id = (SELECT id FROM clusters WHERE name = ?1) AND a.start BETWEEN ?2 AND ?3 AND a.end"
    )
    sql, values = f"{ran} >= ?2 UNION ALL {ran} IS NULL", (cluster, as_of - COST_DAYS * 86400, as_of)
    rows = db.execute(sql, values).fetchall()
    hours = np.array([row[0] for row in rows if row[0]], dtype=float)
    if not len(hours):
        return ()
    return tuple(float(q) for q in np.quantile(hours, np.linspace(0, 1, 21)))


def run(
    db: Any, cluster: str, settings: Settings, *, as_of: float | None = None, write: bool = True, full: bool = False,
    step: progress.Step = progress.silent,
) -> Refreshed:  # fmt: skip
    """Score the cluster's history as of a moment (now) and publish the result.

    full: read and work out everything anew, nothing that earlier runs left; the result is the same. step: told of each of
    the STEPS. Raises StoreError when the history has no such cluster, SnapshotError when the files can't be written.
    """
    now = time.time()
    moment = now if as_of is None else as_of
    step("reading the history")
    days = settings.scoring.window_days
    if write:
        window = window_of(db, cluster, moment, days)
        if full:
            settled.forget(db, window.cluster_id)
        settled.settle(db, window)
    history = load_history(db, cluster, moment, days, settings, kept=write or not full)
    step("scoring")
    kind = carried.kind(settings)
    threshold = carried.threshold(db, cluster, kind, moment)
    past = carried.past(db, cluster) if not full else none([]) if write else None
    table = score_history(history, settings, threshold=threshold, past=past)
    if write and threshold is None and not settings.scoring.heavy_threshold and len(history.tasks):
        carried.keep_threshold(db, cluster, kind, moment, table.heavy_threshold)
    if write and table.past is not None:
        carried.keep_past(db, cluster, table.past)
    step("publishing" if write else "putting together")
    scores = publish.build(
        table, present(db, cluster), settings, cluster=cluster, created=now, cost_quantiles=cost_quantiles(db, cluster, moment)
    )
    return Refreshed(scores, publish.publish(scores, settings) if write else "", table.notes)
