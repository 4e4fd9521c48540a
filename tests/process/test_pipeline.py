"""Manifests: what is wrong is told before anything is submitted; a failure in the middle takes back what was submitted."""

import json
import os
import signal
import stat

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from slurm_hook.cli import group
from slurm_hook.common.errors import InputError, SlurmError
from slurm_hook.pipelines import pipeline
from slurm_hook.published import mark
from slurm_hook.slurm import jobs
from tests.unit.jobs_made import job

GOOD = """
name = "llama"
options = ["--partition=llm"]
[stage.evaluate]
script = "eval.sh"
after = { pretrain = "afterok", prepare = "afterany" }
[stage.prepare]
script = "prepare.sh"
args = ["a b", "$(id)"]
[stage.pretrain]
script = "train.sh"
options = ["--time=2-0"]
after = ["prepare"]
nodes = 4
demand = "640G"
checkpoint = "0:30:00"
"""


@pytest.fixture
def folder(tmp_path):
    for name in ("eval.sh", "prepare.sh", "train.sh"):
        (tmp_path / name).write_text("#!/bin/sh\n")
    return tmp_path


def read(folder, text):
    path = folder / "pipeline.toml"
    path.write_text(text)
    return pipeline.read(str(path))


def test_stages_become_chained_sbatch_calls(folder):
    got = read(folder, GOOD)
    assert [s.name for s in got.stages] == ["prepare", "pretrain", "evaluate"]
    calls = {s.name: pipeline.argv(got, s, {"prepare": 11, "pretrain": 12}) for s in got.stages}
    assert calls["prepare"][-3:] == [str(folder / "prepare.sh"), "a b", "$(id)"]
    assert calls["pretrain"][:-2] == [
        "sbatch", "--parsable", "--job-name=pretrain", "--partition=llm", "--time=2-0", "--nodes=4", "--dependency=afterok:11",
    ]  # fmt: skip
    assert "--dependency=afterok:12,afterany:11" in calls["evaluate"]
    asked = mark.parse(calls["pretrain"][-2].removeprefix("--comment="))
    assert asked == mark.Mark(pipeline="llama", stage="pretrain", demand=655360.0, checkpoint=30.0)


