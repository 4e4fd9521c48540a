"""What dumps, JSON files and imports can hold: one odd row costs that row, and is told."""

import bz2
import gzip
import json
import lzma
import re
import shlex
import time
from datetime import datetime

import pytest

from accounting.history import collect, store
from accounting.sources import dump, json_dump, records
from slurm_hook.cli import group
from tests.accounting_rows import ORDINARY, put, row, stores

NOW = int(time.time())
JOB = {
    "job_id": 1, "cluster": "c", "name": "n", "user": "u", "account": "a", "partition": "p", "qos": "q", "nodes": "n1",
    "time": {"submission": 1000, "eligible": 1000, "start": 1010, "end": 2000, "elapsed": 990, "limit": 60},
    "state": {"current": ["COMPLETED"]}, "exit_code": {"return_code": 0}, "allocation_nodes": 1, "steps": [],
    "tres": {"allocated": [{"type": "cpu", "name": "", "count": 4}]},
}  # fmt: skip


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Call the command line: exit code, stdout, stderr."""
    (tmp_path / "public").mkdir()
    (tmp_path / "w.toml").write_text(
        f"[publish]\npath = '{tmp_path}/public'\n[history]\npath = '{tmp_path}/h.db'\nfirst_days = 3\n"
    )
    monkeypatch.setenv("WORKHORSE_CONFIG", str(tmp_path / "w.toml"))

    def call(*argv):
        with pytest.raises(SystemExit) as left:
            group.main([str(word) for word in argv])
        return (left.value.code, *capsys.readouterr())

    return call


def text_of(*rows, header=None):
    return "\n".join("|".join(r) for r in [header or json_dump.HEADER, *rows]) + "\n"


ODD = [
    {"name": 5}, {"name": ["a"]}, {"name": {"a": 1}}, {"user": 7}, {"nodes": ["n1"]}, {"partition": [1]}, {"cluster": 7},
    {"failed_node": 7}, {"state": 5}, {"state": {"current": [None]}}, {"state": {"current": []}}, {"steps": 5}, {"steps": [5]},
    {"job_id": float("inf")}, {"job_id": float("nan")}, {"job_id": "x"}, {"job_id": None}, {"job_id": -5}, {"time": 5},
    {"time": {**JOB["time"], "submission": 1e30}}, {"time": {**JOB["time"], "submission": float("inf")}},
    {"time": {**JOB["time"], "submission": 999999999999999999}}, {"time": {**JOB["time"], "start": float("-inf")}},
    {"tres": 5}, {"tres": {"allocated": [5]}}, {"array": 5}, {"het": {"job_id": {"number": 1}, "job_offset": []}, "array": [1]},
]  # fmt: skip


@pytest.mark.parametrize("odd", [*({**JOB, **odd} for odd in ODD), None, 5, "x", [], {}], ids=lambda job: str(job)[-60:])
def test_one_odd_job_costs_itself(tmp_path, odd):
    into = stores(tmp_path / "h.db")
    rejects = []
    rows = json_dump.rows({"meta": {"slurm": {"version": [1]}}, "jobs": [odd, {**JOB, "job_id": 99}]}, rejects.append)
    counts = collect.store_rows(into, json_dump.HEADER, rows, source="j")
    counts += collect.keep_rejects(into, "j", rejects)
    found = into["c"].conn.execute("SELECT job_id FROM attempts").fetchall()
    assert (99,) in found and counts.rejected == 1 and len(found) == 1, found


def test_json_at_large(run, tmp_path):
    path = tmp_path / "j.json"
    huge = json.dumps({**JOB, "job_id": 2}).replace('"job_id": 2', '"job_id": ' + "9" * 5000)
    half = json.dumps({**JOB, "job_id": 3, "name": "\ud800x"})
    path.write_bytes(b"\xef\xbb\xbf" + f'{{"meta": [], "jobs": [{huge}, {half}, {json.dumps(JOB)}]}}'.encode())
    code, out, err = run("collect", "--file", path)
    assert (code, err) == (3, "") and "2 new" in out and "1 row set aside" in out
    names = store.connect(str(tmp_path / "h.db")).execute("SELECT job_id, job_name FROM job_history ORDER BY 1").fetchall()
    assert names == [(1, "n"), (3, "\ufffdx")]


def test_byte_order_marks(run, tmp_path):
    """Spreadsheets and Windows write one: the same jobs again, and not under numbers of their own."""
    rows = [row(1), row(15, JobID="12_3")]
    (tmp_path / "a").write_text(text_of(*rows))
    (tmp_path / "b").write_text("\ufeff" + text_of(*rows) + "\ufeff" + text_of(*rows))
    (tmp_path / "nodes").write_text("\ufeffNodeName=n1 CPUTot=8 RealMemory=9000\n")
    (tmp_path / "events").write_text("\ufeffc|n1|100|200|DOWN|Not responding|root\n")
    assert "2 new" in run("collect", "--file", tmp_path / "a")[1]
    code, out, _ = run("collect", "--file", tmp_path / "b", "--nodes", tmp_path / "nodes", "--events", tmp_path / "events")
    assert code == 0 and "0 new, 0 changed" in out
    db = store.connect(str(tmp_path / "h.db"))
    assert db.execute("SELECT job_id FROM attempts ORDER BY 1").fetchall() == [(1,), (15,)]
    assert db.execute("SELECT memory_mib FROM node_current").fetchall() == [(9000,)]
    settings = tmp_path / "bom.toml"
    settings.write_text("\ufeff[steer]\nmode = 'avoid'\n")
    assert run("--config", settings, "db", "--help")[0] == 0


IMPORTS = [
    ('{"node": "n1", "time": 1000, "kind": "xid", "source": "h", "reason": "\\ud800"}', 0, "1 events"),
    ('{"node": "n1", "time": "0001-01-01T00:00:00Z", "kind": "xid", "source": "h"}', 3, "1970"),
    ('{"node": "n1", "time": "9999-12-31T00:00:00-12:00", "kind": "xid", "source": "h"}', 3, ""),
    ('{"node": "n1", "time": 1000, "end": 1e11, "kind": "bad", "source": "h"}', 3, "1970"),
    ('{"node": "n1", "time": 1e400, "kind": "xid", "source": "h"}', 3, "1970"),
    ('{"node": "n9", "time": 1000, "kind": "xid", "source": "h"}', 3, "n9 is not in the history"),
    ('\ufeff{"node": "n1", "time": 1000, "kind": "xid", "source": "h"}', 0, "1 events"),
    ('{"node": "\\ud800", "time": 1000, "kind": "xid", "source": "h"}', 3, "not a node name"),
]


@pytest.mark.parametrize(("line", "code", "words"), IMPORTS)
def test_imports(run, tmp_path, line, code, words):
    put(stores(tmp_path / "h.db"), row(1))
    good = '{"node": "n1", "time": 2000, "kind": "bad", "source": "good"}'
    (tmp_path / "e").write_text(f"{line}\n{good}\n")
    found, out, err = run("import", tmp_path / "e")
    db = store.connect(str(tmp_path / "h.db"))
    reasons = "".join(r[0] for r in db.execute("SELECT reason FROM rejects").fetchall())
    assert found == code and (words in reasons if code else "2 events read" in out), (out, err, reasons)
    assert db.execute("SELECT count(*) FROM node_events WHERE source = 'good'").fetchone() == (1,)


def dumped(**fields):
    return text_of(row(1, **fields), row(2))


NO_NODES = [name for name in json_dump.HEADER if name != "NodeList"]
DUMPS = [
    # text of the dump, exit code, words on stdout or stderr
    (
        dumped(NodeList="n[1-100001]"),
        3,
        "1 row set aside, see `workhorse db rejects` (first: node list 'n[1-1000",
    ),
    (dumped(Submit="999999999999999999"), 3, "1 row set aside"),
    (dumped(AllocTRES="cpu=1,mem=1E"), 3, "1 row set aside"),
    (dumped(AllocTRES="cpu=1,gres/gpu=100000000000000"), 3, "1 row set aside"),
    (dumped(End=str(int(time.time()) + 7200)), 0, "--timezone"),
    (dumped(Cluster="c\x1b[2J"), 3, "1 row set aside"),
    (text_of(), 0, "no rows"),
    (text_of(["1", "1", "c"], header=["JobIDRaw", "JobID", "Cluster"]), 1, "Submit"),
    (text_of(*[["7"] * len(NO_NODES)], header=NO_NODES), 1, "NodeList"),
    ("", 1, "empty"),
    ("\x00\x01binary\n", 1, "JobIDRaw"),
]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gzip.compress(dumped().encode()), "compressed; give it through a pipe: `zcat "),
        (lzma.compress(dumped().encode()), "compressed; give it through a pipe: `xzcat "),
        (bz2.compress(dumped().encode()), "compressed; give it through a pipe: `bzcat "),
        (dumped().encode("utf-16"), "UTF-16, as PowerShell writes it; give it through a pipe: `iconv "),
        (b"\x89PNG\x00", "in '\\x89PNG\\x00'"),
        (b"NodeName=n1\n", "no field JobIDRaw or JobID at delimiter '|' in 'NodeName=n1'"),
        (text_of(["1", "1"], header=["JobIDRaw", "JobID"]).encode(), "no field Submit, State, NodeList"),
    ],
)
def test_what_is_no_dump_is_told_and_leaves_nothing(run, tmp_path, data, words):
    (tmp_path / "dump").write_bytes(data)
    code, _, err = run("collect", "--file", tmp_path / "dump")
    assert (code, words in err) == (1, True), err
    assert not list(tmp_path.glob("h.db*"))


def test_a_mistyped_history_becomes_no_folder_and_no_database(run, tmp_path):
    (tmp_path / "dump").write_text(dumped())
    code, _, err = run("collect", "--file", tmp_path / "dump", "--db", tmp_path / "no" / "h.db")
    assert code == 1 and f"there is no folder {tmp_path}/no" in err and not (tmp_path / "no").exists()
    (tmp_path / "empty").touch()
    for command in (["score"], ["lemons"], ["mark", "n1", "bad"], ["db", "vacuum"], ["import", tmp_path / "dump"], ["backtest"]):
        code, _, err = run(*command, "--db", tmp_path / "empty")
        assert code == 1 and "no history yet" in err, command
    assert (tmp_path / "empty").stat().st_size == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nodes", "n"], "--nodes: is for a dump; name it with --file"),
        (["--timezone", "UTC"], "--timezone: is for a dump"),
        (["--file", "dump", "-S", "now-1days"], "-S: is for a running Slurm, not for --file"),
        (["--file", "dump", "-E", "now-1days"], "-E: is for a running Slurm, not for --file"),
        (["--delimiter", ";"], "--delimiter: is for a dump; name it with --file"),
    ],
)
def test_options_that_do_nothing_together_are_refused(run, options, words):
    code, _, err = run("collect", *options)
    assert code == 2 and words in err


def test_a_later_dump_without_names_is_of_the_same_cluster(run, tmp_path):
    header = [name for name in json_dump.HEADER if name != "Cluster"]
    for number, options in ((1, ("-M", "alpha")), (2, ()), (3, ("-M", "beta")), (4, ())):
        values = dict(zip(json_dump.HEADER, row(number)))
        (tmp_path / "dump").write_text(text_of([values[name] for name in header], header=header))
        assert run("collect", "--file", tmp_path / "dump", *options)[0] == 0
    told = store.connect(str(tmp_path / "h.db")).execute("SELECT cluster, job FROM job_history ORDER BY job_id").fetchall()
    assert told == [("alpha", "1"), ("alpha", "2"), ("beta", "3"), ("cluster", "4")]


def test_the_closing_line_tells_what_was_read(run, tmp_path):
    """CPUs come from AllocTRES where the dump has no AllocCPUS, as in the README's."""
    (tmp_path / "dump").write_text(dumped(AllocCPUS=""))
    (tmp_path / "nodes").write_text("NodeName=n1 CPUTot=8 RealMemory=9000\n")
    (tmp_path / "events").write_text("c|n1|100|200|DOWN|Not responding|root\nc|n1|300|400|DRAIN|x|root\n")
    beside = ("--nodes", tmp_path / "nodes", "--events", tmp_path / "events")
    code, out, _ = run("collect", "--file", tmp_path / "dump", *beside)
    assert code == 0 and "2 tasks written, 1 node, 2 node events in " in out
    db = store.connect(str(tmp_path / "h.db"))
    assert db.execute("SELECT DISTINCT a.cpus, t.cpus FROM attempts a JOIN tasks t ON t.attempt_id = a.id").fetchall() == [
        (8, 8.0)
    ]


