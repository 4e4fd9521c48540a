"""The database: what goes in comes out, once, whatever is broken meanwhile."""

import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import hostlist
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.history import bulk_writer, collect, maintenance, schema, store
from accounting.sources import records
from slurm_hook.cli import workhorse
from slurm_hook.common.errors import BusyError, StoreError
from tests.accounting_rows import put, row, stores

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def made(tmp_path):
    return stores(tmp_path / "h.db")


def all_of(made, sql):
    return made["c"].conn.execute(sql).fetchall()


def test_private_and_checked(made, tmp_path):
    assert stat.S_IMODE(os.stat(tmp_path / "h.db").st_mode) == 0o600
    conn = store.connect(str(tmp_path / "h.db")).conn
    assert conn.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert conn.execute("PRAGMA foreign_keys").fetchone() == (1,)
    with pytest.raises(sqlite3.IntegrityError):
        conn.execute("INSERT INTO tasks VALUES (99, 99, 1, 2, NULL, NULL, NULL, NULL, 1)")


def test_schema_tells_each_column(made):
    """Every table is known, and what its columns hold stands in the schema that the file itself carries."""
    for name, sql in all_of(
        made, "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '\\_%' ESCAPE '\\'"
    ):
        assert "INTEGER" in sql, name
    schema_text = "\n".join(r[0] or "" for r in all_of(made, "SELECT sql FROM sqlite_master"))
    for comment in ("never ran, charges no node", "divided evenly", "below 0 where a dump had JobID only"):
        assert comment in schema_text
    for view in ("task_history", "job_history", "node_current"):
        all_of(made, f"SELECT * FROM {view}")


def test_migrations_are_named_and_run_once(tmp_path):
    path = str(tmp_path / "h.db")
    for _ in range(2):
        names = [r[0] for r in store.connect(path).execute("SELECT name FROM _migrations")]
        assert names == [m.__name__ for m in schema.MIGRATIONS]


def test_newer_database_is_refused(tmp_path):
    path = str(tmp_path / "h.db")
    db = store.connect(path)
    db.execute("INSERT INTO _migrations VALUES ('m999_future', 1)")
    with pytest.raises(StoreError, match="newer version"):
        store.connect(path)


@pytest.mark.parametrize(
    "content", [b"this is no database at all, it is far too much text for that" * 99, b"SQLite format 3\0junk"]
)
def test_what_is_no_database_is_left_alone(tmp_path, content):
    path = tmp_path / "h.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged, or no SQLite file"):
        store.connect(str(path))
    assert path.read_bytes() == content


def test_again_changes_nothing_and_a_change_is_found(made):
    rows = [
        row(1, State="RUNNING", End="Unknown"),
        row(2),
        row("2.batch", MaxRSS="5G"),
        row(3, NodeList="n[1-3]", AllocNodes="3"),
    ]
    assert put(made, *rows)[:4] == (3, 3, 0, 5)
    before = all_of(made, "SELECT * FROM tasks")
    assert put(made, *rows)[:4] == (3, 0, 0, 0)
    assert all_of(made, "SELECT * FROM tasks") == before
    assert made["c"].open_jobs(9999) == [(1, 900)]
    assert put(made, row(1, State="FAILED", ExitCode="3:0"), *rows[1:])[:4] == (3, 0, 1, 1)
    assert made["c"].open_jobs(9999) == []
    assert all_of(made, "SELECT state, exit_code FROM job_history WHERE job = '1'") == [("FAILED", 3)]
    assert all_of(made, "SELECT end FROM tasks WHERE attempt_id = 1") == [(4600,)]


def test_same_id_again_is_another_attempt(made):
    """Requeue, resize, id reset and wrap-around: the submit time tells them apart."""
    put(
        made,
        row(7, State="REQUEUED"),
        row(7, Submit="4700", Start="4800", End="4900"),
        row(7, Submit="99000000", Start="99000100", End="99000200"),
    )
    assert len(all_of(made, "SELECT id FROM attempts WHERE job_id = 7")) == 3


def test_duplicate_rows_count_once(made):
    assert put(made, row(1), row(1), row(1, State="FAILED")).new == 1
    assert all_of(made, "SELECT state FROM job_history") == [("FAILED",)]


