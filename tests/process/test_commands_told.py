"""The command line where things are wrong: one message with its mend and an exit code, never a traceback or an escape."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from accounting.cli import collect as cli
from accounting.history import collect, node_rows, store
from accounting.history.sqlite_words import look_at
from accounting.sources import events, node_inventory
from slurm_hook.cli import group as main
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import SlurmError, UsageError
from slurm_hook.published.snapshot import NodeScore, Scores, scores_to_json, write_json
from tests.accounting_rows import put, row, stores
from tests.process.test_sacct import slurm as stand_in
from tests.unit.test_bad_input import run as called

ROOT = Path(__file__).resolve().parents[2]
run, slurm = called, stand_in
NOW = int(time.time())
HOUR = 3600
READING = (
    ["score"], ["score", "--dry-run"], ["lemons"],
    ["backtest", "--train", "1d", "--test", "30h"], ["report", "-o", "{}/r.html"], ["explain", "1"],
    ["mark", "n1", "bad"], ["nodes", "-w", "n1", "--long"],
)  # fmt: skip


def a_history(folder, count=40):
    """Jobs of the last days, one of them an array's, on three nodes."""
    made = stores(folder / "h.db")
    rows = []
    for i in range(1, count):
        start = NOW - 60 * HOUR + i * HOUR
        when = {"Submit": str(start - 5), "Eligible": str(start - 5), "Start": str(start), "End": str(start + HOUR)}
        rows.append(row(i, **when, NodeList=f"n{i % 3 + 1}", State="FAILED" if i % 7 == 0 else "COMPLETED"))
    start = NOW - 20 * HOUR
    when = {"Submit": str(start - 9), "Start": str(start), "End": str(start + HOUR)}
    rows += [row(count + task, JobID=f"{count}_{task}", State="FAILED", NodeList=f"n{task}", **when) for task in (1, 2)]
    put(made, *rows)
    return made


def a_score(folder, **fields):
    (folder / "public").mkdir(exist_ok=True)
    node = NodeScore("n1", **{"capability": 1.0, "relative": 1.0, **fields})
    data = scores_to_json(Scores("s", "c", NOW, NOW, "attributed", Settings().hook_mapping(), {"n1": node}))
    write_json(str(folder / "public"), "scores.json", data)


# explain by label
@pytest.mark.parametrize(
    ("job", "code", "words"),
    [
        ("40_1", 0, "job 40_1: "), ("40_2", 0, "job 40_2: "), ("42", 0, "job 42: "), ("7", 0, "job 7: "),
        ("1", 1, "job 1: no failed"),
        ("40", 2, "40 is an array"), ("40_9", 1, "not in the history"), ("99", 1, "not in the history of cluster c"),
        ("1_2_3", 2, "not a job"), ("x", 2, "not a job"), ("", 2, "not a job"), ("٣", 2, "not a job"), ("-1", 2, ""),
    ],
)  # fmt: skip
def test_explain_by_label(run, tmp_path, monkeypatch, job, code, words):
    monkeypatch.setenv("PATH", "/nonexistent")
    a_history(tmp_path)
    found, out, err = run("explain", job)
    assert (found, words in out + err) == (code, True), (found, out, err)
    assert code == 2 or (out + err).count(f"job {job}: ") == 1, "said once"


@pytest.mark.parametrize(
    ("answer", "job", "label"),
    [
        ("12_3|15|root|RUNNING|n1|||", "12_3", "12_3"), ("12_3|15|root|RUNNING|n1|||", "15", "12_3"),
        ("12+1|13|root|RUNNING|n1|||", "12+1", "12+1"), ("12|12|root|RUNNING|n1|||", "12", "12"),
        ("12_[4-9]|12|root|PENDING||||", "12_4", "12_[4-9]"), ("12_0|13|root|RUNNING|n1|||", "12", None),
        ("12+0|12|root|RUNNING|n1|||", "12", None),
        ("12_[4-9%2]|12|root|PENDING||||", "12", None),
    ],
)  # fmt: skip
def test_what_slurm_says_of_a_label(slurm, answer, job, label):
    from slurm_hook.cli.explain import ask_slurm

    slurm.command("squeue", f"#!/bin/sh\necho '{answer}'\n")
    if label is None:
        member = answer.partition("|")[0].replace("[", "").partition("-")[0]
        with pytest.raises(UsageError, match=f"name one of its members, such as {re.escape(member)}$"):
            ask_slurm(job)
    else:
        assert ask_slurm(job).job == label


