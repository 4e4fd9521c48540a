"""Which nodes a task gets: fit, probability and draw (steps 12 to 14 of the method). Pure functions on plain sequences.

On the submit path: standard library only, and not `random`, which costs a millisecond.
Units: demand and capacity in MiB of the capacity resource; capability as published in scores.json (None: no own score).
"""

from __future__ import annotations

import math

from ..common.errors import PlacementError
from ..common.record import TYPE_CHECKING
from .wheel import Wheel, numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

GAMMA = 0.1  # softening of the fit: the best fit is 1/GAMMA
PHI = 1.0  # exponent of the fit, attributed method
BETA = 10.0  # exponent of the capability at full cost rank, attributed method
RATIO_CAP = 50.0  # largest ratio between two candidates' probabilities, attributed method
STEEPNESS = 4.0  # the cost rank rises to 1 as this power of how far above the median a task's cost is
DOUBTFUL = 1.0 / 3.0  # relative capability under which a node drops out first, like a lemon,
COSTLY = 0.3  # for a task of a cost rank over this
SACRIFICE = -0.3  # cost rank of the smallest tasks where they may take the worse nodes


def fit(demand: float, capacity: Sequence[float], gamma: float = GAMMA) -> list[float]:
    """Step 12: 1 / (|demand - capacity| / largest capacity + gamma) for each candidate.

    An unknown capacity (not finite, or below zero) counts as zero. Where no candidate has a known one, all fit alike.
    """
    known = {b: _known(b) for b in set(capacity)}  # thousands of nodes are of few sizes
    largest = max(known.values(), default=0.0)
    if largest <= 0.0:
        return [1.0 / (1.0 + gamma)] * len(capacity)
    fits = {b: 1.0 / (abs(demand - size) / largest + gamma) for b, size in known.items()}
    return [fits[b] for b in capacity]


def activation(fits: Sequence[float], capability: Sequence[float | None]) -> list[float]:
    """Step 13, first half: sigmoid(fit · C / max |C|). A node without a score takes the median of those that have one."""
    filled = fill_with_median(capability)
    largest = max((abs(c) for c in filled), default=0.0)
    if largest <= 0.0:
        return [0.5] * len(fits)
    return [_sigmoid(f * (c / largest)) for f, c in zip(fits, filled)]


def probabilities_published(
    demand: float, capacity: Sequence[float], capability: Sequence[float | None], gamma: float = GAMMA
) -> list[float]:
    """Steps 12 and 13: the probability of each candidate, summing to 1. Without any score all are equally likely."""
    if all(not _scored(c) for c in capability):
        return _normalised([1.0] * len(capacity))
    return _normalised(activation(fit(demand, capacity, gamma), capability))


def weights_attributed(
    demand: float,
    capacity: Sequence[float],
    capability: Sequence[float | None],
    rank: float,
    *,
    gamma: float = GAMMA,
    phi: float = PHI,
    beta: float = BETA,
) -> list[float]:
    """fit^phi · C^(beta · rank) of each candidate, the largest scaled to 1; for `draw` with its `ratio_cap`.

    demand: MiB per node; capability: above zero, any scale; rank: what `cost_rank` gives. Works on logarithms, so
    that no power overflows. Without any score the fit alone decides.
    """
    fits, filled = fit(demand, capacity, gamma), fill_with_median(capability)
    fit_logs = {f: phi * math.log(f) for f in set(fits)}
    logs = [fit_logs[f] + beta * rank * math.log(max(c, 1e-300)) for f, c in zip(fits, filled)]
    top = max(logs, default=0.0)
    return [math.exp(max(x - top, -690.0)) for x in logs]


def probabilities_attributed(
    demand: float,
    capacity: Sequence[float],
    capability: Sequence[float | None],
    rank: float,
    *,
    gamma: float = GAMMA,
    phi: float = PHI,
    beta: float = BETA,
    ratio_cap: float = RATIO_CAP,
) -> list[float]:
    """Probability of each candidate for the first node drawn: the weights, none over `ratio_cap` times another."""
    return _normalised(
        _capped(weights_attributed(demand, capacity, capability, rank, gamma=gamma, phi=phi, beta=beta), ratio_cap)
    )


def chances(
    method: str, demand: float, capacity: Sequence[float], capability: Sequence[float | None], *, rank: float, gamma: float
) -> tuple[Sequence[float], Sequence[float], float | None]:
    """Each candidate's probability for the first node drawn, what `draw` goes by, and its `ratio_cap`, by the scores' method.

    The attributed method caps afresh at each draw, so it draws by the weights; the published one by the probabilities.
    """
    if method == "published":
        given = probabilities_published(demand, capacity, capability, gamma)
        return given, given, None
    weights = weights_attributed(demand, capacity, capability, rank, gamma=gamma)
    return _normalised(_capped(weights, RATIO_CAP)), weights, RATIO_CAP


