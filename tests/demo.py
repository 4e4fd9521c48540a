"""The whole product at work on a real Slurm: `./install.sh demo`.

A throwaway cluster gets some planted bad nodes, runs a mixed history, is scored from its own accounting, and then runs a
three-stage pipeline through the installed wrapper. Everything printed was measured in this run.
"""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import contextmanager
from io import TextIOWrapper

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from slurm_hook.common.terminal import count
from tests.demo_options import DIES, GPUS, SECONDS, STAGES, TWO_NODES, arguments
from tests.sandbox import Sandbox, SandboxError
from tests.site import Site

USERS = ("alice", "bob", "carol")
STALLED = 60  # seconds without the end of any job of the history: it will not come
SETTINGS_NOTE = """\
Set for this demo, not the defaults: method = published (its jobs of seconds stand for jobs of hours; the attributed method
takes a death in the first seconds for the job's own error, and is right), mode = steer, max_excluded = 25 %."""
DEMO_SETTINGS = {"history": ["first_days = 1"], "scoring": ['method = "published"'], "steer": ["max_excluded = 0.25"]}
if isinstance(sys.stdout, TextIOWrapper):  # a terminal of another coding shows ? for a sign that it lacks
    sys.stdout.reconfigure(errors="replace")
console = Console(highlight=False, soft_wrap=True)


@contextmanager
def step(title: str):
    if console.width > len(title) + 1:
        console.rule(f"[bold]{title}", align="left")
    else:  # a rule would cut it short, and it names nodes
        console.print(f"[bold]{title}")
    started = time.monotonic()
    yield
    console.print(f"[dim]{time.monotonic() - started:.1f} s[/dim]\n")


def show(text: str) -> None:
    """What a command printed, as it stands: neither wrapped nor read as markup."""
    console.print(text.rstrip(), markup=False, soft_wrap=True, highlight=False)


def indented(text: str) -> str:
    return "\n".join("  " + line for line in text.rstrip().splitlines())


