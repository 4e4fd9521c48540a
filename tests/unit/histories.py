"""Small histories for tests: one row per task, in hours after a fixed moment."""

from __future__ import annotations

import numpy as np

from accounting.history.columns import RIGHT, WRONG, Attempts, Events, History, Nodes, Tasks

H = 3600.0
T0 = 1_760_000_000.0


def history(rows, events=(), n_nodes=4, as_of=240.0, window=0.0, gpu_type=None, switch=None, capacity=100.0):
    """rows: dicts with nodes, start, end (h), and what differs from: demand 80, outcome RIGHT, user 0, work user, group own,
    job 1000 + i, culprit (node). events: (node, kind, reason class, start h, end h, perhaps the reason)."""
    jobs = [
        {"demand": 80.0, "outcome": RIGHT, "user": 0, "culprit": -1, "job": 1000 + i, "group": i, **r} for i, r in enumerate(rows)
    ]
    node = np.array([n for r in jobs for n in r["nodes"]], np.int32)
    attempt = np.array([i for i, r in enumerate(jobs) for _ in r["nodes"]], np.int32)

    def column(name, kind=float):
        return np.array([r[name] for r in jobs], kind)

    outcome = column("outcome", np.int8)
    correct = np.select([outcome == RIGHT, outcome == WRONG], [1.0, -1.0], np.nan)
    tasks = Tasks(
        node, attempt, T0 + column("start")[attempt] * H, T0 + column("end")[attempt] * H, column("demand")[attempt],
        np.full(len(node), capacity), correct[attempt], column("culprit", int)[attempt] == node,
    )  # fmt: skip
    work = np.array([r.get("work", r["user"]) for r in jobs], np.int32)
    n_users, n_works = 1 + max((r["user"] for r in jobs), default=0), 1 + int(work.max(initial=0))
    attempts = Attempts(
        column("job", np.int64), column("user", np.int32), work, column("group", np.int32), outcome,
        [f"user{i}" for i in range(n_users)], [f"work{i}" for i in range(n_works)],
    )  # fmt: skip
    kinds = np.array(gpu_type if gpu_type is not None else [-1] * n_nodes, np.int32)
    switches = np.array(switch if switch is not None else [-1] * n_nodes, np.int32)
    nodes = Nodes(
        [f"n{i}" for i in range(n_nodes)], kinds, switches, np.full(n_nodes, T0), np.full(n_nodes, T0 + as_of * H),
        [f"gpu{i}" for i in range(kinds.max(initial=-1) + 1)], [f"leaf{i}" for i in range(switches.max(initial=-1) + 1)],
    )  # fmt: skip
    e = list(zip(*[(*event, "")[:6] for event in events])) if events else [()] * 6
    found = Events(
        np.array(e[0], np.int32), np.array(e[1], np.int8), np.array(e[2], np.int8), T0 + np.array(e[3], float) * H,
        T0 + np.array(e[4], float) * H, tuple(e[5]),
    )  # fmt: skip
    return History("c", tasks, attempts, nodes, found, T0 + window * H, T0 + as_of * H)


def random_rows(seed, n_jobs=60, n_nodes=6, users=3, span=200.0):
    """Jobs of one to three nodes that overlap; a third fail, some with a known culprit; node 0 fails more."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n_jobs):
        nodes = sorted(rng.choice(n_nodes, int(rng.integers(1, 4)), replace=False).tolist())
        start = float(np.round(rng.uniform(0, span), 2))
        outcome = int(rng.choice([0, 1, 1, 1, 2, 2, 3]))
        if 0 in nodes and rng.random() < 0.5:
            outcome = WRONG
        user = int(rng.integers(0, users))
        rows.append({
            "nodes": nodes, "start": start, "end": start + float(np.round(rng.exponential(8.0), 2)),
            "demand": float(rng.choice([12.5, 25.0, 60.0, 95.0])), "outcome": outcome, "user": user,
            "work": user * 2 + int(rng.integers(0, 2)), "culprit": nodes[0] if outcome == WRONG and rng.random() < 0.3 else -1,
            "job": 1000 + i,
        })  # fmt: skip
    return rows
