"""Stages on a running Slurm as a site has it: dispatch as the service user, users as users, their own chains."""

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from slurm_hook.common import hostlist
from slurm_hook.dispatch import tracking
from slurm_hook.published import mark, snapshot
from slurm_hook.published.mark import Mark
from slurm_hook.slurm import jobs
from tests.sandbox import Sandbox
from tests.sandbox.users import SERVICE
from tests.site import REPO, Site

pytestmark = pytest.mark.integration
SLEEP = "#!/bin/sh\nsleep 300\n"
BAD = "gpu07"


class Served(Site):
    """A site whose folder belongs to the service user, who runs dispatch."""

    def install(self) -> None:
        super().install()
        entry = pwd.getpwnam(SERVICE)
        text = re.sub(r"(?m)^_wh_UID=.*$", f"_wh_UID={entry.pw_uid}", self.sbatch.read_text(), count=1)
        self.sbatch.write_text(text)
        self.publish()
        for path in (self.root, self.public, self.public / "scores.json"):
            os.chown(path, entry.pw_uid, entry.pw_gid)

    def publish(self) -> None:
        """Scores with one lemon."""
        from slurm_hook.common import config

        settings, now = config.load(str(self.config)), time.time()
        nodes = {
            name: snapshot.NodeScore(
                name, capability=0.02 if name == BAD else 1.0, relative=0.02 if name == BAD else 1.0, lemon=name == BAD
            )
            for name in self.sandbox.nodes
        }
        scores = snapshot.Scores("s1", self.sandbox.cluster, now, now, "attributed", settings.hook_mapping(), nodes)
        snapshot.write_json(str(self.public), snapshot.SCORES_NAME, snapshot.scores_to_json(scores))

    def dispatch(self, *args: str, user: str = SERVICE) -> str:
        return self.workhorse("dispatch", *args, user=user).stdout

    def state(self) -> tracking.State:
        return tracking.read_state(f"{self.root}/dispatch.json")

    def job(self, number: int) -> jobs.Job:
        return next(job for job in jobs.load() if job.id == number)

    def excludes(self, number: int) -> str:
        return hostlist.fold(jobs.nodes_of(self.job(number).excludes))


@pytest.fixture(scope="module")
def made(sandbox: Sandbox) -> Iterator[Served]:
    # the mode "steer" everywhere, memory as the resource so that demands are easy to reckon
    with Served(sandbox, "steer", {"scoring": ['capacity_resource = "mem"']}, name="served") as site:
        yield site