def run_history(sandbox: Sandbox, jobs: int, rng: random.Random) -> None:
    """Submit the mixed history as ordinary users and wait for its end, with a bar.

    None starts before all are there: else a machine that submits slowly would have its first nodes run them all, and know
    nothing of the others.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        submitted = progress.add_task("submitted", total=jobs)
        ended = progress.add_task("ended", total=jobs)
        sandbox.run(["scontrol", "update", "PartitionName=llm", "State=DOWN"])
        ids = []
        for number in range(jobs):
            ids.append(submit_one(sandbox, number, rng))
            progress.advance(submitted)
        sandbox.run(["scontrol", "update", "PartitionName=llm", "State=UP"])
        left = jobs

        def fewer() -> bool:
            nonlocal left
            before, left = left, len(sandbox.run(["squeue", "-h", "-o", "%i"]).stdout.split())
            progress.update(ended, completed=jobs - left)
            return left < before

        while left:
            sandbox.poll(fewer, STALLED, "a job of the history to end")
        states = sandbox.wait(ids, timeout=STALLED)
    count = {state: sum(1 for s in states.values() if s == state) for state in sorted(set(states.values()))}
    console.print(f"{jobs} jobs of {len(USERS)} users: " + ", ".join(f"{n} {state}" for state, n in count.items()))


def submit_one(sandbox: Sandbox, number: int, rng: random.Random) -> int:
    nodes = 2 if rng.random() < TWO_NODES else 1
    script = sandbox.payload(seconds=rng.choice(SECONDS))
    return sandbox.sbatch(
        f"--nodes={nodes}", f"--gpus-per-node={rng.choice(GPUS)}", "--mem=0", "--time=10",
        f"--job-name={rng.choice(('train', 'tune', 'eval'))}-{number % 7}", script=script, user=rng.choice(USERS),
    )  # fmt: skip


def show_scores(site: Site, bad: list[str]) -> bool:
    """Refresh, print the node table, and compare with what was planted. True when the bad ones rank last."""
    show(site.workhorse("refresh").stdout)
    show(site.workhorse("nodes").stdout)
    rows = json.loads(site.workhorse("nodes", "--json").stdout)
    worst = [row["name"] for row in sorted(rows, key=lambda r: (r["capability"] is None, r["capability"]))][:4]
    found = [name for name in bad if name in worst]
    console.print(f"worst four by CAPABILITY: {', '.join(worst)}; planted: {', '.join(bad)}")
    counted = f"{len(found)} of {len(bad)} planted nodes are" if len(bad) > 1 else f"the planted node is{'' if found else ' not'}"
    console.print(f"{counted} among the worst four")
    return len(found) == len(bad)


def run_pipeline(sandbox: Sandbox, site: Site, bad: list[str]) -> bool:
    """prepare → pretrain → evaluate through the wrapper, as an ordinary user. True when all completed."""
    jobs: dict[str, int] = {}
    for name, nodes in STAGES:
        text = sandbox.payload(seconds=1)
        directive = f"#!/bin/sh\n#WORKHORSE pipeline=llm stage={name}\n"
        script = sandbox.write_script(text.replace("#!/bin/sh\n", directive, 1))
        wanted = [f"--nodes={nodes}", "--gpus-per-node=8", "--mem=0", "--time=10", f"--job-name={name}"]
        if jobs:
            wanted.append(f"--dependency=afterok:{list(jobs.values())[-1]}")
        jobs[name] = sandbox.sbatch(*wanted, str(script), user="alice", binary=site.sbatch)
        show(
            f"{name}, job {jobs[name]}, {count(nodes, 'node')}:\n"
            + indented(site.workhorse("explain", str(jobs[name]), check=False).stdout)
        )
    console.print()
    ends = stages_end(sandbox, jobs)
    used = {node for _, where in ends.values() for node in site.expand(where)}
    console.print(f"planted nodes used by the pipeline: {', '.join(sorted(used & set(bad))) or 'none'}")
    return [state for state, _ in ends.values()] == ["COMPLETED"] * len(jobs)


def stages_end(sandbox: Sandbox, jobs: dict[str, int]) -> dict[str, tuple[str, str]]:
    """Wait for stages (name → job id) in their order and tell each one's state and nodes, which are returned by name.

    One that fails is the last: those after it depend on its success, and Slurm lets them wait for ever.
    """
    ends: dict[str, tuple[str, str]] = {}
    for name, number in jobs.items():
        state = sandbox.wait(number, timeout=90)[number]
        ends[name] = state, sandbox.job(number)["NodeList"]
        console.print(f"{name}: {state} on {ends[name][1]}")
        if state != "COMPLETED":
            break
    never = ", ".join(name for name in jobs if name not in ends)
    if never:
        console.print(f"{never}: never to start, as {list(ends)[-1]} did not complete")
    return ends


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    rng = random.Random(options.seed)
    started = time.monotonic()
    planted = "a bad one" if len(options.bad) == 1 else f"{len(options.bad)} bad ones"
    sandbox = Sandbox(nodes=options.nodes)
    try:
        with step(f"A real Slurm of {options.nodes} nodes with {planted}: {', '.join(options.bad)}"):
            sandbox.up()
            version = ".".join(f"{part:02d}" for part in sandbox.version)
            console.print(f"Slurm {version}: slurmctld, slurmdbd on MariaDB, {options.nodes} slurmd")
        for name, how in zip(options.bad, ("exit", "signal") * len(options.bad)):
            sandbox.plant(name, DIES, how)
        with step(f"A history of {options.jobs} jobs"):
            run_history(sandbox, options.jobs, rng)
        with Site(sandbox, mode="steer", settings=DEMO_SETTINGS) as site:
            with step("What accounting tells: collect, score, publish"):
                show(SETTINGS_NOTE)
                ranked = show_scores(site, options.bad)
            with step("A three-stage pipeline through the wrapper, dispatch running beside it"):
                site.start_dispatch()
                completed = run_pipeline(sandbox, site, options.bad)
    finally:
        sandbox.down()
    console.print(f"Taken down. {time.monotonic() - started:.0f} s in all.")
    if not ranked:
        console.print("failed: the planted nodes are not all among the worst four (more --jobs tell more of each node)")
    if not completed:
        console.print("failed: not all stages of the pipeline completed")
    return 0 if ranked and completed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SandboxError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        console.print("interrupted; everything is taken down")
        sys.exit(130)
