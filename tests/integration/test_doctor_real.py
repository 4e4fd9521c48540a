"""Doctor on a real Slurm: fine where all is well, and each fault told with its mend."""

import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def site(sandbox, tmp_path):
    """A settings file with history and published files of its own."""
    (tmp_path / "public").mkdir(mode=0o755)
    path = tmp_path / "workhorse.toml"
    path.write_text(f"[history]\npath = '{tmp_path}/history.db'\n[publish]\npath = '{tmp_path}/public'\n")
    return path


def doctor(sandbox, site, *args, env=None):
    argv = [sys.executable, "-m", "slurm_hook.cli", "--config", str(site), "doctor", "--json", *args]
    done = sandbox.run(argv, env={"PYTHONPATH": str(ROOT), **(env or {})}, check=False, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    data = json.loads(done.stdout)
    assert done.returncode == ["ok", "warning", "critical", "unknown"].index(data["level"])
    return {check["check"]: check for check in data["checks"]}


def run(sandbox, site, *args):
    argv = [sys.executable, "-m", "slurm_hook.cli", "--config", str(site), *args]
    return sandbox.run(argv, env={"PYTHONPATH": str(ROOT)}, timeout=120)


def test_a_healthy_slurm(sandbox, site):
    sandbox.wait([sandbox.sbatch("--wrap", "true")])
    run(sandbox, site, "refresh")
    found = doctor(sandbox, site)
    for name in ("slurm", "version", "clock", "slurmdbd", "rights", "kept", "purge", "pyslurm", "plugins", "topology", "settings",
                 "program", "switch", "writers", "history", "collected", "disk"):  # fmt: skip
        assert found[name]["level"] == "ok", found[name]
    assert "16 nodes" in found["scores"]["text"]
    assert sandbox.cluster in found["slurmdbd"]["text"]


def test_no_slurm_is_critical_and_quick(sandbox, site, tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text((sandbox.root / "etc/slurm.conf").read_text().replace("SlurmctldPort=", "SlurmctldPort=1#"))
    found = doctor(sandbox, site, "--check", "slurm", "--check", "rights", env={"SLURM_CONF": str(conf)})
    assert found["slurm"]["level"] == "critical" and found["rights"]["level"] == "unknown"


def test_an_ordinary_user_is_told_what_he_may_not_see(sandbox, site):
    run(sandbox, site, "refresh")
    site.parent.chmod(0o755)
    argv = [sys.executable, "-m", "slurm_hook.cli", "--config", str(site), "doctor", "--role", "login", "--check", "history"]
    done = sandbox.run(argv, user="alice", env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode in (2, 3) and "history" in done.stdout, done.stdout + done.stderr
