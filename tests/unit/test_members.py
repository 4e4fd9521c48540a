"""Members of arrays and het jobs are there once, in whatever order dumps with and without JobIDRaw are read."""

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.history import bulk_writer, collect, store
from accounting.history.schema import m006_members
from accounting.sources import records
from tests.accounting_rows import put, row, stores

# Slurm's number, JobID, fields: three tasks of an array (the last has the array's own number), both parts of a het job, a
# job of neither kind, and one that was requeued
JOBS = (
    (101, "100_1", {}), (102, "100_2", {"State": "FAILED", "ExitCode": "1:0"}), (100, "100_3", {"NodeList": "n[1-2]"}),
    (200, "200+0", {}), (201, "200+1", {}), (300, "300", {}), (101, "100_1", {"Submit": "5000", "Start": "5001", "End": "6000"}),
)  # fmt: skip
NUMBERED = sorted((number, label, int(fields.get("Submit", 900))) for number, label, fields in JOBS)
SHOWN = "SELECT job_id, label, submit FROM attempts ORDER BY 1, 2, 3"


@pytest.fixture
def made(tmp_path):
    return stores(tmp_path / "h.db")


def rows(jobs=JOBS, **more):
    """With steps."""
    for number, label, fields in jobs:
        yield row(number, **{"JobID": label, **fields, **more})
        yield row(f"{number}.batch", JobID=f"{label}.batch", State="FAILED")


def numbered(into, jobs=JOBS, **more):
    return put(into, *rows(jobs, **more))


def unnumbered(into, jobs=JOBS, **more):
    """The same out of a dump without JobIDRaw."""
    header, number = records.FIELD_NAMES[1:], records.FIELD_NAMES.index("JobIDRaw")
    assert number == 0
    return collect.store_rows(into, header, [r[1:] for r in rows(jobs, **more)], source="test")


def shown(made, sql=SHOWN):
    return made["c"].conn.execute(sql).fetchall()


def whole(made):
    """Each attempt has its own tasks and steps, and none are left of another."""
    conn = made["c"].conn
    assert conn.execute("SELECT count(*), count(DISTINCT attempt_id) FROM tasks").fetchone() == (len(JOBS) + 1, len(JOBS))
    assert conn.execute("SELECT count(*) FROM steps").fetchone() == (len(JOBS),)
    assert not conn.execute("PRAGMA foreign_key_check").fetchall()


@pytest.mark.parametrize("order", ["NU", "UN", "NUNU", "UUNN", "UNUN"])
def test_each_once_under_its_number(made, order):
    for which in order:
        (numbered if which == "N" else unnumbered)(made)
    assert shown(made) == NUMBERED
    assert shown(made, "SELECT count(*) FROM attempts WHERE flags & 4") == [(0,)]
    whole(made)
    assert (numbered(made).new, unnumbered(made)[1:]) == (0, (0, 0, 0, 0))


def test_without_numbers_each_has_its_own(made):
    assert unnumbered(made).new == len(JOBS)
    assert unnumbered(made)[1:] == (0, 0, 0, 0)
    assert shown(made, "SELECT label FROM attempts WHERE job_id > 0") == [("300",)]
    whole(made)


def test_the_row_stays_and_is_counted_as_changed(made):
    unnumbered(made)
    before = shown(made, "SELECT label, submit, id FROM attempts ORDER BY 1, 2")
    assert numbered(made)[1:3] == (0, len(JOBS) - 1)  # the job that is no member was told the same
    assert shown(made, "SELECT label, submit, id FROM attempts ORDER BY 1, 2") == before


@pytest.mark.parametrize("after", [{"State": "RUNNING", "End": "Unknown"}, {"State": "FAILED"}])
def test_what_ended_stays_as_the_richer_source_told_it(made, after):
    numbered(made)
    before = shown(made, "SELECT * FROM attempts ORDER BY id")[:5]
    assert unnumbered(made, JOBS[:5], **after)[1:] == (0, 0, 0, 0)
    assert shown(made, "SELECT * FROM attempts ORDER BY id")[:5] == before