@pytest.fixture
def site(made: Served, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    for name, value in sandbox.env.items():
        monkeypatch.setenv(name, value)
    made.configure("steer", dispatch=[])
    yield made
    sandbox.run(["scancel", *sandbox.run(["squeue", "-h", "-o", "%A"]).stdout.split()], check=False)
    sandbox.poll(lambda: not sandbox.run(["squeue", "-h"]).stdout.strip(), 40, "the queue to be empty")
    for path in (made.root / "dispatch.json", made.public / "live.json", made.root / "disable"):
        path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def made_late(slow: Sandbox) -> Iterator[Served]:
    with Served(slow, "steer", {"scoring": ['capacity_resource = "mem"']}, name="late") as site:
        yield site


@pytest.fixture
def late(made_late: Served, slow: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Jobs wait here although nodes are idle, behind one for which Slurm keeps nothing but the busy node that it names."""
    for name, value in slow.env.items():
        monkeypatch.setenv(name, value)
    made_late.configure("steer", dispatch=[])
    first, second = (slow.sbatch("-N1", "-w", "gpu08", "--exclusive", script=SLEEP, user="bob") for _ in range(2))
    slow.poll(
        lambda: (made_late.job(first).state, made_late.job(second).reason) == ("RUNNING", "Resources"), 20, "a job in front"
    )
    yield made_late
    slow.run(["scancel", *slow.run(["squeue", "-h", "-o", "%A"]).stdout.split()], check=False)
    slow.poll(lambda: not slow.run(["squeue", "-h"]).stdout.strip(), 40, "the queue to be empty")
    for path in (made_late.root / "dispatch.json", made_late.public / "live.json", made_late.root / "disable"):
        path.unlink(missing_ok=True)


def fill(sandbox: Sandbox) -> int:
    job = sandbox.sbatch(f"-N{len(sandbox.nodes)}", "--exclusive", script=SLEEP, user="bob")
    sandbox.wait([job], timeout=30, states=["RUNNING"])
    return job


def ours(sandbox: Sandbox, *args: str, script: str = SLEEP, **fields: object) -> int:
    """A job of alice's that carries a mark, as our sbatch leaves it."""
    told = mark.text(Mark(**{"mode": "avoid", **fields}))
    return sandbox.sbatch("-N2", "--exclusive", f"--comment={told}", *args, script=script)


def least_nodes(sandbox: Sandbox, demand: int) -> int:
    """The fewest nodes of which any choice exceeds the demand."""
    sizes = sorted(int(sandbox.node(name)["RealMemory"]) for name in sandbox.nodes)
    return next(n for n in range(1, len(sizes) + 1) if sum(sizes[:n]) > demand)


# --- a total demand ------------------------------------------------------------------------------------------------


def test_a_later_stage_with_a_demand_gets_its_node_count_when_submitted(site, sandbox):
    """Slurm can't be asked again when its turn comes: a count that changes would shrink or hold it."""
    folder = site.root / "pipeline"
    folder.mkdir(exist_ok=True)
    (folder / "prepare.sh").write_text("#!/bin/sh\nwhile [ ! -e $1 ]; do sleep 0.1; done\n")
    (folder / "train.sh").write_text("#!/bin/sh\nsleep 300\n")
    go = Path(sandbox.outdir) / "go-on"
    manifest = {
        "name": "llama", "options": ["--mem=1000", f"--output={sandbox.outdir}/%j.out"],
        "stage": {
            "prepare": {"script": "prepare.sh", "args": [str(go)], "nodes": 2},
            "train": {"script": "train.sh", "after": ["prepare"], "demand": "1000000M"},
        },
    }  # fmt: skip
    (folder / "p.json").write_text(json.dumps(manifest))
    site.dispatch()
    done = site.workhorse("submit", folder / "p.json", "--parsable", "--sbatch", site.sbatch, user="alice")
    assert done.stderr == ""
    ids = {name: int(job) for name, job in (line.split("|") for line in done.stdout.splitlines())}
    count = least_nodes(sandbox, 1_000_000)
    train = site.job(ids["train"])
    assert 1 < train.nodes == count and train.dependency.startswith(f"afterok:{ids['prepare']}")
    assert (train.mark.stage, train.mark.demand, train.mark.decided) == ("train", 1e6, True)
    for _ in range(2):
        site.dispatch()
        assert site.job(ids["train"]).nodes == count
    go.touch()
    sandbox.wait([ids["train"]], timeout=30, states=["RUNNING"])
    running = site.job(ids["train"])
    assert running.nodes == count == len(jobs.nodes_of(running.node_list))
    assert sum(int(sandbox.node(name)["RealMemory"]) for name in jobs.nodes_of(running.node_list)) > 1_000_000


def test_a_demand_past_our_sbatch_is_told(site, sandbox):
    (site.root / "d.sh").write_text(SLEEP)
    text = {"stage": {"train": {"script": "d.sh", "demand": "1000000M", "options": [f"--output={sandbox.outdir}/%j.out"]}}}
    (site.root / "d.json").write_text(json.dumps(text))
    done = site.workhorse("submit", site.root / "d.json", user="alice")
    assert "stage train: its demand was not turned into a node count" in done.stderr
    first = int(re.search(r"job (\d+)", done.stdout)[1])
    assert site.job(first).nodes == 1
    again = site.workhorse("submit", site.root / "d.json", user="alice")
    assert f"jobs {first} of yours belong to a pipeline d, too" in again.stderr
    assert "of yours belong" not in site.workhorse("submit", site.root / "d.json", "--name", "d2", user="alice").stderr


# --- users' own chains ---------------------------------------------------------------------------------------------


def chain(sandbox: Sandbox, *scripts: str, user: str = "alice") -> list[int]:
    """Plain sbatch calls as users' scripts make them, each after the one before."""
    ids: list[int] = []
    for script in scripts:
        after = [f"--dependency=afterok:{ids[-1]}"] if ids else []
        ids.append(sandbox.sbatch(*after, "-N1", "-t5", script=script, user=user))
    return ids


def queue(site: Served, *args: str, user: str | None = "alice") -> list[dict]:
    return json.loads(site.workhorse("queue", "--json", *args, user=user).stdout)


@pytest.mark.parametrize("user", ["alice", SERVICE])
def test_an_unmarked_chain_stays_together_when_its_dependencies_are_met(site, sandbox, user):
    """For its owner by what accounting knows of the submissions, for the service user by what dispatch remembers."""
    first, second, third = chain(sandbox, "#!/bin/sh\nsleep 2\n", SLEEP, SLEEP)
    site.dispatch()
    sandbox.poll(lambda: site.job(second).state == "RUNNING", 30, "the second stage")
    site.dispatch()
    assert site.job(second).dependency == ""
    sandbox.run(["scancel", str(second)])  # never satisfied now, but still waiting: the last that is left of the chain
    other = sandbox.sbatch("-N1", "--begin=now+1hour", script=SLEEP)

    def rows() -> dict[str, dict]:
        return {row["job"]: row for row in queue(site, user=user)}

    # accounting is some seconds late
    sandbox.poll(lambda: rows()[str(third)]["pipeline"] == f"#{first}", 30, "the chain")
    sandbox.poll(lambda: rows()[str(third)]["invested"] >= 2 / 3600, 30, "what its stages have run")
    assert rows()[str(other)]["pipeline"] == f"#{other}"


NEMO = """#!/bin/bash
#
# Generated for an experiment of chained tasks
#
#SBATCH --job-name=ml-ml.{name}
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:05:00
{dependency}

set -evx

nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node=${{nodes[0]}}
set +e
sleep {seconds}
exit 0
"""


def test_a_chain_whose_dependencies_stand_in_its_scripts(site, sandbox):
    """As NeMo-Run writes them. Accounting knows nothing of these, so the owner is told by what dispatch has seen."""
    ids: list[int] = []
    seen = sandbox.outdir / "seen"
    till_seen = f"0.1; while [ ! -e {seen} ]; do sleep 0.1; done"
    for name, seconds in (("prepare", till_seen), ("pretrain", 300), ("finetune", 300)):
        line = f"#SBATCH --dependency=afterok:{ids[-1]}" if ids else ""
        ids.append(sandbox.sbatch("--parsable", script=NEMO.format(name=name, dependency=line, seconds=seconds)))
    site.dispatch()
    seen.touch()
    sandbox.poll(lambda: site.job(ids[1]).state == "RUNNING", 30, "the second stage")
    site.dispatch()
    sandbox.run(["scancel", str(ids[1])])
    sandbox.await_windows(ids[:2])
    for user in ("alice", SERVICE):
        (row,) = (row for row in queue(site, user=user) if row["job"] == str(ids[2]))
        assert (row["pipeline"], row["name"]) == (f"#{ids[0]}", "ml-ml.finetune")
        parts = queue(site, "--pipeline", str(ids[2]), *(["-u", "alice"] if user == SERVICE else []), user=user)
        assert [part["name"] for part in parts] == ["ml-ml.prepare", "ml-ml.pretrain", "ml-ml.finetune"]
    live = json.loads((site.public / "live.json").read_text())
    assert live["chains"].items() >= {str(job): ids[0] for job in ids[1:]}.items()
    assert "alice" not in json.dumps(live), "numbers alone"


def test_the_jobs_of_a_workflows_run_are_one_pipeline(site, sandbox):
    """As snakemake's executor submits them: when their turn has come, under a name made up for the run, without dependencies."""
    run = "0f8e2d1c-5b4a-4978-8a6b-1c2d3e4f5a6b"
    how = ("-N1", "-t5", "-J", run)
    first = sandbox.sbatch(*how, "--comment=rule_prepare", script="#!/bin/sh\nsleep 1\n")
    sandbox.wait([first], timeout=30)
    second = sandbox.sbatch(*how, "--comment=rule_train", "--begin=now+1hour", script=SLEEP)
    other = sandbox.sbatch("-N1", "-J", "plain", "--begin=now+1hour", script=SLEEP)
    rows = {row["job"]: row["pipeline"] for row in queue(site)}
    assert (rows[str(second)], rows[str(other)]) == (f"#{first}", f"#{other}")
    assert [part["job"] for part in queue(site, "--pipeline", str(second))] == [str(first), str(second)]


def test_a_user_sees_his_own_stages_and_counts_of_others(site, sandbox):
    fill(sandbox)
    mine = ours(sandbox, pipeline="gpt", stage="train")
    after = ours(sandbox, f"--dependency=afterok:{mine}", pipeline="gpt", stage="eval")
    sandbox.sbatch("-N2", "-J", "secret", script=SLEEP, user="carol")
    site.dispatch()
    shown = site.workhorse("queue", user="alice").stdout
    assert "secret" not in shown and "carol" not in shown and "and 1 of others" in shown
    rows = queue(site)
    assert [(r["job"], r["name"], r["pipeline"]) for r in rows] == [(str(mine), "train", "gpt"), (str(after), "eval", "gpt")]
    assert rows[0]["nodes"] == 2 and rows[0]["wait"] > 0 and rows[1]["reason"] == "Dependency"
    parts = queue(site, "--pipeline", "gpt")
    assert [(p["name"], p["state"], p["turn"], p["after"]) for p in parts] == [
        ("train", "PENDING", True, ""), ("eval", "PENDING", False, str(mine)),
    ]  # fmt: skip
    refused = site.workhorse("queue", "--pipeline", "gpt", user="carol", check=False)
    assert refused.returncode == 1 and "carol has no such pipeline" in refused.stderr
    assert "only root and the service user" in site.workhorse("queue", "-u", "bob", user="alice", check=False).stderr
    everybody = {row["user"] for row in queue(site, user=SERVICE)}
    assert everybody == {"alice", "carol"}


# --- dispatch as the service user ----------------------------------------------------------------------------------


def test_the_service_user_makes_whole_passes(site, sandbox):
    """Confine, widen, refresh, step aside and come back, with no more rights than an operator's."""
    fill(sandbox)
    waits = ours(sandbox)
    own = ours(sandbox, "-x", "gpu04", excludes="gpu04")
    assert "changed=2" in site.dispatch()
    assert (site.excludes(waits), site.excludes(own)) == (BAD, "gpu[04,07]")
    for path in (site.root / "dispatch.json", site.public / "live.json"):
        assert path.owner() == SERVICE
    assert (site.root / "dispatch.json").stat().st_mode & 0o777 == 0o600
    assert "changed=0" in site.dispatch()

    # an admin switches off: root writes the file and takes all off at once; the dispatcher then steps aside
    assert "given back: 2" in site.workhorse("disable").stdout
    assert (site.excludes(waits), site.excludes(own)) == ("", "gpu04")
    assert "changed=0" in site.dispatch() and site.excludes(waits) == ""
    site.workhorse("enable")
    assert "changed=2" in site.dispatch() and site.excludes(waits) == BAD
    refused = site.workhorse("disable", user="alice", check=False)
    assert refused.returncode == 2 and "run this as root" in refused.stderr
    denied = site.workhorse("dispatch", user="alice", check=False)
    assert denied.returncode != 0 and "Traceback" not in denied.stderr and "service user" in denied.stderr

    # also as the service user alone
    assert "changed=2" in site.dispatch("--release")
    assert (site.excludes(waits), site.excludes(own)) == ("", "gpu04")


def test_the_service_user_confines_and_widens(late, slow):
    late.dispatch()
    job = ours(slow)
    late.dispatch()
    pool = set(slow.nodes) - set(jobs.nodes_of(late.excludes(job)))
    assert len(pool) == 2 and BAD not in pool
    slow.poll(lambda: "changed=1" in late.dispatch(), 20, "the job to be widened")
    assert late.excludes(job) == BAD
    explained = late.workhorse("explain", str(job), user="alice").stdout
    assert "was left out" in explained or "Left out by us: gpu07" in explained


def test_the_service_user_requeues_elsewhere(site, sandbox):
    """Under the same number, without the culprit; the script is told that it is a restart."""
    dies = f"#!/bin/sh\necho restart=$SLURM_RESTART_COUNT >> {sandbox.outdir}/restarts-$SLURM_JOB_ID\nsleep 1\nexit 3\n"
    site.configure(dispatch=["requeue = true", "period = 1"])
    job = ours(sandbox, script=dies)
    sandbox.wait([job], timeout=30)
    culprit = jobs.nodes_of(site.job(job).node_list)[1]
    try:
        sandbox.run(["scontrol", "update", f"NodeName={culprit}", "State=DOWN", "Reason=Xid 79"])
        done = site.workhorse("dispatch", user=SERVICE)
        assert f"job {job} died of its node and is requeued without {culprit}" in done.stderr, done
        again = site.job(job)
        assert again.pending and culprit in jobs.nodes_of(again.excludes) and jobs.details([job])[job].restarts == 1
    finally:
        sandbox.resume(culprit)
    sandbox.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], user=SERVICE)
    sandbox.poll(lambda: site.job(job).state in ("RUNNING", "FAILED", "COMPLETED"), 30, "its second attempt")
    sandbox.poll(lambda: not site.job(job).pending and site.job(job).state != "RUNNING", 30, "its end")
    assert (Path(sandbox.outdir) / f"restarts-{job}").read_text() == "restart=\nrestart=1\n"
    assert culprit not in jobs.nodes_of(site.job(job).node_list)


