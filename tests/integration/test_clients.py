"""Programs that call sbatch themselves run their own jobs through the wrapper: from the package index, as their users do."""

import subprocess
import sys
from pathlib import Path

import pytest

from slurm_hook.published import mark
from tests.sandbox import Sandbox
from tests.wrapped import Wrapped

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SUBMITIT = """
import sys, submitit
executor = submitit.AutoExecutor(folder=sys.argv[1], cluster="slurm")
executor.update_parameters(timeout_min=5, nodes=2, tasks_per_node=1, mem_gb=1, slurm_job_name="client")
job = executor.submit(pow, 3, 4)
print(job.job_id, job.results())
array = executor.map_array(abs, [-1, -2, -3])
print([found.results()[0] for found in array])
"""
DASK = """
import sys
from dask_jobqueue import SLURMCluster
from dask.distributed import Client
cluster = SLURMCluster(cores=1, memory="1GB", processes=1, walltime="00:05:00", job_extra_directives=["-N2", "--comment="],
                       log_directory=sys.argv[1], interface="lo", python=sys.executable)
cluster.scale(jobs=1)
with Client(cluster) as client:
    print(client.submit(pow, 3, 4).result(timeout=90))
cluster.close()
"""


@pytest.fixture(scope="module")
def venv(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clients") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=300)
    return folder


def install(venv: Path, *packages: str) -> None:
    subprocess.run([venv / "bin" / "pip", "install", "-q", "--disable-pip-version-check", *packages], check=True, timeout=900)


@pytest.fixture
def wrapped(sandbox: Sandbox) -> Wrapped:
    made = Wrapped(sandbox)
    made.publish("steer", bad=("gpu02",))
    return made


def run(sandbox: Sandbox, wrapped: Wrapped, venv: Path, *argv: str | Path, folder: Path) -> str:
    env = {"PATH": f"{wrapped.sbatch.parent}:{venv / 'bin'}:{sandbox.env['PATH']}"}
    return sandbox.run(argv, env=env, cwd=folder, timeout=400).stdout


def steered(sandbox: Sandbox) -> list[mark.Mark]:
    """Marks of the jobs that slurmctld still knows."""
    comments = sandbox.run(["squeue", "-h", "-t", "all", "-o", "%k"]).stdout.split()
    return [found for found in map(mark.parse, comments) if found is not None and found.decided]


def test_submitit(sandbox, wrapped, venv, tmp_path):
    install(venv, "submitit")
    (tmp_path / "client.py").write_text(SUBMITIT)
    out = run(sandbox, wrapped, venv, venv / "bin" / "python", "client.py", tmp_path / "logs", folder=tmp_path)
    assert "[81, 81]" in out and "[1, 2, 3]" in out
    assert any(found.mode == "steer" for found in steered(sandbox))


def test_dask_jobqueue(sandbox, wrapped, venv, tmp_path):
    install(venv, "dask-jobqueue", "distributed")
    (tmp_path / "client.py").write_text(DASK)
    assert "81" in run(sandbox, wrapped, venv, venv / "bin" / "python", "client.py", tmp_path / "logs", folder=tmp_path)
