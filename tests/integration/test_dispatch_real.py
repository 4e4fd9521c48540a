"""Dispatch against a running Slurm: what it changes, what it never changes, and what it costs."""

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_hook.common import hostlist
from slurm_hook.common.errors import BusyError
from slurm_hook.dispatch import passes, tracking
from slurm_hook.dispatch.tracking import Tracked
from slurm_hook.dispatch.updates import Update
from slurm_hook.pipelines import pipeline, queue_view
from slurm_hook.published import mark
from slurm_hook.published.mark import Mark
from slurm_hook.slurm import jobs
from tests.dispatched import SLEEP, Dispatched
from tests.sandbox import Sandbox
from tests.wrapped import Wrapped

pytestmark = pytest.mark.integration
BAD = "gpu07"


@pytest.fixture
def site(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dispatched]:
    made = Dispatched(sandbox, monkeypatch)
    made.publish(bad=[BAD])
    yield made
    made.clean()


@pytest.fixture
def late(slow: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Dispatched, int]]:
    """Dispatch, and the job that comes first: Slurm keeps nothing for it but the busy node that it names."""
    made = Dispatched(slow, monkeypatch)
    made.publish(bad=[BAD])
    first, second = (made.sbatch("-N1", "-w", "gpu08", "--exclusive", comment="", user="bob") for _ in range(2))
    slow.poll(lambda: (made.job(first).state, made.job(second).reason) == ("RUNNING", "Resources"), 20, "a job in front")
    made.one_pass()
    yield made, second
    made.clean()


def rpcs(sandbox: Sandbox) -> int:
    """RPCs that slurmctld has counted, without the registrations of its nodes and sdiag's own."""
    text = sandbox.run(["sdiag"]).stdout.partition("by message type")[2].partition("by user")[0]
    counts = re.findall(r"(REQUEST_\w+|MESSAGE_\w+)\s*\(\s*\d+\) count:(\d+)", text)
    return sum(int(n) for name, n in counts if name.startswith("REQUEST_") and "STATS" not in name and "JOB_COMPLETE" not in name)


def test_live_json_says_what_a_submission_must_know(site, sandbox):
    site.fill()
    waits = site.sbatch("-N2", comment="")
    sandbox.run(["scontrol", "create", "reservation=ahead", "starttime=now+1hour", "duration=60", "nodes=gpu03,gpu04",
                 "users=root", "flags=maint"])  # fmt: skip
    try:
        sandbox.poll(lambda: site.job(waits).priority > 0, 10, "a priority")
        site.one_pass()
        live = site.live()
    finally:
        sandbox.run(["scontrol", "delete", "reservation=ahead"])
    assert live.cluster == sandbox.cluster and live.topology == "tree"
    assert live.age(time.time()) < 10
    assert live.partitions["llm"]["default"] and live.partitions["llm"]["max_time"] is None
    assert hostlist.expand(live.partitions["small"]["nodes"]) == ["gpu13", "gpu14", "gpu15", "gpu16"]
    assert live.queue_head == {"llm": site.job(waits).priority}
    (ahead,) = live.reservations
    assert ahead.nodes == ("gpu03", "gpu04") and 3000 < ahead.start - time.time() < 3700 and ahead.end - ahead.start == 3600


def test_a_second_pass_without_news_changes_nothing_and_costs_three_rpcs(site, sandbox):
    site.fill()
    waits = [site.sbatch("-N2", "--exclusive") for _ in range(3)]
    site.one_pass(dispatch__period=600.0)
    sandbox.poll(lambda: not site.one_pass(dispatch__period=600.0).full, 20, "a quiet pass")
    before = {job: site.excludes(job) for job in waits}
    counted = rpcs(sandbox)
    report = site.one_pass(dispatch__period=600.0)
    assert (report.applied, report.full) == (0, False)
    assert rpcs(sandbox) - counted <= 3
    assert {job: site.excludes(job) for job in waits} == before == dict.fromkeys(waits, BAD)


@contextlib.contextmanager
def reserved(sandbox: Sandbox, nodes: str) -> Iterator[None]:
    words = ["reservation=soon", "starttime=now+10minutes", "duration=60", f"nodes={nodes}", "users=root", "flags=maint"]
    sandbox.run(["scontrol", "create", *words])
    try:
        yield
    finally:
        sandbox.run(["scontrol", "delete", "reservation=soon"])


