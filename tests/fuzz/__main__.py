# ruff: noqa: E501 - tables
"""`python -m tests.fuzz --pairs N --seed S`: prints each pair that differs as the smallest shell line that shows it."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.fuzz.fuzz import Fuzz
from tests.sandbox import Sandbox
from tests.sandbox.cluster import attach

FIRST = "FirstJobId=100000"  # of few digits a job's number could stand for another one in what is compared


def main() -> int:
    """Run; 1 where anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--pairs", type=int, default=300, metavar="N", help="number of pairs (default 300)")
    parser.add_argument("--seed", default="1", metavar="S", help="the same seed gives the same calls (default 1)")
    parser.add_argument("--from", type=int, default=0, metavar="K", dest="first", help="begin with the K-th pair")
    parser.add_argument("--threads", type=int, default=3, metavar="T", help="pairs at once (default 3)")
    parser.add_argument("--dir", metavar="D", help="a running sandbox to use (default: one of its own)")
    args = parser.parse_args()
    if args.dir:
        return _run(Fuzz(attach(Path(args.dir))), args)
    with Sandbox(extra_conf=[FIRST]) as sandbox:
        return _run(Fuzz(sandbox), args)


def _run(fuzz: Fuzz, args: argparse.Namespace) -> int:
    begun = time.monotonic()
    with fuzz:
        for found in fuzz.run(args.seed, range(args.first, args.first + args.pairs), args.threads):
            print(found, flush=True)
    seconds = time.monotonic() - begun
    print(
        f"{args.pairs} pairs in {seconds:.0f} s ({args.pairs / seconds:.1f}/s): {fuzz.jobs} with a job, {fuzz.ours} of them changed"
    )
    print(f"{fuzz.count} differ; {fuzz.known} more by faults that are known (tests/fuzz/allowed.py)")
    return 1 if fuzz.count else 0


if __name__ == "__main__":
    sys.exit(main())
