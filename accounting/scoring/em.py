"""The noisy-or solved by EM: how failures of unknown cause are shared among nodes and jobs. Pure numpy, no history.

Hazards λ are per hour with a gamma prior (mean per GPU type, shape by marginal likelihood); a job of work g fails on its
own with hazard ρ_g / (t + t0), ρ_g shrunk to its user's and that to the cluster's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaln

from ..history.columns import FloatArray, sum_by

BASE_HAZARD = 6.5 / (1000 * 24)  # failures per node-hour of a typical cluster, while the history says nothing
BASE_FAILURES = 1.0  # how many failures that assumption is worth
BASE_OWN = 0.05  # own errors per log-hour, as a start; worth BASE_LOG_HOURS of evidence
BASE_LOG_HOURS = 5.0
SHAPES = np.geomspace(0.05, 20.0, 120)  # candidate shapes of the prior
# What is believed of the shape beforehand: a few nodes in a hundred at 10 to 40 times the rate of the others give 0.2
SHAPE_CENTRE, SHAPE_SPREAD = 0.23, 0.2
TOLERANCE = 1e-7


@dataclass(frozen=True)
class Model:
    """Constants of the attributed method; hours where not said otherwise."""

    half_life_days: float = 60.0
    early_hours: float = 5.0 / 60.0  # t0: own errors come early
    user_cap: float = 1.5  # failures that one user's unexplained failures may charge a node with
    type_failures: float = 5.0  # failures after which a GPU type's own mean outweighs the cluster's
    user_strength: float = 10.0  # log-hours after which a user's own rate outweighs the cluster's
    work_strength: float = 5.0  # the same for a kind of work against its user's
    max_steps: int = 300


@dataclass(frozen=True)
class Evidence:
    """What stays fixed while the EM runs.

    Over candidate rows of failures of unknown cause: failure, node, user, weight (fading, trust, light work).
    Over failures: elapsed (h; infinite where it can't have been the job), work, weight. Over nodes: fixed (charges by known
    culprits and events), exposure (weighted h), gpu_type (-1: none). Over kinds of work: work_log_hours
    (Σ log((T + t0) / t0)), user_of_work.
    """

    failure: Any
    node: Any
    user: Any
    row_weight: FloatArray
    elapsed: FloatArray
    work: Any
    weight: FloatArray
    fixed: FloatArray
    exposure: FloatArray
    gpu_type: Any
    work_log_hours: FloatArray
    user_of_work: Any
    n_users: int


@dataclass(frozen=True)
class Solution:
    """hazard, shape, rate of each node's gamma posterior; charged (effective failures); blame per candidate row, own per
    failure (shares that sum to 1); the prior; own rate ρ per kind of work; steps taken and whether they converged."""

    hazard: FloatArray
    shape: FloatArray
    rate: FloatArray
    charged: FloatArray
    blame: FloatArray
    own: FloatArray
    prior_mean: FloatArray
    prior_shape: float
    work_rate: FloatArray
    steps: int
    converged: bool


def solve(evidence: Evidence, model: Model) -> Solution:
    """EM from the cluster's mean until no hazard moves by more than TOLERANCE (relative), or `max_steps`."""
    pairs = _Pairs(evidence, model.user_cap)
    mean = _prior_mean(evidence, evidence.fixed, model)
    alpha = best_shape(evidence.fixed, evidence.exposure)
    hazard = mean.copy()
    rate_of_work = np.full(len(evidence.work_log_hours), BASE_OWN)
    step, moved = 0, np.inf
    blame = own = charged = np.zeros(0)
    while step < model.max_steps and moved > TOLERANCE:
        blame, own = share(evidence, hazard, rate_of_work, model.early_hours)
        charged = evidence.fixed + pairs.charges(blame)
        mean = _prior_mean(evidence, charged, model)
        new = (alpha + charged) / (alpha / mean + evidence.exposure)
        moved = float(np.max(np.abs(new / hazard - 1.0), initial=0.0))
        hazard, rate_of_work, step = new, _own_rates(evidence, own, model), step + 1
    shape, rate = alpha + charged, alpha / mean + evidence.exposure
    return Solution(hazard, shape, rate, charged, blame, own, mean, alpha, rate_of_work, step, moved <= TOLERANCE)