def test_steps_give_the_truth_per_node(made):
    put(
        made,
        row(1, NodeList="n[1-3]", AllocNodes="3", AllocCPUS="32", AllocTRES="cpu=32,mem=90G,node=3,gres/gpu=6"),
        row("1.batch", NodeList="n1", AllocTRES="cpu=16,mem=30G,gres/gpu=4,node=1", MaxRSS="7G"),
        row("1.extern", NodeList="n[1-3]", MaxRSS="1M", MaxRSSNode="n2"),
        row("1.0", NodeList="n[1-3]", MaxRSS="12G", MaxRSSNode="n3", NTasks="3"),
        row("1.interactive", NodeList="n[1-3]", MaxRSS="50G"),
    )
    found = all_of(made, "SELECT node, cpus, mem_mib, gpus, max_rss_mib, exact FROM task_history ORDER BY node")
    assert found == [("n1", 16, 30720, 4, 7168, 1), ("n2", 8, 30720, 1, 1, 0), ("n3", 8, 30720, 1, 12288, 0)]
    put(
        made,
        row(2, NodeList="n[1-2]", AllocNodes="2", AllocTRES="cpu=8,mem=9G"),
        row("2.batch", NodeList="n1", AllocTRES="cpu=2,mem=3G"),
    )
    assert all_of(made, "SELECT mem_mib, exact FROM task_history WHERE job = '2'") == [(3072, 1), (6144, 1)]


def test_kinds_of_odd_rows(made):
    counts = put(
        made,
        row(1, Start="1000", End="900"),
        row(2, Start="1000", End="1000", AllocCPUS="0", AllocNodes="0"),
        row(3, State="COMPLETED", End="Unknown", ElapsedRaw="50"),
        row(4, ReqMem="4000Mn", AllocTRES="", AllocNodes="2", NodeList="n[1-2]"),
        row(5, ReqMem="2Gc", AllocTRES="", AllocCPUS="4"),
        row(6, ReqMem="0c", AllocTRES=""),
        row(
            7,
            JobID="5_[7-9%2]",
            State="PENDING",
            Start="Unknown",
            End="Unknown",
            NodeList="None assigned",
            TimelimitRaw="Partition_Limit",
        ),
        row(8, JobID="67767+1", NodeList="m1"),
        row(9, State="WEIRD_STATE by night"),
        row(10, AllocTRES="cpu=1,gres/gpu:a100=16,gres/gpu=16,mem=1G"),
        row(11, NodeList="n[1-"),
        row(12, NodeList="n[0-2000000]"),
    )
    assert counts.rejected == 2 and counts.new == 12  # two node lists that can't be read: kept, and told
    rows = all_of(made, "SELECT job_id, start, end, mem_mib, gpus, flags, is_open FROM attempts ORDER BY job_id")
    found = {r[0]: r[1:] for r in rows}
    assert found[1] == (1000, 1000, 8000, None, records.CLAMPED, 0)
    assert found[2][:2] == (1000, 1000)
    assert found[3][:2] == (1000, 1050) and found[3][4] == records.END_FROM_ELAPSED
    assert (found[4][2], found[5][2], found[6][2]) == (8000, 8192, None)
    assert found[7][0] is None and found[7][5] == 1
    assert found[10][3] == 16
    assert found[11][4] == found[12][4] == records.BAD_NODE_LIST
    assert all_of(made, "SELECT het_job, het_offset FROM attempts WHERE job_id = 8") == [(67767, 1)]
    assert all_of(made, "SELECT state FROM job_history WHERE job = '9'") == [("WEIRD_STATE",)]
    names = {r[0] for r in all_of(made, "SELECT name FROM nodes")}
    assert names == {"n1", "n2", "m1"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"Submit": "Unknown"}, "no submit time"),
        ({"Start": "soon"}, "not a time"),
        ({"AllocTRES": "cpu=many"}, "many"),
        ({"ExitCode": "x"}, "not a whole number"),
        ({"ElapsedRaw": "ages"}, "not a duration"),
        ({"AllocCPUS": "9" * 40}, "not a whole number"),
        ({"NodeList": "knöten"}, "not a node name"),
        ({"JobIDRaw": "x", "JobID": "x"}, "not a job id"),
    ],
)
def test_what_cannot_be_understood_is_kept_with_its_reason(made, fields, words):
    for _ in range(2):
        counts = put(made, row(1), row(2, **fields), row(3))
        assert counts.rejected == 1
    assert all_of(made, "SELECT count(*) FROM attempts") == [(2,)]
    ((reason, text),) = all_of(made, "SELECT reason, text FROM rejects")
    assert words in reason and "JobName=train" in text