def drops_out_first(lemon: bool, relative: float | None, rank: float) -> bool:
    """Whether a node is left out of the candidates of a task of this cost rank as long as enough others are there.

    Lemons and nodes under a third of the typical capability, for tasks that are worth good nodes (rank above COSTLY, the
    costliest eighth). Were they left out for all tasks, they would be idle, and all that is left, when a large one comes.
    """
    return rank > COSTLY and (lemon or (relative is not None and relative < DOUBTFUL))


def cost_rank(quantiles: Sequence[float], node_hours: float, *, sacrifice: bool = False) -> float:
    """How much a failure of this task would cost, against the site's recent jobs: 0 up to their median, rising to 1.

    It rises steeply towards the end: the good nodes are few, and a task of middling cost that takes them leaves the others
    to a large one.

    quantiles: node-hours (nodes × time limit) at evenly spaced percentiles from 0 to 100; empty: rank 1, as every task
    is then worth good nodes. With `sacrifice` the line goes on below the median, down to -0.3, so that small tasks leave
    good nodes free.
    """
    if len(quantiles) < 2:
        return 1.0
    share = _percentile(quantiles, node_hours)
    above = 2.0 * share - 1.0
    return above**STEEPNESS if above > 0.0 else max(above, SACRIFICE if sacrifice else 0.0)


def draw(
    probabilities: Sequence[float],
    capacities: Sequence[float],
    *,
    count: int | None = None,
    demand: float | None = None,
    seed: int | str = 0,
    ratio_cap: float | None = None,
) -> list[int]:
    """Step 14: indices drawn by roulette without replacement, in the order drawn. Same input and seed, same draw.

    Stops at `count` nodes, or as soon as the drawn capacity exceeds `demand` (the task's total), whichever is first.
    `ratio_cap` (attributed method, with `weights_attributed`): at each draw no node that is left counts less than the
    likeliest one left over `ratio_cap`. Capped afresh each time, because one cap over all would level the bad and the
    middling once a few very good nodes are among the candidates.
    Raises PlacementError when the candidates can't give that.
    """
    if count is None and demand is None:
        raise PlacementError("a draw needs a node count or a total demand; give one of them")
    _check_enough(capacities, count, demand)
    random, wheel = numbers(seed), Wheel(probabilities, ratio_cap)
    drawn: list[int] = []
    total = 0.0
    while not _enough(len(drawn), total, count, demand):
        drawn.append(wheel.take(random()))
        total += _known(capacities[drawn[-1]])
    return drawn


def fill_with_median(capability: Sequence[float | None]) -> list[float]:
    """Capabilities with the median of the known ones in place of the unknown; 1.0 where none is known."""
    known = sorted(c for c in capability if c is not None and math.isfinite(c))
    middle = 1.0
    if known:
        middle = (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2
    return [c if c is not None and math.isfinite(c) else middle for c in capability]


def _scored(capability: float | None) -> bool:
    return capability is not None and math.isfinite(capability)


def _known(capacity: float) -> float:
    return float(capacity) if capacity is not None and math.isfinite(capacity) and capacity > 0 else 0.0


def _sigmoid(x: float) -> float:
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    e = math.exp(max(x, -700.0))
    return e / (1.0 + e)


def _capped(weights: Sequence[float], ratio_cap: float) -> list[float]:
    floor = max(weights, default=0.0) / ratio_cap
    return [max(w, floor) for w in weights]


def _normalised(weights: Sequence[float]) -> list[float]:
    total = math.fsum(weights)
    return [w / total for w in weights]


def _percentile(quantiles: Sequence[float], value: float) -> float:
    """Share of the distribution below the value (0 to 1); in the middle of a stretch of equal quantiles."""
    last = len(quantiles) - 1
    below = sum(1 for q in quantiles if q < value)
    equal = sum(1 for q in quantiles if q == value)
    if equal:
        return (below + (equal - 1) / 2) / last
    if below == 0 or below > last:
        return min(below, last) / last
    low, high = quantiles[below - 1], quantiles[below]
    return (below - 1 + (value - low) / (high - low)) / last


def _check_enough(capacities: Sequence[float], count: int | None, demand: float | None) -> None:
    if count is not None and count > len(capacities) and demand is None:
        raise PlacementError(f"{count} nodes asked, {len(capacities)} candidates; ask for fewer or name a larger partition")
    if demand is None or (count is not None and count <= len(capacities)):
        return
    total = math.fsum(_known(b) for b in capacities)
    if total <= demand:
        raise PlacementError(
            f"a demand of {demand:.0f} MiB is more than the {len(capacities)} candidates can exceed ({total:.0f} MiB); "
            "lower the demand or name a larger partition"
        )


def _enough(drawn: int, total: float, count: int | None, demand: float | None) -> bool:
    return (count is not None and drawn >= count) or (demand is not None and total > demand)
