"""A dump read later takes nothing away: neither one with fewer fields nor one that was made earlier."""

import itertools

import pytest

from accounting.history import bulk_writer, collect, columns_reader
from accounting.sources import records
from slurm_hook.common.config import Settings
from tests.accounting_rows import put, row, stores

RUNS = {"State": "RUNNING", "End": "Unknown"}
ALL = (
    "SELECT a.job_id, a.label, a.array_job, a.array_task, u.name, w.name, s.name, a.start, a.end, a.exit_code, a.limit_minutes,"
    " a.nnodes, a.cpus, a.mem_mib, a.gpus, a.failed_node, a.partition, a.node_list, a.is_open, n.name, t.mem_mib, t.max_rss_mib,"
    " t.start, t.end FROM attempts a JOIN works w ON w.id = a.work_id JOIN users u ON u.id = w.user_id JOIN states s"
    " ON s.id = a.state_id LEFT JOIN tasks t ON t.attempt_id = a.id LEFT JOIN nodes n ON n.id = t.node_id ORDER BY 1, 20"
)
RICH = {
    "NodeList": "n[1-2]", "AllocNodes": "2", "State": "FAILED", "ExitCode": "3:0", "AllocTRES": "cpu=8,mem=8G,node=2,gres/gpu=4",
    "FailedNode": "n2",
}  # fmt: skip


@pytest.fixture
def made(tmp_path):
    return stores(tmp_path / "h.db")


def jobs(**more):
    whole = {**RICH, **more}
    yield row(1, **whole)
    yield row("1.batch", NodeList="n1", AllocTRES="cpu=6,mem=6G", MaxRSS="5G", State="FAILED")
    yield row(8, JobID="7_3", User="bob\udcff", JobName="x\udce9", **whole)
    yield row(9, JobID="9+0", **whole)


def poor(into, without, rows):
    """The same rows out of a dump without some fields."""
    names = [n for n in records.FIELD_NAMES if n not in without]
    at = [records.FIELD_NAMES.index(n) for n in names]
    return collect.store_rows(into, names, [[r[i] for i in at] for r in rows], source="test")


def shown(made):
    return made["c"].conn.execute(ALL).fetchall()


LACKS = [(), *[(f,) for f in records.FIELD_NAMES if f not in ("JobIDRaw", "Submit", "State", "NodeList")],
         ("Start", "End", "ElapsedRaw"), ("End", "ElapsedRaw"),
         tuple(n for n in records.FIELD_NAMES if n not in ("JobIDRaw", "Submit", "State", "NodeList"))]  # fmt: skip


@pytest.mark.parametrize("without", LACKS, ids=lambda names: ".".join(names)[:30])
def test_fewer_fields_take_nothing_away(made, without):
    put(made, *jobs())
    before = shown(made)
    no_steps = [r for r in jobs() if "." not in r[0]]
    assert poor(made, without, no_steps)[1:] == (0, 0, 0, 0)
    assert shown(made) == before


@pytest.mark.parametrize("without", [("Start",), ("User", "JobName"), ("AllocTRES",), ("JobID", "TimelimitRaw", "FailedNode")])
def test_fewer_fields_tell_the_end(made, without):
    """What they tell counts; what they don't is as it was known."""
    put(made, *jobs(**RUNS, ExitCode="0:0"))
    ended = [r for r in jobs() if "." not in r[0]]
    assert poor(made, without, ended).changed == 3
    known = shown(made)
    put(made, *ended)
    assert known == shown(made) and not any(r[18] for r in known)


def test_two_dumps_make_one_whole(made):
    rows = [r for r in jobs() if "." not in r[0]]
    poor(made, ("Start", "AllocTRES", "JobID"), rows)
    poor(made, ("User", "JobName", "End", "ElapsedRaw", "FailedNode"), rows)
    known = shown(made)
    put(made, *rows)
    assert known == shown(made)


@pytest.mark.parametrize("at_once", [1, 100])
@pytest.mark.parametrize("order", list(itertools.permutations(["pending", "runs", "ended"])), ids="-".join)
def test_dumps_in_any_order_end_with_the_end(made, order, at_once, monkeypatch):
    """In dumps of their own, and in one that was joined of them."""
    monkeypatch.setattr(bulk_writer, "AT_ONCE", at_once)
    looks = {
        "pending": {"State": "PENDING", "Start": "Unknown", "End": "Unknown", "NodeList": "None assigned", "ExitCode": "0:0"},
        "runs": {**RUNS, "ExitCode": "0:0"}, "ended": {},
    }  # fmt: skip
    apart = [[r for r in jobs(**looks[name]) if "." not in r[0]] for name in order]
    for rows in apart:
        put(made, *rows)
    found = shown(made)
    assert {r[6] for r in found} == {"FAILED"} and not any(r[18] for r in found) and len(found) == 6
    conn = made["c"].conn
    past = columns_reader.load_history(made["c"].db, "c", 10_000.0, 1.0, Settings(), kept=False)
    assert len(past.tasks) == 6 and set(past.tasks.end.tolist()) == {4600.0}
    for table in ("tasks", "steps", "attempts"):
        conn.execute(f"DELETE FROM {table}")
    put(made, *[r for rows in apart for r in rows])
    assert [r[6:] for r in shown(made)] == [r[6:] for r in found]