def test_step_without_its_job_is_set_aside(made):
    assert put(made, row("5.batch"), row(6), row("7.0")).rejected == 2


def test_dump_without_raw_ids_keeps_tasks_apart(made):
    header = ["JobID", "Submit", "State", "Start", "End", "NodeList", "JobName"]
    lines = [[i, "900", "COMPLETED", "1000", "2000", "n1", "x"] for i in ("9", "9_1", "9_2", "9+0", "9+1", "10")]
    lines.insert(2, ["9_1.batch", "900", "FAILED", "1000", "2000", "n1", "batch"])
    counts = collect.store_rows(made, header, lines, source="t")
    assert counts.new == 6
    assert collect.store_rows(made, header, lines, source="t").new == 0
    labels = all_of(made, "SELECT label, array_task, flags & 4 FROM attempts ORDER BY label")
    assert labels == [("10", None, 0), ("9", None, 0), ("9+0", None, 4), ("9+1", None, 4), ("9_1", 1, 4), ("9_2", 2, 4)]


def test_dst_hour_is_read_by_the_run_time(made):
    from zoneinfo import ZoneInfo

    from accounting.sources.converters import Times

    fields = {
        "Start": "2026-10-25T02:30:00",
        "End": "2026-10-25T02:45:00",
        "Submit": "2026-10-25T01:00:00",
        "Eligible": "Unknown",
    }
    rows = [row(1, ElapsedRaw="900", **fields), row(2, ElapsedRaw="4500", **fields)]
    collect.store_rows(made, records.FIELD_NAMES, rows, source="t", times=Times(ZoneInfo("Europe/Berlin")))
    assert [e - s for s, e in all_of(made, "SELECT start, end FROM attempts")] == [900, 4500]


def test_high_water_never_goes_back(made):
    made["c"].set_high_water(500)
    made["c"].set_high_water(400)
    assert made["c"].high_water() == 500


def test_foreign_keys_hold_after_bulk_writes(made):
    put(made, *[row(i, NodeList=f"n[{i}-{i + 3}]") for i in range(1, 50)])
    put(made, *[row(i, NodeList=f"n[{i}-{i + 1}]") for i in range(1, 50)])
    assert all_of(made, "PRAGMA foreign_key_check") == []
    assert all_of(made, "PRAGMA integrity_check") == [("ok",)]
    assert all_of(made, "SELECT count(*) FROM tasks") == [(98,)]


def test_first_and_last_seen(made):
    put(
        made,
        row(1, Start="5000", End="6000"),
        row(2, Start="1000", End="2000"),
        row(3, Start="7000", End="Unknown", State="RUNNING"),
    )
    assert all_of(made, "SELECT first_seen, last_seen FROM nodes") == [(1000, 7000)]


def test_vacuum_keeps_what_is_recent_or_open(tmp_path, made):
    now = int(time.time())
    old, new = now - 500 * 86400, now - 86400
    span = {"Start": str(old), "End": str(old + 10), "Submit": str(old)}
    put(
        made,
        row(1, JobName="old", **span),
        row(2, JobName="new", Submit=str(new), Start=str(new), End=str(new + 10)),
        row(3, JobName="open", State="RUNNING", Submit=str(old), Start=str(old), End="Unknown"),
        row(4, JobName="never", State="CANCELLED", Submit=str(old), Start="None", End=str(old), NodeList=""),
        *[row(i, JobName=f"bulk{i}", User="bob", **span) for i in range(100, 2000)],
    )
    path = str(tmp_path / "h.db")
    done = CliRunner().invoke(workhorse, ["db", "vacuum", "--db", path])
    assert done.exit_code == 0 and "1,902 attempts" in done.output
    assert {r[0] for r in all_of(made, "SELECT job FROM job_history")} == {"2", "3"}
    assert {r[0] for r in all_of(made, "SELECT name FROM works")} == {"new", "open"}
    assert all_of(made, "SELECT name FROM users") == [("alice",)]
    assert all_of(made, "PRAGMA foreign_key_check") == []
    assert all_of(made, "SELECT count(*) FROM tasks") == [(2,)]


def test_prune_goes_in_steps(tmp_path, made, monkeypatch):
    monkeypatch.setattr(maintenance, "_AT_ONCE", 10)
    put(made, *[row(i) for i in range(1, 36)])
    assert maintenance.prune(store.connect(str(tmp_path / "h.db")), "p", 10_000).attempts == 35


# faults


