"""The demo's options. Standard library alone, so that a mistyped one costs no installation (`python3 -m tests.demo_options`)."""

from __future__ import annotations

import argparse

from slurm_hook.errors import HostlistError
from slurm_hook.hostlist import expand, fold

DESCRIPTION = """\
The whole product at work on a throwaway real Slurm: planted bad nodes, a mixed history, scores from its accounting alone,
and a three-stage pipeline through the wrapper. Everything printed was measured in this run."""


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="install.sh demo", description=DESCRIPTION)
    parser.add_argument(
        "--bad",
        default="gpu06,gpu11",
        help="nodes planted as bad, up to a quarter of all, also as gpu[02-03] (default: %(default)s)",
    )
    parser.add_argument("--jobs", type=int, default=150, help="jobs of the history (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=16, help="nodes of the cluster (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the job mix (default: a new one)")
    options = parser.parse_args(argv)
    if not 4 <= options.nodes <= 64:
        parser.error(f"--nodes {options.nodes}: from 4 to 64, each is a slurmd on this machine")
    if not 20 <= options.jobs <= 2000:
        parser.error(f"--jobs {options.jobs}: from 20 to 2000; fewer tell nothing of a node")
    try:
        options.bad = sorted(set(expand(options.bad)))
    except HostlistError as err:
        parser.error(f"--bad: {err}")
    known = [f"gpu{i:02d}" for i in range(1, options.nodes + 1)]
    if not set(options.bad) <= set(known) or not 1 <= len(options.bad) <= options.nodes // 4:
        parser.error(f"--bad {fold(options.bad)}: name 1 to {options.nodes // 4} nodes of {known[0]} … {known[-1]}")
    return options


if __name__ == "__main__":
    arguments()