def test_the_service_user_reorders_within_its_range(site, sandbox):
    fill(sandbox)
    young, old = ours(sandbox, pipeline="young"), ours(sandbox, pipeline="old")
    held = ours(sandbox, "--hold", pipeline="old")
    site.dispatch()
    state = site.state()
    invested = {**state.invested, "alice/old": {"1@1": 360000.0}}
    tracking.write_state(f"{site.root}/dispatch.json", state._replace(invested=invested, fingerprint=""))
    shutil.chown(site.root / "dispatch.json", SERVICE, SERVICE)
    site.configure(dispatch=["reorder = true", "nice_range = 40"])
    time.sleep(1.1)  # urgency is wait times completion
    site.dispatch()
    assert [site.job(job).nice for job in (old, young, held)] == [0, 40, 0]
    assert site.job(held).priority == 0
    site.dispatch("--release")
    assert [site.job(job).nice for job in (old, young, held)] == [0, 0, 0]


# --- a dispatcher that died ----------------------------------------------------------------------------------------


def watcher(site: Served, patience: str = "") -> subprocess.Popen[str]:
    entry = pwd.getpwnam(SERVICE)
    prefix = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups", "--"]
    program = f"from slurm_hook.dispatch import guard, daemon as watching; {patience}\nfrom slurm_hook.cli import main; main()"
    argv = [*prefix, sys.executable, "-c", program, "dispatch", "--watch", "-q"]
    own = {"PYTHONPATH": str(REPO), "WORKHORSE_CONFIG": str(site.config), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        argv, env={**os.environ, **own}, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=site.root
    )


