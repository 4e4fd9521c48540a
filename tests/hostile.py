"""Jobs of a user who means ill: everything that a job can bring to make a dispatcher work, or others step back."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from tests.sandbox.client import Client

MONSTER = "[0]" * 320 + "[0-65535]"


def calls(count: int, last: str) -> Iterator[tuple[str, ...]]:
    """Options of so many jobs, of each kind in turn. last: a node's name."""
    kinds: tuple[tuple[str, ...], ...] = (
        (f"--comment=wh=1;m=avoid;x={MONSTER}",),
        (f"--comment=wh=1;m=steer;x={MONSTER}", "-x", last),
        ("--comment=wh=1;m=steer;x=n[0-65535]", "-x", last),
        ("--comment=wh=1;m=steer", "-H"),
        ("--comment=wh=1;m=steer", "-x", last),
        ("--comment=wh=1;m=avoid", "-x", ",".join([last] * 7000)),
        ("--comment=wh=1;m=avoid;p=" + "p" * 900, "-J", "\x1b[2J|\x1f;%s \x27$(id)"),
        (f"--comment=wh=1;d=1e14;k=1e14;x={last}", "--begin=now+9hours"),
        ("--comment=wh=1;m=avoid", "--dependency=singleton"),
        ("--comment=mine", "-x", last),
    )
    for number in range(count):
        # no two alike: what one of them was worked out for shall help no other
        first, *rest = kinds[number % len(kinds)]
        yield f"{first};z={number}" if first.startswith("--comment=wh") else first, *rest


def submit(sandbox: Client, count: int, user: str) -> list[int]:
    """Submit so many; gives their ids."""
    script = sandbox.write_script("#!/bin/sh\nsleep 300\n")

    def one(options: tuple[str, ...]) -> int:
        argv = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--",
                "sbatch", "-N2", "--exclusive", "-o", "/dev/null", *options, str(script)]  # fmt: skip
        done = subprocess.run(argv, env=sandbox.env, cwd="/tmp", capture_output=True, text=True, errors="replace", check=False)
        assert done.returncode == 0, (options[0][:80], done.stderr[:300])
        return int(re.findall(r"\d+", done.stdout)[-1])

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, calls(count, sandbox.nodes[-1])))
