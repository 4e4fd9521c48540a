"""Policies side by side in a simulated cluster whose nodes' hazards are hidden from them.

    python -m tests.bench.simulate run --seeds 200 --out results.json     # hours of CPU: as many processes as --jobs
    python -m tests.bench.simulate report results.json                    # the tables, with their spread
    python -m tests.bench.simulate report --short results.json            # those of the README

Every number of the README's tables comes from these. Seeds from 2000 on are for reporting; the method's constants
were chosen on seeds 1000 to 1119.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # idle BLAS threads spin: twice the CPU for nothing

import numpy as np

from accounting.scoring import attributed_method, published_method
from accounting.scoring.lemons import failed_attempts, find_lemons, lemon_probability
from tests.bench import report
from tests.bench.cluster import Cluster
from tests.bench.policies import POLICIES
from tests.bench.world import make, parameters

FIRST_SEED = 2000
WARM_UP = 20 * 24.0
BROKEN = ("outages", "hangs", "cycling", "storms", "late errors", "turning")
MAIN = ("random", "attributed (B)", "attributed, sacrifice off", "all-knowing")
SHARES = (12, 40)  # one seed in so many: broken worlds and other loads; policies beside the main ones


def plan(seeds: int, first: int) -> list[tuple[str, float, str, int]]:
    """(world, load, policy, seed), what matters most first, as a campaign may be cut short.

    The plain world at load 0.85: the main policies with half of the seeds, random and B with all. Then the main policies in
    broken worlds and at other loads, and every other policy, with fewer seeds.
    """
    half, some, few = (range(first, first + max(2, n)) for n in (seeds // 2, seeds // SHARES[0], seeds // SHARES[1]))
    tasks = [("plain", 0.85, policy, seed) for seed in half for policy in MAIN]
    tasks += [("plain", 0.85, policy, seed) for seed in few for policy in POLICIES]
    tasks += [("plain", 0.85, policy, seed) for seed in range(first, first + seeds) for policy in report.OBSERVED]
    others = [*((world, 0.85) for world in BROKEN), ("plain", 0.6), ("plain", 0.95)]
    tasks += [(world, load, policy, seed) for seed in some for world, load in others for policy in MAIN]
    tasks += [("plain", 0.85, policy, seed) for seed in some for policy in POLICIES]
    tasks += [("plain", load, policy, seed) for seed in few for load in (0.6, 0.95) for policy in POLICIES]
    return list(dict.fromkeys(tasks))


def play(task: tuple[str, float, str, int]) -> dict[str, Any]:
    """One run: the numbers of one policy in one world."""
    world_name, load, policy, seed = task
    world = make(parameters(world_name, load=load), seed)
    cluster = Cluster(world, POLICIES[policy](seed)).run()
    risk, lost, waits = (np.array(x).reshape(len(x), -1) for x in (cluster.risk, cluster.lost or [(0.0, 0.0)], cluster.waits))
    late = risk[:, 0] > WARM_UP
    return {
        "world": world_name, "load": load, "policy": policy, "seed": seed,
        "failures": float(risk[:, 1].sum()), "failures_late": float(risk[late, 1].sum()), "large": len(risk),
        "lost": float(lost[:, 1].sum()), "lost_late": float(lost[lost[:, 0] > WARM_UP, 1].sum()),
        "wait": float(waits[:, 1].mean()), "wear": float(cluster.busy_hours.std() / cluster.busy_hours.mean()),
        "use": float(cluster.busy_hours.sum() / (world.parameters.nodes * world.parameters.days * 24)),
        "detection": _detection(cluster) if policy in report.OBSERVED else None,
    }  # fmt: skip


def _detection(cluster: Cluster) -> dict[str, Any]:
    """How well the bad nodes show after the last day, by each method, from what this policy's run left in accounting."""
    history, bad = cluster.history(), cluster.world.bad
    scored = attributed_method.attribute(history)
    known_history = cluster.history(all_known=True)
    known = attributed_method.attribute(known_history)
    published = published_method.score_history(history).capability
    published = np.where(np.isfinite(published), published, np.nanmedian(published))
    return {
        "auc": report.auc(scored.hazard, bad), "auc_known": report.auc(known.hazard, bad),
        "auc_published": report.auc(-published, bad), "auc_counts": report.auc(failed_attempts(history), bad),
        "rule": _counts(find_lemons(history, scored), bad), "rule_known": _counts(find_lemons(known_history, known), bad),
        "curve": _curve(lemon_probability(scored), bad), "curve_known": _curve(lemon_probability(known), bad),
    }  # fmt: skip


def _counts(flagged: np.ndarray, bad: np.ndarray) -> list[int]:
    return [int((flagged & bad).sum()), int((flagged & ~bad).sum()), int(bad.sum())]


def _curve(chance: np.ndarray, bad: np.ndarray) -> list[list[float]]:
    """Probabilities of the bad nodes, and those of the healthy that could be flagged at any threshold of interest."""
    healthy = chance[~bad]
    return [np.round(chance[bad], 4).tolist(), np.round(healthy[healthy > 0.1], 4).tolist()]


def run(seeds: int, first: int, jobs: int, out: str, only: str) -> None:
    """Play the plan in processes; results one JSON object a line, so that a stopped campaign goes on where it was."""
    done = set()
    if os.path.exists(out):
        with open(out, encoding="utf-8") as file:
            done = {(r["world"], r["load"], r["policy"], r["seed"]) for r in map(json.loads, file)}
    tasks = [t for t in plan(seeds, first) if t not in done and only in f"{t[0]}/{t[1]}"]
    start = time.monotonic()
    with multiprocessing.Pool(jobs) as pool, open(out, "a", encoding="utf-8") as file:
        for i, result in enumerate(pool.imap_unordered(play, tasks), 1):
            file.write(json.dumps(result) + "\n")
            file.flush()
            if i % 50 == 0 or i == len(tasks):
                print(f"{i} of {len(tasks)} runs, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="play and write results")
    running.add_argument("--seeds", type=int, default=200)
    running.add_argument("--first", type=int, default=FIRST_SEED)
    running.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    running.add_argument("--only", default="", help="only what contains this: plain/0.85, storms, …")
    running.add_argument("--out", default="results.json")
    reporting = commands.add_parser("report", help="print the tables of results")
    reporting.add_argument("file")
    reporting.add_argument("--short", action="store_true", help="the README's tables alone")
    options = parser.parse_args()
    if options.command == "run":
        run(options.seeds, options.first, options.jobs, options.out, options.only)
    else:
        (report.show_short if options.short else report.show)(options.file)


if __name__ == "__main__":
    main()
