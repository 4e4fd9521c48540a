"""lemons, explain and backtest from a database, as an admin calls them."""

import json
import os
import sqlite3
import subprocess
from contextlib import closing

import pytest
from click.testing import CliRunner

from accounting.cli import lemons, marks
from accounting.cli.lemons import how_it_failed
from accounting.history.store import connect
from accounting.reports import contents
from accounting.reports.job_story import FAILED, MARKED, STEP_FAILED
from accounting.scoring import carried
from accounting.scoring.attributed_method import attribute
from slurm_hook.cli import workhorse
from slurm_hook.common.errors import InputError, UsageError
from tests.accounting_rows import put, row, stores

DAY = 86_400
T0 = 1_760_000_000
AS_OF = T0 + 90 * DAY


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """90 days on 10 nodes; n1 kills a job every fourth day, of three users in turn, and Slurm names it each second time.

    The names of the jobs that die aren't even UTF-8."""
    path = tmp_path_factory.mktemp("db") / "history.db"
    made = stores(path)
    rows, job = [], 1
    for day in range(90):
        for n in range(1, 11):
            at = T0 + day * DAY
            fields = {
                "Submit": str(at - 60), "Eligible": str(at - 60), "Start": str(at), "End": str(at + 20 * 3600),
                "NodeList": f"n{n}", "JobName": f"run{job}",
                "User": ["alice", "bob", "carol"][job % 3], "AllocTRES": "cpu=8,mem=60000M,node=1",
            }  # fmt: skip
            if n == 1 and day % 4 == 0:
                named = {"State": "NODE_FAIL", "FailedNode": "n1"} if day % 8 == 0 else {"State": "FAILED", "ExitCode": "1:0"}
                fields.update({"End": str(at + 9 * 3600), "JobName": "caf\udce9 <script>'; DROP TABLE attempts; --", **named})
            rows.append(row(job, **fields))
            job += 1
    put(made, *rows)
    return str(path)


def call(database, *words):
    moment = ["--db", database, "--as-of", f"uts{AS_OF}"]
    result = CliRunner().invoke(workhorse, [words[0], *moment, *words[1:]], catch_exceptions=False)
    return result


def test_lemons_names_the_node_the_jobs_and_the_command(database):
    result = call(database, "lemons")
    assert result.exit_code == 0
    assert result.output.startswith("n1: fails ")
    assert "3 users" in result.output
    assert "fewer failures in 30 days" in result.output
    assert 'scontrol update NodeName=n1 State=DRAIN Reason="workhorse: ' in result.output
    assert "script" not in result.output  # job names are private and hostile


def test_lemons_runs_no_command_and_drains_nothing(database, monkeypatch):
    """Whatever it finds, no process is started: a person enters the command."""

    def started(*args, **more):
        raise AssertionError(f"started {args}")

    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr(os, "posix_spawn", started)
    monkeypatch.setattr(os, "system", started)
    assert call(database, "lemons").exit_code == 0


def test_a_node_that_left_the_cluster_is_no_lemon_to_drain(database, tmp_path):
    """Nor does the report tell of it; before it left, it was one."""
    path = str(tmp_path / "history.db")
    with closing(sqlite3.connect(database)) as db:
        db.execute("VACUUM INTO ?", (path,))
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE nodes SET gone = ? WHERE name = 'n1'", (AS_OF - 86400,))
        db.commit()
    assert call(path, "lemons").output == "cluster c: no lemons among 9 nodes\n"
    earlier = CliRunner().invoke(workhorse, ["lemons", "--db", path, "--as-of", f"uts{AS_OF - 2 * 86400}"])
    assert earlier.output.startswith("n1: fails ")
    page = tmp_path / "report.html"
    assert ": cluster c, 9 nodes, 0 lemons, " in call(path, "report", "-o", str(page)).output
    assert "NodeName=n1 " not in page.read_text()


def test_whoever_tells_of_scores_has_the_threshold_that_they_have(database, tmp_path, monkeypatch):
    """It is kept for 30 days: else `lemons` could deny what `nodes` calls one."""
    path, used = str(tmp_path / "history.db"), []
    with closing(sqlite3.connect(database)) as db:
        db.execute("VACUUM INTO ?", (path,))
    carried.keep_threshold(connect(path), "c", "attributed/auto", AS_OF - DAY, 0.77)
    for module in (lemons, contents):
        monkeypatch.setattr(module, "attribute", lambda history, chosen, *more: used.append(chosen) or attribute(history, chosen))
    for words in (["lemons"], ["explain", "1"], ["report", "-o", str(tmp_path / "r.html")]):
        CliRunner().invoke(workhorse, [words[0], "--db", path, "--as-of", f"uts{AS_OF}", *words[1:]])
    assert [chosen.heavy_threshold for chosen in used] == [0.77] * 3
    assert "<b>77%</b>" in (tmp_path / "r.html").read_text()