def test_what_may_still_run_is_brought_up_to_date(made):
    numbered(made, State="RUNNING", End="Unknown")
    assert unnumbered(made)[1:3] == (0, len(JOBS))
    assert shown(made) == NUMBERED
    assert shown(made, "SELECT count(*) FROM attempts WHERE end IS NULL OR is_open OR flags & 4") == [(0,)]
    whole(made)


def test_the_pending_rest_of_an_array_and_its_last_task(made):
    """The record of tasks that wait has the number that the last of them gets."""
    pending = {"State": "PENDING", "Start": "Unknown", "End": "Unknown", "NodeList": "None assigned"}
    numbered(made, [(100, "100_[3]", pending)])
    unnumbered(made, JOBS[:3])
    numbered(made, JOBS[:3])
    assert shown(made) == sorted((n, label, 900) for n, label, _ in JOBS[:3])
    assert shown(made, "SELECT count(*) FROM tasks") == [(4,)]


@pytest.mark.parametrize("one_by_one", [True, False])
def test_both_inside_one_dump(made, one_by_one, monkeypatch):
    """A dump in whose column of numbers some are JobIDs, next to each other or far apart, in every order."""
    if one_by_one:
        monkeypatch.setattr(bulk_writer, "AT_ONCE", 1)
    mine, others = list(rows(JOBS[:2])), list(rows([(label, label, fields) for _, label, fields in JOBS[:2]]))
    pairs = [part[i : i + 2] for part in (mine, others) for i in (0, 2)]
    for number, order in enumerate(itertools.permutations(pairs)):
        put(made, *[[*r[:3], str(9000 + number), *r[4:]] for pair in order for r in pair])
    assert shown(made, "SELECT DISTINCT job_id, label FROM attempts ORDER BY 1") == [(101, "100_1"), (102, "100_2")]
    assert shown(made, "SELECT count(*) FROM attempts") == [(48,)] and shown(made, "SELECT count(*) FROM tasks") == [(48,)]


def test_names_of_what_is_known_do_not_fill_the_memory(made, monkeypatch):
    monkeypatch.setattr(bulk_writer, "CHUNK", 3)
    monkeypatch.setattr(bulk_writer, "AT_ONCE", 2)
    unnumbered(made)
    seen = []
    real = bulk_writer.Members.found
    monkeypatch.setattr(bulk_writer.Members, "found", lambda self, *a: seen.append(self.remembered) or real(self, *a))
    many = [(100_000 + n, f"700_{n}", {}) for n in range(100)]
    assert unnumbered(made, many).new == 100 and unnumbered(made, many).new == 0
    assert max(seen) < 4 * 3 + 2


def test_marks_follow(made):
    unnumbered(made)
    conn = made["c"].conn
    conn.execute(
        "INSERT INTO job_marks SELECT cluster_id, job_id, submit, 'wrong', '', 'me', 1 FROM attempts WHERE label = '100_2'"
    )
    numbered(made)
    assert shown(made, "SELECT job_id, submit FROM job_marks") == [(102, 900)]


def test_a_killed_run_leaves_each_once(made, monkeypatch):
    unnumbered(made)
    real = bulk_writer.Writer._seen  # the last of a transaction
    monkeypatch.setattr(bulk_writer.Writer, "_seen", lambda *_: 1 / 0)
    before = shown(made)
    with pytest.raises(ZeroDivisionError):
        numbered(made)
    assert shown(made) == before
    monkeypatch.setattr(bulk_writer.Writer, "_seen", real)
    numbered(made)
    assert shown(made) == NUMBERED
    whole(made)