@pytest.fixture
def confined(late: Served, slow: Sandbox, request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A dispatcher, and a job that it has confined to two nodes on which it doesn't start. The parameter: how patient its
    guard is."""
    late.configure(dispatch=["period = 20"])
    late.dispatch()
    job = ours(slow)
    process = watcher(late, getattr(request, "param", ""))
    try:
        slow.poll(lambda: len(jobs.nodes_of(late.job(job).excludes)) == len(slow.nodes) - 2, 20, "the job to be confined")
        yield process, job
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_dispatcher_killed_for_good_leaves_nobody_confined(late, slow, confined):
    """Its guard gives back what it had excluded, within a pass, and submissions stop confining."""
    process, job = confined
    process.kill()
    died = time.monotonic()
    process.communicate(timeout=20)
    slow.poll(lambda: late.excludes(job) == "", 30, "the job to be widened")
    assert time.monotonic() - died < 20, "within a period"
    slow.poll(lambda: not (late.public / "live.json").exists(), 10, "live.json to be gone")


SHORT = "watching.SILENCE, watching.GRACE, guard.ANSWER = 6.0, 1.0, 2.0"


@pytest.mark.parametrize("confined", [SHORT], indirect=True, ids=["short"])
def test_a_dispatcher_that_is_stopped_is_ended_and_leaves_nobody_confined(late, slow, confined):
    process, job = confined
    process.send_signal(signal.SIGSTOP)
    assert process.wait(timeout=30) == -signal.SIGKILL
    slow.poll(lambda: late.excludes(job) == "", 30, "the job to be widened")
    slow.poll(lambda: not (late.public / "live.json").exists(), 10, "live.json to be gone")
    late.dispatch("--release")  # it holds no lock any more
    assert not late.state().tracked


@pytest.mark.parametrize("confined", [SHORT], indirect=True, ids=["short"])
def test_where_its_files_do_not_answer_either_the_marks_are_enough(late, slow, confined):
    """A FIFO stands for a file system that hangs."""
    process, job = confined
    (late.root / "dispatch.json").unlink()
    os.mkfifo(late.root / "dispatch.json", 0o666)
    process.send_signal(signal.SIGSTOP)
    try:
        slow.poll(lambda: late.excludes(job) == "", 30, "the job to be widened")
        assert process.wait(timeout=30) == -signal.SIGKILL
    finally:
        (late.root / "dispatch.json").unlink()
    slow.poll(lambda: not (late.public / "live.json").exists(), 20, "the rest, as soon as they answer")


def test_where_its_guard_is_killed_too_collect_stands_in(late, slow, confined):
    process, job = confined
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=20)
    (late.root / "history.db").unlink(missing_ok=True)
    argv = ("collect", "-S", "now-1hours")
    early = late.workhorse(*argv, user=SERVICE)
    assert "stand" not in early.stderr and "in its place" not in early.stderr, "it may still come back"
    long_ago = time.time() - 400
    os.utime(late.root / "dispatch.json", (long_ago, long_ago))
    heard = (late.public / "live.json").read_text()
    late.configure(dispatch=["period = 2"])  # the job has had its chance
    done = late.workhorse(*argv, user=SERVICE)
    assert "excluded nodes of 1 waiting jobs brought up to date in its place" in done.stderr
    assert late.excludes(job) == BAD, "the worst node stays left out: somebody looks after it"
    assert (late.public / "live.json").read_text() == heard, "nobody may be confined on the strength of a stand-in"


# --- for programs --------------------------------------------------------------------------------------------------


def test_json_is_alone_on_stdout_whatever_there_is_to_say(site, sandbox):
    """One object on a line; notes and progress go to stderr."""

    def told(*words: str | Path, user: str | None = SERVICE) -> tuple[dict, str]:
        done = site.workhorse(*words, "--json", user=user)
        assert done.stdout.count("\n") == 1, done
        return json.loads(done.stdout), done.stderr

    fill(sandbox)
    (site.root / "j.sh").write_text(SLEEP)
    options = [f"--output={sandbox.outdir}/%j.out"]
    stages = {
        "a": {"script": "j.sh", "demand": "1000M", "options": options},
        "b": {"script": "j.sh", "after": ["a"], "options": options},
    }
    (site.root / "j.json").write_text(json.dumps({"name": "j", "stage": stages}))
    submitted, notes = told("submit", site.root / "j.json", user="alice")  # past our sbatch
    assert [stage["stage"] for stage in submitted["stages"]] == ["a", "b"] and "demand was not turned" in notes
    assert jobs.load() and {stage["job"] for stage in submitted["stages"]} <= {job.id for job in jobs.load()}
    waits = ours(sandbox)
    collected, notes = told("collect")
    assert collected["clusters"] == [sandbox.cluster] and collected["rejected"] == 0 and collected["seconds"] > 0
    assert "dispatch isn't heard of" in notes and site.excludes(waits) == BAD
    released, notes = told("dispatch", "--release")
    assert released["changed"] >= 1 and released["problems"] == [] == notes.splitlines() and site.excludes(waits) == ""
    passed, notes = told("dispatch")
    assert (passed["full"], passed["changed"] >= 1, notes, site.excludes(waits)) == (True, True, "", BAD)
    off, notes = told("disable", user=None)
    assert off["given_back"] >= 1 and notes == "" and os.path.exists(off["path"]) and site.excludes(waits) == ""
    on, notes = told("enable", user=None)
    assert on == {"path": off["path"], "was_disabled": True, "mode": "steer"} and notes == ""
    again, notes = told("collect", "-S", "now-1hour")
    assert (again["rejected"], notes) == (0, "")