def test_lemons_as_json(database):
    data = json.loads(call(database, "lemons", "--json").output)
    assert [x["name"] for x in data["lemons"]] == ["n1"]
    assert data["lemons"][0]["probability"] > 0.95
    assert data["suspects"] == {} and data["groups"] == [] and data["outliers"] == []


@pytest.mark.parametrize(
    ("job", "words", "code"),
    [
        (1 + 10 * 88, "n1, 100%:", 0),  # named by Slurm
        (1 + 10 * 84, "n1, ", 0),  # not named: the likeliest
        (2, "no failed attempt", 1),
        (999_999, "not in the history", 1),
    ],
)
def test_explain(database, job, words, code):
    result = CliRunner().invoke(workhorse, ["explain", "--db", database, "--as-of", f"uts{AS_OF}", str(job)])
    assert (words in result.output) or (words in str(result.exception))
    assert (result.exit_code != 0) == (code != 0)


def test_backtest(database):
    result = call(database, "backtest", "--train", "60d", "--test", "30d")
    assert result.exit_code == 0
    assert "10 nodes; scored on 60 days, tested on the 30 that followed" in result.output
    assert "weeks of steering" in result.output
    data = json.loads(call(database, "backtest", "--json").output)
    assert data["auc"]["scores"]["value"] == 1.0
    assert data["failed_nodes"] == 1


def test_before_the_history_began_nothing_is_known(database):
    result = CliRunner().invoke(workhorse, ["lemons", "--db", database, "--as-of", "2020-01-01"])
    assert isinstance(result.exception, UsageError) and "nothing ran in the 90 days before it" in str(result.exception)


@pytest.mark.parametrize(
    ("state", "mark", "how"), [("COMPLETED", True, MARKED), ("COMPLETED", False, STEP_FAILED), ("FAILED", False, FAILED)]
)
def test_how_a_job_failed(tmp_path, state, mark, how):
    made = stores(tmp_path / "h.db")
    put(made, row(7, State=state))
    if mark:
        marks.mark_job(made[""], "7", "wrong", "loss is NaN")
    assert how_it_failed(made[""].db, "c", 7) == (how, 0.0 if how == FAILED else 900.0)


def test_backtest_usage(database):
    result = CliRunner().invoke(workhorse, ["backtest", "--db", database, "--as-of", f"uts{AS_OF}", "--train", "long"])
    assert result.exit_code != 0


def _small(tmp_path, *ends):
    """A quiet history of 12 days on four nodes with each fifth job of a user failing by itself, and these attempts in it."""
    path = tmp_path / "small.db"
    made = stores(path)
    rows = [
        _ran(
            100 + i,
            86 + i // 12,
            2 * (i % 12),
            1.5,
            f"n{i % 4 + 1}",
            User=f"u{i % 3}",
            State="FAILED" if i % 5 == 0 else "COMPLETED",
        )
        for i in range(40)
    ]
    put(made, *rows, *ends)
    return str(path)


def _ran(number, day, hour, hours, nodes, **fields):
    at = T0 + day * DAY + hour * 3600
    return row(number, **{
        "Submit": str(at), "Eligible": str(at), "Start": str(at), "End": str(int(at + hours * 3600)), "NodeList": nodes,
        "JobName": f"x{number}", "AllocTRES": "cpu=8,mem=60000M,node=1", **fields,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("state", "nodes", "words"),
    [
        ("NODE_FAIL", "n1", "n1, 100%: its only node, and Slurm lost it"),
        ("NODE_FAIL", "n[1-3]", "unknown; the job itself 0%"),
        ("FAILED", "n1", "the job itself, "),
    ],
)
def test_who_broke_a_job_whose_node_was_lost_was_not_the_job(tmp_path, state, nodes, words):
    """Without events nobody names the node, as in a dump that came without them."""
    path = _small(tmp_path, _ran(7, 88, 0, 0.05, nodes, State=state, User="u1"))
    assert f"job 7: {words}" in call(path, "explain", "7").output


@pytest.mark.parametrize(("between", "words"), [(30, "job 7: no failed attempt"), (0, "job 7: n1, 100%")])
def test_a_number_that_was_used_before_is_another_job(tmp_path, between, words):
    """The job of that number now ended well; a month before one of another user lost its node. A requeue follows at once."""
    first = _ran(7, 88 - between, 0, 2, "n1", State="NODE_FAIL", User="u1")
    path = _small(tmp_path, first, _ran(7, 88, 2, 1, "n2", State="COMPLETED", User="u2"))
    # the requeued attempt that ended well has nothing to do with how the one before it failed
    try:
        said = call(path, "explain", "7").output
    except InputError as err:
        said = str(err)
    assert words in said and "completed" not in said
