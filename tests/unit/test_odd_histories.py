"""Histories that other tools read wrongly: what is printed, and what is so."""

import json
from pathlib import Path

import pytest

from accounting.history import collect
from accounting.sources import converters, json_dump, records
from tests.accounting_rows import put, row, stores

DATA = Path(__file__).parent.parent / "data"
NEVER = {"Start": "None", "NodeList": "None assigned", "AllocNodes": "0", "AllocCPUS": "0", "AllocTRES": ""}
# what it is → rows, then (job, state, is open, steps kept, tasks) of each attempt in order of submission
CASES = {
    "cancelled while it waited": ([row(1, State="CANCELLED by 5", End="950", **NEVER)], [(1, "CANCELLED", 0, 0, 0)]),
    "waits": ([row(1, State="PENDING", **{**NEVER, "Start": "Unknown", "End": "Unknown"})], [(1, "PENDING", 1, 0, 0)]),
    "timeout, told as cancelled by its batch step": (
        [row(1, State="TIMEOUT"), row("1.batch", State="CANCELLED", ExitCode="0:15"), row("1.extern")],
        [(1, "TIMEOUT", 0, 1, 1)],
    ),
    "accounting lags: the batch step is done, the job runs": (
        [row(1, State="RUNNING", End="Unknown"), row("1.batch", State="COMPLETED")], [(1, "RUNNING", 1, 0, 1)],
    ),
    "preempted, and its next run is done": (
        [row(1, State="PREEMPTED"), row(1, Submit="4601", Start="5000", End="6000")],
        [(1, "PREEMPTED", 0, 0, 1), (1, "COMPLETED", 0, 0, 1)],
    ),
    "the number again after a reset, of another user": (
        [row(1, State="FAILED"), row(1, Submit="99000", Start="99001", End="99002", User="bob")],
        [(1, "FAILED", 0, 0, 1), (1, "COMPLETED", 0, 0, 1)],
    ),
    "no batch step: an interactive job": (
        [row(1), row("1.interactive", State="COMPLETED"), row("1.extern")], [(1, "COMPLETED", 0, 0, 1)],
    ),
    "steps of any name": (
        [row(1), *[row(f"1.{name}", State="FAILED") for name in ("0", "4294967293", "a.b", "TBD", "0+1")]],
        [(1, "COMPLETED", 0, 5, 1)],
    ),
    "an array: what waits is one row, what ran are others": (
        [row(11, JobID="10_1"), row(10, JobID="10_[2-9%3]", State="PENDING", **{**NEVER, "End": "Unknown"})],
        [(11, "COMPLETED", 0, 0, 1), (10, "PENDING", 1, 0, 0)],
    ),
    "components of a het job": (
        [row(20, JobID="20+0"), row(21, JobID="20+1", NodeList="n[1-3]", AllocNodes="3")],
        [(20, "COMPLETED", 0, 0, 1), (21, "COMPLETED", 0, 0, 3)],
    ),
    "no time at all": ([row(1, End="1000", ElapsedRaw="0")], [(1, "COMPLETED", 0, 0, 1)]),
    "a state that nobody knows": ([row(1, State="BURNT+")], [(1, "BURNT", 0, 0, 1)]),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "expected"), CASES.values(), ids=CASES)
def test_what_is_so(tmp_path, rows, expected):
    made = stores(tmp_path / "h.db")
    for _ in range(2):  # told twice is as told once
        assert put(made, *rows).rejected == 0
    found = made["c"].conn.execute(
        "SELECT job_id, s.name, is_open, (SELECT count(*) FROM steps WHERE attempt_id = a.id),"
        " (SELECT count(*) FROM tasks WHERE attempt_id = a.id) FROM attempts a JOIN states s ON s.id = state_id ORDER BY a.id"
    )
    assert found.fetchall() == expected
    names = {name for (name,) in made["c"].conn.execute("SELECT name FROM nodes")}
    assert not names & {"None", "assigned"}


