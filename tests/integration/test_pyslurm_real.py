"""The same records from pyslurm and from sacct on one real cluster. Runs where a pyslurm for this Slurm is installed."""

import importlib.util
import sys
import time

import pytest

from accounting import collect, pyslurm_source, source
from tests.accounting_rows import stores

# not imported here: without a Slurm configuration in the environment its import ends the process
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(importlib.util.find_spec("pyslurm") is None, reason="pyslurm isn't installed"),
]

_FIELDS = (
    "SELECT a.job_id, a.submit, a.label, a.array_job, a.array_task, s.name, a.exit_code, a.exit_signal, a.start, a.end,"
    " a.limit_minutes, a.nnodes, a.cpus, a.mem_mib, a.gpus, a.node_list, w.name, u.name, a.partition, a.account"
    " FROM attempts a JOIN states s ON s.id = a.state_id JOIN works w ON w.id = a.work_id JOIN users u ON u.id = w.user_id"
    " WHERE a.job_id IN ({}) ORDER BY a.job_id, a.submit"
)
_TASKS = (
    "SELECT a.job_id, n.name, t.start, t.end, t.cpus, t.mem_mib, t.gpus, t.exact FROM tasks t JOIN attempts a"
    " ON a.id = t.attempt_id JOIN nodes n ON n.id = t.node_id WHERE a.job_id IN ({}) ORDER BY 1, 2"
)


def fit():
    """The module, in an environment that names a Slurm; releases that can't tell requeues are never used."""
    module = pyslurm_source.fitting(20)
    if not pyslurm_source.tells_requeues(module):
        pytest.skip(f"pyslurm {module.__version__} can't tell requeued jobs")
    return module


def test_same_records_from_both(sandbox, tmp_path, monkeypatch):
    start = int(time.time()) - 1
    small = ("--mem=50", "--time=10")
    jobs = [
        sandbox.sbatch(*small, "--wrap", "true"),
        sandbox.sbatch(*small, "--wrap", "exit 3"),
        sandbox.sbatch(*small, "--wrap", "kill -9 $$"),
        sandbox.sbatch(*small, "--nodes=2", "--gres=gpu:2", "--wrap", "srun true"),
    ]
    array = sandbox.sbatch(*small, "--array=1-2", "--wrap", "true")
    sandbox.wait([*jobs, array])
    for name, value in sandbox.env.items():
        monkeypatch.setenv(name, value)
    module = fit()
    end = int(time.time()) + 1
    by_sacct, by_pyslurm = stores(tmp_path / "a.db"), stores(tmp_path / "b.db")
    cli = collect.from_sacct(by_sacct, 60)
    cli.window(start, end)
    never = collect.Source(lambda *a: pytest.fail("sacct was asked"), cli.jobs)
    source.from_pyslurm(module, by_pyslurm, never).window(start, end)
    ids = by_sacct[sandbox.cluster].conn.execute("SELECT job_id FROM attempts WHERE submit >= ?", (start,)).fetchall()
    marks = ",".join(str(i) for (i,) in ids)
    assert len(ids) == len(jobs) + 2
    for sql in (_FIELDS, _TASKS):
        one, other = (s[sandbox.cluster].conn.execute(sql.format(marks)).fetchall() for s in (by_sacct, by_pyslurm))
        assert one == other


def test_het_windows_are_asked_of_sacct(sandbox, tmp_path, monkeypatch):
    start = int(time.time()) - 1
    job = sandbox.sbatch("--mem=50", ":", "--mem=60", "--wrap", "true")
    sandbox.wait(job)
    for name, value in sandbox.env.items():
        monkeypatch.setenv(name, value)
    made = stores(tmp_path / "h.db")
    reads = source.from_pyslurm(fit(), made, collect.from_sacct(made, 60))
    reads.window(start, int(time.time()) + 1)
    sql = "SELECT count(*) FROM attempts WHERE het_job = ?"
    assert made[sandbox.cluster].conn.execute(sql, (job,)).fetchone() == (2,)
    assert "pyslurm" in sys.modules