@pytest.mark.parametrize(
    ("without", "missing"),
    [
        ((), []),
        (("JobIDRaw", "Cluster", "ExitCode", "Partition", "Account", "QOS", "AllocCPUS", "TimelimitRaw"), []),
        (("JobID",), ["JobID"]),
        (("User",), ["User"]),
        (("JobName",), ["JobName"]),
        (("Start",), ["Start"]),
        (("End",), []),  # the run time tells it
        (("End", "ElapsedRaw"), ["End or Elapsed"]),
        (("ReqMem",), []),
        (("AllocTRES",), ["AllocTRES"]),
        (("AllocTRES", "ReqMem"), ["AllocTRES or ReqMem", "AllocTRES"]),
        (("AllocNodes",), []),  # AllocTRES tells it
        (("AllocNodes", "AllocTRES", "User"), ["User", "AllocTRES", "NNodes or AllocTRES"]),
    ],
)
def test_fields_that_a_dump_lacks_are_told_once(run, tmp_path, without, missing):
    """Scores mean less then; the exit code stays."""
    names = [n for n in json_dump.HEADER if n not in without]
    at = [json_dump.HEADER.index(n) for n in names]
    path = tmp_path / "d"
    path.write_text(text_of(*[[r[i] for i in at] for r in (row(1), row(2))], header=names))
    code, out, err = run("collect", "--file", path)
    told = re.findall(r"no ([A-Z]\w+(?: or \w+)?) \(", err)
    assert (code, told) == (0, missing) and ": 2 attempts read" in out
    assert not missing or (err.startswith(f"workhorse: {path}: no ") and "`sacct -P -o`" in err and err.count("\n") == 1)
    code, out, again = run("collect", "--file", path, "--json")
    assert (code, list(json.loads(out)["missing"]), again) == (0, missing, err)