def test_a_reservation_made_between_two_passes_lets_nobody_wait(sandbox, monkeypatch):
    """A quiet pass tells of it. What was submitted before that could be confined to its nodes, and is widened at the next."""
    wrapped = Wrapped(sandbox)
    wrapped.publish("steer", bad=set(sandbox.nodes) - {"gpu01", "gpu02"}, live=False)
    site = Dispatched(sandbox, monkeypatch, publish__path=str(wrapped.public), dispatch__period=600.0)
    monkeypatch.setattr(passes, "POOL_AGE", 0.0)
    sandbox.poll(lambda: not site.one_pass().full, 20, "a quiet pass")
    try:
        with reserved(sandbox, "gpu[01-02]"):
            early = site.sbatch("-N2", "-t", "60", comment="", binary=wrapped.sbatch)
            assert site.job(early).mark.mode == "steer" and len(jobs.nodes_of(site.excludes(early))) == 14
            assert site.one_pass().applied == 1
            sandbox.poll(lambda: site.job(early).state == "RUNNING", 30, "the widened job to run")
        sandbox.poll(lambda: not site.one_pass().full, 20, "a quiet pass")
        with reserved(sandbox, "gpu[01-02]"):
            assert not site.one_pass().full
            late = site.sbatch("-N2", "-t", "60", comment="", binary=wrapped.sbatch)
            assert site.job(late).mark.mode == "avoid", "all others are lemons"
            sandbox.poll(lambda: site.job(late).state == "RUNNING", 30, "the job to run")
    finally:
        site.clean()


def test_waiting_stages_lose_the_worst_node_and_keep_the_users_excludes(site):
    site.fill()
    plain = site.sbatch("-N2", "--exclusive")
    own = site.sbatch("-N2", "--exclusive", "-x", "gpu04", comment=mark.text(Mark(mode="avoid", excludes="gpu04")))
    asked = site.sbatch("-N2", "-x", "gpu05", "--exclusive", comment=mark.text(Mark(pipeline="llama", stage="train")))
    dependent = site.sbatch("-N2", "--exclusive", f"--dependency=afterok:{plain}")
    array = site.sbatch("-N2", "--array=1-4", "--exclusive")
    untouched = [
        site.sbatch("-N2", "--exclusive", comment="mine"), site.sbatch("-N2", "--exclusive", comment=""),
        site.sbatch("-N2", "--exclusive", mode="control"), site.sbatch("-N2", "-w", "gpu07,gpu08", "--exclusive"),
        site.sbatch("-N2", "--exclusive", "--hold"),
    ]  # fmt: skip
    before = {job: site.job(job)._replace(details=None) for job in untouched}
    assert site.one_pass().applied == 5
    assert site.excludes(plain) == site.excludes(dependent) == site.excludes(array) == BAD
    assert (site.excludes(own), site.excludes(asked)) == ("gpu[04,07]", "gpu[05,07]")
    for job, was in before.items():
        now = site.job(job)
        assert (now.excludes, now.req_nodes, now.nice, now.comment, now.priority > 0) == (
            was.excludes, was.req_nodes, was.nice, was.comment, was.priority > 0,
        )  # fmt: skip
    assert site.job(dependent).dependency, "the dependency stays"
    assert site.one_pass().applied == 0
    assert site.release().applied == 5
    assert [site.excludes(job) for job in (plain, dependent, array, own, asked)] == ["", "", "", "gpu04", "gpu05"]


def test_what_limits_a_waiting_jobs_nodes_is_told_by_squeue(site):
    site.fill()
    plain, *special = [
        site.sbatch("-N2", "--exclusive", *more)
        for more in ((), ("--contiguous",), ("--cores-per-socket=1",), ("--threads-per-core=1",), ("--switches=1@10",))
    ]
    found = jobs.details([plain, *special])
    assert [(d.odd, d.inner, d.switches, d.gpu_type) for d in (found[job] for job in (plain, *special))] == [
        ((), (), 0, ""), (("contiguous",), (), 0, ""), (("cores-per-socket",), (), 0, ""), ((), ("threads-per-core",), 0, ""),
        ((), (), 1, ""),
    ]  # fmt: skip
    site.one_pass()
    assert [site.excludes(job) for job in (plain, *special)] == [BAD, "", "", BAD, BAD]


def test_components_of_a_heterogeneous_job_are_updated_by_their_raw_ids(site):
    site.fill()
    told = f"--comment={mark.text(Mark(mode='avoid'))}"
    first = site.sbatch("-N1", "--exclusive", ":", "-N2", "--exclusive", told)
    site.one_pass()
    assert [site.excludes(job) for job in (first, first + 1)] == [BAD, BAD]
    site.release()
    assert [site.excludes(job) for job in (first, first + 1)] == ["", ""]


