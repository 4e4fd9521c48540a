# ruff: noqa: E501 - tables
"""Many submissions at once beside all that goes on at a site: no job is lost, shrunk or killed, and `disable` leaves none of ours.

WORKHORSE_STORM=N in the environment makes another number of submissions.
"""

import itertools
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import pytest

from slurm_hook.common import hostlist
from tests.integration.test_stages_real import Served
from tests.sandbox import Sandbox
from tests.sandbox.client import fields
from tests.sandbox.users import ORDINARY, SERVICE

pytestmark = pytest.mark.integration
SIZE = int(os.environ.get("WORKHORSE_STORM") or 200)
AT_ONCE = 12
HELD, SHORT = ("--hold", "--wrap=true"), ("--exclusive", "--wrap=sleep 0.5")


class Sent(NamedTuple):
    """One submission: what was asked for, and what its caller saw."""

    nodes: int
    excludes: str
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def site() -> Iterator[Served]:
    # one of its own: its slurmctld is restarted. Jobs stay known until all is counted
    with Sandbox(nodes=16, extra_conf=["MinJobAge=3000", "ReturnToService=2"]) as sandbox:
        made = Served(sandbox, "steer", {"match": ["min_nodes = 2"], "steer": ["max_excluded = 0.2"]})
        made.install()
        made.start_dispatch()
        yield made
        made.stop_dispatch()


def submit(site: Served, place: int) -> Sent:
    """A submission as one of the users, by its place: held or short, some with excludes of their own, some from a pipe."""
    nodes, excludes = 2 + place % 3, "gpu03" if place % 5 == 0 else ""
    words = [f"-N{nodes}", "-t5", "-o/dev/null", *([f"-x{excludes}"] if excludes else []), *(HELD if place % 2 else SHORT)]
    script = None
    if place % 7 == 0:
        words, script = words[:-1], f"#!/bin/sh\n{words[-1].removeprefix('--wrap=')}\n"
    user = ORDINARY[place % len(ORDINARY)]
    done = site.sandbox.run([site.sbatch, *words], user=user, input=script, check=False, cwd="/tmp", timeout=120)
    return Sent(nodes, excludes, done.returncode, done.stdout, done.stderr)


def restart(site: Served) -> None:
    """slurmctld as `systemctl restart` does it, with a moment in between."""
    root = site.sandbox.root
    pid = int((root / "run" / "slurmctld.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    site.sandbox.poll(lambda: not _lives(pid), 30, "slurmctld to end")
    time.sleep(0.5)
    with open(root / "log" / "slurmctld.out", "ab") as log:
        subprocess.Popen(
            ["slurmctld", "-D"],
            env=site.sandbox.env,
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    site.sandbox.poll(lambda: site.sandbox.run(["scontrol", "ping"], check=False).returncode == 0, 30, "slurmctld to answer")


def _lives(pid: int) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # one that we started ourselves
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def drain(site: Served, dice: random.Random) -> None:
    name = dice.choice(site.sandbox.nodes)
    site.sandbox.run(["scontrol", "update", f"NodeName={name}", "State=DRAIN", "Reason=storm"], check=False)
    time.sleep(0.3)
    site.sandbox.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"], check=False)


def switch(site: Served) -> None:
    for word in ("disable", "enable"):
        # 69: no Slurm answers in this moment; 75: another pass is at work
        assert site.workhorse(word, check=False).returncode in (0, 69, 75)


def beside(site: Served) -> list[tuple[float, Callable[[], object]]]:
    """What goes on meanwhile: seconds from one time to the next, and what is done."""
    dice = random.Random(1)
    return [
        (0.2, lambda: drain(site, dice)),
        (2.0, lambda: switch(site)),
        (3.0, lambda: site.workhorse("collect", user=SERVICE, check=False)),
        (4.0, lambda: site.workhorse("refresh", user=SERVICE, check=False)),
        (6.0, lambda: restart(site)),
    ]


def repeat(every: float, act: Callable[[], object], over: threading.Event) -> int:
    """How often it was done before all was over."""
    for count in itertools.count(1):
        act()
        if over.wait(every):
            return count
    raise AssertionError


def storm(site: Served) -> tuple[list[Sent], list[int]]:
    over = threading.Event()
    acts = beside(site)
    with ThreadPoolExecutor(len(acts)) as others, ThreadPoolExecutor(AT_ONCE) as users:
        running = [others.submit(repeat, every, act, over) for every, act in acts]
        try:
            sent = list(users.map(lambda place: submit(site, place), range(SIZE)))
        finally:
            over.set()
        return sent, [each.result() for each in running]


def test_no_job_is_lost_shrunk_or_killed(site: Served):
    sent, counts = storm(site)
    assert min(counts) >= 1, counts
    site.workhorse("disable")
    numbers = [int(s.out.removeprefix("Submitted batch job ")) for s in sent if s.code == 0]  # each that ends well names one
    assert len(set(numbers)) == len(numbers)
    # while slurmctld is away sbatch fails, as it does without us; most must get through
    assert len(numbers) > SIZE * 0.6, [s for s in sent if s.code]
    assert all("ontroller" in s.err or "ocket" in s.err or "connect" in s.err for s in sent if s.code), [
        s for s in sent if s.code
    ]
    asked = {number: s for number, s in zip(numbers, (s for s in sent if s.code == 0))}
    short = [number for number, place in zip(numbers, (p for p, s in enumerate(sent) if s.code == 0)) if place % 2 == 0]
    site.sandbox.poll(lambda: ended(site, short), 120, "the short jobs to end")
    site.sandbox.poll(lambda: not ours(site, asked), 30, "our excludes to be gone")
    found = all_jobs(site)
    assert set(asked) <= set(found)
    states = {n: found[n]["JobState"] for n in asked}
    assert all(state == ("COMPLETED" if n in set(short) else "PENDING") for n, state in states.items()), states
    assert {n: int(found[n]["NumNodes"].split("-")[0]) for n in asked} == {n: s.nodes for n, s in asked.items()}


def all_jobs(site: Served) -> dict[int, dict[str, str]]:
    lines = site.sandbox.run(["scontrol", "-a", "-o", "show", "jobs"]).stdout.splitlines()
    return {int(job["JobId"]): job for job in map(fields, lines) if "JobId" in job}


def ended(site: Served, numbers: list[int]) -> bool:
    found = all_jobs(site)
    return all(found[n]["JobState"] not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING") for n in numbers)


def ours(site: Served, asked: dict[int, Sent]) -> dict[int, str]:
    """Waiting jobs whose excludes aren't what their users gave."""
    found = all_jobs(site)
    lists = {n: found[n]["ExcNodeList"].replace("(null)", "") for n in asked if found[n]["JobState"] == "PENDING"}
    return {n: text for n, text in lists.items() if hostlist.expand(text) != hostlist.expand(asked[n].excludes)}
