"""`workhorse explain`: the decision from the job's mark, the nodes from the snapshots, and nothing of other users' jobs."""

import json
import time

import pytest
from click.testing import CliRunner

from slurm_hook.cli import explain as cli_explain
from slurm_hook.cli import workhorse
from slurm_hook.common.config import Settings
from slurm_hook.explain import job as explain
from slurm_hook.published.mark import Mark, text
from slurm_hook.published.snapshot import NodeScore, Scores, scores_to_json, write_json

SCORES = Scores("snap1", "alpha", time.time(), time.time(), "attributed", Settings().hook_mapping(), {
    "n1": NodeScore("n1", capability=1.0, relative=0.02, lemon=True, tasks=9),
    "n2": NodeScore("n2", capability=5.0, relative=1.1, tasks=12),
    "n3": NodeScore("n3"),
})  # fmt: skip


def job(**fields):
    return explain.JobFacts(**{"job": "7", "user": "alice", "state": "RUNNING", "nodes": ("n2", "n3"), **fields})


AVOID, STEER = text(Mark("avoid", "snap1", 3)), text(Mark("steer", "snap1", 3))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, ["was not touched", "steer=off"]),
        ({"comment": "my own words"}, ["Job 7 has a Comment of its own", "left alone while it waits."]),
        ({"comment": "my own words", "excludes": ("n1", "n2")}, ["Left out by its user or by us: n[1-2]."]),
        ({"comment": "my own words", "named": ("n1", "n2")}, ["was not touched: its user named the nodes (n[1-2])."]),
        ({"comment": AVOID, "excludes": ("n1",)}, ["mode avoid", "snapshot snap1", "by us: n1 (1 node)."]),
        ({"comment": AVOID, "excludes": ("n1", "n2")}, ["by us: n[1-2] (2 nodes)."]),
        ({"comment": AVOID, "excludes": ()}, ["Nothing is left out for it: it can't do without"]),
        ({"comment": AVOID, "excludes": ("n1",)}, ["n1: capability 0.02 times the median, lemon, 9 tasks"]),
        ({"comment": text(Mark("avoid", "snap1", 3, "n3")), "excludes": ("n1", "n3")}, ["us: n1 (1 node)", "its user: n3"]),
        ({"comment": STEER, "excludes": ()}, ["drawn by probability", "Nothing is left out for it now"]),
        (
            {"comment": STEER, "excludes": (), "named": ("n2", "n3")},
            ["drawn by probability", "Its node list is ours: n[2-3] ([steer]"],
        ),
        ({"comment": text(Mark("control", "snap1", 3)), "excludes": ()}, ["untouched on purpose"]),
        ({"comment": AVOID, "excludes": None}, ["mode avoid"]),
    ],
)
def test_decisions_in_words(facts, words):
    said = "\n".join(explain.decision_words(job(**facts), SCORES))
    assert all(word in said for word in words), said


@pytest.mark.parametrize(("mode", "word"), [("observe", "mode is observe"), ("off", "mode is off"), ("steer", "steer=off")])
def test_a_site_that_only_observes_says_so(mode, word):
    assert word in explain.decision_words(job(excludes=()), SCORES, mode)[0]


def test_nodes_in_words_worst_first():
    assert explain.nodes_words(job(nodes=("n2", "n1", "n3")), SCORES) == [
        "It is RUNNING on n[1-3].",
        "  n1: capability 0.02 times the median, lemon, 9 tasks", "  n3: no capability of its own, 0 tasks",
        "  n2: capability 1.1 times the median, 12 tasks",
    ]  # fmt: skip
    assert explain.nodes_words(job(nodes=(), state="PENDING"), None) == ["It is PENDING and has no nodes yet."]


def test_a_long_list_of_excludes_ends_with_a_count_and_one_task_is_one():
    nodes = {f"m{i:02}": NodeScore(f"m{i:02}", capability=float(i), relative=i / 4, tasks=1) for i in range(1, 16)}
    many = Scores("snap1", "alpha", 0.0, 0.0, "published", {}, nodes)
    said = explain.decision_words(job(comment=STEER, excludes=tuple(nodes), nodes=()), many)
    assert said[1:3] == ["Left out by us: m[01-15] (15 nodes).", "  m01: capability 0.25 times the median, 1 task"]
    assert said[-1] == "  … and 3 more, none of them known to be worse"
    assert not any("Nothing is left out" in line for line in explain.decision_words(
        job(comment=STEER, excludes=(), named=("n2",)), SCORES))  # fmt: skip


