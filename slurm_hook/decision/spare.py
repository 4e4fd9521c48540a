"""Which of the worst nodes a job can do without. Pure; running counts, so that each further node costs little."""

from __future__ import annotations

from ..common.record import TYPE_CHECKING
from . import switches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any


class Spare:
    """What is left of one component's candidates by leaf switch while nodes are taken away.

    leaves: of the candidates by position; at: position by name; open_now: positions on which the job could start now;
    sums, open_sums: counts of all, and of these, by leaf; least: nodes that the job needs; without: names that are no
    candidates from the outset; groups: of each position, those of the candidates that may be all the job can use; group_sums,
    open_group_sums: counts by group.
    """

    def __init__(
        self, *, leaves: Sequence[str], at: Mapping[str, int], open_now: frozenset[int], sums: Mapping[str, int],
        open_sums: Mapping[str, int], least: int, without: Iterable[str] = (), groups: Sequence[tuple[Any, ...]] = (),
        group_sums: Mapping[Any, int] | None = None, open_group_sums: Mapping[Any, int] | None = None,
    ) -> None:  # fmt: skip
        self.leaves, self.at, self.open, self.least, self.groups = leaves, at, open_now, least, groups
        self.left, self.left_open = dict(sums), dict(open_sums)
        self.of_group, self.open_of_group = dict(group_sums or {}), dict(open_group_sums or {})
        self.take(without)
        by_group = (self.of_group, self.open_of_group)
        self.enough = [(counts, group) for counts in by_group for group, count in counts.items() if count >= least]
        self.fewest = self._leaves(self.left)
        self.starts = self._leaves(self.left_open) > 0

    def _leaves(self, counts: Mapping[str, int]) -> int:
        return switches.fewest_leaves(counts, lambda total: total >= self.least)

    def take(self, names: Iterable[str], sign: int = -1) -> None:
        """Take nodes away; those that are no candidates don't count."""
        for name in names:
            i = self.at.get(name)
            if i is not None:
                self.left[self.leaves[i]] += sign
                if i in self.open:
                    self.left_open[self.leaves[i]] += sign
                for group in self.groups[i] if self.groups else ():
                    self.of_group[group] += sign
                    if i in self.open:
                        self.open_of_group[group] += sign

    def give_back(self, names: Iterable[str]) -> None:
        """Undo `take`."""
        self.take(names, 1)

    def holds(self) -> bool:
        """The job has lost neither its feasibility, nor its start now, nor a smaller set of switches; in no group either."""
        if any(counts[group] < self.least for counts, group in self.enough):
            return False
        leaves = self._leaves(self.left)
        if leaves == 0 or leaves > self.fewest:
            return False
        return not self.starts or self._leaves(self.left_open) > 0


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
