"""Placement policies side by side: which of the idle nodes a job takes."""

from __future__ import annotations

import numpy as np

from accounting.scoring import attributed_method, published_method
from accounting.scoring.em import Model
from accounting.scoring.lemons import find_lemons
from slurm_hook.decision.placement import BETA, COSTLY, DOUBTFUL, RATIO_CAP, cost_rank
from tests.bench.cluster import CAPACITY, Cluster
from tests.bench.world import BASE


class Base:
    """Draws are the policy's own random numbers; the world's are fixed."""

    learns = False

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 2])

    def choose(self, cluster: Cluster, job: int, idle: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def night(self, cluster: Cluster) -> None:
        return


class Default(Base):
    """Slurm's default: the first idle nodes in configured order."""

    def choose(self, cluster, job, idle):
        return idle[: cluster.world.size[job]]


class Random(Base):
    """Any idle nodes."""

    def choose(self, cluster, job, idle):
        return self.rng.permutation(idle)[: cluster.world.size[job]]


class RoundRobin(Base):
    """The next idle nodes after the last ones taken."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.next = 0

    def choose(self, cluster, job, idle):
        k = cluster.world.size[job]
        turn = np.roll(idle, -int(np.searchsorted(idle, self.next)))[:k]
        self.next = int(turn[-1]) + 1
        return turn


class LeastUsed(Base):
    """The nodes with the fewest busy hours (Slurm's SelectTypeParameters=LLN in spirit)."""

    def choose(self, cluster, job, idle):
        return idle[np.argsort(cluster.busy_hours[idle], kind="stable")[: cluster.world.size[job]]]


class Knowing(Base):
    """Knows the true hazards. Costly jobs take the best idle nodes, those of no more than the median cost the worst."""

    def choose(self, cluster, job, idle):
        order = np.argsort(cluster.hazard[idle], kind="stable")
        rank = rank_of(cluster, job)
        k = cluster.world.size[job]
        return idle[order[:k]] if rank > 0 else idle[order[::-1][:k]]


def rank_of(cluster: Cluster, job: int, sacrifice: bool = False) -> float:
    """Cost rank of a job among the world's jobs."""
    kept: dict[bool, list[float]] = cluster.policy_memo
    if sacrifice not in kept:
        cost = cluster.world.size * cluster.world.limit
        quantiles = np.percentile(cost, np.arange(0, 101, 5)).tolist()  # as scores.json carries them
        kept[sacrifice] = [cost_rank(quantiles, c, sacrifice=sacrifice) for c in cost.tolist()]
    return kept[sacrifice][job]


def roulette(rng: np.random.Generator, weights: np.ndarray, k: int) -> np.ndarray:
    """k positions drawn one at a time without replacement, each by its weight (exponential keys give the same law)."""
    keys = rng.exponential(1.0, len(weights)) / weights
    return np.argpartition(keys, k - 1)[:k] if k < len(weights) else np.arange(len(weights))


def capped_roulette(rng: np.random.Generator, logs: np.ndarray, k: int) -> np.ndarray:
    """k positions by roulette on exp(logs), capped afresh at each draw, as `slurm_hook.decision.placement.draw` does."""
    if k >= len(logs):
        return np.arange(len(logs))
    logs, low, drawn = logs.copy(), -np.log(RATIO_CAP), []
    for point in rng.random(k):
        weights = np.exp(np.maximum(logs - logs.max(), low))
        weights[drawn] = 0.0
        reached = np.cumsum(weights)
        drawn.append(int(np.searchsorted(reached, point * reached[-1], side="right")))
        logs[drawn[-1]] = -np.inf
    return np.array(drawn)


class Weighted(Base):
    """Draws by capability to the power beta · cost rank; costly jobs take lemons only where nothing else is idle."""

    sacrifice = False

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.capability: np.ndarray | None = None
        self.lemon: np.ndarray | None = None

    def choose(self, cluster, job, idle):
        k, rank = int(cluster.world.size[job]), rank_of(cluster, job, self.sacrifice)
        if self.capability is None:
            return self.rng.permutation(idle)[:k]
        last = idle[:0]
        if self.lemon is not None and rank > COSTLY:  # `slurm_hook.decision.placement.drops_out_first`
            out = (self.lemon | (self.capability < DOUBTFUL))[idle]
            idle, last = idle[~out], idle[out]
            if len(idle) <= k:
                last = last[np.argsort(-self.capability[last], kind="stable")]
                return np.concatenate([idle, last[: k - len(idle)]])
        return idle[capped_roulette(self.rng, BETA * rank * np.log(self.capability[idle]), k)]


class KnowingDraw(Weighted):
    """The attributed method's placer to the letter, but with the true hazards and bad nodes: what not knowing costs."""

    sacrifice = True

    def choose(self, cluster, job, idle):
        self.capability = np.median(cluster.hazard) / cluster.hazard
        self.lemon = cluster.hazard > BASE * cluster.world.parameters.bad_factor[0] * 0.999
        return super().choose(cluster, job, idle)


class KnowingDrawFair(KnowingDraw):
    """The same with `sacrifice` off."""

    sacrifice = False


class Attributed(Weighted):
    """Part B, learning each night from what accounting shows."""

    sacrifice = True
    model = Model()

    def night(self, cluster):
        history = cluster.history()
        scored = attributed_method.attribute(history, model=self.model)
        self.capability = scored.capability / np.median(scored.capability)
        self.lemon = find_lemons(history, scored)


class AttributedFair(Attributed):
    """Part B with `sacrifice` off: small jobs don't take the worse nodes."""

    sacrifice = False


class Published(Base):
    """Part A: sigmoid of fit and capability, roulette."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.scores: np.ndarray | None = None

    def choose(self, cluster, job, idle):
        k = int(cluster.world.size[job])
        if self.scores is None:
            return self.rng.permutation(idle)[:k]
        fit = 1 / (abs(float(cluster.world.utilization[job]) * CAPACITY - CAPACITY) / CAPACITY + 0.1)
        top = np.abs(self.scores[idle]).max()
        weights = 1 / (1 + np.exp(-fit * self.scores[idle] / top)) if top > 0 else np.ones(len(idle))
        return idle[roulette(self.rng, weights, k)]

    def night(self, cluster):
        table = published_method.score_history(cluster.history())
        known = np.isfinite(table.capability)
        if known.any():
            self.scores = np.where(known, table.capability, np.median(table.capability[known]))


POLICIES: dict[str, type[Base]] = {
    "default order": Default,
    "random": Random,
    "round robin": RoundRobin,
    "least used": LeastUsed,
    "published (A)": Published,
    "attributed, sacrifice off": AttributedFair,
    "attributed (B)": Attributed,
    "same placer, all-knowing, sacrifice off": KnowingDrawFair,
    "same placer, all-knowing": KnowingDraw,
    "all-knowing": Knowing,
}
