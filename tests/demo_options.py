"""The demo's options. Standard library alone, so that a mistyped one costs no installation (`python3 -m tests.demo_options`)."""

from __future__ import annotations

import argparse

from slurm_hook.common.errors import HostlistError
from slurm_hook.common.hostlist import expand, fold
from slurm_hook.decision.switches import count_by_leaf, fewest_leaves
from tests.sandbox.conf import leaves, node_names

DESCRIPTION = """\
The whole product at work on a throwaway real Slurm: planted bad nodes, a mixed history, scores from its accounting alone,
and a three-stage pipeline through the wrapper. Everything printed was measured in this run."""
STAGES = (("prepare", 1), ("pretrain", 4), ("evaluate", 2))
# The history: seconds of a job, GPUs that it has of each node, share of those on two nodes; a planted node ends so many.
# Seven or eight of a node's eight GPUs: each job has a node to itself, as training jobs do, and makes it a heavy one (the
# published method learns of failures from heavy tasks alone).
SECONDS, GPUS, TWO_NODES, DIES = (0.6, 1.0, 1.6), (7, 8), 0.08, 0.9
# By simulation of the score: at 9 jobs a node fewer than one run in 1000 ranks four planted nodes wrongly, at 5 one in 200.
JOBS_PER_NODE, LEAST_PER_NODE = 9, 5
MOST_BAD = 4  # they are to be the last four


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="install.sh demo", description=DESCRIPTION)
    parser.add_argument("--bad", help="nodes planted as bad, up to four, also as gpu[02-03] (default: gpu06,gpu11, or alike)")
    parser.add_argument("--jobs", type=int, help=f"jobs of the history (default: 150, or {JOBS_PER_NODE} for each node)")
    parser.add_argument("--nodes", type=int, default=16, help="nodes of the cluster (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the job mix (default: a new one)")
    options = parser.parse_args(argv)
    if not 6 <= options.nodes <= 64:  # a bad one, one on which prepare still runs, and four
        parser.error(f"--nodes {options.nodes}: from 6 to 64, each is a slurmd on this machine")
    least = LEAST_PER_NODE * options.nodes
    if options.jobs is None:
        options.jobs = max(150, JOBS_PER_NODE * options.nodes)
    if not least <= options.jobs <= 2000:
        parser.error(f"--jobs {options.jobs}: from {least} ({LEAST_PER_NODE} for each node, fewer tell nothing of it) to 2000")
    known = node_names(options.nodes)
    try:
        options.bad = sorted(set(expand(options.bad))) if options.bad is not None else usual(known)
    except HostlistError as err:
        parser.error(f"--bad: {err}")
    most = min(MOST_BAD, options.nodes // 4)
    if not set(options.bad) <= set(known) or not 1 <= len(options.bad) <= most:
        parser.error(f"--bad {fold(options.bad)}: name 1 to {most} nodes of {known[0]} … {known[-1]}")
    cramped = [f"{name} ({count} nodes)" for name, count in STAGES if not room(known, options.bad, count)]
    if cramped:
        switches = ", ".join(fold(nodes) for _, nodes in leaves(known))
        parser.error(
            f"--bad {fold(options.bad)}: without them {cramped[0]} needs more leaf switches, which steering never costs a job;"
            f" leave a switch good (they are {switches})"
        )
    return options


def usual(known: tuple[str, ...]) -> list[str]:
    """The nodes that are bad unless others are named: two below different switches, one on a small cluster."""
    count = len(known)
    found = sorted({known[count * 3 // 8 - 1], known[count * 11 // 16 - 1]})
    return found if count >= 8 and room(known, found, 4) else [known[-1 if room(known, known[-1:], 4) else 0]]


def room(known: tuple[str, ...], bad: list[str] | tuple[str, ...], count: int) -> bool:
    """Whether a job of so many nodes can do without the bad ones and have no more leaf switches for it."""
    names = [(switch, node) for switch, nodes in leaves(known) for node in nodes]
    there = count_by_leaf([switch for switch, _ in names])
    good = count_by_leaf([switch for switch, node in names if node not in bad])
    return fewest_leaves(there, lambda total: total >= count) == fewest_leaves(good, lambda total: total >= count)


if __name__ == "__main__":
    arguments()
