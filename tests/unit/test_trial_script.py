"""install.sh's demo and test part, as far as it goes without a Slurm: how it is called, what it inherits, how it is ended."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def install(*args, shell=(), env=None):
    argv = [*shell, ROOT / "install.sh", *args]
    return subprocess.run(
        argv, capture_output=True, text=True, cwd="/", timeout=60, env={**os.environ, **(env or {})}, check=False
    )


@pytest.mark.parametrize("args", [("--help",), ("-h",), (), ("test", "--help"), ("test", "-h")])
@pytest.mark.parametrize("shell", [(), ("sh",)])
def test_help_is_no_error_by_any_shell(args, shell):
    done = install(*args, shell=shell)
    assert (done.returncode, done.stderr) == (0, "") and "./install.sh demo" in done.stdout


@pytest.mark.parametrize("args", [("tset",), ("test", "units"), ("-x",)])
def test_unknown_words_are_refused_with_the_usage(args):
    done = install(*args)
    assert done.returncode == 2 and f"install.sh: {' '.join(args)}" in done.stderr and "./install.sh demo" in done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--bad", "gpu99"], "name 1 to 4 nodes of gpu01"),
        (["--bad", ""], "name 1 to 4 nodes"),
        (["--bad", "gpu[1"], "a bracket is not closed"),
        (["--bad", "gpu[01-05]"], "name 1 to 4 nodes"),
        (["--nodes", "3"], "from 4 to 64"),
        (["--jobs", "1"], "from 20 to 2000"),
        (["more"], "unrecognized arguments: more"),
    ],
)
def test_wrong_options_of_the_demo_cost_no_installation(args, words):
    done = install("demo", *args)
    assert done.returncode == 2 and words in done.stderr and done.stdout == ""


def test_what_modules_set_for_other_pythons_does_not_count(tmp_path):
    (tmp_path / "argparse.py").write_text("raise SystemExit('another argparse')\n")
    env = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nonexistent", "PYTHONWARNINGS": "error", "CDPATH": "/tmp"}
    done = install("demo", "--help", env=env)
    assert done.returncode == 0 and "usage: install.sh demo" in done.stdout, done.stderr


@pytest.mark.parametrize(("number", "group"), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, False)])
def test_an_interrupted_environment_leaves_nothing(tmp_path, number, group):
    """Ctrl-C goes to the terminal's whole group, other signals mostly to one process."""
    checkout, temp = tmp_path / "check out", tmp_path / "temp"
    checkout.mkdir()
    temp.mkdir()
    for name in ("install.sh", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    argv = ["env", "--default-signal=INT,HUP", checkout / "install.sh", "test", "lint"]
    running = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(temp)},
    )
    deadline = time.monotonic() + 20
    while not (checkout / ".venv" / "bin").exists():
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    (os.killpg if group else os.kill)(running.pid, number)
    said, _ = running.communicate(timeout=20)
    assert running.returncode == 128 + number
    assert said.splitlines() == [f"Building the Python environment in {checkout}/.venv …", "interrupted"]
    assert sorted(path.name for path in checkout.iterdir()) == ["install.sh", "pyproject.toml"]
    assert list(temp.iterdir()) == []