def test_what_its_owner_takes_off_or_sets_is_the_owners_word(site, sandbox):
    """Also at once after our update; and it isn't taken off again when we are switched off."""
    site.fill()
    cleared, other, array = (site.sbatch("-N2", "--exclusive", *more) for more in ((), (), ("--array=1-2",)))
    site.one_pass()
    assert [site.excludes(job) for job in (cleared, other, array)] == [BAD, BAD, BAD]
    for job, names in ((cleared, ""), (other, "gpu05"), (array, "")):
        sandbox.run(["scontrol", "update", f"JobId={job}", f"ExcNodeList={names}"], user="alice")
    for _ in range(2):
        assert site.one_pass().applied == 0
        assert [site.excludes(job) for job in (cleared, other, array)] == ["", "gpu05", ""]
    assert site.release().applied == 0
    assert site.excludes(other) == "gpu05"


def test_a_job_whose_comment_is_changed_before_the_first_pass_is_found_again(site, sandbox):
    """By the command line that accounting keeps; the user's own exclude stays."""
    wrapped = Wrapped(sandbox)
    wrapped.publish("steer", bad=[BAD])
    held = site.sbatch("-N2", "-H", "-x", "gpu01", comment="", binary=wrapped.sbatch)
    begins = site.sbatch("-N2", "--begin=now+1hour", "-x", "gpu02", comment="", binary=wrapped.sbatch)
    own = site.sbatch("-N2", "-H", "-x", "gpu[02,07]", comment="")
    assert len(jobs.nodes_of(site.excludes(held))) == 14 and site.excludes(begins) == "gpu[02,07]"
    for job in (held, begins, own):
        sandbox.run(["scontrol", "update", f"JobId={job}", "Comment=mine"], user="alice")
    sandbox.poll(lambda: site.one_pass() and site.excludes(held) == "gpu01", 40, "the confined job to be widened")
    assert site.excludes(begins) == "gpu[02,07]", "left alone, as its comment says"
    Path(site.settings["dispatch.state"]).unlink()  # a host without our memory
    site.release()
    assert [site.excludes(job) for job in (held, begins, own)] == ["gpu01", "gpu02", "gpu[02,07]"]


def test_an_array_that_has_begun_keeps_its_running_tasks(site, sandbox):
    array = site.sbatch("-N8", "--array=1-4", "--exclusive", "-t", "5")
    sandbox.poll(lambda: sum(j.state == "RUNNING" for j in jobs.load() if j.label.startswith(f"{array}_")) == 2, 20, "two tasks")
    report = site.one_pass()
    assert report.problems == () and report.applied == 1
    rows = [j for j in jobs.load() if j.label.startswith(f"{array}_")]
    assert sorted((j.state, j.nodes) for j in rows) == [("PENDING", 8), ("RUNNING", 8), ("RUNNING", 8)]
    assert [hostlist.fold(jobs.nodes_of(j.excludes)) for j in rows if j.state == "PENDING"] == [BAD]


def test_a_stage_that_did_not_start_in_its_pool_is_widened_by_the_next_pass(site, sandbox):
    site.fill()
    pool = mark.text(Mark(mode="steer", excludes="gpu02"))
    stuck = site.sbatch("-N2", "--exclusive", "-x", "gpu[01-14]", comment=pool)
    time.sleep(1.1)  # half a period: until then it has its chance
    assert site.one_pass().applied == 1
    assert site.excludes(stuck) == "gpu[02,07]"


def test_a_stage_whose_turn_has_come_is_confined_to_drawn_nodes_and_starts_there(late):
    site, first = late
    job = site.sbatch("-N3", "--exclusive", "-x", "gpu01", comment=mark.text(Mark(mode="avoid", excludes="gpu01")))
    site.one_pass()
    found = site.job(job)
    assert found.pending
    pool = set(site.sandbox.nodes) - set(jobs.nodes_of(found.excludes))
    assert len(pool) == 3 and not pool & {BAD, "gpu01", "gpu08"}
    site.sandbox.run(["scancel", str(first)])
    site.sandbox.poll(lambda: site.job(job).state == "RUNNING", 20, "the job to run")
    assert set(jobs.nodes_of(site.job(job).node_list)) == pool


