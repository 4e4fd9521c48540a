"""`nodes --long`: the words hold the published numbers, and others' jobs show only to who may read the history."""

import json
import time

import pytest
from click.testing import CliRunner

from accounting.history.columns import WRONG
from accounting.reports import long
from accounting.reports.story import Failure, Story, failures_of
from accounting.scoring.attributed_method import attribute
from slurm_hook.cli import workhorse
from slurm_hook.common.terminal import printable
from slurm_hook.published.snapshot import NodeScore, Scores
from tests import history_made
from tests.unit.histories import history

NOW = 1_800_000_000.0


def scores(**node):
    nodes = {"a": NodeScore("a", **node)}
    nodes |= {f"n{i}": NodeScore(f"n{i}", capability=float(i), relative=i / 5, reliability=100.0 * i) for i in range(1, 10)}
    return Scores("snap", "alpha", NOW - 7200, NOW, "attributed", {}, nodes)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({}, ["No capability of its own", "9 nodes that have one"]),
        ({"capability": 4.5, "relative": 0.9, "low": 0.1, "high": 12345.0},
         ["0.9 times the median (90 %: 0.1 to over 99)", "of 10 scored nodes 4 are"]),
        ({"capability": 1.0}, ["of 10 scored nodes 0 are worse and 8 better"]),
        ({"capability": 2.0}, ["of 10 scored nodes 1 is worse and 7 better"]),
        ({"capability": -0.5, "relative": -0.1}, ["-0.1 times the median: of 10 scored nodes 0 are worse and 9 better"]),
        ({"capability": 0.0, "relative": 0.0}, ["of 10 scored nodes 0 are worse and 9 better"]),
        ({"capability": 1.0, "reliability": 41.0}, ["41 h of heavy work per failure", "the median node has 500 h"]),
        ({"capability": 1.0, "lemon": True}, ["Lemon: almost surely"]),
        ({"suspect_until": NOW + 600}, ["Suspect until 2027-01-15"]),
        ({"suspect_until": NOW - 600}, ["Neither lemon nor suspect."]),
        ({"breakdown": 0.25, "capability": 1.0}, ["Wear: 25.0% of its time in overload"]),
        ({"gpus": 8, "gpu_type": "a100", "cpus": 64, "mem": 1024000, "partitions": ("llm",), "switch": "leaf3", "tasks": 1234},
         ["8 × a100, 64 CPUs, 1,024,000 MiB; partitions llm, switch leaf3.", "From 1,234 tasks", "2.0 h old."]),
    ],
)  # fmt: skip
def test_words_hold_the_published_numbers(node, words):
    made = scores(**node)
    text = "\n".join(long.score_words(made.nodes["a"], made, NOW))
    for word in words:
        assert word in text, text


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    dump, nodes = history_made.write(folder, 30, 600, {2}, end=time.time())
    config = folder / "w.toml"
    (folder / "public").mkdir()
    config.write_text(f"[history]\npath = '{folder}/h.db'\n[publish]\npath = '{folder}/public'\n")
    how = ["--delimiter", "\x1f", "--nodes", str(nodes), "--timezone", "UTC", "-M", "alpha"]
    for words in (["collect", "--file", str(dump), *how], ["score"]):
        done = CliRunner().invoke(workhorse, ["--config", str(config), *words])
        assert done.exit_code == 0, done.output
    return config


def test_who_may_read_the_history_sees_the_failures(site):
    shown = CliRunner().invoke(workhorse, ["--config", str(site), "nodes", "-w", "n0003", "--long"])
    assert shown.exit_code == 0
    text = shown.output
    assert text.startswith("n0003\n") and "Lemon" in text and "this node" in text and "Heavy group" in text and "of user" in text
    assert all(ch.isprintable() or ch == "\n" for ch in text), "job names with escapes reach no terminal"


def test_what_a_node_is_charged_with_comes_first():
    def failure(number, blame, known=False, work="alice/train"):
        return Failure(NOW + number, number, 2, blame, 1 - blame, known, "alice", work)

    charged = [failure(1, 1.0, known=True), failure(2, 0.5, work="alice/" + "x" * 300)]
    node = Story("a", (), (*charged, *(failure(n, 0.01) for n in range(3, 40))), (), 100.0, 50.0, 77)
    lines = long.story_words(node)
    assert "job 2 of alice/xxx" in lines[1] and "50% this node, 50% the job itself" in lines[1] and len(lines[1]) < 150
    assert "job 1 of alice/train on 2 nodes: known to be this node's doing." in lines[2]
    assert lines[3] == "75 failures touched it of which it bears less than 10% each; the last ones:"
    assert [line.split(" job ")[1][:2] for line in lines[4:]] == ["39", "38", "37"]
    assert "failures touched" not in "".join(long.story_words(Story("a", (), tuple(charged), (), 1.0, 1.0, 2)))


def test_failures_that_a_node_is_charged_with_are_never_thinned_away():
    rows = [
        {"nodes": [0], "start": 2.0 * n, "end": 2.0 * n + 1, "outcome": WRONG, "culprit": 0 if n < 3 else -1} for n in range(99)
    ]
    h = history(rows, as_of=240.0)
    told = failures_of(h, attribute(h), 0)
    assert len(told) == 60 and [f.known for f in told[:4]] == [True, True, True, False]
    assert [f.time for f in told] == sorted(f.time for f in told)


def test_who_may_not_sees_counts_only(site, monkeypatch):
    monkeypatch.setattr(long, "history_readable", lambda settings: False)
    monkeypatch.setattr(long, "own_jobs", lambda node, now: [f"own jobs of {node}"])
    shown = CliRunner().invoke(workhorse, ["--config", str(site), "nodes", "-w", "n0003,n0004", "--long", "--json"])
    told = json.loads(shown.output)
    assert [node["name"] for node in told] == ["n0003", "n0004"] and told[0]["lemon"] is True
    assert told[0]["words"][-1] == "own jobs of n0003" and "user" not in " ".join(told[0]["words"])


def test_a_page_about_every_node_is_not_what_anybody_wants(site):
    shown = CliRunner().invoke(workhorse, ["--config", str(site), "nodes", "--long"], standalone_mode=False)
    assert "with -w" in str(shown.exception)


def test_own_jobs_are_told_from_sacct(tmp_path, monkeypatch):
    sacct = tmp_path / "sacct"
    sacct.write_text('#!/bin/sh\nprintf "%s\\n" "7|COMPLETED" "8|FAILED" "9|CANCELLED by 12" "10|FAILED" "junk"\n')
    sacct.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert long.own_jobs("n1", NOW) == ["Your own jobs here in 30 days: 1 CANCELLED (9); 1 COMPLETED (7); 2 FAILED (8, 10)."]
    sacct.write_text("#!/bin/sh\nexit 1\n")
    assert long.own_jobs("n1", NOW) == []


@pytest.mark.parametrize(
    ("text", "shown"), [("caf\udce9", "caf\\xe9"), ("a\x1b[2J", "a\\x1b[2J"), ("\u202e", "\\x202e"), ("é\n", "é\n")]
)
def test_what_no_terminal_should_get_is_shown_as_what_it_is(text, shown):
    assert printable(text) == shown
