"""Every command has --json: one JSON object or list on stdout and nothing else there; messages and exit codes as without."""

import json

import pytest

from accounting.history import node_rows, store
from accounting.reports import metrics
from slurm_hook.common import terminal
from slurm_hook.common.errors import SlurmError
from slurm_hook.dispatch import daemon, passes
from slurm_hook.pipelines import pipeline
from tests import manual
from tests.process.test_commands_told import a_history, a_score
from tests.unit.test_bad_input import run as called

run = called
COMMANDS = dict(manual.commands())
HEADER, ROW = "JobIDRaw|Submit|State|NodeList", "777|900|COMPLETED|n1"
EVENT = '{"node": "n1", "time": 1000, "kind": "xid", "source": "h"}\n'
# command, its words, its exit code, what the object holds (... is anything)
DONE = (
    ("collect", ["--file", "{}/dump"], 0, {"clusters": ["c"], "attempts": 1, "new": 1, "rejected": 0, "reason": None,
                                           "nodes": None, "events": None, "suspects": [], "seconds": ..., "missing": ...}),
    ("collect", ["--file", "{}/broken"], 3, {"attempts": 1, "rejected": 1, "reason": ...}),
    ("refresh", [], 0, {"collected": ..., "cluster": "c", "nodes": 3, "method": "attributed", "path": "{}/public/scores.json"}),
    ("report", ["-o", "{}/r.html"], 0, {"path": "{}/r.html", "cluster": "c", "nodes": 3, "decisions": 0}),
    ("mark", ["n[1-2]", "repaired", "--note", "new GPU"], 0, {"cluster": "c", "nodes": ["n1", "n2"], "mark": "repaired",
                                                              "holds": True, "end": None, "note": "new GPU"}),
    ("mark", ["--job", "40_1", "wrong"], 0, {"job": "40_1", "mark": "wrong", "holds": True}),
    ("mark", ["--list"], 0, {"cluster": "c", "marks": []}),
    ("import", ["{}/events"], 0, {"cluster": "c", "events": 1, "rejected": 0, "reason": None}),
    ("import", ["{}/odd"], 3, {"events": 0, "rejected": 1, "reason": ...}),
    ("db vacuum", [], 0, {"path": "{}/h.db", "attempts": 0, "keep_days": ..., "bytes_before": ..., "bytes_after": ...}),
    ("db rejects", [], 0, {"path": "{}/h.db", "total": 0, "rejects": []}),
    ("metrics", [], 0, {"path": None, "metrics": ...}),
    ("metrics", ["-o", "{}"], 0, {"path": "{}/workhorse.prom", "metrics": ...}),
    ("hints", [], 0, {"path": None, "hints": {"mode": "observe", "min_nodes": 2, "min_gpus": 0, "directives": 1}}),
    ("hints", ["-o", "{}"], 0, {"path": "{}/hints", "hints": ...}),
    ("dispatch", [], 0, {"waiting": 3, "changed": 2, "started_meanwhile": 1, "left": 0, "problems": ["job 5: no"]}),
    ("dispatch", ["--release"], 1, {"changed": 2, "problems": ["job 5: no"]}),
    ("disable", [], 0, {"path": "{}/disable", "given_back": 2}),
    ("enable", [], 0, {"path": "{}/disable", "was_disabled": False, "mode": "observe"}),
    ("submit", ["{}/p.toml", "-n"], 0, {"pipeline": "p", "dry_run": True, "stages": ...}),
    ("submit", ["{}/p.toml"], 0, {"pipeline": "p", "dry_run": False, "stages": [
        {"stage": "a", "after": {}, "job": 11, "marked": True},
        {"stage": "b", "after": {"a": "afterok"}, "job": 12, "marked": True}]}),
    ("score", ["--dry-run"], 0, None), ("nodes", [], 0, None), ("lemons", [], 0, None), ("doctor", [], 2, None),
    ("effect", [], 69, None), ("queue", [], 69, None), ("explain", ["7"], 0, None), ("plan", ["x.sh"], 69, None),
    ("backtest", ["--train", "1d", "--test", "30h"], 0, None),
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_it(name):
    (option,) = [param for param in COMMANDS[name].params if "--json" in param.opts]
    assert option.is_flag and option.help.startswith("print ") and "JSON" in option.help
    assert name in {row[0] for row in DONE}, "show below what it prints"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A history, scores and files to read; no Slurm, but what passes and sbatch would answer."""
    a_history(tmp_path)
    a_score(tmp_path)
    files = {
        "dump": f"{HEADER}\n{ROW}\n", "broken": f"{HEADER}\n{ROW}\nx|y|z|n1\n", "events": EVENT, "odd": "[]\n",
        "a.sh": "#!/bin/sh\n", "p.toml": '[stage.a]\nscript = "a.sh"\n[stage.b]\nscript = "a.sh"\nafter = ["a"]\n',
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    report = passes.Report(waiting=3, applied=2, started=1, problems=("job 5: no",))
    numbers = iter((11, 12))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(daemon, "guarded_pass", lambda settings: report)
    monkeypatch.setattr(passes, "release", lambda settings: report)
    monkeypatch.setattr(pipeline, "_submit_one", lambda words: next(numbers))
    return tmp_path


def filled(value, folder):
    """The same with the folder's path in it."""
    return json.loads(json.dumps(value).replace("{}/", f"{folder}/"))


@pytest.mark.parametrize(("name", "words", "code", "holds"), DONE, ids=[" ".join([row[0], *row[1]]) for row in DONE])
def test_what_it_prints(run, site, monkeypatch, name, words, code, holds):
    if name == "refresh":
        monkeypatch.setattr("accounting.cli.collect.from_slurm", from_slurm)
    words = [word.replace("{}", str(site)) for word in words]
    argv = [*name.split(), "--json", *words]
    found, out, err = run(*argv)
    assert found == code and "Traceback" not in err, (out, err)
    if holds is None:
        assert not out or json.loads(out, parse_constant=pytest.fail) is not None
        return
    assert out.count("\n") == 1, "one object on one line"
    values = json.loads(out, parse_constant=pytest.fail)
    assert holds.keys() <= values.keys()
    for key, value in holds.items():
        assert value is ... or values[key] == filled(value, site), (key, values)


def from_slurm(settings, stores, options):
    """In place of Slurm: the nodes that the history's own jobs show."""
    stores.default = "c"
    node_rows.infer(stores["c"])
    return store.Counts(attempts=5, new=2)


def test_the_nightly_run_scores_the_cluster_that_it_collects_whatever_others_there_are(run, site, monkeypatch):
    """A dump of another cluster in the same history ended it each night: it asked for -M."""
    monkeypatch.setattr("accounting.cli.collect.from_slurm", from_slurm)
    (site / "other").write_text((site / "dump").read_text())
    assert run("collect", "--file", str(site / "other"), "-M", "d")[0] in (0, 3)
    code, out, err = run("refresh", "--json")
    assert code == 0 and json.loads(out)["cluster"] == "c", err
    assert run("refresh", "-M", "nowhere")[0] == 2


def test_marks_as_rows(run, site):
    run("mark", "n1", "bad", "--at", "2026-01-31", "--note", "\x1b[2J'; DROP TABLE x")
    run("mark", "--job", "7", "wrong")
    marks = json.loads(run("mark", "--list", "--json")[1])["marks"]
    assert [(m["node"], m["job"], m["mark"], m["note"]) for m in marks] == [
        ("n1", None, "bad", "\x1b[2J'; DROP TABLE x"), (None, "7", "wrong", ""),
    ]  # fmt: skip
    plain = run("mark", "--list")[1].splitlines()
    assert plain[0].startswith("node n1 bad, 2026-01-3") and "\x1b" not in plain[0] and plain[1].startswith("job 7 wrong, ")
    gone = json.loads(run("mark", "n1", "bad", "--undo", "--json")[1])
    assert gone == {"cluster": "c", "nodes": ["n1"], "mark": "bad", "holds": False}


def test_a_line_for_each_pass(run, site, monkeypatch):
    def two_passes(settings, tell):
        tell(passes.Report(waiting=1))
        tell(passes.Report(waiting=2, left=1, problems=("job 5: no",)))

    monkeypatch.setattr(daemon, "watch", two_passes)
    code, out, err = run("dispatch", "--watch", "--json")
    first, second = map(json.loads, out.splitlines())
    assert (code, first["waiting"], second["waiting"], second["left"]) == (0, 1, 2, 1)
    assert err == "workhorse dispatch: job 5: no\n", "messages stay on stderr"
    assert run("dispatch", "--watch", "--json", "--quiet")[1] == ""


def test_what_is_done_is_told_where_slurm_is_silent(run, site, monkeypatch):
    def silent(settings):
        raise SlurmError("no answer")

    monkeypatch.setattr(passes, "release", silent)
    code, out, err = run("disable", "--json")
    assert (code, json.loads(out)) == (69, {"path": f"{site}/disable", "given_back": None}) and "no answer" in err
    assert json.loads(run("enable", "--json")[1])["was_disabled"] is True


def test_metrics_are_those_of_the_text(run, site):
    told = json.loads(run("metrics", "--json")[1])["metrics"]
    names = {line.partition("{")[0].partition(" ")[0] for line in run("metrics")[1].splitlines() if not line.startswith("#")}
    assert {one["name"] for one in told} == names
    assert {"name": "workhorse_history_attempts", "labels": {"cluster": "c"}, "value": 41.0} in told


def test_numbers_that_json_has_no_word_for(capsys):
    with pytest.raises(ValueError, match="JSON"):
        terminal.tell("", {"x": float("nan")}, as_json=True)
    found = metrics.Metrics()
    found.size.set(float("inf"))
    assert {"name": "workhorse_history_size_bytes", "labels": {}, "value": None} in found.values()
    assert capsys.readouterr().out == ""
