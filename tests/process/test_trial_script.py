"""install.sh's demo and test part, as far as it goes without a Slurm: how it is called, what it inherits, how it is ended."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from accounting.scoring.published_method import score_columns
from tests.demo_options import DIES, GPUS, SECONDS, STAGES, TWO_NODES, arguments, room
from tests.sandbox.conf import node_names

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
        (["--nodes", "32", "--bad", "gpu[01-05]"], "name 1 to 4 nodes"),
        (["--bad", "gpu01,gpu05,gpu09,gpu13"], "pretrain (4 nodes) needs more leaf switches"),
        (["--nodes", "5"], "from 6 to 64"),
        (["--jobs", "79"], "from 80 (5 for each node"),
        (["--nodes", "64", "--jobs", "150"], "from 320"),
        (["more"], "unrecognized arguments: more"),
    ],
)
def test_wrong_options_of_the_demo_cost_no_installation(args, words):
    done = install("demo", *args)
    assert done.returncode == 2 and words in done.stderr and done.stdout == ""


@pytest.mark.parametrize("nodes", range(6, 65))
def test_the_demo_s_usual_choice_holds_at_every_size(nodes):
    options = arguments(["--nodes", str(nodes)])
    assert nodes - len(options.bad) >= 1 + 4  # prepare may still run when pretrain is decided anew
    assert len(options.bad) == 1 + (nodes >= 8) and options.jobs >= 9 * nodes
    assert all(room(node_names(nodes), options.bad, count) for _, count in STAGES)
    if nodes == 16:
        assert (options.bad, options.jobs) == (["gpu06", "gpu11"], 150)  # what the README tells


def ranked(draw, nodes, jobs, bad):
    """Whether four of the least capability have the bad ones among them, after a history like the demo's."""
    free, rows = [0.0] * nodes, []
    for job in range(jobs):
        used = sorted(range(nodes), key=lambda i: (free[i], draw.random()))[: 1 + (draw.random() < TWO_NODES)]
        start = max(free[i] for i in used)
        dies = any(i in bad and draw.random() < DIES for i in used)
        end = start + draw.choice(SECONDS) / (1 + dies)
        gpus = draw.choice(GPUS)
        for i in used:
            rows.append((i, int(start), int(end), gpus, 8, -1 if dies else 1, job))
            free[i] = end + 0.5
    columns = dict(zip(("node", "start", "end", "demand", "capacity", "correct", "job"), np.array(rows, float).T, strict=True))
    found = score_columns(**{**columns, "node": columns["node"].astype(int)}, n_nodes=nodes).capability
    worst = sorted(range(nodes), key=lambda i: (not np.isfinite(found[i]), found[i]))[:4]
    return set(bad) <= set(worst)


@pytest.mark.parametrize(("nodes", "jobs", "most"), [(16, 150, 0), (16, 80, 3)])
def test_planted_nodes_rank_last_whatever_the_luck(nodes, jobs, most):
    draw = random.Random(1)
    wrong = sum(not ranked(draw, nodes, jobs, draw.sample(range(nodes), 4)) for _ in range(200))
    assert wrong <= most


def test_what_modules_set_for_other_pythons_does_not_count(tmp_path):
    (tmp_path / "argparse.py").write_text("raise SystemExit('another argparse')\n")
    env = {
        "PYTHONPATH": str(tmp_path),
        "PYTHONHOME": "/nonexistent",
        "PYTHONWARNINGS": "error",
        "CDPATH": "/tmp",
        "POSIXLY_CORRECT": "1",
    }
    done = install("demo", "--help", env=env)
    assert done.returncode == 0 and "usage: install.sh demo" in done.stdout, done.stderr


def test_what_the_caller_set_for_its_own_slurm_and_terminal_does_not_count_for_tests(tmp_path):
    """On a login node of a cluster, in a job, where colours are forced."""
    env = {"SLURM_CONF": "/nonexistent", "SLURM_CLUSTERS": "other", "SLURM_JOB_ID": "7", "SACCT_FORMAT": "JobID",
           "WORKHORSE_CONFIG": "/nonexistent", "WORKHORSE_MODE": "steer", "FORCE_COLOR": "1", "COLUMNS": "30"}  # fmt: skip
    tests = ("process/test_sacct.py::test_call_is_under_control", "unit/test_store.py::test_second_run_is_told_to_wait")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/t"]
    done = subprocess.run(
        [*argv, *(f"tests/{test}" for test in tests)], cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


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
