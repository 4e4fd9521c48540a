"""`workhorse plan` tells what a submission would get: candidates and draw as the wrapper then makes them."""

import json
import subprocess
import sys

import pytest

from slurm_hook.common import hostlist
from slurm_hook.decision import placement
from slurm_hook.published import mark
from tests.sandbox import Sandbox
from tests.wrapped import REAL, ROOT, Wrapped

pytestmark = pytest.mark.integration
BAD = ("gpu02", "gpu11")


@pytest.fixture(scope="module")
def wrapped(sandbox: Sandbox) -> Wrapped:
    return Wrapped(sandbox)


@pytest.fixture
def plan(sandbox: Sandbox, wrapped: Wrapped):
    def run(*args: str, ok: bool | None = True, env_more: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "slurm_hook.cli", "plan", "--scores", wrapped.public, "--sbatch", REAL, *args]
        env = {**sandbox.env, "PYTHONPATH": str(ROOT), **(env_more or {})}
        done = subprocess.run(
            [str(w) for w in argv], env=env, capture_output=True, text=True, timeout=60, cwd="/tmp", check=False
        )
        assert ok is None or (done.returncode == 0) == ok, done.stderr
        return done

    return run


def queued(sandbox: Sandbox) -> str:
    return sandbox.run(["squeue", "-h", "-o", "%i"]).stdout


def test_candidates_fit_capability_probability_and_draw(sandbox, wrapped, plan):
    wrapped.publish("steer", bad=BAD, capability={"gpu05": 3.0}, scoring__capacity_resource="mem")
    before = queued(sandbox)
    found = json.loads(plan("--json", "-N4", "--mem=1000", "--wrap=true").stdout)
    assert queued(sandbox) == before
    listed = {c["name"]: c for c in found["candidates"]}
    assert set(listed) == set(sandbox.nodes) and found["match"] == "min_nodes" and found["action"] == "steer"
    sizes = {name: float(sandbox.node(name)["RealMemory"]) for name in listed}
    assert {name: c["capacity"] for name, c in listed.items()} == sizes
    assert [listed[n]["fit"] for n in sorted(listed)] == pytest.approx(placement.fit(1000.0, [sizes[n] for n in sorted(listed)]))
    assert (
        {n for n, c in listed.items() if c["against"] == "lemon"}
        == {n for n, c in listed.items() if not c["probability"]}
        == set(BAD)
    )
    assert sum(c["probability"] for c in listed.values()) == pytest.approx(1.0)
    assert listed["gpu05"]["capability"] == 3.0 and all(c["startable"] for c in listed.values())
    alike = [c["probability"] for n, c in listed.items() if n not in BAD and sizes[n] == sizes["gpu05"] and n != "gpu05"]
    assert listed["gpu05"]["probability"] > max(alike)
    assert len(found["pool"]) == 4 and set(found["pool"]) | set(found["excludes"]) == set(sandbox.nodes)


@pytest.mark.parametrize("method", ["published", "attributed"])
@pytest.mark.parametrize("argv", [("-N4",), ("-N2-6", "-x", "gpu[05-06]"), ("-n40", "-c2"), ("--gpus=24",)])
def test_a_submission_with_that_seed_gets_that_pool(sandbox, wrapped, plan, method, argv):
    wrapped.publish("steer", bad=BAD, method=method, capability={"gpu03": 4.0, "gpu07": 0.3})
    job = sandbox.job(sandbox.sbatch("--hold", *argv, "--wrap=true", binary=wrapped.sbatch))
    sandbox.run(["scancel", job["JobId"]])
    told = mark.parse(job["Comment"])
    found = json.loads(plan("--json", "--seed", str(told.seed), "--hold", *argv, "--wrap=true").stdout)
    assert (found["action"], found["snapshot"], found["seed"]) == (told.mode, told.snapshot, told.seed)
    own = set(hostlist.expand(told.excludes)) if told.excludes else set()
    assert told.mode == "steer" and set(found["excludes"]) | own == set(hostlist.expand(job["ExcNodeList"]))
    assert f"--exclude={job['ExcNodeList']}" in found["added"]