@pytest.mark.parametrize(
    ("node_list", "names"),
    [
        ("linux[1,2]", ["linux1", "linux2"]),
        ("nodeA,nodeB[001,003],nodeC", ["nodeA", "nodeB001", "nodeB003", "nodeC"]),
        ("node1g[0010,0011],node2g0005,node3g0007", ["node1g0010", "node1g0011", "node2g0005", "node3g0007"]),
        ("rack[0-1]_blade[0-1]", ["rack0_blade0", "rack0_blade1", "rack1_blade0", "rack1_blade1"]),
        ("node[0009-0010]-int", ["node0009-int", "node0010-int"]),
        ("n01,n1,n001", ["n01", "n1", "n001"]),
        ("n[1-2,2]", ["n1", "n2"]),
        ("node[001-003]", ["node001", "node002", "node003"]),
    ],
)
def test_each_node_is_a_task_of_its_own(tmp_path, node_list, names):
    made = stores(tmp_path / "h.db")
    assert put(made, row(1, NodeList=node_list, AllocNodes=str(len(names)))).tasks == len(names)
    assert [r[0] for r in made["c"].conn.execute("SELECT node FROM task_history ORDER BY node")] == sorted(names)


@pytest.mark.parametrize(
    "node_list", ["n[1-", "node]1-2[", "node[0-2000000]", "a b", "n[1-2", "n[1-99999][0-9]", "n1;reboot", "$(reboot)", "<b>"]
)
def test_a_node_list_that_nobody_can_read_costs_no_attempt(tmp_path, node_list):
    made = stores(tmp_path / "h.db")
    counts = put(made, row(1, NodeList=node_list), row(2))
    assert (counts.new, counts.tasks, counts.rejected) == (2, 1, 1)
    assert made["c"].conn.execute("SELECT flags FROM attempts WHERE job_id = 1").fetchone() == (records.BAD_NODE_LIST,)


def recorded(version):
    return json.loads((DATA / f"slurm-{version}" / "sacct.json").read_text())


def as_of_23_02(data):
    """States are words, not lists; REQUEUED was one of them."""
    data["meta"]["slurm"]["version"] = {"major": 23, "minor": 2, "micro": 7}
    for job in data["jobs"]:
        job["state"]["current"] = "REQUEUED" if "REQUEUED" in job["state"]["current"] else job["state"]["current"][0]
        for step in job["steps"]:
            step["state"] = step["state"][0]
    return data


def with_step_objects(data):
    """Steps named by objects."""
    for job in data["jobs"]:
        for step in job["steps"]:
            number, _, name = step["step"]["id"].partition(".")
            step["step"]["id"] = {"job_id": number, "step_id": name}
    return data


def in_minutes_plain(data):
    """Numbers as they are, where they are set."""

    def plain(value):
        if isinstance(value, dict):
            if set(value) == {"set", "infinite", "number"}:
                return value["number"] if value["set"] and not value["infinite"] else None
            return {k: plain(v) for k, v in value.items()}
        return [plain(v) for v in value] if isinstance(value, list) else value

    return plain(data)


def attempts_of(tmp_path, data, name):
    made, rejects = stores(tmp_path / f"{name}.db"), []
    rows = json_dump.rows(data, rejects.append)
    collect.store_rows(made, json_dump.HEADER, rows, source="j", times=converters.Times(converters.timezone.utc))
    assert not rejects
    cluster = next(iter(made.all))
    sql = "SELECT a.*, s.name FROM attempts a JOIN states s ON s.id = a.state_id ORDER BY job_id, submit"
    cursor = made[cluster].conn.execute(sql)
    names = [column[0] for column in cursor.description]
    left_out = ("id", "digest", "work_id", "state_id", "cluster_id")
    found = [{k: v for k, v in zip(names, one) if k not in left_out} for one in cursor]
    steps = made[cluster].conn.execute("SELECT step, name, exit_code, node_list FROM steps ORDER BY attempt_id, step").fetchall()
    return found, steps


@pytest.mark.parametrize("change", [as_of_23_02, with_step_objects, in_minutes_plain])
def test_json_of_other_shapes_says_the_same(tmp_path, change):
    plain = attempts_of(tmp_path, recorded("24.11"), "plain")
    assert len(plain[0]) > 30 and len(plain[1]) > 3
    assert attempts_of(tmp_path, change(recorded("24.11")), "other") == plain


def test_json_before_23_02_has_no_exit_codes(tmp_path):
    """What the old ones print there is 0 for whatever failed: unknown, never 0."""
    data = recorded("24.11")
    data["meta"]["slurm"]["version"] = {"major": "22", "minor": "05", "micro": "11"}
    found, steps = attempts_of(tmp_path, data, "old")
    codes = {(a["exit_code"], a["exit_signal"], a["derived_code"]) for a in found} | {(s[2], None, None) for s in steps}
    assert codes == {(None, None, None)}
