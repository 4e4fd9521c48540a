"""The draw of a pool: the fewest leaf switches first, then nodes by roulette. The same seed draws the same nodes again.

Pure; used by the decision and by whoever replays it from a log.
"""

from __future__ import annotations

import math

from ..common.record import TYPE_CHECKING
from . import placement, switches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def pool(
    leaves: Sequence[str],
    chances: Sequence[float],
    pull: Sequence[float],
    capacity: Sequence[float],
    *,
    count: int,
    total: float,
    seed: int,
    ratio_cap: float | None,
) -> list[int]:
    """Positions of the nodes drawn; none where the candidates can't give what is asked.

    leaves: leaf switch of each candidate; chances: its probability, by which leaves are drawn; pull, ratio_cap: what nodes
    are drawn by (see `placement.draw`); capacity: MiB; count: nodes wanted, unless `total`
    (MiB, 0 for none) says when the capacity drawn is enough.
    """
    weights = capacity if total else (1.0,) * len(leaves)
    enough: Callable[[float], bool] = (lambda s: s > total) if total else (lambda s: s >= count)
    if not leaves or not enough(math.fsum(weights)):
        return []
    inside = switches.choose_leaves(leaves, weights, chances, enough, _picker(seed))
    drawn = placement.draw(
        [pull[i] for i in inside], [capacity[i] for i in inside],
        count=None if total else count, demand=total or None, seed=seed, ratio_cap=ratio_cap,
    )  # fmt: skip
    return [inside[i] for i in drawn]


def _picker(seed: int) -> Callable[[Sequence[float]], int]:
    """Roulette for the switches, from the same seed but not with the numbers of the nodes' own draw."""
    step = 0

    def pick(chances: Sequence[float]) -> int:
        nonlocal step
        step += 1
        return placement.draw(chances, [1.0] * len(chances), count=1, seed=f"{seed}/leaf{step}")[0]

    return pick
