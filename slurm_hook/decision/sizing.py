"""How many nodes a total demand takes while it isn't known yet which ones the job will get. Pure."""

from __future__ import annotations

from ..common.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nodes_for(demand: float, capacities: Iterable[float]) -> int:
    """The fewest nodes of which any choice exceeds the demand (step 14); 0 where all of them together don't.

    demand and capacities (of whole nodes) in MiB. Any choice, because Slurm chooses when the job's turn comes, and the
    count can't be changed then.
    """
    reached = 0.0
    for count, capacity in enumerate(sorted(capacities), 1):
        reached += capacity
        if reached > demand:
            return count
    return 0
