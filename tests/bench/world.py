"""The world of the simulation: hidden hazards of nodes, and a stream of jobs with everything random drawn beforehand.

Policies meet the same world: the same jobs at the same times, the same own errors, and for every attempt the same unit
exponential that decides after how much hazard a node kills it (common random numbers).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

BASE = 6.5 / (1000 * 24)  # failures per node-hour of a typical healthy node
EARLY = 5.0 / 60.0  # hours
ATTEMPTS = 8  # an attempt that a node killed is submitted again at most so often


@dataclass(frozen=True)
class Parameters:
    """One kind of world. Times in hours, shares 0 to 1."""

    nodes: int = 128
    days: float = 60.0
    load: float = 0.85
    bad_share: float = 0.03
    bad_factor: tuple[float, float] = (10.0, 40.0)
    healthy_sigma: float = 0.4
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    size_shares: tuple[float, ...] = (32 / 63, 16 / 63, 8 / 63, 4 / 63, 2 / 63, 1 / 63)
    median_hours: float = 3.0
    sigma_hours: float = 1.0
    max_hours: float = 48.0
    own_error: float = 0.2  # share of jobs that fail by their own error
    own_median_hours: float = 1.0 / 6.0  # when, lognormal
    own_sigma: float = 1.5
    late_errors: float = 0.0  # 1: own errors at any time on a logarithmic scale, up to the job's end
    visible: float = 0.5  # share of node failures that Slurm names
    users: int = 24
    wear: float = 0.5  # hazard grows by this share at full sustained load
    repair_hours: float = 6.0
    checkpoint_hours: float = 3.0
    per_switch: int = 16
    outages_per_switch_day: float = 0.0  # a switch takes every job that touches it
    hangs: float = 0.0  # share of invisible node failures that hang the job until its limit
    cycling: float = 0.0  # health checks that drain and resume a bad node, per day
    turning: float = 0.0  # share of bad nodes that a silent repair heals in the middle half, while another turns bad
    storms: float = 0.0  # share of own errors that are submitted again at once, 4 to 7 times


WORLDS: dict[str, dict[str, float]] = {
    "plain": {},
    "outages": {"outages_per_switch_day": 0.05},
    "hangs": {"hangs": 0.6},
    "cycling": {"cycling": 0.5},
    "storms": {"storms": 0.05},
    "late errors": {"late_errors": 1.0},
    "turning": {"turning": 1.0},
}


def parameters(world: str = "plain", **changes: float) -> Parameters:
    """Parameters of a named world, some changed."""
    return replace(Parameters(), **{**WORLDS[world], **changes})


@dataclass(frozen=True)
class World:
    """Arrays over nodes: hazard (per hour, at the start), bad (at the end). Arrays over jobs: submit, size, hours, limit,
    utilization, user, work, own (hours after which the job's own error ends it; inf), repeats (of a storm). Arrays over
    (job, attempt): fatal (unit exponential), whose and seen (uniform). outages: (time, switch); checks: (time, node);
    turns: (time, node, hazard)."""

    parameters: Parameters
    seed: int
    hazard: np.ndarray
    bad: np.ndarray
    submit: np.ndarray
    size: np.ndarray
    hours: np.ndarray
    limit: np.ndarray
    utilization: np.ndarray
    user: np.ndarray
    work: np.ndarray
    own: np.ndarray
    repeats: np.ndarray
    fatal: np.ndarray
    whose: np.ndarray
    seen: np.ndarray
    outages: list[tuple[float, int]]
    checks: list[tuple[float, int]]
    turns: list[tuple[float, int, float]]


def make(p: Parameters, seed: int) -> World:
    """The world of this seed."""
    rng = np.random.default_rng([seed, 1])
    bad = np.zeros(p.nodes, bool)
    bad[rng.choice(p.nodes, max(1, round(p.bad_share * p.nodes)), replace=False)] = True
    healthy = BASE * np.exp(rng.normal(0.0, p.healthy_sigma, p.nodes))
    factor = np.exp(rng.uniform(*np.log(p.bad_factor), p.nodes))
    hazard = np.where(bad, BASE * factor, healthy)
    jobs = _jobs(p, rng)
    n = len(jobs["submit"])
    span = p.days * 24
    switches = -(-p.nodes // p.per_switch)
    outages = [
        (float(rng.uniform(0, span)), s) for s in range(switches) for _ in range(rng.poisson(p.outages_per_switch_day * p.days))
    ]
    checks = [(float(rng.uniform(0, span)), int(i)) for i in np.flatnonzero(bad) for _ in range(rng.poisson(p.cycling * p.days))]
    turns, bad = _turns(p, np.random.default_rng([seed, 3]), hazard, bad)
    return World(
        p, seed, hazard, bad, **jobs,
        fatal=rng.exponential(1.0, (n, ATTEMPTS)), whose=rng.random((n, ATTEMPTS)), seen=rng.random((n, ATTEMPTS)),
        outages=outages, checks=checks, turns=turns,
    )  # fmt: skip


def _turns(
    p: Parameters, rng: np.random.Generator, hazard: np.ndarray, bad: np.ndarray
) -> tuple[list[tuple[float, int, float]], np.ndarray]:
    """Bad nodes that heal while others turn bad, and who is bad at the end."""
    healed = np.flatnonzero(bad & (rng.random(len(bad)) < p.turning))
    fresh = rng.choice(np.flatnonzero(~bad), len(healed), replace=False)
    when = p.days * 24 * rng.uniform(0.25, 0.75, len(healed))
    bad = bad.copy()
    bad[healed], bad[fresh] = False, True
    turns = [(float(t), int(i), float(hazard[j])) for t, a, b in zip(when, healed, fresh) for i, j in ((a, b), (b, a))]
    return turns, bad


def _jobs(p: Parameters, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A stream whose node-hours over the time span are the load exactly."""
    wanted = p.load * p.nodes * p.days * 24
    n = int(wanted / 5)  # more than enough: a job takes some 25 node-hours
    size = rng.choice(p.sizes, n, p=p.size_shares)
    hours = np.clip(p.median_hours * np.exp(rng.normal(0, p.sigma_hours, n)), 0.05, p.max_hours)
    hours = np.minimum(hours * np.where(size >= 8, 1.3, 1.0), p.max_hours)
    user = np.minimum(rng.zipf(1.6, n), 10**6) % p.users
    work = user * 8 + rng.integers(0, 8, n)
    own = _own_errors(p, rng, hours, work)
    repeats = np.where(np.isfinite(own) & (rng.random(n) < p.storms), rng.integers(4, ATTEMPTS, n), 0)
    taken = np.cumsum(size * np.minimum(hours, own))
    n = int(np.searchsorted(taken, wanted)) + 1
    gaps = rng.exponential(1.0, n)
    submit = np.cumsum(gaps) / gaps.sum() * p.days * 24
    # several nodes: whole ones; one node: 1 to 8 of its 8 GPUs
    utilization = np.where(size > 1, 1.0, rng.choice([0.125, 0.25, 0.5, 1.0], len(size), p=[0.2, 0.2, 0.2, 0.4]))
    limit = np.minimum(hours * rng.uniform(1.1, 3.0, len(size)), p.max_hours + 1)
    return {
        "submit": submit, "size": size[:n], "hours": hours[:n], "limit": limit[:n], "utilization": utilization[:n],
        "user": user[:n], "work": work[:n], "own": own[:n], "repeats": repeats[:n],
    }  # fmt: skip


def _own_errors(p: Parameters, rng: np.random.Generator, hours: np.ndarray, work: np.ndarray) -> np.ndarray:
    """Hour of each job's own error (inf: none). Kinds of work differ; an error that comes after the end is none."""
    kinds = rng.gamma(1.0, 1.0, p.users * 8)
    if p.late_errors:
        when = EARLY * np.expm1(rng.random(len(hours)) * np.log1p(hours / EARLY))
    else:
        when = p.own_median_hours * np.exp(rng.normal(0.0, p.own_sigma, len(hours)))
    in_time, lot, rate = when < hours, rng.random(len(hours)), kinds[work]
    for _ in range(40):  # so that the share of jobs that fail by themselves is met
        rate = rate * p.own_error / max(float(np.mean(-np.expm1(-rate) * in_time)), 1e-9)
    return np.where((lot < -np.expm1(-rate)) & in_time, when, np.inf)
