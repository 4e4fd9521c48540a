"""The wrapper's first duty on a real Slurm: large jobs get good nodes, everything else goes through."""

from collections.abc import Iterator

import pytest

from slurm_hook.common import hostlist
from slurm_hook.published import mark
from tests.sandbox import Sandbox
from tests.wrapped import Wrapped

pytestmark = pytest.mark.integration
BAD = ("gpu02", "gpu11")
SLEEP = "#!/bin/bash\n#SBATCH -t 5\n{}\nsleep 300\n"


@pytest.fixture(scope="module")
def wrapped(sandbox: Sandbox) -> Wrapped:
    return Wrapped(sandbox)


@pytest.fixture
def submit(sandbox: Sandbox, wrapped: Wrapped) -> Iterator:
    jobs: list[int] = []

    def run(*args: str, lines: str = "", **more) -> dict[str, str]:
        job = sandbox.sbatch(*args, script=SLEEP.format(lines), binary=wrapped.sbatch, **more)
        jobs.append(job)
        return sandbox.job(job)

    yield run
    for job in jobs:
        sandbox.run(["scancel", str(job)], check=False)
    sandbox.poll(lambda: not sandbox.run(["squeue", "-h"]).stdout.strip(), 30, "the queue to be empty")


def excluded(job: dict[str, str]) -> set[str]:
    return set() if job["ExcNodeList"] == "(null)" else set(hostlist.expand(job["ExcNodeList"]))


def started(sandbox: Sandbox, job: dict[str, str]) -> dict[str, str]:
    number = int(job["JobId"])
    sandbox.poll(lambda: sandbox.job(number)["JobState"] == "RUNNING", 20, f"job {number} to run")
    return sandbox.job(number)


def test_a_four_node_job_is_confined_to_a_drawn_pool(sandbox, wrapped, submit):
    scores = wrapped.publish("steer", bad=BAD)
    job = started(sandbox, submit("-N4"))
    left = set(sandbox.nodes) - excluded(job)
    assert len(left) == 4 and not left & set(BAD)
    assert set(hostlist.expand(job["NodeList"])) == left
    told = mark.parse(job["Comment"])
    assert (told.mode, told.snapshot) == ("steer", scores.id)
    assert job["ReqNodeList"] == "(null)"


@pytest.mark.parametrize("quiet", [("-Q", "-N4"), ("-QN", "4"), ("--quiet", "-N4")], ids=" ".join)
def test_a_quiet_call_is_steered_too(sandbox, wrapped, quiet):
    """It says nothing; and sbatch takes no -v beside -Q, so it is asked for its options without that."""
    wrapped.publish("steer", bad=BAD)
    name = f"quiet{''.join(quiet)}"
    script = sandbox.write_script(SLEEP.format(""))
    done = sandbox.run([wrapped.sbatch, *quiet, "--hold", "-J", name, "-o", "/dev/null", script], user="alice")
    number = int(sandbox.run(["squeue", "-h", "-n", name, "-o", "%i"]).stdout)
    job = sandbox.job(number)
    sandbox.run(["scancel", str(number)])
    assert (done.stdout, done.stderr) == ("", "")
    assert len(set(sandbox.nodes) - excluded(job)) == 4 and mark.parse(job["Comment"]).mode == "steer"


@pytest.mark.parametrize("stdin", [False, True], ids=["file", "stdin"])
def test_a_script_that_says_quiet_is_steered_too(sandbox, wrapped, stdin):
    wrapped.publish("steer", bad=BAD)
    name = f"hush{stdin}"
    text = f"#!/bin/bash\n#SBATCH -Q\n#SBATCH -N4 -J {name}\n#SBATCH -H -o /dev/null\n#WORKHORSE stage=tune\ntrue\n"
    words = [] if stdin else ["--", sandbox.write_script(text), "-N", "2"]
    done = sandbox.run([wrapped.sbatch, *words], user="alice", input=text if stdin else None)
    number = int(sandbox.run(["squeue", "-h", "-n", name, "-o", "%i"]).stdout)
    job = sandbox.job(number)
    sandbox.run(["scancel", str(number)])
    assert done.stderr == ""
    told = mark.parse(job["Comment"])
    assert (len(set(sandbox.nodes) - excluded(job)), told.mode, told.stage) == (4, "steer", "tune")


def test_four_nodes_come_from_one_leaf_switch(sandbox, wrapped, submit):
    wrapped.publish("steer")
    left = set(sandbox.nodes) - excluded(submit("-N4"))
    leaves = {scores_leaf(sandbox, name) for name in left}
    assert len(leaves) == 1


def scores_leaf(sandbox: Sandbox, name: str) -> int:
    return sandbox.nodes.index(name) * 4 // len(sandbox.nodes)