def test_json_says_the_same(folder):
    import tomllib

    (folder / "p.json").write_text(json.dumps(tomllib.loads(GOOD)))
    assert pipeline.read(str(folder / "p.json"))._replace(folder="") == read(folder, GOOD)._replace(folder="")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["stage.NAME"]), ("stage = 3", ["stage.NAME"]), ("[stage]", ["stage.NAME"]),
        ("name = 'x'\nfoo = 1", ["foo", "options"]),
        ("name = 'a b'\n[stage.a]\nscript='eval.sh'", ["'a b'", "letters"]), ("[stage.a", ["not valid TOML"]),
        ("[stage.a]\nscript='none.sh'", ["stage a", "no script", "none.sh"]), ("[stage.a]\n", ["stage a", "script is needed"]),
        ("[stage.a]\nscript='.'", ["no script"]), ("[stage.'a;b']\nscript='eval.sh'", ["a;b", "letters"]),
        ("[stage.a]\nscript='eval.sh'\nafter=['b']", ["stage a", "'b'", "no stage", "stages are a"]),
        ("[stage.a]\nscript='eval.sh'\nafter=['a']", ["wait for each other", "a → a"]),
        ("[stage.a]\nscript='eval.sh'\nafter=['b']\n[stage.b]\nscript='eval.sh'\nafter=['a']", ["wait for each other"]),
        ("[stage.a]\nscript='eval.sh'\nafter={a='later'}", ["after", "afterok"]),
        ("[stage.a]\nscript='eval.sh'\nafter=3", ["after"]),
        ("[stage.a]\nscript='eval.sh'\nnodes=-1", ["nodes", "-1"]), ("[stage.a]\nscript='eval.sh'\nnodes='2'", ["nodes", "'2'"]),
        ("[stage.a]\nscript='eval.sh'\nnodes=true", ["nodes", "True"]),
        ("[stage.a]\nscript='eval.sh'\ndemand='lots'", ["demand", "640G"]),
        ("[stage.a]\nscript='eval.sh'\ncheckpoint='-5'", ["checkpoint", "minutes"]),
        ("[stage.a]\nscript='eval.sh'\noptions='-N1'", ["options", "list"]),
        ("[stage.a]\nscript='eval.sh'\nargs=[[1]]", ["args", "list"]),
        ("[stage.a]\nscript='eval.sh'\noptions=['--dependency=afterok:1']", ["--dependency", "after = [...]"]),
        ("[stage.a]\nscript='eval.sh'\noptions=['-dafterok:1']", ["-d", "after = [...]"]),
        ("[stage.a]\nscript='eval.sh'\noptions=['--wait']", ["--wait"]),
        ("[stage.a]\nscript='eval.sh'\noptions=['--wrap=ls']", ["--wrap"]),
        ("[stage.a]\nscript='eval.sh'\noptions=['-M','x']", ["-M"]),
        ("[stage.a]\nscript='eval.sh'\noptions=['-N1',':','-N2']", ["hetjob"]),
        ("[stage.a]\nscript='eval.sh'\nscrpt='x'", ["stage a", "'scrpt'", "script, args"]),
    ],
)  # fmt: skip
def test_what_is_refused_before_anything_is_submitted(folder, text, words):
    with pytest.raises(InputError) as caught:
        read(folder, text)
    assert all(word in str(caught.value) for word in ["pipeline.toml", *words]), str(caught.value)


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda x: st.lists(x) | st.dictionaries(st.text(max_size=5), x),
            max_leaves=8,
        ),
    )
)
def test_any_table_is_checked_without_another_error(tables):
    for data in (tables, {"stage": tables}, {"stage": {"a": tables}}):
        with pytest.raises(InputError):
            pipeline.check(data)


FAKE = """#!/usr/bin/env python3
import json, os, sys
log = os.path.join(os.path.dirname(sys.argv[0]), "calls")
with open(log, "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
count = sum(1 for line in open(log) if line.startswith('["sbatch"'))
if os.path.basename(sys.argv[0]) == "sbatch":
    if count >= int(os.environ.get("FAIL_AT", "99")):
        sys.exit("sbatch: error: Batch job submission failed: Invalid partition name specified")
    print("Welcome to cluster 7!")
    print(f"{100 + count};sandbox" if count % 2 else str(100 + count))
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """sbatch and scancel that write down how they were called; sbatch prints a banner as site wrappers do."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in ("sbatch", "scancel"):
        (bin_folder / name).write_text(FAKE)
        (bin_folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    return lambda: (
        [json.loads(line) for line in (bin_folder / "calls").read_text().splitlines()] if (bin_folder / "calls").exists() else []
    )


def test_submission_chains_the_ids(folder, slurm):
    told = []
    ids = pipeline.submit(read(folder, GOOD), lambda stage, job, marked: told.append((stage.name, job, marked)))
    assert ids == {"prepare": 101, "pretrain": 102, "evaluate": 103}
    assert told == [("prepare", 101, True), ("pretrain", 102, True), ("evaluate", 103, True)]
    assert "--dependency=afterok:102,afterany:101" in slurm()[2]


@pytest.mark.parametrize(("fail_at", "cancelled"), [(1, None), (2, ["101"]), (3, ["101", "102"])])
def test_a_later_failure_cancels_what_was_submitted(folder, slurm, monkeypatch, fail_at, cancelled):
    monkeypatch.setenv("FAIL_AT", str(fail_at))
    with pytest.raises(pipeline.StageError, match="Invalid partition") as caught:
        pipeline.submit(read(folder, GOOD), lambda *_: None)
    calls = slurm()
    assert len([c for c in calls if c[0] == "sbatch"]) == fail_at
    assert [c[1:] for c in calls if c[0] == "scancel"] == ([cancelled] if cancelled else [])
    assert ("cancelled what had been submitted: prepare (101)" in str(caught.value)) is (cancelled is not None)
    assert ("nothing was submitted" in str(caught.value)) is (cancelled is None)


@pytest.mark.parametrize(
    ("said", "error", "code"),
    [
        ("sbatch: error: Batch job submission failed: Invalid account", pipeline.StageError, 1),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", SlurmError, 69),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", SlurmError, 69),
    ],
)
def test_refused_is_told_apart_from_unanswered(folder, slurm, tmp_path, said, error, code):
    (tmp_path / "bin/sbatch").write_text(f"#!/bin/sh\necho '{said}' >&2; exit 1\n")
    with pytest.raises(error, match="nothing was submitted") as caught:
        pipeline.submit(read(folder, GOOD), lambda *_: None)
    assert caught.value.exit_code == code and said[-20:] in str(caught.value)