# marks of a clock that was ahead
@pytest.mark.parametrize(
    ("high", "deep", "backfill", "start"),
    [
        (NOW - HOUR, NOW - HOUR, None, NOW - 3 * HOUR), (NOW + 60, NOW - HOUR, None, NOW - 2 * HOUR),
        (NOW + 99 * HOUR, NOW - HOUR, None, NOW - 74 * HOUR), (NOW - HOUR, NOW + 99 * HOUR, None, NOW - 74 * HOUR),
        (NOW - HOUR, None, None, NOW - 72 * HOUR), (NOW - HOUR, NOW - HOUR, NOW + 99 * HOUR, NOW - 74 * HOUR),
    ],
    ids=["none", "a minute", "high", "deep", "never deep", "backfill"],
)  # fmt: skip
def test_marks_later_than_now(tmp_path, high, deep, backfill, start):
    made = stores(tmp_path / "h.db")["c"]
    made.conn.execute("UPDATE clusters SET high_water = ?, deep_read = ?, backfill_next = ?", (high, deep, backfill))
    hours = {"overlap_hours": 2, "deep_hours": 72, "first_days": 90}
    assert collect.next_start(made, NOW, **hours) == start
    made.set_high_water(NOW)
    assert made.high_water() <= max(NOW, high if high < NOW + 300 else 0)
    assert collect.from_the_future(made, NOW) is None


def test_a_clock_that_was_ahead_is_told_and_mended(slurm, run, tmp_path):
    stores(tmp_path / "h.db")["c"].set_high_water(NOW + 9999 * HOUR)
    code, _, err = run("collect")
    assert code == 0 and "in the future" in err and "collect -S" in err
    assert run("collect")[2] == ""
    assert stores(tmp_path / "h.db")["c"].high_water() < time.time() + 300


def test_inventory_of_a_clock_that_was_ahead_is_taken_back(tmp_path):
    """What a node has now counts, one row for each change, and a node that left is gone."""
    made = stores(tmp_path / "h.db")["c"]
    small, large = (node_inventory.NodeSpec("n1", memory_mib=mib) for mib in (1000, 2000))
    node_rows.save(made, [small, node_inventory.NodeSpec("n2")], NOW + 99 * HOUR, "scontrol")
    for minute in range(3):
        node_rows.save(made, [large], NOW + minute * 60, "scontrol")
    assert [(spec.name, spec.memory_mib) for spec in node_rows.present(made.db, "c")] == [("n1", 2000)]
    assert made.conn.execute("SELECT valid_from, memory_mib FROM node_specs WHERE memory_mib > 0").fetchall() == [(NOW, 2000)]
    assert made.conn.execute("SELECT max(last_seen), max(gone) FROM nodes").fetchone()[0] == NOW + 120


def test_a_cluster_has_one_name_however_it_is_written(slurm, run, tmp_path):
    slurm.command("scontrol", "#!/bin/sh\ncase $* in *config*) echo ClusterName = c;; esac\n")
    assert run("collect", "-M", "C")[0] == 0
    assert store.connect(str(tmp_path / "h.db")).execute("SELECT name FROM clusters").fetchall() == [("c",)]
    for several in ("all", "c,d", "ALL"):
        code, _, err = run("collect", "-M", several)
        assert code == 2 and "one cluster at a time" in err


def test_a_dump_is_of_one_cluster_under_the_name_that_slurm_has(run, tmp_path):
    """Later collects name it in lower case; else its jobs and its marks would part."""
    (tmp_path / "dump").write_text("JobIDRaw|JobID|State|Submit|NodeList\n1|1|COMPLETED|1700000000|n1\n")
    assert run("collect", "--file", str(tmp_path / "dump"), "-M", "C")[0] == 0
    assert store.connect(str(tmp_path / "h.db")).execute("SELECT name FROM clusters").fetchall() == [("c",)]
    assert run("collect", "--file", str(tmp_path / "dump"), "-M", "c,d")[0] == 2


