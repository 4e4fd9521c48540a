"""Three hundred jobs with bursts and faults: nobody stuck, nobody shrunk, nobody killed; with us, without us, and with the
dispatcher killed half way.

Waiting times aren't compared here, where chance is larger than any effect, but in the simulation.
"""

import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slurm_hook.common import hostlist
from slurm_hook.common.config import Settings, load
from slurm_hook.dispatch import passes, tracking
from slurm_hook.published import mark
from slurm_hook.published.mark import Mark
from slurm_hook.slurm import cluster, jobs
from tests.dispatched import Dispatched
from tests.sandbox import Sandbox
from tests.wrapped import Wrapped

pytestmark = [pytest.mark.integration, pytest.mark.slow]
COUNT = 300
PERIOD = 1.0
BAD = ("gpu07", "gpu12")
CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from slurm_hook.cli import main; main()"
ROOT = str(Path(__file__).resolve().parents[2])


@pytest.fixture(scope="module")
def slurm() -> Iterator[Sandbox]:
    """A Slurm of its own: with preemption, and with requeued jobs waiting 5 seconds and not two minutes."""
    with tempfile.TemporaryDirectory(prefix="tr-") as folder:
        root = Path(folder) / "s"
        lines = [
            f"AuthInfo=socket={root}/munge/socket,cred_expire=5", "PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE",
            "PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=5",
            "SchedulerParameters=bf_interval=1,sched_interval=1", "PriorityWeightPartition=1000",
        ]  # fmt: skip
        Path(folder).chmod(0o755)
        with Sandbox(dir=root, extra_conf=lines) as running:
            yield running


class Dispatcher:
    """`workhorse dispatch --watch` as a process of its own."""

    def __init__(self, config: Path) -> None:
        self.argv = [sys.executable, "-c", CODE, ROOT, "--config", str(config), "dispatch", "--watch"]
        self.errors = ""
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def kill(self) -> None:
        self.process.kill()
        self.errors += self.process.communicate()[1]

    def end(self) -> None:
        self.process.terminate()
        self.errors += self.process.communicate(timeout=30)[1]


