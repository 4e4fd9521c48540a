"""What a nightly run costs with and without what the nights before it left: reading, scoring, and the same scores.

    python -m tests.bench.nightly --tasks 2000000 --nodes 5000

A made history goes into a database of its own; then come a first run, a day's new jobs, and the second night's run both ways.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from accounting.history import collect, store
from accounting.history.columns import RIGHT, SILENT, SURVIVED, WRONG, History
from accounting.publishing import refresh
from slurm_hook.common.config import Settings
from slurm_hook.published.snapshot import Scores
from tests.bench.speed import T0, WINDOW, make

CLUSTER = "big"
DAY = 86400.0
STATES = {SILENT: "CANCELLED", RIGHT: "COMPLETED", WRONG: "FAILED", SURVIVED: "TIMEOUT"}


def fill(path: Path, history: History) -> Any:
    """A database with this history's names, nodes and events, and no work yet."""
    db = store.connect(str(path))
    stores = collect.Stores(db, str(path), CLUSTER)
    cluster = stores[""].cluster_id
    with store.transaction(db.conn, str(path)):
        add = db.conn.executemany
        add("INSERT INTO users VALUES (?, ?)", [(i + 1, name) for i, name in enumerate(history.attempts.users)])
        works = zip(history.attempts.works, np.arange(len(history.attempts.works)) // 40)
        add("INSERT INTO works VALUES (?, ?, ?)", [(i + 1, int(user) + 1, name) for i, (name, user) in enumerate(works)])
        add("INSERT INTO states VALUES (?, ?)", [(code + 1, name) for code, name in STATES.items()])
        add("INSERT INTO nodes VALUES (?, ?, ?, ?, ?, NULL)",
            [(i + 1, cluster, name, T0, T0 + WINDOW) for i, name in enumerate(history.nodes.names)])  # fmt: skip
        add("INSERT INTO node_specs (node_id, valid_from, memory_mib, cpus, gpus, switch, source) VALUES"
            " (?, 0, ?, 64, 0, ?, 'file')",
            [(i + 1, 512 * 1024, f"s{i // 32}") for i in range(len(history.nodes))])  # fmt: skip
        add("INSERT INTO node_events (node_id, kind, start, end, reason, reason_class, source) VALUES"
            " (?, ?, ?, ?, ?, 'unknown', 'slurmdbd')"
            " ON CONFLICT DO NOTHING", _events(history))  # fmt: skip
    stores.finish()
    return db


def _events(history: History) -> list[tuple[Any, ...]]:
    events = history.events
    return [
        (int(n) + 1, "drain" if k else "down", int(s), int(e), "Xid 79" if k else "Not responding")
        for n, k, s, e in zip(events.node, events.kind, events.start, events.end)
    ]


def add_work(db: Any, path: Path, history: History, chosen: Any) -> None:
    """Attempts (bool array) of the history with their tasks, as collect would write them."""
    tasks, attempts = history.tasks, history.attempts
    first = np.searchsorted(tasks.attempt, np.arange(len(attempts)))
    size = np.bincount(tasks.attempt, minlength=len(attempts))
    start, end = tasks.start[first].astype(int), tasks.end[first].astype(int)
    with store.transaction(db.conn, str(path)):
        db.conn.executemany(
            "INSERT INTO attempts (id, cluster_id, job_id, submit, digest, is_open, label, work_id, state_id, exit_code,"
            " exit_signal, start, end, limit_minutes, nnodes, node_list, nsteps, flags)"
            " VALUES (?, 1, ?, ?, x'00', 0, ?, ?, ?, ?, 0, ?, ?, 1440, ?, '', 0, 0)",
            (
                (int(i) + 1, int(i), int(start[i]), str(i), int(attempts.work[i]) + 1, int(attempts.outcome[i]) + 1,
                 int(attempts.outcome[i] == WRONG), int(start[i]), int(end[i]), int(size[i]))
                for i in np.flatnonzero(chosen)
            ),
        )  # fmt: skip
        rows = np.flatnonzero(chosen[tasks.attempt])
        rows = rows[np.lexsort((tasks.node[rows], tasks.attempt[rows]))]
        columns = (tasks.attempt[rows] + 1, tasks.node[rows] + 1, tasks.start[rows], tasks.end[rows], tasks.demand[rows])
        db.conn.executemany(
            "INSERT OR IGNORE INTO tasks VALUES (?, ?, ?, ?, 8, ?, 0, NULL, 1)",
            zip(*(column.astype(int).tolist() for column in columns)),
        )


def same(one: Scores, other: Scores) -> float:
    """The largest relative difference of any number of any node; infinite where words differ."""
    worst = 0.0
    for name, left in one.nodes.items():
        for a, b in zip(left, other.nodes[name]):
            if isinstance(a, float) and isinstance(b, float):
                worst = max(worst, abs(a - b) / max(abs(a), abs(b), 1e-300))
            elif a != b:
                return float("inf")
    return worst


def timed(db: Any, settings: Settings, night: float, **how: Any) -> tuple[dict[str, float], Scores]:
    """Seconds of processor time of reading and of scoring in one run, both with what they keep; and the scores."""
    begun: list[float] = []
    done = refresh.run(db, CLUSTER, settings, as_of=night, step=lambda name: begun.append(time.process_time()), **how)
    return {"read": round(begun[1] - begun[0], 2), "score": round(begun[2] - begun[1], 2)}, done.scores


def measure(n_tasks: int, n_nodes: int, folder: Path) -> dict[str, Any]:
    """Three nights a day apart over 80 days; the last one without what was left and with it: seconds, ratio, difference."""
    history = make(n_tasks, n_nodes)
    path = folder / "history.db"
    db = fill(path, history)
    settings = Settings({"scoring.window_days": 80.0, "publish.path": str(folder)})
    done, night = np.zeros(len(history.attempts), bool), T0
    end = np.zeros(len(history.attempts))
    end[history.tasks.attempt] = history.tasks.end
    for left in (2, 1, 0):
        night = T0 + WINDOW - left * DAY
        new = (end <= night) & ~done
        add_work(db, path, history, new)
        done |= new
        if left:
            refresh.run(db, CLUSTER, settings, as_of=night)
    full, anew = timed(db, settings, night, write=False, full=True)
    usual, scores = timed(db, settings, night)
    kept = db.execute("SELECT (SELECT sum(length(data)) FROM settled) + (SELECT sum(length(data)) FROM stretches)").fetchone()[0]
    return {
        "tasks": n_tasks, "nodes": n_nodes, "full": full, "usual": usual,
        "ratio": round(sum(full.values()) / sum(usual.values()), 1), "difference": same(scores, anew),
        "kept_mb": round(kept / 1e6, 1), "database_mb": round(path.stat().st_size / 1e6, 1),
    }  # fmt: skip


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=2_000_000)
    parser.add_argument("--nodes", type=int, default=5_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(options.tasks, options.nodes, Path(folder))))


if __name__ == "__main__":
    main()
