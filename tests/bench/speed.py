"""How long scoring takes, against a plain numpy sort of the same columns in the same run, and how much memory.

    python -m tests.bench.speed --tasks 1000000 2000000 4000000 8000000 10000000 --nodes 10000

Each size runs in a process of its own, so that its peak memory is its own. Prints one line per size and method.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

from accounting.history.columns import (
    DOWN,
    DRAIN,
    REASON_HARDWARE,
    REASON_UNKNOWN,
    RIGHT,
    SILENT,
    SURVIVED,
    WRONG,
    Attempts,
    Events,
    History,
    Nodes,
    Tasks,
)
from accounting.scoring.score import score_history
from slurm_hook.common.config import Settings

T0 = 1_700_000_000.0
WINDOW = 90 * 86400.0


def make(n_tasks: int, n_nodes: int, seed: int = 0) -> History:
    """A history of about `n_tasks` tasks: jobs of 1 to 32 nodes, 15 % failed, a tenth of those with a known culprit."""
    rng = np.random.default_rng(seed)
    size = rng.choice([1, 2, 4, 8, 16, 32], n_tasks, p=[0.55, 0.2, 0.1, 0.08, 0.05, 0.02])
    size = size[: int(np.searchsorted(np.cumsum(size), n_tasks)) + 1]
    n = len(size)
    submit = np.sort(rng.uniform(0, WINDOW, n))  # rows come in the order of job ids, so of submission
    start = T0 + np.floor(np.minimum(submit + rng.exponential(4 * 3600.0, n), WINDOW - 60.0))
    length = np.floor(rng.exponential(WINDOW * n_nodes * 0.8 / size.sum(), n))
    attempt = np.repeat(np.arange(n, dtype=np.int32), size)
    offset = np.arange(len(attempt)) - np.repeat(np.cumsum(size) - size, size)
    node = ((np.repeat(rng.integers(0, n_nodes, n), size) + offset) % n_nodes).astype(np.int32)
    outcome = rng.choice(np.array([SILENT, RIGHT, WRONG, SURVIVED], np.int8), n, p=[0.05, 0.75, 0.15, 0.05])
    demand = rng.choice([64.0, 128.0, 256.0, 512.0], n)[attempt] * 1024
    correct = np.select([outcome == RIGHT, outcome == WRONG], [1.0, -1.0], np.nan)[attempt]
    culprit = (outcome == WRONG)[attempt] & (offset == 0) & (rng.random(n) < 0.1)[attempt]
    tasks = Tasks(
        node, attempt, start[attempt], np.minimum(start + length, T0 + WINDOW)[attempt], demand, np.full(len(node), 512.0 * 1024),
        correct, culprit,
    )  # fmt: skip
    user = rng.integers(0, 500, n).astype(np.int32)
    works = 500 * 40
    attempts = Attempts(
        np.arange(n, dtype=np.int64), user, (user * 40 + rng.integers(0, 40, n)).astype(np.int32), np.arange(n, dtype=np.int32),
        outcome, [f"u{i}" for i in range(500)], [f"w{i}" for i in range(works)],
    )  # fmt: skip
    index = np.arange(n_nodes)
    nodes = Nodes(
        [f"n{i:05d}" for i in index], (index % 3).astype(np.int32), (index // 32).astype(np.int32), np.full(n_nodes, T0),
        np.full(n_nodes, T0 + WINDOW), ["a", "b", "c"], [f"s{i}" for i in range(n_nodes // 32 + 1)],
    )  # fmt: skip
    k = n_nodes // 5
    at = T0 + rng.uniform(0, WINDOW, k)
    drained = rng.random(k) < 0.5
    events = Events(
        rng.integers(0, n_nodes, k).astype(np.int32), np.where(drained, DRAIN, DOWN).astype(np.int8),
        np.where(drained, REASON_HARDWARE, REASON_UNKNOWN).astype(np.int8), at, at + 3600,
    )  # fmt: skip
    return History("big", tasks, attempts, nodes, events, T0, T0 + WINDOW)


def measure(n_tasks: int, n_nodes: int, method: str) -> dict[str, float | str]:
    """Seconds of the sort and of the scoring, their ratio, and the peak memory of this process in GB."""
    history = make(n_tasks, n_nodes)
    begun = time.process_time()
    np.lexsort((history.tasks.start, history.tasks.node))
    sorted_in = time.process_time() - begun
    begun = time.process_time()
    table = score_history(history, Settings({"scoring.method": method}))
    scored_in = time.process_time() - begun
    return {
        "method": method, "tasks": len(history.tasks), "nodes": n_nodes, "sort_seconds": round(sorted_in, 2),
        "score_seconds": round(scored_in, 2), "ratio": round(scored_in / sorted_in, 1),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2), "lemons": sum(r.lemon for r in table.rows),
    }  # fmt: skip


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--method", choices=["attributed", "published"], nargs="+", default=["attributed", "published"])
    parser.add_argument("--here", action="store_true", help="in this process (used for the processes of each size)")
    options = parser.parse_args()
    for n_tasks in options.tasks:
        for method in options.method:
            if options.here:
                print(json.dumps(measure(n_tasks, options.nodes, method)), flush=True)
                continue
            command = [
                sys.executable,
                "-m",
                "tests.bench.speed",
                "--here",
                "--tasks",
                str(n_tasks),
                "--nodes",
                str(options.nodes),
            ]
            subprocess.run([*command, "--method", method], check=True)


if __name__ == "__main__":
    main()