class Watch(threading.Thread):
    """Looks at the queue all the time: jobs that wait for nodes that can't run them, though others could."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__()
        self.sandbox, self.stop = sandbox, threading.Event()
        self.since: dict[int, float] = {}
        self.longest: dict[int, float] = {}
        self.seen_excludes = 0

    def run(self) -> None:
        while not self.stop.wait(0.2):
            nodes = cluster.parse_nodes(self.sandbox.run(["scontrol", "-o", "show", "node"]).stdout)
            now = time.monotonic()
            stuck = {job.id for job in jobs.load() if self._stuck(job, nodes)}
            self.since = {job: self.since.get(job, now) for job in stuck}
            for job, since in self.since.items():
                self.longest[job] = max(self.longest.get(job, 0.0), now - since)

    def _stuck(self, job: jobs.Job, nodes: dict[str, cluster.Node]) -> bool:
        if not job.eligible or not job.excludes:
            return False
        self.seen_excludes += 1
        there = [name for name, node in nodes.items() if node.usable and job.partition in node.partitions]
        left = [name for name in there if name not in jobs.nodes_of(job.excludes)]
        return len(left) < job.nodes <= len(there)


def mixture(rng: random.Random) -> Iterator[tuple[int, list[str], str]]:
    """Node count, options and script of one job after the other."""
    while True:
        size = rng.choice([1, 1, 2, 2, 2, 3, 4, 8])
        options = [f"-N{size}", f"-n{size}", "-t5", *rng.choice([[], ["--exclusive"], ["--gres=gpu:4"], ["--mem=100G"]])]
        yield size, options, f"#!/bin/sh\nsleep {rng.choice([0.2, 0.5, 1, 1.5])}\n"


class Trace:
    """Submits in bursts with faults in between, and waits for the end."""

    def __init__(self, sandbox: Sandbox, binary: str | Path) -> None:
        self.sandbox, self.binary = sandbox, binary
        self.asked: dict[int, int] = {}
        self.requeued: set[int] = set()
        self.jobs = mixture(random.Random(11))
        self.scripts = {}

    def burst(self, count: int) -> None:
        with ThreadPoolExecutor(4) as pool:
            chosen = [next(self.jobs) for _ in range(count)]
            for size, job in pool.map(self._submit, chosen):
                self.asked[job] = size

    def _submit(self, chosen: tuple[int, list[str], str]) -> tuple[int, int]:
        size, options, script = chosen
        if script not in self.scripts:
            self.scripts[script] = self.sandbox.write_script(script)
        return size, self.sandbox.sbatch(*options, self.scripts[script], binary=self.binary)

    def fault(self, *argv: str) -> None:
        self.sandbox.run(["scontrol", *argv])

    def play(self, half_way) -> None:
        """60 jobs, then faults and bursts in turn; node names stand for what happens to them."""
        self.fault("create", "reservation=ahead", "starttime=now+10seconds", "duration=2", "nodes=gpu09,gpu10", "users=root",
                   "flags=maint,ignore_jobs")  # fmt: skip
        self.burst(60)
        self.fault("update", "NodeName=gpu02", "State=DRAIN", "Reason=fan")
        self.burst(60)
        self.fault("update", "NodeName=gpu05", "State=DOWN", "Reason=test")
        half_way()
        self.burst(60)
        urgent = self.sandbox.sbatch("-N6", "-p", "urgent", "--exclusive", "-t1", script="#!/bin/sh\nsleep 2\n", user="bob")
        self.asked[urgent] = 6
        running = [job.id for job in jobs.load() if job.state == "RUNNING" and job.id in self.asked and job.id != urgent]
        self.requeued = set(running[:3])
        for job in self.requeued:
            self.sandbox.run(["scontrol", "requeue", str(job)], check=False)
        self.burst(60)
        for name in ("gpu02", "gpu05"):
            self.sandbox.resume(name)
        self.fault("delete", "reservation=ahead")
        self.burst(COUNT - 240)

    def ended(self) -> dict[int, list[tuple[str, int, int]]]:
        """After the queue is empty: state, nodes and start of each attempt by job."""
        self.sandbox.poll(
            lambda: not [j for j in jobs.load() if j.state in ("PENDING", "RUNNING", "COMPLETING")], 120, "the trace to end"
        )
        self.sandbox.wait(self.asked, timeout=20)
        self.sandbox.await_windows(self.asked)
        argv = ["sacct", "-a", "-X", "-D", "-n", "-P", "-S", "now-1hour", "-o", "JobIDRaw,NNodes,Start,State"]
        attempts: dict[int, list[tuple[str, int, int]]] = {}
        for row in self.sandbox.run(argv, env={"SLURM_TIME_FORMAT": "%s"}).stdout.splitlines():
            number, count, start, state = row.split("|")
            if int(number) in self.asked:
                attempts.setdefault(int(number), []).append((state.split()[0], int(count), int(start) if start.isdigit() else 0))
        return attempts


def check(trace: Trace) -> None:
    """All jobs completed in the end, each attempt that ran did so on the number of nodes asked for, and none was cancelled."""
    attempts = trace.ended()
    assert len(attempts) == COUNT + 1
    for job, tries in attempts.items():
        completed = [state for state, _, _ in tries].count("COMPLETED")
        # what had just ended when it was requeued runs, and completes, once more
        assert completed == 1 or (completed == 2 and job in trace.requeued), (job, tries)
        assert {state for state, _, _ in tries} <= {"COMPLETED", "NODE_FAIL", "REQUEUED", "PREEMPTED"}, (job, tries)
        assert {count for _, count, start in tries if start} == {trace.asked[job]}, (job, tries)


@pytest.fixture
def setting(slurm, tmp_path, monkeypatch):
    for name, value in {**slurm.env, "PYTHONDONTWRITEBYTECODE": "1"}.items():
        monkeypatch.setenv(name, value)
    wrapped = Wrapped(slurm)
    wrapped.publish("steer", bad=BAD, live=False, steer__live_max_age=3 * PERIOD)
    config = tmp_path / "workhorse.toml"
    config.write_text(
        f'[publish]\npath = "{wrapped.public}"\n[steer]\nmode = "steer"\n'
        f'[dispatch]\nstate = "{tmp_path}/state.json"\nperiod = {PERIOD}\n'
    )
    yield slurm, wrapped, config, load(str(config))
    slurm.run(["scancel", *slurm.run(["squeue", "-h", "-o", "%A"]).stdout.split()], check=False)


def test_reordering_by_nice_is_opt_in_within_its_range_and_taken_back(slurm, monkeypatch):
    """The pipeline that has invested more goes first; a held job and one with a nice of its own are left alone."""
    site = Dispatched(slurm, monkeypatch, dispatch__period=0.1)
    site.fill()
    young = site.sbatch("-N2", "--exclusive", comment=mark.text(Mark(mode="avoid", pipeline="young")))
    own = site.sbatch("-N2", "--exclusive", "--nice=7")
    held = site.sbatch("-N2", "--exclusive", "--hold")
    old = site.sbatch("-N2", "--exclusive", comment=mark.text(Mark(mode="avoid", pipeline="old")))
    path = site.settings["dispatch.state"]
    invested = tracking.State(invested={"alice/old": {"1@1": 360000.0}}, seen={"alice/old": time.time()})
    tracking.write_state(path, invested)
    time.sleep(1.1)  # urgency is wait times completion

    def nices() -> list[int]:
        return [site.job(job).nice for job in (old, young, own, held)]

    def a_pass(**settings) -> None:
        slurm.poll(lambda: site.one_pass(**settings).full, 5, "a pass that isn't a quiet one")

    a_pass()
    assert nices() == [0, 0, 7, 0], "only who asks for it"
    a_pass(dispatch__reorder=True, dispatch__nice_range=50)
    assert nices() == [0, 50, 7, 0]
    assert site.job(old).priority > site.job(young).priority, "Slurm has them in this order now"
    assert site.job(held).priority == 0, "held jobs stay held"
    assert site.one_pass(dispatch__reorder=True, dispatch__nice_range=50).reordered == 0
    a_pass(dispatch__reorder=False)
    assert nices() == [0, 0, 7, 0]
    a_pass(dispatch__reorder=True, dispatch__nice_range=50)
    assert nices() == [0, 50, 7, 0]
    site.release()
    assert nices() == [0, 0, 7, 0]
    site.clean()


def test_without_us(setting):
    slurm, *_ = setting
    trace = Trace(slurm, "sbatch")
    trace.play(lambda: None)
    check(trace)


@pytest.mark.parametrize("killed", [False, True], ids=["alive", "killed half way"])
def test_with_steering_and_a_dispatcher(setting, killed):
    """Killed for good: nobody starts it again, and still nobody waits for a pass that never comes."""
    slurm, wrapped, config, settings = setting
    dispatcher, watch = Dispatcher(config), Watch(slurm)
    watch.start()
    try:
        slurm.poll((wrapped.public / "live.json").exists, 20, "dispatch to be heard of")
        trace = Trace(slurm, wrapped.sbatch)
        trace.play(dispatcher.kill if killed else lambda: None)
        check(trace)
        assert (wrapped.public / "live.json").exists() is not killed, "submissions must not go on as if it lived"
        _nothing_stays_after_disable(slurm, wrapped, settings)
    finally:
        watch.stop.set()
        watch.join()
        dispatcher.end()
    assert watch.seen_excludes > 50, "jobs were steered at all"
    assert {job: t for job, t in watch.longest.items() if t > 2 * PERIOD + 1.0} == {}
    assert "Traceback" not in dispatcher.errors, dispatcher.errors


def _nothing_stays_after_disable(slurm: Sandbox, wrapped: Wrapped, settings: Settings) -> None:
    """Waiting jobs of ours, then switched off: only the users' own excludes are left."""
    blocker = slurm.sbatch("-N16", "--exclusive", "-t5", script="#!/bin/sh\nsleep 300\n", user="bob")
    slurm.poll(lambda: any(j.id == blocker and j.state == "RUNNING" for j in jobs.load()), 20, "the machine to be full")
    tracking = [slurm.sbatch("-N2", "-x", "gpu03", "-t5", script="#!/bin/sh\ntrue\n", binary=wrapped.sbatch) for _ in range(8)]

    def excludes() -> set[str]:
        return {hostlist.fold(jobs.nodes_of(j.excludes)) for j in jobs.load() if j.id in tracking and j.pending}

    slurm.poll(lambda: excludes() != {"gpu03"}, 10, "excludes of ours")
    (Path(settings.source).parent / "disable").touch()
    passes.release(settings)
    assert excludes() == {"gpu03"}
    time.sleep(2 * PERIOD)
    assert excludes() == {"gpu03"}, "none comes back"
    slurm.run(["scancel", str(blocker), *map(str, tracking)])