@pytest.mark.parametrize("name", ["NNodes", "AllocNodes", "nnodes"])
@pytest.mark.parametrize("lasted", ["Elapsed", "ElapsedRaw", "ELAPSED"])
def test_what_says_the_same_under_another_name_is_not_missing(name, lasted):
    header = ["JobID", "Submit", "State", "NodeList", "User", "Start", "ReqMem", "JobName", name, lasted]
    assert dump.lacking(header).keys() == {"AllocTRES"}


def test_nodes_are_counted_by_what_tells_them(run, tmp_path):
    names = [n for n in json_dump.HEADER if n != "AllocNodes"]
    one = dict(zip(json_dump.HEADER, row(1, NodeList="n[1-3]", AllocTRES="cpu=8,mem=8000M,node=3")))
    (tmp_path / "d").write_text(text_of([one[n] for n in names], header=names))
    assert run("collect", "--file", tmp_path / "d")[0] == 0
    assert store.connect(str(tmp_path / "h.db")).execute("SELECT nnodes FROM attempts").fetchall() == [(3,)]


@pytest.mark.parametrize(("text", "code", "words"), DUMPS)
def test_dumps(run, tmp_path, text, code, words):
    path = tmp_path / "dump"
    path.write_text(text)
    found, out, err = run("collect", "--file", path)
    assert (found, words in out + err) == (code, True), (found, out, err)
    assert "\x1b" not in out + err and (code != 1 or str(path) in err)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_epoch_times_need_no_zone(run, tmp_path, end):
    """What SLURM_TIME_FORMAT=%s saves means the same everywhere."""
    (tmp_path / "d").write_text(text_of(row(1)).replace("\n", end))
    assert run("collect", "--file", tmp_path / "d", "--timezone", "Asia/Tokyo")[0] == 0
    db = store.connect(str(tmp_path / "h.db"))
    assert db.execute("SELECT submit, start, end FROM attempts").fetchall() == [
        tuple(int(ORDINARY[k]) for k in ("Submit", "Start", "End"))
    ]


