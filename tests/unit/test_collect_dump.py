"""collect --file over recorded output of real Slurms."""

from pathlib import Path

import pytest

from accounting.history import collect, store
from accounting.sources import converters, dump

DATA = Path(__file__).parent.parent / "data"
VERSIONS = ("22.05", "24.11", "26.05")


@pytest.fixture
def stores(tmp_path):
    path = str(tmp_path / "history.db")
    return collect.Stores(store.connect(path), path, "testcl")


@pytest.fixture
def open_store(stores):
    return stores["testcl"]


def read(into, path, delimiter="|"):
    rejects = []
    with dump.open_dump(str(path)) as file:
        text = dump.Dump(file, delimiter)
        return collect.store_rows(into, text.header, text.rows(rejects.append), source="d", times=converters.Times()), rejects


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_dump_twice(stores, open_store, version):
    first, _ = read(stores, DATA / f"slurm-{version}" / "sacct.psv")
    assert first.new == first.attempts >= 29
    again, _ = read(stores, DATA / f"slurm-{version}" / "sacct.psv")
    assert (again.new, again.changed, again.tasks) == (0, 0, 0)
    rows = open_store.conn.execute("SELECT job, state, exit_code, exit_signal FROM job_history").fetchall()
    found = {row[0]: row[1:] for row in rows}
    assert found["2"] == ("FAILED", 3, 0)
    assert found["3"] == ("FAILED", 0, 9)
    assert found["32"] == ("FAILED", 42, 0)
    requeued = "15" if version != "24.11" else "13"
    states = open_store.conn.execute(
        "SELECT s.name FROM attempts a JOIN states s ON s.id = a.state_id WHERE job_id = ? ORDER BY submit", (requeued,)
    ).fetchall()
    assert [s for (s,) in states] == ["REQUEUED", "COMPLETED"]
    two = open_store.conn.execute("SELECT node, mem_mib, gpus, exact FROM task_history WHERE job_name = 'two'").fetchall()
    assert [row[1:] for row in two] == [(64000, 8, 1), (64000, 8, 1)]
    never = open_store.conn.execute("SELECT count(*) FROM nodes WHERE name LIKE '%ssigned%' OR name = 'None'").fetchone()
    assert never == (0,)