def share(evidence: Evidence, hazard: FloatArray, rate_of_work: FloatArray, early: float) -> tuple[FloatArray, FloatArray]:
    """E step: each candidate's share of its failure (per row), and the job's own (per failure)."""
    own = rate_of_work[evidence.work] / (evidence.elapsed + early)
    of_row = hazard[evidence.node]
    total = own + sum_by(evidence.failure, of_row, len(own))
    return of_row / total[evidence.failure], own / total


class _Pairs:
    """Charges summed by node, each user's sum on a node capped."""

    def __init__(self, evidence: Evidence, cap: float) -> None:
        key = evidence.node.astype(np.int64) * evidence.n_users + evidence.user
        pairs, self.of_row = np.unique(key, return_inverse=True)
        self.node = pairs // evidence.n_users
        self.weight, self.cap, self.n_nodes = evidence.row_weight, cap, len(evidence.exposure)

    def charges(self, blame: FloatArray) -> FloatArray:
        by_user = sum_by(self.of_row, blame * self.weight, len(self.node))
        return sum_by(self.node, np.minimum(by_user, self.cap), self.n_nodes)


def _prior_mean(evidence: Evidence, charged: FloatArray, model: Model) -> FloatArray:
    """Mean hazard of each node's GPU type, shrunk to the cluster's; that one to BASE_HAZARD."""
    cluster = (charged.sum() + BASE_FAILURES) / (evidence.exposure.sum() + BASE_FAILURES / BASE_HAZARD)
    kind = evidence.gpu_type + 1  # 0: no GPU
    if len(kind) == 0 or (kind == kind[0]).all():
        return np.full(len(charged), cluster)
    n = int(kind.max()) + 1
    strength = model.type_failures
    means = (sum_by(kind, charged, n) + strength) / (sum_by(kind, evidence.exposure, n) + strength / cluster)
    return means[kind]


def best_shape(known: FloatArray, exposure: FloatArray) -> float:
    """The likeliest shape of the prior, among SHAPES: marginal likelihood (negative binomial) of the charges by known
    culprits, times the belief beforehand. Shared-out charges can't tell it: sharing makes nodes look alike."""
    belief = -0.5 * (np.log(SHAPES / SHAPE_CENTRE) / SHAPE_SPREAD) ** 2
    seen = exposure > 0
    mean = known[seen].sum() / exposure[seen].sum() if seen.any() else 0.0
    if mean > 0:
        n, hours, a = known[seen][:, None], exposure[seen][:, None], SHAPES[None, :]
        likelihood = gammaln(a + n) - gammaln(a) + a * np.log(a / mean) - (a + n) * np.log(a / mean + hours)
        belief = belief + likelihood.sum(axis=0)
    return float(SHAPES[int(np.argmax(belief))])


def _own_rates(evidence: Evidence, own: FloatArray, model: Model) -> FloatArray:
    """M step of ρ: each kind of work shrunk to its user, each user to the cluster."""
    charged = sum_by(evidence.work, own * evidence.weight, len(evidence.work_log_hours))
    cluster = (charged.sum() + BASE_OWN * BASE_LOG_HOURS) / (evidence.work_log_hours.sum() + BASE_LOG_HOURS)
    by_user = sum_by(evidence.user_of_work, charged, evidence.n_users)
    hours = sum_by(evidence.user_of_work, evidence.work_log_hours, evidence.n_users)
    users = (by_user + model.user_strength * cluster) / (hours + model.user_strength)
    prior = users[evidence.user_of_work]
    return (charged + model.work_strength * prior) / (evidence.work_log_hours + model.work_strength)