def test_the_lock_of_a_history_is_one_whatever_leads_to_it_and_cuts_no_other_file(run, tmp_path):
    """In a folder where others write, a link of theirs could name any file."""
    a_history(tmp_path)
    (tmp_path / "link.db").symlink_to("h.db")
    with collect.one_at_a_time(str(tmp_path / "link.db")):
        assert run("mark", "n1", "bad")[0] == 75
    victim, lock = tmp_path / "victim", tmp_path / "h.db.lock"
    for plant in (lock.symlink_to, lock.hardlink_to):
        victim.write_text("precious")
        lock.unlink()
        plant(victim)
        assert run("mark", "n1", "bad")[0] == 1
        assert victim.read_text() == "precious"
    lock.unlink()
    os.mkfifo(lock)
    assert run("mark", "n1", "bad")[0] == 1


@pytest.mark.parametrize("words", [("lemons",), ("score", "--dry-run"), ("collect",), ("mark", "n1", "bad")], ids=" ".join)
def test_a_pipe_is_no_history(run, tmp_path, words):
    os.mkfifo(tmp_path / "h.db")
    code, _, err = run(*words)
    assert code != 0 and ("not a file" in err or "no history yet" in err or "not in PATH" in err)


# clusters that Slurm doesn't know
def test_a_mistyped_cluster_leaves_nothing(slurm, run, tmp_path):
    a_history(tmp_path)
    slurm.command(
        "scontrol", "#!/bin/sh\ncase $* in *typo*) echo no such cluster >&2; exit 1;; *config*) echo ClusterName = c;; esac\n"
    )
    assert run("collect", "-M", "typo")[0] == 69
    assert run("collect", "-M", "c\x1b[2J")[0] in (2, 69)
    assert store.connect(str(tmp_path / "h.db")).execute("SELECT name FROM clusters").fetchall() == [("c",)]
    assert run("score", "--dry-run")[0] == 0
    stores(tmp_path / "h.db")["ghost"]  # as older versions left them
    for words in (["score", "--dry-run"], ["lemons"], ["mark", "n1", "bad"]):
        assert run(*words)[0] == 0
    code, _, err = run("score", "--dry-run", "-M", "other")
    assert code == 2 and "no such cluster" in err and "c" in err


@pytest.mark.parametrize(
    ("words", "code", "said", "mark"),
    [
        (["-E", "2020-01-01"], 2, "before", None), (["-S", "2015-01-01", "-E", "2015-01-05"], 0, "", None),
        (["-E", "now-1day"], 0, "", -24 * HOUR), ([], 0, "", 0),
    ],
    ids=["before all", "long ago", "a day ago", "now"],
)  # fmt: skip
def test_where_a_mark_is_set(slurm, run, tmp_path, words, code, said, mark):
    found, _, err = run("collect", *words)
    assert (found, said in err) == (code, True), err
    high = store.connect(str(tmp_path / "h.db")).execute("SELECT max(high_water) FROM clusters").fetchone()[0]
    assert high is None if mark is None else abs(high - (time.time() + mark)) < 60


# the database
def damage(path):
    """Spoil all pages but the first few, as a bad disk would."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        for at in range(4096 * 3, size, 4096):
            file.seek(at)
            file.write(b"\xa5" * 4096)


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_damaged_pages(run, tmp_path, monkeypatch, words):
    monkeypatch.setenv("PATH", "/nonexistent")
    a_history(tmp_path)
    a_score(tmp_path)
    store.connect(str(tmp_path / "h.db")).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    damage(tmp_path / "h.db")
    code, out, err = run(*[word.format(tmp_path) for word in words])
    assert code == 1 and str(tmp_path / "h.db") in err and "restore a copy" in err, (code, out, err)


@pytest.mark.parametrize("words", [w for w in READING if w[0] not in ("mark",) and w != ["score"]], ids=" ".join)
def test_reading_needs_no_writing(run, tmp_path, monkeypatch, words):
    """A copy on a file system that can't be written, as SQLite sees it: neither -wal nor -shm can be made."""
    monkeypatch.setenv("PATH", "/nonexistent")
    a_history(tmp_path)
    a_score(tmp_path)
    store.connect(str(tmp_path / "h.db")).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    real = sqlite3.connect

    def only_immutable(name, *args, **kwargs):
        if "h.db" in str(name) and "immutable" not in str(name):
            raise sqlite3.OperationalError("unable to open database file")
        return real(name, *args, **kwargs)

    monkeypatch.setattr("accounting.history.sqlite_words.sqlite3.connect", only_immutable)
    with pytest.raises(sqlite3.OperationalError):
        sqlite3.connect(str(tmp_path / "h.db"))
    code, out, err = run(*[word.format(tmp_path) for word in words])
    assert code in (0, 1) and "can't be opened" not in err and (code == 0 or words[0] == "explain"), (code, out, err)