def test_a_job_that_slurm_holds_for_our_excludes_gets_its_own_back(site, sandbox):
    """Whatever the decision was: the state is looked at afterwards."""
    site.fill()
    job = site.sbatch("-N2", "--exclusive", "-p", "small", "-x", "gpu13", comment=mark.text(Mark(mode="avoid", excludes="gpu13")))
    sandbox.run(["scontrol", "update", f"JobId={job}", "ExcNodeList=gpu[13-16]"])
    held = sandbox.poll(lambda: site.job(job) if site.job(job).priority == 0 else None, 20, "Slurm to hold the job")
    before = held._replace(priority=100, reason="Resources")
    problems = passes._look_again([Update(before, "gpu[13-16]", "refresh", Tracked(user="gpu13"))])
    assert len(problems) == 1 and "taken off again" in problems[0]
    sandbox.poll(lambda: site.job(job).priority > 0 and site.excludes(job) == "gpu13", 20, "the job to be released")


def test_after_slurm_requeued_a_stage_the_culprit_is_excluded(site, sandbox):
    """Also when the node answers again before the stage's next turn, and not where the stage can't do without it."""
    users = {"gpu[05-16]": "gpu{},gpu[05-16]", "gpu[03-16]": "gpu[03-16]"}
    for own, expected in users.items():
        job = site.sbatch("-N2", "--exclusive", "--requeue", "-x", own, comment=mark.text(Mark(mode="avoid", excludes=own)))
        sandbox.poll(lambda job=job: site.job(job).state == "RUNNING", 20, "the job to run")
        site.one_pass()
        culprit = jobs.nodes_of(site.job(job).node_list)[1]
        try:
            sandbox.run(["scontrol", "update", f"NodeName={culprit}", "State=DOWN", "Reason=test"])
            sandbox.poll(lambda job=job: site.job(job).pending, 20, "Slurm to requeue it")
            site.one_pass()
        finally:
            sandbox.resume(culprit)
        assert tracking.read_state(site.settings["dispatch.state"]).tracked[job].culprits == culprit
        wanted = expected.format(culprit.removeprefix("gpu"))
        assert jobs.nodes_of(site.excludes(job)) == jobs.nodes_of(hostlist.fold(hostlist.expand(wanted)))
        sandbox.run(["scancel", str(job)])


def test_a_stage_that_died_of_its_node_goes_on_elsewhere_under_the_same_id(site, sandbox):
    """Its own errors, and stages whose dependents are already invalid, are left as they are."""
    dies = f"#!/bin/sh\necho restart=$SLURM_RESTART_COUNT >> {sandbox.outdir}/$SLURM_JOB_ID\nsleep 1\nexit 3\n"
    own, died, chained = (site.sbatch("-N2", "--exclusive", "-J", name, script=dies) for name in ("own", "died", "chained"))
    child = site.sbatch("-N1", f"--dependency=afterok:{chained}", "-J", "child")
    sandbox.wait([own, died, chained], timeout=30)
    sandbox.poll(lambda: site.job(child).reason == "DependencyNeverSatisfied", 20, "the dependent to be invalid")
    culprits = [jobs.nodes_of(site.job(job).node_list)[1] for job in (died, chained)]
    assert not {*culprits} & {*jobs.nodes_of(site.job(own).node_list)}, "the three ran side by side"
    try:
        for name in culprits:
            sandbox.run(["scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=Xid 79"])
        assert not any("requeued" in p for p in site.one_pass().problems), "only who asks for it"
        report = site.one_pass(dispatch__requeue=True, dispatch__period=0.1)
        told = [problem for problem in report.problems if any(f"job {job} died" in problem for job in (own, died, chained))]
        assert len(told) == 2, "others that died of these nodes are other tests'"
        assert f"job {died} died of its node and is requeued without {culprits[0]}" in report.problems
        assert any(f"job {chained} died" in p and f"job {child}, which depends on it" in p for p in report.problems)
        again = site.job(died)
        assert again.pending and jobs.nodes_of(again.excludes) == (culprits[0],) and jobs.details([died])[died].restarts == 1
        assert [site.job(job).state for job in (own, chained)] == ["FAILED", "FAILED"]
        assert site.one_pass(dispatch__requeue=True, dispatch__period=0.1).problems == (), "told once"
        assert set(jobs.nodes_of(site.excludes(died))) == {BAD, culprits[0]}, "steering goes on"
        assert site.one_pass(steer__mode="observe", dispatch__requeue=True).applied == 2, "of this job and of the dependent"
        assert site.one_pass(steer__mode="observe", dispatch__requeue=True).applied == 0
        assert site.excludes(died) == culprits[0], "it goes with requeueing, not with steering"
        site.release()
        assert site.excludes(died) == ""
    finally:
        for name in culprits:
            sandbox.resume(name)