def test_rows_are_read_with_hostile_comments():
    found = explain.from_squeue("7|7|alice|RUNNING|n[2-3]|n1||wh=1;m=avoid|root|x\n8|8|bob|PENDING||||\n")
    assert found == explain.JobFacts("7", "alice", "RUNNING", ("n2", "n3"), "wh=1;m=avoid|root|x", ("n1",), 7)
    assert explain.from_squeue("7|7|alice|PENDING||(null)||(null)\n").excludes == ()
    assert explain.from_squeue("7|7|alice|PENDING|||n[1-2]|\n").named == ("n1", "n2")
    assert explain.from_squeue("slurm_load_jobs error: Invalid job id specified\n") is None
    row = explain.from_sacct("7|7|alice|CANCELLED by 12|None assigned|a|b|c\n8|8|bob|X|n1|\n")
    assert (row.user, row.state, row.nodes, row.comment) == ("alice", "CANCELLED", (), "a|b|c")
    assert explain.from_sacct("") is None


def slurm(folder, user, state="PENDING"):
    """A squeue that knows job 7 of this user."""
    path = folder / "squeue"
    row = f"7|7|{user}|{state}||n1||{text(Mark('avoid', 'snap1', 3))}"
    path.write_text(f"#!/bin/sh\necho '{row}'\n")
    path.chmod(0o755)


def test_a_component_is_asked_for_by_its_own_number(site):
    """Slurm gives the row of the first component for 7+1."""
    rows = {7: "7+0|7|root|COMPLETED|n1|||", 8: "7+1|8|root|COMPLETED|n2|||"}
    path = site / "squeue"
    cases = "".join(f"*' -j {number} '*) echo '{row}';; " for number, row in rows.items())
    path.write_text(f'#!/bin/sh\ncase " $* " in {cases} *) exit 1;; esac\n')
    path.chmod(0o755)
    assert [cli_explain.ask_slurm(label).nodes for label in ("7+0", "7+1", "8")] == [("n1",), ("n2",), ("n2",)]
    path.write_text("#!/bin/sh\necho '9|8|root|COMPLETED|n3|||'\n")  # numbers that don't follow each other
    assert cli_explain.ask_slurm("7+1") is None


@pytest.fixture
def site(tmp_path, monkeypatch):
    (tmp_path / "snapshots").mkdir()
    write_json(str(tmp_path / "snapshots"), "snap1.json", scores_to_json(SCORES))
    (tmp_path / "w.toml").write_text(f"[publish]\npath = '{tmp_path}'\n[history]\npath = '{tmp_path}/none.db'\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    return tmp_path


def test_replayed_from_the_kept_snapshot(site):
    slurm(site, "root")
    shown = CliRunner().invoke(workhorse, ["--config", str(site / "w.toml"), "explain", "7"])
    assert shown.exit_code == 0 and "n1: capability 0.02 times the median, lemon" in shown.output, shown.output
    told = json.loads(CliRunner().invoke(workhorse, ["--config", str(site / "w.toml"), "explain", "7", "--json"]).output)
    assert told["excludes"] == ["n1"] and told["blame"] is None and told["words"]


def test_a_log_that_is_not_for_users_is_passed_over(site, monkeypatch):
    """As on a host where the controller's log lies: private, and the default of --log."""
    slurm(site, "root")
    log = site / "workhorse.log"
    log.touch()
    monkeypatch.setattr("os.access", lambda path, *_: str(path) not in (str(log), str(site / "none.db")))
    shown = CliRunner().invoke(workhorse, ["--config", str(site / "w.toml"), "explain", "7", "--log", str(log)])
    assert shown.exit_code == 0 and "mode avoid" in shown.output, shown.output


def test_others_are_told_nothing(site, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 65534)
    slurm(site, "someone-else")
    shown = CliRunner().invoke(workhorse, ["--config", str(site / "w.toml"), "explain", "7"], standalone_mode=False)
    assert "another user's" in str(shown.exception) and "lemon" not in shown.output


@pytest.mark.parametrize(("state", "told"), [("PENDING", False), ("RUNNING", False), ("COMPLETED", True), ("FAILED", True)])
def test_nobody_is_blamed_for_a_job_that_has_not_ended(site, monkeypatch, state, told):
    from accounting.reports.job_story import Verdict

    slurm(site, "root", state)
    (site / "none.db").touch()
    verdict = Verdict("7", "none", (), 0.0, "job 7: not in the history of cluster alpha; if it is new, the next collect reads it")
    monkeypatch.setattr(cli_explain, "_blame", lambda *_: verdict)
    shown = CliRunner().invoke(workhorse, ["--config", str(site / "w.toml"), "explain", "7"])
    assert shown.exit_code == 0 and ("the next collect" in shown.output) == told, shown.output


@pytest.mark.parametrize("name", ["../../etc/passwd", ".hidden", "gone"])
def test_a_snapshot_name_is_no_path(site, name):
    from slurm_hook.cli.explain import archived

    assert archived(Settings({"publish.path": str(site)}), name) is None
    assert archived(Settings({"publish.path": str(site)}), "snap1").id == "snap1"
