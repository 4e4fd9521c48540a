"""The same records from pyslurm and from sacct on one real cluster. Runs where a pyslurm for this Slurm is installed."""

import importlib.util
import sys
import time

import pytest

from accounting.history import collect, source
from accounting.sources import pyslurm_source
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import SlurmError
from tests.accounting_rows import stores

# not imported here: without a Slurm configuration in the environment its import ends the process
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(importlib.util.find_spec("pyslurm") is None, reason="pyslurm isn't installed"),
]

# every release tells these; jobs that were requeued are left to sacct wherever pyslurm can tell that they were
_FIELDS = (
    "SELECT a.job_id, a.submit, a.label, a.array_job, a.array_task, s.name, a.exit_code, a.exit_signal, a.eligible, a.start,"
    " a.end, a.limit_minutes, a.nnodes, a.cpus, a.node_list, w.name, u.name, a.partition, a.account, a.qos"
    " FROM attempts a JOIN states s ON s.id = a.state_id JOIN works w ON w.id = a.work_id JOIN users u ON u.id = w.user_id"
    " WHERE a.job_id IN ({}) ORDER BY a.job_id, a.submit"
)
_TASKS = (
    "SELECT a.job_id, n.name, t.start, t.end, t.cpus FROM tasks t JOIN attempts a"
    " ON a.id = t.attempt_id JOIN nodes n ON n.id = t.node_id WHERE a.job_id IN ({}) ORDER BY 1, 2"
)
_STEPS = (
    "SELECT a.job_id, t.step, t.name, s.name, t.exit_code, t.exit_signal, t.start, t.end, t.node_list FROM steps t"
    " JOIN attempts a ON a.id = t.attempt_id JOIN states s ON s.id = t.state_id WHERE a.job_id IN ({}) ORDER BY 1, 2"
)
# releases that can't tell requeues (22.5) don't tell memory and GPUs that were allocated either
_AMOUNTS = (
    "SELECT a.job_id, n.name, t.mem_mib, t.gpus, t.exact FROM tasks t JOIN attempts a"
    " ON a.id = t.attempt_id JOIN nodes n ON n.id = t.node_id WHERE a.job_id IN ({}) ORDER BY 1, 2"
)


@pytest.fixture
def fit(sandbox, monkeypatch):
    """The pyslurm that is installed, in an environment that names a Slurm."""
    for name, value in sandbox.env.items():
        monkeypatch.setenv(name, value)
    try:
        return pyslurm_source.fitting(20)
    except pyslurm_source.UnfitError as err:
        pytest.skip(str(err))


def both(sandbox, module, tmp_path, start):
    """The same window by sacct and by pyslurm alone."""
    end = int(time.time()) + 1
    by_sacct, by_pyslurm = stores(tmp_path / "a.db"), stores(tmp_path / "b.db")
    cli = collect.from_sacct(by_sacct, 60)
    never = collect.Source(lambda *a: pytest.fail("sacct was asked"), cli.jobs)
    cli.window(start, end)
    source.from_pyslurm(module, by_pyslurm, never).window(start, end)
    return [s[sandbox.cluster].conn for s in (by_sacct, by_pyslurm)]


def test_same_records_from_both(sandbox, fit, tmp_path):
    start = int(time.time()) - 1
    small = ("--mem=50", "--time=10")
    jobs = [
        sandbox.sbatch(*small, "--wrap", "true"),
        sandbox.sbatch(*small, "--wrap", "exit 3"),
        sandbox.sbatch(*small, "--wrap", "kill -9 $$"),
        sandbox.sbatch(*small, "--job-name=a|b;c'", "--wrap", "true"),
        sandbox.sbatch(*small, "--nodes=2", "--gres=gpu:2", "--wrap", "srun true; srun false; true"),
        sandbox.sbatch(*small, "--array=1-2", "--wrap", "exit $((SLURM_ARRAY_TASK_ID == 2))"),
    ]
    sandbox.wait(jobs)
    count = f"SELECT count(*) FROM attempts WHERE submit >= {start} AND is_open = 0"

    def shown():
        for old in tmp_path.glob("*.db*"):
            old.unlink()
        conns = both(sandbox, fit, tmp_path, start)
        return conns if conns[0].execute(count).fetchone() == (len(jobs) + 1,) else None

    conns = sandbox.poll(shown, 90, "all jobs in the window, ended")
    ids = ",".join(str(i) for (i,) in conns[0].execute("SELECT job_id FROM attempts WHERE submit >= ?", (start,)))
    whole = pyslurm_source.tells_requeues(fit)
    for sql in (_FIELDS, _TASKS, _STEPS, *([_AMOUNTS] if whole else [])):
        one, other = (conn.execute(sql.format(ids)).fetchall() for conn in conns)
        assert len(one) > 1 and one == other


def test_windows_that_it_cannot_tell_are_asked_of_sacct(sandbox, fit, tmp_path):
    """Het jobs break its load; and what can't tell requeues is never chosen by `auto`."""
    start = int(time.time()) - 1
    job = sandbox.sbatch("--mem=50", ":", "--mem=60", "--wrap", "true")
    sandbox.wait(job)
    made = stores(tmp_path / "h.db")
    whole = pyslurm_source.tells_requeues(fit)
    assert (source.why_not_pyslurm(20) is None) is whole
    reads = source.choose(Settings({"slurm.backend": "auto"}), made)

    def both_parts():
        reads.window(start, int(time.time()) + 1)
        sql = "SELECT count(*) FROM attempts WHERE het_job = ?"
        return made[sandbox.cluster].conn.execute(sql, (job,)).fetchone() == (2,)

    sandbox.poll(both_parts, 90, "both parts of the het job")
    assert "pyslurm" in sys.modules
    if not whole:
        with pytest.raises(SlurmError, match="can't tell requeued jobs"):
            source.choose(Settings({"slurm.backend": "pyslurm"}), made)