def test_of_two_dispatchers_one_works(site, sandbox):
    with passes.lock(site.settings["dispatch.state"]), pytest.raises(BusyError) as caught:
        site.one_pass()
    assert caught.value.exit_code == 75


def test_modes_that_do_not_steer_take_our_excludes_off_and_then_rest(site, sandbox):
    site.fill()
    job = site.sbatch("-N2", "--exclusive")
    site.one_pass()
    assert site.excludes(job) == BAD
    counted = rpcs(sandbox)
    assert site.one_pass(steer__mode="observe").applied == 1
    assert site.excludes(job) == "" and rpcs(sandbox) > counted
    counted = rpcs(sandbox)
    site.one_pass(steer__mode="observe")
    assert rpcs(sandbox) == counted, "off means off"


def test_disable_takes_everything_off_at_once_also_while_a_dispatcher_watches(site, sandbox):
    """The running dispatcher steps aside; `enable` brings it back."""
    config = site.root / "workhorse.toml"
    config.write_text(
        f'[publish]\npath = "{site.root}"\n[dispatch]\nstate = "{site.root}/state.json"\nperiod = 0.5\n[steer]\nmode = "steer"\n'
    )
    argv = [sys.executable, "-c", CODE, str(Path(__file__).resolve().parents[2]), "--config", str(config)]
    site.fill()
    job = site.sbatch("-N2", "--exclusive", "-x", "gpu04", comment=mark.text(Mark(mode="avoid", excludes="gpu04")))
    watcher = subprocess.Popen([*argv, "dispatch", "--watch", "-q"], stderr=subprocess.PIPE, text=True)
    try:
        sandbox.poll(lambda: site.excludes(job) == "gpu[04,07]", 20, "our exclude")
        done = subprocess.run([*argv, "disable"], capture_output=True, text=True, timeout=60, check=True)
        assert "given back: 1" in done.stdout and site.excludes(job) == "gpu04"
        heard = site.live().created
        time.sleep(1.5)
        assert site.excludes(job) == "gpu04" and site.live().created == heard, "it stays off"
        subprocess.run([*argv, "enable"], capture_output=True, timeout=60, check=True)
        sandbox.poll(lambda: site.excludes(job) == "gpu[04,07]", 20, "our exclude again")
    finally:
        watcher.terminate()
        assert watcher.communicate(timeout=20)[1] == ""


CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from slurm_hook.cli import main; main()"


def test_watch_ends_by_widening_what_it_had_confined(late):
    """SIGTERM to a dispatcher: nobody would widen after it, so it does."""
    site, _ = late
    config = site.root / "workhorse.toml"
    config.write_text(
        f'[publish]\npath = "{site.root}"\n[dispatch]\nstate = "{site.root}/state.json"\nperiod = 30.0\n[steer]\nmode = "steer"\n'
    )
    job = site.sbatch("-N3", "--exclusive")
    root = str(Path(__file__).resolve().parents[2])
    argv = [sys.executable, "-c", CODE, root, "--config", str(config), "dispatch", "--watch"]
    watcher = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        site.sandbox.poll(lambda: len(jobs.nodes_of(site.job(job).excludes)) == 5, 20, "the job to be confined")
        again = subprocess.run(argv[:-1], capture_output=True, text=True, timeout=30, check=False)
        assert (again.returncode, "another dispatcher" in again.stderr) == (75, True)
        watcher.terminate()
        out, err = watcher.communicate(timeout=20)
        assert (watcher.returncode, err) == (0, "") and "changed=1" in out
        assert site.excludes(job) == ""
    finally:
        watcher.kill()
        watcher.communicate()


