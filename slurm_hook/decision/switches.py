"""Leaf switches of a topology/tree: the fewest that hold a job, and which of such sets to take. Pure."""

from __future__ import annotations

import math

from ..common.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


def by_leaf(leaves: Sequence[str], weights: Sequence[float]) -> dict[str, float]:
    """Sum of the weights below each leaf switch. All nodes without a known switch count as one leaf."""
    sums: dict[str, float] = {}
    for leaf, weight in zip(leaves, weights):
        sums[leaf] = sums.get(leaf, 0.0) + weight
    return sums


def count_by_leaf(leaves: Sequence[str]) -> dict[str, int]:
    """Nodes below each leaf switch."""
    counts: dict[str, int] = {}
    for leaf in leaves:
        counts[leaf] = counts.get(leaf, 0) + 1
    return counts


def fewest_leaves(sums: Mapping[str, float], enough: Callable[[float], bool]) -> int:
    """The least number of leaf switches whose summed weight is enough; 0 where all together are not."""
    total = 0.0
    for used, weight in enumerate(sorted(sums.values(), reverse=True), 1):
        total += weight
        if enough(total):
            return used
    return 0


def choose_leaves(
    leaves: Sequence[str],
    weights: Sequence[float],
    probabilities: Sequence[float],
    enough: Callable[[float], bool],
    pick: Callable[[Sequence[float]], int],
) -> list[int]:
    """Positions of the nodes below one smallest set of leaf switches that is enough, drawn leaf by leaf.

    pick: roulette over a list of probabilities, giving a position. All positions where no set is enough.
    """
    if len(set(leaves)) < 2:
        return list(range(len(leaves)))
    sums = by_leaf(leaves, weights)
    count = fewest_leaves(sums, enough)
    chosen: list[str] = []
    total = 0.0
    for left in range(count, 0, -1):
        rest = {leaf: weight for leaf, weight in sums.items() if leaf not in chosen}
        best = _Best(rest.values(), left - 1)
        open_leaves = {leaf for leaf, weight in rest.items() if enough(total + weight + best.beside(weight))}
        if left == 1 and len(open_leaves) == 1:
            (leaf,) = open_leaves
        else:
            positions = [i for i, leaf in enumerate(leaves) if leaf in open_leaves]
            leaf = leaves[positions[pick([probabilities[i] for i in positions])]]
        chosen.append(leaf)
        total += sums[leaf]
    return [i for i, leaf in enumerate(leaves) if leaf in chosen or not chosen]


class _Best:
    """The largest weight that `count` leaves can have together."""

    def __init__(self, weights: Iterable[float], count: int) -> None:
        self.ranked = sorted(weights, reverse=True)[: count + 1]
        self.count = count
        self.top = math.fsum(self.ranked[:count])

    def beside(self, weight: float) -> float:
        """Without one leaf of this weight."""
        if self.count and weight >= self.ranked[self.count - 1]:
            return math.fsum(self.ranked) - weight
        return self.top
