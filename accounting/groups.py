"""Groups of nodes that are worse as a whole: those of a switch, or of a GPU type. What they share is then to blame."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import gamma

from slurm_hook.terminal import count

from .attribution import Attribution
from .columns import History

TIMES_REST = 1.5  # a group is told when its hazard is over so many times the rest's,
CERTAINTY = 0.95  # with this probability, also without its worst member
MEMBERS = 3


def worse_groups(history: History, scored: Attribution) -> tuple[str, ...]:
    """One sentence for each switch or GPU type whose nodes fail more than the others, not because of one of them."""
    nodes = history.nodes
    told = [*_worse(scored, nodes.switch, nodes.switches, "switch"), *_worse(scored, nodes.gpu_type, nodes.gpu_types, "GPU type")]
    return tuple(told)


def _worse(scored: Attribution, group: Any, names: list[str], what: str) -> list[str]:
    told = []
    charged, hours = scored.solution.charged, scored.exposure.weighted * scored.exposure.gain
    for number, name in enumerate(names):
        members = np.flatnonzero(group == number)
        rest = np.flatnonzero((group != number) & (hours > 0))
        if len(members) < MEMBERS or len(rest) < MEMBERS:
            continue
        usual = (charged[rest].sum() + 0.5) / hours[rest].sum()
        times = charged[members].sum() / max(hours[members].sum(), 1e-9) / usual
        if times <= TIMES_REST:  # without hours of its own a group's hazard is anybody's guess
            continue
        without_worst = np.delete(members, int(np.argmax(charged[members])))
        if all(_above(charged[m].sum(), hours[m].sum(), TIMES_REST * usual) >= CERTAINTY for m in (members, without_worst)):
            told.append(
                f"{what} {name} as a whole: {times:.1f} times the failures per hour of the other nodes "
                f"({charged[members].sum():.1f} on {count(len(members), 'node')}); look at what they share"
            )
    return told


def _above(failures: float, hours: float, hazard: float) -> float:
    """P(the group's hazard is above `hazard`), from its failures and hours alone (Jeffreys prior)."""
    return float(gamma.sf(hazard, failures + 0.5, scale=1.0 / max(hours, 1e-9)))