def test_total_demand_sets_the_node_count(sandbox, wrapped, submit):
    wrapped.publish("steer", scoring__capacity_resource="mem")
    job = started(sandbox, submit("--mem=1000", lines="#WORKHORSE demand=1000000M stage=pretrain"))
    left = set(sandbox.nodes) - excluded(job)
    mem = {name: int(sandbox.node(name)["RealMemory"]) for name in left}
    assert sum(mem.values()) > 1_000_000
    assert job["NumNodes"] == str(len(left)) and set(hostlist.expand(job["NodeList"])) == left
    assert mark.parse(job["Comment"]).stage == "pretrain"


def test_nodelist_form_pins_exactly_the_pool(sandbox, wrapped, submit):
    wrapped.publish("steer", bad=BAD, steer__form="nodelist")
    job = submit("-N3")
    pool = set(hostlist.expand(job["ReqNodeList"]))
    assert len(pool) == 3 and not pool & set(BAD) and not excluded(job)


def test_the_users_excludes_stay_and_are_told_apart(sandbox, wrapped, submit):
    wrapped.publish("steer")
    job = submit("-N2", "-x", "gpu[05-06]")
    assert {"gpu05", "gpu06"} < excluded(job)
    assert set(sandbox.nodes) - excluded(job) and mark.parse(job["Comment"]).excludes == "gpu[05-06]"
    job = submit("-N2", lines="#SBATCH -x gpu07")
    assert "gpu07" in excluded(job) and len(set(sandbox.nodes) - excluded(job)) == 2


@pytest.mark.parametrize(
    ("args", "lines"),
    [
        (("-N1",), ""),
        ((), ""),
        (("-N2", "-w", "gpu[01-02]"), ""),
        (("-N4",), "#WORKHORSE steer=off"),
        (("-N4", "--reservation="), "#SBATCH --wait-all-nodes=1\n#WORKHORSE steer=off"),
    ],
)
def test_what_is_not_ours_stays_as_it_is(wrapped, submit, args, lines):
    wrapped.publish("steer", bad=BAD)
    job = submit(*args, lines=lines)
    assert not excluded(job) and "Comment" not in job


def test_avoid_excludes_only_the_worst(wrapped, submit):
    wrapped.publish("avoid", bad=BAD)
    assert len(excluded(submit("-N4")) & set(BAD)) == 1  # 2 % of 16 nodes, at least one
    wrapped.publish("avoid", bad=BAD, steer__max_excluded=0.2)
    assert excluded(submit("-N4")) == set(BAD)


def test_observe_changes_nothing(wrapped, submit):
    wrapped.publish("observe", bad=BAD)
    job = submit("-N4")
    assert not excluded(job) and "Comment" not in job


@pytest.mark.parametrize(
    ("value", "left"), [("Off", 16), ("observe", 16), ("avoid", 15), ("steer", 4), ("none", 4), ("", 4)]
)  # fmt: skip
def test_a_user_may_name_a_weaker_mode(sandbox, wrapped, submit, value, left):
    wrapped.publish("steer", bad=BAD)
    job = submit("-N4", env={"WORKHORSE_MODE": value})
    assert len(set(sandbox.nodes) - excluded(job)) == left
    wrapped.publish("avoid", bad=BAD)
    job = submit("-N4", env={"WORKHORSE_MODE": "steer"})
    assert len(excluded(job)) == 1, "and none that does more"


TOLD = (
    ("steer", {}, "", "workhorse: chosen gpu"), ("avoid", {}, "", "workhorse: left out gpu"), ("observe", {}, "", ""),
    ("observe", {}, "#WORKHORSE stge=x", "'stge=x' is ignored"),
    ("observe", {"WORKHORSE_MODE": "of"}, "", "WORKHORSE_MODE=of is ignored"),
    ("steer", {"WORKHORSE_MODE": "observe"}, "", ""),
)  # fmt: skip


@pytest.mark.parametrize(("mode", "env", "lines", "words"), TOLD)
def test_what_a_person_is_told(sandbox, wrapped, mode, env, lines, words):
    """On a terminal; nothing of what only would be done."""
    wrapped.publish(mode, bad=BAD)
    script = sandbox.write_script(SLEEP.format(lines))
    call = f"{wrapped.sbatch} -N4 --hold {script}"
    done = sandbox.run(["script", "-qec", call, "/dev/null"], user="alice", env=env)
    sandbox.run(["scancel", "-u", "alice"])
    told = [line for line in done.stdout.replace("\r", "").splitlines() if not line.startswith("Submitted")]
    assert len(told) == bool(words) and words in "".join(told), done.stdout


def test_without_dispatch_at_most_avoid(wrapped, submit):
    wrapped.publish("steer", bad=BAD, live=False)
    assert len(excluded(submit("-N4")) & set(BAD)) == 1


def test_no_pool_where_it_could_not_start_now(sandbox, wrapped, submit):
    wrapped.publish("steer")
    started(sandbox, submit("-N14", "--exclusive"))
    job = submit("-N4", "--exclusive")
    assert not excluded(job)