def test_racing_the_scheduler_never_shrinks_or_holds_a_job(site, sandbox):
    """Hundreds of jobs start while their excludes are rewritten without pause: each runs on as many nodes as it asked for."""
    asked: dict[int, int] = {}
    stop = threading.Event()
    updates = {"done": 0, "late": 0, "refused": []}

    def rewrite() -> None:
        turn = 0
        while not stop.is_set():
            for job in jobs.load():
                if not job.pending or stop.is_set():
                    continue
                turn += 1
                keep = [sandbox.nodes[(turn + i) % 16] for i in range(8)]
                names = hostlist.fold(set(sandbox.nodes) - set(keep)) if turn % 3 else ""
                done, said = passes.set_excludes(job, names)
                updates["done" if done else "late"] += 1
                if said:
                    updates["refused"].append((job.id, said))

    racers = [threading.Thread(target=rewrite) for _ in range(2)]
    for racer in racers:
        racer.start()
    try:
        for number in range(1000):
            if number >= 300 and updates["done"] > 100:  # where jobs start at once, few are met while they wait
                break
            size = 1 + number % 4
            asked[site.sbatch(f"-N{size}", "-n", str(size), "-t", "5", script="#!/bin/sh\nsleep 0.2\n")] = size
        ended = sandbox.wait(asked, timeout=180)
    finally:
        stop.set()
        for racer in racers:
            racer.join()
    rows = sandbox.run(["sacct", "-a", "-X", "-n", "-P", "-j", ",".join(map(str, asked)), "-o", "JobIDRaw,NNodes,State"]).stdout
    ran = {int(j): (int(n), state) for j, n, state in (row.split("|") for row in rows.splitlines())}
    assert ran == {job: (size, "COMPLETED") for job, size in asked.items()}
    assert set(ended.values()) == {"COMPLETED"}
    assert updates["refused"] == [] and updates["done"] > 100, updates


def test_the_service_user_can_and_others_cannot(site, sandbox):
    site.fill()
    job = site.sbatch("-N2", "--exclusive", user="alice")
    for user, allowed in (("bob", False), ("workhorse", True)):
        done = sandbox.run(["scontrol", "update", f"JobId={job}", f"ExcNodeList={BAD}"], user=user, check=False)
        assert (done.returncode == 0) is allowed, done.stderr


def test_a_pipeline_from_its_manifest(site, sandbox):
    """Stages wait for each other; a later one that sbatch refuses takes the earlier ones back."""
    for name in ("prepare", "train"):
        (site.root / f"{name}.sh").write_text(SLEEP)
    stages = '"prepare": {{"script": "prepare.sh"}}, "train": {{"script": "train.sh", "after": ["prepare"], {}}}'
    text = '{{"name": "llama", "stage": {{' + stages + "}}}}"
    path = site.root / "p.json"
    path.write_text(text.format('"nodes": 2'))
    ids = pipeline.submit(pipeline.read(str(path)), lambda *_: None)
    site.submitted += list(ids.values())
    train = site.job(ids["train"])
    assert train.dependency.startswith(f"afterok:{ids['prepare']}") and train.nodes == 2
    assert train.mark == Mark(pipeline="llama", stage="train")
    parts = queue_view.pipeline_parts("llama", jobs.load(), jobs.history("root", 1), "root", time.time())
    assert [(p.name, p.after) for p in parts][-2:] == [("prepare", ""), ("train", str(ids["prepare"]))]
    path.write_text(text.format('"options": ["--partition=nowhere"]'))
    before = {job.id for job in jobs.load()}
    with pytest.raises(Exception, match="cancelled what had been submitted: prepare"):
        pipeline.submit(pipeline.read(str(path)), lambda *_: None)
    new = [job for job in jobs.load() if job.id not in before]
    assert len(new) == 1 and new[0].state in ("CANCELLED", "COMPLETING")


def test_effect_tells_the_control_group_from_the_steered(site, sandbox):
    """Marks come from Slurm's accounting, failures and waits from the history; too few jobs are told, not guessed from."""
    done = [site.sbatch("-N2", script="#!/bin/sh\ntrue\n", mode=mode) for mode in ("steer", "control") * 10]
    done.append(site.sbatch("-N2", script="#!/bin/sh\ntrue\n", comment="wh=1;m=steer;x=$(id)"))
    sandbox.wait(done, timeout=60)
    argv = [sys.executable, "-c", CODE, str(Path(__file__).resolve().parents[2])]

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*argv, *words, "--db", str(site.root / "h.db")], capture_output=True, text=True, timeout=60, check=False
        )

    since = ("-S", "now-1hours")

    def compared() -> dict | None:
        """Slurm's accounting tells comments a moment after the end of a job."""
        assert call("collect", *since).returncode == 0
        told = json.loads(call("effect", *since, "--json").stdout)
        return told if told["steered"] >= 10 and told["control"] >= 10 else None

    found = sandbox.poll(compared, 40, "both groups")
    assert {row["measure"] for row in found["differences"]} == {"failed", "lost", "waited"}
    assert "control group" in call("effect", *since).stdout
    few = call("effect", "-S", "now-0hours")
    assert few.returncode == 1 and "control_share" in few.stderr