def test_what_lies_in_the_log_is_not_overlooked(tmp_path):
    made = a_history(tmp_path)
    assert (tmp_path / "h.db-wal").stat().st_size
    assert look_at(str(tmp_path / "h.db")).execute("SELECT count(*) FROM attempts").fetchone() == (41,)
    made["c"].conn.close()


def test_another_program_s_database_is_refused(run, tmp_path):
    with sqlite3.connect(tmp_path / "h.db") as conn:
        conn.execute("CREATE TABLE photos (name TEXT)")
    (tmp_path / "d").write_text("JobIDRaw|Submit|State|NodeList\n")
    for words in (["collect", "--file", tmp_path / "d"], ["score"], ["lemons"]):
        code, _, err = run(*words)
        assert code == 1 and "another program (it has photos)" in err
    with sqlite3.connect(tmp_path / "h.db") as conn:
        assert conn.execute("SELECT name FROM sqlite_master").fetchall() == [("photos",)]


@pytest.mark.parametrize(
    ("message", "anew"),
    [
        ("database or disk is full", False), ("disk I/O error", False), ("unable to open database file", False),
        ("attempt to write a readonly database", False), ("database is locked", False),
        ("database disk image is malformed", True), ("file is not a database", True),
    ],
)  # fmt: skip
def test_only_a_damaged_history_is_to_be_replaced(tmp_path, message, anew):
    from accounting.doctor import checks, site_checks

    def broken(host):
        raise sqlite3.OperationalError(message)

    host = checks.Host(Settings({"history.path": str(tmp_path / "h.db")}))
    check = checks.Check("history", "", broken)
    (_, answer), = checks.run([check], host)  # fmt: skip
    told = store.explain("h.db", sqlite3.OperationalError(message))
    for text in (answer.mend, told):
        assert ("anew" in text) == anew and (anew or any(w in text for w in ("room", "end it", "mount"))), text
    assert message in told and site_checks.ANEW == checks.ANEW


# what reaches a terminal
EVIL = "\x1b[31mevil\x07\nx"


@pytest.mark.parametrize("words", [["nodes"], ["nodes", "-P"], ["nodes", "-w", "n1", "--long"], ["nodes", "--json"]])
def test_names_of_published_nodes(run, tmp_path, monkeypatch, words):
    monkeypatch.setenv("PATH", "/nonexistent")
    a_score(tmp_path, switch=EVIL, gpu_type=EVIL + "|", gpus=1, partitions=(EVIL,))
    code, out, _ = run(*words)
    assert code == 0 and not {c for c in out if not c.isprintable()} - {"\n"} and "evil" in out
    assert words != ["nodes", "-P"] or [line.count("|") for line in out.splitlines()[:2]] == [11, 11]


# settings
@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[(key, value) for key in ("scoring.window_days", "scoring.half_life_days", "slurm.timeout", "steer.max_age_hours")
          for value in (float("nan"), float("inf"), -1.0)],
        ("scoring.window_days", 0), ("steer.max_excluded", float("nan")), ("dispatch.period", float("inf")),
        ("history.first_days", 10**9), ("events.reasons", {"hardware": 5}), ("outcomes.exit_codes", {"abc": "wrong"}),
        ("outcomes.exit_codes", {"0:x": "wrong"}), ("outcomes.exit_codes", {"٣": "wrong"}),
        ("outcomes.exit_codes", {"999": "wrong"}),
        ("outcomes.states", {"FAILED": 5}), ("match.partitions", [1, 2]), ("match.accounts", [""]), ("match.qos", [["a"]]),
        *[("scoring.gpu_mem", {"a100": value}) for value in ("x", -1, 0, True, float("nan"), None)],
        ("history.path", ""), ("history.path", " "), ("publish.path", ""), ("dispatch.state", ""), ("history.path", "a\0b"),
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_mean_nothing(key, value):
    with pytest.raises(UsageError, match=key.replace(".", r"\.")):
        Settings({key: value})


def test_settings_that_may_be():
    Settings(
        {
            "publish.metrics": "",
            "match.name": "",
            "outcomes.exit_codes": {"75": "wrong", "0:9": "silent"},
            "match.partitions": ["llm"],
            "scoring.gpu_mem": {"b200": 180_000},
            "events.reasons": {},
        }
    )


