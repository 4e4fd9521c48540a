"""`./install.sh demo` and `./install.sh test` where root may not look after them: a checkout only root reads, apt interrupted."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import demo
from tests.sandbox import Sandbox, procs

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]

# Sourced without arguments install.sh prints its usage, and its functions are there.
OPEN = """\
. ./install.sh >/dev/null
venv=$top/.venv cache=$venv
open_checkout
printf '%s\\n' "$open"
seen_from setpriv --reuid=65534 --regid=65534 --clear-groups cat pyproject.toml
"""


def checkout(folder: Path) -> Path:
    """As much of one as is looked at."""
    folder.mkdir()
    for name in ("install.sh", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    (folder / "slurm_hook" / "cli").mkdir(parents=True)
    (folder / "slurm_hook" / "cli" / "group.py").touch()
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "pyvenv.cfg").touch()
    (folder / ".venv" / "bin" / "python").symlink_to("/usr/bin/python3")
    return folder


def opened(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", OPEN], cwd=folder, capture_output=True, text=True, timeout=30, check=False)


def test_a_checkout_below_a_closed_folder_is_seen_by_ordinary_users(tmp_path: Path) -> None:
    closed = tmp_path / "ro ot"
    closed.mkdir(mode=0o700)
    done = opened(checkout(closed / "clo ne"))
    assert done.returncode == 0, done.stderr
    place, text = done.stdout.split("\n", 1)
    assert text == (ROOT / "pyproject.toml").read_text()
    assert place.startswith("/tmp/workhorse-checkout-") and not Path(place).exists()
    assert (closed / "clo ne" / "pyproject.toml").exists()


def test_a_checkout_whose_files_are_closed_is_told_with_the_mend(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "clo ne")
    (folder / "slurm_hook").chmod(0o700)
    done = opened(folder)
    assert done.returncode == 1 and done.stdout == ""
    assert f"can't read {folder}" in done.stderr and f"chmod -R go+rX '{folder}'" in done.stderr


def test_a_stage_that_fails_ends_the_demo_s_pipeline_at_once(sandbox: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    """Those after it pend for ever: they are told of, not waited for."""
    jobs = {"prepare": sandbox.sbatch("-N1", script="#!/bin/sh\nexit 3\n")}
    for name in ("pretrain", "evaluate"):
        after = f"--dependency=afterok:{list(jobs.values())[-1]}"
        jobs[name] = sandbox.sbatch("-N1", after, script="#!/bin/sh\n")
    ends = demo.stages_end(sandbox, jobs)
    where = sandbox.job(jobs["prepare"])["NodeList"]
    sandbox.run(["scancel", *map(str, jobs.values())])
    assert ends == {"prepare": ("FAILED", where)} and where in sandbox.nodes
    assert capsys.readouterr().out.splitlines() == [
        f"prepare: FAILED on {where}",
        "pretrain, evaluate: never to start, as prepare did not complete",
    ]


APT = """\
#!/bin/sh
trap 'echo interrupted >>{log}' INT
echo started >>{log}
until [ -e {go} ]; do sleep 0.02; done
echo done >>{log}
"""
PACKAGES = """\
import pathlib, signal, sys
from tests.sandbox import __main__ as command, packages
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests themselves run in the background
signal.signal(signal.SIGHUP, signal.SIG_DFL)
packages.POLICY = pathlib.Path(sys.argv.pop())
packages.missing_packages = lambda: ["slurmctld"]
packages._enabled = set
sys.argv[1:] = ["packages"]
sys.exit(command.main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_apt_ends_whole_and_services_may_start_again(tmp_path: Path, number: signal.Signals) -> None:
    """A dpkg that is killed leaves packages half set up, and every later apt-get refuses to work."""
    log, go, policy = (tmp_path / name for name in ("log", "go", "policy"))
    apt = tmp_path / "apt-get"
    apt.write_text(APT.format(log=shlex.quote(str(log)), go=shlex.quote(str(go))))
    apt.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    running = subprocess.Popen([sys.executable, "-c", PACKAGES, policy], cwd=ROOT, env=env, start_new_session=True)
    try:
        procs.poll(log.exists, 20, "apt-get to be called")
        assert policy.exists()
        os.killpg(running.pid, number)
        procs.poll(lambda: "interrupted" in log.read_text(), 20, "the interruption to reach apt-get")
        os.killpg(running.pid, number)  # an impatient admin
        assert running.poll() is None and policy.exists()
        go.touch()
        assert running.wait(20) == 128 + number
    finally:
        go.touch()
        running.kill()
        running.wait()
    assert log.read_text().split() == ["started", "interrupted", "done"]
    assert not policy.exists()
