"""Groups of nodes that are worse as a whole: those of a switch, of a GPU type, or of a chassis that the node names tell.
What they share is then to blame."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import gammaincc

from slurm_hook.common.errors import ConfigError
from slurm_hook.common.terminal import count

from ..history.columns import History
from .attributed_method import Attribution

TIMES_REST = 1.5  # a group is told when its hazard is over so many times the rest's,
CERTAINTY = 0.95  # with this probability, also without its worst member
MEMBERS = 3


def worse_groups(history: History, scored: Attribution, chassis: str = "") -> tuple[str, ...]:
    """One sentence for each switch, GPU type or chassis whose nodes fail more than the others, not because of one of them.

    chassis: regular expression; nodes in whose names it finds the same (its first group, if it has one) share a chassis.
    Raises ConfigError.
    """
    nodes = history.nodes
    told = [*_worse(scored, nodes.switch, nodes.switches, "switch"), *_worse(scored, nodes.gpu_type, nodes.gpu_types, "GPU type")]
    if chassis:
        told += _worse(scored, *by_name(nodes.names, chassis), "chassis")
    return tuple(told)


def by_name(names: Sequence[str], pattern: str) -> tuple[Any, list[str]]:
    """The group of each node by what a regular expression finds in its name (-1: nothing), and the groups' names."""
    try:
        found = [re.search(pattern, name) for name in names]
    except re.error as err:
        raise ConfigError(f"scoring.chassis = {pattern!r}: not a regular expression ({err})") from None
    texts = [(match.group(1 if match.re.groups else 0) or "") if match else "" for match in found]
    groups = sorted({text for text in texts if text})
    position = {text: i for i, text in enumerate(groups)}
    return np.array([position.get(text, -1) for text in texts], np.int32), groups


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
    return float(gammaincc(failures + 0.5, hazard * max(hours, 1e-9)))
