"""Node events: sacctmgr's rows, reasons, imports, marks."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from accounting.history import event_rows
from accounting.sources import converters, events
from slurm_hook.cli import workhorse
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import ConfigError, UsageError
from tests.accounting_rows import put, row, stores

DATA = Path(__file__).parent.parent / "data"
CLASSIFY = events.Reasons(Settings()["events.reasons"])


@pytest.mark.parametrize("version", ["22.05", "24.11", "26.05"])
def test_recorded_events(version):
    text = (DATA / f"slurm-{version}" / "sacctmgr_events.psv").read_text("utf-8", "surrogateescape")
    found = list(events.parse(text, converters.Times(converters.timezone.utc), CLASSIFY, user_last=True))
    said = {e.node: (e.kind, e.reason, e.reason_class, e.who) for e in found}
    assert said["gpu6"] == ("drain", "drain for maintenance\nwith newline", "planned", "root(0)")
    assert said["gpu7"] == ("down", "xid 48: DBE | pipe in reason", "hardware", "root(0)")
    assert said["gpu3"][:2] == ("down", "fail test")
    assert "gpu1" not in said, "the registration at a cold start says nothing of a node"
    assert all(e.end is None or e.end >= e.start for e in found) and len(found) == 5


def test_own_order_with_hostile_reasons():
    reason = "a|b\nc|n2|100|200\n|DOWN|x"
    text = f"c|n1|1000|Unknown|DOWN*|root(0)|{reason}\nc|n2|1100|1200|IDLE+DRAIN|ops(7)|\nc||5|Unknown|||TRES\n"
    found = list(events.parse(text, converters.Times(), CLASSIFY))
    assert [(e.node, e.kind, e.start, e.end, e.who, e.reason) for e in found] == [
        ("n1", "down", 1000, None, "root(0)", reason),
        ("n2", "drain", 1100, 1200, "ops(7)", ""),
    ]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Xid 79: GPU has fallen off the bus", "hardware"),
        ("ECC uncorrectable", "hardware"),
        ("Not responding", "hardware"),
        ("Node unexpectedly rebooted", "hardware"),
        ("IB link flapping", "hardware"),
        ("nvlink down", "hardware"),
        ("maintenance of GPUs", "planned"),
        ("reboot requested", "planned"),
        ("replaced GPU 3", "repaired"),
        ("GPU 3 has been replaced", "repaired"),
        ("second line\ntells: disk replaced", "repaired"),
        ("RMA closed, board not replaced", "repaired"),
        ("GPU 3 to be replaced", "hardware"),
        ("DIMM needs replaced", "hardware"),
        ("bad disk,\nnot yet repaired", "hardware"),
        ("drained until swapped: nvme", "hardware"),
        ("unplanned power outage", "hardware"),
        ("unscheduled stop", "unknown"),
        ("scheduled stop", "planned"),
        ("Kill task failed", "user"),
        ("gone fishing", "unknown"),
        ("", "unknown"),
        ("technician", "unknown"),
    ],
)
def test_reason_classes(reason, kind):
    assert CLASSIFY(reason) == kind


@pytest.mark.parametrize(
    ("patterns", "words"), [({"hardware": "("}, "not a regular expression"), ({"soft": "x"}, "valid ones: hardware")]
)
def test_wrong_reason_settings(patterns, words):
    with pytest.raises(ConfigError, match=words):
        events.Reasons(patterns)


def test_saving_again_updates(tmp_path):
    store = stores(tmp_path / "h.db")["c"]
    event = events.Event("n1", "down", 100, None, "DOWN", "x", "unknown", "root", "slurmdbd")
    event_rows.save(store, [event])
    event_rows.save(store, [event._replace(end=200, reason="xid", reason_class="hardware")])
    rows = store.conn.execute("SELECT start, end, reason, reason_class FROM node_events").fetchall()
    assert rows == [(100, 200, "xid", "hardware")]


GOOD = [
    ({"node": "n1", "time": 1795958909, "kind": "drain", "source": "hc", "reason": "xid 1"}, ("drain", "hardware", None)),
    ({"node": "n1", "time": "2026-11-29T13:28:29Z", "kind": "repaired", "source": "hc"}, ("repaired", "unknown", None)),
    ({"node": "n1", "time": "2026-11-29T13:28:29+00:00", "kind": "xid 79", "source": "d"}, ("report", "hardware", 1795958909)),
    ({"node": "n1", "time": 1, "end": 5, "kind": "ticket", "source": "T", "reason": "fan"}, ("report", "hardware", 5)),
]
BAD = [
    ("{", "line 1"),
    ("[]", "not an object"),
    ("5", "not an object"),
    ('{"node": "n1"}', "'kind'"),
    ('{"node": "n 1", "time": 1, "kind": "x", "source": "y"}', "not a node name"),
    ('{"node": "n1", "time": "2026-11-29T13:28:29", "kind": "x", "source": "y"}', "has no zone"),
    ('{"node": "n1", "time": -5, "kind": "x", "source": "y"}', "not a time"),
    ('{"node": "n1", "time": 1e99, "kind": "x", "source": "y"}', "not a time"),
    ('{"node": "n1", "time": 9, "end": 3, "kind": "x", "source": "y"}', "end is before"),
    ('{"node": "n1", "time": 9, "kind": null, "source": "y"}', "no kind"),
    ('{"node": "n1", "time": 9, "kind": "x", "source": " "}', "no source"),
    ('{"node": null, "time": 9, "kind": "x", "source": "y"}', "not a node name"),
    ("[" * 99999, "line 1"),
]


@pytest.mark.parametrize(("item", "expected"), GOOD)
def test_import_of_good_lines(item, expected):
    rejects = []
    (event,) = events.parse_import([json.dumps(item), "", "  \n"], CLASSIFY, rejects.append)
    assert (event.kind, event.reason_class, event.end) == expected and not rejects


@pytest.mark.parametrize(("line", "words"), BAD)
def test_import_of_bad_lines(line, words):
    rejects = []
    assert list(events.parse_import([line], CLASSIFY, rejects.append)) == []
    assert words in rejects[0].reason


def test_reports_of_one_second_are_all_kept(tmp_path):
    """A GPU that falls off the bus logs several Xids at once. Read again they change nothing; a report stays hardware's."""
    store = stores(tmp_path / "h.db")["c"]
    told = [
        {"node": "n1", "time": 100, "kind": kind, "source": "dcgm", "reason": reason}
        for kind, reason in (("xid 79", ""), ("xid 63", "row remap"), ("note", "door open"), ("xid 79", ""))
    ]
    for _ in range(2):
        event_rows.save(store, list(events.parse_import(map(json.dumps, told), CLASSIFY, pytest.fail)))
    rows = store.conn.execute("SELECT kind, reason, reason_class FROM node_events").fetchall()
    assert rows == [("report", "xid 79; xid 63: row remap; note: door open", "hardware")]


