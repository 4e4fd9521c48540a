"""pyslurm as a source: what its objects say becomes the rows that sacct would give; what it can't say is asked of sacct."""

import sys
from types import SimpleNamespace

import pytest

from accounting.history import collect, source
from accounting.sources import pyslurm_source, records
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import SlurmError
from tests.accounting_rows import row, stores


def step(**more):
    return SimpleNamespace(
        **{"id": "batch", "name": "batch", "state": "COMPLETED", "exit_code": 0, "exit_code_signal": 0, "start_time": 1000,
           "end_time": 4600, "ntasks": 1, "cpus": 8, "memory": 8000, "num_nodes": 1, "nodelist": "n1",
           "stats": SimpleNamespace(max_resident_memory=1048576, max_resident_memory_node="n1"), **more}
    )  # fmt: skip


def job(**more):
    """The attributes that pyslurm's db.Job has, of the job that `tests.accounting_rows.row(1)` is."""
    return SimpleNamespace(
        **{"id": 1, "array_id": None, "array_task_id": None, "cluster": "c", "submit_time": 900, "eligible_time": 900,
           "start_time": 1000, "end_time": 4600, "elapsed_time": None, "state": "COMPLETED", "exit_code": 0,
           "exit_code_signal": 0, "derived_exit_code": None, "derived_exit_code_signal": None, "num_nodes": 1, "cpus": 8,
           "allocated_tres": {"cpu": 8, "mem": 8000, "node": 1}, "memory": None, "time_limit": 120, "partition": "llm",
           "account": "ml", "qos": "normal", "user_name": "alice", "nodelist": "n1", "name": "train", "requeue_count": 0,
           "failed_node": None, "steps": {}, **more}
    )  # fmt: skip


def module(jobs=(), version="25.11.2", error=None, told=True):
    """Stands for the pyslurm module."""

    class Jobs:
        @staticmethod
        def load(_filter):
            if error:
                raise error
            return {j.id: j for j in jobs}

    known = type("Job", (), {"requeue_count": 0} if told else {})
    db = SimpleNamespace(Jobs=Jobs, Job=known, JobFilter=SimpleNamespace, TrackableResources=SimpleNamespace(load=dict))
    return SimpleNamespace(__version__=version, db=db)


def attempts(made):
    sql = "SELECT job_id, submit, label, array_job, array_task, start, end, state_id, exit_code, exit_signal, limit_minutes,"
    return (
        made["c"]
        .conn.execute(f"{sql} nnodes, cpus, mem_mib, gpus, gpu_type, node_list, work_id, nsteps FROM attempts")
        .fetchall()
    )


def test_same_record_as_from_sacct(tmp_path):
    by_sacct, by_pyslurm = stores(tmp_path / "a.db"), stores(tmp_path / "b.db")
    text = [row(1), row("1.batch", MaxRSS="1M", MaxRSSNode="n1", AllocTRES="cpu=8,mem=8000M,node=1")]
    collect.store_rows(by_sacct, records.FIELD_NAMES, text, source="sacct")
    rows = pyslurm_source.rows([job(steps={"batch": step()})], {})
    collect.store_rows(by_pyslurm, records.FIELD_NAMES, rows, source="pyslurm")
    assert attempts(by_sacct) == attempts(by_pyslurm)
    sql = "SELECT node_id, start, end, cpus, mem_mib, gpus, max_rss_mib, exact FROM tasks"
    assert by_sacct["c"].conn.execute(sql).fetchall() == by_pyslurm["c"].conn.execute(sql).fetchall()


@pytest.mark.parametrize(
    ("more", "field", "text"),
    [
        ({"array_id": 9, "array_task_id": 0}, "JobID", "9_0"),
        ({"array_id": 0, "array_task_id": None}, "JobID", "1"),
        ({"state": "CANCELLED by 5"}, "State", "CANCELLED"),
        ({"start_time": None, "nodelist": None}, "AllocNodes", "0"),
        ({"end_time": None}, "End", ""),
        ({"exit_code": None, "exit_code_signal": 9}, "ExitCode", "0:9"),
        ({"time_limit": None}, "TimelimitRaw", ""),
        ({"allocated_tres": SimpleNamespace(raw_str="1=8,2=8000,1001=4")}, "AllocTRES", "cpu=8,mem=8000M,gres/gpu=4"),
        ({"failed_node": "n7"}, "FailedNode", "n7"),
        ({"heterogeneous_id": 5, "heterogeneous_offset": 1}, "JobID", "5+1"),
    ],
)
def test_fields(more, field, text):
    names = {"1": "cpu", "2": "mem", "1001": "gres/gpu"}
    assert pyslurm_source.job_fields(job(**more), names)[field] == text


class RPCError(Exception):
    pass


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        (module(error=IndexError("list index out of range")), "het jobs"),
        (module(error=RPCError("no slurmdbd")), "no slurmdbd"),
        (module([job(requeue_count=2)]), "last attempt"),
    ],
)
def test_windows_that_pyslurm_cannot_tell_are_asked_of_sacct(tmp_path, fake, words):
    made, asked = stores(tmp_path / "h.db"), []
    cli = collect.Source(lambda s, e: asked.append((s, e)) or collect.Counts(attempts=7), lambda *a: collect.Counts())
    with pytest.raises(pyslurm_source.UnfitError, match=words):
        pyslurm_source.load(fake, 1, 2)
    assert source.from_pyslurm(fake, made, cli).window(1, 2).attempts == 7
    assert asked == [(1, 2)]


def test_windows_it_can_tell_are_read(tmp_path):
    made = stores(tmp_path / "h.db")
    cli = collect.Source(lambda *a: pytest.fail("sacct was asked"), lambda *a: collect.Counts())
    assert source.from_pyslurm(module([job()]), made, cli).window(1, 2).new == 1


def test_other_errors_are_not_hidden(tmp_path):
    with pytest.raises(ZeroDivisionError):
        pyslurm_source.load(module(error=ZeroDivisionError()), 1, 2)


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        (None, "can't be loaded"),
        (module(version="24.11.0"), "made for Slurm 24.11, here runs 25.11"),
        (module(told=False), "can't tell requeued jobs"),
        (module(), None),
    ],
)
def test_choice(tmp_path, monkeypatch, fake, words):
    monkeypatch.setattr(pyslurm_source.sacct, "run", lambda argv, timeout: "slurm-wlm 25.11.3\n")
    cli = collect.Source(lambda *a: collect.Counts(), lambda *a: collect.Counts())
    monkeypatch.setattr(collect, "from_sacct", lambda *a: cli)
    monkeypatch.setitem(sys.modules, "pyslurm", fake)
    made = stores(tmp_path / "h.db")
    found = source.why_not_pyslurm(5)
    assert (words in found) if words else found is None
    assert (source.choose(Settings(), made) is cli) == bool(words)
    assert source.choose(Settings({"slurm.backend": "cli"}), made) is cli
    if words:
        with pytest.raises(SlurmError, match='set it to "auto"'):
            source.choose(Settings({"slurm.backend": "pyslurm"}), made)
