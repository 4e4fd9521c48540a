"""A snakemake workflow through its own slurm executor: from the package index, as its users have it.

Takes minutes, so it runs when asked for: `WORKHORSE_CLIENTS=1 ./install.sh test integration -k snakemake`. What it shows
is held by a quicker test (`test_stages_real.py`, jobs of a workflow's run).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_hook.slurm import jobs
from tests.sandbox import Sandbox
from tests.site import Site

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("WORKHORSE_CLIENTS"), reason="runs with WORKHORSE_CLIENTS=1"),
]
SNAKEFILE = """
rule all:
    input: "evaluated"
rule prepare:
    output: "prepared"
    resources: runtime=5, mem_mb=1000
    shell: "sleep 1; touch {output}"
rule evaluate:
    input: "prepared"
    output: "evaluated"
    resources: runtime=5, mem_mb=1000
    shell: "while [ ! -e {workflow.basedir}/go-on ]; do sleep 0.2; done; touch {output}"
"""


def test_the_stages_of_a_run_are_one_pipeline(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snakemake submits each job when its turn has come, without dependencies: its run's name ties them together."""
    for name, value in sandbox.env.items():
        monkeypatch.setenv(name, value)
    venv, work = tmp_path / "venv", Path(sandbox.root) / "snakemake"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=300)
    pip = [venv / "bin" / "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "snakemake", "snakemake-executor-plugin-slurm"], check=True, timeout=900)
    work.mkdir()
    (work / "Snakefile").write_text(SNAKEFILE)
    argv = [venv / "bin" / "snakemake", "--executor", "slurm", "--jobs", "4", "--slurm-init-seconds-before-status-checks", "1",
            "--seconds-between-status-checks", "1",
            "--default-resources", "slurm_account=root", "slurm_partition=llm", "--latency-wait", "5"]  # fmt: skip
    with Site(sandbox, "steer", name="snakemake-site") as site:
        # its job steps forget SLURM_CONF, which other sites don't need
        srun = site.sbatch.parent / "srun"
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={sandbox.env["SLURM_CONF"]} exec /usr/bin/srun "$@"\n')
        srun.chmod(0o755)
        path = f"{site.sbatch.parent}:{venv / 'bin'}:{sandbox.env['PATH']}"
        env = {**sandbox.env, "PATH": path, "HOME": str(work)}
        run = subprocess.Popen([str(word) for word in argv], cwd=work, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            _watch(sandbox, site, run)
        finally:
            (work / "go-on").touch()
            said = run.communicate(timeout=120)[0].decode(errors="replace")
    assert run.returncode == 0 and (work / "evaluated").exists(), said


def _watch(sandbox: Sandbox, site: Site, run: subprocess.Popen) -> None:
    def parts() -> list[dict]:
        assert run.poll() is None, "snakemake has given up"
        last = [job for job in jobs.load() if "rule_evaluate" in job.comment and job.state == "RUNNING"]
        if not last:
            return []
        shown = site.workhorse("queue", "--pipeline", str(last[0].id), "--json")
        return json.loads(shown.stdout)

    found = sandbox.poll(parts, 120, "the last stage to run")
    assert [part["state"] for part in found] == ["COMPLETED", "RUNNING"]
    assert len({part["name"] for part in found}) == 1, "they bear the name of their run"
    assert all(part["hours"] > 0 for part in found)
