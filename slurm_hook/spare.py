"""Which of the worst nodes a job can do without. Pure; running sums, so that each further node costs little."""

from __future__ import annotations

from . import topology
from .light import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class Spare:
    """What is left of one component's candidates by leaf switch while nodes are taken away.

    leaves, weights: of the candidates by position; at: position by name; startable: positions on which the job could start
    now; sums: of all weights by leaf; enough: whether a summed weight holds the job.
    """

    def __init__(
        self, *, leaves: Sequence[str], weights: Sequence[float], at: Mapping[str, int], startable: Sequence[int],
        sums: Mapping[str, float], enough: Callable[[float], bool],
    ) -> None:  # fmt: skip
        self.leaves, self.weights, self.at, self.enough = leaves, weights, at, enough
        self.open = set(startable)
        self.left = dict(sums)
        self.left_open = topology.by_leaf([leaves[i] for i in startable], [weights[i] for i in startable])
        self.fewest = topology.fewest_leaves(self.left, enough)
        self.starts = topology.fewest_leaves(self.left_open, enough) > 0

    def take(self, names: Iterable[str], sign: float = -1.0) -> None:
        """Take nodes away; those that are no candidates don't count."""
        for name in names:
            i = self.at.get(name)
            if i is not None:
                self.left[self.leaves[i]] += sign * self.weights[i]
                if i in self.open:
                    self.left_open[self.leaves[i]] += sign * self.weights[i]

    def give_back(self, names: Iterable[str]) -> None:
        """Undo `take`."""
        self.take(names, 1.0)

    def holds(self) -> bool:
        """The job has lost neither its feasibility, nor its start now, nor a smaller set of switches."""
        leaves = topology.fewest_leaves(self.left, self.enough)
        if leaves == 0 or leaves > self.fewest:
            return False
        return not self.starts or topology.fewest_leaves(self.left_open, self.enough) > 0


def spared(worst: Sequence[str], most: int, components: Sequence[Spare]) -> list[str]:
    """The worst nodes that all components can spare together, at most so many; the worst come first."""
    for spare in components:
        spare.take(worst[:most])
    if all(spare.holds() for spare in components):
        return list(worst[:most])  # what holds with all of them away holds with fewer
    for spare in components:
        spare.give_back(worst[:most])
    excluded: list[str] = []
    for name in worst:
        if len(excluded) == most:
            break
        for spare in components:
            spare.take([name])
        if all(spare.holds() for spare in components):
            excluded.append(name)
        else:
            for spare in components:
                spare.give_back([name])
    return excluded