def test_modes_and_reasons(wrapped, plan):
    wrapped.publish("observe", bad=BAD)
    assert "mode observe" in plan("-N4", "--wrap=true").stdout
    told = plan("--mode", "avoid", "-N4", "--wrap=true").stdout
    row = next(line for line in told.split("\n") if line.startswith("gpu02 "))
    assert "some nodes left out: mode avoid" in told and row.endswith("lemon left out")
    assert "several partitions" in plan("--mode", "steer", "-N2", "-p", "llm,small", "--wrap=true").stdout
    assert "passed through: the user named the nodes" in plan("-N2", "-w", "gpu[03-04]", "--wrap=true").stdout
    wrapped.publish("steer", bad=BAD, steer__control_share=0.9)
    told = [plan("--seed", str(seed), "-N4", "--wrap=true").stdout.split("\n")[0] for seed in range(1, 5)]
    assert "left untouched, to compare others with: control group" in told
    assert plan("-N1", "--wrap=true").stdout.startswith("passed through: not ours (mode steer; [match] wants 2 nodes")
    assert json.loads(plan("--json", "-N1", "--wrap=true").stdout)["action"] == "pass"


def test_observing_is_told_apart_from_doing(wrapped, plan):
    wrapped.publish("observe", bad=BAD)
    told = plan("-N4", "--wrap=true").stdout
    assert told.startswith("mode observe: the job stays as it is") and "\nwould be added: --exclude" in told
    wrapped.publish("steer", bad=BAD)
    told = plan("-N4", "--wrap=true").stdout
    assert told.startswith("confined to a drawn pool") and "\nadded: --exclude" in told


def test_who_has_opted_out_is_told_so(wrapped, plan, tmp_path):
    wrapped.publish("steer", bad=BAD)
    for value in ("off", "OFF"):
        assert plan("-N4", "--wrap=true", env_more={"WORKHORSE_MODE": value}).stdout == "passed through: WORKHORSE_MODE=off\n"
    assert "mode avoid" in plan("-N4", "--wrap=true", env_more={"WORKHORSE_MODE": "avoid"}).stdout
    assert "drawn pool" in plan("--mode=steer", "-N4", "--wrap=true", env_more={"WORKHORSE_MODE": "off"}).stdout
    (tmp_path / "workhorse.toml").touch()
    (tmp_path / "disable").touch()
    env = {"WORKHORSE_CONFIG": str(tmp_path / "workhorse.toml")}
    assert plan("-N4", "--wrap=true", env_more=env).stdout.startswith(
        f"passed through: {tmp_path}/disable exists; `workhorse enable`"
    )
    assert "drawn pool" in plan("--mode=steer", "-N4", "--wrap=true", env_more=env).stdout


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("-N4", "--nosuchoption", "--wrap=true"), "unrecognized option '--nosuchoption'"),
        (("-N4", "--mem=x", "--wrap=true"), "sbatch refuses this: sbatch: error: "),
        (("-N", "4", "--seed", "5", "--wrap=true"), "options of plan itself stand before those of sbatch"),
        (("-N4-2", "--wrap=true"), "sbatch refuses this: sbatch: error: "),
    ],
)  # fmt: skip
def test_what_sbatch_itself_refuses(wrapped, plan, argv, words):
    wrapped.publish("steer", bad=BAD)
    done = plan(*argv, ok=False)
    assert words in done.stderr and "defined options" not in done.stderr, done.stderr


def test_a_quiet_call_is_planned_as_another(wrapped, plan):
    wrapped.publish("steer", bad=BAD)
    assert plan("-Q", "-N4", "--wrap=true").stdout.startswith("confined to a drawn pool")


UNPLANNED = (
    (), ("-N4",), ("-N4", "/nonexistent.sh"), ("-N4", "--nosuchoption", "--wrap=true"), ("-N4-2", "--wrap=true"),
    ("-N4", "--mem=x", "--wrap=true"), ("-N4", "--gres=gpu:\x1b[31mred:2,gpu:b:2", "--wrap=true"),
    ("-N4", "-C", "\x1b]0;title\x07[a*2]", "--wrap=true"),
)  # fmt: skip


@pytest.mark.parametrize("argv", UNPLANNED)
def test_what_cannot_be_planned_is_told_in_words(wrapped, plan, argv):
    wrapped.publish("steer", bad=BAD)
    done = plan(*argv, ok=None)
    said = done.stdout + done.stderr
    assert said and "Traceback" not in said and not {"\x1b", "\x07"} & set(said)


def test_hostile_names_and_directives(sandbox, wrapped, plan):
    wrapped.publish("steer", bad=BAD)
    script = sandbox.write_script("#!/bin/bash\n#SBATCH -N4\n#WORKHORSE stage=\x1b[31m demnd=1 demand=$(id)\ntrue\n")
    said = plan("-J", "a'; DROP TABLE x;\x1b[2J\n+--exclude=gpu01", script).stdout
    assert "note:" in said and "\x1b" not in said and "confined to a drawn pool" in said
    found = json.loads(plan("--json", "-J", "end\n\x1b", script).stdout)
    assert len(found["pool"]) == 4 and all(word.isprintable() for word in found["added"])