def test_jobs_that_can_not_be_cancelled_are_named(folder, slurm, monkeypatch, tmp_path):
    monkeypatch.setenv("FAIL_AT", "2")
    (tmp_path / "bin/scancel").write_text("#!/bin/sh\necho no >&2; exit 1\n")
    with pytest.raises(pipeline.StageError, match=r"could not be cancelled \(no\): prepare \(101\)"):
        pipeline.submit(read(folder, GOOD), lambda *_: None)


@pytest.mark.parametrize(
    ("script", "marked"),
    [
        ("#!/bin/sh\n#SBATCH --comment=mine\n", False), ("#!/bin/sh\n#SBATCH --com=mine\n", False),
        ("#!/bin/sh\ntrue\n#SBATCH --comment=late\n", True), ("#!/bin/sh\n# SBATCH --comment=x\n", True),
    ],
)  # fmt: skip
def test_a_comment_of_the_users_own_stays(folder, slurm, script, marked):
    (folder / "prepare.sh").write_text(script)
    pipeline.submit(read(folder, GOOD), lambda *_: None)
    assert any(word.startswith("--comment=wh=1") for word in slurm()[0]) is marked


@pytest.mark.parametrize(
    ("script", "table", "refused"),
    [
        ("#!/bin/sh\n#SBATCH --comment=mine\n", "demand='640G'", True),
        ("#!/bin/sh\n", "demand='640G'\noptions=['--comment=mine']", True),
        ("#!/bin/sh\n#SBATCH --comment=mine\n", "demand='640G'\nnodes=2", False), ("#!/bin/sh\n", "demand='640G'", False),
    ],
)  # fmt: skip
def test_a_demand_that_would_get_lost_is_refused(folder, script, table, refused):
    (folder / "prepare.sh").write_text(script)
    text = f"[stage.a]\nscript='prepare.sh'\n{table}\n"
    if not refused:
        assert read(folder, text).stages[0].demand == 655360.0
        return
    with pytest.raises(InputError, match=r"stage a: demand can't be passed on.*#WORKHORSE demand=.*nothing was submitted"):
        read(folder, text)


@pytest.mark.parametrize(
    ("comment", "told"), [("wh=1;g=a;d=655360", True), ("(null)", True), ("wh=1;m=avoid;g=a;d=655360", False)]
)
def test_a_demand_that_nobody_turned_into_nodes_is_told(folder, slurm, tmp_path, comment, told):
    (tmp_path / "bin/squeue").write_text(f"#!/bin/sh\necho '{comment}'\n")
    (tmp_path / "bin/squeue").chmod(stat.S_IRWXU)
    (folder / "pipeline.toml").write_text("[stage.a]\nscript='prepare.sh'\ndemand='640G'\n")
    done = CliRunner().invoke(group.workhorse, ["submit", str(folder / "pipeline.toml")])
    assert done.exit_code == 0 and done.stdout == "a: job 101\n"
    assert ("not turned into a node count" in done.stderr) is told