def test_no_score_never_takes_the_place_of_some(run, tmp_path):
    a_history(tmp_path)
    a_score(tmp_path)
    before = (tmp_path / "public" / "scores.json").read_bytes()
    with sqlite3.connect(tmp_path / "h.db") as conn:
        conn.execute("UPDATE tasks SET start = start - 900 * 86400, end = end - 900 * 86400")
        conn.execute("UPDATE attempts SET start = start - 900 * 86400, end = end - 900 * 86400")
        conn.execute("INSERT INTO node_specs (node_id, valid_from, memory_mib, source) SELECT id, 0, 9000, 'file' FROM nodes")
    code, _, err = run("score")
    assert code == 1 and "not published" in err and "remove scores.json" in err
    assert (tmp_path / "public" / "scores.json").read_bytes() == before
    (tmp_path / "public" / "scores.json").unlink()
    assert run("score")[0] == 0


# options
LATER = "now+9999999999999999weeks"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["collect", "--file", "{}/d", "--delimiter", ""], 1, "--delimiter ''"), (["collect", "--file", ""], 1, "empty path"),
        (["collect", "--db", "", "--file", "{}/d"], 2, "--db ''"), (["score", "--as-of", "²"], 2, "not a time"),
        (["score", "--as-of", LATER], 2, "not a time"), (["score", "--as-of", "now+1hour"], 2, "future"),
        (["lemons", "--as-of", "now+1day"], 2, "future"), (["backtest", "--as-of", "tomorrow"], 2, "future"),
        (["report", "--as-of", "now+1day"], 2, "future"), (["report", "--as-of", "now-99999999999days"], 2, "1970"),
        (["report", "--as-of", "uts999999999999"], 2, "2286"), (["explain", "7", "--as-of", "now+1day"], 2, "future"),
        (["mark", "n1", "bad", "--at", LATER], 2, "not a time"), (["mark", "n1", "bad", "--at", "now+999days"], 2, "year"),
        (["mark", "n1", "bad", "--note", "x" * 50_000], 2, "50000"), (["collect", "-S", LATER], 2, "not a time"),
        (["db", "vacuum", "--keep-days", "9" * 30], 2, "keep-days"),
        (["backtest", "--train", "9" * 12 + "d"], 2, "length of time"),
        (["backtest", "--train", "²d"], 2, "length of time"), (["nodes", "--scores", "{}/dir"], 1, "not a regular file"),
        (["collect", "--file", "{}/d", "--nodes", "/typo"], 1, "No such file"),
        (["collect", "--file", "{}/d", "--events", "{}/d"], 1, "no event in it"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else None,
)  # fmt: skip
def test_options(slurm, run, tmp_path, words, code, said):
    a_history(tmp_path)
    (tmp_path / "dir" / "scores.json").mkdir(parents=True)
    (tmp_path / "d").write_text("|".join(["JobIDRaw", "Submit", "State", "NodeList"]) + "\n777|900|COMPLETED|n1\n")
    found, out, err = run(*[word.format(tmp_path) for word in words])
    assert (found, said in err, out) == (code, True, ""), (found, out, err)
    count = store.connect(str(tmp_path / "h.db")).execute("SELECT count(*) FROM attempts WHERE job_id = 777").fetchone()
    assert count == (0,), "what is refused has stored nothing"


def test_backtest_of_a_past_without_failures(run, tmp_path):
    a_history(tmp_path)
    code, out, _ = run("backtest", "--train", "1d", "--test", "30h")
    assert code == 0 and "no node-caused failures" in out and "nan" not in out
    code, out, _ = run("backtest", "--train", "1d", "--test", "30h", "--json")
    assert code == 0 and json.loads(out, parse_constant=pytest.fail)["auc"]["scores"]["value"] is None


# streams
def shell(command, folder):
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "WORKHORSE_CONFIG": str(folder / "w.toml"),
        "PYTHON": sys.executable,
    }
    script = 'W() { "$PYTHON" -m slurm_hook.cli "$@"; }; ' + command
    return subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("W nodes > /dev/full", 1, "stdout can't be written (No space left on device)"), ("W nodes >&-", 1, "stdout is closed"),
        ("W collect --file - <&-", 1, "empty"), ("W nodes --scores /nope 2> /dev/full", 1, ""),
        ("W nodes -o x 2> /dev/full", 2, ""), ("W nodes -o x 2>&-", 2, ""), ("W nodes | head -c 1", 0, ""),
    ],
)  # fmt: skip
def test_streams(run, tmp_path, command, code, said):
    a_score(tmp_path)
    done = shell(command, tmp_path)
    assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr, done