def test_ordinary_collects_make_no_index_and_look_for_no_label(made):
    numbered(made)
    names = "SELECT count(*) FROM sqlite_master WHERE name = 'attempts_members'"
    asked = []
    made["c"].conn.set_trace_callback(asked.append)
    numbered(made, State="FAILED")
    assert not [sql for sql in asked if "AND label = " in sql] and shown(made, names) == [(0,)]
    unnumbered(made)
    assert shown(made, names) == [(1,)]
    looked = next(sql for sql in asked if "AND label = " in sql)
    assert "attempts_members" in shown(made, f"EXPLAIN QUERY PLAN {looked}")[0][3]


_TOLD = st.tuples(st.booleans(), st.lists(st.sampled_from(range(len(JOBS))), min_size=1, max_size=9), st.booleans())


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(dumps=st.lists(_TOLD, min_size=1, max_size=6), size=st.integers(1, 4))
def test_any_dumps_in_any_order(monkeypatch, dumps, size):
    """Each attempt that any dump told is there once, under Slurm's number if any told it, and open only if none told its end."""
    monkeypatch.setattr(bulk_writer, "CHUNK", size)
    monkeypatch.setattr(bulk_writer, "AT_ONCE", size)
    with TemporaryDirectory() as folder:
        made = stores(Path(folder, "h.db"))
        numbers, last = set(), {}
        for has_numbers, which, runs in dumps:
            chosen = [JOBS[i] for i in which]
            (numbered if has_numbers else unnumbered)(made, chosen, **({"State": "RUNNING", "End": "Unknown"} if runs else {}))
            for number, label, fields in chosen:
                key = label, int(fields.get("Submit", 900))
                last[key] = runs and last.get(key, True)
                numbers |= {key} if has_numbers or number == 300 else set()
        found = shown(made, "SELECT label, submit, is_open, job_id > 0, flags & 4 = 0 FROM attempts")
        wanted = [(*key, int(runs), int(key in numbers), int(key in numbers)) for key, runs in last.items()]
        assert sorted(found) == sorted(wanted)
        assert not shown(made, "PRAGMA foreign_key_check")
        made["c"].conn.close()


@pytest.mark.parametrize("running", [(), ("N",), ("U",)])
def test_a_history_that_has_them_twice_is_mended(tmp_path, running):
    """Earlier versions stored both: the migration leaves one, what ended rather than what may still run."""
    path = str(tmp_path / "old.db")
    both = {}
    for which, read in (("N", numbered), ("U", unnumbered)):
        made = both[which] = stores(tmp_path / f"{which}.db")
        read(made, **({"State": "RUNNING", "End": "Unknown"} if which in running else {}))
        made["c"].conn.execute("DELETE FROM attempts WHERE label = '300'" if which == "U" else "SELECT 1")
        made["c"].conn.execute("DELETE FROM tasks WHERE attempt_id NOT IN (SELECT id FROM attempts)")
        made["c"].conn.execute("DELETE FROM steps WHERE attempt_id NOT IN (SELECT id FROM attempts)")
        made["c"].conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    conn = both["N"]["c"].conn
    conn.execute("ATTACH ? AS other", (str(tmp_path / "U.db"),))
    conn.execute("UPDATE other.attempts SET id = id + 100")
    for table in ("tasks", "steps"):
        conn.execute(f"UPDATE other.{table} SET attempt_id = attempt_id + 100")
    for table in ("attempts", "tasks", "steps"):
        conn.execute(f"INSERT INTO main.{table} SELECT * FROM other.{table}")
    assert len(shown(both["N"])) == 2 * len(JOBS) - 1
    conn.execute("DELETE FROM _migrations WHERE name = ?", (m006_members.__name__,))
    conn.close()
    (tmp_path / "N.db").rename(path)
    again = stores(path)
    assert shown(again) == NUMBERED
    whole(again)
    still = {"N": 1, "U": 0}.get("".join(running), 0)  # the job that is no member runs where those with numbers do
    assert shown(again, "SELECT count(*) FROM attempts WHERE is_open") == [(still,)]
    assert store.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