def test_command_line(folder, slurm):
    (folder / "pipeline.toml").write_text(GOOD)
    runner = CliRunner()
    done = runner.invoke(group.workhorse, ["submit", str(folder / "pipeline.toml"), "--dry-run"])
    assert done.exit_code == 0 and slurm() == []
    assert "--dependency=afterok:<pretrain>,afterany:<prepare>" in done.output and "'$(id)'" in done.output
    done = runner.invoke(group.workhorse, ["submit", str(folder / "pipeline.toml"), "--parsable"])
    assert done.output == "prepare|101\npretrain|102\nevaluate|103\n"


def test_a_name_that_is_in_use_is_told_and_can_be_another(folder, slurm, monkeypatch):
    (folder / "pipeline.toml").write_text(GOOD)
    marks = {state: mark.text(mark.Mark(mode="avoid", pipeline="llama")) for state in ("RUNNING", "PENDING", "COMPLETED")}
    other = mark.text(mark.Mark(mode="avoid", pipeline="llama-2x"))
    found = [job(i, state=state, comment=text) for i, (state, text) in enumerate(marks.items(), 7)]
    asked = []
    monkeypatch.setattr(jobs, "load", lambda user: asked.append(user) or [*found, job(20, comment=other), job(21, comment="x")])
    call = ["submit", str(folder / "pipeline.toml"), "--parsable"]
    done = CliRunner().invoke(group.workhorse, call)
    assert done.exit_code == 0 and asked == [str(os.geteuid())]
    assert "jobs 7, 8 of yours belong to a pipeline llama, too" in done.stderr
    assert done.stdout == "prepare|101\npretrain|102\nevaluate|103\n"
    done = CliRunner().invoke(group.workhorse, [*call, "--name", "llama-2"])
    assert done.exit_code == 0 and done.stderr == ""
    comments = [word for words in slurm() for word in words if word.startswith("--comment=")]
    assert [mark.parse(word[10:]).pipeline for word in comments] == ["llama"] * 3 + ["llama-2"] * 3
    with pytest.raises(InputError, match="--name 'a b': 1 to 64 letters"):
        CliRunner().invoke(group.workhorse, [*call, "--name", "a b"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ('["--depend=singleton"]', "--dependency"), ('["-HW"]', "--wait"), ('["--wra=ls"]', "--wrap"),
        ('["-HM", "other"]', "--clusters"), ('["-N1", "other.sh"]', "a word that is none"),
        ('["-N1", "--"]', "a word that is none"),
        ('["-J"]', "lacks its value"), ('["-p", "gpu", "--exclude"]', "lacks its value"),
    ],
)  # fmt: skip
def test_options_are_checked_as_sbatch_reads_them(folder, words, told):
    """Shortened or joined they mean the same; after a stray word ours would be arguments of another script."""
    with pytest.raises(InputError, match=told):
        read(folder, f"[stage.a]\nscript='eval.sh'\noptions={words}")


@pytest.mark.parametrize("line", ["#SBATCH --wait", "#SBATCH -N1 -W", "#SLURM -W"])
def test_a_script_that_waits_for_its_job_is_refused(folder, line):
    (folder / "eval.sh").write_text(f"#!/bin/sh\n{line}\ntrue\n")
    with pytest.raises(InputError, match="--wait"):
        read(folder, "[stage.a]\nscript='eval.sh'")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_ended_between_stages_nothing_stays_behind(folder, slurm, number):
    before = signal.signal(number, signal.SIG_DFL)  # nohup has the tests ignore it
    try:
        with pytest.raises(pipeline.StageError, match="cancelled what had been submitted"):
            pipeline.submit(read(folder, GOOD), lambda *_: os.kill(os.getpid(), number))
    finally:
        signal.signal(number, before)
    calls = slurm()
    assert [c[0] for c in calls] == ["sbatch", "scancel"] and calls[1][1:] == ["101"]


def test_a_terminal_that_is_gone_leaves_no_half_of_a_pipeline(folder, slurm):
    def tell(*_):
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(pipeline.StageError, match="Broken pipe; cancelled"):
        pipeline.submit(read(folder, GOOD), tell)
    assert [c[0] for c in slurm()] == ["sbatch", "scancel"]