def test_two_headers_of_another_order_are_no_rows(tmp_path):
    path = tmp_path / "d"
    path.write_text(text_of(row(1)) + "\ufeff" + text_of(row(2)))
    with dump.open_dump(str(path)) as file:
        read = dump.Dump(file)
        assert [r[0] for r in read.rows(pytest.fail)] == ["1", "2"]


def test_rejects_are_shown_newest_first_and_touch_no_terminal(run, tmp_path):
    made = stores(tmp_path / "h.db")
    other = collect.Stores(made[""].db, made[""].path, "d")
    hostile = "JobName=\x1b]0;x\x07\nNodeList=n1\udcff " + "y" * 500
    made[""].add_rejects("sacct", [records.Reject("first", "a=1"), records.Reject("second", hostile)], NOW - 60)
    other[""].add_rejects("/tmp/\x1b[2Jdump", [records.Reject("of another", "b=2")], NOW)
    assert run("db", "rejects", "-M", "C")[1].count("from sacct") == 2, "as Slurm has it"
    code, out, err = run("db", "rejects")
    assert (code, err) == (0, "") and "\x1b" not in out and "\x07" not in out
    heads, texts = out.splitlines()[::2], out.splitlines()[1::2]
    assert [head.rsplit(": ", 1)[1] for head in heads] == ["of another", "second", "first"]
    when = datetime.fromtimestamp(NOW).astimezone().strftime("%Y-%m-%d %H:%M %z")
    assert heads[0] == f"{when} d from /tmp/\\x1b[2Jdump: of another" and texts[0] == "    b=2"
    assert "\\x1b]0;x\\x07\\x0aNodeList=n1\\xff y" in texts[1] and texts[1].endswith(f"y… ({len(hostile)} characters)")
    assert run("db", "rejects", "--limit", 1)[1].splitlines()[2:] == ["1 of 3 rows set aside; --limit shows more"]
    whole = json.loads(run("db", "rejects", "--limit", 2, "--json")[1])
    assert whole["total"] == 3 and [one["text"] for one in whole["rejects"]] == ["b=2", hostile]
    assert run("db", "rejects", "-M", "nowhere")[0] == 2 and run("db", "rejects", "--limit", 0)[0] == 2


def test_a_history_without_rejects_or_without_a_file(run, tmp_path):
    assert run("db", "rejects")[0] == 1 and not (tmp_path / "h.db").exists(), "who only looks makes none"
    put(stores(tmp_path / "h.db"), row(1))
    assert run("db", "rejects")[:2] == (0, "nothing was set aside\n")


def test_the_command_that_a_closing_line_names_shows_what_was_set_aside(run, tmp_path):
    path = tmp_path / "of another site's.db"
    (tmp_path / "dump").write_text(dumped(Submit="999999999999999999"))
    (tmp_path / "e").write_text("[]\n")
    for words in (["collect", "--file", tmp_path / "dump"], ["import", tmp_path / "e"]):
        code, out, _ = run(*words, "--db", path)
        named = shlex.split(out.split("see `workhorse ")[1].split("`")[0])
        assert code == 3 and run(*named)[1].splitlines()[0].endswith(out.split("(first: ")[1].rstrip().removesuffix(")"))
