"""Which jobs of the history were steered and which were left untouched: the marks in Slurm's accounting, joined.

Comments are users' text and aren't kept in the history; they are asked of slurmdbd when `workhorse effect` runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from slurm_hook.common.config import Settings
from slurm_hook.published import mark

from ..history.columns import WRONG
from ..history.columns_reader import load_history
from ..scoring import failures
from ..sources import sacct
from .effect import Group

FIELDS = ("JobIDRaw", "Submit", "Comment")


def marks(start: int, end: int, cluster: str, settings: Settings) -> dict[int, tuple[str, float]]:
    """Mode (avoid, steer, control) and submission (epoch seconds) of each marked job that ran in the window, by raw id.

    Raises SlurmError.
    """
    found: dict[int, tuple[str, float]] = {}
    step = int(settings["history.window_hours"]) * 3600
    for begin in range(start, end, step):
        query = sacct.Query(begin, min(begin + step, end), cluster=cluster, timeout=settings["slurm.timeout"], fields=FIELDS)
        for number, submit, comment in query.rows():
            told = mark.parse(comment)
            if told is not None and told.decided and number.isdigit() and submit.isdigit():
                found[int(number)] = told.mode, float(submit)
    return found


def side_by_side(found: Mapping[int, tuple[str, float]]) -> tuple[dict[int, str], float]:
    """Modes of the jobs that were submitted while a control group was kept, and for how many seconds it was.

    Steered jobs from before the first control job or after the last met another cluster: they would be compared with
    nobody of their own time.
    """
    times = [submit for mode, submit in found.values() if mode == "control"]
    first, last = min(times, default=0.0), max(times, default=0.0)
    return {job: mode for job, (mode, submit) in found.items() if first <= submit <= last}, last - first


def groups(
    db: Any, cluster: str, modes: Mapping[int, str], window: tuple[float, float], settings: Settings
) -> tuple[Group, Group]:
    """The steered jobs and the control group of a window (epoch seconds) as `effect` compares them.

    All failures count, nobody is blamed: jobs are in the control group by chance alone, so their own errors are as many
    in both, and whoever weighed each failure by a guess of its cause would shrink the difference.
    """
    start, as_of = window
    history = load_history(db, cluster, as_of, (as_of - start) / 86400.0, settings)
    ran = failures.attempted(history)
    failed = (history.attempts.outcome == WRONG) & (ran.end <= as_of)
    width = np.bincount(history.tasks.attempt, minlength=len(history.attempts))
    lost = failed * width * np.nan_to_num(ran.hours)
    waited = _waits(db, cluster, window)
    rows: dict[str, dict[int, list[float]]] = {"steered": {}, "control": {}}
    for job, broke, hours in zip(history.attempts.job.tolist(), failed.tolist(), lost.tolist(), strict=True):
        if job in modes:
            row = rows["control" if modes[job] == "control" else "steered"].setdefault(job, [0.0, 0.0, waited.get(job, np.nan)])
            row[0], row[1] = max(row[0], float(broke)), row[1] + hours
    return _group(rows["steered"]), _group(rows["control"])


def _waits(db: Any, cluster: str, window: tuple[float, float]) -> dict[int, float]:
    """Hours from eligible to the first start, by job."""
    sql = (
        "SELECT job_id, MIN(start - eligible) FROM attempts JOIN clusters ON clusters.id = cluster_id"
        " WHERE clusters.name = ? AND start >= ? AND start <= ? AND eligible IS NOT NULL"
        " GROUP BY job_id, submit ORDER BY submit DESC"
    )
    return {int(job): max(0.0, wait) / 3600.0 for job, wait in db.execute(sql, (cluster, *window))}


def _group(rows: Mapping[int, list[float]]) -> Group:
    table = np.array(list(rows.values()), dtype=np.float64).reshape(len(rows), 3)
    return Group(table[:, 0], table[:, 1], table[:, 2])
