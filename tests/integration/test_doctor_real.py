"""Doctor on a real Slurm: fine where all is well, and each fault told with its mend."""

import json
import shutil
import sys
from pathlib import Path

import click
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


@pytest.fixture
def readable(sandbox):
    """Code, click and a site where everybody can read them, wherever the checkout and its Python are; the history is private."""
    folder = sandbox.root / "everybody"
    for source in (ROOT / "slurm_hook", ROOT / "accounting", Path(click.__file__).parent):
        shutil.copytree(source, folder / "lib" / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "public").mkdir(mode=0o755)
    (folder / "w.toml").write_text(f"[history]\npath = '{folder}/history.db'\n[publish]\npath = '{folder}/public'\n")
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield folder
    shutil.rmtree(folder)


def test_an_ordinary_user_is_told_what_he_may_not_see(sandbox, readable):
    run(sandbox, readable / "w.toml", "refresh")
    argv = ["/usr/bin/python3", "-m", "slurm_hook.cli", "--config", readable / "w.toml", "doctor", "--json"]
    env = {"PYTHONPATH": str(readable / "lib"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = sandbox.run([*argv, "--check", "history", "--check", "settings"], user="alice", env=env, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    found = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert (found["history"]["level"], done.returncode) == ("unknown", 3)
    assert "may not be read by alice" in found["history"]["text"] and "run doctor as root" in found["history"]["mend"]