# missing packages
@pytest.mark.parametrize("words", [["75"], ["--since", "x", "-S", "now"], ["-h"], []])
def test_a_command_whose_packages_are_missing(words, capsys):
    absent = main._absent("report", "numpy")
    with pytest.raises((SystemExit, click.exceptions.Exit, main.WorkhorseError)) as left:
        absent.main(words, standalone_mode=False) if words != ["-h"] else absent.main(["--help"])
    shown = capsys.readouterr().out
    if words == ["-h"]:
        assert "Write a page: nodes, failures, who broke what" in shown and "numpy is missing" in " ".join(shown.split())
    else:
        assert "install slurm-workhorse[accounting]" in str(left.value)
    assert absent.get_short_help_str(200) == f"{main.IN_A_LINE['report']} (controller only)"


# nothing to be done, and too little to say
def test_a_history_of_a_few_failures_says_so(run, tmp_path):
    a_history(tmp_path, count=20)
    assert "too little history to tell nodes apart" in run("score", "--dry-run")[2]


def test_what_sacct_must_name(slurm):
    from accounting.sources import sacct

    for text in ("", "JobID JobName"):
        slurm.say("fields", text)
        with pytest.raises(SlurmError, match="--helpformat"):
            sacct.known_fields(5)


def test_reasons_are_texts():
    with pytest.raises(UsageError, match="in quotes"):
        events.Reasons({"hardware": 5})
    assert cli.Beside


def test_without_slurm(run, tmp_path, monkeypatch):
    """One cause is told once, and where dumps are read."""
    monkeypatch.setenv("PATH", "/nonexistent")
    code, _, err = run("collect")
    assert code == 69 and "collect --file" in err
    code, out, _ = run("doctor")
    assert code == 2 and out.count("can't be seen") <= 1 and out.count("mend what --check slurm") == 1
    a_history(tmp_path)
    (tmp_path / "h.db").chmod(0o600)
    assert "the history is of dumps" in run("doctor", "--check", "collected")[1]
    stores(tmp_path / "h.db")["c"].set_high_water(NOW + 9999)
    code, out, _ = run("doctor", "--check", "collected")
    assert code == 2 and "in the future" in out


def test_slurm_that_fails_says_where_dumps_are_read(slurm, run):
    slurm.command("scontrol", "#!/bin/sh\necho 'no answer' >&2; exit 1\n")
    for words in (["collect"], ["refresh"]):
        code, _, err = run(*words)
        assert code == 69 and "no answer" in err and "(for a dump: workhorse collect --file)" in err


def test_metrics_leave_no_halves(run, tmp_path, monkeypatch):
    """A path of odd signs, and a disk that is full when the file is written."""
    odd = tmp_path / "q?a#b%41"
    odd.mkdir()
    a_history(odd)
    (tmp_path / "w.toml").write_text(f"[publish]\npath = '{tmp_path}/public'\n[history]\npath = '{odd}/h.db'\n")
    assert 'workhorse_history_attempts{cluster="c"} 41.0' in run("metrics")[1]

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("accounting.reports.metrics.os.fchmod", full)
    (tmp_path / "m").mkdir()
    code, _, err = run("metrics", "-o", tmp_path / "m")
    assert code == 1 and "No space left" in err and list((tmp_path / "m").iterdir()) == []


@pytest.mark.parametrize(("mode", "said"), [("observe", "no excluded nodes are changed"), ("avoid", "")])
def test_dispatch_says_what_its_mode_leaves_out(run, tmp_path, monkeypatch, mode, said):
    from slurm_hook.dispatch import daemon, passes

    (tmp_path / "w.toml").write_text(f"[steer]\nmode = '{mode}'\n")
    monkeypatch.setattr(daemon, "guarded_pass", lambda settings: passes.Report(waiting=0))
    code, out, _ = run("dispatch")
    assert code == 0 and said in out and (said or "mode" not in out)
    assert run("dispatch", "-q")[1] == ""