@pytest.fixture
def db(tmp_path):
    path = str(tmp_path / "h.db")
    put(stores(path), row(1), row(15, JobID="14_3"), row(15, JobID="14_3", Submit="950"))
    return path


def run(*args):
    return CliRunner().invoke(workhorse, [str(a) for a in args])


def test_marks_of_several_nodes_are_listed_and_taken_off(db):
    put(stores(db), row(20, NodeList="n2"))
    assert run("mark", "n1\n n2\n", "bad", "--at", "2026-01-01", "--note", "PSU\n\x1b[2J", "--db", db).exit_code == 0
    assert run("mark", "n1", "bad", "--at", "2026-01-03", "--db", db).exit_code == 0
    assert run("mark", "--job", "14_3", "wrong", "--db", db).exit_code == 0
    told = run("mark", "--list", "--db", db).output.splitlines()
    assert [line.partition(" by ")[0].partition(",")[0] for line in told] == [
        "node n1 bad",
        "node n2 bad",
        "node n1 bad",
        "job 14_3 wrong",
    ]
    assert told[0].endswith(": PSU\\x0a\\x1b[2J")
    assert run("mark", "n1", "bad", "--undo", "--db", db).exit_code == 0
    assert run("mark", "--job", "14_3", "wrong", "--undo", "--db", db).exit_code == 0
    assert [line[:11] for line in run("mark", "--list", "--db", db).output.splitlines()] == ["node n1 bad", "node n2 bad"]
    for words, said in (
        (("n[1-2]", "repaired", "--undo"), "node 'n1' has no mark repaired"), (("n[1-99]", "bad"), "'n3' is not in the history"),
        (("--job", "14_3", "wrong", "--undo"), "job '14_3' has no mark wrong"), (("n[1", "bad"), "a bracket is not closed"),
        (("n1", "broken"), "'broken' is no mark of a node"), (("n1", "--list"), "--list: shows all marks"),
    ):  # fmt: skip
        done = run("mark", *words, "--db", db)
        assert done.exit_code != 0 and said in str(done.exception), words
    assert run("mark", "n[1-2]", "bad", "--undo", "--db", db).exit_code == 0
    assert run("mark", "--list", "--db", db).output == "no marks\n"


def test_mark_and_import_commands(db, tmp_path):
    assert run("mark", "n1", "repaired", "--note", "new fan", "--db", db).exit_code == 0
    assert run("mark", "n1", "ignore", "--at", "2026-01-01", "--until", "2026-01-02", "--db", db).exit_code == 0
    assert run("mark", "--job", "14_3", "wrong", "--db", db).exit_code == 0
    lines = tmp_path / "events.jsonl"
    lines.write_text(json.dumps(GOOD[0][0]) + "\nnonsense\n")
    for _ in range(2):
        done = run("import", lines, "--db", db)
        assert done.exit_code == 3 and "1 line set aside" in done.output
    conn = stores(db)["c"].conn
    kinds = conn.execute("SELECT kind, source, reason FROM node_events ORDER BY id").fetchall()
    assert kinds == [("repaired", "mark", "new fan"), ("ignore", "mark", ""), ("drain", "hc", "xid 1")]
    assert conn.execute("SELECT job_id, submit FROM job_marks").fetchall() == [(15, 950)]
    assert conn.execute("SELECT reason, text FROM rejects").fetchone()[1] == "nonsense"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["mark"], "mark what"),
        (["mark", "n1"], "mark what"),
        (["mark", "n1", "good"], "mark what"),
        (["mark", "n9", "bad"], "not in the history"),
        (["mark", "--job", "1", "right"], "only be marked wrong"),
        (["mark", "--job", "99", "wrong"], "not in the history"),
        (["mark", "n1", "ignore", "--until", "2001-01-01"], "not after"),
        (["mark", "n1", "bad", "-M", "other"], "it has c"),
        (["mark", "n1", "bad", "--at", "soon"], "not a time"),
        (["mark", "--job", "1", "wrong", "--until", "now+1days"], "of marks of nodes"),
        (["mark", "--job", "1", "wrong", "--at", "now-1days"], "of marks of nodes"),
        (["mark", "n1", "wrong", "--job", "1"], "name no node (n1)"),
        (["mark", "n1", "bad", "--undo", "--note", "x"], "takes the last such mark off"),
        (["mark", "--job", "1", "--undo"], "has no mark wrong"),
    ],
)
def test_mark_refuses(db, args, words):
    done = run(*args, "--db", db)
    assert isinstance(done.exception, UsageError) and words in str(done.exception)