def test_second_run_is_told_to_wait(tmp_path):
    path = str(tmp_path / "h.db")
    caught = pytest.raises(BusyError, match=f"process {os.getpid()}")
    with collect.one_at_a_time(path), caught as error, collect.one_at_a_time(path):
        raise AssertionError("two at once")
    assert error.value.exit_code == 75
    with collect.one_at_a_time(path):
        (tmp_path / "dump").write_text("JobIDRaw|JobID|Submit|State|NodeList\n")
        done = subprocess.run(
            [sys.executable, "-m", "slurm_hook.cli", "collect", "--db", path, "--file", str(tmp_path / "dump")],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 75
    assert "another run" in done.stderr and "Traceback" not in done.stderr


def test_locked_by_another_program(tmp_path, made, monkeypatch):
    put(made, row(1))
    made["c"].conn.execute("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(tmp_path / "h.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked by another program"):
        put(made, row(2))
    other.execute("ROLLBACK")
    assert put(made, row(2)).new == 1


def test_opening_it_again_keeps_the_locks_of_this_process(made, tmp_path):
    """Locks of POSIX are the process's, and go with any file descriptor that is closed: others would take it for unused."""
    store.connect(str(tmp_path / "h.db")).close()
    other = (
        "import sqlite3, sys; print(sqlite3.connect(sys.argv[1], timeout=0).execute('PRAGMA journal_mode = DELETE').fetchone())"
    )
    done = subprocess.run([sys.executable, "-c", other, str(tmp_path / "h.db")], check=False, capture_output=True, text=True)
    assert "locked" in done.stderr and not done.stdout


def test_a_link_to_a_history_that_is_new(tmp_path):
    (tmp_path / "h.db").symlink_to(tmp_path / "elsewhere.db")
    store.connect(str(tmp_path / "h.db")).close()
    assert (tmp_path / "elsewhere.db").stat().st_mode & 0o777 == 0o600


def test_full_disk_leaves_the_database_as_before(made):
    """SQLite's page limit gives the very error of a full disk."""
    put(made, row(1))
    conn = made["c"].conn
    pages = conn.execute("PRAGMA page_count").fetchone()[0]
    conn.execute(f"PRAGMA max_page_count = {pages + 2}")
    many = [row(i, JobName=f"name{i}", NodeList=f"m[{i}-{i + 9}]") for i in range(2, 3000)]
    with pytest.raises(StoreError, match="disk is full; nothing of this step was kept"):
        put(made, *many)
    assert all_of(made, "SELECT count(*) FROM attempts") == [(1,)]
    assert all_of(made, "PRAGMA integrity_check") == [("ok",)]
    conn.execute(f"PRAGMA max_page_count = {pages + 5000}")
    assert put(made, *many).new == 2998
    assert all_of(made, "PRAGMA foreign_key_check") == []


def test_error_in_the_middle_gives_no_stale_ids(made, monkeypatch):
    """Ids of names made in a transaction that is rolled back must not be used afterwards."""
    real = bulk_writer.Writer._insert
    monkeypatch.setattr(
        bulk_writer.Writer, "_insert", lambda *a: (_ for _ in ()).throw(sqlite3.OperationalError("disk I/O error"))
    )
    with pytest.raises(StoreError, match="disk I/O error"):
        put(made, row(1, User="zoe", JobName="zz", NodeList="z1"))
    monkeypatch.setattr(bulk_writer.Writer, "_insert", real)
    put(made, row(2, User="yan", JobName="yy", NodeList="y1"), row(3, User="zoe", JobName="zz", NodeList="z1"))
    assert all_of(made, "SELECT user, job_name, node_list FROM job_history ORDER BY job") == [
        ("yan", "yy", "y1"),
        ("zoe", "zz", "z1"),
    ]
    assert all_of(made, "PRAGMA foreign_key_check") == []


def test_killed_at_any_moment(tmp_path):
    """kill -9 while collecting: the database is whole, and the next run makes it what an undisturbed one would."""
    dump = tmp_path / "dump"
    lines = ["|".join(records.FIELD_NAMES)]
    for i in range(1, 12_001):
        lines.append(
            "|".join(row(i, Submit=str(900 + i), JobName=f"j{i % 7}", NodeList=f"n[{i % 90}-{i % 90 + 2}]", AllocNodes="3"))
        )
    dump.write_text("\n".join(lines) + "\n")
    path = str(tmp_path / "h.db")
    argv = [sys.executable, "-m", "slurm_hook.cli", "collect", "--db", path, "--file", str(dump)]
    for chunks in (1, 3):
        child = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline and count(path) < chunks * bulk_writer.CHUNK:
            time.sleep(0.002)
        child.send_signal(signal.SIGKILL)
        child.wait()
        conn = store.connect(path).conn
        assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert conn.execute("PRAGMA foreign_key_check").fetchall() == []
        assert conn.execute("SELECT count(*) FROM attempts").fetchone()[0] % bulk_writer.CHUNK in (0, 12_000 % bulk_writer.CHUNK)
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    assert "12,000 attempts read" in done.stdout
    assert count(path) == 12_000
    assert store.connect(path).execute("SELECT count(*) FROM tasks").fetchone() == (36_000,)


def count(path):
    """Attempts in a database that another process writes; 0 while there is none."""
    try:
        conn = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            return conn.execute("SELECT count(*) FROM attempts").fetchone()[0]
        finally:
            conn.close()
    except sqlite3.OperationalError:
        return 0


def test_reading_while_another_thread_writes(made, tmp_path):
    """A scorer sees one state, however a collector goes on."""
    from accounting.history.columns_reader import load_history
    from slurm_hook.common.config import Settings

    put(made, row(1))
    stop = threading.Event()

    def write():
        other = stores(tmp_path / "h.db")
        number = 2
        while not stop.is_set():
            put(other, row(number), row(number + 1, State="FAILED"))
            number += 2

    thread = threading.Thread(target=write)
    thread.start()
    try:
        reader = store.connect(str(tmp_path / "h.db"))
        for _ in range(20):
            history = load_history(reader, "c", 1e6, 90, Settings())
            assert len(history.tasks) == len(history.attempts) == history.tasks.attempt.max() + 1
    finally:
        stop.set()
        thread.join()


@settings(max_examples=60, deadline=None)
@given(name=st.text(st.characters(codec="utf-8") | st.sampled_from("\0\n|'\";--\x1f\x1b")), raw=st.binary(max_size=12))
def test_any_name_comes_back_as_it_was(tmp_path_factory, name, raw):
    path = tmp_path_factory.mktemp("n") / "h.db"
    made = stores(path)
    broken = raw.decode("utf-8", "surrogateescape")
    put(made, row(1, JobName=name), row(2, JobName=broken, User=broken, Account=broken))
    found = [
        store.loaded_text(r[0])
        for r in all_of(made, "SELECT w.name FROM attempts a JOIN works w ON w.id = work_id ORDER BY job_id")
    ]
    assert found == [name, broken]
    assert store.loaded_text(all_of(made, "SELECT account FROM attempts WHERE job_id = 2")[0][0]) == broken


def test_node_lists_are_what_scontrol_says():
    """Against recorded `scontrol show hostnames`: the same names, or refused where Slurm refuses or guesses.

    Text after a bracket is legal from 23.11 on; the recording is of 22.05, which refuses it.
    """
    seen = 0
    for line in (ROOT / "tests/data/hostlist_vectors.jsonl").read_text().splitlines():
        vector = json.loads(line)
        if "..." in vector["names"]:
            continue
        try:
            names = store.expand_nodes(vector["input"])
        except ValueError as err:
            assert str(err).startswith("node list")
            odd = re.search(r"[^A-Za-z0-9_.,\[\]-]", vector["input"]) or vector["input"].count("[") != vector["input"].count("]")
            assert not vector["names"] or odd or len(vector["names"]) > store.MAX_HOSTS or vector["n"] > store.MAX_HOSTS
            continue
        if vector["names"] or ("]-" not in vector["input"] and "]." not in vector["input"]):
            assert names == tuple(dict.fromkeys(vector["names"])) or vector["input"].startswith("n[184467"), vector["input"]
            seen += 1
    assert seen > 40


@given(st.lists(st.sampled_from(["n", "0", "9", "10", "007", "[", "]", ",", "-", "1-3", "08-12", "5-5", "3-1"]), max_size=7))
def test_the_short_way_to_names_is_the_long_one(parts):
    """Nearly every list has one prefix: its names come without the parser, and are the same."""
    for text in ("".join(parts), f"n[{''.join(parts)}]"):
        found = store._expand_plain(text)
        assert not found or found == tuple(hostlist.expand_hostlist(text))
    assert store._expand_plain("gpu[0137-0139,0141]") == ("gpu0137", "gpu0138", "gpu0139", "gpu0141")
